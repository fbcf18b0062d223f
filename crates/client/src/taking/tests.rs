//! Tests of directories that are taken: what is answered from memory, what others see, and what happens if the
//! take does not succeed.

use std::sync::Arc;
use std::time::Duration;

use journal::Memory;
use meta::{Change, Changes, DIR_BYTES, Engine as _};
use ops::{GetInode, GetXattrs, Link, MakeKind, Rename, RenameFlags, Rmdir, SetXattr, Unlink, XattrMode};
use suite::{Fault, FaultRates, Faulty};
use types::{Errno, XattrName};

use super::*;
use crate::holding::tests::{
    Counted, beside, client, client_with, look, make, name, nothing_to_store, set_mode, stored, volume,
};

const DIR: Ino = Ino(10);

/// Takes a directory after each creation.
const EAGER: TakePolicy = TakePolicy { creations: 1, within: Duration::from_secs(60), pauses: 10 };

/// A volume with a directory that another client has created, with the file `old` and the directory `below`,
/// and that client.
fn with_directory() -> (Counted, Arc<Meta>) {
    let engine = volume();
    let other = client(&engine, false);
    make(&other, Ino::ROOT, "d", DIR.0, MakeKind::Directory).unwrap();
    make(&other, DIR, "old", 11, MakeKind::Regular).unwrap();
    make(&other, DIR, "below", 12, MakeKind::Directory).unwrap();
    make(&other, Ino(12), "deep", 13, MakeKind::Regular).unwrap();
    let (name, value) = (XattrName::new(b"user.a").unwrap(), Arc::from(&b"value"[..]));
    other.run(&SetXattr { ino: DIR, name, value, mode: XattrMode::Set }, &BY_KERNEL).unwrap();
    read_always(&other);
    (engine, other)
}

/// Makes a client that is not notified of changes read each record again.
fn read_always(meta: &Meta) {
    meta.set_outdated();
    meta.set_lifetime(Duration::ZERO);
}

/// A client that takes a directory after each creation there.
fn taker(engine: &Counted) -> Arc<Meta> {
    let meta = client(engine, true);
    meta.set_take_policy(EAGER);
    meta
}

/// Makes the client take the directory.
fn take(meta: &Meta, ino: u64) {
    make(meta, DIR, &format!("first{ino}"), ino, MakeKind::Regular).unwrap();
    meta.take_wanted();
}

fn apply(meta: &Meta, changes: &mut dyn Changes) -> Vec<Change> {
    let news = changes.next(Duration::ZERO).unwrap();
    news.iter().filter(|change| change.by != meta.session()).for_each(|change| meta.apply_remote(change));
    news
}

