//! Copies of trees by reference: a copy shares the slices of its source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::{CloneError, CloneFailure, CloneProgress, CloneRequest, Failure};
use meta::{Engine, Inode, QuotaKey, Record, RecordKey, Scan, Session, Volume, Xattrs};
use ops::{
    AclType, BeginClone, CLONED_CHUNKS, CloneEntries, CloneEntry, CloneSource, ClonedEntry, EndClone,
    MakeKind, QuotaLimits, Reap, SetAttr, Write, XattrMode,
};
use types::{CHUNK_BYTES, ChunkIndex, Errno, FileType, Ino, Mode, Slice, SliceId, SliceSource, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, acl, blocks, client, fresh, fresh_with, n, volume};
use super::invariants::check;
use crate::faulty::{Fault, FaultRates, Faulty};
use crate::files::persistently;

pub(super) const CASES: &[Case] = &[
    ("a_copied_tree_equals_its_source", a_copied_tree_equals_its_source),
    ("blocks_are_kept_as_long_as_source_or_copy_exists", blocks_are_kept),
    ("a_copy_is_not_made_over_an_existing_name", a_copy_is_not_made_over_an_existing_name),
    ("a_copy_counts_in_quotas_exactly_or_fails_with_edquot", quotas_are_exact),
    ("a_copy_beyond_the_capacity_fails_with_enospc", a_copy_beyond_the_capacity_fails),
    ("an_interrupted_copy_is_removed", an_interrupted_copy_is_removed),
    ("an_unfinished_copy_of_an_ended_session_is_removed_as_a_whole", an_unfinished_copy_is_removed),
    ("a_copy_ends_only_under_the_session_that_began_it", another_session_does_not_end_a_copy),
    ("a_copy_of_a_changing_file_is_of_one_moment", a_copy_of_a_changing_file_is_of_one_moment),
    ("a_copy_after_a_conflict_is_of_one_moment", a_copy_after_a_conflict_is_of_one_moment),
    ("a_file_that_grows_or_vanishes_or_gets_an_xattr_after_it_was_listed", changes_after_the_listing),
    ("a_file_of_many_chunks_is_copied_with_its_holes", a_file_of_many_chunks_is_copied),
    ("a_tree_is_copied_into_itself_once", a_tree_is_copied_into_itself_once),
];

/// A file of a tree: attributes, rows by chunk, xattrs, and the target if it is a symlink.
type Found = (Inode, Vec<(ChunkIndex, Arc<[Slice]>)>, Arc<Xattrs>, Option<Arc<[u8]>>);

impl Client {
    pub(super) fn clone_to(&self, source: Ino, parent: Ino, name: &str) -> Result<Inode, CloneFailure> {
        self.clone_until(source, parent, name, &|| false)
    }

