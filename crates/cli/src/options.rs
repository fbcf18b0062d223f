//! `-o` of `limen mount`: the options of mount(8) and fstab(5), and those of limenfs.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use chunk::{DiskCacheOptions, StoreOptions, TrafficLimits, WritebackOptions};
use clap::ValueHint;
use command::error::CliError;
use command::exporter::MetricsAddress;
use command::units::parse_size;
use meta::Volume;
use vfs::AtimeMode;

use crate::rights::{RightsArgs, add_ranges, parse_id};
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
  sync_metadata      commit each change before it is answered. Without this option, changes in directories that this
                     mount has created are answered at once, and committed in groups afterwards, until another mount
                     looks there; if the mount is killed, the next one on this machine commits the rest
  take_directories   also answer changes in existing directories at once, after this mount has created several files
                     there, until another mount looks there; experimental, on database servers only
  retry_timeout=SECONDS
                     how long to retry a request that fails at the database before the call fails with EIO
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
  upload_limit=SIZE, download_limit=SIZE
                     the most bytes per second that this mount sends to the object store, and that it receives from it
                     [default: no limit]
  transport=auto|ring|dev
                     how to receive requests from the kernel: ring through io_uring, dev through /dev/fuse,
                     auto through io_uring if the kernel offers it [default: auto]
  noidle_class       never run the threads that serve io_uring in the scheduling class SCHED_IDLE. By default, busy ones
                     run in it while other programs leave them enough time, because then a program stays on its CPU when
                     its call returns
  subdir=DIR, metrics=ADDR, slow_ops=MS, log=FILE, key_file=FILE
                     same as --subdir, --metrics, --slow-ops, --log and --key-file, for fstab(5)
  acl_domain=DOMAIN  show users and groups in NFSv4 ACLs as name@DOMAIN [default: as numbers]
  abe, root_squash, all_squash, anon_uid=UID, anon_gid=GID, uid_map=RANGE|FILE, gid_map=RANGE|FILE,
  bypass_traverse=GROUP|UID
                     same as the options under Rights, for fstab(5); uid_map, gid_map and bypass_traverse can be repeated
  rw, suid, dev, exec, nowriteback
                     undo an earlier ro, nosuid, nodev, noexec or writeback
  defaults, default_permissions, auto, noauto, nofail, _netdev, async, user, users, nouser, owner, group,
  comment=TEXT, x-NAME
                     accepted without an effect, for fstab(5)

Examples:
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
      returns when /mnt serves requests; prints the name of its log file
  limen mount -o ro,noexec sqlite:///var/lib/limen/home.db /mnt
      stays in the foreground and logs to the terminal; Ctrl-C unmounts
  limen mount -d --abe sqlite:///srv/projects.db /srv/projects
      listings show each caller only entries that it may read
  limen mount -d --take-over redis://db.example/ /mnt
      serves the mount at /mnt by this version of limen from now on
  limen mount --update-fstab -o nofail redis://db.example/ /mnt
      mounts, and writes the line into /etc/fstab that mounts it at boot
  limen mount mem:// /mnt
      a new, empty volume in memory, lost when it is unmounted")]