#[test]
fn changes_in_a_directory_that_was_taken_cost_no_round_trip() {
    let (engine, other) = with_directory();
    let meta = client(&engine, true);
    make(&meta, DIR, "before", 99, MakeKind::Regular).unwrap();
    meta.set_take_policy(TakePolicy::default());
    let creations = meta.held.candidates.policy().creations;
    for n in 0..u64::from(creations) {
        assert_eq!(meta.held_directories(), 0);
        make(&meta, DIR, &format!("first{n}"), 20 + n, MakeKind::Regular).unwrap();
        meta.take_wanted();
    }
    assert_eq!(meta.held_directories(), 1);
    let rev = stored(&engine, RecordKey::Inode(DIR)).unwrap().access_rev;
    // Cached before the count begins.
    look(&meta, DIR, "old").unwrap();
    look(&meta, DIR, "below").unwrap();
    let before = engine.counts();
    for n in 0..20 {
        make(&meta, DIR, &format!("f{n}"), 100 + n, MakeKind::Regular).unwrap();
    }
    assert_eq!(make(&meta, DIR, "old", 300, MakeKind::Regular), Err(Errno::EEXIST.into()));
    assert_eq!(look(&meta, DIR, "nothing").unwrap(), None);
    assert_eq!(look(&meta, DIR, "old").unwrap().unwrap().ino, Ino(11));
    let rename = |from: &str, to: &str| Rename {
        parent: DIR,
        name: name(from),
        new_parent: DIR,
        new_name: name(to),
        flags: RenameFlags::default(),
        whiteout: None,
        open: None,
    };
    meta.run(&rename("f1", "g1"), &BY_KERNEL).unwrap();
    meta.run(&rename("f2", "f3"), &BY_KERNEL).unwrap();
    meta.run(&Unlink { parent: DIR, name: name("f4"), open: None }, &BY_KERNEL).unwrap();
    meta.run(&set_mode(DIR, 0o711), &BY_KERNEL).unwrap();
    assert_eq!(meta.run(&GetXattrs(DIR), &BY_KERNEL).unwrap().len(), 1);
    let listed = |inodes| meta.list(DIR, None, 100, inodes).unwrap().entries.len();
    assert_eq!(listed(false), 21 + creations as usize);
    let counts = engine.counts() - before;
    assert_eq!((counts.reads, counts.commits, counts.scans), (0, 0, 0));

    // The inodes that were there before are changed by the engine, after all answered changes.
    meta.run(&Unlink { parent: DIR, name: name("old"), open: None }, &BY_KERNEL).unwrap();
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(100))).unwrap().nlink, 1);
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(11))), None);
    assert_eq!(look(&meta, DIR, "old").unwrap(), None);
    let rmdir = |what: &str| meta.run(&Rmdir { parent: DIR, name: name(what) }, &BY_KERNEL);
    assert_eq!(rmdir("below").unwrap_err(), Errno::ENOTEMPTY.into());
    meta.run(&rename("below", "moved"), &BY_KERNEL).unwrap();
    meta.run(&Unlink { parent: Ino(12), name: name("deep"), open: None }, &BY_KERNEL).unwrap();
    assert_eq!(meta.run(&GetInode(DIR), &BY_KERNEL).unwrap().nlink, 3);
    rmdir("moved").unwrap();
    assert_eq!(meta.run(&GetInode(DIR), &BY_KERNEL).unwrap().nlink, 2);
    make(&meta, DIR, "last", 400, MakeKind::Regular).unwrap();
    assert_eq!(meta.held_directories(), 1);
    let shown: Vec<_> = meta.list(DIR, None, 100, true).unwrap().entries;

    meta.give_back().unwrap();
    let found = stored(&engine, RecordKey::Inode(DIR)).unwrap();
    assert_eq!((found.size, found.nlink, found.mode), (DIR_BYTES, 2, types::Mode::new(0o711)));
    assert_eq!(found.access_rev, rev + 1, "of the change of the mode");
    let stored: Vec<_> = other.list(DIR, None, 100, true).unwrap().entries;
    assert_eq!(stored, shown);
    assert_eq!(look(&other, DIR, "f4").unwrap(), None);
    assert_eq!(look(&other, DIR, "g1").unwrap().unwrap().ino, Ino(101));
}

#[test]
fn a_listing_with_inodes_is_answered_from_memory_if_they_are_cached() {
    let (engine, _) = with_directory();
    let meta = taker(&engine);
    take(&meta, 20);
    let list = || meta.list(DIR, None, 100, true).unwrap().entries;
    let first = list();
    let before = engine.counts();
    assert_eq!(list(), first);
    assert!(first.iter().all(|(.., inode)| inode.is_some()));
    assert_eq!((engine.counts() - before).scans, 0);
}

#[test]
fn another_client_sees_each_answered_change_although_it_has_cached_the_directory() {
    let (engine, other) = with_directory();
    let meta = taker(&engine);
    let mut changes = engine.watch().unwrap().unwrap();
    take(&meta, 20);
    // The other client has everything of the directory in its cache, as of before the take.
    other.set_outdated();
    other.set_current_until(types::BootInstant::now() + Duration::from_secs(3600));
    meta.give_back().unwrap();
    apply(&other, &mut *changes);
    let generation = other.generation(DIR).unwrap();
    let whole = other.list(DIR, None, 100, true).unwrap().entries;
    let whole = whole.into_iter().map(|(name, dirent, _)| (name, dirent)).collect();
    other.keep_listing(DIR, generation, whole);
    for absent in ["new", "later"] {
        assert_eq!(look(&other, DIR, absent).unwrap(), None);
    }
    assert!(look(&other, DIR, "old").unwrap().is_some());
    take(&meta, 21);
    assert_eq!(meta.held_directories(), 1);
    let news = apply(&other, &mut *changes);
    assert!(news.iter().any(|change| {
        change
            .invalidations
            .iter()
            .any(|part| matches!(part, meta::Invalidation::Names(DIR, rev) if *rev > 1))
    }));
    beside(&meta, || {
        make(&meta, DIR, "new", 50, MakeKind::Regular).unwrap();
        meta.run(&Unlink { parent: DIR, name: name("first20"), open: None }, &BY_KERNEL).unwrap();
        assert!(other.known_listing(DIR).is_none());
        // None of these changes was delivered to the other client.
        assert!(look(&other, DIR, "new").unwrap().is_some());
        assert_eq!(look(&other, DIR, "first20").unwrap(), None);
        assert_eq!(look(&other, DIR, "later").unwrap(), None);
    });
    assert_eq!(meta.held_directories(), 0);
}

