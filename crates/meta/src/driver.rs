//! The one loop that carries an operation from plan to commit, retries included.

use host::Instant;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use acl::cache::DecisionCache;
use acl::identity::DomainTable;
use acl::nfs4::Traversers;
use types::{BootInstant, Cred, Errno, Ino, SessionId, Time};

use crate::cache::{Before, Cache, Key, Value};
use crate::change::{Change, Touched};
use crate::doubt::{Doubt, REPEAT_FOR, may_be_earlier, pause};
use crate::engine::{Engine, EngineError, Outcome};
use crate::fence::Fence;
use crate::listing::Listings;
use crate::ops::GetDomains;
use crate::order::LOST_FOR;
use crate::record::{Facts, Node, Page, Record, Scan, Seq};
use crate::settings::VolumeSettings;
use crate::subject::Subject;
use crate::terms::{Terms, Ticket};
use crate::txn::{Effect, Txn};
use crate::view::{Fresh, Stop, View};
use crate::volume::{AclKind, Volume};

/// An operation: a pure function from what is known to what shall happen.
pub trait Op {
    type Reply;
    /// For logs and counters.
    const NAME: &'static str;
    /// Whether it only looks. It may then be answered by records that are within their lifetime.
    const READ: bool = false;

    /// Decides. Called again, with more or fresher records, after [`Stop::Missing`] and after a conflict.
    ///
    /// # Errors
    /// [`Stop`]: the operation's rules refuse it, or records are missing.
    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, Stop>;
}

/// What an operation decided.
#[derive(Debug)]
pub struct Plan<R> {
    pub reply: R,
    pub effects: Vec<Effect>,
}

impl<R> Plan<R> {
    /// A reply to a question: nothing happens.
    pub fn answer(reply: R) -> Self {
        Plan { reply, effects: Vec::new() }
    }
}

/// What a plan depends on besides the records.
#[derive(Debug)]
pub struct Ctx<'a> {
    pub now: Time,
    pub vouch: &'a Vouch<'a>,
    pub session: SessionId,
    pub volume: &'a Volume,
    pub decisions: &'a DecisionCache,
    /// Who may search every directory of a volume of NFSv4 ACLs.
    pub traversers: &'a Traversers,
}

/// Who has made sure that the caller may do it.
#[derive(Clone, Debug)]
pub enum Vouch<'a> {
    /// The kernel, by what it knows of the inodes: where that is out of date, it must look again. `None` where this client
    /// is alone and so the kernel knows all there is.
    Kernel { told: Option<&'a dyn KernelRevisions> },
    /// Nobody yet: the operation checks this credential.
    Daemon(Cred),
    /// The kernel, by less than the rules of the volume's ACLs: it never refuses what they grant, and what it has let
    /// through the operation checks for this caller.
    Both(&'a dyn Subject),
    /// Nobody, and nobody was asked who it is: the operation may do what anybody may, which is at most to search.
    Anyone,
}

/// The access revisions that the kernel was given, as of the moment at which it checked the caller. That does not change
/// while the operation is planned again.
pub trait KernelRevisions: Send + Sync + fmt::Debug {
    /// `None` if it was given none: then it has checked nothing.
    fn revision(&self, ino: Ino) -> Option<u64>;
}

/// Of few inodes, all known.
impl<const N: usize> KernelRevisions for [(Ino, u64); N] {
    fn revision(&self, ino: Ino) -> Option<u64> {
        self.iter().find(|(known, _)| *known == ino).map(|(_, rev)| *rev)
    }
}

/// Why an operation did not happen, or may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// By its rules.
    #[error(transparent)]
    Refused(#[from] Errno),
    /// By a failure of the database that outlasted the retries.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Not at all, because others have removed the session that it was planned under.
    #[error("session {0} was removed by another client, which took this one for dead")]
    Fenced(SessionId),
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Errno {
        match failure {
            Failure::Refused(errno) => errno,
            Failure::Engine(error) => error.errno,
            Failure::Fenced(_) => Errno::EIO,
        }
    }
}

/// A client's handle on a volume's metadata.
#[derive(Debug)]
pub struct Meta {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) cache: Cache,
    pub(crate) listings: Listings,
    settings: VolumeSettings,
    pub(crate) fence: Fence,
    pub(crate) terms: Terms,
    alone: AtomicBool,
    /// Until when the change stream vouches for records in memory, as [`BootInstant::nanos`]; 0 if it does not.
    told_until: AtomicU64,
    /// Until when a change of this client may happen of which it does not know, in nanoseconds since `born`. What happens
    /// during a suspend is heard after it: so this clock stands still meanwhile.
    pub(crate) in_doubt_until: AtomicU64,
    /// By the same clock: the question to the change stream that is under way was asked no earlier.
    asked: AtomicU64,
    /// And all that was committed before this was passed to [`Meta::heard`].
    heard_to: AtomicU64,
    born: Instant,
    lifetime_nanos: AtomicU64,
    pub(crate) patience_millis: AtomicU64,
    pub(crate) repeat_for_millis: AtomicU64,
    decisions: DecisionCache,
    traversers: OnceLock<Traversers>,
    /// The volume's table of domains as far as it is known here.
    domains: RwLock<Arc<DomainTable>>,
}

