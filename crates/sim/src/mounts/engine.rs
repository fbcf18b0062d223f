//! The engine of a mount, behind a network that takes time and sometimes fails.

use std::sync::Arc;
use std::time::Duration;

use host::Instant;
use meta::{
    Change, Changes, DIR_BYTES, Effect, Engine, EngineError, Inode, Invalidation, Outcome, Page, Part,
    Record, RecordKey, Scan, Snapshot, Txn,
};
use types::{Ino, SessionId};

use crate::cut::Kind;
use crate::mounts::scheduler;
use crate::mounts::shared::Shared;
use crate::mutant::Mutant;
use crate::world::removes;
use crate::xattrs::Value;

/// The interval at which a stream polls for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// How long a heartbeat waits for the store in [`Mutant::HeartbeatBehindFlush`].
const STALL: Duration = Duration::from_secs(200);

/// How long a slow commit of queued changes of names takes. The changes are then answered long before they are
/// committed.
const SLOW_COMMIT: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(super) struct Network {
    pub(super) shared: Arc<Shared>,
    pub(super) client: usize,
}

impl Network {
    fn travel(&self) {
        host::sleep(self.shared.delay());
    }

    fn fails(&self) -> bool {
        let faults = self.shared.conditions.faults;
        faults > 0 && host::random().is_multiple_of(faults) && self.shared.decide(Kind::Fault)
    }

    /// Whether the log of changes loses entries that this client has not read.
    fn is_trimmed(&self) -> bool {
        let trims = self.shared.conditions.trims;
        trims > 0 && host::random().is_multiple_of(trims) && self.shared.decide(Kind::Trim)
    }

    /// One request: the way there, the work, and the way back.
    fn request<T>(&self, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        let is_broken = self.shared.mutant == Some(Mutant::HeartbeatBehindFlush) && self.client == 1;
        if is_broken && scheduler::name() == "limen-heartbeat" && host::random().is_multiple_of(8) {
            host::sleep(STALL);
        }
        self.travel();
        if self.fails() {
            return Err(EngineError::transient("simulated: not sent"));
        }
        let done = work();
        self.travel();
        if self.fails() {
            return Err(EngineError::indeterminate("simulated: no answer"));
        }
        done
    }
}

impl Engine for Network {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let mut snapshot = self.request(|| self.shared.world().engine.read(keys))?;
        if self.shared.mutant == Some(Mutant::IgnoresHolder) && self.client == 1 {
            for record in &mut snapshot.records {
                if let Record::Inode(_, Some(inode)) = record {
                    inode.size = inode.shown_size();
                }
            }
        }
        Ok(snapshot)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let slow = self.shared.conditions.slow_commits;
        let is_queued =
            |txn: &Txn| txn.effects.iter().any(|effect| matches!(effect.footprint().part, Part::Dirent(..)));
        if slow > 0
            && scheduler::name() == "limen-commit"
            && txns.iter().any(is_queued)
            && host::random().is_multiple_of(slow)
        {
            host::sleep(SLOW_COMMIT);
        }
        self.request(|| Ok(txns.iter().map(|txn| apply(&self.shared, txn)).collect()))
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.request(|| self.shared.world().engine.scan(scan))
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        Err(EngineError::permanent("no simulated client wipes a volume"))
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let inner = self.request(|| self.shared.world().engine.watch())?;
        let network = Network { shared: Arc::clone(&self.shared), client: self.client };
        Ok(inner.map(|inner| Box::new(Stream { inner, network }) as Box<dyn Changes>))
    }
}

#[derive(Debug)]
struct Stream {
    inner: Box<dyn Changes>,
    network: Network,
}

impl Changes for Stream {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Change>, EngineError> {
        let until = Instant::now() + timeout;
        loop {
            let mut news = self.inner.next(Duration::ZERO)?;
            if !news.is_empty() && self.network.is_trimmed() {
                let lost = news.drain(..news.len().div_ceil(2)).count();
                let Network { shared, client } = &self.network;
                shared.trace(&format!("the log loses {lost} changes that client {client} has not read"));
                if shared.mutant != Some(Mutant::UnnoticedTrim) {
                    self.network.travel();
                    return Err(EngineError::permanent("simulated: changes were removed unread"));
                }
            }
            if self.network.shared.mutant == Some(Mutant::TakesHeld) {
                let is_heard = |part: &Invalidation| !matches!(part, Invalidation::Locks(_));
                news.iter_mut().for_each(|change| change.invalidations.retain(is_heard));
            }
            if self.network.shared.mutant == Some(Mutant::KeepsNames) {
                let is_heard = |part: &Invalidation| !matches!(part, Invalidation::Names(..));
                news.iter_mut().for_each(|change| change.invalidations.retain(is_heard));
            }
            if !news.is_empty() || Instant::now() >= until {
                self.network.travel();
                return match self.network.fails() && host::random() & 3 == 0 {
                    true => Err(EngineError::transient("simulated: the stream is cut")),
                    false => Ok(news),
                };
            }
            host::sleep(POLL_INTERVAL);
        }
    }
}

