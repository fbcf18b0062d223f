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

/// The line of the overview for TiKV, whose engine is an optional feature of the build.
#[cfg(feature = "tikv")]
macro_rules! tikv_line {
    () => {
        "  tikv://PD,PD/PREFIX          TiKV; PD is the address of a placement driver\n"
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
META-URL names the database that holds the volume's metadata:
  sqlite:///absolute/path.db   a SQLite database on this machine
  redis://HOST/N               Redis or Valkey; rediss:// with TLS, redis+unix:// for a socket
  postgres://USER@HOST/NAME    PostgreSQL
  mysql://USER@HOST/NAME       MySQL or MariaDB
  etcd://HOST,HOST             etcd; etcds:// with TLS
",
    tikv_line!(),
    "  mem://                       the memory of the mount, lost when it is unmounted: for trials
A volume on a database server can be mounted on many machines at once.

A first volume:
  limen format sqlite:///var/lib/limen/home.db home
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
  limen umount /mnt

Exit codes: 0 success, 1 failure, 2 the command line is wrong. Some commands have more; see their --help.
LIMEN_LOG filters the log, e.g. LIMEN_LOG=debug or LIMEN_LOG=info,vfs=trace."
);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a volume: metadata at META-URL, file data in an object store
    Format(FormatArgs),
    /// Mount a volume and serve it until it is unmounted
    Mount(MountArgs),
    /// Unmount a volume and wait until all its data is stored
    #[command(visible_alias = "unmount")]
    Umount(UmountArgs),
    /// Show a volume's settings, its usage, and its mounts
    Status(StatusArgs),
    /// Show how files on a mount are stored: inode, ACLs, slices, objects
    Info(InfoArgs),
    /// List directories with attributes and ACLs in bulk, on a mount or directly from a volume's database
    Ls(LsArgs),
    /// Explain why an access is allowed or denied, list who has access, and preview permission changes
    Access(AccessArgs),
    /// Delete a volume and all its files permanently
    Destroy(DestroyArgs),
    /// Show a volume's settings, and change those that can be changed
    Config(ConfigArgs),
    /// Check a volume's metadata and file data, and repair what can be repaired
    Fsck(FsckArgs),
    /// Show unreferenced data and files of a volume, and remove them
    Gc(GcArgs),
    /// Remove directory trees with several threads, and count what was removed
    Rmr(RmrArgs),
    /// Read directory trees with several threads, to fill the caches
    Warmup(WarmupArgs),
    /// Measure file operations on a mounted path of any file system, and the cost of ACLs
    Bench(BenchArgs),
    /// Measure metadata operations without a mount: create, stat, rename and remove a tree with many threads
    Mdtest(MdtestArgs),
    /// Show the version of this program and of the formats that it supports
    Version(VersionArgs),
    /// Print a completion script for a shell
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
    /// Where to store the metadata, e.g. sqlite:///var/lib/limen/home.db
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// The volume's name: 1 to 63 characters of a-z, 0-9, - and _
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,
    /// The kind of object store for the file data
    #[arg(long, value_enum, default_value_t = Storage::File)]
    pub(crate) storage: Storage,
    /// Where to store the objects; must be empty. With --storage file a directory [default: the database's
    /// path with the suffix .data instead of .db], with --storage s3 s3://BUCKET/PREFIX or
    /// https://HOST:PORT/BUCKET/PREFIX
    #[arg(long, value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub(crate) bucket: Option<String>,
    /// How to compress data before it is stored in the object store
    #[arg(long, value_enum, default_value_t = Compress::None)]
    pub(crate) compress: Compress,
    /// Encrypt data before it is stored in the object store; needs a key. Names and attributes are not
    /// encrypted
    #[arg(long, value_enum, value_name = "CIPHER")]
    pub(crate) encrypt: Option<Encrypt>,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    /// The kind of ACLs that files can have; cannot be changed later
    #[arg(long, value_enum, default_value_t = Acl::Posix)]
    pub(crate) acl: Acl,
    /// Store the data of files up to this size in the metadata, at most 64K; 0 for never [default: 4096; 0
    /// with --encrypt and on Redis]
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    pub(crate) inline: Option<u32>,
    /// The maximum total size of all files, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub(crate) capacity: u64,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) inodes: u64,
}

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

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 unmounted and all data stored, 1 failure, 2 the command line is wrong, 3 unmounted here, but the process
that serves it did not end within the timeout: another mount namespace or a program still holds the mount, or the object
store takes no data. The message says which. Run the command again to continue to wait.

Examples:
  limen umount /mnt
  limen umount -l /mnt
      detach the mount now although files are open there; it ends when they are closed")]
