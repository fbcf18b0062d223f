//! `limen mount`: opens a volume, mounts it, serves requests, and ends the session.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use backup::Backups;
use chunk::{BlockStore, MEMORY, Pending};
use client::HasRoom;
use command::counters::Counters;
use command::error::{CliError, ErrorAt};
use command::exporter::Exporter;
use command::output;
use command::paths;
use command::process::{Process, host_name, raise_open_file_limit};
use command::registry::{self, Entry};
use command::statistics::Endpoint;
use command::units::show_size;
use fuse::{Channel, UnmountMode, can_enable_ring};
use meta::AclKind;
use rustix::fs::statvfs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use types::{Errno, Ino, counted, plural};
use vfs::{OwnerCheck, SessionInfo, Vfs, VfsOptions};

use crate::boot;
use crate::daemon;
use crate::hand_over::{self, OldMount, SharedBackups, SharedExporter, Wanted, fixed_options};
use crate::holders::device_of;
use crate::journals;
use crate::log;
use crate::maintenance;
use crate::marker::{self, Use};
use crate::network::Counted;
use crate::open::{lock, open, open_meta};
use crate::options::{MountArgs, Options};
use crate::report::Report;
use crate::rights::ids_to_options;
use crate::sessions::session_times;
#[cfg(feature = "otel")]
use crate::spans::Spans;
use crate::staged;
use crate::store::open_store;
use crate::take_over::{self, Taken};
use crate::url::{Database, MetaUrl};

/// Default number of threads that serve requests of a volume on a database server.
const NETWORK_WORKERS: NonZeroUsize = NonZeroUsize::new(32).unwrap();

/// A mount on the embedded engine holds directories only while the disk of the database has this much room:
/// several times what the queue and the journal take.
const HELD_ROOM: u64 = 256 << 20;

/// How long an ending mount waits while the store accepts no block; then blocks stay on the local disk.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &MountArgs) -> Result<(), CliError> {
    if (args.background || args.update_fstab) && !args.report {
        log::init("off", None, None)?;
        return in_background(args);
    }
    let report = if args.report { Report::background() } else { Report::foreground() };
    serve(args, &report).map_err(|error| report.error(error))
}

/// Starts the background process, and writes the line of fstab(5) for `--update-fstab`. The line is planned
/// before the mount, so that an invalid line is reported before anything is mounted. It is written after the
/// mount has succeeded.
fn in_background(args: &MountArgs) -> Result<(), CliError> {
    let edit = args.update_fstab.then(|| boot::edit(args)).transpose()?;
    match edit {
        Some(_) if !args.take_over && is_mounted(args)? => {
            output::note(format!("this volume is already mounted at {}", args.mountpoint.display()));
        }
        _ => output::print(&daemon::start(args)?)?,
    }
    edit.map_or(Ok(()), |edit| boot::write(&edit))
}

/// Whether this volume is already mounted at this mount point.
///
/// # Errors
/// The URL or the mount point is invalid.
pub(crate) fn is_mounted(args: &MountArgs) -> Result<bool, CliError> {
    let url = MetaUrl::parse(&args.url)?.to_string();
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let entries = registry::by_mountpoint(&mountpoint);
    let mut same = entries.iter().filter(|entry| entry.url == url && entry.process.is_alive());
    Ok(same.any(|entry| device_of(&mountpoint) == Some(entry.device)))
}

