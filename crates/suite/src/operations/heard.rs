//! What one client knows when it is told of another's changes, on engines that tell.

use std::sync::Arc;
use std::time::Duration;

use meta::ops::{GetNode, GetXattrs, SetAttr, XattrMode};
use meta::{
    Access, Change, Changes, Counting, Effect, Engine, Failure, Fault, Faulty, Odds, Seq, Touched, Txn,
};
use types::{BootInstant, Errno, Mode, OpId};

use super::fixture::{Client, KERNEL, REPLACE, ROOT, client, fresh, n};
use super::{Case, Factory};

pub(super) const CASES: &[Case] = &[
    ("what_others_did_is_known_once_heard", what_others_did_is_known_once_heard),
    ("what_is_not_heard_in_time_is_asked_for", what_is_not_heard_in_time_is_asked_for),
    (
        "a_name_in_memory_of_an_inode_that_is_gone_is_read_again",
        a_name_in_memory_of_an_inode_that_is_gone_is_read_again,
    ),
    ("a_directory_stays_known_as_a_whole", a_directory_stays_known_as_a_whole),
    ("what_happened_after_all_is_known_once_heard", what_happened_after_all_is_known_once_heard),
    (
        "a_commit_without_an_answer_is_not_hidden_by_memory",
        a_commit_without_an_answer_is_not_hidden_by_memory,
    ),
    (
        "a_directory_filled_at_its_birth_is_not_taken_for_empty",
        a_directory_filled_at_its_birth_is_not_taken_for_empty,
    ),
];

const LONG: Duration = Duration::from_secs(60);

/// Lets `client` hear all there is until something touches `last`.
fn hear(client: &Client, changes: &mut dyn Changes, last: &Touched) {
    loop {
        let news = changes.next(LONG).unwrap();
        assert!(!news.is_empty(), "{last:?} was not told within {LONG:?}");
        news.iter().for_each(|change| client.meta.heard(change));
        if news.iter().any(|change| change.touched.contains(last)) {
            return;
        }
    }
}

fn told(factory: Factory<'_>) -> (Client, Client, Box<dyn Changes>) {
    let a = fresh(factory);
    a.meta.set_alone(false);
    let changes = a.engine().watch().unwrap().expect("an engine whose suite says that it has a stream");
    a.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let b = client(a.engine());
    (a, b, changes)
}

fn what_others_did_is_known_once_heard(factory: Factory<'_>) {
    let (a, b, mut changes) = told(factory);
    let d = a.mkdir(ROOT, "d").unwrap();
    assert_eq!(a.lookup(d, "f"), Ok(None));
    let f = b.create(d, "f").unwrap();
    hear(&a, &mut *changes, &Touched::Edge(d, n("f")));
    assert_eq!(a.lookup(d, "f").unwrap().unwrap().ino, f);
    b.chmod(d, 0o700).unwrap();
    hear(&a, &mut *changes, &Touched::Node(d));
    assert_eq!(a.node(d).mode, Mode::new(0o700));
    assert!(a.run(&GetXattrs(f)).unwrap().is_empty());
    b.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    hear(&a, &mut *changes, &Touched::Xattrs(f));
    assert_eq!(a.run(&GetXattrs(f)).unwrap().len(), 1);
    b.rename(d, "f", ROOT, "g", REPLACE).unwrap();
    hear(&a, &mut *changes, &Touched::Edge(ROOT, n("g")));
    assert_eq!((a.lookup(d, "f"), a.at(ROOT, "g").ino), (Ok(None), f));
    b.unlink(ROOT, "g").unwrap();
    hear(&a, &mut *changes, &Touched::Node(f));
    assert_eq!(a.lookup(ROOT, "g"), Ok(None));
    assert_eq!(a.unlink(ROOT, "g").unwrap_err(), Errno::ENOENT);
}

/// The name and the inode are in memory as of different moments.
fn a_name_in_memory_of_an_inode_that_is_gone_is_read_again(factory: Factory<'_>) {
    let (a, b, _changes) = told(factory);
    let f = b.create(ROOT, "f").unwrap();
    assert_eq!(a.at(ROOT, "f").ino, f);
    b.unlink(ROOT, "f").unwrap();
    // Half of the news comes first.
    let by = b.meta.session();
    a.meta.heard(&Change { seq: Seq::default(), by, touched: vec![Touched::Node(f)] });
    assert_eq!(a.run(&GetNode(f)), Err(Errno::ESTALE));
    assert_eq!(a.lookup(ROOT, "f"), Ok(None));
    assert_eq!(a.lookup(ROOT, "f"), Ok(None), "and the name is not in memory any more");
}