pub(crate) struct MountArgs {
    /// Where the volume's metadata is, e.g. sqlite:///var/lib/limen/home.db; limen --help lists the kinds of
    /// URLs
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
    /// Mount options; see below
    #[arg(short = 'o', long = "options", value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<String>,
    /// Mount this directory of the volume, named by its path from the volume's root, instead of the root. The
    /// directories above it and the trash cannot be reached through the mount
    #[arg(long, value_name = "DIR")]
    pub(crate) subdir: Option<PathBuf>,
    /// The file to log to [default: standard error; with -d /var/log/limen-NAME.log, or limen/NAME.log in the
    /// state directory of a user other than root]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Where to serve metrics for Prometheus over HTTP: IP:PORT, a port of the loopback interface, or off
    /// [default: the first free port of the loopback interface from 9860 on; limen status shows it]
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// Log each request that takes at least this many milliseconds, with the time that it waited for the
    /// database and for the object store; 0 to log none [default: 1000]
    #[arg(long, value_name = "MS")]
    pub(crate) slow_ops: Option<u64>,
    /// Take a live mount of this volume over from the process that serves it, for example after an upgrade of
    /// limen: programs that use the mount go on, after a pause. The options must be the same as before,
    /// except those of caches, limits, threads, logs and metrics
    #[arg(long)]
    pub(crate) take_over: bool,
    /// After mounting with -d, which this option implies, write the line of this mount into /etc/fstab, or
    /// replace the line that it has there; as root, also create /sbin/mount.limen and
    /// /sbin/umount.fuse.limen, by which mount(8) and umount(8) find limen
    #[arg(long)]
    pub(crate) update_fstab: bool,
    /// The file that --update-fstab changes [default: /etc/fstab]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "update_fstab")]
    pub(crate) fstab: Option<PathBuf>,
    /// Set for the background process that `limen mount -d` starts; its standard output goes to that command.
    #[arg(long, hide = true)]
    pub(crate) report: bool,
    // This is the last field, because its heading also applies to the options after it.
    #[command(flatten)]
    pub(crate) rights: RightsArgs,
}

/// The options of all `-o` lists together.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) fuse: fuse::Options,
    /// Take the volume's lock shared, so that several processes can mount the volume.
    pub(crate) shared: bool,
    /// Commit changes before they are answered, even in directories that the mount has created.
    pub(crate) sync_metadata: bool,
    /// Take directories that exist if only this mount creates files in them.
    pub(crate) take_directories: bool,
    /// Retry timeout of requests that fail at the database. `None` for the default, which outlasts a restart
    /// of the database.
    pub(crate) retry_timeout: Option<Duration>,
    cache_bytes: u64,
    cache_dir: Option<PathBuf>,
    cache_dir_bytes: u64,
    cache_dir_free_bytes: u64,
    /// Write blocks to the cache directory first, and upload them in the background.
    writeback: bool,
    writeback_bytes: u64,
    pub(crate) write_buffer_bytes: u64,
    limits: TrafficLimits,
    atime: AtimeMode,
    /// The directory of the volume to mount, by its path from the root.
    pub(crate) subdir: Option<PathBuf>,
    /// The address at which metrics are served.
    pub(crate) metrics: MetricsAddress,
    /// The part after the `@` of names in NFSv4 ACLs.
    pub(crate) acl_domain: Option<String>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) keys: KeyArgs,
    /// Options that also exist as command-line options.
    pub(crate) rights: RightsArgs,
}

