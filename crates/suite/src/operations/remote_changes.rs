//! The cache of a client that receives the changes of others, on engines with a stream of changes.

use std::sync::Arc;
use std::time::Duration;

use client::Failure;
use meta::{Access, Change, Changes, Counting, Effect, Engine, Invalidation, Seq, Txn};
use ops::{GetInode, GetXattrs, SetAttr, XattrMode};
use types::{BootInstant, Errno, Mode, OpId};

use super::case::{Case, Factory};
use super::fixture::{Client, KERNEL, REPLACE, ROOT, client, fresh, n};
use crate::faulty::{Fault, FaultRates, Faulty};

pub(super) const CASES: &[Case] = &[
    ("remote_changes_are_seen_once_delivered", remote_changes_are_seen_once_delivered),
    ("records_are_read_again_when_the_stream_is_late", records_are_read_again_when_the_stream_is_late),
    ("a_cached_name_of_a_removed_inode_is_read_again", a_cached_name_of_a_removed_inode_is_read_again),
    ("a_directory_stays_cached_as_a_whole", a_directory_stays_cached_as_a_whole),
    ("late_commits_are_seen_once_delivered", late_commits_are_seen_once_delivered),
    ("an_unanswered_commit_is_not_hidden_by_the_cache", an_unanswered_commit_is_not_hidden_by_the_cache),
    (
        "a_new_directory_filled_by_another_client_is_not_cached_as_empty",
        a_new_directory_filled_by_another_client_is_not_cached_as_empty,
    ),
];

const LONG: Duration = Duration::from_secs(60);

/// Applies all changes to `client` until one contains `last`.
fn catch_up(client: &Client, changes: &mut dyn Changes, last: &Invalidation) {
    loop {
        let news = changes.next(LONG).unwrap();
        assert!(!news.is_empty(), "{last:?} was not delivered within {LONG:?}");
        news.iter().for_each(|change| client.meta.apply_remote(change));
        if news.iter().any(|change| change.invalidations.contains(last)) {
            return;
        }
    }
}

fn notified(factory: Factory<'_>) -> (Client, Client, Box<dyn Changes>) {
    let a = fresh(factory);
    a.meta.set_exclusive(false);
    let changes = a.engine().watch().unwrap().expect("this engine must have a stream");
    a.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let b = client(a.engine());
    (a, b, changes)
}

fn remote_changes_are_seen_once_delivered(factory: Factory<'_>) {
    let (a, b, mut changes) = notified(factory);
    let d = a.mkdir(ROOT, "d").unwrap();
    assert_eq!(a.lookup(d, "f"), Ok(None));
    let f = b.create(d, "f").unwrap();
    catch_up(&a, &mut *changes, &Invalidation::Dirent(d, n("f")));
    assert_eq!(a.lookup(d, "f").unwrap().unwrap().ino, f);
    b.chmod(d, 0o700).unwrap();
    catch_up(&a, &mut *changes, &Invalidation::Inode(d));
    assert_eq!(a.inode(d).mode, Mode::new(0o700));
    assert!(a.run(&GetXattrs(f)).unwrap().is_empty());
    b.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    catch_up(&a, &mut *changes, &Invalidation::Xattrs(f));
    assert_eq!(a.run(&GetXattrs(f)).unwrap().len(), 1);
    b.rename(d, "f", ROOT, "g", REPLACE).unwrap();
    catch_up(&a, &mut *changes, &Invalidation::Dirent(ROOT, n("g")));
    assert_eq!((a.lookup(d, "f"), a.at(ROOT, "g").ino), (Ok(None), f));
    b.unlink(ROOT, "g").unwrap();
    catch_up(&a, &mut *changes, &Invalidation::Inode(f));
    assert_eq!(a.lookup(ROOT, "g"), Ok(None));
    assert_eq!(a.unlink(ROOT, "g").unwrap_err(), Errno::ENOENT);
}

/// The cached name and the cached inode are from different times.
fn a_cached_name_of_a_removed_inode_is_read_again(factory: Factory<'_>) {
    let (a, b, _changes) = notified(factory);
    let f = b.create(ROOT, "f").unwrap();
    assert_eq!(a.at(ROOT, "f").ino, f);
    b.unlink(ROOT, "f").unwrap();
    // The invalidation of the inode arrives, but not yet that of the name.
    let by = b.meta.session();
    a.meta.apply_remote(&Change { seq: Seq::default(), by, invalidations: vec![Invalidation::Inode(f)] });
    assert_eq!(a.run(&GetInode(f)), Err(Errno::ESTALE));
    assert_eq!(a.lookup(ROOT, "f"), Ok(None));
    assert_eq!(a.lookup(ROOT, "f"), Ok(None), "the name is no longer cached");
}

fn records_are_read_again_when_the_stream_is_late(factory: Factory<'_>) {
    let (a, b, _changes) = notified(factory);
    a.meta.set_lifetime(Duration::ZERO);
    let d = a.mkdir(ROOT, "d").unwrap();
    b.chmod(d, 0o700).unwrap();
    assert_eq!(a.inode(d).mode, Mode::new(0o755), "cached records are valid while changes are delivered");
    a.meta.set_current_until(BootInstant::now());
    assert_eq!(a.inode(d).mode, Mode::new(0o700));
    a.meta.set_current_until(BootInstant::now() + LONG);
    assert!(a.meta.is_current());
    a.meta.set_outdated();
    assert!(!a.meta.is_current());
}