fn what_is_not_heard_in_time_is_asked_for(factory: Factory<'_>) {
    let (a, b, _changes) = told(factory);
    a.meta.set_lifetime(Duration::ZERO);
    let d = a.mkdir(ROOT, "d").unwrap();
    b.chmod(d, 0o700).unwrap();
    assert_eq!(a.node(d).mode, Mode::new(0o755), "it goes by what it has, while it is told");
    a.meta.set_current_until(BootInstant::now());
    assert_eq!(a.node(d).mode, Mode::new(0o700));
    a.meta.set_current_until(BootInstant::now() + LONG);
    assert!(a.meta.is_current());
    a.meta.set_outdated();
    assert!(!a.meta.is_current());
}

/// A client that is told needs no round trip to know that a name is free in a directory of its own.
fn a_directory_stays_known_as_a_whole(factory: Factory<'_>) {
    let (a, b, mut changes) = told(factory);
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
    hear(&own, &mut *changes, &Touched::Edge(d, n("z")));
    assert!(own.lookup(d, "z").unwrap().is_some(), "the name is not free any more");
    let before = counting.counts();
    assert_eq!(own.lookup(d, "other"), Ok(None));
    assert_eq!((counting.counts() - before).round_trips(), 0, "and the others are still known to be");
}

/// Others see the change already, while this client has yet to repeat its request.
fn a_commit_without_an_answer_is_not_hidden_by_memory(factory: Factory<'_>) {
    let (a, _, mut changes) = told(factory);
    let faulty = Arc::new(Faulty::new(Arc::clone(a.engine()), 1, Odds::default()));
    let own = Arc::new(client(&(Arc::clone(&faulty) as Arc<dyn Engine>)));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let f = own.create(ROOT, "f").unwrap();
    let other = Arc::clone(&own);
    faulty.set_rival(move |_| {
        hear(&other, &mut *changes, &Touched::Node(f));
        assert_eq!(other.node(f).mode, Mode::new(0o600));
    });
    faulty.script([Fault::After, Fault::Rival]);
    faulty.arm(true);
    own.chmod(f, 0o600).unwrap();
    assert_eq!(own.node(f).mode, Mode::new(0o600));
}

/// Another client is told of the new directory, and makes a file there, before its maker hears that it is made.
fn a_directory_filled_at_its_birth_is_not_taken_for_empty(factory: Factory<'_>) {
    let (a, _, mut changes) = told(factory);
    let faulty = Arc::new(Faulty::new(Arc::clone(a.engine()), 1, Odds::default()));
    let own = Arc::new(client(&(Arc::clone(&faulty) as Arc<dyn Engine>)));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    assert_eq!(own.lookup(ROOT, "d"), Ok(None));
    let maker = Arc::clone(&own);
    faulty.set_rival(move |engine| {
        let other = client(engine);
        let d = other.at(ROOT, "d").ino;
        other.create(d, "f").unwrap();
        hear(&maker, &mut *changes, &Touched::Edge(d, n("f")));
    });
    faulty.script([Fault::After, Fault::Rival]);
    faulty.arm(true);
    let d = own.mkdir(ROOT, "d").unwrap();
    faulty.set_rival(|_| ());
    assert!(own.lookup(d, "f").unwrap().is_some());
    assert_eq!(own.lookup(d, "g"), Ok(None));
}

/// An operation that failed happens when nobody waits for it any more.
fn what_happened_after_all_is_known_once_heard(factory: Factory<'_>) {
    let (a, _, mut changes) = told(factory);
    let faulty = Arc::new(Faulty::new(Arc::clone(a.engine()), 1, Odds { before: 1000, ..Odds::default() }));
    let own = client(&(Arc::clone(&faulty) as Arc<dyn Engine>));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    own.meta.set_patience(Duration::ZERO);
    let f = own.create(ROOT, "f").unwrap();
    hear(&own, &mut *changes, &Touched::Edge(ROOT, n("f")));
    faulty.script([Fault::After]);
    faulty.arm(true);
    let chmod = SetAttr { ino: f, mode: Some(Mode::new(0o640)), ..SetAttr::default() };
    assert!(matches!(own.meta.run(&chmod, &KERNEL), Err(Failure::Engine(_))));
    faulty.arm(false);
    hear(&own, &mut *changes, &Touched::Node(f));
    assert_eq!(own.node(f).mode, Mode::new(0o640));
    let access = Access { mode: Mode::new(0o600), ..Access::from(&own.node(f)) };
    let late = Txn {
        op_id: OpId(u128::from(own.meta.session().0) << 64 | u128::from(u64::MAX)),
        guards: Vec::new(),
        effects: vec![Effect::SetAccess { ino: f, access }],
    };
    own.engine().commit(&[late]).unwrap();
    hear(&own, &mut *changes, &Touched::Node(f));
    assert_eq!(own.node(f).mode, Mode::new(0o600));
}