fn serve(args: &MountArgs, report: &Report) -> Result<(), CliError> {
    let mut options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    options.apply(args)?;
    let file = match &options.log {
        Some(path) if !args.report => Some(log::open(path)?),
        _ => None,
    };
    #[cfg(not(feature = "otel"))]
    log::init("info", file, None)?;
    #[cfg(feature = "otel")]
    let spans = Spans::start()?;
    #[cfg(feature = "otel")]
    log::init("info", file, spans.layer())?;
    fuse::return_freed_memory();
    // Cached blocks, connections and threads of the rings use descriptors.
    raise_open_file_limit();
    let rights = args.rights.with(&options.rights)?;
    let ids = rights.ids()?;
    let registered_ids = ids_to_options(&ids);
    let traversers = rights.traversers(&ids)?;
    let url = MetaUrl::parse(&args.url)?;
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let previous = args.take_over.then(|| take_over::find(&url, &mountpoint)).transpose()?;
    // If the port is in use, fail before anything else happens. The port of a mount that is taken over is
    // taken over too.
    let mut metrics = if previous.is_some() { None } else { options.metrics.listen()? };
    clean_stale(&mountpoint, report)?;
    let database = open(&url)?;
    if let Database::Memory(_) = database {
        report.note("this is a new, empty volume in memory: all its files are lost when it is unmounted");
    }
    // The lock is held until this process ends. The exclusive lock of a mount that is taken over is taken
    // over too.
    let takes_lock = previous.is_none() || options.shared;
    let mut held = if takes_lock { lock(&url, &database, options.shared)? } else { None };
    if held.is_some() {
        // The process of an earlier mount may have ended while this one waited for the lock.
        clean_stale(&mountpoint, report)?;
    }
    let (engine, meta) = open_meta(&url, &database, options.shared)?;
    if let Database::Network(network) = &database {
        network.warnings.iter().for_each(|warning| report.note(warning));
        // Most threads wait for the database, and waiting threads share round trips.
        options.fuse.workers.get_or_insert(NETWORK_WORKERS);
    }
    let sent = match &database {
        Database::Network(network) => Arc::clone(&network.sent),
        Database::Sqlite(_) | Database::Memory(_) => Arc::clone(&engine),
    };
    if !traversers.is_empty() && meta.volume().acl != AclKind::Nfs4 {
        return Err(CliError::usage(
            "--bypass-traverse needs a volume with NFSv4 ACLs: on other volumes the kernel checks directory search itself",
        )
        .at(&url)
        .advise("omit --bypass-traverse, or create a volume with limen format --acl nfsv4"));
    }
    meta.set_traversers(traversers);
    if let Some(retry_timeout) = options.retry_timeout {
        meta.set_retry_timeout(retry_timeout);
    }
    if let Some(writeback) = options.writeback(meta.volume()) {
        staged::note(meta.volume(), &writeback.place())?;
    }
    let store = open_store(meta.volume(), &options.keys, options.store(meta.volume()))?;
    let writeback = options.writeback(meta.volume()).is_some();
    marker::admit(&meta, &store, Use { read_only: options.fuse.read_only, writeback }, report)?;
    let (journals, can_hold) = match &database {
        Database::Network(_) => (journals::directory(None), true),
        Database::Sqlite(_) => (journals::directory(database.file()), !options.shared),
        Database::Memory(_) => (None, false),
    };
    if let Some(file) = database.file() {
        meta.set_room_check(room_check(file));
    }
    let holds_directories = can_hold && !options.sync_metadata;
    if holds_directories && journals.is_none() {
        report.note(
            "changes are committed one by one, as with -o sync_metadata: there is no place for a journal, because neither XDG_STATE_HOME nor HOME is set",
        );
    }
    let vfs_options = VfsOptions {
        write_buffer_bytes: options.write_buffer_bytes,
        atime: options.atime(),
        ids,
        hide_unreadable: rights.abe,
        has_references: fuse::knows_every_group(),
        nfs4_domain: options.acl_domain.clone(),
        holds_directories: holds_directories && journals.is_some(),
        takes_directories: options.take_directories,
        journals,
        times: session_times()?,
    };
    let vfs = Arc::new(Vfs::new(Arc::new(meta), Arc::clone(&store), vfs_options));
    if vfs.meta().volume().storage != MEMORY {
        vfs.set_store_owner_check(owner_check(&vfs, &store));
    }
    let session = SessionInfo {
        host: host_name(),
        pid: std::process::id(),
        mountpoint: mountpoint.to_string_lossy().into_owned(),
    };
    let fixed = fixed_options(&options, &rights)?;
    // If anything fails up to and including `take`, the old process continues to serve the mount.
    let taken = match previous {
        Some(previous) => {
            let taken = take_over::take(
                &previous,
                &vfs,
                &database,
                options.metrics,
                fixed.clone(),
                session,
                &options.fuse,
            )?;
            Some(taken)
        }
        None => {
            begin(&vfs, &url, session)?;
            None
        }
    };
    let backups = SharedBackups::default();
    let read_only = options.fuse.read_only;
    let starts_backups = {
        let (vfs, store) = (Arc::clone(&vfs), Arc::clone(&store));
        move || start_backups(&vfs, &store, read_only)
    };
    let mut start = |taken: &Option<Taken>| {
        if taken.is_none() {
            vfs.lifecycle.start_threads().what("cannot start a thread").at(&url)?;
            options.fuse.root = options.subdir.as_deref().map(|dir| find(&vfs, dir)).transpose()?;
        }
        *hand_over::lock(&backups) = starts_backups().what("cannot start a thread").at(&url)?;
        Ok(())
    };
    let started = start(&taken);
    let taken = taken.map(|mut taken| {
        held = taken.lock.take().or(held.take());
        metrics = taken.metrics.take();
        taken
    });
    let mut entry = Entry {
        device: 0,
        mountpoint,
        url: url.to_string(),
        volume: vfs.meta().volume().name.clone(),
        process: Process::this(),
        registered: 0,
        log: options.log.clone(),
        ids: registered_ids,
        failure: None,
    };
    // The endpoint and the exporter answer until this function returns: `limen umount` asks how much is not
    // stored yet.
    let (mut endpoint, exporter) = (None, SharedExporter::default());
    let old_mount = |mounted: &fuse::Mounted, metrics: Option<&TcpListener>, signals: Handle| {
        let lock = held.as_ref().filter(|_| !options.shared);
        OldMount {
            handle: fuse::Handle::of(mounted),
            store: Arc::clone(&store),
            own: Wanted { volume: vfs.meta().volume().uuid.clone(), options: fixed.clone() },
            lock: lock.and_then(|lock| lock.file().try_clone().ok()),
            metrics: metrics.and_then(|listener| listener.try_clone().ok()),
            backups: Arc::clone(&backups),
            start_backups: Box::new(starts_backups.clone()),
            refusal: match database {
                Database::Memory(_) => Some("a volume in memory exists only within its mount".to_owned()),
                Database::Sqlite(_) | Database::Network(_) => None,
            },
            is_running: Mutex::default(),
            signals,
            exporter: Arc::clone(&exporter),
            finish: Box::new(|store| {
                if let Err(error) = wait_uploads(store) {
                    tracing::error!("{error}");
                }
            }),
        }
    };
    let mount =
        Mount { vfs: &vfs, store: &store, engine, sent, options: &options, report, old_mount: &old_mount };
    let served =
        started.and_then(|()| serve_mounted(mount, &mut entry, metrics, taken, (&mut endpoint, &exporter)));
    drop(hand_over::lock(&backups).take());
    // The session stays registered during the uploads, so that no maintenance tool treats the volume as
    // unmounted. `end` below tries again to store what this `sync` could not store, and reports the error.
    let uploaded = vfs.lifecycle.sync().map_or(Ok(()), |()| wait_uploads(&store));
    let ended = vfs
        .lifecycle
        .end()
        .what("not all data could be stored at the end of the session")
        .at(&url)
        .advise(
            "the log names the files, and says whether changes stay in the journal of this mount: if so, mount the volume \
             again on this machine at once; data that fsync acknowledged is safe",
        );
    let ended = ended.and(uploaded).and_then(|()| wait_uploads(&store));
    match &ended {
        Ok(()) => entry.end(),
        Err(error) => {
            tracing::error!("{error}");
            if let Err(unwritten) = entry.write_failure(error.to_string()) {
                tracing::error!("{unwritten}");
            }
        }
    }
    tracing::info!(volume = entry.volume, "the session has ended");
    served.and(ended)
}