/// A flag: its name, and what it sets.
type Flag = (&'static str, fn(&mut Options));

/// An option with a value: its name, the form of its value, and what sets it.
type Valued = (&'static str, &'static str, fn(&mut Options, &str) -> Result<(), String>);

const FLAGS: &[Flag] = &[
    ("ro", |options| options.fuse.read_only = true),
    ("rw", |options| options.fuse.read_only = false),
    ("nosuid", |options| options.fuse.nosuid = true),
    ("suid", |options| options.fuse.nosuid = false),
    ("nodev", |options| options.fuse.nodev = true),
    ("dev", |options| options.fuse.nodev = false),
    ("noexec", |options| options.fuse.noexec = true),
    ("exec", |options| options.fuse.noexec = false),
    ("noatime", |options| options.atime = AtimeMode::Never),
    ("relatime", |options| options.atime = AtimeMode::Relative),
    ("strictatime", |options| options.atime = AtimeMode::Always),
    ("allow_other", |options| options.fuse.allow_other = true),
    ("user_only", |options| options.fuse.allow_other = false),
    ("nonempty", |options| options.fuse.allow_nonempty = true),
    ("shared", |options| options.shared = true),
    ("sync_metadata", |options| options.sync_metadata = true),
    ("take_directories", |options| options.take_directories = true),
    ("noidle_class", |options| options.fuse.no_idle_class = true),
    ("writeback", |options| options.writeback = true),
    ("nowriteback", |options| options.writeback = false),
    ("abe", |options| options.rights.abe = true),
    ("root_squash", |options| options.rights.root_squash = true),
    ("all_squash", |options| options.rights.all_squash = true),
];

/// Flags that are accepted and ignored, because they are always in effect or are meant for other programs
/// that read fstab(5). mount(8) also passes `user` with a value. Options that begin with `x-` or `X-` are
/// ignored too.
const IGNORED: &[&str] = &[
    "defaults",
    "default_permissions",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "async",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "comment",
];

/// The ignored options that can have a value.
const IGNORED_VALUES: &[&str] = &["user", "comment"];

const VALUES: &[Valued] = &[
    ("retry_timeout", "SECONDS", Options::set_retry_timeout),
    ("workers", "N", Options::set_workers),
    ("transport", "auto|ring|dev", Options::set_transport),
    ("cache", "SIZE", |options, value| {
        options.cache_bytes = parse_size(value)?.max(MIN_CACHE_BYTES);
        Ok(())
    }),
    ("cache_dir", "DIR", Options::set_cache_dir),
    ("cache_dir_size", "SIZE", |options, value| parse_size(value).map(|size| options.cache_dir_bytes = size)),
    ("cache_dir_free", "SIZE", |options, value| {
        parse_size(value).map(|size| options.cache_dir_free_bytes = size)
    }),
    ("writeback_size", "SIZE", |options, value| parse_size(value).map(|size| options.writeback_bytes = size)),
    ("write_buffer", "SIZE", |options, value| {
        options.write_buffer_bytes = parse_size(value)?.max(MIN_WRITE_BUFFER_BYTES);
        Ok(())
    }),
    ("upload_limit", "SIZE", |options, value| {
        parse_rate(value).map(|rate| options.limits.upload = Some(rate))
    }),
    ("download_limit", "SIZE", |options, value| {
        parse_rate(value).map(|rate| options.limits.download = Some(rate))
    }),
    ("acl_domain", "DOMAIN", Options::set_acl_domain),
    ("subdir", "DIR", |options, value| subdir(Path::new(value)).map(|path| options.subdir = Some(path))),
    ("log", "FILE", |options, value| absolute(value).map(|path| options.log = Some(path))),
    ("key_file", "FILE", |options, value| absolute(value).map(|path| options.keys.key_file = Some(path))),
    ("metrics", "ADDR", |options, value| value.parse().map(|place| options.metrics = place)),
    ("slow_ops", "MS", |options, value| {
        let wrong = |_| format!("'{value}' is not a number of milliseconds");
        value.parse().map_err(wrong).map(|ms| options.fuse.slow = slow(ms))
    }),
    ("anon_uid", "UID", |options, value| parse_id(value).map(|id| options.rights.anon_uid = Some(id))),
    ("anon_gid", "GID", |options, value| parse_id(value).map(|id| options.rights.anon_gid = Some(id))),
    ("uid_map", "RANGE|FILE", |options, value| add_ranges(&mut options.rights.uid_map, value)),
    ("gid_map", "RANGE|FILE", |options, value| add_ranges(&mut options.rights.gid_map, value)),
    ("bypass_traverse", "GROUP|UID", |options, value| {
        options.rights.bypass_traverse.push(value.to_owned());
        Ok(())
    }),
];

/// A request that takes at least this long is logged as slow.
const DEFAULT_SLOW_MS: u64 = 1000;
const MAX_WORKERS: usize = 1024;
const MAX_RETRY_SECS: u64 = 86_400;
const MIN_CACHE_BYTES: u64 = 4 << 20;
/// With a buffer of less than a few blocks, every writer would wait for the object store.
const MIN_WRITE_BUFFER_BYTES: u64 = 16 << 20;
/// With less, one block of 4 MiB would take longer than a minute.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

impl Options {
    /// Parses the lists in order; a later option wins. Other users have access by default only if root
    /// mounts.
    ///
    /// # Errors
    /// An option is unknown, or its value is invalid.
    pub(crate) fn parse(lists: &[String], is_root: bool) -> Result<Self, CliError> {
        let mut options = Options {
            fuse: fuse::Options {
                allow_other: is_root,
                slow: slow(DEFAULT_SLOW_MS),
                ..fuse::Options::default()
            },
            shared: false,
            sync_metadata: false,
            take_directories: false,
            retry_timeout: None,
            cache_bytes: chunk::DEFAULT_CACHE_BYTES,
            cache_dir: None,
            cache_dir_bytes: 10 << 30,
            cache_dir_free_bytes: 5 << 30,
            writeback: false,
            writeback_bytes: 10 << 30,
            write_buffer_bytes: vfs::VfsOptions::default().write_buffer_bytes,
            limits: TrafficLimits::default(),
            atime: AtimeMode::default(),
            subdir: None,
            metrics: MetricsAddress::default(),
            acl_domain: None,
            log: None,
            keys: KeyArgs::default(),
            rights: RightsArgs::default(),
        };
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            let wrong = |what: String| CliError::usage(what).at(format!("-o {option}"));
            let is_known = match option.split_once('=') {
                None => options.set_flag(option),
                Some((key, value)) => options.set_value(key, value).map_err(wrong)?,
            };
            if option == "remount" {
                return Err(wrong("options cannot be changed while the volume is mounted".to_owned())
                    .advise("unmount it and mount it again"));
            }
            if !is_known {
                return Err(
                    wrong("unknown mount option".to_owned()).advise(format!("known options are {}", known()))
                );
            }
        }
        if options.writeback && options.cache_dir.is_none() {
            let error = CliError::usage("write-back needs a local directory for blocks that wait for upload");
            return Err(error
                .at("-o writeback")
                .advise("name a directory on a local disk with -o cache_dir=DIR"));
        }
        Ok(options)
    }

    /// The reads that update access times; none on a read-only mount.
    pub(crate) fn atime(&self) -> AtimeMode {
        if self.fuse.read_only { AtimeMode::Never } else { self.atime }
    }

    /// Applies the command-line options that also exist as `-o`. The command line takes precedence.
    ///
    /// # Errors
    /// `--subdir` is not a path in the volume.
    pub(crate) fn apply(&mut self, args: &MountArgs) -> Result<(), CliError> {
        if let Some(path) = &args.subdir {
            self.subdir = Some(subdir(path).map_err(|what| CliError::usage(what).at("--subdir"))?);
        }
        self.metrics = args.metrics.unwrap_or(self.metrics);
        self.fuse.slow = args.slow_ops.map_or(self.fuse.slow, slow);
        self.log = args.log.clone().or(self.log.take());
        self.keys.key_file = args.keys.key_file.clone().or(self.keys.key_file.take());
        Ok(())
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
        let (cache_bytes, limits) = (self.cache_bytes, self.limits);
        StoreOptions { cache_bytes, disk_cache, writeback, limits, ..StoreOptions::default() }
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

    /// Sets a flag. Returns false if no flag has this name.
    fn set_flag(&mut self, option: &str) -> bool {
        if let Some((_, set)) = FLAGS.iter().find(|(name, _)| *name == option) {
            set(self);
            return true;
        }
        has_no_effect(option)
    }

    /// Sets an option with a value. Returns false if no such option has this name.
    fn set_value(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match VALUES.iter().find(|(name, ..)| *name == key) {
            Some((_, _, set)) => set(self, value).map(|()| true),
            None => Ok(has_no_effect(&format!("{key}={value}"))),
        }
    }

    fn set_workers(&mut self, value: &str) -> Result<(), String> {
        let workers = value.parse().ok().filter(|n: &NonZeroUsize| n.get() <= MAX_WORKERS);
        let wrong = || format!("'{value}' is not a number of threads: write 1 to {MAX_WORKERS}");
        self.fuse.workers = Some(workers.ok_or_else(wrong)?);
        Ok(())
    }

    fn set_retry_timeout(&mut self, value: &str) -> Result<(), String> {
        let seconds = value.parse().ok().filter(|&seconds: &u64| seconds <= MAX_RETRY_SECS);
        let wrong = || format!("'{value}' is not a number of seconds: write 0 to {MAX_RETRY_SECS}");
        self.retry_timeout = Some(Duration::from_secs(seconds.ok_or_else(wrong)?));
        Ok(())
    }

    fn set_transport(&mut self, value: &str) -> Result<(), String> {
        self.fuse.channel = match value {
            "auto" => fuse::Channel::Auto,
            "ring" => fuse::Channel::Ring,
            "dev" => fuse::Channel::Device,
            _ => return Err(format!("unknown transport '{value}': write auto, ring or dev")),
        };
        Ok(())
    }

    fn set_cache_dir(&mut self, value: &str) -> Result<(), String> {
        self.cache_dir = Some(absolute(value)?);
        Ok(())
    }

    fn set_acl_domain(&mut self, value: &str) -> Result<(), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if value.is_empty() || value.len() > 255 || !value.bytes().all(is_name) {
            return Err(format!(
                "'{value}' is not a domain: write 1 to 255 letters, digits, dots, dashes and underscores"
            ));
        }
        self.acl_domain = Some(value.to_owned());
        Ok(())
    }
}

