//! `limen clone`: copies a file or tree by reference.
//!
//! On a mount, the mount's process makes the copy (`command/src/clone.rs`). In a volume that is named by its
//! URL, this process makes it: on the embedded engine with the lock of the database, on a server under a
//! session of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueHint;
use client::{CloneProgress, CloneRequest, Meta};
use command::clone::{Counted, failed, request, split};
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output;
use command::process::host_name;
use command::units::{files_and_directories, parse_threads, show_size};
use meta::{Engine, EngineError, Record, Scan, ScanInclude, Session};
use rustix::fs::{StatVfsMountFlags, fstatvfs, syncfs};
use serde_json::json;
use types::{Errno, Ino, Name, SliceId, Time};
use vfs::process::this_process;

use crate::maintenance;
use crate::open::lock_unmounted;
use crate::sessions::session_times;
use crate::target::{Target, mount_of, show_name, volume_behind};
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
No file data is read or copied: the copy refers to the same blocks, and only data that is written later, to the source or
to the copy, needs new ones. The copy has the same owners, modes, times (except ctime), ACLs, extended attributes, symbolic
links, special files, hard links among its files, and holes. It appears as a whole: DST does not exist before, and no part
of the copy is visible until all of it is. A copy that fails or is interrupted is removed.

DST must not exist, and its directory must be on the same mount as SRC. Only root and the user that runs the mount can
use this command, and not on a mount that maps callers to other users (--root-squash, --all-squash).

The copy has all data that was written on this mount before the command began. Each file is copied as of one moment (of a
file of more than 16 GiB, each 16 GiB), but the tree is not a snapshot: a change that is made while the command runs is in
the copy or not. Quotas and the capacity of the volume count the copy like any files; if it does not fit, the command fails with
EDQUOT or ENOSPC. docs/operations.md tells more.

SRC and DST may also be META-URL:/PATH, both in one volume: on the embedded engine only while it is not mounted.

Examples:
  limen clone /mnt/project /mnt/project.before-upgrade
  limen clone --json redis://db.example.org/1:/data redis://db.example.org/1:/data.copy")]
pub(crate) struct CloneArgs {
    /// The file or directory to copy; a symbolic link is copied, not followed
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    source: OsString,
    /// The copy, which must not exist
    #[arg(value_name = "DST", value_hint = ValueHint::AnyPath)]
    target: OsString,
    /// Keep owners, modes and times; this is always done, and the option exists for scripts written for other
    /// file systems
    #[arg(short, long)]
    preserve: bool,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "4")]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Entries read in one request to count them.
const PAGE: usize = 1024;

pub(crate) fn run(args: &CloneArgs) -> Result<(), CliError> {
    let (source, target) = (Target::parse(&args.source)?, Target::parse(&args.target)?);
    let counted = match (&source, &target) {
        (Target::Local(from), Target::Local(to)) => on_mount(args, from, to),
        (Target::Volume(url, from), Target::Volume(other, to)) if url == other => {
            in_volume(args, url, (&source, from), (&target, to))
        }
        _ => Err(CliError::usage(Errno::EXDEV)
            .advise("name both by paths on one mount, or both by the same META-URL")),
    };
    let Counted { inodes, directories, bytes } = counted.what("cannot clone")?;
    let files = inodes.saturating_sub(directories);
    output::result(
        args.json,
        || json!({ "files": files, "directories": directories, "bytes": bytes }),
        || format!("Cloned {}, {} in files.\n", files_and_directories(files, directories), show_size(bytes)),
    )
}

fn on_mount(args: &CloneArgs, from: &Path, to: &Path) -> Result<Counted, CliError> {
    let (parent, name) = split(to)?;
    let source = fs::symlink_metadata(from).at(from.display())?;
    let dir = fs::metadata(parent).at(parent.display())?;
    let entry = mount_of(parent)?;
    // A path can lead to another mount from one moment to the next.
    if entry.device != dir.dev() {
        return Err(CliError::new("the directory was moved or mounted over meanwhile").at(parent.display()));
    }
    if source.dev() != dir.dev() {
        return Err(CliError::new(Errno::EXDEV)
            .at(from.display())
            .advise("SRC and DST must be on the same mount"));
    }
    if fs::symlink_metadata(to).is_ok() {
        return Err(CliError::new(Errno::EEXIST).at(to.display()));
    }
    let opened = File::open(parent).at(parent.display())?;
    if fstatvfs(&opened)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(CliError::new("the mount is read-only").at(entry.mountpoint.display()));
    }
    // Before this call, data that programs wrote into shared mappings may be only in the page cache.
    syncfs(&opened).at(parent.display())?;
    drop(opened);
    let clone =
        CloneRequest { source: Ino(source.ino()), parent: Ino(dir.ino()), name, threads: args.threads };
    let interrupt = Interrupt::install()?;
    let bar = output::progress_of("cloned", 0);
    let (total, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let done = thread::scope(|scope| {
        // The count is needed only to estimate the time left.
        if !bar.is_hidden() && source.is_dir() {
            scope.spawn(|| {
                if let Ok((database, _)) = volume_behind(parent, dir.dev()) {
                    let _ = count(&*database.engine(), Ino(source.ino()), &total, &is_over);
                }
            });
        }
        let mut seen = |counted: Counted| {
            bar.set_length(total.load(Ordering::Relaxed).max(counted.inodes));
            bar.set_position(counted.inodes);
        };
        let done = request(&entry, &clone, to, &mut seen, &|| interrupt.is_set()).at(to.display());
        is_over.store(true, Ordering::Relaxed);
        done
    });
    bar.finish_and_clear();
    done
}

