//! Terms: how long the database keeps the result of an operation, decided without a clock.
//!
//! The operation ids of a session are divided into terms, and each change is guarded by its own term
//! ([`Guard::Term`](meta::Guard::Term)). About every [`TERM_OPS`] operations, and from time to time if there
//! are few, one change begins the next term and ends all terms whose operations all have answers
//! ([`Effect::BeginTerm`](meta::Effect::BeginTerm)). When a term ends, the database drops the results of its
//! operations, and from then on rejects these operations. So a request that arrives after its result was
//! dropped has no effect, however late it arrives. An operation without an answer keeps its term open, so it
//! can be retried under its id for as long as its caller likes. Meanwhile the results of its term remain
//! stored, but later terms can end. So the number of unanswered operations bounds the stored results.
//!
//! An operation in doubt counts as answered when its caller gives it up and drops its [`InDoubtTxn`]: it is
//! not retried any more, and after the end of its term it can no longer commit.
//!
//! Operations of a client that is not registered belong to no term ([`Term::NONE`]). A client that has the
//! volume exclusively guards none of its changes and begins no further term, because the database's own lock
//! excludes all other clients.
//!
//! The database has one record for each open term. The alternative is to store the lowest open operation
//! number of each session, with a list of exceptions. With records, a commit only checks whether a record
//! exists, as it does for the session. One lookup covers all transactions of a batch, and one lock orders the
//! commit against the removal of the session and the end of the term. With numbers, each operation of a batch
//! would be compared separately.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ops::BeginTerm;
use types::{OpId, SessionId, Term};

use crate::doubt::InDoubtTxn;
use crate::failure::Failure;
use crate::ticket::{OpenTerm, Ticket};

/// The number of operations after which the next term begins. Each new term costs one round trip, and at its
/// beginning an engine may drop this many results at once.
const TERM_OPS: u32 = 4096;

/// The terms of this client's session.
#[derive(Debug)]
pub(crate) struct Terms {
    current: RwLock<Arc<OpenTerm>>,
    past: Mutex<Past>,
    /// Whether the next term should begin.
    is_due: AtomicBool,
    /// The number of open terms with `is_doubtful`.
    doubtful: AtomicUsize,
}

/// The terms before the current one. Locked before `current`.
#[derive(Debug, Default)]
struct Past {
    /// Whether a thread is beginning the next term. It does not hold the lock meanwhile, because a new
    /// session must not wait for it.
    is_busy: bool,
    /// The terms before the current one that have not ended.
    terms: Vec<Arc<OpenTerm>>,
    /// A change that begins a term and may have been committed. It is retried until its result is known,
    /// before another term begins, so that it never commits after that one.
    in_doubt: Option<(BeginTerm, InDoubtTxn)>,
}

impl Terms {
    /// The terms of a client that is not registered.
    pub(crate) fn new(session: SessionId) -> Self {
        Terms {
            current: RwLock::new(OpenTerm::new(session, Term::NONE)),
            past: Mutex::default(),
            is_due: AtomicBool::new(false),
            doubtful: AtomicUsize::new(0),
        }
    }

    /// Continues with the first term of a new session. The session was created with this term open.
    pub(crate) fn begin(&self, session: SessionId) {
        let mut past = self.past();
        *past = Past::default();
        self.doubtful.store(0, Ordering::Release);
        self.set_current(OpenTerm::new(session, Term::FIRST));
    }

    /// The open terms, each with the number of ids that were given out, the current one last. `None` if an
    /// operation has no answer, or one that was given up may still happen.
    pub(crate) fn idle(&self) -> Option<Vec<(Term, u32)>> {
        let past = self.past();
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let all = || past.terms.iter().chain([&*current]);
        let is_idle = all().all(|term| Arc::strong_count(term) == 1);
        if !is_idle || past.is_busy || past.in_doubt.is_some() || self.are_doubtful() {
            return None;
        }
        Some(all().map(|term| (term.term, term.issued.load(Ordering::Acquire))).collect())
    }

