//! `limen mount`: from a URL to a mount that serves, and from there to the end of its session.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use chunk::{BlockStore, Pending};
use engine_sqlite::{LockError, MountLock};
use fuse::UnmountMode;
use meta::{AclKind, Counting, Meta, Volume};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use types::Errno;
use vfs::process::is_process_gone;
use vfs::{SessionInfo, SessionTimes, Vfs, VfsOptions};

use crate::args::MountArgs;
use crate::daemon::{self, Report};
use crate::fault::Fault;
use crate::format::volume_in_memory;
use crate::log;
use crate::maintenance;
use crate::marker::{self, Use};
use crate::network::Counted;
use crate::options::Options;
use crate::paths;
use crate::process::{Process, host_name};
use crate::registry::{self, Entry};
use crate::staged;
use crate::statistics::{Counters, Endpoint};
use crate::store::open_store;
use crate::units::show_size;
use crate::url::{Database, MetaUrl};

/// Records held in memory, some 200 bytes each.
const CACHED_RECORDS: usize = 400_000;

/// How long a mount waits for one before it to be gone: a process that was killed, or that unmounts at this moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Threads that serve requests of a volume on a database server, unless the options say how many.
const NETWORK_WORKERS: NonZeroUsize = NonZeroUsize::new(32).unwrap();

/// How long what is known may serve where nothing is heard of other clients' changes.
const LIFETIME_UNTOLD: Duration = Duration::from_secs(1);

/// How long a store that takes no block is waited for at the end, before blocks are left on the local disk.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &MountArgs) -> Result<(), Fault> {
    if args.background && !args.report {
        log::init("off", None)?;
        return daemon::start(args);
    }
    let file = match &args.log {
        Some(path) if !args.report => Some(log::open(path)?),
        _ => None,
    };
    log::init("info", file)?;
    let report = if args.report { Report::background() } else { Report::foreground() };
    serve(args, &report).map_err(|fault| report.fault(fault))
}