#[test]
fn a_listing_of_an_open_directory_makes_its_holder_give_it_back() {
    let (engine, other) = with_directory();
    let meta = taker(&engine);
    let mut changes = engine.watch().unwrap().unwrap();
    let before = other.list(DIR, None, 100, false).unwrap().entries.len();
    take(&meta, 20);
    apply(&other, &mut *changes);
    beside(&meta, || {
        make(&meta, DIR, "new", 50, MakeKind::Regular).unwrap();
        assert_eq!(other.list(DIR, None, 100, false).unwrap().entries.len(), before + 2);
    });
}

/// The other client has planned a change before the take.
#[test]
fn a_change_that_was_planned_before_the_take_is_not_committed_after_it() {
    let (engine, _) = with_directory();
    let meta = taker(&engine);
    let faulty = Arc::new(Faulty::new(engine.clone(), 1, FaultRates::default()));
    let other = client_with(faulty.clone(), None);
    look(&other, DIR, "old").unwrap();
    read_always(&other);
    // Its plan uses the record of the directory that it has in its cache.
    other.run(&GetInode(DIR), &BY_KERNEL).unwrap();
    let holder = Arc::clone(&meta);
    faulty.set_rival(move |_| {
        if holder.held_directories() == 0 && look(&holder, DIR, "mine").unwrap().is_none() {
            take(&holder, 20);
            make(&holder, DIR, "mine", 30, MakeKind::Regular).unwrap();
        }
    });
    faulty.script([Fault::Rival]);
    faulty.arm(true);
    beside(&meta, || {
        make(&other, DIR, "theirs", 40, MakeKind::Regular).unwrap();
        faulty.arm(false);
        assert!(look(&other, DIR, "mine").unwrap().is_some());
        assert!(look(&meta, DIR, "theirs").unwrap().is_some());
    });
    assert_eq!(meta.held_directories(), 0, "the other client has recalled it");
}

#[test]
fn a_directory_that_was_recalled_is_not_taken_for_a_while() {
    let (engine, other) = with_directory();
    let meta = taker(&engine);
    take(&meta, 20);
    beside(&meta, || assert!(look(&other, DIR, "first20").unwrap().is_some()));
    take(&meta, 21);
    assert_eq!(meta.held_directories(), 0);
    let pause = meta.held.no_take_before.load(Ordering::Acquire) - meta.nanos_of(Instant::now());
    assert!((8..=10).contains(&Duration::from_nanos(pause).as_secs()), "{pause}");
    // The pause passes, and a little more.
    meta.held.no_take_before.store(0, Ordering::Release);
    if let Some((at, time)) = &mut host::lock(&meta.held.state).last_take_pause {
        *at = *at - *time - Duration::from_secs(1);
    }
    take(&meta, 22);
    assert_eq!(meta.held_directories(), 1);
    beside(&meta, || assert!(look(&other, DIR, "first22").unwrap().is_some()));
    let pause = meta.held.no_take_before.load(Ordering::Acquire) - meta.nanos_of(Instant::now());
    assert!(Duration::from_nanos(pause).as_secs() >= 15, "{pause}");
}

#[test]
fn directories_that_must_not_be_held_are_not_taken() {
    let (engine, other) = with_directory();
    let meta = taker(&engine);
    make(&meta, Ino::ROOT, "f", 20, MakeKind::Regular).unwrap();
    meta.take_wanted();
    // Without a current cache, recalls may be missed.
    meta.set_outdated();
    take(&meta, 21);
    assert_eq!(meta.held_directories(), 0);
    meta.set_current_until(types::BootInstant::now() + Duration::from_secs(3600));
    // A directory with too many names is given back at once.
    for n in 0..=MAX_NAMES as u64 {
        let link = Link { ino: Ino(11), parent: DIR, name: name(&format!("l{n}")), orphan_of: None };
        other.run(&link, &BY_KERNEL).unwrap();
    }
    take(&meta, 22);
    meta.settle_held().unwrap();
    assert_eq!(meta.held_directories(), 0);
    assert_eq!(stored(&engine, RecordKey::Inode(DIR)).unwrap().holder(), None);
}

/// The recall arrives after the take was committed and before the names are read.
#[test]
fn a_directory_that_is_recalled_while_it_is_taken_is_given_back() {
    let (engine, _) = with_directory();
    let faulty = Arc::new(Faulty::new(engine.clone(), 1, FaultRates::default()));
    let meta = client_with(faulty.clone(), Some(&Memory::default()));
    meta.set_take_policy(EAGER);
    let holder = Arc::downgrade(&meta);
    faulty.set_rival(move |_| {
        if let Some(holder) = holder.upgrade() {
            holder.recalled(DIR);
        }
    });
    make(&meta, DIR, "f", 20, MakeKind::Regular).unwrap();
    faulty.script([Fault::None, Fault::RivalOfRead]);
    faulty.arm(true);
    meta.take_wanted();
    faulty.arm(false);
    assert_eq!(meta.held_directories(), 0);
    meta.settle_held().unwrap();
    assert_eq!(stored(&engine, RecordKey::Inode(DIR)).unwrap().holder(), None);
    make(&meta, DIR, "g", 21, MakeKind::Regular).unwrap();
}

