//! Tests of each effect, on present and absent targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use meta::{
    Access, Counter, Dirent, Effect, Engine, Garbage, Inode, QuotaTag, Record, RecordKey, Scan, Session,
    Settings, Xattrs,
};
use types::{AclId, ChunkIndex, Ino, Mode, SessionId, Slice, SliceId, SliceSource, Time};

use super::fixture::*;

fn inline(pos: u32, data: &[u8]) -> Slice {
    Slice { pos, len: data.len() as u32, source: SliceSource::Inline(data.into()) }
}

fn blocks(id: u64, size: u32) -> Slice {
    Slice { pos: 0, len: size, source: SliceSource::Blocks { id: SliceId(id), offset: 0, size } }
}

fn slices(engine: &dyn Engine, ino: u64, chunk: u64) -> Vec<Slice> {
    match &read(engine, &[RecordKey::Slices(Ino(ino), ChunkIndex(chunk))])[..] {
        [Record::Slices(_, _, rows)] => rows.to_vec(),
        other => panic!("not the record of the slices: {other:?}"),
    }
}

fn garbage(engine: &dyn Engine) -> Vec<Record> {
    scan(engine, &Scan::Garbage { after: SliceId(0), limit: 100 }).snapshot.records
}

pub fn inodes_are_put_and_replaced(engine: &dyn Engine) {
    assert_eq!(read_inode(engine, 3), None);
    assert_eq!(apply(engine, vec![put(3, FILE)]), Vec::<Inode>::new());
    assert_eq!(read_inode(engine, 3), Some(inode(3, FILE)));
    let mut other = inode(3, DIR);
    (other.mode, other.uid, other.size) = (Mode::new(0o7777), 0, 12);
    apply(
        engine,
        vec![
            Effect::PutXattr { ino: Ino(3), name: xattr("user.a"), value: b"1"[..].into() },
            Effect::PutInode(other),
        ],
    );
    assert_eq!(read_inode(engine, 3), Some(other));
    assert_eq!(read(engine, &[RecordKey::Xattrs(Ino(3))]), [Record::Xattrs(Ino(3), Arc::default())]);
    assert_eq!(read_usage(engine).inodes, 1);
}

pub fn dropping_an_inode_drops_its_records(engine: &dyn Engine) {
    let ino = Ino(3);
    apply(
        engine,
        vec![
            put(3, FILE),
            Effect::PutSymlink { ino, target: b"there"[..].into() },
            Effect::PutXattr { ino, name: xattr("user.a"), value: b"1"[..].into() },
            Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice: blocks(8, 100) },
            Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice: inline(5, b"abc") },
            Effect::AppendSlice { ino, chunk: ChunkIndex(7), slice: blocks(9, 200) },
        ],
    );
    apply(engine, vec![Effect::DropInode { ino }]);
    assert_eq!(
        read(engine, &[RecordKey::Inode(ino), RecordKey::Symlink(ino), RecordKey::Xattrs(ino)]),
        [Record::Inode(ino, None), Record::Symlink(ino, None), Record::Xattrs(ino, Arc::default())]
    );
    assert!(slices(engine, 3, 0).is_empty() && slices(engine, 3, 7).is_empty());
    let dropped = [(8, 100), (9, 200)].map(|(id, size)| Garbage { slice: SliceId(id), size });
    assert_eq!(garbage(engine), dropped.map(Record::Garbage));
    apply(engine, vec![put(3, FILE)]);
    assert!(slices(engine, 3, 0).is_empty());
}

pub fn dirents_are_put_and_dropped(engine: &dyn Engine) {
    let (parent, a) = (Ino(2), name("a"));
    let entry = || read(engine, &[RecordKey::Dirent(Ino(2), name("a"))]);
    apply(engine, vec![put(2, DIR), put(3, FILE), put_dirent(2, "a", 3)]);
    let dirent = |ino, kind| Record::Dirent(parent, a.clone(), Some(Dirent { ino: Ino(ino), kind }));
    assert_eq!(entry(), [dirent(3, FILE), Record::Inode(Ino(3), Some(inode(3, FILE)))]);
    apply(engine, vec![Effect::PutDirent { parent, name: a.clone(), ino: Ino(4), kind: DIR }]);
    assert_eq!(entry(), [dirent(4, DIR), Record::Inode(Ino(4), None)]);
    apply(engine, vec![Effect::DropDirent { parent, name: a.clone() }]);
    assert_eq!(entry(), [Record::Dirent(parent, a.clone(), None)]);
    assert_eq!(read(engine, &[RecordKey::Empty(parent)]), [Record::Empty(parent, true)]);
}

