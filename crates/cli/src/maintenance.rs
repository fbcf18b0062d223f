//! Exclusive use of a volume by a tool. The tool announces itself in the volume's settings, so that new
//! mounts fail, and starts only if no session can be alive.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use client::{Failure, Meta};
use command::error::{CliError, ErrorAt};
use command::output;
use command::process::host_name;
use engine_sqlite::{LockError, MountLock};
use meta::{Announced, Engine, EngineError, Maintenance, Record, RecordKey, Session};
use ops::{Authority, BeginMaintenance, EndMaintenance, FinalMaintenance};
use types::Time;
use vfs::process::{is_process_here, process_has_ended, this_process};

use crate::journals;
use crate::lock::{lock_error, take_lock};
use crate::sessions::{describe, list, living, session_times, sessions};
use crate::url::{Database, MetaUrl};

/// The tool whose work cannot be undone: if it is killed, the volume may be incomplete.
pub(crate) const DESTROY: &str = "limen destroy";

/// The operations of a tool check no access: the database decides who may change the volume's settings.
const BY_TOOL: Authority<'static> = Authority::Kernel { revisions: None };

/// How often to read sessions while waiting for a renewal.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A tool that needs exclusive use of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// The command, such as `limen fsck --repair`.
    pub(crate) name: &'static str,
    /// Whether `--force` is given: then the tool removes sessions that are no longer renewed. `None` if the
    /// command has no `--force`.
    pub(crate) force: Option<bool>,
}

/// Exclusive use of a volume. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Exclusive {
    /// The client that begins and ends the maintenance. Unlike those of `engine`, its commits do not fail if
    /// the announcement is gone.
    meta: Meta,
    maintenance: Maintenance,
    engine: Arc<Announced>,
    /// The lock on the database file; only the embedded engine has one.
    lock: Option<MountLock>,
}

impl Exclusive {
    /// Takes exclusive use of the volume for a tool.
    ///
    /// # Errors
    /// The volume is mounted: the message names each session that can be alive. Another tool works on the
    /// volume. Errors of the database.
    pub(crate) fn begin(url: &MetaUrl, database: &Database, tool: Tool) -> Result<Exclusive, CliError> {
        let engine = database.engine();
        let lock = match take_lock(database, false) {
            Ok(lock) => lock,
            Err(LockError::AlreadyMounted { holder, .. }) => return Err(held(url, &*engine, tool, &holder)),
            Err(LockError::Io { path, error }) => return Err(lock_error(&path, &error)),
        };
        let meta = url.client(engine.clone(), 1)?;
        let maintenance = Maintenance {
            tool: tool.name.to_owned(),
            host: host_name(),
            pid: std::process::id(),
            process: this_process(),
            since: Time::now(),
            is_final: false,
        };
        announce(url, &meta, &maintenance, tool)?;
        // From here on, new mounts fail. When `exclusive` is dropped, the announcement is removed.
        let guarded = Arc::new(Announced::new(engine.clone(), maintenance.clone()));
        let exclusive = Exclusive { meta, maintenance, engine: guarded, lock };
        let replayed = journals::replay(database.file(), &exclusive.meta);
        if let Err(error) = &replayed {
            output::note(format!("cannot commit the answered changes of killed mounts here: {error}"));
        }
        // The lock on the database file proves that the volume is not mounted, because each mount holds it.
        if exclusive.lock.is_some() {
            match (replayed, tool.force) {
                (Err(_), Some(true)) => exclusive.give_up_sessions(url)?,
                (replayed, _) => replayed.at(url)?,
            }
            return Ok(exclusive);
        }
        let alive = living(&*engine).at(url)?;
        match tool.force {
            _ if alive.is_empty() => Ok(exclusive),
            Some(true) => exclusive.remove_silent(url, tool, alive).map(|()| exclusive),
            _ => Err(mounted(url, tool, &alive)),
        }
    }