/// Applies a transaction and checks the invariants of a commit.
fn apply(shared: &Shared, txn: &Txn) -> Outcome {
    let mut world = shared.world();
    let now = shared.clocks.now();
    let before = world.seq;
    let removed =
        removes(txn).map(|(session, heartbeat)| (session, heartbeat, record(&world.engine, session)));
    let mut txn = txn.clone();
    if let (Some(Mutant::TakesHeld), [Effect::PutLocks { ino, .. }]) = (shared.mutant, &txn.effects[..]) {
        let records = world.engine.read(&[RecordKey::Inode(*ino)]).map(|snapshot| snapshot.records);
        let is_held =
            |record: &Record| matches!(record, Record::Inode(_, Some(inode)) if inode.holder().is_some());
        if records.unwrap_or_default().iter().any(is_held) {
            txn.effects.push(Effect::SetSize { ino: *ino, size: DIR_BYTES });
        }
    }
    let session = SessionId((txn.op_id.0 >> 64) as u64);
    let held = held_by_another(&world.engine, &txn, session);
    let outcomes = world.commit(0, std::slice::from_ref(&txn));
    let is_applied = world.seq > before;
    if let Some((dir, holder)) = held.filter(|_| is_applied) {
        world.find(format!("{now:?}: {session} changes a name in {dir}, which {holder} holds"));
    }
    if let Some((session, heartbeat, Some(found))) = removed.filter(|_| is_applied) {
        if found.heartbeat.nanos() != heartbeat {
            world.find(format!("{now:?}: session {session} was removed after a renewal"));
        }
        let client = found.mountpoint.trim_start_matches("/m").parse().unwrap_or(usize::MAX);
        if !shared.has_stood_still(client, Duration::from_secs(150)) {
            world.find(format!("{now:?}: client {client} did not stand still, but its session was removed"));
        }
    }
    for effect in txn.effects.iter().filter(|_| is_applied) {
        match effect {
            Effect::AppendSlice { ino, .. } => {
                let locks = world.engine.read(&[RecordKey::Locks(*ino)]).map(|snapshot| snapshot.records);
                let is_others = locks.unwrap_or_default().iter().any(|record| match record {
                    Record::Locks(_, locks) => locks.iter().any(|lock| lock.owner.session != session),
                    _ => false,
                });
                if is_others {
                    world.find(format!(
                        "{now:?}: {session} writes to {ino}, which another session has locked"
                    ));
                }
            }
            Effect::PutXattr { ino, name, value } => {
                shared.note_xattr(*ino, name.as_bytes(), Some(Value::of(value)))
            }
            Effect::DropXattr { ino, name } => shared.note_xattr(*ino, name.as_bytes(), None),
            Effect::SetSize { ino, size } if Some(*size) == Inode::held_size(session) => {
                world.trace.push(format!("{now:?}: {session} takes {ino}"));
            }
            Effect::SetAccess { ino, access } => shared.note_mode(*ino, access.mode.bits()),
            Effect::PutInode(inode) => shared.note_mode(inode.ino, inode.mode.bits()),
            _ => {}
        }
    }
    outcomes.into_iter().next().unwrap_or(Outcome::Conflict(Snapshot::default()))
}

/// A directory in which the transaction changes a name, if another session that exists holds it.
fn held_by_another(engine: &dyn Engine, txn: &Txn, own: SessionId) -> Option<(Ino, SessionId)> {
    txn.effects.iter().find_map(|effect| {
        let Part::Dirent(dir, _) = effect.footprint().part else { return None };
        let found = engine.read(&[RecordKey::Inode(dir)]).ok()?.records;
        let Some(Record::Inode(_, Some(inode))) = found.first() else { return None };
        let holder = inode.holder().filter(|holder| *holder != own)?;
        record(engine, holder).map(|_| (dir, holder))
    })
}

fn record(engine: &dyn Engine, session: SessionId) -> Option<meta::Session> {
    match engine.read(&[RecordKey::Session(session)]).ok()?.records.pop() {
        Some(Record::Session(_, found)) => found,
        _ => None,
    }
}
