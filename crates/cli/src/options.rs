//! `-o` of `limen mount`: the options of mount(8) and fstab(5), and those of limenfs.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chunk::{DiskCacheOptions, StoreOptions, WritebackOptions};
use clap::ValueHint;
use command::fault::Fault;
use command::units::parse_size;
use meta::Volume;
use vfs::AtimeMode;

use crate::rights::RightsArgs;
use crate::store::KeyArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Options for -o, separated by commas:
  ro                 mount read-only
  nosuid, nodev, noexec, noatime, relatime, strictatime
                     as for mount(8) [default: noatime]
  allow_other        let all users access the mount; the default for root
  user_only          let only the user that mounts access the mount; the default for other users
  nonempty           mount over a directory that is not empty
  workers=N          threads that serve requests [default: 4 per CPU; 32 on a database server]
  shared             allow other mounts of the volume, which need this option too; on a database server, other mounts
                     are always allowed
  patience=SECONDS   how long to retry a request that fails at the database before the call fails with EIO
                     [default: 20]
  cache=SIZE         memory for cached blocks [default: 256M]
  cache_dir=DIR      also cache blocks in this directory of a local disk; the cache outlives the mount
  cache_dir_size=SIZE, cache_dir_free=SIZE
                     the maximum size of that cache [default: 10G], and the space to leave free on its disk [default: 5G]
  writeback          write blocks to cache_dir first and upload them in the background: faster, but until the upload
                     only this machine can read them; umount waits for the uploads
  writeback_size=SIZE
                     the most data that can wait for upload [default: 10G]; more is uploaded at once
  write_buffer=SIZE  memory for data not yet stored [default: 256M]
  transport=auto|ring|dev
                     how to receive requests from the kernel: ring through io_uring, dev through /dev/fuse,
                     auto through io_uring if the kernel offers it [default: auto]
  acl_domain=DOMAIN  show users and groups in NFSv4 ACLs as name@DOMAIN [default: as numbers]
  abe, root_squash, all_squash, anon_uid=UID, anon_gid=GID, uid_map=RANGE|FILE, gid_map=RANGE|FILE,
  bypass_traverse=GROUP|UID
                     same as the options under Rights, for fstab(5); uid_map, gid_map and bypass_traverse can be repeated
  rw, suid, dev, exec, nowriteback
                     undo an earlier ro, nosuid, nodev, noexec or writeback

Examples:
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
      returns when /mnt serves requests; prints the name of its log file
  limen mount -o ro,noexec sqlite:///var/lib/limen/home.db /mnt
      stays in the foreground and logs to the terminal; Ctrl-C unmounts
  limen mount -d --abe sqlite:///srv/projects.db /srv/projects
      listings show each caller only entries that it may read
  limen mount mem:// /mnt
      a new, empty volume in memory, lost when it is unmounted")]
pub(crate) struct MountArgs {
    /// Where the volume's metadata is, e.g. sqlite:///var/lib/limen/home.db
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// The directory to mount at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: PathBuf,
    /// Serve in the background; return when the mount serves requests
    #[arg(short = 'd', long = "background", visible_alias = "daemon")]
    pub(crate) background: bool,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    #[command(flatten)]
    pub(crate) rights: RightsArgs,
    /// Mount options; see below
    #[arg(short = 'o', long = "options", value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<String>,
    /// The file to log to [default: standard error; with -d /var/log/limen-NAME.log, or limen/NAME.log in the
    /// state directory of a user other than root]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Set for the background process that `limen mount -d` starts; its standard output goes to that command.
    #[arg(long, hide = true)]
    pub(crate) report: bool,
}

/// The options of all `-o` lists together.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) fuse: fuse::Options,
    /// Take the volume's lock shared, so that several processes can mount the volume.
    pub(crate) shared: bool,
    /// Retry timeout of requests that fail at the database; `None` for the default, which outlasts a restart
    /// of it.
    pub(crate) patience: Option<Duration>,
    cache_bytes: u64,
    cache_dir: Option<PathBuf>,
    cache_dir_bytes: u64,
    cache_dir_free_bytes: u64,
    /// Write blocks to the cache directory first, and upload them in the background.
    writeback: bool,
    writeback_bytes: u64,
    pub(crate) write_buffer_bytes: u64,
    atime: AtimeMode,
    /// The part after the `@` of names in NFSv4 ACLs.
    pub(crate) acl_domain: Option<String>,
    /// Options that also exist as command-line options.
    pub(crate) rights: RightsArgs,
}