fn in_volume(
    args: &CloneArgs,
    url: &MetaUrl,
    (source, from): (&Target, &[u8]),
    (target, to): (&Target, &[u8]),
) -> Result<Counted, CliError> {
    let (parent, name) = split(Path::new(std::ffi::OsStr::from_bytes(to)))?;
    let parent = Target::Volume(url.clone(), parent.as_os_str().as_bytes().to_vec());
    let (database, _, source) = find_source(url, source, from)?;
    let (_, _, parent) = parent.open()?;
    let engine = database.engine();
    let lock = lock_unmounted(url, &database, "name the files by their paths on the mount")?;
    let meta = Meta::open(engine, 10_000).at(url)?;
    maintenance::require_none(url, &meta)?;
    let is_shared = matches!(database, Database::Network(_));
    meta.set_exclusive(!is_shared);
    let clone = CloneRequest { source, parent, name, threads: args.threads };
    let interrupt = Interrupt::install()?;
    let bar = output::progress_of("cloned", 0);
    let (total, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let progress = CloneProgress::default();
    let own = if is_shared { Some(OwnSession::begin(&meta).at(url)?) } else { None };
    let done = thread::scope(|scope| {
        if let Some(own) = &own {
            scope.spawn(|| own.renew(&is_over));
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let inodes = progress.inodes.load(Ordering::Relaxed);
                bar.set_length(total.load(Ordering::Relaxed).max(inodes));
                bar.set_position(inodes);
                thread::park_timeout(TICK);
            }
        });
        if !bar.is_hidden() {
            scope.spawn(|| count(&**meta.engine(), source, &total, &is_over));
        }
        let done = meta.clone_tree(&clone, &progress, &|| interrupt.is_set(), &|| false);
        is_over.store(true, Ordering::Relaxed);
        done
    });
    bar.finish_and_clear();
    let synced = meta.sync().at(url);
    if own.is_some()
        && let Err(error) = meta.drop_session(meta.session())
    {
        tracing::warn!(%error, "cannot end the session: a mount removes it");
    }
    drop(lock);
    done.map_err(|failure| failed(&failure).at(target.show()))?;
    synced?;
    Ok(Counted::of(&progress))
}

const TICK: Duration = Duration::from_millis(100);

/// The inode of a path in a volume. Unlike [`Target::open`], it does not follow a symbolic link.
fn find_source(
    url: &MetaUrl,
    source: &Target,
    path: &[u8],
) -> Result<(Database, meta::Volume, Ino), CliError> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let Ok((parent, name)) = split(path) else { return source.open() };
    let parent = Target::Volume(url.clone(), parent.as_os_str().as_bytes().to_vec());
    let (database, volume, dir) = parent.open()?;
    let found = database.engine().read(&[meta::RecordKey::Dirent(dir, name)])?;
    match found.records.first() {
        Some(Record::Dirent(_, _, Some(dirent))) => Ok((database, volume, dirent.ino)),
        _ => Err(CliError::new(Errno::ENOENT).at(show_name(path.as_os_str().as_bytes()))),
    }
}

/// The session of this process on a database server, under which it owns the unfinished copy.
struct OwnSession<'a> {
    meta: &'a Meta,
    since: Time,
    heartbeat: Duration,
    valid_for: Duration,
}

impl<'a> OwnSession<'a> {
    fn begin(meta: &'a Meta) -> Result<OwnSession<'a>, CliError> {
        let times = session_times()?;
        let own =
            OwnSession { meta, since: Time::now(), heartbeat: times.heartbeat, valid_for: times.valid_for };
        meta.begin_session(own.record(), own.valid_for)?;
        Ok(own)
    }

    fn record(&self) -> Session {
        Session {
            host: host_name(),
            pid: std::process::id(),
            mountpoint: "limen clone".to_owned(),
            since: self.since,
            process: this_process(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // This process stores no slices.
            first_slice: SliceId(i64::MAX as u64),
            ..Session::new(self.meta.session(), Time::now())
        }
    }

    fn renew(&self, is_over: &AtomicBool) {
        let mut waited = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            thread::park_timeout(TICK);
            waited += TICK;
            if waited >= self.heartbeat {
                waited = Duration::ZERO;
                if let Err(error) = self.meta.renew_session(self.record(), self.valid_for) {
                    tracing::warn!(%error, "cannot renew the session; retrying");
                }
            }
        }
    }
}

/// Counts a directory and all names below it, while it is copied.
fn count(engine: &dyn Engine, dir: Ino, total: &AtomicU64, is_over: &AtomicBool) -> Result<(), EngineError> {
    total.fetch_add(1, Ordering::Relaxed);
    let mut dirs = vec![dir];
    while let Some(parent) = dirs.pop() {
        let scan = Scan::Dir { parent, after: None::<Name>, limit: PAGE, include: ScanInclude::Nothing };
        for page in scan.pages(|scan| engine.scan(scan)) {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            for record in page? {
                let Record::Dirent(_, _, Some(dirent)) = record else { continue };
                total.fetch_add(1, Ordering::Relaxed);
                if dirent.kind.is_dir() {
                    dirs.push(dirent.ino);
                }
            }
        }
    }
    Ok(())
}
