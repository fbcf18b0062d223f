//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

use crate::access::AccessArgs;
use crate::bench::BenchArgs;
use crate::fsck::FsckArgs;
use crate::gc::GcArgs;
use crate::ls::LsArgs;
use crate::mdtest::MdtestArgs;
use crate::rights::RightsArgs;
use crate::units::parse_size;

/// A distributed POSIX file system: metadata in a database, file data in an object store.
#[derive(Debug, Parser)]
#[command(name = "limen", version, arg_required_else_help = true, after_help = OVERVIEW)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// For an engine that is not in each build.
#[cfg(feature = "tikv")]
macro_rules! tikv_line {
    () => {
        "  tikv://PD,PD/PREFIX          TiKV, by its placement drivers\n"
    };
}
#[cfg(not(feature = "tikv"))]
macro_rules! tikv_line {
    () => {
        ""
    };
}

const OVERVIEW: &str = concat!(
    "\
META-URL says where a volume's metadata is:
  sqlite:///absolute/path.db   a SQLite database on this machine
  redis://HOST/N               Redis or Valkey; rediss:// with TLS, redis+unix:// by a socket
  postgres://USER@HOST/NAME    PostgreSQL
  mysql://USER@HOST/NAME       MySQL or MariaDB
  etcd://HOST,HOST             etcd; etcds:// with TLS
",
    tikv_line!(),
    "  mem://                       in the memory of one mount, gone with it: for trials
Volumes on a database server may be mounted on many machines at once.

A first volume:
  limen format sqlite:///var/lib/limen/home.db home
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
  limen umount /mnt

Exit codes: 0 done, 1 it failed, 2 the command line is wrong.
LIMEN_LOG filters the log, e.g. LIMEN_LOG=debug or LIMEN_LOG=info,vfs=trace."
);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a volume: its metadata at META-URL, its data in an object store
    Format(FormatArgs),
    /// Mount a volume and serve it, until it is unmounted
    Mount(MountArgs),
    /// Unmount a volume; when this returns, all data is stored
    #[command(visible_alias = "unmount")]
    Umount(UmountArgs),
    /// Show a volume's settings, what it holds, and who has it mounted
    Status(StatusArgs),
    /// Show what is stored of files on a mount: inode, ACLs, slices, objects
    Info(InfoArgs),
    /// List directories with attributes and ACLs in bulk, on a mount or straight from a volume's database
    Ls(LsArgs),
    /// Say why somebody may or may not, who may what, and what a change would change
    Access(AccessArgs),
    /// Remove a volume with all its files, for good
    Destroy(DestroyArgs),
    /// Show a volume's settings, and change those that may change
    Config(ConfigArgs),
    /// Check a volume's records and its files' data, and repair what can be
    Fsck(FsckArgs),
    /// Show what a volume keeps that nothing refers to, and remove it
    Gc(GcArgs),
    /// Remove trees with several threads, and count what was removed
    Rmr(RmrArgs),
    /// Read trees with several threads, so that they are in the caches
    Warmup(WarmupArgs),
    /// Measure a mounted path, limenfs or not: the operations on files, and ACLs against none
    Bench(BenchArgs),
    /// Measure a volume's metadata without a mount: make, look at, rename and remove a tree with many threads
    Mdtest(MdtestArgs),
    /// Show the versions of this program and of the formats it knows
    Version(VersionArgs),
    /// Print a script that completes limen's commands in a shell
    #[command(
        after_help = "Example:\n  limen completions bash >/usr/share/bash-completion/completions/limen"
    )]
    Completions { shell: Shell },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen format sqlite:///var/lib/limen/home.db home
      objects go to /var/lib/limen/home.data
  limen format sqlite:///var/lib/limen/big.db big --bucket /data/big --capacity 10T --inodes 50000000
  limen format sqlite:///srv/plain.db plain --acl off
  limen format sqlite:///srv/cloud.db cloud --storage s3 --bucket https://s3.example.org/mybucket/cloud \\
      --compress zstd --encrypt aes-256-gcm --key-file cloud.key")]
