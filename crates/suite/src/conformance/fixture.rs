//! What the cases share: short ways to make records, to commit, and to look.

use std::sync::atomic::{AtomicU64, Ordering};

use meta::{
    Beside, Counter, Effect, Engine, Guard, Node, Outcome, Page, Process, Record, Scan, Seq, Session, Txn,
    Usage, Want,
};
use types::{AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, SessionId, SliceId, Time, XattrName};

pub(super) const FILE: FileType = FileType::Regular;
pub(super) const DIR: FileType = FileType::Directory;

pub(super) fn node(ino: u64, kind: FileType) -> Node {
    Node {
        ino: Ino(ino),
        kind,
        mode: Mode::new(0o640),
        uid: 1000,
        gid: 100,
        rdev: 0,
        nlink: 1,
        size: 0,
        atime: Time::from_nanos(1),
        mtime: Time::from_nanos(2),
        ctime: Time::from_nanos(3),
        access_acl: AclId::NONE,
        default_acl: AclId::NONE,
        parent: Ino(0),
        access_rev: 5,
    }
}

pub(super) fn put(ino: u64, kind: FileType) -> Effect {
    Effect::PutNode(node(ino, kind))
}

pub(super) fn put_edge(parent: u64, entry: &str, ino: u64) -> Effect {
    Effect::PutEdge { parent: Ino(parent), name: name(entry), ino: Ino(ino), kind: FILE }
}

pub(super) fn session(id: u64) -> Session {
    Session {
        id: SessionId(id),
        host: "höst".to_owned(),
        pid: u32::MAX,
        mountpoint: "/mnt/ä b".to_owned(),
        since: Time::from_nanos(-1),
        heartbeat: Time::from_nanos(7),
        process: Process {
            boot_id: "5f3c7a4e-ä".to_owned(),
            pid_namespace: u64::from(u32::MAX),
            start_time: i64::MAX as u64,
        },
        version: "0.1.0".to_owned(),
        first_slice: SliceId(i64::MAX as u64),
    }
}

pub(super) fn found_session(id: u64) -> Record {
    Record::Session(SessionId(id), Some(session(id)))
}

pub(super) fn name(bytes: impl AsRef<[u8]>) -> Name {
    Name::new(bytes.as_ref()).expect("a case uses names that are fine")
}

pub(super) fn xattr(bytes: impl AsRef<[u8]>) -> XattrName {
    XattrName::new(bytes.as_ref()).expect("a case uses names that are fine")
}

/// A transaction with an operation id of its own.
pub(super) fn txn(guards: Vec<Guard>, effects: Vec<Effect>) -> Txn {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    Txn { op_id: OpId(u128::from(u64::MAX) << 64 | u128::from(count)), guards, effects }
}

pub(super) fn commit(engine: &dyn Engine, txn: Txn) -> Outcome {
    let mut outcomes = engine.commit(&[txn]).expect("a commit");
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// Commits effects without guards, and returns the nodes they changed.
pub(super) fn apply(engine: &dyn Engine, effects: Vec<Effect>) -> Vec<Node> {
    committed(commit(engine, txn(Vec::new(), effects))).1
}

pub(super) fn committed(outcome: Outcome) -> (Seq, Vec<Node>) {
    match outcome {
        Outcome::Committed { seq, nodes } => (seq, nodes),
        Outcome::Conflict(facts) => panic!("a conflict where none is possible: {facts:?}"),
    }
}

pub(super) fn read(engine: &dyn Engine, wants: &[Want]) -> Vec<Record> {
    engine.read(wants).expect("a read").records
}

pub(super) fn read_node(engine: &dyn Engine, ino: u64) -> Option<Node> {
    match read(engine, &[Want::Node(Ino(ino))]).first() {
        Some(Record::Node(_, node)) => *node,
        other => panic!("no answer to a node: {other:?}"),
    }
}

pub(super) fn read_usage(engine: &dyn Engine) -> Usage {
    match read(engine, &[Want::Usage])[..] {
        [Record::Usage(usage)] => usage,
        ref other => panic!("no answer to the usage: {other:?}"),
    }
}

pub(super) fn scan(engine: &dyn Engine, scan: &Scan) -> Page {
    engine.scan(scan).expect("a scan")
}

/// Everything about the inodes below `inos` and the chunks below `chunks`, and all else there is, in a fixed order.
pub(super) fn dump(engine: &dyn Engine, inos: u64, chunks: u64) -> Vec<Record> {
    let mut wants = vec![Want::Settings, Want::Usage, Want::Waits];
    wants.extend(Counter::ALL.map(Want::Counter));
    for ino in (0..inos).map(Ino) {
        wants.extend([
            Want::Node(ino),
            Want::Empty(ino),
            Want::Xattrs(ino),
            Want::Symlink(ino),
            Want::Locks(ino),
        ]);
        wants.extend((0..chunks).map(|chunk| Want::Slices(ino, ChunkIndex(chunk))));
    }
    let mut records = read(engine, &wants);
    let limit = usize::MAX;
    let mut scans = vec![
        Scan::Nodes { after: Ino(0), limit },
        Scan::Orphans { after: (SessionId(0), Ino(0)), limit },
        Scan::Sessions { after: SessionId(0), limit },
        Scan::Garbage { after: SliceId(0), limit },
        Scan::Shared { after: SliceId(0), limit },
        Scan::Acls { after: AclId(0), limit },
    ];
    scans.extend((0..inos).map(|ino| Scan::Dir {
        parent: Ino(ino),
        after: None,
        limit,
        beside: Beside::Nothing,
    }));
    for range in scans {
        let page = scan(engine, &range);
        assert!(!page.more, "more after everything: {range:?}");
        records.extend(page.facts.records);
    }
    records
}
