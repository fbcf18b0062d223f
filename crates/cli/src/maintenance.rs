//! Work that needs a volume for itself: it keeps new mounts out, and does not begin while a session may live.

use engine_sqlite::MountLock;
use meta::{
    BeginMaintenance, EndMaintenance, Engine, EngineError, Failure, Maintenance, Meta, Session, Vouch,
};
use types::Time;
use vfs::process::{is_gone, is_process_gone, is_process_here, this_process};

use crate::fault::Fault;
use crate::mount;
use crate::process::host_name;
use crate::status::sessions;
use crate::url::{Database, MetaUrl};

/// The tool that leaves nothing behind which could be mounted, if it is killed.
pub(crate) const DESTROY: &str = "limen destroy";

const BY_TOOL: Vouch<'static> = Vouch::Kernel { told: None };

/// The right to be the only one that works on a volume, until it is dropped.
#[derive(Debug)]
pub(crate) struct Exclusive {
    meta: Meta,
    maintenance: Maintenance,
    /// On the embedded engine, which the file system guards as well.
    lock: Option<MountLock>,
}

impl Exclusive {
    /// Takes the volume for `tool`, such as `limen fsck --repair`.
    ///
    /// # Errors
    /// The volume is mounted: the fault names each session that may live. Another tool works on it. Those of the database.
    pub(crate) fn begin(url: &MetaUrl, database: &Database, tool: &str) -> Result<Exclusive, Fault> {
        let lock = mount::lock(url, database, false)?;
        let engine = database.engine();
        let meta = Meta::open(engine.clone(), 1).map_err(|error| url.volume_fault(error))?;
        let maintenance = Maintenance {
            tool: tool.to_owned(),
            host: host_name(),
            pid: std::process::id(),
            process: this_process(),
            since: Time::now(),
        };
        announce(url, &meta, &maintenance)?;
        // From here on no mount begins, and dropping this lets mounts in again.
        let exclusive = Exclusive { meta, maintenance, lock };
        // The lock on the database file proves that the volume is not mounted, because each mount holds it.
        if exclusive.lock.is_some() {
            return Ok(exclusive);
        }
        let alive = living(&*engine).map_err(|error| Fault::new(error).at(url))?;
        if alive.is_empty() { Ok(exclusive) } else { Err(mounted(url, tool, &alive)) }
    }

    /// Ends the maintenance, and keeps what locks the database's file.
    pub(crate) fn release(mut self) -> Option<MountLock> {
        self.lock.take()
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        match self.meta.run(&EndMaintenance(self.maintenance.clone()), &BY_TOOL) {
            // The volume was destroyed, and its settings with it.
            Ok(()) | Err(Failure::Refused(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "new mounts are kept out until the next tool ends this maintenance")
            }
        }
    }
}

fn announce(url: &MetaUrl, meta: &Meta, maintenance: &Maintenance) -> Result<(), Fault> {
    let mut replaces = None;
    loop {
        let begin = BeginMaintenance { maintenance: maintenance.clone(), replaces };
        match meta.run(&begin, &BY_TOOL).map_err(|error| Fault::new(error).at(url))? {
            None => return Ok(()),
            Some(other) if is_process_gone(other.pid, &other.process) => replaces = Some(other),
            Some(other) => return Err(under_maintenance(url, &other)),
        }
    }
}

/// Why a volume cannot be mounted, or worked on, while a tool has it.
pub(crate) fn under_maintenance(url: &MetaUrl, other: &Maintenance) -> Fault {
    let Maintenance { tool, host, pid, since, .. } = other;
    Fault::new(format!("'{tool}' works on the volume, as process {pid} on {host} since {since}"))
        .at(url)
        .advise(format!(
            "wait until it is done; if that process is gone, end its maintenance with limen fsck --end-maintenance {url}"
        ))
}

/// Lets mounts in again after a tool that was killed, and that cannot be proven to be gone from here.
///
/// # Errors
/// The tool runs on this machine; those of the database.
pub(crate) fn end(url: &MetaUrl, engine: std::sync::Arc<dyn Engine>) -> Result<Option<Maintenance>, Fault> {
    let meta = Meta::open(engine, 1).map_err(|error| url.volume_fault(error))?;
    let failed = |error: Failure| Fault::new(error).at(url);
    let Some(announced) = meta.run(&meta::GetMaintenance, &BY_TOOL).map_err(failed)? else { return Ok(None) };
    if is_process_here(announced.pid, &announced.process) {
        let Maintenance { tool, pid, .. } = announced;
        return Err(Fault::new(format!(
            "'{tool}' still works on the volume, as process {pid} on this machine"
        ))
        .at(url)
        .advise("wait until it is done, or end that process first"));
    }
    meta.run(&EndMaintenance(announced.clone()), &BY_TOOL).map_err(failed)?;
    Ok(Some(announced))
}

/// Ends maintenance whose tool is proven to be gone, and refuses to go on while another one is under way. What a mount does
/// before it begins its session, which is guarded once more.
///
/// # Errors
/// A tool works on the volume; those of the database.
pub(crate) fn require_none(url: &MetaUrl, meta: &Meta) -> Result<(), Fault> {
    let failed = |error: Failure| Fault::new(error).at(url);
    let Some(announced) = meta.run(&meta::GetMaintenance, &BY_TOOL).map_err(failed)? else { return Ok(()) };
    if announced.tool == DESTROY && is_process_gone(announced.pid, &announced.process) {
        return Err(Fault::new("the removal of this volume was begun and did not end: files may be lost")
            .at(url)
            .advise(format!(
                "run limen destroy again; to read what is left, run limen fsck --end-maintenance {url} first"
            )));
    }
    if !is_process_gone(announced.pid, &announced.process) {
        return Err(under_maintenance(url, &announced));
    }
    match meta.run(&EndMaintenance(announced), &BY_TOOL) {
        Ok(()) | Err(Failure::Refused(_)) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn mounted(url: &MetaUrl, tool: &str, alive: &[Session]) -> Fault {
    let all: Vec<String> = alive.iter().map(describe).collect();
    Fault::new(format!("{tool} needs the volume for itself, and it is mounted: {}", all.join("; "))).at(url).advise(
        "unmount it there first; a session whose machine is gone ends by itself once another mount has waited for it",
    )
}

/// A session, for people.
pub(crate) fn describe(session: &Session) -> String {
    let Session { id, host, pid, mountpoint, since, .. } = session;
    format!("session {id} at {mountpoint} on {host}, process {pid}, since {since}")
}

/// Sessions that may still change the volume.
///
/// # Errors
/// Those of the database.
pub(crate) fn living(engine: &dyn Engine) -> Result<Vec<Session>, EngineError> {
    Ok(sessions(engine)?.into_iter().filter(|session| !is_gone(session)).collect())
}
