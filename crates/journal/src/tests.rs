use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use meta::{Access, Effect, Guard, Inode, QuotaTag};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, QuotaId, Slice, SliceId, SliceSource, Term, XattrName,
};

use super::*;

const VOLUME: &str = "0b6a1a4e-6d1c-4b53-9d5a-0a4f2b1f4f10";

fn header() -> Header {
    Header {
        format: FORMAT,
        boot_id: "b".to_owned(),
        volume: VOLUME.to_owned(),
        loaded: String::new(),
        session: SessionId(7),
        since: Time::from_nanos(5),
    }
}

fn txn(count: u32) -> Txn {
    let (session, term) = (SessionId(7), Term(3));
    let guards = vec![Guard::Term { session, term }];
    Txn {
        op_id: OpId::new(session, term, count),
        guards,
        effects: vec![Effect::SetSize { ino: Ino(9), size: 1 }],
    }
}

/// Each guard and effect that can be queued, with unusual values.
fn whole() -> Txn {
    let (ino, parent) = (Ino(u64::MAX), Ino(2));
    let name = Name::new(&[0xff, b'a', b'\n']).unwrap();
    let xattr = XattrName::new(b"user.\xfe").unwrap();
    let (session, chunk) = (SessionId(u64::MAX), ChunkIndex(1 << 40));
    let inode = Inode {
        uid: u32::MAX,
        rdev: 7,
        access_acl: AclId(u128::MAX - 1),
        quota: QuotaTag::new(QuotaId(5), true),
        atime: Time::MIN,
        ..Inode::new(ino, FileType::CharDevice, Mode::new(0o7777), Time::from_nanos(-3))
    };
    let rows: Arc<[Slice]> = [
        Slice { pos: 1, len: 2, source: SliceSource::Hole },
        Slice { pos: u32::MAX, len: 3, source: SliceSource::Inline((0..=255).collect()) },
        Slice { pos: 0, len: 0, source: SliceSource::Blocks { id: SliceId(4), offset: 5, size: 6 } },
    ]
    .into();
    let guards = vec![
        Guard::DirentIs { parent, name: name.clone(), ino },
        Guard::DirentAbsent { parent, name: name.clone() },
        Guard::Access { ino, rev: 1 },
        Guard::InodeAbsent { ino },
        Guard::Links { ino, nlink: 2 },
        Guard::ParentIs { ino, parent },
        Guard::Empty { ino },
        Guard::Xattr { ino, name: xattr.clone(), blocks: 3 },
        Guard::XattrBlocks { ino, least: 4, most: 5 },
        Guard::Size { ino, size: u64::MAX },
        Guard::Rows { ino, chunk, rows: rows.clone() },
        Guard::Room { max_inodes: 1, max_blocks: 2 },
        Guard::Session { session, heartbeat: None },
        Guard::Term { session, term: Term(u32::MAX) },
        Guard::Acl { id: AclId(9) },
    ];
    let mut effects = vec![
        Effect::PutInode(inode),
        Effect::DropInode { ino },
        Effect::PutDirent { parent, name: name.clone(), ino, kind: FileType::Fifo },
        Effect::DropDirent { parent, name },
        Effect::SetAccess { ino, access: Access::from(&inode) },
        Effect::SetParent { ino, parent },
        Effect::AddLinks { ino, delta: -1 },
        Effect::SetTimes { ino, atime: None, mtime: Some(Time::MIN), ctime: None },
        Effect::SetSize { ino, size: 3 },
        Effect::Extend { ino, size: 4 },
        Effect::DropSlices { ino, from: chunk, to: chunk },
        Effect::ReplaceRows { ino, chunk, count: 9, rows: rows.clone() },
        Effect::Share { slice: SliceId(1), rows: 2 },
        Effect::PutXattr { ino, name: xattr.clone(), value: vec![0; 70_000].into() },
        Effect::DropXattr { ino, name: xattr },
        Effect::AddXattrBlocks { ino, delta: -9 },
        Effect::PutAcl { id: AclId(3), text: "u::rwx".into() },
        Effect::PutSymlink { ino, target: [0xff, 0].as_slice().into() },
        Effect::PutOrphan { session, ino },
        Effect::DropOrphan { session, ino },
    ];
    effects.extend(rows.iter().cloned().map(|slice| Effect::AppendSlice { ino, chunk, slice }));
    Txn { op_id: OpId(u128::MAX), guards, effects }
}