/// A path in a list of options. It must be absolute, because the process that uses it runs in another
/// directory.
fn absolute(value: &str) -> Result<PathBuf, String> {
    let path = Path::new(value);
    let wrong = || format!("'{value}' is not an absolute path: write one that begins with /");
    path.is_absolute().then(|| path.to_owned()).ok_or_else(wrong)
}

/// A path from the root of the volume, without `.` and `..`.
fn subdir(path: &Path) -> Result<PathBuf, String> {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    match path.components().all(is_plain) && path.components().any(|part| part != Component::RootDir) {
        true => Ok(path.to_owned()),
        false => {
            Err(format!("'{}' is not the path of a directory in the volume: write /DIR", path.display()))
        }
    }
}

/// Bytes per second.
fn parse_rate(value: &str) -> Result<NonZeroU64, String> {
    let rate = NonZeroU64::new(parse_size(value)?).filter(|rate| rate.get() >= MIN_BYTES_PER_SECOND);
    rate.ok_or_else(|| format!("'{value}' is too little: write a number of bytes per second, at least 64K"))
}

/// Whether an option is for other programs that read fstab(5), such as systemd.
fn is_for_others(name: &str) -> bool {
    name.starts_with("x-") || name.starts_with("X-")
}

/// Whether an option, with its value if it has one, is accepted and ignored.
pub(crate) fn has_no_effect(option: &str) -> bool {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let list = if value.is_some() { IGNORED_VALUES } else { IGNORED };
    list.contains(&name) || is_for_others(name)
}