pub fn access_changes_increment_the_revision(engine: &dyn Engine) {
    apply(engine, vec![put(3, FILE)]);
    let access = Access {
        mode: Mode::new(0o4711),
        uid: u32::MAX,
        gid: 0,
        access_acl: AclId(1),
        default_acl: AclId(u128::MAX),
        quota: QuotaTag::NONE,
    };
    let changed = apply(engine, vec![Effect::SetAccess { ino: Ino(3), access }]);
    let after = read_inode(engine, 3).expect("the inode");
    assert_eq!((Access::from(&after), after.access_rev), (access, 6));
    assert_eq!(changed, [after]);
}

pub fn parents_links_and_times_change(engine: &dyn Engine) {
    apply(engine, vec![put(3, DIR)]);
    let ino = Ino(3);
    let time = |nanos| Some(Time::from_nanos(nanos));
    apply(
        engine,
        vec![
            Effect::SetParent { ino, parent: Ino(9) },
            Effect::AddLinks { ino, delta: 4 },
            Effect::AddLinks { ino, delta: -2 },
            Effect::SetTimes { ino, atime: None, mtime: time(-5), ctime: time(50) },
        ],
    );
    let mut expected = inode(3, DIR);
    (expected.parent, expected.nlink) = (Ino(9), 3);
    (expected.mtime, expected.ctime) = (Time::from_nanos(-5), Time::from_nanos(50));
    assert_eq!(read_inode(engine, 3), Some(expected));
    // atime and mtime are set to any value, but ctime never decreases; a link count does not go below 0.
    apply(
        engine,
        vec![
            Effect::SetTimes { ino, atime: time(0), mtime: None, ctime: time(3) },
            Effect::AddLinks { ino, delta: i32::MIN },
        ],
    );
    (expected.atime, expected.nlink) = (Time::from_nanos(0), 0);
    assert_eq!(read_inode(engine, 3), Some(expected));
}

pub fn sizes_are_set_and_extended(engine: &dyn Engine) {
    let ino = Ino(3);
    let size = || read_inode(engine, 3).map(|inode| inode.size);
    apply(engine, vec![put(3, FILE), Effect::Extend { ino, size: 5000 }]);
    assert_eq!((size(), read_usage(engine).blocks), (Some(5000), 2));
    apply(engine, vec![Effect::Extend { ino, size: 100 }]);
    assert_eq!((size(), read_usage(engine).blocks), (Some(5000), 2));
    apply(engine, vec![Effect::SetSize { ino, size: 100 }]);
    assert_eq!((size(), read_usage(engine).blocks), (Some(100), 1));
}

pub fn slices_are_kept_in_commit_order(engine: &dyn Engine) {
    let ino = Ino(3);
    let hole = Slice { pos: 9, len: 1 << 26, source: SliceSource::Hole };
    let rows = [inline(7, b"\0\xff"), hole, blocks(u64::from(u32::MAX) + 1, u32::MAX), inline(0, b"")];
    apply(engine, vec![put(3, FILE)]);
    for slice in rows.clone() {
        apply(engine, vec![Effect::AppendSlice { ino, chunk: ChunkIndex(1), slice }]);
    }
    assert_eq!(slices(engine, 3, 1), rows);
    assert!(slices(engine, 3, 0).is_empty() && slices(engine, 3, 2).is_empty());
}