#[test]
fn a_take_without_an_answer_leaves_nothing_held() {
    // The take is lost, was committed, or is committed later. Or its names cannot be read.
    let cases: [&[Fault]; 4] =
        [&[Fault::Before], &[Fault::After], &[Fault::Late], &[Fault::None, Fault::Before]];
    for (case, script) in cases.into_iter().enumerate() {
        let (engine, other) = with_directory();
        let faulty = Arc::new(Faulty::new(engine.clone(), 1, FaultRates::default()));
        let meta = client_with(faulty.clone(), Some(&Memory::default()));
        meta.set_take_policy(EAGER);
        meta.set_retry_timeout(Duration::ZERO);
        make(&meta, DIR, "f", 20, MakeKind::Regular).unwrap();
        faulty.script(script.iter().copied());
        faulty.arm(true);
        meta.take_wanted();
        faulty.arm(false);
        assert_eq!(meta.held_directories(), 0, "case {case}");
        meta.settle_held().unwrap();
        faulty.deliver().unwrap();
        make(&meta, DIR, "g", 21, MakeKind::Regular).unwrap();
        beside(&meta, || {
            assert!(look(&other, DIR, "g").unwrap().is_some(), "case {case}");
            make(&other, DIR, "h", 22, MakeKind::Regular).unwrap();
        });
        assert_eq!(stored(&engine, RecordKey::Inode(DIR)).unwrap().holder(), None, "case {case}");
        assert!(look(&meta, DIR, "h").unwrap().is_some() || meta.is_current());
    }
}

#[test]
fn changes_in_a_directory_that_was_taken_survive_a_kill() {
    let (engine, other) = with_directory();
    let journals = Memory::default();
    let meta = client_with(engine.clone(), Some(&journals));
    meta.set_take_policy(EAGER);
    take(&meta, 20);
    for n in 0..50 {
        make(&meta, DIR, &format!("f{n}"), 100 + n, MakeKind::Regular).unwrap();
    }
    meta.run(&Unlink { parent: DIR, name: name("f7"), open: None }, &BY_KERNEL).unwrap();
    meta.run(&set_mode(DIR, 0o700), &BY_KERNEL).unwrap();
    make(&meta, DIR, "f7", 200, MakeKind::Symlink(b"there".as_slice().into())).unwrap();
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(100))), None);
    drop(meta);
    assert!(other.replay(&journals, &nothing_to_store()).unwrap());
    for n in (0..50).filter(|n| *n != 7) {
        assert_eq!(look(&other, DIR, &format!("f{n}")).unwrap().unwrap().ino, Ino(100 + n));
    }
    assert_eq!(look(&other, DIR, "f7").unwrap().unwrap().ino, Ino(200));
    let dir = stored(&engine, RecordKey::Inode(DIR)).unwrap();
    assert_eq!((dir.holder(), dir.mode), (None, types::Mode::new(0o700)));
    make(&other, DIR, "theirs", 300, MakeKind::Regular).unwrap();
}

/// A transaction of this client that creates a directory in the directory that is taken was committed before
/// the take, and is answered after it.
#[test]
fn a_transaction_that_is_answered_after_the_take_is_not_applied_twice() {
    let (engine, _) = with_directory();
    let meta = taker(&engine);
    let own = meta.session();
    let inode = Inode {
        size: Inode::held_size(own).unwrap(),
        parent: DIR,
        ..Inode::new(Ino(60), types::FileType::Directory, types::Mode::new(0o755), types::Time::now())
    };
    let effects = vec![
        Effect::PutInode(inode),
        Effect::PutDirent { parent: DIR, name: name("sub"), ino: Ino(60), kind: inode.kind },
        Effect::AddLinks { ino: DIR, delta: 1 },
    ];
    let ticket = meta.terms.next_op(own).unwrap();
    let txn = Txn { op_id: ticket.id, guards: Vec::new(), effects };
    let entered = meta.enter(&txn).unwrap();
    engine.commit(std::slice::from_ref(&txn)).unwrap();
    take(&meta, 20);
    assert_eq!(meta.held_directories(), 1);
    meta.leave(entered, &txn, true);
    assert_eq!(meta.held_directories(), 2);
    assert_eq!(meta.run(&GetInode(DIR), &BY_KERNEL).unwrap().nlink, 4);
    make(&meta, Ino(60), "f", 61, MakeKind::Regular).unwrap();
    meta.give_back().unwrap();
    assert_eq!(stored(&engine, RecordKey::Inode(DIR)).unwrap().nlink, 4);
}
