//! Work that needs a volume for itself: it keeps new mounts out, and does not begin while a session may live.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use engine_sqlite::{LockError, MountLock};
use meta::{
    Announced, BeginMaintenance, EndMaintenance, Engine, EngineError, Failure, FinalMaintenance, Maintenance,
    Meta, Record, Session, Vouch, Want,
};
use types::Time;
use vfs::process::{is_gone, is_process_gone, is_process_here, this_process};

use crate::fault::Fault;
use crate::mount;
use crate::output;
use crate::process::host_name;
use crate::status::sessions;
use crate::url::{Database, MetaUrl};

/// The tool that leaves nothing behind which could be mounted, if it is killed.
pub(crate) const DESTROY: &str = "limen destroy";

const BY_TOOL: Vouch<'static> = Vouch::Kernel { told: None };

/// How often sessions are looked at that may be silent.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How a tool asks for a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// The command, such as `limen fsck --repair`.
    pub(crate) name: &'static str,
    /// Whether it removes sessions that are silent for long enough; `None` for a command without `--force`.
    pub(crate) force: Option<bool>,
}

/// The right to be the only one that works on a volume, until it is dropped.
#[derive(Debug)]
pub(crate) struct Exclusive {
    /// Is not guarded by the announcement.
    meta: Meta,
    maintenance: Maintenance,
    engine: Arc<Announced>,
    /// On the embedded engine, which the file system guards as well.
    lock: Option<MountLock>,
}

impl Exclusive {
    /// Takes the volume for a tool.
    ///
    /// # Errors
    /// The volume is mounted: the fault names each session that may live. Another tool works on it. Those of the database.
    pub(crate) fn begin(url: &MetaUrl, database: &Database, tool: Tool) -> Result<Exclusive, Fault> {
        let engine = database.engine();
        let lock = match mount::take_lock(database, false) {
            Ok(lock) => lock,
            Err(LockError::AlreadyMounted { holder, .. }) => return Err(held(url, &*engine, tool, &holder)),
            Err(LockError::Io { path, error }) => return Err(mount::lock_fault(&path, &error)),
        };
        let meta = Meta::open(engine.clone(), 1).map_err(|error| url.volume_fault(error))?;
        let maintenance = Maintenance {
            tool: tool.name.to_owned(),
            host: host_name(),
            pid: std::process::id(),
            process: this_process(),
            since: Time::now(),
            is_final: false,
        };
        announce(url, &meta, &maintenance, tool)?;
        // From here on no mount begins, and dropping this lets mounts in again.
        let guarded = Arc::new(Announced::new(engine.clone(), maintenance.clone()));
        let exclusive = Exclusive { meta, maintenance, engine: guarded, lock };
        // The lock on the database file proves that the volume is not mounted, because each mount holds it.
        if exclusive.lock.is_some() {
            return Ok(exclusive);
        }
        let alive = living(&*engine).map_err(|error| Fault::new(error).at(url))?;
        match tool.force {
            _ if alive.is_empty() => Ok(exclusive),
            Some(true) => exclusive.remove_silent(url, tool, alive).map(|()| exclusive),
            _ => Err(mounted(url, tool, &alive)),
        }
    }

    /// The volume's database. Commits fail once others have ended this maintenance.
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as Arc<dyn Engine>
    }

    /// Looks whether this maintenance still lasts, before work that is no commit.
    ///
    /// # Errors
    /// It does not; those of the database.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        self.engine.check()
    }

    /// Has nobody end this maintenance from here on but by the same command. For the removal of the records, which is no
    /// commit.
    ///
    /// # Errors
    /// Others have ended it; those of the database.
    pub(crate) fn make_final(&mut self) -> Result<(), Fault> {
        match self.meta.run(&FinalMaintenance(self.maintenance.clone()), &BY_TOOL) {
            Ok(last) => {
                self.engine = Arc::new(Announced::new(self.meta.engine().clone(), last.clone()));
                self.maintenance = last;
                Ok(())
            }
            Err(Failure::Refused(_)) => Err(Fault::new(
                self.check().err().unwrap_or_else(|| EngineError::permanent("it is not announced")),
            )),
            Err(error) => Err(Fault::new(error)),
        }
    }

    /// Ends the maintenance, and keeps what locks the database's file.
    pub(crate) fn release(mut self) -> Option<MountLock> {
        self.lock.take()
    }

    /// Removes sessions that are silent for as long as mounts wait before they remove one.
    fn remove_silent(&self, url: &MetaUrl, tool: Tool, alive: Vec<Session>) -> Result<(), Fault> {
        let failed = |error: EngineError| Fault::new(error).at(url);
        let wait = mount::session_times()?.remove_after;
        let all = list(&alive);
        output::note(format!("waiting {} to see that these sessions are not renewed: {all}", seconds(wait)));
        // This clock stands still while the machine is suspended, because others may be suspended with it.
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            let now = living(&*self.engine).map_err(failed)?;
            let is_silent = |session: &Session| {
                alive.iter().any(|seen| seen.id == session.id && seen.heartbeat == session.heartbeat)
            };
            let renewed: Vec<Session> = now.iter().filter(|session| !is_silent(session)).cloned().collect();
            if !renewed.is_empty() {
                return Err(mounted(url, tool, &renewed));
            }
            if waited >= wait || now.is_empty() {
                break;
            }
            thread::sleep(LOOK_EVERY.min(wait - waited));
        }
        let meta = Meta::open(self.engine(), 1).map_err(|error| url.volume_fault(error))?;
        for session in &alive {
            // Guarded by the heartbeat: one that was renewed meanwhile stays.
            if meta
                .remove_session(session.id, session.heartbeat)
                .map_err(|error| Fault::new(error).at(url))?
            {
                output::note(format!("removed {}", describe(session)));
            }
        }
        let left = living(&*self.engine).map_err(failed)?;
        if left.is_empty() { Ok(()) } else { Err(mounted(url, tool, &left)) }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        match self.meta.run(&EndMaintenance(self.maintenance.clone()), &BY_TOOL) {
            // The volume was destroyed, and its settings with it; or others have ended the maintenance.
            Ok(()) | Err(Failure::Refused(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "new mounts are kept out until the next tool ends this maintenance")
            }
        }
    }
}