    /// Continues with the terms that another process has described by [`Terms::idle`].
    pub(crate) fn resume(&self, session: SessionId, terms: &[(Term, u32)]) {
        let mut past = self.past();
        *past = Past::default();
        let open = |(term, issued): &(Term, u32)| {
            let term = OpenTerm::new(session, *term);
            term.issued.store(*issued, Ordering::Release);
            term
        };
        let Some((current, earlier)) = terms.split_last() else { return };
        past.terms = earlier.iter().map(open).collect();
        self.doubtful.store(0, Ordering::Release);
        self.set_current(open(current));
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<OpenTerm> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_current(&self, term: Arc<OpenTerm>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// The id for the next operation, which was planned under `session`.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: that session was lost, and there is a new one.
    pub(crate) fn next_op(&self, session: SessionId) -> Result<Ticket, Failure> {
        let term = self.current();
        if term.session != session {
            return Err(Failure::Fenced(session));
        }
        let count = term.issued.fetch_add(1, Ordering::Relaxed);
        if count % TERM_OPS == TERM_OPS - 1 {
            self.is_due.store(true, Ordering::Relaxed);
        }
        Ok(Ticket { id: OpId::new(session, term.term, count), term })
    }

    /// Whether the next term should begin. Returns true to one caller only.
    pub(crate) fn take_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::Relaxed)
    }

    /// The change that begins the next term, or the one that is in doubt. `None` if this client is not
    /// registered, or if another thread has taken the change and has not yet called [`Terms::note`]. Also
    /// `None` if no open term has had more than one operation (the change that begins a term is one) and no
    /// operation was given up in doubt.
    pub(crate) fn next_term(&self) -> Option<(BeginTerm, Option<InDoubtTxn>)> {
        let mut past = self.past();
        let current = self.current();
        let is_unused = |term: &Arc<OpenTerm>| term.issued.load(Ordering::Relaxed) <= 1;
        let is_idle = is_unused(&current) && past.terms.iter().all(is_unused) && !self.are_doubtful();
        if past.is_busy || current.term == Term::NONE || is_idle {
            return None;
        }
        past.is_busy = true;
        if let Some((op, in_doubt)) = past.in_doubt.take() {
            return Some((op, Some(in_doubt)));
        }
        // If this is the only reference, all operations of the term have answers. New operations belong to
        // the current term, so none can get a reference to this one.
        let is_over = |term: &&Arc<OpenTerm>| Arc::strong_count(term) == 1;
        let ended = past.terms.iter().filter(is_over).map(|over| over.term).collect();
        let term = Term(current.term.0.saturating_add(1));
        Some((BeginTerm { session: current.session, term, ended }, None))
    }

    /// Notes whether the change of [`Terms::next_term`] happened (`is_done`) or is in doubt. If it ended
    /// terms in which operations were given up in doubt, calls `settled` before these terms stop counting as
    /// doubtful.
    pub(crate) fn note(
        &self,
        op: BeginTerm,
        in_doubt: Option<InDoubtTxn>,
        is_done: bool,
        settled: impl FnOnce(),
    ) {
        let mut past = self.past();
        let current = self.current();
        if current.session != op.session {
            return;
        }
        past.is_busy = false;
        if is_done {
            let ended = past.terms.extract_if(.., |term| op.ended.contains(&term.term));
            let cleared = ended.filter(|term| term.is_doubtful.load(Ordering::Acquire)).count();
            if cleared > 0 {
                settled();
                self.doubtful.fetch_sub(cleared, Ordering::AcqRel);
            }
            past.terms.push(current);
            self.set_current(OpenTerm::new(op.session, op.term));
        }
        past.in_doubt = in_doubt.map(|in_doubt| (op, in_doubt));
    }