/// Unmounts the mount of a process that does not exist any more.
fn clean_stale(mountpoint: &Path, report: &Report) -> Result<(), CliError> {
    if fuse::clean_stale(mountpoint)? {
        registry::forget_dead(mountpoint);
        report.note(&format!(
            "cleaned up {}: the process that served a mount there no longer exists",
            mountpoint.display()
        ));
    }
    Ok(())
}

/// Begins a new session.
fn begin(vfs: &Vfs, url: &MetaUrl, session: SessionInfo) -> Result<(), CliError> {
    maintenance::require_none(url, vfs.meta())?;
    if let Err(errno) = vfs.lifecycle.begin(session) {
        // A maintenance tool may have announced itself since the check above. If so, the error names the
        // tool.
        maintenance::require_none(url, vfs.meta())?;
        if let Some(problem) = vfs.lifecycle.replay_problem() {
            let what = "cannot commit the answered changes of a killed mount";
            return Err(CliError::new(format!("{what}: {problem}")).at(url));
        }
        let what = match errno {
            Errno::ESTALE => "the volume was removed, or moved to another store, while it was being mounted",
            _ => "cannot begin the session",
        };
        return Err(errno).what(what).at(url).advise("the log tells why");
    }
    Ok(())
}

/// Whether the disk of a database has room for the changes that a mount may answer before it commits them.
fn room_check(database: &Path) -> HasRoom {
    let database = database.to_owned();
    Arc::new(move || {
        let free = statvfs(&database).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        free.is_ok_and(|free| free >= HELD_ROOM)
    })
}