fn announce(url: &MetaUrl, meta: &Meta, maintenance: &Maintenance, tool: Tool) -> Result<(), Fault> {
    let mut replaces = None;
    loop {
        let begin = BeginMaintenance { maintenance: maintenance.clone(), replaces };
        match meta.run(&begin, &BY_TOOL).map_err(|error| Fault::new(error).at(url))? {
            None => return Ok(()),
            Some(other) if may_replace(&other, tool) => replaces = Some(other),
            Some(other) => return Err(under_maintenance(url, &other)),
        }
    }
}

/// A final announcement cannot be ended, so only the same tool goes on with it: by force if its process cannot be seen.
fn may_replace(other: &Maintenance, tool: Tool) -> bool {
    let is_gone = is_process_gone(other.pid, &other.process);
    match other.is_final {
        true => other.tool == tool.name && (is_gone || tool.force == Some(true) && !is_here(other)),
        false => is_gone,
    }
}

fn is_here(tool: &Maintenance) -> bool {
    is_process_here(tool.pid, &tool.process)
}

/// The tool that works on the volume, as it announced itself.
///
/// # Errors
/// Those of the database.
pub(crate) fn announced(engine: &dyn Engine) -> Result<Option<Maintenance>, EngineError> {
    match engine.read(&[Want::Settings])?.records.first() {
        Some(Record::Settings(settings)) => Ok(Maintenance::announced_in(settings)),
        _ => Ok(None),
    }
}

/// Why a tool does not get the lock on the database's file, which each mount and each tool holds.
fn held(url: &MetaUrl, engine: &dyn Engine, tool: Tool, holder: &str) -> Fault {
    if let Ok(Some(other)) = announced(engine)
        && !is_process_gone(other.pid, &other.process)
    {
        return under_maintenance(url, &other);
    }
    match living(engine) {
        Ok(alive) if !alive.is_empty() => mounted(url, tool, &alive),
        _ => Fault::new(format!("{} needs the volume for itself, and process {holder} has it", tool.name))
            .at(url)
            .advise("wait until that process is done"),
    }
}

/// Why a volume cannot be mounted, or worked on, while a tool has it.
pub(crate) fn under_maintenance(url: &MetaUrl, other: &Maintenance) -> Fault {
    let Maintenance { tool, host, pid, since, is_final, .. } = other;
    let advice = match is_final {
        true => format!("wait until it is done; if that process is gone, run {tool} --force {url}"),
        false => format!(
            "wait until it is done; if that process is gone, end its maintenance with limen fsck --end-maintenance {url}"
        ),
    };
    let what = format!("'{tool}' works on the volume, as process {pid} on {host} since {since}");
    Fault::new(what).at(url).advise(advice)
}

/// Lets mounts in again after a tool that was killed, and that cannot be proven to be gone from here.
///
/// # Errors
/// The tool runs on this machine; those of the database.
pub(crate) fn end(url: &MetaUrl, engine: Arc<dyn Engine>) -> Result<Option<Maintenance>, Fault> {
    let meta = Meta::open(engine, 1).map_err(|error| url.volume_fault(error))?;
    let failed = |error: Failure| Fault::new(error).at(url);
    let Some(announced) = meta.run(&meta::GetMaintenance, &BY_TOOL).map_err(failed)? else { return Ok(None) };
    if announced.is_final {
        return Err(partly_removed(url));
    }
    if is_here(&announced) {
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
    if announced.is_final && is_process_gone(announced.pid, &announced.process) {
        return Err(partly_removed(url));
    }
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

fn partly_removed(url: &MetaUrl) -> Fault {
    Fault::new("the removal of this volume was begun, and some of its records are gone")
        .at(url)
        .advise(format!("run {DESTROY} again, from another machine with --force"))
}

fn mounted(url: &MetaUrl, tool: Tool, alive: &[Session]) -> Fault {
    let name = tool.name;
    let fault =
        Fault::new(format!("{name} needs the volume for itself, and it is mounted: {}", list(alive))).at(url);
    let wait = seconds(mount::session_times().unwrap_or_default().remove_after);
    match (url, tool.force) {
        // All its mounts are on this machine.
        (MetaUrl::Sqlite(_), _) => fault.advise("unmount it there first"),
        (_, Some(true)) => fault.advise("unmount it there first; --force does not remove a session that is renewed"),
        (_, Some(false)) => fault.advise(format!(
            "unmount it there first; if its machine is gone, say --force: that waits {wait} and removes sessions that were not \
             renewed meanwhile, as any other mount of the volume does"
        )),
        (_, None) => fault.advise(format!(
            "unmount it there first; the session of a machine that is gone is removed by any other mount of the volume, \
             after {wait}"
        )),
    }
}

pub(crate) fn list(sessions: &[Session]) -> String {
    sessions.iter().map(describe).collect::<Vec<_>>().join("; ")
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64().ceil())
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