/// Takes the right to be the only process that changes the volume, or one of several that know of each other. A process
/// that ends at this moment is waited for.
///
/// # Errors
/// Another process has it.
pub(crate) fn take_lock(database: &Database, shared: bool) -> Result<Option<MountLock>, LockError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match database.lock(shared) {
            Err(LockError::AlreadyMounted { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// # Errors
/// As [`take_lock`], with the mounts that have it.
pub(crate) fn lock(url: &MetaUrl, database: &Database, shared: bool) -> Result<Option<MountLock>, Fault> {
    take_lock(database, shared).map_err(|error| match error {
        LockError::Io { path, error } => lock_fault(&path, &error),
        LockError::AlreadyMounted { holder, .. } => in_use(url, database, shared, &holder),
    })
}

pub(crate) fn lock_fault(path: &Path, error: &io::Error) -> Fault {
    Fault::new(format!("cannot lock the volume: {error}")).at(path.display())
}

fn serve(args: &MountArgs, report: &Report) -> Result<(), Fault> {
    fuse::return_freed_memory();
    let mut options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    let rights = args.rights.with(&options.rights)?;
    let ids = rights.ids()?;
    let traversers = rights.traversers(&ids)?;
    let url = MetaUrl::parse(&args.url)?;
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    if fuse::clean_stale(&mountpoint)? {
        registry::forget_dead(&mountpoint);
        report.note(&format!(
            "cleaned up {}, where a mount was left by a process that is gone",
            mountpoint.display()
        ));
    }
    let database = open(&url)?;
    if let Database::Memory(_) = database {
        report.note("this is a new, empty volume in memory: it is gone with all files when it is unmounted");
    }
    // Held until this process ends.
    let _lock = lock(&url, &database, options.shared)?;
    let (engine, meta) = open_meta(&url, &database, options.shared)?;
    if let Database::Network(network) = &database {
        network.warnings.iter().for_each(|warning| report.note(warning));
        // Each waits for the database, and those that wait share its round trips.
        options.fuse.workers.get_or_insert(NETWORK_WORKERS);
    }
    if !traversers.is_empty() && meta.volume().acl != AclKind::Nfs4 {
        return Err(Fault::usage(
            "only on a volume with NFSv4 ACLs can some search every directory: on others the kernel checks by itself",
        )
        .at(&url)
        .advise("leave out --bypass-traverse, or make a volume with limen format --acl nfsv4"));
    }
    meta.set_traversers(traversers);
    if let Some(patience) = options.patience {
        meta.set_patience(patience);
    }
    if let Some(writeback) = options.writeback(meta.volume()) {
        staged::note(meta.volume(), &writeback.place())?;
    }
    let store = open_store(meta.volume(), &args.keys, options.store(meta.volume()))?;
    let writeback = options.writeback(meta.volume()).is_some();
    marker::admit(&meta, &store, Use { read_only: options.fuse.read_only, writeback }, report)?;
    let vfs_options = VfsOptions {
        write_buffer_bytes: options.write_buffer_bytes,
        atime: options.atime(),
        ids,
        hide_unreadable: rights.abe,
        has_references: fuse::knows_every_group(),
        times: session_times()?,
    };
    let vfs = Arc::new(Vfs::new(Arc::new(meta), Arc::clone(&store), vfs_options));
    if let Some(domain) = &options.acl_domain {
        vfs.set_nfs4_domain(domain.clone());
    }

    let session = SessionInfo {
        host: host_name(),
        pid: std::process::id(),
        mountpoint: mountpoint.to_string_lossy().into_owned(),
    };
    let broken = |what: &str, error: &dyn std::fmt::Display| Fault::new(format!("{what}: {error}")).at(&url);
    maintenance::require_none(&url, vfs.meta())?;
    if let Err(errno) = vfs.begin(&session) {
        // A tool may have come in between: it is named then.
        maintenance::require_none(&url, vfs.meta())?;
        let what = match errno {
            Errno::ESTALE => "the volume was removed while it was being mounted",
            _ => "cannot begin the session",
        };
        return Err(broken(what, &errno));
    }
    let started = vfs.start_housekeeping(session).map_err(|error| broken("cannot start a thread", &error));
    let mut entry = Entry {
        device: 0,
        mountpoint,
        url: url.to_string(),
        volume: vfs.meta().volume().name.clone(),
        process: Process::this(),
        log: args.log.clone(),
        failure: None,
    };
    // It answers until this returns: `limen umount` asks it what is left to store.
    let mut endpoint = None;
    let mount = Mount { vfs: &vfs, store: &store, engine, options: &options, report };
    let served = started.and_then(|()| serve_mounted(mount, &mut entry, &mut endpoint));
    // While the session is on record, no tool takes the volume for unmounted: so it stays for the uploads. What could not be
    // stored now is tried again, and told of, below.
    let uploaded = vfs.sync().map_or(Ok(()), |()| wait_uploads(&store));
    let ended = vfs.end().map_err(|errno| {
        broken("not all data could be stored at the end of the session", &errno)
            .advise("the log says which; what was acknowledged by fsync is safe")
    });
    let ended = ended.and(uploaded).and_then(|()| wait_uploads(&store));
    match &ended {
        Ok(()) => entry.remove(),
        Err(fault) => {
            tracing::error!("{fault}");
            entry.failure = Some(fault.to_string());
            entry.write()?;
        }
    }
    tracing::info!(volume = entry.volume, "the session has ended");
    served.and(ended)
}

/// The volume's database; one in memory is made here, with an empty volume in it.
///
/// # Errors
/// Those of [`MetaUrl::open`].
pub(crate) fn open(url: &MetaUrl) -> Result<Database, Fault> {
    let MetaUrl::Memory(name) = url else { return url.open(false) };
    let database = url.open(true)?;
    let volume: Volume = volume_in_memory(name)?;
    volume.format(&*database.engine()).map_err(|error| url.volume_fault(error))?;
    Ok(database)
}

/// The volume's metadata as a client keeps it, remembered for as long as other clients allow; and what counts the
/// requests that this takes.
///
/// # Errors
/// There is no volume in the database, or not one that this limen can read.
pub(crate) fn open_meta(url: &MetaUrl, database: &Database, shared: bool) -> Result<(Counted, Meta), Fault> {
    let engine = Arc::new(Counting::new(database.engine()));
    let meta = Meta::open(engine.clone(), CACHED_RECORDS).map_err(|error| url.volume_fault(error))?;
    if let Database::Network(_) = database {
        meta.set_alone(false);
        // Half of it here and half in the kernel, while nothing is heard of others' changes.
        meta.set_lifetime(LIFETIME_UNTOLD / 2);
    } else {
        meta.set_alone(!shared);
        // Asking a database on this machine costs microseconds: with others about, every question is asked.
        meta.set_lifetime(Duration::ZERO);
    }
    Ok((engine, meta))
}

/// Waits until no block waits for its upload any more.
///
/// # Errors
/// The store takes none: they stay where they are.
fn wait_uploads(store: &BlockStore) -> Result<(), Fault> {
    let told = |pending: &Pending| {
        let Pending { blocks, bytes, uploaded, error, .. } = pending;
        tracing::info!(
            blocks,
            bytes,
            uploaded,
            error,
            "waiting for blocks to be uploaded; they are safe if this is killed"
        );
    };
    if let Some(pending) = store.pending().filter(|pending| pending.blocks > 0) {
        told(&pending);
    }
    store.wait_uploads(UPLOAD_PATIENCE, &mut |pending| told(pending)).map_err(|pending| {
        let Pending { blocks, bytes, error, .. } = pending;
        let reason = error.unwrap_or_default();
        let size = show_size(bytes);
        Fault::new(format!(
            "the store does not take {blocks} blocks of {size}, which wait on the local disk: {reason}"
        ))
        .advise(
            "mount the volume here again with the same cache_dir: it reads them from there, and uploads them",
        )
    })
}

/// What serves.
struct Mount<'a> {
    vfs: &'a Arc<Vfs>,
    store: &'a Arc<BlockStore>,
    engine: Counted,
    options: &'a Options,
    report: &'a Report,
}

/// Mounts, says so, and serves until the volume is unmounted.
fn serve_mounted(
    Mount { vfs, store, engine, options, report }: Mount<'_>,
    entry: &mut Entry,
    endpoint: &mut Option<Endpoint>,
) -> Result<(), Fault> {
    // From here on signals wait until there is something to unmount.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Fault::new(format!("cannot handle signals: {error}")))?;
    let handle = signals.handle();
    let mounted = fuse::mount(vfs, &entry.mountpoint, &options.fuse)?;
    let mountpoint = mounted.mountpoint().to_owned();
    let counters = Counters {
        requests: Arc::clone(mounted.counts()),
        engine,
        store: Arc::clone(store),
        vfs: Arc::clone(vfs),
    };
    *endpoint = match register(&mountpoint, entry) {
        Ok(()) => Endpoint::start(entry, counters)
            .inspect_err(|error| tracing::warn!(%error, "limen bench cannot ask this mount what it does"))
            .ok(),
        Err(fault) => {
            report.note(&format!("limen info will not work, and limen umount not wait: {fault}"));
            None
        }
    };
    tracing::info!(volume = entry.volume, mountpoint = %mountpoint.display(), "mounted and serving");

    let ready = report.ready();
    if ready.is_err() {
        stop(&mountpoint);
    }
    let ignore_hangup = report.is_background();
    let waiter = thread::Builder::new().name("limen-signals".into()).spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP && ignore_hangup {
                continue;
            }
            tracing::info!(signal, "asked to unmount");
            stop(&mountpoint);
        }
    });
    if let Err(error) = waiter {
        tracing::error!(%error, "no thread for signals: only umount will end this mount");
    }
    let counts = mounted.wait();
    handle.close();
    tracing::info!(requests = %counts?, "unmounted");
    ready
}