/// A client that receives changes needs no round trip to know that a name is free in a directory that it
/// created.
fn a_directory_stays_cached_as_a_whole(factory: Factory<'_>) {
    let (a, b, mut changes) = notified(factory);
    let counting = Arc::new(Counting::new(Arc::clone(a.engine())));
    let own = client(&(Arc::clone(&counting) as Arc<dyn Engine>));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let d = own.mkdir(ROOT, "d").unwrap();
    let before = counting.counts();
    for name in ["x", "y"] {
        assert_eq!(own.lookup(d, name), Ok(None));
        own.create(d, name).unwrap();
    }
    let trips = (counting.counts() - before).round_trips();
    assert_eq!(trips, 2, "a create is one round trip");
    b.create(d, "z").unwrap();
    catch_up(&own, &mut *changes, &Invalidation::Dirent(d, n("z")));
    assert!(own.lookup(d, "z").unwrap().is_some(), "the name exists now");
    let before = counting.counts();
    assert_eq!(own.lookup(d, "other"), Ok(None));
    assert_eq!((counting.counts() - before).round_trips(), 0, "the other names are still known to be free");
}

/// The client receives its own change, and reads the inode, before it repeats its request.
fn an_unanswered_commit_is_not_hidden_by_the_cache(factory: Factory<'_>) {
    let (a, _, mut changes) = notified(factory);
    let faulty = Arc::new(Faulty::new(Arc::clone(a.engine()), 1, FaultRates::default()));
    let own = Arc::new(client(&(Arc::clone(&faulty) as Arc<dyn Engine>)));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let f = own.create(ROOT, "f").unwrap();
    let reader = Arc::clone(&own);
    faulty.set_rival(move |_| {
        catch_up(&reader, &mut *changes, &Invalidation::Inode(f));
        assert_eq!(reader.inode(f).mode, Mode::new(0o600));
    });
    faulty.script([Fault::After, Fault::Rival]);
    faulty.arm(true);
    own.chmod(f, 0o600).unwrap();
    assert_eq!(own.inode(f).mode, Mode::new(0o600));
}

/// Another client finds the new directory, and creates a file in it, before the directory's creator gets the
/// reply.
fn a_new_directory_filled_by_another_client_is_not_cached_as_empty(factory: Factory<'_>) {
    let (a, _, mut changes) = notified(factory);
    let faulty = Arc::new(Faulty::new(Arc::clone(a.engine()), 1, FaultRates::default()));
    let own = Arc::new(client(&(Arc::clone(&faulty) as Arc<dyn Engine>)));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    assert_eq!(own.lookup(ROOT, "d"), Ok(None));
    let maker = Arc::clone(&own);
    faulty.set_rival(move |engine| {
        let other = client(engine);
        let d = other.at(ROOT, "d").ino;
        other.create(d, "f").unwrap();
        catch_up(&maker, &mut *changes, &Invalidation::Dirent(d, n("f")));
    });
    faulty.script([Fault::After, Fault::Rival]);
    faulty.arm(true);
    let d = own.mkdir(ROOT, "d").unwrap();
    faulty.set_rival(|_| ());
    assert!(own.lookup(d, "f").unwrap().is_some());
    assert_eq!(own.lookup(d, "g"), Ok(None));
}

/// An operation that failed takes effect after its caller has stopped waiting.
fn late_commits_are_seen_once_delivered(factory: Factory<'_>) {
    let (a, _, mut changes) = notified(factory);
    let faulty = Arc::new(Faulty::new(
        Arc::clone(a.engine()),
        1,
        FaultRates { before: 1000, ..FaultRates::default() },
    ));
    let own = client(&(Arc::clone(&faulty) as Arc<dyn Engine>));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    own.meta.set_retry_timeout(Duration::ZERO);
    let f = own.create(ROOT, "f").unwrap();
    catch_up(&own, &mut *changes, &Invalidation::Dirent(ROOT, n("f")));
    faulty.script([Fault::After]);
    faulty.arm(true);
    let chmod = SetAttr { ino: f, mode: Some(Mode::new(0o640)), ..SetAttr::default() };
    assert!(matches!(own.meta.run(&chmod, &KERNEL), Err(Failure::Engine(_))));
    faulty.arm(false);
    catch_up(&own, &mut *changes, &Invalidation::Inode(f));
    assert_eq!(own.inode(f).mode, Mode::new(0o640));
    let access = Access { mode: Mode::new(0o600), ..Access::from(&own.inode(f)) };
    let late = Txn {
        op_id: OpId(u128::from(own.meta.session().0) << 64 | u128::from(u64::MAX)),
        guards: Vec::new(),
        effects: vec![Effect::SetAccess { ino: f, access }],
    };
    own.engine().commit(&[late]).unwrap();
    catch_up(&own, &mut *changes, &Invalidation::Inode(f));
    assert_eq!(own.inode(f).mode, Mode::new(0o600));
}