fn begin() -> (Memory, Journal) {
    let memory = Memory::default();
    let journal = Journal::begin(memory.create(VOLUME, SessionId(7)).unwrap(), &header()).unwrap();
    (memory, journal)
}

fn bytes(memory: &Memory) -> Vec<u8> {
    memory.all().pop().unwrap().1
}

fn queue(found: &Unfinished) -> Vec<Txn> {
    found.queue.iter().map(|(txn, _)| txn.clone()).collect()
}

#[test]
fn a_journal_says_what_is_queued_and_how_it_was_sent() {
    let (memory, mut journal) = begin();
    let txns = [txn(1), whole(), txn(3), txn(4)];
    for txn in &txns {
        assert!(journal.queued(txn, txn.op_id == txns[3].op_id));
    }
    journal.sent(&[2, 1]);
    let found = read(&bytes(&memory)).unwrap();
    assert_eq!((&found.header, queue(&found), &found.sent[..]), (&header(), txns.to_vec(), &[2, 1][..]));
    assert_eq!((found.changes(), found.len), (3, bytes(&memory).len() as u64));
    let left = |from: usize| txns[from..].iter().map(|txn| (txn, false));
    journal.committed(2, left(2), &[1]);
    let found = read(&bytes(&memory)).unwrap();
    assert_eq!((queue(&found), &found.sent[..]), (txns[2..].to_vec(), &[1][..]));
    journal.committed(1, left(3), &[]);
    journal.committed(1, left(4), &[]);
    let found = read(&bytes(&memory)).unwrap();
    assert_eq!((queue(&found), found.sent.len()), (vec![], 0));
    journal.remove();
    assert_eq!(memory.all(), []);
}

/// A change of the stored form needs another [`FORMAT`].
#[test]
fn the_stored_form_does_not_change() {
    let (memory, mut journal) = begin();
    assert!(journal.queued(&whole(), false));
    journal.sent(&[1]);
    let bytes = bytes(&memory);
    assert_eq!((FORMAT, bytes.len(), crc32c::crc32c(&bytes)), (3, 71_517, 1_718_874_393));
}

#[test]
fn an_entry_that_is_cut_off_or_damaged_ends_a_journal() {
    let (memory, mut journal) = begin();
    let first = bytes(&memory).len();
    assert!(journal.queued(&txn(1), false) && journal.queued(&txn(2), false));
    let whole = bytes(&memory);
    let second = first + (whole.len() - first) / 2;
    for len in 0..whole.len() {
        let found = read(&whole[..len]);
        match len {
            _ if len < first => assert_eq!(found, Err(Unusable::Empty), "{len}"),
            _ => {
                let found = found.unwrap();
                assert_eq!(found.queue.len(), usize::from(len >= second));
                assert_eq!(found.len as usize, if len >= second { second } else { first });
            }
        }
    }
    let flipped = |at: usize| {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        read(&damaged)
    };
    let found = flipped(second - 1).unwrap();
    assert_eq!((found.queue.len(), found.is_damaged), (0, true));
    assert!(!read(&whole[..second - 1]).unwrap().is_damaged, "it is cut off");
    assert_eq!(flipped(first - 1), Err(Unusable::Damaged));
    assert_eq!(flipped(FRAME_BYTES + 1), Err(Unusable::Damaged), "this is no other format");
    assert_eq!(read(&[0; 4096]), Err(Unusable::Damaged));
    let before = Header { format: FORMAT - 1, ..header() };
    let mut frame = Vec::new();
    assert!(frame_of(&mut frame, &Entry::Begin(Cow::Borrowed(&before))));
    assert_eq!(read(&frame).map(|found| found.header), Ok(before));
    let other = Header { format: FORMAT + 1, ..header() };
    let mut frame = Vec::new();
    assert!(frame_of(&mut frame, &Entry::Begin(Cow::Owned(other))));
    assert_eq!(read(&frame), Err(Unusable::OtherFormat(FORMAT + 1)));
}