    fn clone_until(
        &self,
        source: Ino,
        parent: Ino,
        name: &str,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Inode, CloneFailure> {
        let request = CloneRequest { source, parent, name: n(name), threads: 3 };
        self.meta.clone_tree(&request, &CloneProgress::default(), stop, &|| false)
    }

    fn clone_errno(&self, source: Ino, parent: Ino, name: &str) -> Errno {
        match self.clone_to(source, parent, name) {
            Err(CloneFailure { error: CloneError::Failed(Failure::Operation(errno)), is_removed: true }) => {
                errno
            }
            other => panic!("{other:?}"),
        }
    }

    /// A file and all files below it, by path.
    fn tree(&self, ino: Ino) -> BTreeMap<String, Found> {
        let (mut found, mut paths) = (BTreeMap::new(), vec![(String::new(), ino)]);
        while let Some((path, ino)) = paths.pop() {
            let keys = [RecordKey::Inode(ino), RecordKey::Xattrs(ino), RecordKey::Symlink(ino)];
            let records = persistently(|| self.engine().read(&keys)).records;
            let (mut inode, mut xattrs, mut target) = (None, Arc::default(), None);
            for record in records {
                match record {
                    Record::Inode(_, found) => inode = found,
                    Record::Xattrs(_, found) => xattrs = found,
                    Record::Symlink(_, found) => target = found,
                    _ => {}
                }
            }
            let inode = inode.unwrap_or_else(|| panic!("{path} has no inode"));
            let scan = Scan::Slices { ino, from: ChunkIndex(0), limit: 10_000 };
            let rows = persistently(|| self.engine().scan(&scan)).snapshot.records;
            let rows = rows.into_iter().filter_map(|record| match record {
                Record::Slices(_, chunk, rows) => Some((chunk, rows)),
                _ => None,
            });
            found.insert(path.clone(), (inode, rows.collect(), xattrs, target));
            if inode.kind.is_dir() {
                let name = |name: &types::Name| String::from_utf8_lossy(name.as_bytes()).into_owned();
                paths.extend(
                    self.list(ino).iter().map(|(entry, at, ..)| (format!("{path}/{}", name(entry)), at.ino)),
                );
            }
        }
        found
    }

    /// The number of orphans.
    fn orphans(&self) -> usize {
        let scan = Scan::Orphans { after: (types::SessionId(0), Ino(0)), limit: 100 };
        persistently(|| self.engine().scan(&scan)).snapshot.records.len()
    }

    fn garbage(&self) -> Vec<u64> {
        let scan = Scan::Garbage { after: SliceId(0), limit: 1000 };
        let records = persistently(|| self.engine().scan(&scan)).snapshot.records;
        let slice = |record: &Record| match record {
            Record::Garbage(garbage) => Some(garbage.slice.0),
            _ => None,
        };
        records.iter().filter_map(slice).collect()
    }

    fn remove_tree(&self, parent: Ino, name: &str) {
        let inode = self.at(parent, name);
        if !inode.kind.is_dir() {
            self.unlink(parent, name).unwrap();
            return;
        }
        for (entry, ..) in self.list(inode.ino) {
            self.remove_tree(inode.ino, &String::from_utf8_lossy(entry.as_bytes()));
        }
        self.rmdir(parent, name).unwrap();
    }

    fn inline(&self, ino: Ino, pos: u32, bytes: &[u8]) {
        let source = SliceSource::Inline(bytes.into());
        let slice = Slice { pos, len: bytes.len() as u32, source };
        let end = u64::from(pos) + bytes.len() as u64;
        self.run(&Write { ino, slices: vec![(ChunkIndex(0), slice)], end, mtime: Time::now() }).unwrap();
    }

    /// Creates a tree with everything that a tree can contain. Returns its root.
    fn sample(&self) -> Ino {
        let src = self.mkdir(ROOT, "src").unwrap();
        let sub = self.mkdir(src, "sub").unwrap();
        let deep = self.mkdir(sub, "deep").unwrap();
        self.mkdir(src, "empty").unwrap();
        let file = self.create(sub, "blocks").unwrap();
        self.write(file, 0, 100_000, 1).unwrap();
        self.write(file, 50_000, 100_000, 2).unwrap();
        let small = self.create(src, "inline").unwrap();
        self.inline(small, 0, b"small");
        self.inline(small, 2, b"er");
        let sparse = self.create(src, "sparse").unwrap();
        let far = ChunkIndex(3);
        let end = far.start() + 70;
        let slices = vec![(far, blocks(10, 60, 3))];
        self.run(&Write { ino: sparse, slices, end, mtime: Time::now() }).unwrap();
        self.truncate(sparse, end + 1000).unwrap();
        self.link(file, src, "link-of-blocks").unwrap();
        self.link(file, deep, "another").unwrap();
        self.link(small, ROOT, "outside").unwrap();
        self.symlink(src, "symlink", "sub/blocks").unwrap();
        self.make(src, "fifo", MakeKind::Fifo, 0o644).unwrap();
        self.make(src, "socket", MakeKind::Socket, 0o600).unwrap();
        self.make(src, "device", MakeKind::CharDevice(0x0103), 0o640).unwrap();
        self.set_acl(sub, AclType::Default, Some(&acl("u::rwx,u:1000:rwx,g::r-x,m::rwx,o::r-x"))).unwrap();
        self.set_acl(file, AclType::Access, Some(&acl("u::rw-,u:7:r--,g::r--,m::rw-,o::---"))).unwrap();
        let heir = self.create(sub, "heir").unwrap();
        self.set_xattr(heir, "user.a", "value", XattrMode::Set).unwrap();
        self.set_xattr(deep, "user.long", &"x".repeat(9000), XattrMode::Set).unwrap();
        self.chmod(heir, 0o4711).unwrap();
        self.run(&SetAttr { ino: heir, uid: Some(1000), gid: Some(100), ..SetAttr::default() }).unwrap();
        for n in 0..40 {
            self.create(deep, &format!("f{n}")).unwrap();
        }
        src
    }
}

/// Panics unless the trees have the same paths with the same content, and the same hard links among them.
fn assert_equal(source: &BTreeMap<String, Found>, copy: &BTreeMap<String, Found>) {
    let paths = |tree: &BTreeMap<String, Found>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(source), paths(copy));
    let first = |tree: &BTreeMap<String, Found>, ino: Ino| {
        tree.iter().find(|(_, (inode, ..))| inode.ino == ino).map(|(path, _)| path.clone())
    };
    for ((path, (from, rows, xattrs, target)), (to, copied, xattrs_copied, target_copied)) in
        source.iter().zip(copy.values())
    {
        assert_ne!(from.ino, to.ino);
        let names = source.values().filter(|(inode, ..)| inode.ino == from.ino).count() as u32;
        let nlink = if from.kind.is_dir() { from.nlink } else { names };
        let expected = Inode {
            ino: to.ino,
            nlink,
            ctime: to.ctime,
            parent: if path.is_empty() { to.parent } else { from.parent },
            access_rev: to.access_rev,
            quota: to.quota,
            ..*from
        };
        let found = Inode { parent: if path.is_empty() { to.parent } else { from.parent }, ..*to };
        assert_eq!(found, expected, "{path}");
        assert!(to.ctime >= from.ctime, "{path}");
        assert_eq!((rows, xattrs, target), (copied, xattrs_copied, target_copied), "{path}");
        assert_eq!(first(source, from.ino), first(copy, to.ino), "the links of {path}");
    }
}