pub fn dropped_slices_become_garbage(engine: &dyn Engine) {
    let ino = Ino(3);
    let mut effects = vec![put(3, FILE), put(4, FILE)];
    for chunk in 0..4 {
        let slice = blocks(10 + chunk, 1);
        effects.push(Effect::AppendSlice { ino, chunk: ChunkIndex(chunk), slice });
    }
    effects.push(Effect::AppendSlice { ino: Ino(4), chunk: ChunkIndex(3), slice: blocks(20, 1) });
    effects.push(Effect::DropSlices { ino, from: ChunkIndex(2), to: ChunkIndex(u64::MAX) });
    apply(engine, effects);
    let left: Vec<usize> = (0..4).map(|chunk| slices(engine, 3, chunk).len()).collect();
    assert_eq!((left, slices(engine, 4, 3).len()), (vec![1, 1, 0, 0], 1));
    let dropped = [12, 13].map(|id| Record::Garbage(Garbage { slice: SliceId(id), size: 1 }));
    assert_eq!(garbage(engine), dropped);
    apply(engine, vec![Effect::DropGarbage { slice: SliceId(12) }]);
    assert_eq!(garbage(engine), dropped[1..]);
    // A chunk without rows can be written to again.
    apply(engine, vec![Effect::AppendSlice { ino, chunk: ChunkIndex(2), slice: inline(0, b"x") }]);
    assert_eq!(slices(engine, 3, 2), [inline(0, b"x")]);
    apply(engine, vec![Effect::DropSlices { ino, from: ChunkIndex(u64::MAX), to: ChunkIndex(u64::MAX) }]);
    assert_eq!(slices(engine, 3, 2).len(), 1);
}

/// A truncation and a copy over the beginning of the file can be in one batch.
pub fn a_shorter_drop_in_the_same_batch_does_not_replace_a_longer_one(engine: &dyn Engine) {
    let ino = Ino(3);
    let drop = |to| Effect::DropSlices { ino, from: ChunkIndex(0), to: ChunkIndex(to) };
    for (first, ends) in [(10, [u64::MAX, 1]), (20, [1, u64::MAX])] {
        let append = |chunk: u64| Effect::AppendSlice {
            ino,
            chunk: ChunkIndex(chunk),
            slice: blocks(first + chunk, 1),
        };
        apply(engine, vec![put(3, FILE)]);
        apply(engine, (0..4).map(append).collect());
        apply(engine, vec![drop(ends[0]), drop(ends[1])]);
        for chunk in 0..4 {
            assert_eq!(slices(engine, 3, chunk), [], "{ends:?}");
        }
        apply(engine, vec![Effect::DropInode { ino }]);
    }
}

/// A tool that reads all inodes may miss the rows of a slice that move from one inode to another in the
/// meantime. The count, which the tool reads afterwards, shows that the slice is in use.
pub fn a_shared_slice_keeps_its_count_until_it_is_garbage(engine: &dyn Engine) {
    let chunk = ChunkIndex(0);
    let append = |ino| Effect::AppendSlice { ino: Ino(ino), chunk, slice: blocks(10, 1) };
    let drop = |ino| Effect::DropSlices { ino: Ino(ino), from: chunk, to: ChunkIndex(1) };
    let shared = || scan(engine, &Scan::Shared { after: SliceId(0), limit: 9 }).snapshot.records;
    let share = || Effect::Share { slice: SliceId(10), rows: 1 };
    apply(engine, vec![put(3, FILE), put(4, FILE), put(5, FILE), append(3)]);
    apply(engine, vec![share(), append(4)]);
    assert_eq!(shared(), [Record::Shared(SliceId(10), 1)]);
    apply(engine, vec![drop(3)]);
    assert_eq!((shared(), garbage(engine)), (vec![Record::Shared(SliceId(10), 0)], vec![]));
    // The slice is shared again. Then its row is replaced in one inode, and dropped with the other.
    apply(engine, vec![share(), append(5)]);
    assert_eq!(shared(), [Record::Shared(SliceId(10), 1)]);
    apply(engine, vec![Effect::ReplaceRows { ino: Ino(4), chunk, count: 1, rows: [].into() }]);
    assert_eq!((shared(), garbage(engine)), (vec![Record::Shared(SliceId(10), 0)], vec![]));
    apply(engine, vec![Effect::DropInode { ino: Ino(5) }]);
    assert_eq!(shared(), []);
    assert_eq!(garbage(engine), [Record::Garbage(Garbage { slice: SliceId(10), size: 1 })]);
}