/// Otherwise a transaction could be replayed without an earlier one that is missing in the journal.
#[test]
fn nothing_is_added_behind_a_gap_until_the_queue_is_empty() {
    let (memory, mut journal) = begin();
    assert!(journal.queued(&txn(1), false));
    journal.skipped();
    assert!(!journal.queued(&txn(3), false));
    assert_eq!(queue(&read(&bytes(&memory)).unwrap()), [txn(1)]);
    let left = [txn(3)];
    journal.committed(2, left.iter().map(|txn| (txn, false)), &[]);
    assert!(!journal.queued(&txn(4), false));
    journal.committed(2, [].into_iter(), &[]);
    assert!(journal.queued(&txn(5), false));
    assert_eq!(queue(&read(&bytes(&memory)).unwrap()), [txn(5)]);
}

/// On a full disk no transaction is added, but the journal keeps its transactions, and notes about them can
/// still be written.
#[test]
fn answered_changes_stay_in_the_journal_on_a_full_disk() {
    let (memory, mut journal) = begin();
    assert!(journal.queued(&txn(1), false) && journal.queued(&txn(2), false));
    memory.set_full(true);
    assert!(!journal.queued(&txn(3), false));
    journal.sent(&[1]);
    journal.committed(1, [(&txn(2), false)].into_iter(), &[]);
    let found = read(&bytes(&memory)).unwrap();
    assert_eq!((queue(&found), found.sent.len(), journal.is_whole()), (vec![txn(2)], 0, true));
    memory.set_full(false);
    assert!(journal.queued(&txn(4), false));
    assert_eq!(queue(&read(&bytes(&memory)).unwrap()), [txn(2), txn(4)]);
}

/// If it is not known how transactions were sent, they must not be sent again.
#[test]
fn a_journal_that_cannot_be_kept_up_to_date_is_emptied() {
    let (memory, mut journal) = begin();
    assert!(journal.queued(&txn(1), false) && journal.is_whole());
    memory.set_broken(true);
    journal.sent(&[1]);
    assert_eq!((read(&bytes(&memory)).unwrap().queue.len(), journal.is_whole()), (0, false));
    memory.set_broken(false);
    assert!(!journal.queued(&txn(2), false));
    journal.committed(1, [].into_iter(), &[]);
    assert!(journal.is_whole() && journal.queued(&txn(3), false));
}

/// Notes can still be written after the disk had no room for another transaction.
#[test]
fn a_file_reserves_room_for_notes() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::new(place.path().to_owned());
    let mut storage = directory.create(VOLUME, SessionId(7)).unwrap();
    storage.append(&[1; 100]).unwrap();
    storage.reserve(RESERVED_BYTES).unwrap();
    let found = fs::metadata(storage.place()).unwrap();
    assert_eq!(found.len(), 100);
    assert!(found.blocks() * 512 >= RESERVED_BYTES, "{found:?}");
    storage.append(&[2; 100]).unwrap();
    storage.truncate(150).unwrap();
    storage.reserve(1 << 60).unwrap_err();
    storage.append(&[3; 10]).unwrap();
    drop(storage);
    let found = directory.abandoned(VOLUME).unwrap().remove(0).unwrap();
    assert_eq!((found.session, found.bytes), (SessionId(7), [&[1; 100][..], &[2; 50], &[3; 10]].concat()));
}