fn a_copied_tree_equals_its_source(factory: Factory<'_>) {
    let c = fresh(factory);
    let src = c.sample();
    let before = c.tree(src);
    let parent = c.mkdir(ROOT, "to").unwrap();
    let root = c.clone_to(src, parent, "copy").unwrap();
    assert_eq!(c.at(parent, "copy").ino, root.ino);
    assert_equal(&before, &c.tree(root.ino));
    assert_eq!(c.tree(src), before, "the source is unchanged");
    assert_eq!(c.inode(root.ino).parent, parent);
    // The inodes in this client's cache agree with those that another client reads.
    for (path, (inode, ..)) in c.tree(root.ino) {
        assert_eq!(c.inode(inode.ino), inode, "{path}");
    }
    assert_eq!(
        c.at(c.at(root.ino, "sub").ino, "blocks"),
        c.stranger().at(c.at(root.ino, "sub").ino, "blocks")
    );
    check(&c);
    // Copy single files, a symbolic link, and the copy itself.
    for name in ["inline", "sparse", "symlink", "device", "link-of-blocks"] {
        let ino = c.at(src, name).ino;
        let copy = c.clone_to(ino, parent, name).unwrap();
        assert_equal(&c.tree(ino), &c.tree(copy.ino));
    }
    let again = c.clone_to(root.ino, ROOT, "again").unwrap();
    assert_equal(&before, &c.tree(again.ino));
    // The copy is independent of its source.
    c.write(c.at(root.ino, "inline").ino, 0, 10, 9).unwrap();
    c.remove_tree(root.ino, "sub");
    assert_eq!(c.tree(src), before);
    assert_eq!(c.orphans(), 0);
    check(&c);
}

fn blocks_are_kept(factory: Factory<'_>) {
    for source_first in [true, false] {
        let c = fresh(factory);
        let src = c.sample();
        c.clone_to(src, ROOT, "copy").unwrap();
        c.unlink(ROOT, "outside").unwrap();
        let [first, second] = if source_first { ["src", "copy"] } else { ["copy", "src"] };
        c.remove_tree(ROOT, first);
        assert_eq!(c.garbage(), [0; 0], "{first} is removed");
        c.remove_tree(ROOT, second);
        assert_eq!(c.garbage(), [1, 2, 3], "both are removed");
        check(&c);
    }
}

