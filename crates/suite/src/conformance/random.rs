//! Commits random transactions to the engine under test and to [`MemEngine`]. Every outcome, and all records
//! at the end, must agree.

use std::collections::BTreeMap;

use meta::{
    Access, Counter, Effect, Engine, Guard, Inode, Lock, LockKind, LockOwner, LockWait, MemEngine, Outcome,
    QuotaKey, QuotaRule, QuotaTag, Record, RecordKey, Scan, ScanInclude, Seq, Session, Txn,
};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, QuotaId, SessionId, Slice, SliceId, SliceSource,
    Term, Time, XattrName,
};

use super::fixture::*;
use super::rng::Rng;

/// The number of runs, each with a different seed, unless [`SEED`] gives one.
const RUNS: u64 = 24;
const BATCHES: usize = 60;

/// The environment variable with the seed of a run to replay.
const SEED: &str = "LIMEN_SEED";

/// Small, so that most records named by a transaction exist.
pub(super) const INOS: u64 = 8;
pub(super) const CHUNKS: u64 = 3;
/// The number of kinds of effects that [`add_effect`] distinguishes.
pub(super) const KINDS_OF_EFFECTS: u64 = 26;

pub fn random_transactions_agree_with_the_memory_engine(engine: &dyn Engine) {
    let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seeds = given.map_or(0..RUNS, |seed: u64| seed..seed.saturating_add(1));
    for seed in seeds {
        println!("{SEED}={seed}");
        run(engine, seed);
        engine.wipe().expect("a wipe");
    }
}

fn run(engine: &dyn Engine, seed: u64) {
    let memory = MemEngine::default();
    // This engine gets the same transactions one at a time, so that the state after each of them is known.
    let by_one = MemEngine::default();
    let mut rng = Rng::new(seed);
    let mut done: Vec<Txn> = Vec::new();
    let mut numbers = Numbers::default();
    for step in 0..BATCHES {
        let mut batch: Vec<Txn> = Vec::new();
        for _ in 0..=rng.below(5) {
            let again = rng.one_in(12) && !done.is_empty();
            batch.push(if again { rng.pick(&done) } else { transaction(&mut rng) });
        }
        let before = inodes(&by_one);
        let (expected, states) = one_by_one(&by_one, &batch);
        let is_change: Vec<bool> =
            states.iter().zip(std::iter::once(&before).chain(&states)).map(|(new, old)| new != old).collect();
        let together = memory.commit(&batch).expect("memory does not fail");
        let outcomes = engine.commit(&batch).expect("a commit");
        assert_eq!((outcomes.len(), together.len()), (batch.len(), batch.len()));
        for found in [&outcomes, &together] {
            for (at, (outcome, expected)) in found.iter().zip(&expected).enumerate() {
                compare(outcome, expected, &states[at..]).unwrap_or_else(|wrong| {
                    panic!(
                        "{SEED}={seed}, batch {step}, transaction {at}: {wrong}: {outcome:#?} of {batch:#?}"
                    )
                });
            }
        }
        numbers.take(&batch, &outcomes, &is_change).unwrap_or_else(|wrong| {
            panic!("{SEED}={seed}, batch {step}: {wrong}: {outcomes:#?} of {batch:#?}")
        });
        done.extend(batch.into_iter().filter(|txn| !txn.effects.is_empty()));
        let range = range(&mut rng);
        assert_eq!(rows(engine, &range), rows(&memory, &range), "{SEED}={seed}, batch {step}, {range:?}");
    }
    assert_eq!(dump(engine, INOS, CHUNKS), dump(&memory, INOS, CHUNKS), "{SEED}={seed}, at the end");
}

/// All inodes.
type State = BTreeMap<Ino, Inode>;

/// The outcome of each transaction, and the inodes after it.
fn one_by_one(memory: &MemEngine, batch: &[Txn]) -> (Vec<Outcome>, Vec<State>) {
    let step = |txn: &Txn| {
        let outcome = memory.commit(std::slice::from_ref(txn)).expect("memory does not fail").remove(0);
        (outcome, inodes(memory))
    };
    batch.iter().map(step).unzip()
}

fn inodes(engine: &dyn Engine) -> State {
    let inos: Vec<Ino> = (0..INOS).map(Ino).collect();
    let keys: Vec<RecordKey> = inos.iter().copied().map(RecordKey::Inode).collect();
    let inode = |record| match record {
        Record::Inode(ino, inode) => inode.map(|inode| (ino, inode)),
        // ACLs are read with inodes.
        _ => None,
    };
    read(engine, &keys).into_iter().filter_map(inode).collect()
}