/// On a full disk, a replay has no other room.
#[test]
fn a_replay_keeps_the_room_that_the_killed_process_has_reserved() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::new(place.path().to_owned());
    let mut journal = Journal::begin(directory.create(VOLUME, SessionId(7)).unwrap(), &header()).unwrap();
    assert!(journal.queued(&txn(1), false));
    let path = journal.storage.place();
    drop(journal);
    let blocks = || fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    assert!(before * 512 >= RESERVED_BYTES);
    let found = directory.abandoned(VOLUME).unwrap().remove(0).unwrap();
    let mut journal = Journal::resume(found.storage, &read(&found.bytes).unwrap()).unwrap();
    assert_eq!(blocks(), before);
    journal.sent(&[1]);
    assert_eq!((blocks(), journal.is_whole()), (before, true));
    journal.rewrite([].into_iter(), &[]);
    assert!(blocks() * 512 >= RESERVED_BYTES);
}

#[test]
fn a_journal_says_what_was_committed_last() {
    let (memory, mut journal) = begin();
    let last = || read(&bytes(&memory)).unwrap().last;
    let id = |count| txn(count).op_id;
    let left = txn(5);
    for (count, is_optional) in [(1, true), (2, false), (3, false), (4, true), (5, false)] {
        assert!(journal.queued(&txn(count), is_optional));
    }
    journal.sent(&[1, 2, 1, 1]);
    journal.committed(1, [2, 3, 4, 5].map(txn).each_ref().map(|txn| (txn, false)).into_iter(), &[2, 1, 1]);
    assert_eq!(last(), [], "its guard may have failed");
    journal.committed(3, [(&left, false)].into_iter(), &[1]);
    assert_eq!(last(), [id(2), id(4)], "the second one may not have been needed");
    journal.rewrite([(&left, false)].into_iter(), &[1]);
    assert_eq!(last(), [id(2), id(4)]);
    // The journal is cut back to its header.
    journal.len = RESTART_BYTES;
    journal.committed(1, [].into_iter(), &[]);
    assert_eq!(last(), [id(5)]);
    // The database may have a later transaction, which the journal does not know.
    assert!(journal.queued(&txn(6), false) && journal.queued(&txn(7), false));
    journal.skipped();
    journal.committed(1, [(&txn(7), false)].into_iter(), &[]);
    assert_eq!(last(), []);
    journal.sent(&[1, 1]);
    journal.committed(2, [].into_iter(), &[]);
    assert_eq!(last(), []);
}

#[test]
fn a_journal_does_not_grow_for_ever() {
    let (memory, mut journal) = begin();
    let one = whole();
    for _ in 0..3 * REWRITE_BYTES as usize / 70_000 {
        assert!(journal.queued(&one, false) && journal.queued(&one, false));
        journal.sent(&[1, 1]);
        journal.committed(1, [(&one, false)].into_iter(), &[1]);
        // Another thread could do this at the same time.
        journal.committed(1, [].into_iter(), &[]);
        assert!(journal.len < RESTART_BYTES + 300_000);
    }
    assert!(journal.queued(&one, false));
    for _ in 0..2 * REWRITE_BYTES as usize / 70_000 {
        assert!(journal.queued(&one, false));
        journal.sent(&[1, 1]);
        journal.committed(1, [(&one, false)].into_iter(), &[1]);
    }
    assert!(journal.len < REWRITE_BYTES + 300_000);
    let found = read(&bytes(&memory)).unwrap();
    assert_eq!((queue(&found), &found.sent[..]), (vec![one], &[1][..]));
}

/// Many new files inherit the same ACL, whose text may have several kilobytes.
#[test]
fn a_journal_has_the_text_of_an_acl_once() {
    let (memory, mut journal) = begin();
    let long = |count: u32| {
        let text = "u::rwx,".repeat(1000).into();
        Txn { effects: vec![Effect::PutAcl { id: AclId(5), text }], ..txn(count) }
    };
    assert!((0..10).all(|count| journal.queued(&long(count), false)));
    assert!(journal.len < 8000);
    journal.committed(9, [(&long(9), false)].into_iter(), &[]);
    let found = read(&bytes(&memory)).unwrap();
    assert_eq!(queue(&found), [long(9)]);
    // A rewritten journal has the texts of the transactions that are left.
    journal.rewrite([(&long(9), false)].into_iter(), &[]);
    assert!(journal.queued(&long(10), false));
    assert_eq!(queue(&read(&bytes(&memory)).unwrap()), [long(9), long(10)]);
    // An emptied journal has no texts.
    journal.has_gap = true;
    journal.committed(2, [].into_iter(), &[]);
    assert!(journal.queued(&long(2), false));
    assert_eq!(queue(&read(&bytes(&memory)).unwrap()), [long(2)]);
}