/// The directory of the volume that `--subdir` names.
fn find(vfs: &Vfs, dir: &Path) -> Result<Ino, CliError> {
    vfs.names.directory(dir.as_os_str().as_bytes()).what("cannot mount a directory of the volume").at(dir.display()).advise(
        "--subdir takes the path of an existing directory from the root of the volume; limen ls META-URL:/ lists them",
    )
}

/// Starts the automatic backups of the metadata, unless this mount is read-only, or the store is in the
/// memory of this process.
fn start_backups(vfs: &Arc<Vfs>, store: &Arc<BlockStore>, read_only: bool) -> io::Result<Option<Backups>> {
    if read_only || vfs.meta().volume().storage == MEMORY {
        return Ok(None);
    }
    Backups::start(Arc::clone(vfs.meta()), Arc::clone(store), owner_check(vfs, store)).map(Some)
}

/// The check whether the store belongs to the volume's database.
fn owner_check(vfs: &Arc<Vfs>, store: &Arc<BlockStore>) -> OwnerCheck {
    let (meta, store) = (Arc::clone(vfs.meta()), Arc::clone(store));
    Box::new(move || match marker::verify(meta.volume(), &store) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    })
}

/// Waits until all staged blocks are uploaded.
///
/// # Errors
/// The store accepts no block for [`UPLOAD_TIMEOUT`]. The blocks stay on the local disk.
fn wait_uploads(store: &BlockStore) -> Result<(), CliError> {
    let log_pending = |pending: &Pending| {
        let Pending { blocks, bytes, uploaded, error, .. } = pending;
        tracing::info!(
            blocks,
            bytes,
            uploaded,
            error,
            "waiting for blocks to be uploaded; they survive if this process is killed"
        );
    };
    if let Some(pending) = store.pending().filter(|pending| pending.blocks > 0) {
        log_pending(&pending);
    }
    store.wait_uploads(UPLOAD_TIMEOUT, &mut |pending| log_pending(pending)).map_err(|pending| {
        let Pending { blocks, bytes, error, .. } = pending;
        let reason = error.unwrap_or_default();
        let size = show_size(bytes);
        CliError::new(format!(
            "the object store does not accept {} ({size}), which {} on the local disk: {reason}",
            counted(blocks, "block", "blocks"),
            plural(blocks, "stays", "stay")
        ))
        .advise(
            "mount the volume on this machine again with the same cache_dir: the mount reads and uploads them",
        )
    })
}

/// The parts that a mount needs to serve requests.
struct Mount<'a> {
    vfs: &'a Arc<Vfs>,
    store: &'a Arc<BlockStore>,
    engine: Counted,
    sent: Counted,
    options: &'a Options,
    report: &'a Report,
    /// Collects what the mount needs to hand itself over. Its arguments are the mount, the listener for
    /// metrics, and the handle of the signals that unmount.
    old_mount: &'a dyn Fn(&fuse::Mounted, Option<&TcpListener>, Handle) -> OldMount,
}