/// A flush packs many small ranges into one slice, so several rows, in one chunk or more, refer to the slice.
pub fn a_slice_with_many_rows_is_garbage_when_its_last_row_is_removed(engine: &dyn Engine) {
    let row = |offset| Slice {
        pos: offset * 10,
        len: 1,
        source: SliceSource::Blocks { id: SliceId(10), offset, size: 6 },
    };
    let append = |ino, chunk, offset| Effect::AppendSlice {
        ino: Ino(ino),
        chunk: ChunkIndex(chunk),
        slice: row(offset),
    };
    let shared = || scan(engine, &Scan::Shared { after: SliceId(0), limit: 9 }).snapshot.records;
    let rows = [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4)];
    let mut effects = vec![put(3, FILE), put(4, FILE)];
    effects.extend(rows.map(|(chunk, offset)| append(3, chunk, offset)));
    effects.push(append(4, 0, 5));
    effects.push(Effect::Share { slice: SliceId(10), rows: 3 });
    effects.push(Effect::Share { slice: SliceId(10), rows: 2 });
    apply(engine, effects);
    assert_eq!(shared(), [Record::Shared(SliceId(10), 5)]);
    let new: Arc<[Slice]> = [blocks(11, 1)].into();
    apply(engine, vec![Effect::ReplaceRows { ino: Ino(3), chunk: ChunkIndex(0), count: 2, rows: new }]);
    assert_eq!(shared(), [Record::Shared(SliceId(10), 3)]);
    assert_eq!(slices(engine, 3, 0), [blocks(11, 1), row(2)]);
    // Drop two of the three rows of this inode, in two chunks, at once.
    let (from, to) = (ChunkIndex(1), ChunkIndex(3));
    apply(engine, vec![Effect::DropSlices { ino: Ino(3), from, to }]);
    assert_eq!((shared(), garbage(engine)), (vec![Record::Shared(SliceId(10), 1)], vec![]));
    apply(engine, vec![Effect::DropInode { ino: Ino(3) }]);
    assert_eq!(shared(), [Record::Shared(SliceId(10), 0)]);
    apply(engine, vec![Effect::DropInode { ino: Ino(4) }]);
    assert_eq!(shared(), []);
    let gone = [(10, 6), (11, 1)].map(|(id, size)| Record::Garbage(Garbage { slice: SliceId(id), size }));
    assert_eq!(garbage(engine), gone);
}

pub fn xattrs_are_put_and_dropped(engine: &dyn Engine) {
    let ino = Ino(3);
    let put_xattr =
        |name: &str, value: &[u8]| Effect::PutXattr { ino, name: xattr(name), value: value.into() };
    apply(
        engine,
        vec![put(3, FILE), put_xattr("user.b", b"old"), put_xattr("user.a", b""), put_xattr("user.c", b"c")],
    );
    apply(engine, vec![put_xattr("user.b", b"new\0"), Effect::DropXattr { ino, name: xattr("user.c") }]);
    let expected: Xattrs =
        BTreeMap::from([(xattr("user.a"), b""[..].into()), (xattr("user.b"), b"new\0"[..].into())]);
    assert_eq!(read(engine, &[RecordKey::Xattrs(ino)]), [Record::Xattrs(ino, Arc::new(expected))]);
}

pub fn acls_are_stored_once(engine: &dyn Engine) {
    let id = AclId(1 << 100);
    let acl = || read(engine, &[RecordKey::Acl(id)]);
    assert_eq!(acl(), [Record::Acl(id, None)]);
    apply(engine, vec![Effect::PutAcl { id, text: "first".into() }]);
    apply(engine, vec![Effect::PutAcl { id, text: "second".into() }]);
    assert_eq!(acl(), [Record::Acl(id, Some("first".into()))]);
}

pub fn symlinks_are_kept(engine: &dyn Engine) {
    let ino = Ino(3);
    let put_target = |target: &[u8]| Effect::PutSymlink { ino, target: target.into() };
    apply(engine, vec![put(3, types::FileType::Symlink), put_target(b"../\xff/\n")]);
    let target = || read(engine, &[RecordKey::Symlink(ino)]);
    assert_eq!(target(), [Record::Symlink(ino, Some(b"../\xff/\n"[..].into()))]);
    apply(engine, vec![put_target(b"b")]);
    assert_eq!(target(), [Record::Symlink(ino, Some(b"b"[..].into()))]);
}