pub(crate) struct FormatArgs {
    /// Where the metadata goes, e.g. sqlite:///var/lib/limen/home.db
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// The volume's name: 1 to 63 of a-z, 0-9, - and _
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,
    /// The kind of object store that the data goes to
    #[arg(long, value_enum, default_value_t = Storage::File)]
    pub(crate) storage: Storage,
    /// Where the objects go, and nothing else is: for file a directory [default: beside the database, named NAME.data
    /// after its NAME.db], for s3 s3://BUCKET/PREFIX or https://HOST:PORT/BUCKET/PREFIX
    #[arg(long, value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub(crate) bucket: Option<String>,
    /// How data is compressed before it goes to the object store
    #[arg(long, value_enum, default_value_t = Compress::None)]
    pub(crate) compress: Compress,
    /// Encrypt data before it goes to the object store; needs a key. Names and attributes are not encrypted
    #[arg(long, value_enum, value_name = "CIPHER")]
    pub(crate) encrypt: Option<Encrypt>,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    /// The kind of ACLs that files may have; for good
    #[arg(long, value_enum, default_value_t = Acl::Posix)]
    pub(crate) acl: Acl,
    /// Files up to this size lie in the metadata, at most 64K; 0 for none [default: 4096; 0 with --encrypt and on Redis]
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    pub(crate) inline: Option<u32>,
    /// The most that all files may hold together, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub(crate) capacity: u64,
    /// The most files and directories there may be; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) inodes: u64,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Options for -o, several separated by commas:
  ro                 nothing can be changed
  nosuid, nodev, noexec, noatime, relatime, strictatime
                     as for mount(8) [default: noatime]
  allow_other        all users may enter, the default for root
  user_only          only who mounts may enter, the default for others
  nonempty           mount over a directory that has entries
  workers=N          threads that serve requests [default: 4 a CPU; 32 on a database server]
  shared             other mounts of the volume, with this option too, are let in; on a database server all are
  patience=SECONDS   how long a database that does not answer is asked again before a call fails with EIO [default: 20]
  cache=SIZE         memory for blocks that were read [default: 256M]
  cache_dir=DIR      keep blocks that were read on this disk too, across mounts
  cache_dir_size=SIZE, cache_dir_free=SIZE
                     what it may take [default: 10G], and what it leaves free [default: 5G]
  writeback          store blocks in cache_dir first and upload them in the background: faster, but until then
                     only this machine can read them; umount waits for the uploads
  writeback_size=SIZE
                     what may wait there [default: 10G]; beyond that, blocks go to the store at once
  write_buffer=SIZE  memory for data not yet stored
  acl_domain=DOMAIN  users and groups are called name@DOMAIN in NFSv4 ACLs [default: numbers]
  abe, root_squash, all_squash, anon_uid=UID, anon_gid=GID, uid_map=RANGE|FILE, gid_map=RANGE|FILE,
  bypass_traverse=GROUP|UID
                     as the options under Rights, for fstab(5); maps and holders may come several times

Examples:
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
      returns when /mnt serves requests; logs to a file that it names
  limen mount -o ro,noexec sqlite:///var/lib/limen/home.db /mnt
      stays in the foreground and logs to the terminal; Ctrl-C unmounts
  limen mount -d --abe sqlite:///srv/projects.db /srv/projects
      ls shows everybody only what he may read
  limen mount mem:// /mnt
      a new, empty volume in memory, gone when it is unmounted")]
pub(crate) struct MountArgs {
    /// Where the volume's metadata is, e.g. sqlite:///var/lib/limen/home.db
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// The directory to mount at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: PathBuf,
    /// Serve in the background; return once the mount serves requests
    #[arg(short = 'd', long = "background", visible_alias = "daemon")]
    pub(crate) background: bool,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    #[command(flatten)]
    pub(crate) rights: RightsArgs,
    /// Mount options; see below
    #[arg(short = 'o', long = "options", value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<String>,
    /// The file to log to [default: standard error; with -d /var/log/limen-NAME.log, or limen/NAME.log in the state directory of a user who is not root]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// This is the process that serves for a `limen mount -d`, which reads its standard output.
    #[arg(long, hide = true)]
    pub(crate) report: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 it is unmounted and its data stored, 1 it failed, 2 the command line is wrong, 3 it is unmounted here, but
its process did not end within the limit: another mount namespace or a program still holds it, or the store is stuck. What
is said then names them. Running the command again waits on.

Examples:
  limen umount /mnt
  limen umount -l /mnt
      though files are open there: out of sight now, gone when they are closed")]
pub(crate) struct UmountArgs {
    /// Where the volume is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: PathBuf,
    /// Take the mount out of sight at once, even if it is in use, and do not wait
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// Let requests under way fail; programs that use the mount see errors
    #[arg(short, long, conflicts_with = "lazy")]
    pub(crate) force: bool,
    /// How long to wait while others hold the mount, or while no data is stored any more; 0 to look once
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    pub(crate) timeout: u64,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen status --json sqlite:///var/lib/limen/home.db | jq .usage")]
pub(crate) struct StatusArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen info /mnt/report.pdf")]
pub(crate) struct InfoArgs {
    /// Files or directories on a mounted volume
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Print JSON, an array with an object for each path
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen destroy sqlite:///var/lib/limen/home.db")]
pub(crate) struct DestroyArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// Do not ask for the volume's name first
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Remove sessions too that are not renewed for 90 seconds, because their machines are gone: this waits so long. A session
    /// that is renewed still keeps the volume. Also goes on with a removal that was interrupted on another machine
    #[arg(long)]
    pub(crate) force: bool,
    /// Leave the object store alone, and remove the records only: for a store that is gone
    #[arg(long)]
    pub(crate) keep_objects: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen config sqlite:///var/lib/limen/home.db
  limen config sqlite:///var/lib/limen/home.db --capacity 2T --inodes 0
      0 is no limit
  limen config sqlite:///var/lib/limen/home.db --abe on
      mounts follow a change within some ten seconds")]
pub(crate) struct ConfigArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// The most that all files may hold together, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,
    /// The most files and directories there may be; 0 for no limit
    #[arg(long, value_name = "N")]
    pub(crate) inodes: Option<u64>,
    /// Files up to this size lie in the metadata when they are written next, at most 64K; 0 for none
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    pub(crate) inline: Option<u32>,
    /// What chmod does to NFSv4 ACLs
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) aclmode: Option<AclMode>,
    /// What new files get of their directory's NFSv4 ACL
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) aclinherit: Option<AclInherit>,
    /// Whether listings show a caller only what he may read (access-based enumeration), on every mount
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    pub(crate) abe: Option<bool>,
    /// Mark the object store as this volume's, when a mount says that it is not and you know that it is
    #[arg(long)]
    pub(crate) adopt_store: bool,
    /// What may not change, so that it can be said why.
    #[arg(long, hide = true)]
    pub(crate) acl: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) storage: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) bucket: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Symbolic links are removed, never followed; other mounts within are left alone. What is absent is no failure.