    /// The volume's database. Its commits fail if another process ended this maintenance.
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as Arc<dyn Engine>
    }

    /// Checks that this maintenance is still announced. Call it before work that is not a commit.
    ///
    /// # Errors
    /// The maintenance was ended; errors of the database.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        self.engine.check()
    }

    /// Marks this maintenance as final: from here on, only the same command can take it over. Call it before
    /// the volume's records are removed, because that removal is not a commit and so has no guard.
    ///
    /// # Errors
    /// Another process ended the maintenance; errors of the database.
    pub(crate) fn make_final(&mut self) -> Result<(), CliError> {
        let last = match self.meta.run(&FinalMaintenance(self.maintenance.clone()), &BY_TOOL) {
            Err(Failure::Operation(_)) => {
                self.check()?;
                return Err(CliError::new("the maintenance is not announced"));
            }
            done => done?,
        };
        self.engine = Arc::new(Announced::new(self.meta.engine().clone(), last.clone()));
        self.maintenance = last;
        Ok(())
    }

    /// Ends the maintenance, and returns the lock on the database file.
    pub(crate) fn release(mut self) -> Option<MountLock> {
        self.lock.take()
    }

    /// Removes the sessions of mounts whose answered changes cannot be committed. The next mount then removes
    /// their journals.
    fn give_up_sessions(&self, url: &MetaUrl) -> Result<(), CliError> {
        for session in sessions(&**self.meta.engine()).at(url)? {
            self.meta.remove_session(session.id, session.heartbeat).at(url)?;
        }
        Ok(())
    }

    /// Waits for `remove_after`, as a mount does before it removes a session, and then removes the sessions
    /// that were not renewed in that time.
    ///
    /// # Errors
    /// A session was renewed, or a new one began; errors of the database.
    fn remove_silent(&self, url: &MetaUrl, tool: Tool, alive: Vec<Session>) -> Result<(), CliError> {
        let wait = session_times()?.remove_after;
        let all = list(&alive);
        output::note(format!("waiting {} to see whether these sessions are renewed: {all}", seconds(wait)));
        // `Instant` stops while this machine is suspended. That is necessary: the machines of the sessions
        // may be suspended at the same time, and cannot renew a session then.
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            let now = living(&*self.engine).at(url)?;
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
            thread::sleep(POLL_INTERVAL.min(wait - waited));
        }
        let meta = url.client(self.engine(), 1)?;
        for session in &alive {
            // The removal has a guard on the heartbeat, so a session that was renewed stays.
            if meta.remove_session(session.id, session.heartbeat).at(url)? {
                output::note(format!("removed {}", describe(session)));
            }
        }
        let left = living(&*self.engine).at(url)?;
        if left.is_empty() { Ok(()) } else { Err(mounted(url, tool, &left)) }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        match self.meta.run(&EndMaintenance(self.maintenance.clone()), &BY_TOOL) {
            // The volume was destroyed with its settings, or another process ended the maintenance.
            Ok(()) | Err(Failure::Operation(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot end the maintenance: the next mount or tool on this machine ends it, or limen fsck --end-maintenance")
            }
        }
    }
}

fn announce(url: &MetaUrl, meta: &Meta, maintenance: &Maintenance, tool: Tool) -> Result<(), CliError> {
    let mut replaces = None;
    loop {
        let begin = BeginMaintenance { maintenance: maintenance.clone(), replaces };
        match meta.run(&begin, &BY_TOOL).at(url)? {
            None => return Ok(()),
            Some(other) if may_replace(&other, tool) => replaces = Some(other),
            Some(other) => return Err(under_maintenance(url, &other)),
        }
    }
}

/// Whether `tool` can replace the announcement `other`, because the process of `other` has certainly ended.
/// Only the same tool can replace a final announcement, because it finishes the work. With `--force`, that
/// tool can also replace the announcement of a process that is not known to run on this machine.
fn may_replace(other: &Maintenance, tool: Tool) -> bool {
    let has_ended = process_has_ended(other.pid, &other.process);
    match other.is_final {
        true => other.tool == tool.name && (has_ended || tool.force == Some(true) && !is_here(other)),
        false => has_ended,
    }
}

fn is_here(tool: &Maintenance) -> bool {
    is_process_here(tool.pid, &tool.process)
}

/// The announcement of the tool that works on the volume; `None` if no tool does.
///
/// # Errors
/// Errors of the database.
pub(crate) fn announced(engine: &dyn Engine) -> Result<Option<Maintenance>, EngineError> {
    match engine.read(&[RecordKey::Settings])?.records.first() {
        Some(Record::Settings(settings)) => Ok(Maintenance::announced_in(settings)),
        _ => Ok(None),
    }
}