fn register(mountpoint: &Path, entry: &mut Entry) -> Result<(), Fault> {
    let metadata = fs::metadata(mountpoint).map_err(|error| Fault::new(error).at(mountpoint.display()))?;
    entry.device = metadata.dev();
    entry.mountpoint = PathBuf::from(mountpoint);
    entry.write()
}

/// Unmounts because a signal said so, even where files are open: what programs wrote so far is stored, what they try
/// from now on fails.
fn stop(mountpoint: &Path) {
    match fuse::unmount(mountpoint, UnmountMode::Clean) {
        Err(fuse::Error::Busy(_)) => {}
        Err(error) => return tracing::error!(%error, "cannot unmount"),
        Ok(()) => return,
    }
    tracing::warn!("the mount is in use; it is taken from the programs that use it");
    if let Err(error) = File::open(mountpoint).and_then(|root| Ok(rustix::fs::syncfs(root)?)) {
        tracing::error!(%error, "what programs wrote into memory that they share could not be stored");
    }
    // Ends the connection, and then finds the mount still in use.
    if let Err(error) = fuse::unmount(mountpoint, UnmountMode::Force) {
        tracing::debug!(%error, "the connection is ended");
    }
    match fuse::unmount(mountpoint, UnmountMode::Lazy) {
        Err(error) if !matches!(error, fuse::Error::NotMounted(_)) => {
            tracing::error!(%error, "cannot unmount")
        }
        _ => {}
    }
}

/// Names the times that sessions live by, in milliseconds: heartbeat, validity, removal. For tests, which cannot wait as long
/// as is safe; all mounts of a volume need the same.
const SESSION_MS: &str = "LIMEN_TEST_SESSION_MS";

pub(crate) fn session_times() -> Result<SessionTimes, Fault> {
    let Ok(text) = std::env::var(SESSION_MS) else { return Ok(SessionTimes::default()) };
    let times: Vec<u64> = text.split(',').filter_map(|time| time.parse().ok()).collect();
    let &[heartbeat, valid_for, remove_after] = &times[..] else {
        return Err(Fault::usage(format!("{SESSION_MS} is not three numbers of milliseconds: {text}")));
    };
    Ok(SessionTimes {
        heartbeat: Duration::from_millis(heartbeat),
        valid_for: Duration::from_millis(valid_for),
        remove_after: Duration::from_millis(remove_after),
        ..SessionTimes::default()
    })
}

/// Why a mount of the embedded engine does not get the lock on the database's file.
fn in_use(url: &MetaUrl, database: &Database, shared: bool, holder: &str) -> Fault {
    let engine = database.engine();
    if let Ok(Some(tool)) = maintenance::announced(&*engine)
        && !is_process_gone(tool.pid, &tool.process)
    {
        return maintenance::under_maintenance(url, &tool);
    }
    let name = Volume::load(&*engine).map_or_else(|_| url.to_string(), |volume| volume.name);
    let fault = Fault::new(format!("volume '{name}' is in use already"));
    let alive = maintenance::living(&*engine).unwrap_or_default();
    let fault = match alive.as_slice() {
        [] => fault.at(format!("by process {holder}")),
        alive => fault.at(maintenance::list(alive)),
    };
    // One that has the volume for itself says so in the lock's file.
    match holder.parse::<u32>() {
        Err(_) if !shared => fault.advise("mount it with -o shared here too, or unmount it there first"),
        _ => fault.advise("unmount it there first, or mount it with -o shared in all places"),
    }
}