/// Whether there is an option with this name, with or without a value.
pub(crate) fn is_known(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    let is_flag = FLAGS.iter().any(|(known, _)| *known == name);
    is_flag || VALUES.iter().any(|(known, ..)| *known == name) || has_no_effect(option)
}

/// Requests that take at least this long are logged as slow; if `ms` is 0, none is.
fn slow(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// The names of all options. Options without an effect are last.
#[cfg(test)]
pub(crate) fn names() -> Vec<&'static str> {
    let (flags, valued) = (FLAGS.iter().map(|(name, _)| *name), VALUES.iter().map(|(name, ..)| *name));
    flags.chain(valued).chain(IGNORED.iter().copied()).collect()
}

/// All options that have an effect, with the forms of their values.
fn known() -> String {
    let valued = VALUES.iter().map(|(name, form, _)| format!("{name}={form}"));
    FLAGS.iter().map(|(name, _)| (*name).to_owned()).chain(valued).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, CliError> {
        Options::parse(&[list.to_owned()], true)
    }

    #[test]
    fn options_are_read_in_order() {
        let options = parse("ro,nosuid,workers=3,cache=1G,rw,,x-systemd.automount,x-a=b").unwrap();
        assert!(!options.fuse.read_only && options.fuse.nosuid && options.fuse.allow_other);
        assert_eq!(options.fuse.workers.unwrap().get(), 3);
        assert_eq!(options.retry_timeout, None);
        assert_eq!(parse("retry_timeout=7").unwrap().retry_timeout, Some(Duration::from_secs(7)));
        assert_eq!(options.cache_bytes, 1 << 30);
        assert!(!Options::parse(&[], false).unwrap().fuse.allow_other);
        assert!(!parse("user_only").unwrap().fuse.allow_other);
        let rights = parse("abe,uid_map=0:5:1,uid_map=7:8:1,bypass_traverse=u:7").unwrap().rights;
        assert_eq!((rights.abe, rights.uid_map.as_deref()), (true, Some("0:5:1,7:8:1")));
        assert_eq!(rights.bypass_traverse, ["u:7"]);
        assert_eq!(parse("strictatime,relatime").unwrap().atime(), AtimeMode::Relative);
        assert_eq!(parse("strictatime,ro").unwrap().atime(), AtimeMode::Never);
        assert_eq!(parse("metrics=off").unwrap().metrics, MetricsAddress::Off);
        assert_eq!(parse("slow_ops=5").unwrap().fuse.slow, Some(Duration::from_millis(5)));
        assert_eq!(parse("slow_ops=0").unwrap().fuse.slow, None);
        assert!(parse("writeback,nowriteback").is_ok() && parse("cache_dir=/c,writeback").unwrap().writeback);
        let limits = parse("upload_limit=1M,download_limit=64K").unwrap().limits;
        assert_eq!([limits.upload, limits.download], [NonZeroU64::new(1 << 20), NonZeroU64::new(64 << 10)]);
        assert_eq!(parse("transport=ring,transport=dev").unwrap().fuse.channel, fuse::Channel::Device);
    }

    #[test]
    fn options_of_fstab_for_other_programs_are_ignored() {
        let list = "defaults,async,nofail,_netdev,noauto,user=ann,users,comment=a b,x-systemd.requires=x,X-mount.mkdir,group";
        let options = parse(list).unwrap();
        assert!(!options.fuse.read_only && options.fuse.allow_other);
        assert!(list.split(',').all(|option| has_no_effect(option) && is_known(option)));
        for option in ["ro", "cache=1G", "log=/l", "rx", "nofail=1", "users=ann"] {
            assert!(!has_no_effect(option), "{option}");
        }
        assert!(is_known("log=/l") && is_known("ro") && !is_known("rx"));
        let options = parse("log=/var/log/l,key_file=/etc/k").unwrap();
        assert_eq!(options.log.as_deref(), Some(Path::new("/var/log/l")));
        assert_eq!(options.keys.key_file.as_deref(), Some(Path::new("/etc/k")));
    }

    #[test]
    fn mount_options_and_command_line_options_merge() {
        let listed = parse(
            "abe,all_squash,uid_map=0:1000:5,uid_map=5:7:1,gid_map=/etc/map,anon_uid=3,anon_gid=4,bypass_traverse=g:0,\
             bypass_traverse=5",
        );
        let listed = listed.unwrap().rights;
        for list in ["uid_map=0:1000:5,uid_map=/etc/map", "gid_map=/etc/map,gid_map=0:0:1", "squash", "uid=5"]
        {
            assert!(parse(list).is_err(), "{list}");
        }
        let args = RightsArgs::default;
        let both = RightsArgs { bypass_traverse: vec!["root".to_owned()], ..args() }.with(&listed).unwrap();
        assert!(both.abe && both.all_squash && !both.root_squash);
        assert_eq!(both.uid_map.as_deref(), Some("0:1000:5,5:7:1"));
        assert_eq!(both.bypass_traverse, ["root", "g:0", "5"]);
        let said = RightsArgs { anon_gid: Some(4), ..args() };
        assert!(said.with(&listed).unwrap_err().to_string().contains("anon_gid"));
        let squashed = RightsArgs { root_squash: true, ..args() }.with(&listed).unwrap();
        assert!(RightsArgs { gid_map: None, ..squashed }.ids().is_err());
    }

    #[test]
    fn errors_name_the_unknown_or_invalid_option() {
        for list in [
            "writeback",
            "rx",
            "ro,workers=0",
            "workers=many",
            "retry_timeout=-1",
            "retry_timeout=1s",
            "transport=x",
            "acl_domain=a@b",
            "metrics=host:1",
            "slow_ops=1s",
            "cache=big",
            "upload_limit=0",
            "download_limit=63K",
            "ro=1",
            "uid_map=map",
            "anon_uid=-1",
            "abe=on",
            "workers",
            "log=l",
            "key_file=k",
            "subdir=/",
            "subdir=/a/../b",
            "nofail=1",
            "users=ann",
            "remount",
        ] {
            let error = parse(list).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(list.split(',').next_back().unwrap()), "{error}");
        }
    }
}