pub(crate) struct UmountArgs {
    /// Where the volume is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) mountpoint: PathBuf,
    /// Detach the mount at once, even if it is in use, and do not wait
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// Abort requests in flight; programs that use the mount get errors
    #[arg(short, long, conflicts_with = "lazy")]
    pub(crate) force: bool,
    /// How long to wait while other processes hold the mount, or while storing data makes no progress; 0 to
    /// check once
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
    /// Do not ask for the volume's name as a confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Wait 90 seconds, and remove sessions that are not renewed in that time, because their machines are
    /// gone. A session that is still renewed keeps the volume in use. Also continues a removal that was
    /// interrupted on another machine
    #[arg(long)]
    pub(crate) force: bool,
    /// Remove the metadata only and leave the object store as it is: for a store that no longer exists
    #[arg(long)]
    pub(crate) keep_objects: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen config sqlite:///var/lib/limen/home.db
  limen config sqlite:///var/lib/limen/home.db --capacity 2T --inodes 0
      0 means no limit
  limen config sqlite:///var/lib/limen/home.db --abe on
      mounts apply a change within about ten seconds")]
pub(crate) struct ConfigArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    pub(crate) url: String,
    /// The maximum total size of all files, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N")]
    pub(crate) inodes: Option<u64>,
    /// Store the data of files up to this size in the metadata when they are next written, at most 64K; 0 for
    /// never
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    pub(crate) inline: Option<u32>,
    /// How chmod changes an NFSv4 ACL
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) aclmode: Option<AclMode>,
    /// Which entries of a directory's NFSv4 ACL new files inherit
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) aclinherit: Option<AclInherit>,
    /// Whether listings show each caller only entries that it may read (access-based enumeration), on every
    /// mount
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    pub(crate) abe: Option<bool>,
    /// Mark the object store as this volume's; use it if limen says that the store is not this volume's and
    /// you know that it is
    #[arg(long)]
    pub(crate) adopt_store: bool,
    /// Settings that cannot change: accepted, so that the error message can say why.
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
Symbolic links are removed, not followed. A path that is a mount point, or has one below it, is refused. A path that does
not exist is not an error.

Example:
  limen rmr /mnt/old /mnt/older")]
pub(crate) struct RmrArgs {
    /// Files or directories, on any file system
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Number of threads
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
      the kernel's and the mount's caches keep the data as long as they have room")]
pub(crate) struct WarmupArgs {
    /// Files or directories, on any file system
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Read names and attributes only, not file data
    #[arg(long)]
    pub(crate) metadata: bool,
    /// Number of threads
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
    /// A local directory, or one on a mounted file system
    File,
    /// The memory of the mount, lost when it is unmounted: for trials
    Memory,
    /// S3 or a compatible server; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from
    /// a profile
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

/// The key of an encrypted volume, if it is not in the environment as LIMEN_KEY or LIMEN_PASSPHRASE.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct KeyArgs {
    /// A file with the key of an encrypted volume: 32 bytes, or these in hexadecimal or base64 [default: the
    /// environment variable LIMEN_KEY or LIMEN_PASSPHRASE]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Acl {
    /// POSIX ACLs, like ext4 and XFS
    Posix,
    /// NFSv4 ACLs, like NFS and Windows; for nfs4_setfacl and Samba
    Nfsv4,
    /// Mode bits only
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AclMode {
    /// Replace the ACL by entries that say the same as the new mode
    Discard,
    /// Keep entries for users and groups; if the group bits change, no entry allows more than the new group
    /// bits (default)
    #[value(name = "groupmask")]
    GroupMask,
    /// Keep entries for users and groups, without those of r, w and x that the new group bits lack
    Passthrough,
    /// Let chmod fail on files with an ACL that says more than a mode
    Restricted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AclInherit {
    /// No entries
    Discard,
    /// Only entries that deny
    #[value(name = "noallow")]
    NoAllow,
    /// All entries, without the permissions to change the ACL and the owner
    Restricted,
    /// All entries unchanged; entries for owner, group and everyone replace mode and umask
    Passthrough,
    /// Like passthrough, but a file is executable only if its create mode says so
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
    Err(format!("a volume's name has 1 to {MAX_NAME_BYTES} characters of a-z, 0-9, - and _"))
}

/// More threads than this would only wait for each other on any machine.
const MAX_THREADS: usize = 1024;

pub(crate) fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=MAX_THREADS).contains(threads));
    threads.ok_or_else(|| format!("'{text}' is not a number of threads: write 1 to {MAX_THREADS}"))
}

/// Larger rows would slow down all other work of the database.
const MAX_INLINE_BYTES: u64 = 64 << 10;

fn parse_inline(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        bytes if bytes <= MAX_INLINE_BYTES => Ok(bytes as u32),
        _ => Err("the metadata can hold files of at most 64K".to_owned()),
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
    fn clap_accepts_the_command_line_definition() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_shows_a_url_for_each_engine_of_the_build() {
        let shown = |name: &str| OVERVIEW.contains(&format!("  {name}://"));
        let engines = crate::url::engines();
        assert!(engines.iter().all(|name| shown(name)), "{engines:?}");
        assert_eq!(shown("tikv"), engines.contains(&"tikv"));
    }

    #[test]
    fn volume_names_are_checked() {
        for good in ["a", "home-2_x", &"a".repeat(63)] {
            assert_eq!(parse_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "A", "a b", "a/b", "a.b", "ä", &"a".repeat(64)] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn inline_size_is_bounded() {
        assert_eq!((parse_inline("0"), parse_inline("64K")), (Ok(0), Ok(65_536)));
        assert!(parse_inline("65537").is_err());
    }
}