/// How often a plan may meet a conflict before the operation fails with EIO.
const MAX_CONFLICTS: u32 = 64;
/// How often it may lack records: a rename looks at all directories above a new place, one after the other.
const MAX_READS: u32 = 10_000;
/// How long a failed request is repeated, unless the mount says otherwise: as long as a database takes to restart.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long records serve without asking again while other clients may change them, unless the mount says otherwise.
const LIFETIME: Duration = Duration::from_secs(1);
/// Decisions by NFSv4 ACLs that are remembered, of 64 bytes each.
const DECISIONS: usize = 1 << 16;

impl Meta {
    /// `cache_records` bounds the records held in memory, some 250 bytes each; a larger one counts as many.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        volume: Volume,
        session: SessionId,
        cache_records: usize,
    ) -> Self {
        Meta {
            engine,
            cache: Cache::new(cache_records, volume.acl),
            listings: Listings::default(),
            decisions: DecisionCache::new(if volume.acl == AclKind::Nfs4 { DECISIONS } else { 0 }),
            traversers: OnceLock::new(),
            domains: RwLock::default(),
            settings: VolumeSettings::new(volume),
            fence: Fence::new(session),
            terms: Terms::new(session),
            alone: AtomicBool::new(false),
            told_until: AtomicU64::new(0),
            in_doubt_until: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            heard_to: AtomicU64::new(0),
            born: Instant::now(),
            patience_millis: AtomicU64::new(PATIENCE.as_millis() as u64),
            repeat_for_millis: AtomicU64::new(REPEAT_FOR.as_millis() as u64),
            lifetime_nanos: AtomicU64::new(LIFETIME.as_nanos() as u64),
        }
    }

    /// The settings in force.
    pub fn volume(&self) -> &Volume {
        self.settings.current()
    }

    pub(crate) fn settings(&self) -> &VolumeSettings {
        &self.settings
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Lets these search every directory of a volume of NFSv4 ACLs, for as long as it is open here. The first word counts.
    pub fn set_traversers(&self, traversers: Traversers) {
        let _ = self.traversers.set(traversers);
        // What was worked out without them.
        self.forget_all();
    }

    /// Who may search every directory; nobody unless it was said.
    pub fn traversers(&self) -> &Traversers {
        static NOBODY: LazyLock<Traversers> = LazyLock::new(Traversers::default);
        self.traversers.get().unwrap_or(&NOBODY)
    }

    /// The volume's table of domains, as far as this index at least, if it goes so far. What is known of it is known for good,
    /// and asked for again only for an index beyond.
    ///
    /// # Errors
    /// [`Failure::Refused`] with EIO where it is damaged; [`Failure::Engine`].
    pub fn domains(&self, reach: u32) -> Result<Arc<DomainTable>, Failure> {
        let known = Arc::clone(&self.domains.read().unwrap_or_else(PoisonError::into_inner));
        if known.domains().len() >= reach as usize {
            return Ok(known);
        }
        let found = Arc::new(self.run(&GetDomains, &Vouch::Kernel { told: None })?);
        let mut known = self.domains.write().unwrap_or_else(PoisonError::into_inner);
        if known.domains().len() < found.domains().len() {
            *known = Arc::clone(&found);
        }
        Ok(found)
    }

    /// Declares that no other client can change the volume, so that records in memory are the truth.
    pub fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
        self.forget_all();
    }

    /// How long a question may be answered from memory while other clients may change the volume; never, with zero.
    pub fn lifetime(&self) -> Duration {
        Duration::from_nanos(self.lifetime_nanos.load(Ordering::Acquire))
    }

    pub fn set_lifetime(&self, lifetime: Duration) {
        let nanos = u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX);
        self.lifetime_nanos.store(nanos, Ordering::Release);
    }

    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// Whether records in memory are the truth, or became untrue so short a time ago that word of it is under way.
    pub fn is_current(&self) -> bool {
        let is_told = || BootInstant::now().nanos() < self.told_until.load(Ordering::Acquire);
        self.is_alone() || (is_told() && self.fence.is_valid())
    }

    /// Declares that all that others changed before now was passed to [`Meta::heard`], and that records in memory serve
    /// until that moment for it. Others go on while this machine is suspended, so the clock does.
    pub fn set_current_until(&self, until: BootInstant) {
        let asked = self.asked.swap(self.nanos_of(Instant::now()), Ordering::AcqRel);
        self.heard_to.store(asked, Ordering::Release);
        self.told_until.store(until.nanos(), Ordering::Release);
    }

    /// Changes by others may have been missed: nothing in memory serves any more.
    pub fn set_outdated(&self) {
        self.told_until.store(0, Ordering::Release);
        self.forget_all();
    }

    fn forget_all(&self) {
        self.cache.clear();
        self.listings.clear();
    }

    /// Whether a change is not known here yet: one of another client, or, after an operation of which it is not known whether
    /// it happened, any, until all that it may have done was heard. That is not a matter of the present time: what happened
    /// long ago is heard late if this process stood still.
    pub fn is_news(&self, change: &Change) -> bool {
        change.by != self.session()
            || self.terms.are_doubtful()
            || self.heard_to.load(Ordering::Acquire) < self.in_doubt_until.load(Ordering::Acquire)
    }

    /// Takes in what was changed, if it is news.
    pub fn heard(&self, change: &Change) {
        if self.is_news(change) {
            change.touched.iter().filter_map(|touched| self.changed(touched)).for_each(|key| {
                self.cache.outdate(key, change.seq);
            });
        }
    }

    /// A transaction may have happened, or may yet: nothing that it changes is known.
    pub(crate) fn doubt(&self, txn: &Txn) {
        let until = self.nanos_of(Instant::now() + LOST_FOR);
        self.in_doubt_until.fetch_max(until, Ordering::AcqRel);
        self.forget(txn);
    }

    /// Drops from memory what a transaction changes.
    fn forget(&self, txn: &Txn) {
        let touched = txn.touched();
        touched.iter().filter_map(|touched| self.changed(touched)).for_each(|key| self.cache.doubt(key));
    }

    /// What is kept of a part of the volume that changed.
    fn changed(&self, touched: &Touched) -> Option<Key> {
        match touched {
            Touched::Node(ino) => Some(Key::Node(*ino)),
            Touched::Edge(parent, name) => {
                self.listings.changed(*parent);
                Some(Key::Edge(*parent, name.clone()))
            }
            Touched::Xattrs(ino) => Some(Key::Xattrs(*ino)),
            // These are not kept.
            Touched::Data(_) | Touched::Locks(_) => None,
        }
    }

    pub(crate) fn nanos_of(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Runs an operation: plans it, reads what the plan lacks, commits what it decides.
    ///
    /// # Errors
    /// [`Failure::Refused`]: the rules forbid it, as of a moment during the call. [`Failure::Engine`]: the database
    /// failed; if indeterminate, the operation may have happened.
    pub fn run<O: Op>(&self, op: &O, vouch: &Vouch<'_>) -> Result<O::Reply, Failure> {
        self.run_under_doubt(op, vouch, &mut None, None)
    }

    /// The loop of [`Meta::run`], for [`Meta::run_under_doubt`].
    pub(crate) fn carry<O: Op>(
        &self,
        op: &O,
        vouch: &Vouch<'_>,
        doubt: &mut Option<Doubt>,
        mut tried: Option<O::Reply>,
    ) -> Result<O::Reply, Failure> {
        // An operation gets its id when there is something to commit, and keeps it; one in doubt also keeps its session.
        let mut ticket: Option<Ticket> = doubt.as_ref().map(|doubt| doubt.ticket.clone());
        let session = doubt.as_ref().map_or_else(|| self.session(), Doubt::session);
        let (volume, decisions, traversers) = (self.volume(), &self.decisions, self.traversers());
        let ctx = Ctx { now: Time::now(), vouch, session, volume, decisions, traversers };
        let alone = self.is_alone();
        let mut again = doubt.as_ref().map(Doubt::resumed);
        let mut fresh = Fresh::default();
        let (mut reads, mut all_reads, mut conflicts) = (0, 0, 0);
        let (mut overtaken, mut paused) = (false, None);
        let mut is_damage_confirmed = false;
        while conflicts < MAX_CONFLICTS && all_reads < MAX_READS {
            // What a change rests on is confirmed by its guards, however old it is.
            let oldest = if !O::READ || self.is_current() {
                None
            } else {
                Instant::now().checked_sub(self.lifetime())
            };
            let (result, txn) = match again.take() {
                Some((Some(refused), txn)) => (Err(refused.into()), txn),
                Some((None, txn)) if let Some(reply) = tried.take() => (Ok(reply), txn),
                _ => {
                    let mut view = View::new(&self.cache, oldest.max(paused), &fresh);
                    let planned = op.plan(&mut view, &ctx);
                    // What is known of one moment, or cannot change, is an answer; all else has to be committed.
                    let sure = !view.assumed() && (alone || (!view.looked_at_cache() && reads <= 1));
                    // While an attempt is in doubt, every result is committed under its id: see `doubt.rs`.
                    let answers = doubt.is_none() && (sure || O::READ);
                    let is_of_one_moment = !view.looked_at_cache() && reads <= 1;
                    let (result, effects) = match planned {
                        Err(Stop::Missing) => {
                            let climbs_from = view.climbs_from();
                            let wants = view.into_wants();
                            let began = Instant::now();
                            let facts = self.retry(|| self.engine.read(&wants))?;
                            reads += 1;
                            all_reads += 1;
                            fresh.extend(self.cache.absorb(&facts, began));
                            if let Some(dir) = climbs_from {
                                let most = MAX_READS - all_reads;
                                let more = self.climb(dir, oldest.max(paused), most, &mut fresh)?;
                                (reads, all_reads) = (reads + more, all_reads + more);
                            }
                            continue;
                        }
                        Err(Stop::KernelIsStale) if doubt.is_none() => return Err(Errno::ESTALE.into()),
                        Err(Stop::KernelIsStale) => (Err(Errno::ESTALE.into()), Vec::new()),
                        // Records of several moments can disagree without being damaged, such as a name in memory and
                        // its inode, removed since. So all are read again, at one moment.
                        Err(Stop::Refused(Errno::EIO))
                            if answers && !is_of_one_moment && !is_damage_confirmed =>
                        {
                            is_damage_confirmed = true;
                            fresh.clear();
                            reads = 0;
                            paused = Some(Instant::now());
                            continue;
                        }
                        Err(Stop::Refused(errno)) if answers => return Err(errno.into()),
                        Err(Stop::Refused(errno)) => (Err(errno.into()), Vec::new()),
                        Ok(plan) if plan.effects.is_empty() && answers => return Ok(plan.reply),
                        Ok(plan) => (Ok(plan.reply), plan.effects),
                    };
                    let op_id = match &ticket {
                        Some(ticket) => ticket.id,
                        None => ticket.insert(self.next_op(session)?).id,
                    };
                    let guards = self.with_own_guard(view.into_guards(), op_id)?;
                    (result, Txn { op_id, guards, effects })
                }
            };
            // Whom many keep from changing something lets them pass, and looks again: what he knows from before would only
            // meet the next conflict. A refusal is what he was just told of, and is confirmed at once.
            if std::mem::take(&mut overtaken) && result.is_ok() {
                host::sleep(pause(conflicts - 3));
                fresh.clear();
                reads = 0;
                paused = Some(Instant::now());
                continue;
            }
            let txn = match doubt {
                Some(doubt) => self.go_on(doubt, txn, &result),
                None => txn,
            };
            let born = if self.is_current() { self.new_directory(&txn) } else { None };
            let began = Instant::now();
            match self.commit(&txn, ticket.as_ref(), doubt)? {
                Outcome::Committed { nodes, .. } if may_be_earlier(doubt, tried.is_some(), &nodes) => {
                    // What the earlier attempt did, if it was that one, is read when it is needed.
                    self.forget(&txn);
                    let recorded = self.recorded(doubt)?;
                    return match (recorded, result) {
                        (Some(errno), _) => Err(errno.into()),
                        (None, result) => result.or_else(|refused| tried.ok_or(refused)),
                    };
                }
                Outcome::Committed { seq, nodes } => {
                    *doubt = None;
                    self.change_listings(&txn);
                    self.remember(&txn, seq, &nodes, began);
                    if let Some((dir, before)) = born {
                        self.cache.listed(dir, None, None, before, seq);
                    }
                    return result;
                }
                Outcome::Conflict(facts) => {
                    if let Err(fenced) = self.check_own(&txn.guards, &facts) {
                        // From now on no attempt happens. An earlier one may have, before the session was removed, and its
                        // result went with the session.
                        return Err(match doubt {
                            Some(_) => EngineError::indeterminate(fenced.to_string()).into(),
                            None => fenced,
                        });
                    }
                    if doubt.is_some() {
                        tried = result.ok().or(tried);
                    }
                    // All guards were read again at one moment: what was found before is superseded.
                    fresh = self.cache.absorb(&facts, began).into_iter().collect();
                    reads = 1;
                    conflicts += 1;
                    overtaken = conflicts > 3;
                }
            }
        }
        let message = format!(
            "{}: gave up after {conflicts} conflicts with other clients, {all_reads} readings",
            O::NAME
        );
        tracing::error!("{message}");
        Err(EngineError::permanent(message).into())
    }

    fn change_listings(&self, txn: &Txn) {
        for effect in &txn.effects {
            if let Effect::PutEdge { parent, .. } | Effect::DropEdge { parent, .. } = effect {
                self.listings.changed(*parent);
            }
        }
    }

    /// Reads a part of a range; see [`Engine::scan`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn scan(&self, scan: &Scan) -> Result<Page, Failure> {
        self.retry(|| self.engine.scan(scan))
    }

    /// Returns when all that was committed survives a loss of power.
    ///
    /// # Errors
    /// Those of the database.
    pub fn sync(&self) -> Result<(), Failure> {
        self.retry(|| self.engine.sync())
    }

    /// The directory that a transaction is about to make, which is known as a whole from its birth; with what is counted of
    /// it before that.
    fn new_directory(&self, txn: &Txn) -> Option<(Ino, Before)> {
        txn.effects.iter().find_map(|effect| match effect {
            Effect::PutNode(node) if node.kind.is_dir() => Some((node.ino, self.cache.before(node.ino))),
            _ => None,
        })
    }

    /// Takes what a transaction did into the cache whose commit began at `began`.
    fn remember(&self, txn: &Txn, seq: Seq, nodes: &[Node], began: Instant) {
        let put = |key, value| self.cache.committed(key, value, seq, began);
        for effect in &txn.effects {
            let (key, value) = match effect {
                Effect::PutNode(node) => {
                    put(Key::Xattrs(node.ino), Value::Xattrs(Arc::default()));
                    (Key::Node(node.ino), Value::Node(Some(*node)))
                }
                Effect::DropNode { ino } => (Key::Node(*ino), Value::Node(None)),
                Effect::PutEdge { parent, name, ino, kind } => (
                    Key::Edge(*parent, name.clone()),
                    Value::Edge(Some(crate::record::Edge { ino: *ino, kind: *kind })),
                ),
                Effect::DropEdge { parent, name } => (Key::Edge(*parent, name.clone()), Value::Edge(None)),
                Effect::PutXattr { ino, name, value } => {
                    (Key::Xattrs(*ino), self.cache.xattrs_after(*ino, Some((name, value.len()))))
                }
                Effect::DropXattr { ino, .. } => (Key::Xattrs(*ino), self.cache.xattrs_after(*ino, None)),
                Effect::PutSymlink { ino, target } => {
                    (Key::Symlink(*ino), Value::Symlink(Some(target.clone())))
                }
                Effect::PutAcl { id, text } => {
                    let facts = Facts { seq, records: vec![Record::Acl(*id, Some(text.clone()))] };
                    self.cache.absorb(&facts, Instant::now());
                    continue;
                }
                // Their nodes came along with the outcome, unless it is the answer to a repetition, or a later
                // transaction of the same call has removed them.
                changed => match changed.changed_node() {
                    Some(ino) if nodes.iter().all(|node| node.ino != ino) => (Key::Node(ino), Value::Unknown),
                    _ => continue,
                },
            };
            put(key, value);
        }
        for node in nodes {
            put(Key::Node(node.ino), Value::Node(Some(*node)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemEngine;

    /// The process may have stood still for so long that the time of doubt was over when it heard of it.
    #[test]
    fn an_own_change_in_doubt_is_news_until_all_of_that_time_was_heard() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        crate::check::test_volume().format(&*engine).unwrap();
        let meta = Meta::open(engine, 1000).unwrap();
        let own = Change { seq: Seq(1), by: meta.session(), touched: vec![Touched::Node(Ino::ROOT)] };
        let hear = || meta.set_current_until(BootInstant::now());
        assert!(!meta.is_news(&own), "nothing was in doubt");
        hear();
        meta.in_doubt_until.store(meta.nanos_of(Instant::now()) + 1, Ordering::Release);
        while meta.nanos_of(Instant::now()) <= meta.in_doubt_until.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        assert!(meta.is_news(&own));
        hear();
        assert!(meta.is_news(&own), "the question that was answered may be older than the change");
        hear();
        assert!(!meta.is_news(&own));
    }
}
