//! The stream of changes. TiKV pushes none to its clients, so the heads of all lanes are looked at again and again; see
//! the module `told` of the crate `keyspace` for why nothing is missed or told twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use keyspace::{Access, Head, Known, Snapshot, Source, decode_head, decode_told};
use meta::{Change, EngineError, Order};
use pool::{Log, Tail};

use crate::engine::Shared;
use crate::read::seq;
use crate::upkeep::{IDLE, before};

/// How often they are looked at while somebody waits.
const PAUSE: Duration = Duration::from_millis(15);

#[derive(Debug)]
pub(crate) struct Seen {
    shared: Arc<Shared>,
    /// The timestamp of the last look.
    at: u64,
    /// What the last look saw, and the number of the transaction that wrote it.
    heads: BTreeMap<u64, (Head, u64)>,
}

/// All changes that are committed after this returns.
pub(crate) fn open(shared: &Arc<Shared>) -> Result<Tail<Seen>, EngineError> {
    Tail::new("TiKV", PAUSE, || {
        let at = shared.store.timestamp()?;
        let heads = shared.heads(at)?;
        Ok(Seen { shared: Arc::clone(shared), at, heads })
    })
}

impl Log for Seen {
    type Failed = EngineError;

    /// One timestamp and one read, or two where there is news.
    fn look(&mut self) -> Result<Vec<Change>, EngineError> {
        let at = self.shared.store.timestamp()?;
        let heads = self.shared.heads(at)?;
        let idle = before(at, IDLE);
        // A lane is cleared away when nobody has written it for that long, by the timestamps of the cluster: if the last
        // look is older, a lane may have been written and cleared away since.
        if self.at < idle {
            return Err(lost());
        }
        let gone = |(lane, (_, version)): (&u64, &(Head, u64))| *version >= idle && !heads.contains_key(lane);
        if self.heads.iter().any(gone) {
            return Err(EngineError::permanent("the volume was emptied"));
        }
        let mut keys = Vec::new();
        for (lane, (head, _)) in &heads {
            let before = self.heads.get(lane).map(|(head, _)| *head);
            let new = head.since(before).ok_or_else(lost)?;
            keys.extend(new.map(|number| self.shared.keys.told(*lane, number)));
        }
        let mut news = Vec::new();
        if !keys.is_empty() {
            let accesses: Vec<Access> = keys.iter().cloned().map(Access::Key).collect();
            let snapshot = self.shared.read_as_of(at, &accesses)?;
            for key in &keys {
                self.take(key, &snapshot, &mut news)?;
            }
        }
        (self.at, self.heads) = (at, heads);
        Ok(news)
    }

    fn order(&self) -> &Order {
        &self.shared.order
    }
}

impl Seen {
    fn take(&self, key: &[u8], snapshot: &Snapshot, news: &mut Vec<Change>) -> Result<(), EngineError> {
        let Known::Held(held) = snapshot.get(key) else { return Err(lost()) };
        for told in decode_told(key, &held.value)? {
            let by = told.op.session();
            news.push(Change { seq: seq(held.version, told.index), by, touched: told.touched });
        }
        Ok(())
    }
}

impl Shared {
    /// The heads of all lanes, with the number of the transaction that wrote each last.
    pub(crate) fn heads(&self, at: u64) -> Result<BTreeMap<u64, (Head, u64)>, EngineError> {
        let snapshot = self.read_as_of(at, &[Access::Span(self.keys.heads())])?;
        let mut heads = BTreeMap::new();
        for (key, held) in snapshot.found() {
            let lane = self.keys.parse_head(key);
            let lane =
                lane.ok_or_else(|| EngineError::permanent("the head of a lane under a key that cannot be"))?;
            heads.insert(lane, (decode_head(key, &held.value)?, held.version));
        }
        Ok(heads)
    }
}

fn lost() -> EngineError {
    EngineError::permanent("changes were forgotten before they were asked for")
}