/// A database that was loaded from a dump has the UUID of its source, and may assign the same session number.
#[test]
fn a_journal_of_another_database_is_neither_overwritten_nor_removed() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::new(place.path().to_owned());
    let mut kept = directory.create(VOLUME, SessionId(7)).unwrap();
    kept.append(b"answered").unwrap();
    let bytes = || fs::read(place.path().join(format!("{VOLUME}-7.journal"))).unwrap();
    let create = || directory.create(VOLUME, SessionId(7)).map(drop).map_err(|error| error.kind());
    assert_eq!(create(), Err(io::ErrorKind::AlreadyExists), "its process is alive");
    kept.replace(b"rewritten").unwrap();
    drop(kept);
    assert_eq!(create(), Err(io::ErrorKind::AlreadyExists), "its process has ended");
    assert_eq!(bytes(), b"rewritten");
    // A process that was killed while it rewrote its journal left a draft.
    fs::write(place.path().join(format!("{VOLUME}-7.new")), b"a longer draft").unwrap();
    let mut found = directory.abandoned(VOLUME).unwrap().remove(0).unwrap();
    found.storage.replace(b"short").unwrap();
    assert_eq!(bytes(), b"short");
    found.storage.remove().unwrap();
    let mut next = directory.create(VOLUME, SessionId(7)).unwrap();
    next.append(b"next").unwrap();
    found.storage.remove().unwrap();
    assert_eq!(bytes(), b"next", "a journal removes only its own file");
}

#[test]
fn files_are_abandoned_when_their_process_drops_them() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::new(place.path().join("a/journals"));
    assert!(directory.abandoned(VOLUME).unwrap().is_empty());
    let mut storage = directory.create(VOLUME, SessionId(7)).unwrap();
    let path = place.path().join(format!("a/journals/{VOLUME}-7.journal"));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    storage.append(b"abc").unwrap();
    storage.append(b"def").unwrap();
    storage.truncate(4).unwrap();
    assert!(directory.abandoned(VOLUME).unwrap().is_empty(), "it is locked");
    drop(storage);
    assert!(directory.abandoned("0b6a1a4e-6d1c-4b53-9d5a-0a4f2b1f4f11").unwrap().is_empty());
    let mut found = directory.abandoned(VOLUME).unwrap().remove(0).unwrap();
    assert_eq!(found.bytes, b"abcd");
    assert!(directory.abandoned(VOLUME).unwrap().is_empty(), "only one gets it");
    found.storage.append(b"e").unwrap();
    found.storage.replace(b"xyz").unwrap();
    found.storage.append(b"!").unwrap();
    assert!(directory.abandoned(VOLUME).unwrap().is_empty(), "the new file is locked too");
    drop(found);
    let mut found = directory.abandoned(VOLUME).unwrap().remove(0).unwrap();
    assert_eq!(found.bytes, b"xyz!");
    found.storage.remove().unwrap();
    found.storage.remove().unwrap();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    assert!(directory.create("../../etc", SessionId(7)).is_err());
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(directory.create(VOLUME, SessionId(7)).is_err(), "others could write journals");
    assert!(directory.abandoned(VOLUME).is_err());
}