/// The error of a tool that cannot lock the database file, because a mount or another tool holds the lock.
fn held(url: &MetaUrl, engine: &dyn Engine, tool: Tool, holder: &str) -> CliError {
    if let Ok(Some(other)) = announced(engine)
        && !process_has_ended(other.pid, &other.process)
    {
        return under_maintenance(url, &other);
    }
    match living(engine) {
        Ok(alive) if !alive.is_empty() => mounted(url, tool, &alive),
        _ => CliError::new(format!(
            "{} needs exclusive use of the volume, but process {holder} uses it",
            tool.name
        ))
        .at(url)
        .advise("wait until that process has ended"),
    }
}

/// The error of a mount or a tool that starts while the tool `other` works on the volume.
pub(crate) fn under_maintenance(url: &MetaUrl, other: &Maintenance) -> CliError {
    let Maintenance { tool, host, pid, since, is_final, .. } = other;
    let advice = match is_final {
        true => {
            format!("wait until it is done; if that process no longer exists, run {tool} --force {url}")
        }
        false => format!(
            "wait until it is done; if that process no longer exists, run limen fsck --end-maintenance {url}"
        ),
    };
    let what = format!("'{tool}' works on the volume, as process {pid} on {host} since {since}");
    CliError::new(what).at(url).advise(advice)
}

/// Ends the maintenance of a tool if the administrator knows that the tool has ended, but this machine cannot
/// prove it. Returns the announcement that was removed; `None` if there was none.
///
/// # Errors
/// The tool runs on this machine; the maintenance is final, so records may be gone; errors of the database.
pub(crate) fn end(url: &MetaUrl, engine: Arc<dyn Engine>) -> Result<Option<Maintenance>, CliError> {
    let meta = url.client(engine, 1)?;
    let Some(announced) = meta.run(&ops::GetMaintenance, &BY_TOOL).at(url)? else { return Ok(None) };
    if announced.is_final {
        return Err(partly_removed(url));
    }
    if is_here(&announced) {
        let Maintenance { tool, pid, .. } = announced;
        return Err(CliError::new(format!(
            "'{tool}' still works on the volume, as process {pid} on this machine"
        ))
        .at(url)
        .advise("wait until it is done, or end that process first"));
    }
    meta.run(&EndMaintenance(announced.clone()), &BY_TOOL).at(url)?;
    Ok(Some(announced))
}

/// Fails if a tool may be working on the volume, and ends the maintenance of a tool that has certainly ended.
/// A mount calls this before it begins its session. The commit that begins the session has a guard for the
/// same condition.
///
/// # Errors
/// A tool may be working on the volume; a removal of the volume was interrupted; errors of the database.
pub(crate) fn require_none(url: &MetaUrl, meta: &Meta) -> Result<(), CliError> {
    let Some(announced) = meta.run(&ops::GetMaintenance, &BY_TOOL).at(url)? else { return Ok(()) };
    if !process_has_ended(announced.pid, &announced.process) {
        return Err(under_maintenance(url, &announced));
    }
    if announced.is_final {
        return Err(partly_removed(url));
    }
    if announced.tool == DESTROY {
        return Err(CliError::new("the removal of this volume was started and interrupted: file data may be lost")
            .at(url)
            .advise(format!(
                "run limen destroy again; to read the files that are left, run limen fsck --end-maintenance {url} first"
            )));
    }
    match meta.run(&EndMaintenance(announced), &BY_TOOL) {
        Err(Failure::Operation(_)) => Ok(()),
        done => done.at(url),
    }
}

fn partly_removed(url: &MetaUrl) -> CliError {
    CliError::new("the removal of this volume was started, and some of its records are gone")
        .at(url)
        .advise(format!("run {DESTROY} again; on another machine, with --force"))
}

fn mounted(url: &MetaUrl, tool: Tool, alive: &[Session]) -> CliError {
    let what = format!("{} needs exclusive use of the volume, but it is mounted: {}", tool.name, list(alive));
    let wait = seconds(session_times().unwrap_or_default().remove_after);
    let more = match (url, tool.force) {
        // All mounts of a volume on SQLite are on this machine.
        (MetaUrl::Sqlite(_), _) => String::new(),
        (_, Some(true)) => "; --force does not remove a session that is renewed".to_owned(),
        (_, Some(false)) => format!(
            "; if that machine no longer exists, use --force: it waits {wait} and removes sessions that are not renewed in \
             that time"
        ),
        (_, None) => format!(
            "; if that machine no longer exists, any other mount of the volume removes its session after {wait}"
        ),
    };
    CliError::new(what).at(url).advise(format!("unmount it there first{more}"))
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64().ceil())
}