/// Mounts, reports it, and serves until the volume is unmounted.
fn serve_mounted(
    Mount { vfs, store, engine, sent, options, report, old_mount }: Mount<'_>,
    entry: &mut Entry,
    metrics: Option<TcpListener>,
    taken: Option<Taken>,
    (endpoint, exporter): (&mut Option<Endpoint>, &SharedExporter),
) -> Result<(), CliError> {
    // From here on, signals are held back until there is a mount to unmount.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).what("cannot handle signals")?;
    let handle = signals.handle();
    let (mounted, previous) = match taken {
        Some(taken) => taken.serve().map(|(mounted, previous)| (mounted, Some(previous)))?,
        None => (fuse::mount(vfs, &entry.mountpoint, &options.fuse)?, None),
    };
    let old_mount = Arc::new(old_mount(&mounted, metrics.as_ref(), handle.clone()));
    let mountpoint = mounted.mountpoint().to_owned();
    if options.fuse.channel == Channel::Auto && !mounted.uses_ring() && can_enable_ring() {
        report.note(
            "requests come through /dev/fuse; through io_uring, metadata operations are about twice as fast: mount with \
             -o transport=ring, which allows it in the kernel, or with -o transport=dev to omit this note",
        );
    }
    let counters = Counters {
        requests: Arc::clone(mounted.counts()),
        profile: Arc::clone(mounted.profile()),
        engine,
        sent,
        store: Arc::clone(store),
        vfs: Arc::clone(vfs),
        mountpoint: mountpoint.to_string_lossy().into_owned(),
        uses_ring: mounted.uses_ring(),
        metrics: metrics.as_ref().and_then(|listener| listener.local_addr().ok()),
    };
    *hand_over::lock(exporter) = metrics.and_then(|listener| {
        Exporter::start(listener, counters.clone())
            .inspect_err(|error| tracing::warn!(%error, "cannot serve metrics"))
            .ok()
    });
    *endpoint = match register(&mountpoint, entry) {
        Ok(()) => Endpoint::start(entry, counters, Arc::new(move |stream| old_mount.hand_over(&stream)))
            .inspect_err(|error| tracing::warn!(%error, "cannot serve statistics: limen bench and limen umount cannot query this mount"))
            .ok(),
        Err(error) => {
            let error = error.advise("limen info will not work here, and limen umount will not wait");
            report.note(&error.to_string());
            None
        }
    };
    tracing::info!(volume = entry.volume, mountpoint = %mountpoint.display(), "mounted and serving");

    if let Some(previous) = &previous {
        take_over::tell_manager();
        take_over::tell_served(previous);
    }
    let ready = report.ready();
    // If the command that waited is gone, unmount. But keep a mount that was taken over, because programs use
    // it.
    if ready.is_err() && previous.is_none() {
        stop(&mountpoint);
    }
    let ignore_hangup = report.is_background();
    let log_file = entry.log.clone();
    let waiter = thread::Builder::new().name("limen-signals".into()).spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP && ignore_hangup {
                if let Some(Err(error)) = log_file.as_deref().map(log::reopen) {
                    tracing::error!("{error}");
                }
                continue;
            }
            tracing::info!(signal, "unmounting because of a signal");
            stop(&mountpoint);
        }
    });
    if let Err(error) = waiter {
        tracing::error!(%error, "cannot start the signal thread: only umount can end this mount");
    }
    let counts = mounted.wait();
    handle.close();
    tracing::info!(requests = %counts?, "unmounted");
    ready
}

fn register(mountpoint: &Path, entry: &mut Entry) -> Result<(), CliError> {
    let metadata = fs::metadata(mountpoint).at(mountpoint.display())?;
    entry.device = metadata.dev();
    entry.mountpoint = PathBuf::from(mountpoint);
    entry.register()
}

/// Unmounts because of a signal, even if files are open. Data that programs wrote before is stored; later
/// calls of the programs fail.
fn stop(mountpoint: &Path) {
    match fuse::unmount(mountpoint, UnmountMode::Clean) {
        Err(fuse::Error::Busy(_)) => {}
        Err(error) => return tracing::error!(%error, "cannot unmount"),
        Ok(()) => return,
    }
    tracing::warn!("the mount is in use: unmounting it anyway; programs that use it get errors");
    if let Err(error) = File::open(mountpoint).and_then(|root| Ok(rustix::fs::syncfs(root)?)) {
        tracing::error!(%error, "cannot store data that programs wrote into shared memory mappings");
    }
    // This call aborts the connection. The unmount fails if the mount is still in use, which is expected
    // here.
    if let Err(error) = fuse::unmount(mountpoint, UnmountMode::Force) {
        tracing::debug!(%error, "the connection is aborted, the mount is still in use");
    }
    match fuse::unmount(mountpoint, UnmountMode::Lazy) {
        Err(error) if !matches!(error, fuse::Error::NotMounted(_)) => {
            tracing::error!(%error, "cannot unmount")
        }
        _ => {}
    }
}