pub fn sessions_and_orphans_are_put_and_dropped(engine: &dyn Engine) {
    let later = Session { heartbeat: Time::from_nanos(99), ..session(4) };
    let sessions = || scan(engine, &Scan::Sessions { after: SessionId(0), limit: 9 }).snapshot.records;
    apply(engine, vec![Effect::PutSession(session(5)), Effect::PutSession(session(4))]);
    apply(engine, vec![Effect::PutSession(later.clone())]);
    let found = |session: &Session| Record::Session(session.id, Some(session.clone()));
    assert_eq!(sessions(), [found(&later), found(&session(5))]);
    let keys = [4, 6].map(|id| RecordKey::Session(SessionId(id)));
    assert_eq!(read(engine, &keys), [found(&later), Record::Session(SessionId(6), None)]);
    apply(engine, vec![Effect::DropSession { session: SessionId(5) }]);
    assert_eq!(sessions(), [found(&later)]);

    let orphan = |session, ino| Record::Orphan(SessionId(session), Ino(ino));
    let orphans =
        || scan(engine, &Scan::Orphans { after: (SessionId(0), Ino(0)), limit: 9 }).snapshot.records;
    let put_orphan = |session, ino| Effect::PutOrphan { session: SessionId(session), ino: Ino(ino) };
    apply(engine, vec![put_orphan(4, 8), put_orphan(4, 7), put_orphan(4, 8), put_orphan(3, 9)]);
    assert_eq!(orphans(), [orphan(3, 9), orphan(4, 7), orphan(4, 8)]);
    apply(engine, vec![Effect::DropOrphan { session: SessionId(4), ino: Ino(7) }]);
    assert_eq!(orphans(), [orphan(3, 9), orphan(4, 8)]);
}

pub fn settings_and_counters_are_set(engine: &dyn Engine) {
    let set = |name, value: &str| Effect::PutSetting { name, value: value.to_owned() };
    apply(engine, vec![set("b", "1"), set("a", ""), set("b", "ü")]);
    let expected = Settings::from([("a".to_owned(), String::new()), ("b".to_owned(), "ü".to_owned())]);
    assert_eq!(read(engine, &[RecordKey::Settings]), [Record::Settings(Arc::new(expected))]);
    apply(engine, vec![Effect::SetCounter { counter: Counter::Ino, value: 1 << 40 }]);
    assert_eq!(
        read(engine, &Counter::ALL.map(RecordKey::Counter)),
        [(Counter::Ino, 1 << 40), (Counter::Slice, 0), (Counter::Session, 0)]
            .map(|(counter, value)| Record::Counter(counter, value))
    );
}

pub fn effects_on_absent_targets_do_nothing(engine: &dyn Engine) {
    let ino = Ino(3);
    let before = dump(engine, 5, 2);
    let access = Access::from(&inode(3, FILE));
    let time = Some(Time::from_nanos(1));
    let changed = apply(
        engine,
        vec![
            Effect::DropInode { ino },
            Effect::DropDirent { parent: ino, name: name("a") },
            Effect::SetAccess { ino, access },
            Effect::SetParent { ino, parent: Ino(2) },
            Effect::AddLinks { ino, delta: 1 },
            Effect::SetTimes { ino, atime: time, mtime: time, ctime: time },
            Effect::SetSize { ino, size: 1 },
            Effect::Extend { ino, size: 1 },
            Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice: blocks(1, 1) },
            Effect::DropSlices { ino, from: ChunkIndex(0), to: ChunkIndex(u64::MAX) },
            Effect::PutXattr { ino, name: xattr("user.a"), value: b""[..].into() },
            Effect::DropXattr { ino, name: xattr("user.a") },
            Effect::AddXattrBlocks { ino, delta: 1 },
            Effect::DropOrphan { session: SessionId(1), ino },
            Effect::DropSession { session: SessionId(1) },
            Effect::DropGarbage { slice: SliceId(1) },
        ],
    );
    assert_eq!(changed, Vec::<Inode>::new());
    assert_eq!(dump(engine, 5, 2), before);
}

