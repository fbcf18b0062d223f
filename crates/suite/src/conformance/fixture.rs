//! Helpers of the cases: they create records, commit and read.

use std::sync::atomic::{AtomicU64, Ordering};

use meta::{
    Counter, Effect, Engine, Guard, Inode, Outcome, Page, Process, Record, RecordKey, Scan, ScanInclude, Seq,
    Session, Txn, Usage,
};
use types::{AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, SessionId, SliceId, Time, XattrName};

use crate::files::persistently;

pub(super) const FILE: FileType = FileType::Regular;
pub(super) const DIR: FileType = FileType::Directory;

pub(super) fn inode(ino: u64, kind: FileType) -> Inode {
    Inode {
        uid: 1000,
        gid: 100,
        nlink: 1,
        mtime: Time::from_nanos(2),
        ctime: Time::from_nanos(3),
        access_rev: 5,
        ..Inode::new(Ino(ino), kind, Mode::new(0o640), Time::from_nanos(1))
    }
}

pub(super) fn put(ino: u64, kind: FileType) -> Effect {
    Effect::PutInode(inode(ino, kind))
}

pub(super) fn put_dirent(parent: u64, entry: &str, ino: u64) -> Effect {
    Effect::PutDirent { parent: Ino(parent), name: name(entry), ino: Ino(ino), kind: FILE }
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
    Name::new(bytes.as_ref()).expect("a case uses valid names")
}

pub(super) fn xattr(bytes: impl AsRef<[u8]>) -> XattrName {
    XattrName::new(bytes.as_ref()).expect("a case uses valid names")
}

/// A transaction with a unique operation id.
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

/// Commits a transaction while other threads commit. Under load an engine may return a transient or an
/// indeterminate error, so this function sends the same transaction again, as a client does. The engine
/// applies it once.
pub(super) fn commit_in_race(engine: &dyn Engine, txn: &Txn) -> Outcome {
    let mut outcomes = persistently(|| engine.commit(std::slice::from_ref(txn)));
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// Reads while other threads commit. The read may fail with a transient error, because their commits may
/// block it, so this function reads again.
pub(super) fn read_in_race(engine: &dyn Engine, keys: &[RecordKey]) -> Vec<Record> {
    persistently(|| engine.read(keys)).records
}

/// Commits effects without guards, and returns the inodes they changed.
pub(super) fn apply(engine: &dyn Engine, effects: Vec<Effect>) -> Vec<Inode> {
    committed(commit(engine, txn(Vec::new(), effects))).1
}

pub(super) fn committed(outcome: Outcome) -> (Seq, Vec<Inode>) {
    match outcome {
        Outcome::Committed { seq, inodes } => (seq, inodes),
        Outcome::Conflict(snapshot) => panic!("an unexpected conflict: {snapshot:?}"),
    }
}

pub(super) fn read(engine: &dyn Engine, keys: &[RecordKey]) -> Vec<Record> {
    engine.read(keys).expect("a read").records
}

pub(super) fn read_inode(engine: &dyn Engine, ino: u64) -> Option<Inode> {
    found_inode(&read(engine, &[RecordKey::Inode(Ino(ino))]))
}

/// Returns the inode in the first record. The records of its ACLs may follow.
pub(super) fn found_inode(records: &[Record]) -> Option<Inode> {
    match records {
        [Record::Inode(_, inode), ..] => *inode,
        other => panic!("not the record of the inode: {other:?}"),
    }
}

pub(super) fn read_usage(engine: &dyn Engine) -> Usage {
    match read(engine, &[RecordKey::Usage])[..] {
        [Record::Usage(usage)] => usage,
        ref other => panic!("not the record of the usage: {other:?}"),
    }
}

pub(super) fn scan(engine: &dyn Engine, scan: &Scan) -> Page {
    engine.scan(scan).expect("a scan")
}

/// All records of the inodes below `inos` and of their chunks below `chunks`, and all other records, in a
/// fixed order.
pub(super) fn dump(engine: &dyn Engine, inos: u64, chunks: u64) -> Vec<Record> {
    let mut keys = vec![RecordKey::Settings, RecordKey::Usage, RecordKey::Waits];
    keys.extend(Counter::ALL.map(RecordKey::Counter));
    for ino in (0..inos).map(Ino) {
        keys.extend([
            RecordKey::Inode(ino),
            RecordKey::Empty(ino),
            RecordKey::Xattrs(ino),
            RecordKey::Symlink(ino),
            RecordKey::Locks(ino),
        ]);
        keys.extend((0..chunks).map(|chunk| RecordKey::Slices(ino, ChunkIndex(chunk))));
    }
    let mut records = read(engine, &keys);
    let limit = usize::MAX;
    let mut scans = vec![
        Scan::Inodes { after: Ino(0), limit },
        Scan::Orphans { after: (SessionId(0), Ino(0)), limit },
        Scan::Sessions { after: SessionId(0), limit },
        Scan::Garbage { after: SliceId(0), limit },
        Scan::Shared { after: SliceId(0), limit },
        Scan::Acls { after: AclId(0), limit },
        Scan::Quotas { after: None, limit },
    ];
    scans.extend((0..inos).map(|ino| Scan::Dir {
        parent: Ino(ino),
        after: None,
        limit,
        include: ScanInclude::Nothing,
    }));
    for range in scans {
        let page = scan(engine, &range);
        assert!(!page.more, "an unlimited scan left records out: {range:?}");
        records.extend(page.snapshot.records);
    }
    records
}