/// Whether an outcome is the expected one: the same result, and images of the same inodes. Each image must be
/// the inode's state right after the transaction (the first of `states`) or after a later transaction of the
/// call. An inode that a later transaction created or removed may be missing or present.
fn compare(outcome: &Outcome, expected: &Outcome, states: &[State]) -> Result<(), String> {
    let (images, changed) = match (outcome, expected) {
        (Outcome::Conflict(snapshot), Outcome::Conflict(expected))
            if snapshot.records == expected.records =>
        {
            return Ok(());
        }
        (Outcome::Committed { inodes, .. }, Outcome::Committed { inodes: changed, .. }) => (inodes, changed),
        _ => return Err(format!("expected {expected:#?}")),
    };
    let is_in_all = |ino: Ino| states.iter().all(|state| state.contains_key(&ino));
    for (at, image) in images.iter().enumerate() {
        if !states.iter().any(|state| state.get(&image.ino) == Some(image)) {
            return Err(format!("{:?} never had this state", image.ino));
        }
        let is_changed = changed.iter().any(|inode| inode.ino == image.ino);
        if !is_changed && is_in_all(image.ino) {
            return Err(format!("{:?} was not changed", image.ino));
        }
        if images[..at].iter().any(|other| other.ino == image.ino) {
            return Err(format!("{:?} comes twice", image.ino));
        }
    }
    let is_present = |inode: &Inode| images.iter().any(|image| image.ino == inode.ino);
    match changed.iter().find(|inode| is_in_all(inode.ino) && !is_present(inode)) {
        Some(missing) => Err(format!("no image of {:?}", missing.ino)),
        None => Ok(()),
    }
}

/// The sequence numbers that an engine returned. The engine chooses them, but the number of a change must be
/// higher than all earlier ones, and a repetition must return the first number.
#[derive(Default)]
struct Numbers {
    given: BTreeMap<OpId, Seq>,
    newest: Seq,
}