Example:
  limen rmr /mnt/old /mnt/older")]
pub(crate) struct RmrArgs {
    /// Files or directories, on any file system
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Threads that remove
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    pub(crate) threads: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  limen warmup /mnt/project
      what was read stays in the kernel's and the mount's caches as long as they have room")]
pub(crate) struct WarmupArgs {
    /// Files or directories, on any file system
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Names and attributes only, not what the files hold
    #[arg(long)]
    pub(crate) metadata: bool,
    /// Threads that read
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    pub(crate) threads: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    /// A directory of this machine, or one that it has mounted
    File,
    /// The memory of the mount: the data is gone with it, for trials
    Memory,
    /// S3, or a server that speaks it; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile
    S3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compress {
    None,
    /// Fast
    Lz4,
    /// Small
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encrypt {
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    #[value(name = "xchacha20-poly1305")]
    XChaCha20Poly1305,
}

/// What opens an encrypted volume, where not in the environment as LIMEN_KEY or LIMEN_PASSPHRASE.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct KeyArgs {
    /// The key of an encrypted volume: 32 bytes, or these as hexadecimal digits or base64 [default: LIMEN_KEY or
    /// LIMEN_PASSPHRASE in the environment]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Acl {
    /// POSIX ACLs, as ext4 and XFS have them
    Posix,
    /// NFSv4 ACLs, as NFS and Windows have them, for nfs4_setfacl and Samba
    Nfsv4,
    /// Mode bits only
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AclMode {
    /// Nothing of the ACL stays but what the mode says
    Discard,
    /// Entries for users and groups stay, but if the group bits change, none allows more than the new ones (default)
    #[value(name = "groupmask")]
    GroupMask,
    /// Entries for users and groups stay, and lose only r, w, x that the new group bits lack
    Passthrough,
    /// Files with an ACL refuse chmod
    Restricted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AclInherit {
    /// No entries
    Discard,
    /// Those that deny
    #[value(name = "noallow")]
    NoAllow,
    /// All, without the permissions to change ACL and owner
    Restricted,
    /// All as they are, also in place of mode and umask
    Passthrough,
    /// The same, but files can be executed only if their creator asked for it
    PassthroughX,
}

impl From<AclMode> for acl::nfs4::AclMode {
    fn from(policy: AclMode) -> Self {
        match policy {
            AclMode::Discard => Self::Discard,
            AclMode::GroupMask => Self::GroupMask,
            AclMode::Passthrough => Self::Passthrough,
            AclMode::Restricted => Self::Restricted,
        }
    }
}

impl From<AclInherit> for acl::nfs4::AclInherit {
    fn from(policy: AclInherit) -> Self {
        match policy {
            AclInherit::Discard => Self::Discard,
            AclInherit::NoAllow => Self::NoAllow,
            AclInherit::Restricted => Self::Restricted,
            AclInherit::Passthrough => Self::Passthrough,
            AclInherit::PassthroughX => Self::PassthroughX,
        }
    }
}

/// The longest name of a volume; it becomes part of file names.
const MAX_NAME_BYTES: usize = 63;

pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("a volume's name is 1 to {MAX_NAME_BYTES} of a-z, 0-9, - and _"))
}

/// More threads than this wait for one another on any machine.
const MAX_THREADS: usize = 1024;

pub(crate) fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=MAX_THREADS).contains(threads));
    threads.ok_or_else(|| format!("'{text}' is no number of threads: write 1 to {MAX_THREADS}"))
}

/// More than this in a row of the database would slow down everything else in it.
const MAX_INLINE_BYTES: u64 = 64 << 10;

fn parse_inline(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        bytes if bytes <= MAX_INLINE_BYTES => Ok(bytes as u32),
        _ => Err("at most 64K of a file can lie in the metadata".to_owned()),
    }
}

fn parse_on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_shows_a_url_of_each_engine_of_the_build() {
        let shown = |name: &str| OVERVIEW.contains(&format!("  {name}://"));
        let engines = crate::url::engines();
        assert!(engines.iter().all(|name| shown(name)), "{engines:?}");
        assert_eq!(shown("tikv"), engines.contains(&"tikv"));
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "home-2_x", &"a".repeat(63)] {
            assert_eq!(parse_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "A", "a b", "a/b", "a.b", "ä", &"a".repeat(64)] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn inline_is_bounded() {
        assert_eq!((parse_inline("0"), parse_inline("64K")), (Ok(0), Ok(65_536)));
        assert!(parse_inline("65537").is_err());
    }
}