#[test]
fn a_journal_that_is_set_aside_replaces_no_other_and_is_not_replayed() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::new(place.path().to_owned());
    for (bytes, suffix) in [(b"first", ".damaged"), (b"other", ".damaged.2")] {
        let mut storage = directory.create(VOLUME, SessionId(7)).unwrap();
        storage.append(bytes).unwrap();
        drop(storage);
        let mut found = directory.abandoned(VOLUME).unwrap().remove(0).unwrap();
        let wanted = found.storage.place() + suffix;
        assert_eq!(found.storage.set_aside("damaged").unwrap(), wanted);
        assert_eq!(fs::read(wanted).unwrap(), bytes);
        drop(found);
        assert!(directory.abandoned(VOLUME).unwrap().is_empty());
    }
}

/// Runs `work` on a thread with the rights of another user.
fn as_user(uid: u32, work: impl FnOnce() + Send) {
    let uid = rustix::process::Uid::from_raw(uid);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work();
        });
    });
}

/// The removal is tried rarely, because each attempt is logged.
#[test]
fn a_journal_that_cannot_be_removed_is_emptied_and_then_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(place.path(), Some(12_345), None).unwrap();
    let directory = Directory::new(place.path().to_owned());
    as_user(12_345, || {
        let mut storage = directory.create(VOLUME, SessionId(7)).unwrap();
        storage.append(b"replayed").unwrap();
        let path = storage.place();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o500)).unwrap();
        remove(storage);
        assert_eq!(fs::metadata(path).unwrap().len(), 0);
        assert!(directory.abandoned(VOLUME).unwrap().is_empty());
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
        // Another process tries it too.
        let other = Directory::new(place.path().to_owned());
        remove(other.abandoned(VOLUME).unwrap().remove(0).unwrap().storage);
        assert!(other.abandoned(VOLUME).unwrap().is_empty());
    });
}

#[test]
fn an_error_says_who_can_read_the_journals_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (database, path) = (place.path().join("v.db"), place.path().join("v.db.journals"));
    fs::write(&database, []).unwrap();
    let chown = |path: &std::path::Path| std::os::unix::fs::chown(path, Some(12_345), None).unwrap();
    [place.path(), database.as_path()].into_iter().for_each(chown);
    let directory = Directory::of_database(&database);
    drop(directory.create(VOLUME, SessionId(7)).unwrap());
    let refused = |named: &str| {
        as_user(12_345, || {
            let found = directory.abandoned(VOLUME).and_then(|mut found| found.remove(0));
            let error = found.unwrap_err().to_string();
            assert!(error.contains(named) && error.ends_with("mount the volume once as root"), "{error}");
        });
    };
    refused("v.db.journals: Permission denied");
    chown(&path);
    refused("-7.journal: Permission denied");
    assert!(directory.abandoned(VOLUME).unwrap().remove(0).is_ok(), "root replays it");
}

#[test]
fn journals_of_a_database_are_beside_it_and_leave_no_directory() {
    let place = tempfile::tempdir().unwrap();
    let (database, path) = (place.path().join("v.db"), place.path().join("v.db.journals"));
    fs::write(&database, []).unwrap();
    let directory = Directory::of_database(&database);
    assert!(directory.abandoned(VOLUME).unwrap().is_empty());
    let [first, mut second] = [7, 8].map(|id| directory.create(VOLUME, SessionId(id)).unwrap());
    drop(first);
    second.remove().unwrap();
    assert!(path.is_dir(), "it has the other journal");
    directory.abandoned(VOLUME).unwrap().remove(0).unwrap().storage.remove().unwrap();
    assert!(!path.exists());
    drop(directory.create(VOLUME, SessionId(7)).unwrap());
    if rustix::process::geteuid().is_root() {
        // The directory may belong to the owner of the database, but to no other user.
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        assert!(directory.abandoned(VOLUME).is_err());
        std::os::unix::fs::chown(&database, Some(12_345), None).unwrap();
        assert_eq!(directory.abandoned(VOLUME).unwrap().len(), 1);
    }
    directory.remove().unwrap();
    directory.remove().unwrap();
    assert!(!path.exists());
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    fs::create_dir(place.path().join("elsewhere")).unwrap();
    assert!(directory.create(VOLUME, SessionId(7)).is_err(), "a link may lead to the files of others");
}