impl Numbers {
    fn take(&mut self, batch: &[Txn], outcomes: &[Outcome], is_change: &[bool]) -> Result<(), String> {
        for ((txn, outcome), is_change) in batch.iter().zip(outcomes).zip(is_change) {
            let Outcome::Committed { seq, .. } = outcome else { continue };
            match self.given.get(&txn.op_id) {
                Some(given) if given == seq => {}
                Some(given) => return Err(format!("{:?} was {given:?} before", txn.op_id)),
                None if *is_change && *seq <= self.newest => {
                    return Err(format!("{seq:?} comes after {:?}", self.newest));
                }
                None => {
                    self.given.insert(txn.op_id, *seq);
                    if *is_change {
                        self.newest = *seq;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A page's records, without repeated ACLs.
fn rows(engine: &dyn Engine, range: &Scan) -> (Vec<Record>, bool) {
    let page = scan(engine, range);
    let mut records: Vec<Record> = Vec::new();
    for record in page.snapshot.records {
        if !matches!(record, Record::Acl(..)) || !records.contains(&record) {
            records.push(record);
        }
    }
    (records, page.more)
}

fn transaction(rng: &mut Rng) -> Txn {
    if rng.one_in(4) {
        return create(rng);
    }
    let guards = (0..rng.below(3)).map(|_| guard(rng)).collect();
    let mut effects = Vec::new();
    for _ in 0..rng.below(6) {
        let kind = rng.below(KINDS_OF_EFFECTS);
        add_effect(rng, kind, &mut effects);
    }
    txn(guards, effects)
}

/// Creates a file as the operations do, sometimes with other guards and effects.
fn create(rng: &mut Rng) -> Txn {
    let (parent, name, ino) = (any_ino(rng), any_name(rng), any_ino(rng));
    let inode = any_inode(rng, ino);
    let (mtime, ctime) = (any_time(rng), any_time(rng));
    let ctime = if rng.one_in(6) { ctime } else { mtime };
    let mut guards = Vec::new();
    let mut effects = Vec::new();
    if rng.one_in(6) {
        guards.push(guard(rng));
        add_effect(rng, 5, &mut effects);
    }
    if !rng.one_in(8) {
        guards.push(Guard::DirentAbsent { parent, name: name.clone() });
    }
    effects.push(Effect::PutInode(inode));
    effects.push(Effect::PutDirent { parent, name, ino, kind: inode.kind });
    effects.push(Effect::SetTimes { ino: parent, atime: None, mtime, ctime });
    txn(guards, effects)
}

fn guard(rng: &mut Rng) -> Guard {
    let ino = any_ino(rng);
    match rng.below(16) {
        15 => Guard::Acl { id: any_acl(rng) },
        14 => {
            let outer = if rng.one_in(2) { None } else { Some(QuotaId(rng.below(2))) };
            Guard::Quota { key: any_quota(rng), outer, inodes: rng.below(3), blocks: rng.below(3) }
        }
        13 if rng.one_in(2) => Guard::Term { session: any_session(rng), term: any_term(rng) },
        13 => {
            let heartbeat = if rng.one_in(2) { None } else { Some(Time::from_nanos(rng.pick(&[7, 8]))) };
            Guard::Session { session: any_session(rng), heartbeat }
        }
        12 => Guard::Size { ino, size: any_size(rng) },
        11 => Guard::Locks { ino, locks: any_locks(rng).into() },
        0 => Guard::DirentIs { parent: ino, name: any_name(rng), ino: any_ino(rng) },
        1 => Guard::DirentAbsent { parent: ino, name: any_name(rng) },
        2 => Guard::Access { ino, rev: rng.below(3) },
        3 => Guard::InodeAbsent { ino },
        4 => Guard::Links { ino, nlink: rng.below(3) as u32 },
        5 => Guard::ParentIs { ino, parent: any_ino(rng) },
        6 => Guard::Empty { ino },
        7 if rng.one_in(2) => {
            Guard::XattrBlocks { ino, least: rng.below(2) as u16, most: rng.below(3) as u16 }
        }
        7 => Guard::Xattr { ino, name: any_xattr(rng), blocks: rng.below(3) as u16 },
        8 => Guard::Setting { name: any_setting(rng), value: rng.pick(&[None, Some("x".to_owned())]) },
        9 if rng.one_in(2) => {
            let rows = (0..rng.below(2)).map(|_| any_slice(rng)).collect();
            Guard::Rows { ino, chunk: ChunkIndex(rng.below(CHUNKS)), rows }
        }
        9 => Guard::Counter { counter: rng.pick(&Counter::ALL), value: rng.below(3) },
        _ => Guard::Room { max_inodes: 1 + rng.below(INOS), max_blocks: 1 + rng.below(10) },
    }
}

pub(super) fn add_effect(rng: &mut Rng, kind: u64, effects: &mut Vec<Effect>) {
    let ino = any_ino(rng);
    let effect = match kind {
        0 => Effect::PutInode(any_inode(rng, ino)),
        1 => Effect::PutSymlink { ino, target: any_bytes(rng).into() },
        2 => Effect::DropInode { ino },
        3 | 4 => {
            let (name, kind) = (any_name(rng), any_kind(rng));
            Effect::PutDirent { parent: ino, name, ino: any_ino(rng), kind }
        }
        5 => Effect::DropDirent { parent: ino, name: any_name(rng) },
        6 => Effect::SetAccess { ino, access: Access::from(&any_inode(rng, ino)) },
        7 => Effect::SetParent { ino, parent: any_ino(rng) },
        8 => Effect::AddLinks { ino, delta: rng.below(5) as i32 - 2 },
        9 => Effect::SetTimes { ino, atime: any_time(rng), mtime: any_time(rng), ctime: any_time(rng) },
        10 => Effect::SetSize { ino, size: any_size(rng) },
        11 => Effect::Extend { ino, size: any_size(rng) },
        12 | 13 => {
            let chunk = ChunkIndex(rng.below(CHUNKS));
            Effect::AppendSlice { ino, chunk, slice: any_slice(rng) }
        }
        14 => Effect::DropSlices {
            ino,
            from: ChunkIndex(rng.below(CHUNKS + 1)),
            to: ChunkIndex(rng.below(CHUNKS + 2)),
        },
        15 if rng.one_in(3) => {
            Effect::Share { slice: SliceId(1 + rng.below(6)), rows: 1 + rng.below(3) as u32 }
        }
        15 => {
            let (chunk, count) = (ChunkIndex(rng.below(CHUNKS)), rng.below(4) as u32);
            let rows = (0..rng.below(u64::from(count) + 1)).map(|_| any_slice(rng)).collect();
            Effect::ReplaceRows { ino, chunk, count, rows }
        }
        16 if rng.one_in(3) => Effect::AddXattrBlocks { ino, delta: rng.below(7) as i32 - 3 },
        16 if rng.one_in(2) => {
            let value = vec![0xff; rng.pick(&[0, 3, 4096, 4097])].into();
            Effect::PutXattr { ino, name: any_xattr(rng), value }
        }
        16 => Effect::DropXattr { ino, name: any_xattr(rng) },
        17 if rng.one_in(3) => Effect::CondemnAcl { id: any_acl(rng) },
        17 if rng.one_in(3) => Effect::DropAcl { id: any_acl(rng) },
        17 => Effect::PutAcl { id: any_acl(rng), text: rng.pick(&["one", "two"]).into() },
        18 if rng.one_in(2) => Effect::PutOrphan { session: any_session(rng), ino },
        18 => Effect::DropOrphan { session: any_session(rng), ino },
        19 if rng.one_in(2) => {
            let heartbeat = Time::from_nanos(rng.pick(&[7, 8]));
            Effect::PutSession(Session { heartbeat, ..session(1 + rng.below(3)) })
        }
        19 if rng.one_in(2) => {
            let (session, term) = (any_session(rng), any_term(rng));
            let ended = (0..rng.below(3)).map(|_| any_term(rng)).filter(|other| *other != term).collect();
            Effect::BeginTerm { session, term, ended }
        }
        19 => Effect::DropSession { session: any_session(rng) },
        20 => Effect::DropGarbage { slice: SliceId(1 + rng.below(6)) },
        21 if rng.one_in(4) => Effect::AddUsage { inodes: rng.below(3) as i64, blocks: rng.below(3) as i64 },
        21 => Effect::SetCounter { counter: rng.pick(&Counter::ALL), value: rng.below(3) },
        22 => Effect::PutLocks { ino, locks: any_locks(rng).into() },
        23 if rng.one_in(3) => Effect::DropWait { owner: any_lock(rng).owner },
        23 => Effect::PutWait(LockWait { ino, lock: any_lock(rng) }),
        24 if rng.one_in(4) => Effect::DropQuota { key: any_quota(rng) },
        24 if rng.one_in(3) => {
            let outer = QuotaId(rng.below(2));
            let max_inodes = rng.pick(&[QuotaRule::NO_LIMIT, 0, 2]);
            let max_blocks = rng.pick(&[QuotaRule::NO_LIMIT, 3]);
            let rule = QuotaRule { outer, max_inodes, max_blocks, ..QuotaRule::default() };
            Effect::PutQuota { key: any_quota(rng), rule }
        }
        24 => {
            let (inodes, blocks) = (rng.below(4) as i64 - 1, rng.below(4) as i64 - 1);
            Effect::Charge { key: any_quota(rng), inodes, blocks }
        }
        _ if rng.one_in(2) => Effect::PutSetting { name: any_setting(rng), value: "x".to_owned() },
        _ => Effect::SetCounter { counter: rng.pick(&Counter::ALL), value: rng.below(3) },
    };
    effects.push(effect);
}

fn range(rng: &mut Rng) -> Scan {
    let limit = rng.below(4) as usize;
    match rng.below(11) {
        10 => Scan::Quotas { after: if rng.one_in(2) { None } else { Some(any_quota(rng)) }, limit },
        9 => Scan::Locks { after: any_ino(rng), limit },
        8 => Scan::Shared { after: SliceId(rng.below(6)), limit },
        7 => Scan::Acls { after: any_acl(rng), limit },
        6 => Scan::Slices { ino: any_ino(rng), from: ChunkIndex(rng.below(CHUNKS)), limit },
        0 => Scan::Inodes { after: any_ino(rng), limit },
        1 => Scan::Orphans { after: (any_session(rng), any_ino(rng)), limit },
        2 => Scan::Sessions { after: any_session(rng), limit },
        3 => Scan::Garbage { after: SliceId(rng.below(6)), limit },
        _ => {
            let after = if rng.one_in(2) { None } else { Some(any_name(rng)) };
            let include = rng.pick(&[ScanInclude::Nothing, ScanInclude::Inodes, ScanInclude::InodesWithAcls]);
            Scan::Dir { parent: any_ino(rng), after, limit, include }
        }
    }
}

/// Valid locks of an inode: those of one owner never overlap.
fn any_locks(rng: &mut Rng) -> Vec<Lock> {
    let mut locks = Vec::new();
    for _ in 0..rng.below(3) {
        let new = any_lock(rng);
        locks.retain(|held: &Lock| held.owner != new.owner || held.end < new.start || held.start > new.end);
        locks.push(new);
        locks.sort_unstable();
    }
    locks
}

fn any_lock(rng: &mut Rng) -> Lock {
    let kind = rng.pick(&[LockKind::Posix, LockKind::Flock]);
    let owner = LockOwner { session: any_session(rng), owner: rng.pick(&[1, u64::MAX]), kind };
    let (start, end) = rng.pick(&[(0, 0), (0, i64::MAX as u64), (5, 9), (1 << 63, u64::MAX)]);
    Lock { start, end, owner, exclusive: rng.one_in(2), pid: rng.pick(&[0, 7]) }
}

fn any_ino(rng: &mut Rng) -> Ino {
    Ino(1 + rng.below(INOS - 1))
}

fn any_name(rng: &mut Rng) -> Name {
    name(rng.pick::<&[u8]>(&[b"a", b"B", b"aa", b"\xff", b"\xfe\xff"]))
}

fn any_xattr(rng: &mut Rng) -> XattrName {
    xattr(rng.pick(&["user.a", "user.b", "trusted.c"]))
}

fn any_setting(rng: &mut Rng) -> &'static str {
    rng.pick(&["a", "b"])
}

fn any_session(rng: &mut Rng) -> SessionId {
    SessionId(1 + rng.below(3))
}

fn any_term(rng: &mut Rng) -> Term {
    Term(1 + rng.below(3) as u32)
}

fn any_quota(rng: &mut Rng) -> QuotaKey {
    rng.pick(&[QuotaKey::Directory(QuotaId(1)), QuotaKey::User(1), QuotaKey::Group(1)])
}

fn any_tag(rng: &mut Rng) -> QuotaTag {
    rng.pick(&[QuotaTag::NONE, QuotaTag::new(QuotaId(1), true)])
}

fn any_acl(rng: &mut Rng) -> AclId {
    AclId(u128::from(rng.below(3)) << 64)
}

fn any_kind(rng: &mut Rng) -> FileType {
    rng.pick(&[FileType::Regular, FileType::Regular, FileType::Directory, FileType::Symlink])
}

fn any_time(rng: &mut Rng) -> Option<Time> {
    rng.pick(&[None, Some(-1), Some(0), Some(5)]).map(Time::from_nanos)
}

fn any_size(rng: &mut Rng) -> u64 {
    rng.pick(&[0, 1, 4095, 4096, 4097, 20_000])
}

fn any_bytes(rng: &mut Rng) -> Vec<u8> {
    vec![0xff; rng.below(4) as usize]
}

fn any_slice(rng: &mut Rng) -> Slice {
    let source = match rng.below(4) {
        0 => SliceSource::Hole,
        1 => SliceSource::Inline(any_bytes(rng).into()),
        _ => SliceSource::Blocks { id: SliceId(1 + rng.below(6)), offset: rng.below(3) as u32, size: 7 },
    };
    Slice { pos: rng.below(9) as u32, len: rng.below(9) as u32, source }
}

fn any_inode(rng: &mut Rng, ino: Ino) -> Inode {
    Inode {
        mode: Mode::new(rng.below(0o10000) as u32),
        uid: rng.below(3) as u32,
        nlink: rng.below(3) as u32,
        size: any_size(rng),
        access_acl: any_acl(rng),
        default_acl: any_acl(rng),
        parent: any_ino(rng),
        access_rev: rng.below(3),
        xattr_blocks: rng.below(3) as u16,
        quota: any_tag(rng),
        ..inode(ino.0, any_kind(rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two transactions of one call change inode 2: each may return the inode as either one left it, and no
    /// other image.
    #[test]
    fn an_image_that_never_existed_is_detected() {
        let memory = MemEngine::default();
        apply(&memory, vec![put(2, FILE), put(3, FILE)]);
        let set = |size| txn(Vec::new(), vec![Effect::SetSize { ino: Ino(2), size }]);
        let (expected, states) = one_by_one(&memory, &[set(5), set(7)]);
        let with = |sizes: &[u64], ino: u64| {
            let image = |size: &u64| Inode { size: *size, ..inode(ino, FILE) };
            Outcome::Committed { seq: Seq(0), inodes: sizes.iter().map(image).collect() }
        };
        for (sizes, ino, is_good) in [
            (&[5][..], 2, [true, false]),
            (&[7], 2, [true, true]),
            (&[0], 2, [false, false]),
            (&[], 2, [false, false]),
            (&[7, 7], 2, [false, false]),
            (&[0], 3, [false, false]),
        ] {
            let found = [0, 1].map(|at| compare(&with(sizes, ino), &expected[at], &states[at..]).is_ok());
            assert_eq!(found, is_good, "{sizes:?} of {ino}");
        }
    }
}