    /// Whether an operation of this client may commit without the client's knowledge.
    pub(crate) fn are_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire) > 0
    }

    /// Notes that the operation is given up in doubt. Nothing is noted if its session was lost: a term of
    /// that session never ends, so it would count as doubtful forever.
    pub(crate) fn give_up(&self, ticket: &Ticket) {
        let _past = self.past();
        let is_open = ticket.id.term() != Term::NONE && ticket.term.session == self.current().session;
        if is_open && !ticket.term.is_doubtful.swap(true, Ordering::AcqRel) {
            self.doubtful.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use types::{Ino, Time};

    use super::*;
    use meta::{Counting, Effect, Engine, ErrorKind, Guard, MemEngine, Outcome, Session, Txn, Volume};
    use ops::Configure;
    use suite::{Fault, FaultRates, Faulty};

    use crate::driver::{BY_KERNEL, Meta};

    type Unreliable = Arc<Faulty<Arc<Counting<MemEngine>>>>;

    /// A registered client whose requests can be lost, the engine that loses them, and the engine that counts
    /// them.
    fn start() -> (Arc<Meta>, Unreliable, Arc<Counting<MemEngine>>) {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        Volume::in_memory("test").format(&*engine).unwrap();
        let faulty = Arc::new(Faulty::new(engine.clone(), 1, FaultRates::default()));
        let meta = Meta::open(faulty.clone(), 1000).unwrap();
        let session = Session::new(meta.session(), Time::from_nanos(1));
        meta.begin_session(session, Duration::from_secs(3600)).unwrap();
        faulty.arm(true);
        (Arc::new(meta), faulty, engine)
    }

    fn change(meta: &Meta, abe: bool) -> Result<(), Failure> {
        meta.run(&Configure { abe: Some(abe), ..Configure::default() }, &BY_KERNEL)
    }

    fn abe(engine: &dyn Engine) -> bool {
        Volume::load(engine).unwrap().abe
    }

    fn open_terms(meta: &Meta) -> Vec<u32> {
        let past = meta.terms.past.lock().unwrap();
        past.terms.iter().map(|term| term.term.0).chain([meta.terms.current().term.0]).collect()
    }

    #[test]
    fn a_term_ends_when_all_its_operations_have_an_answer() {
        let (meta, faulty, _) = start();
        meta.begin_next_term().unwrap();
        assert_eq!(open_terms(&meta), [1], "there was no operation in it");
        change(&meta, true).unwrap();
        change(&meta, false).unwrap();
        // One operation is in flight while the next two terms begin.
        faulty.set_rival({
            let meta = Arc::downgrade(&meta);
            move |_| {
                let meta = meta.upgrade().unwrap();
                for _ in 0..2 {
                    change(&meta, false).unwrap();
                    meta.begin_next_term().unwrap();
                }
                assert_eq!(open_terms(&meta), [1, 2, 3]);
            }
        });
        faulty.script([Fault::None, Fault::Rival]);
        change(&meta, true).unwrap();
        faulty.script([]);
        for open in [vec![3, 4], vec![4, 5]] {
            change(&meta, false).unwrap();
            change(&meta, true).unwrap();
            meta.begin_next_term().unwrap();
            assert_eq!(open_terms(&meta), open);
        }
    }

    #[test]
    fn a_term_begins_about_every_4096_operations_and_costs_a_round_trip() {
        let (meta, _, engine) = start();
        let before = engine.counts();
        let ops = 3 * u64::from(TERM_OPS);
        for op in 0..ops {
            change(&meta, op % 2 == 0).unwrap();
        }
        let commits = (engine.counts() - before).commits;
        // The begin of a term is an operation of the term before.
        assert_eq!((commits - ops, open_terms(&meta)), (3, vec![3, 4]));
    }

    #[test]
    fn an_operation_given_up_in_doubt_never_commits_after_its_term() {
        let (meta, faulty, engine) = start();
        change(&meta, true).unwrap();
        meta.set_retry_timeout(Duration::ZERO);
        faulty.script([Fault::None, Fault::Late]);
        let Err(Failure::Engine(error)) = change(&meta, false) else { panic!("the commit got an answer") };
        assert_eq!(error.kind, ErrorKind::Indeterminate);
        faulty.script([]);
        assert!(meta.terms.are_doubtful());
        for _ in 0..2 {
            change(&meta, false).unwrap();
            change(&meta, true).unwrap();
            meta.begin_next_term().unwrap();
        }
        assert!(!meta.terms.are_doubtful());
        faulty.deliver().unwrap();
        assert!(abe(&*engine));
    }

    #[test]
    fn doubt_about_a_lost_session_does_not_count_in_the_next() {
        let terms = Terms::new(SessionId(1));
        terms.begin(SessionId(1));
        let late = terms.next_op(SessionId(1)).unwrap();
        terms.begin(SessionId(2));
        terms.give_up(&late);
        assert!(!terms.are_doubtful());
        terms.give_up(&terms.next_op(SessionId(2)).unwrap());
        assert!(terms.are_doubtful());
    }

    #[test]
    fn an_idle_client_begins_no_term() {
        let (meta, _, engine) = start();
        change(&meta, true).unwrap();
        change(&meta, false).unwrap();
        // The second of the two new terms ends the first term, which has the changes.
        (0..2).for_each(|_| meta.begin_next_term().unwrap());
        assert_eq!(open_terms(&meta), [2, 3]);
        let before = engine.counts();
        meta.begin_next_term().unwrap();
        assert_eq!((engine.counts() - before).commits, 0);
        assert_eq!(open_terms(&meta), [2, 3]);
    }

    #[test]
    fn an_operation_in_doubt_can_be_retried_at_any_later_time() {
        let (meta, faulty, engine) = start();
        meta.set_retry_timeout(Duration::ZERO);
        meta.set_repeat_for(Duration::ZERO);
        for arrives in [true, false] {
            change(&meta, !arrives).unwrap();
            let op = Configure { abe: Some(arrives), ..Configure::default() };
            let mut in_doubt = None;
            faulty.script([Fault::None, Fault::Late]);
            meta.run_once(&op, &BY_KERNEL, &mut in_doubt).unwrap_err();
            faulty.script([]);
            assert!(!meta.is_forgotten(in_doubt.as_ref().unwrap()));
            if arrives {
                faulty.deliver().unwrap();
            }
            // Commit many more results than the in-memory engine keeps for operations without a term.
            for _ in 0..5 * TERM_OPS {
                change(&meta, !arrives).unwrap();
                change(&meta, arrives).unwrap();
            }
            change(&meta, !arrives).unwrap();
            meta.run_once(&op, &BY_KERNEL, &mut in_doubt).unwrap();
            assert!(in_doubt.is_none());
            // Whether it was committed before or by the retry, the later change holds.
            assert!(!abe(&*engine));
            faulty.deliver().unwrap();
            assert!(!abe(&*engine));
        }
    }

    #[test]
    fn a_canceled_operation_has_happened_or_never_happens() {
        for arrives in [true, false] {
            let (meta, faulty, engine) = start();
            change(&meta, true).unwrap();
            meta.set_retry_timeout(Duration::ZERO);
            let op = Configure { abe: Some(false), ..Configure::default() };
            let mut in_doubt = None;
            faulty.script([Fault::None, Fault::Late, Fault::Before]);
            meta.run_once(&op, &BY_KERNEL, &mut in_doubt).unwrap_err();
            meta.cancel(&mut in_doubt).unwrap_err();
            faulty.script([]);
            if arrives {
                faulty.deliver().unwrap();
            }
            assert!(in_doubt.is_some());
            meta.cancel(&mut in_doubt).unwrap();
            assert!(in_doubt.is_none());
            faulty.deliver().unwrap();
            assert_eq!(abe(&*engine), !arrives);
            meta.cancel(&mut in_doubt).unwrap();
        }
    }

    #[test]
    fn an_operation_in_doubt_whose_session_was_removed_may_have_happened() {
        let (meta, faulty, engine) = start();
        meta.set_retry_timeout(Duration::ZERO);
        let op = Configure { abe: Some(true), ..Configure::default() };
        let mut in_doubt = None;
        faulty.script([Fault::None, Fault::After]);
        meta.run_once(&op, &BY_KERNEL, &mut in_doubt).unwrap_err();
        faulty.script([]);
        assert!(!meta.is_forgotten(in_doubt.as_ref().unwrap()));
        let op_id = OpId::new(SessionId(u64::MAX), Term::NONE, 0);
        let effects = vec![Effect::DropSession { session: meta.session() }];
        engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        let Err(Failure::Engine(error)) = meta.run_once(&op, &BY_KERNEL, &mut in_doubt) else {
            panic!("the result was dropped with the session")
        };
        assert_eq!(error.kind, ErrorKind::Indeterminate);
        assert!(meta.is_forgotten(in_doubt.as_ref().unwrap()) && abe(&*engine));
    }

    #[test]
    fn the_begin_of_a_term_in_doubt_is_settled_before_the_next() {
        let (meta, faulty, _) = start();
        meta.set_retry_timeout(Duration::ZERO);
        change(&meta, true).unwrap();
        change(&meta, false).unwrap();
        faulty.script([Fault::Late]);
        meta.begin_next_term().unwrap_err();
        faulty.script([]);
        change(&meta, true).unwrap();
        assert_eq!(open_terms(&meta), [1]);
        meta.begin_next_term().unwrap();
        assert_eq!(open_terms(&meta), [1, 2]);
        change(&meta, false).unwrap();
        change(&meta, true).unwrap();
        meta.begin_next_term().unwrap();
        assert_eq!(open_terms(&meta), [2, 3]);
        faulty.deliver().unwrap();
        // Term 1 is not open again.
        let session = meta.session();
        let guards = vec![Guard::Term { session, term: Term(1) }];
        let late = Txn {
            op_id: OpId::new(session, Term(1), 9),
            guards,
            effects: vec![Effect::AddLinks { ino: Ino::ROOT, delta: 1 }],
        };
        let outcomes = meta.engine().commit(&[late]).unwrap();
        assert!(matches!(outcomes[..], [Outcome::Conflict(_)]), "{outcomes:?}");
    }
}