const KNOWN: &str = "ro, rw, nosuid, nodev, noexec, noatime, relatime, strictatime, allow_other, user_only, nonempty, \
                     shared, patience=SECONDS, workers=N, transport=auto|ring|dev, \
                     cache=SIZE, cache_dir=DIR, cache_dir_size=SIZE, cache_dir_free=SIZE, writeback, writeback_size=SIZE, \
                     write_buffer=SIZE, acl_domain=DOMAIN, abe, root_squash, all_squash, anon_uid=UID, anon_gid=GID, \
                     uid_map=RANGE|FILE, gid_map=RANGE|FILE and bypass_traverse=GROUP|UID";

const MAX_WORKERS: usize = 1024;
const MAX_PATIENCE_SECS: u64 = 86_400;
const MIN_CACHE_BYTES: u64 = 4 << 20;
/// With a buffer of less than a few blocks, every writer would wait for the object store.
const MIN_WRITE_BUFFER_BYTES: u64 = 16 << 20;

impl Options {
    /// Parses the lists in order; a later option wins. Other users have access by default only if root
    /// mounts.
    ///
    /// # Errors
    /// An option is unknown, or its value is invalid.
    pub(crate) fn parse(lists: &[String], is_root: bool) -> Result<Self, Fault> {
        let mut options = Options {
            fuse: fuse::Options { allow_other: is_root, ..fuse::Options::default() },
            shared: false,
            patience: None,
            cache_bytes: chunk::DEFAULT_CACHE_BYTES,
            cache_dir: None,
            cache_dir_bytes: 10 << 30,
            cache_dir_free_bytes: 5 << 30,
            writeback: false,
            writeback_bytes: 10 << 30,
            write_buffer_bytes: vfs::VfsOptions::default().write_buffer_bytes,
            atime: AtimeMode::default(),
            acl_domain: None,
            rights: RightsArgs::default(),
        };
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            let wrong = |what: String| Fault::usage(what).at(format!("-o {option}"));
            let known = match option.split_once('=') {
                None => options.set_flag(option),
                Some((key, value)) => options.set_value(key, value).map_err(wrong)?,
            };
            if !known {
                return Err(
                    wrong("unknown mount option".to_owned()).advise(format!("known options are {KNOWN}"))
                );
            }
        }
        if options.writeback && options.cache_dir.is_none() {
            let fault = Fault::usage("write-back needs a local directory for blocks that wait for upload");
            return Err(fault
                .at("-o writeback")
                .advise("name a directory on a local disk with -o cache_dir=DIR"));
        }
        Ok(options)
    }

    /// Which reads update access times; none on a read-only mount.
    pub(crate) fn atime(&self) -> AtimeMode {
        if self.fuse.read_only { AtimeMode::Never } else { self.atime }
    }

    /// How the volume's blocks are cached and staged.
    pub(crate) fn store(&self, volume: &Volume) -> StoreOptions {
        let disk_cache = self.cache_dir.as_ref().map(|directory| DiskCacheOptions {
            directory: directory.clone(),
            volume: volume.uuid.clone(),
            max_bytes: self.cache_dir_bytes,
            min_free_bytes: self.cache_dir_free_bytes,
        });
        let writeback = self.writeback(volume);
        StoreOptions { cache_bytes: self.cache_bytes, disk_cache, writeback, ..StoreOptions::default() }
    }

    /// How blocks are staged. Without `-o writeback` no new block is staged, but blocks that an earlier mount
    /// left are uploaded.
    pub(crate) fn writeback(&self, volume: &Volume) -> Option<WritebackOptions> {
        let options = WritebackOptions {
            directory: self.cache_dir.clone()?,
            volume: volume.uuid.clone(),
            max_bytes: if self.writeback { self.writeback_bytes } else { 0 },
            min_free_bytes: self.cache_dir_free_bytes,
        };
        (self.writeback || options.place().is_dir()).then_some(options)
    }

    fn set_flag(&mut self, option: &str) -> bool {
        let fuse = &mut self.fuse;
        match option {
            "shared" => self.shared = true,
            "writeback" => self.writeback = true,
            "nowriteback" => self.writeback = false,
            "ro" => fuse.read_only = true,
            "rw" => fuse.read_only = false,
            "nosuid" => fuse.nosuid = true,
            "suid" => fuse.nosuid = false,
            "nodev" => fuse.nodev = true,
            "dev" => fuse.nodev = false,
            "noexec" => fuse.noexec = true,
            "exec" => fuse.noexec = false,
            "noatime" => self.atime = AtimeMode::Never,
            "relatime" => self.atime = AtimeMode::Relative,
            "strictatime" => self.atime = AtimeMode::Always,
            "allow_other" => fuse.allow_other = true,
            "user_only" => fuse.allow_other = false,
            "nonempty" => fuse.allow_nonempty = true,
            // These are always in effect, or are meant for other readers of fstab(5).
            "defaults" | "default_permissions" | "_netdev" | "auto" | "noauto" | "nofail" => {}
            _ => return self.rights.set_flag(option) || option.starts_with("x-"),
        }
        true
    }

    fn set_value(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "workers" => {
                let workers = value.parse().ok().filter(|n: &NonZeroUsize| n.get() <= MAX_WORKERS);
                let wrong = || format!("'{value}' is not a number of threads: write 1 to {MAX_WORKERS}");
                self.fuse.workers = Some(workers.ok_or_else(wrong)?);
            }
            "patience" => {
                let seconds = value.parse().ok().filter(|&seconds: &u64| seconds <= MAX_PATIENCE_SECS);
                let wrong =
                    || format!("'{value}' is not a number of seconds: write 0 to {MAX_PATIENCE_SECS}");
                self.patience = Some(Duration::from_secs(seconds.ok_or_else(wrong)?));
            }
            "transport" => {
                self.fuse.channel = match value {
                    "auto" => fuse::Channel::Auto,
                    "ring" => fuse::Channel::Ring,
                    "dev" => fuse::Channel::Device,
                    _ => return Err(format!("unknown transport '{value}': write auto, ring or dev")),
                }
            }
            "cache" => self.cache_bytes = parse_size(value)?.max(MIN_CACHE_BYTES),
            "cache_dir" if Path::new(value).is_absolute() => self.cache_dir = Some(value.into()),
            "cache_dir" => return Err("the cache directory must be an absolute path".to_owned()),
            "cache_dir_size" => self.cache_dir_bytes = parse_size(value)?,
            "cache_dir_free" => self.cache_dir_free_bytes = parse_size(value)?,
            "acl_domain" => {
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
                if value.is_empty() || value.len() > 255 || !value.bytes().all(is_name) {
                    return Err(format!(
                        "'{value}' is not a domain: write 1 to 255 letters, digits, dots, dashes and underscores"
                    ));
                }
                self.acl_domain = Some(value.to_owned());
            }
            "writeback_size" => self.writeback_bytes = parse_size(value)?,
            "write_buffer" => self.write_buffer_bytes = parse_size(value)?.max(MIN_WRITE_BUFFER_BYTES),
            _ => return Ok(self.rights.set_value(key, value)? || key.starts_with("x-")),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, Fault> {
        Options::parse(&[list.to_owned()], true)
    }

    #[test]
    fn options_are_read_in_order() {
        let options = parse("ro,nosuid,workers=3,cache=1G,rw,,x-systemd.automount,x-a=b").unwrap();
        assert!(!options.fuse.read_only && options.fuse.nosuid && options.fuse.allow_other);
        assert_eq!(options.fuse.workers.unwrap().get(), 3);
        assert_eq!(options.patience, None);
        assert_eq!(parse("patience=7").unwrap().patience, Some(Duration::from_secs(7)));
        assert_eq!(options.cache_bytes, 1 << 30);
        assert!(!Options::parse(&[], false).unwrap().fuse.allow_other);
        assert!(!parse("user_only").unwrap().fuse.allow_other);
        let rights = parse("abe,uid_map=0:5:1,uid_map=7:8:1,bypass_traverse=u:7").unwrap().rights;
        assert_eq!((rights.abe, rights.uid_map.as_deref()), (true, Some("0:5:1,7:8:1")));
        assert_eq!(rights.bypass_traverse, ["u:7"]);
        assert_eq!(parse("strictatime,relatime").unwrap().atime(), AtimeMode::Relative);
        assert_eq!(parse("strictatime,ro").unwrap().atime(), AtimeMode::Never);
        assert!(parse("writeback,nowriteback").is_ok() && parse("cache_dir=/c,writeback").unwrap().writeback);
        assert_eq!(parse("transport=ring,transport=dev").unwrap().fuse.channel, fuse::Channel::Device);
    }

    #[test]
    fn errors_name_the_unknown_or_invalid_option() {
        for list in [
            "writeback",
            "rx",
            "ro,workers=0",
            "workers=many",
            "patience=-1",
            "patience=1s",
            "transport=x",
            "acl_domain=a@b",
            "cache=big",
            "ro=1",
            "uid_map=map",
            "anon_uid=-1",
            "abe=on",
            "workers",
        ] {
            let fault = parse(list).unwrap_err();
            assert_eq!(fault.exit_code(), 2);
            assert!(fault.to_string().contains(list.split(',').next_back().unwrap()), "{fault}");
        }
    }
}