pub fn post_images_show_each_changed_inode_once(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put(3, FILE), put(4, FILE)]);
    let links = |ino, delta| Effect::AddLinks { ino: Ino(ino), delta };
    let changed = apply(
        engine,
        vec![
            links(4, 1),
            links(2, 1),
            links(4, 1),
            put(5, FILE),
            links(9, 1),
            links(3, 1),
            Effect::DropInode { ino: Ino(3) },
        ],
    );
    let with = |ino, kind, nlink| Inode { nlink, ..inode(ino, kind) };
    assert_eq!(changed, [with(4, FILE, 3), with(2, DIR, 2)], "in order of first change, as they end");
}

pub fn usage_can_be_corrected(engine: &dyn Engine) {
    let mut file = inode(3, FILE);
    file.size = 5000;
    apply(engine, vec![Effect::PutInode(file)]);
    let before = read_usage(engine);
    // Corrections come before, between and after effects that also change the usage.
    let (more, create) = (|inodes, blocks| Effect::AddUsage { inodes, blocks }, put(4, FILE));
    apply(engine, vec![more(3, 0), create, more(-1, 7), Effect::DropInode { ino: Ino(4) }]);
    let after = read_usage(engine);
    assert_eq!((after.inodes, after.blocks), (before.inodes + 2, before.blocks + 7));
    apply(engine, vec![more(-2, -7)]);
    assert_eq!(read_usage(engine), before);
    apply(engine, vec![more(-1000, i64::MIN)]);
    let none = read_usage(engine);
    assert_eq!((none.inodes, none.blocks), (0, 0));
}

pub fn xattr_blocks_count_in_usage(engine: &dyn Engine) {
    let add = |ino, delta| Effect::AddXattrBlocks { ino: Ino(ino), delta };
    let blocks = || read_usage(engine).blocks;
    let with = |ino, kind, xattr_blocks| Inode { xattr_blocks, ..inode(ino, kind) };
    apply(engine, vec![put(3, FILE), put(4, DIR), Effect::SetSize { ino: Ino(3), size: 5000 }]);
    assert_eq!(blocks(), 2);
    let changed = apply(engine, vec![add(4, 7), add(3, 1), add(4, -2)]);
    assert_eq!(changed, [with(4, DIR, 5), Inode { size: 5000, ..with(3, FILE, 1) }]);
    assert_eq!((blocks(), read_inode(engine, 4)), (8, Some(with(4, DIR, 5))));
    apply(engine, vec![Effect::SetSize { ino: Ino(3), size: 0 }, Effect::AddLinks { ino: Ino(4), delta: 1 }]);
    assert_eq!(blocks(), 6);
    // Add in a batch of several transactions, and together with a new inode.
    let batch = [vec![add(3, 2)], vec![add(4, 1)], vec![add(3, 3)], vec![put(5, FILE), add(5, 4)]];
    engine.commit(&batch.map(|effects| txn(Vec::new(), effects))).expect("a commit");
    assert_eq!((blocks(), read_inode(engine, 3)), (16, Some(with(3, FILE, 6))));
    assert_eq!(read_inode(engine, 5), Some(with(5, FILE, 4)));
    // Each effect clamps the count to the range of a `u16`.
    apply(engine, vec![add(3, -70_000), add(3, 1)]);
    assert_eq!((blocks(), read_inode(engine, 3)), (11, Some(with(3, FILE, 1))));
    apply(engine, vec![add(3, 70_000)]);
    assert_eq!(read_inode(engine, 3), Some(with(3, FILE, u16::MAX)));
    apply(engine, vec![put(3, FILE)]);
    assert_eq!((blocks(), read_inode(engine, 3)), (10, Some(inode(3, FILE))));
    // The xattr blocks are dropped with the inode.
    apply(engine, vec![Effect::DropInode { ino: Ino(4) }]);
    assert_eq!(blocks(), 4);
    apply(engine, vec![put(6, FILE), Effect::DropInode { ino: Ino(5) }]);
    assert_eq!(blocks(), 0);
}