fn a_copy_is_not_made_over_an_existing_name(factory: Factory<'_>) {
    let c = fresh(factory);
    let src = c.sample();
    let file = c.at(src, "inline").ino;
    let before = c.tree(ROOT);
    for source in [src, file] {
        assert_eq!(c.clone_errno(source, ROOT, "outside"), Errno::EEXIST);
        assert_eq!(c.clone_errno(source, ROOT, "src"), Errno::EEXIST);
        assert_eq!(c.clone_errno(source, file, "x"), Errno::ENOTDIR);
        assert_eq!(c.clone_errno(source, Ino(1 << 40), "x"), Errno::ENOENT);
    }
    assert_eq!(c.clone_errno(Ino(1 << 40), ROOT, "x"), Errno::ENOENT);
    assert_eq!(c.tree(ROOT), before);
    // The name is taken while the copy is made.
    let taken = AtomicBool::new(false);
    let rival = client(c.engine());
    c.meta.set_exclusive(false);
    let stop = || {
        if !taken.swap(true, Ordering::Relaxed) {
            rival.create(ROOT, "late").unwrap();
        }
        false
    };
    match c.clone_until(src, ROOT, "late", &stop) {
        Err(CloneFailure {
            error: CloneError::Failed(Failure::Operation(Errno::EEXIST)),
            is_removed: true,
        }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((c.at(ROOT, "late").kind, c.orphans()), (FileType::Regular, 0));
    check(&c);
}

fn limit(max_inodes: u64) -> QuotaLimits {
    QuotaLimits { max_inodes: Some(max_inodes), ..QuotaLimits::default() }
}

fn quotas_are_exact(factory: Factory<'_>) {
    let c = fresh(factory);
    let src = c.sample();
    let inodes = c.tree(src).values().map(|(inode, ..)| inode.ino).collect::<std::collections::BTreeSet<_>>();
    let size = inodes.len() as u64;
    let [fits, small] = ["fits", "small"].map(|name| c.mkdir(ROOT, name).unwrap());
    c.meta.set_owner_quota(QuotaKey::User(1000), limit(1000), &mut |_| true).unwrap();
    let quota = c.meta.set_directory_quota(fits, limit(1 + size), &mut |_| true).unwrap();
    c.meta.set_directory_quota(small, limit(size), &mut |_| true).unwrap();
    let of_user = c.quota(QuotaKey::User(1000)).inodes;
    let root = c.clone_to(src, fits, "copy").unwrap();
    assert_eq!(c.quota(QuotaKey::Directory(quota)).inodes, 1 + size as i64);
    assert_eq!(c.quota(QuotaKey::User(1000)).inodes, of_user + 1);
    assert_eq!(c.inode(root.ino).quota, c.inode(fits).quota);
    check(&c);
    for exclusive in [true, false] {
        c.meta.set_exclusive(exclusive);
        assert_eq!(c.clone_errno(src, small, "copy"), Errno::EDQUOT);
        assert_eq!((c.list(small).len(), c.orphans()), (0, 0));
        check(&c);
    }
    // The directory of the copy gets a quota while the copy is made.
    let (begun, plain) = (AtomicBool::new(false), c.mkdir(ROOT, "plain").unwrap());
    let rival = client(c.engine());
    c.meta.set_exclusive(false);
    let stop = || {
        if !begun.swap(true, Ordering::Relaxed) {
            rival.meta.set_directory_quota(plain, limit(1000), &mut |_| true).unwrap();
        }
        false
    };
    match c.clone_until(src, plain, "copy", &stop) {
        Err(CloneFailure { error: CloneError::QuotaChanged, is_removed: true }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((c.list(plain).len(), c.orphans()), (0, 0));
    check(&c);
}

fn a_copy_beyond_the_capacity_fails(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { max_inodes: 70, ..volume() });
    let src = c.sample();
    let (before, used) = (c.tree(ROOT), c.tree(src).len());
    assert!((35..70).contains(&used), "{used}");
    // A client without exclusive use learns from conflicts that there is no room.
    for exclusive in [true, false] {
        c.meta.set_exclusive(exclusive);
        assert_eq!(c.clone_errno(src, ROOT, "copy"), Errno::ENOSPC);
        assert_eq!((c.tree(ROOT), c.orphans()), (before.clone(), 0));
        check(&c);
    }
}

fn an_interrupted_copy_is_removed(factory: Factory<'_>) {
    let c = fresh(factory);
    let src = c.sample();
    let before = c.tree(ROOT);
    for count in [0, 1, 3, 5, 8] {
        let calls = AtomicU64::new(0);
        let stopped = c.clone_until(src, ROOT, "copy", &|| calls.fetch_add(1, Ordering::Relaxed) >= count);
        match stopped {
            Err(CloneFailure { error: CloneError::Interrupted, is_removed: true }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(c.orphans(), 0);
        assert_eq!(c.tree(ROOT), before);
        check(&c);
    }
    assert_eq!(c.garbage(), [0; 0]);
}

/// Begins a copy of `src` and copies everything below it, but does not complete the copy.
fn begin(c: &Client, src: Ino) -> (Ino, types::SessionId) {
    let root = c.next_ino();
    let source = CloneSource::new(&c.inode(src));
    let op = BeginClone { source, ino: root, parent: ROOT, name: n("copy"), max_chunks: CLONED_CHUNKS };
    let (_, session) = c.run(&op).unwrap();
    let mut dirs = vec![(src, root)];
    while let Some((from, parent)) = dirs.pop() {
        for (name, dirent, ..) in c.list(from) {
            let inode = c.inode(dirent.ino);
            let to = c.next_ino();
            let entry =
                CloneEntry { source: CloneSource::new(&inode), parent, name, ino: to, is_linked: false };
            let op = CloneEntries { session, root, entries: &[entry], max_chunks: CLONED_CHUNKS };
            assert!(matches!(c.run(&op).unwrap()[..], [ClonedEntry::Copied(_)]));
            if inode.kind.is_dir() {
                dirs.push((inode.ino, to));
            }
        }
    }
    (root, session)
}

fn an_unfinished_copy_is_removed(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let src = c.sample();
    let before = c.tree(ROOT);
    let owner = client(c.engine());
    let session = Session::new(owner.meta.session(), Time::from_nanos(1));
    owner.meta.begin_session(session, Duration::from_secs(3600)).unwrap();
    let (root, session) = begin(&owner, src);
    assert_eq!((c.inode(root).nlink, c.orphans()), (0, 1));
    assert_eq!(c.tree(ROOT), before, "nobody sees the copy");
    assert!(c.meta.remove_session(session, Time::from_nanos(1)).unwrap());
    // The client whose session was removed cannot complete the copy.
    let end = EndClone { session, root, parent: ROOT, name: n("copy"), subdirectories: 2 };
    assert!(matches!(owner.meta.run(&end, &super::fixture::KERNEL), Err(Failure::Fenced(_))));
    // If `stop` returns true at once, nothing of the copy is removed.
    let reap = [Reap { session, ino: root }];
    assert_eq!(c.meta.reap(&reap, &|| true), Err(Failure::Operation(Errno::ENOTEMPTY)));
    assert_eq!(c.orphans(), 1);
    c.meta.reap(&reap, &|| false).unwrap();
    assert_eq!(c.orphans(), 0);
    assert_eq!((c.tree(ROOT), c.garbage()), (before, vec![]));
    check(&c);
}

fn another_session_does_not_end_a_copy(factory: Factory<'_>) {
    let c = fresh(factory);
    let src = c.sample();
    let (root, session) = begin(&c, src);
    let rival = client(c.engine());
    let end = |session, parent| EndClone { session, root, parent, name: n("copy"), subdirectories: 2 };
    assert_eq!(rival.run(&end(session, ROOT)).unwrap_err(), Errno::ESTALE);
    let op = CloneEntries { session, root, entries: &[], max_chunks: CLONED_CHUNKS };
    assert_eq!(rival.run(&op).unwrap_err(), Errno::ESTALE);
    assert_eq!(c.run(&end(session, Ino(1 << 40))).unwrap_err(), Errno::ENOENT);
    assert_eq!(c.run(&end(session, c.at(src, "inline").ino)).unwrap_err(), Errno::ENOTDIR);
    c.run(&end(session, ROOT)).unwrap();
    check(&c);
    // The copy has its name, so it does not get another one, and is not removed with the session.
    let other = EndClone { name: n("other"), ..end(session, ROOT) };
    assert_eq!(c.run(&other).unwrap_err(), Errno::ESTALE);
    c.meta.reap(&[Reap { session, ino: root }], &|| false).unwrap();
    assert_eq!(c.at(ROOT, "copy").ino, root);
    check(&c);
}

/// Each write adds a row to each of two chunks, so a copy with only one of the two rows is not of one moment.
/// The file has few rows, because a server may limit the size of a transaction.
fn a_copy_of_a_changing_file_is_of_one_moment(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let dir = c.mkdir(ROOT, "d").unwrap();
    let file = c.create(dir, "f").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let c = c.stranger();
            for id in 1_u64..400 {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                if id % 12 == 0 {
                    c.truncate(file, 0).unwrap();
                }
                let pos = id as u32 * 10;
                let slices = [0, 1].map(|chunk| (ChunkIndex(chunk), blocks(pos, 10, 2 * id + chunk))).into();
                let end = CHUNK_BYTES + u64::from(pos) + 10;
                c.run(&Write { ino: file, slices, end, mtime: Time::from_nanos(id as i64) }).unwrap();
            }
        });
        for copy in 0..8 {
            let root = c.clone_to(dir, ROOT, &format!("copy{copy}")).unwrap();
            let tree = c.tree(root.ino);
            let (inode, rows, ..) = &tree["/f"];
            match &rows[..] {
                [] => assert_eq!(inode.size, 0),
                [(_, first), (_, second)] => {
                    let places = |rows: &[Slice]| rows.iter().map(|row| row.pos).collect::<Vec<_>>();
                    assert_eq!(places(first), places(second));
                    let last = first.last().unwrap().pos;
                    assert_eq!(inode.size, CHUNK_BYTES + u64::from(last) + 10);
                    assert_eq!(inode.mtime, Time::from_nanos(i64::from(last) / 10));
                }
                _ => panic!("{rows:?}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    check(&c);
}

/// A conflict returns the rows of the file, but not its inode. If the client then read the inode alone, the
/// inode and the rows would be of different moments.
fn a_copy_after_a_conflict_is_of_one_moment(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = c.mkdir(ROOT, "d").unwrap();
    let file = c.create(dir, "f").unwrap();
    let listed = CloneSource::new(&c.inode(file));
    c.write(file, 0, 10, 1).unwrap();
    let faulty = Arc::new(Faulty::new(Arc::clone(c.engine()), 1, FaultRates::default()));
    let cloner = client(&(Arc::clone(&faulty) as Arc<dyn Engine>));
    let source = CloneSource::new(&c.inode(dir));
    let (_, session) = cloner
        .run(&BeginClone {
            source,
            ino: Ino(1 << 40),
            parent: ROOT,
            name: n("copy"),
            max_chunks: CLONED_CHUNKS,
        })
        .unwrap();
    let rival = client(c.engine());
    let mut turns = 0;
    faulty.set_rival(move |_| {
        turns += 1;
        match turns {
            1 => rival.truncate(file, 0).unwrap(),
            2 => rival.write(file, 0, 10, 2).unwrap(),
            _ => {}
        }
    });
    // The requests read the inode, read the inode with its rows, commit with a conflict, and read the inode
    // again.
    faulty.script([Fault::None, Fault::None, Fault::Rival, Fault::RivalOfRead]);
    faulty.arm(true);
    let root = Ino(1 << 40);
    let entry =
        CloneEntry { source: listed, parent: root, name: n("f"), ino: Ino(2 << 40), is_linked: false };
    cloner.run(&CloneEntries { session, root, entries: &[entry], max_chunks: CLONED_CHUNKS }).unwrap();
    faulty.arm(false);
    assert_eq!(faulty.injected(), 2);
    cloner.run(&EndClone { session, root, parent: ROOT, name: n("copy"), subdirectories: 0 }).unwrap();
    let [from, to] = [dir, root].map(|dir| {
        let (inode, rows, ..) = &c.tree(dir)["/f"];
        (inode.size, rows.clone())
    });
    assert_eq!(from, to);
    check(&c);
}

fn changes_after_the_listing(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let dir = c.mkdir(ROOT, "d").unwrap();
    let [grows, gone, marked] = ["grows", "gone", "marked"].map(|name| c.create(dir, name).unwrap());
    c.write(grows, 0, 10, 1).unwrap();
    let root = c.next_ino();
    let source = CloneSource::new(&c.inode(dir));
    let (_, session) = c
        .run(&BeginClone { source, ino: root, parent: ROOT, name: n("copy"), max_chunks: CLONED_CHUNKS })
        .unwrap();
    let entry = |ino, name: &str| CloneEntry {
        source: CloneSource::new(&c.inode(ino)),
        parent: root,
        name: n(name),
        ino: c.next_ino(),
        is_linked: false,
    };
    let entries = [entry(grows, "grows"), entry(gone, "gone"), entry(marked, "marked")];
    c.unlink(dir, "gone").unwrap();
    let slices = vec![(ChunkIndex(1), blocks(5, 10, 2))];
    c.run(&Write { ino: grows, slices, end: CHUNK_BYTES + 15, mtime: Time::now() }).unwrap();
    c.set_xattr(grows, "user.late", "x", XattrMode::Set).unwrap();
    // This client created the file, so its cache still says that the file has no xattrs.
    let rival = client(c.engine());
    rival.set_xattr(marked, "user.late", "y", XattrMode::Set).unwrap();
    let cloned =
        c.run(&CloneEntries { session, root, entries: &entries, max_chunks: CLONED_CHUNKS }).unwrap();
    assert!(
        matches!(cloned[..], [ClonedEntry::Copied(_), ClonedEntry::Gone, ClonedEntry::Copied(_)]),
        "{cloned:?}"
    );
    c.run(&EndClone { session, root, parent: ROOT, name: n("copy"), subdirectories: 0 }).unwrap();
    // Leave out the directory itself: its times changed after it was copied.
    let [from, to] = [dir, root].map(|dir| c.tree(dir).into_iter().skip(1).collect());
    assert_equal(&from, &to);
    check(&c);
}

fn a_file_of_many_chunks_is_copied(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "f").unwrap();
    c.run(&SetAttr { ino: file, mode: Some(Mode::new(0o600)), ..SetAttr::default() }).unwrap();
    for (id, chunk) in [(1, 0), (2, CLONED_CHUNKS - 1), (3, CLONED_CHUNKS), (4, 5 * CLONED_CHUNKS)] {
        let chunk = ChunkIndex(chunk);
        let slices = vec![(chunk, blocks(7, 10, id))];
        c.run(&Write { ino: file, slices, end: chunk.start() + 17, mtime: Time::now() }).unwrap();
    }
    c.truncate(file, 9 * CLONED_CHUNKS * CHUNK_BYTES + 3).unwrap();
    let copy = c.clone_to(file, ROOT, "copy").unwrap();
    let tree = c.tree(copy.ino);
    assert_equal(&c.tree(file), &tree);
    assert!(tree[""].1.iter().any(|(chunk, _)| chunk.0 == 5 * CLONED_CHUNKS));
    check(&c);
    c.unlink(ROOT, "f").unwrap();
    assert_eq!(c.garbage(), [0; 0]);
    c.unlink(ROOT, "copy").unwrap();
    assert_eq!(c.garbage(), [1, 2, 3, 4]);
    check(&c);
}

fn a_tree_is_copied_into_itself_once(factory: Factory<'_>) {
    let c = fresh(factory);
    let src = c.sample();
    let before = c.tree(src);
    let sub = c.at(src, "sub").ino;
    let copy = c.clone_to(src, sub, "copy").unwrap();
    let after: BTreeMap<String, Found> = c.tree(copy.ino);
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    check(&c);
}
