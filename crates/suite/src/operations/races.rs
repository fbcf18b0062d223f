//! What another client does between an operation's plan and its commit, at the very moment.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use meta::ops::{Append, GetNode, GetXattrs, MakeKind, SetAttr, SetXattr, Unlink, XattrMode};
use meta::{
    Counting, Effect, Engine, EngineError, ErrorKind, Facts, Failure, Fault, Faulty, Node, Odds, Outcome,
    Page, Scan, Txn, Volume, Vouch, Want,
};
use types::{BootInstant, Errno, Mode, OpId, SliceSource};

use super::fixture::{Client, EXCHANGE, KERNEL, NO_REPLACE, REPLACE, ROOT, client, n, volume, x};
use super::invariants::check;
use super::{Case, Factory};

pub(super) const CASES: &[Case] = &[
    ("names_taken_or_gone_meanwhile", names_taken_or_gone_meanwhile),
    ("directories_filled_or_gone_meanwhile", directories_filled_or_gone_meanwhile),
    ("ancestors_moved_meanwhile", ancestors_moved_meanwhile),
    ("links_and_access_changed_meanwhile", links_and_access_changed_meanwhile),
    ("a_conflict_after_a_lost_answer_happens_once", a_conflict_after_a_lost_answer_happens_once),
    ("what_may_have_happened_is_asked_for", what_may_have_happened_is_asked_for),
    ("who_loses_often_looks_again_after_a_pause", who_loses_often_looks_again_after_a_pause),
    ("who_loses_often_is_told_that_there_is_no_room", who_loses_often_is_told_that_there_is_no_room),
    ("what_is_gone_by_the_same_call_is_not_kept", what_is_gone_by_the_same_call_is_not_kept),
];

/// A client that has a rival, which acts just before the client's next commit.
struct Race {
    client: Client,
    rival: Arc<Mutex<Client>>,
    faulty: Arc<Faulty<Arc<dyn Engine>>>,
}

impl Race {
    fn new(factory: Factory<'_>) -> Self {
        let engine = factory();
        volume().format(&*engine).unwrap();
        let faulty = Arc::new(Faulty::new(engine.clone(), 1, Odds::default()));
        let wrapped: Arc<dyn Engine> = faulty.clone();
        let race = Race { client: client(&wrapped), rival: Arc::new(Mutex::new(client(&engine))), faulty };
        race.faulty.arm(true);
        race
    }

    /// What becomes of `act` if `first` is faster. Whatever the client reads meets no fault.
    fn lose<R: 'static, T>(&self, first: fn(&Client) -> R, act: impl FnOnce(&Client) -> T) -> T {
        let rival = self.rival.clone();
        let mut waiting = true;
        self.faulty.set_rival(move |_| {
            if std::mem::take(&mut waiting) {
                first(&rival.lock().unwrap());
            }
        });
        // An operation has a few requests at most; the rival acts at the first commit among them.
        self.faulty.script([Fault::Rival; 6]);
        let result = act(&self.client);
        self.faulty.script([]);
        result
    }
}

fn names_taken_or_gone_meanwhile(factory: Factory<'_>) {
    let race = Race::new(factory);
    let f = race.client.create(ROOT, "f").unwrap();
    let taken = race.lose(|r| r.create(ROOT, "new").unwrap(), |c| c.create(ROOT, "new"));
    assert_eq!(taken, Err(Errno::EEXIST));
    let taken = race.lose(|r| r.mkdir(ROOT, "new2").unwrap(), |c| c.link(f, ROOT, "new2"));
    assert_eq!(taken, Err(Errno::EEXIST));
    let gone = race.lose(|r| r.unlink(ROOT, "new").unwrap(), |c| c.unlink(ROOT, "new"));
    assert_eq!(gone.unwrap_err(), Errno::ENOENT);
    let gone = race.lose(
        |r| r.rename(ROOT, "f", ROOT, "g", REPLACE).unwrap(),
        |c| c.rename(ROOT, "f", ROOT, "h", REPLACE),
    );
    assert_eq!(gone.unwrap_err(), Errno::ENOENT);
    let taken = race.lose(|r| r.create(ROOT, "h").unwrap(), |c| c.rename(ROOT, "g", ROOT, "h", NO_REPLACE));
    assert_eq!(taken.unwrap_err(), Errno::EEXIST);
    // A refusal that was true when it was found, and no more: the name is free again.
    race.client.lookup(ROOT, "h").unwrap();
    let free = race.lose(|r| r.unlink(ROOT, "h").unwrap(), |c| c.create(ROOT, "h"));
    assert!(free.is_ok());
    let gone = race.lose(|r| r.unlink(ROOT, "h").unwrap(), |c| c.rename(ROOT, "g", ROOT, "h", EXCHANGE));
    assert_eq!(gone.unwrap_err(), Errno::ENOENT);
    check(&race.client);
}

fn directories_filled_or_gone_meanwhile(factory: Factory<'_>) {
    let race = Race::new(factory);
    race.client.mkdir(ROOT, "d").unwrap();
    race.client.mkdir(ROOT, "e").unwrap();
    let fill = |r: &Client| r.create(r.at(ROOT, "d").ino, "x").unwrap();
    let filled = race.lose(fill, |c| c.rmdir(ROOT, "d"));
    assert_eq!(filled.unwrap_err(), Errno::ENOTEMPTY);
    let filled = race
        .lose(|r| r.create(r.at(ROOT, "e").ino, "x").unwrap(), |c| c.rename(ROOT, "d", ROOT, "e", REPLACE));
    assert_eq!(filled.unwrap_err(), Errno::ENOTEMPTY);
    let gone = race.client.mkdir(ROOT, "gone").unwrap();
    let made = race.lose(|r| r.rmdir(ROOT, "gone").unwrap(), |c| c.create(gone, "x"));
    assert_eq!(made, Err(Errno::ENOENT));
    let gone = race.client.mkdir(ROOT, "gone").unwrap();
    let moved = race.lose(|r| r.rmdir(ROOT, "gone").unwrap(), |c| c.rename(ROOT, "d", gone, "d", REPLACE));
    assert_eq!(moved.unwrap_err(), Errno::ENOENT);
    check(&race.client);
}

/// Two renames that are each fine, and together would cut a circle off the tree.
fn ancestors_moved_meanwhile(factory: Factory<'_>) {
    let race = Race::new(factory);
    let a = race.client.mkdir(ROOT, "a").unwrap();
    let b = race.client.mkdir(ROOT, "b").unwrap();
    let deep = race.client.mkdir(b, "deep").unwrap();
    let moved = race.lose(
        |r| {
            let a = r.at(ROOT, "a").ino;
            r.rename(ROOT, "b", a, "b", REPLACE).unwrap();
        },
        |c| c.rename(ROOT, "a", deep, "a", REPLACE),
    );
    assert_eq!(moved.unwrap_err(), Errno::EINVAL);
    assert_eq!(race.client.stranger().node(b).parent, a);
    check(&race.client);
}

fn links_and_access_changed_meanwhile(factory: Factory<'_>) {
    let race = Race::new(factory);
    let f = race.client.create(ROOT, "f").unwrap();
    let linked = race.lose(
        |r| {
            let f = r.at(ROOT, "f").ino;
            r.link(f, ROOT, "g").unwrap();
        },
        |c| c.unlink(ROOT, "f"),
    );
    assert_eq!(linked.unwrap().fate, meta::ops::Fate::Linked);
    assert_eq!(race.client.stranger().node(f).nlink, 1, "the inode stays, for it has a new name");
    let chmod = race.lose(|r| r.chmod(r.at(ROOT, "g").ino, 0o4711).unwrap(), |c| c.chmod(f, 0o600));
    assert_eq!((chmod, race.client.stranger().node(f).mode), (Ok(()), Mode::new(0o600)));
    let create = |c: &Client| c.set_xattr(f, "user.a", "mine", XattrMode::Create);
    let taken =
        race.lose(|r| r.set_xattr(r.at(ROOT, "g").ino, "user.a", "theirs", XattrMode::Set).unwrap(), create);
    assert_eq!(taken, Err(Errno::EEXIST));
    let d = race.client.mkdir(ROOT, "d").unwrap();
    let rev = [(d, race.client.node(d).access_rev)];
    let told = Vouch::Kernel { told: Some(&rev) };
    let revoked = race.lose(
        |r| r.chmod(r.at(ROOT, "d").ino, 0o700).unwrap(),
        |c| c.run_as(&c.make_op(d, "x", MakeKind::Regular, 0o644), &told),
    );
    assert_eq!(revoked.unwrap_err(), Errno::ESTALE);
    let rev = [(f, race.client.node(f).access_rev)];
    let disowned = race.lose(
        |r| r.run(&SetAttr { ino: r.at(ROOT, "g").ino, uid: Some(7), ..SetAttr::default() }).unwrap(),
        |c| {
            let chmod = SetAttr { ino: f, mode: Some(Mode::new(0o666)), ..SetAttr::default() };
            c.run_as(&chmod, &Vouch::Kernel { told: Some(&rev) })
        },
    );
    assert_eq!(disowned, Err(Errno::ESTALE));
    check(&race.client);
}

fn a_conflict_after_a_lost_answer_happens_once(factory: Factory<'_>) {
    let race = Race::new(factory);
    // The create happens, its answer is lost, and the rival takes the new name away before the repetition.
    race.faulty.set_rival({
        let rival = race.rival.clone();
        move |_| {
            rival.lock().unwrap().unlink(ROOT, "f").unwrap();
        }
    });
    race.faulty.script([Fault::None, Fault::After, Fault::Rival]);
    let made = race.client.create(ROOT, "f");
    assert!(made.is_ok(), "it was made, once, whatever came after: {made:?}");
    assert_eq!(race.client.stranger().lookup(ROOT, "f"), Ok(None));
    check(&race.client);
}

/// An operation that happened and of which its client never hears so: it was told of a failure, and goes by what is there.
fn what_may_have_happened_is_asked_for(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let faulty = Arc::new(Faulty::new(engine, 1, Odds { before: 1000, ..Odds::default() }));
    let client = client(&(Arc::clone(&faulty) as Arc<dyn Engine>));
    client.meta.set_alone(true);
    client.meta.set_patience(Duration::from_millis(20));
    let dir = client.mkdir(ROOT, "d").unwrap();
    let [f, g] = ["f", "g"].map(|name| client.create(dir, name).unwrap());
    assert_eq!(client.lookup(dir, "new"), Ok(None));
    // The first attempt is done, and no later one gets through.
    let lose = |act: &dyn Fn() -> Result<(), Failure>| {
        faulty.script([Fault::After]);
        faulty.arm(true);
        let failure = act().unwrap_err();
        faulty.arm(false);
        let Failure::Engine(error) = failure else { panic!("{failure}") };
        assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    };
    let chmod = SetAttr { ino: f, mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    lose(&|| client.meta.run(&chmod, &KERNEL));
    assert_eq!(client.node(f).mode, Mode::new(0o600));
    let set = SetXattr { ino: f, name: x("user.a"), value: (*b"1").into(), mode: XattrMode::Set };
    lose(&|| client.meta.run(&set, &KERNEL));
    assert_eq!(client.run(&GetXattrs(f)).unwrap().len(), 1);
    lose(&|| client.meta.run(&Unlink { parent: dir, name: n("g"), open: None }, &KERNEL).map(drop));
    assert_eq!(client.lookup(dir, "g"), Ok(None));
    assert_eq!(client.run(&GetNode(g)), Err(Errno::ESTALE));
    let make = client.make_op(dir, "new", MakeKind::Regular, 0o644);
    lose(&|| client.meta.run(&make, &KERNEL).map(drop));
    assert!(client.lookup(dir, "new").unwrap().is_some());
    assert_eq!(client.create(dir, "new").unwrap_err(), Errno::EEXIST);
    check(&client);
}

/// Among many who append to one file, what a client was told before a pause is never true after it.
fn who_loses_often_looks_again_after_a_pause(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let counting = Arc::new(Counting::new(engine.clone()));
    let faulty = Arc::new(Faulty::new(Arc::clone(&counting), 1, Odds::default()));
    let (loser, rival) = (client(&(Arc::clone(&faulty) as Arc<dyn Engine>)), client(&engine));
    let ino = loser.create(ROOT, "f").unwrap();
    let append =
        move |c: &Client| c.run(&Append { ino, source: SliceSource::Inline((*b"ab").into()), len: 2 });
    assert_eq!((append(&loser), append(&rival)), (Ok(0), Ok(2)));
    // Somebody is faster than each commit that comes without a look at the file just before.
    let counts = Arc::clone(&counting);
    let mut looks = counting.counts().reads;
    faulty.set_rival(move |_| {
        if std::mem::replace(&mut looks, counts.counts().reads) == counts.counts().reads {
            append(&rival).unwrap();
        }
    });
    faulty.script([Fault::Rival; 100]);
    faulty.arm(true);
    let before = counting.counts();
    assert_eq!(append(&loser), Ok(12), "after four more of the rival's");
    let after = counting.counts();
    assert_eq!((after.commits - before.commits, after.reads - before.reads), (5, 1));
    faulty.arm(false);
    check(&loser);
}

/// Who finds the volume full after several lost races does not assume over and over that there is room.
fn who_loses_often_is_told_that_there_is_no_room(factory: Factory<'_>) {
    let engine = factory();
    Volume { max_inodes: 3, ..volume() }.format(&*engine).unwrap();
    let counting = Arc::new(Counting::new(engine.clone()));
    let faulty = Arc::new(Faulty::new(Arc::clone(&counting), 1, Odds::default()));
    let (loser, rival) = (client(&(Arc::clone(&faulty) as Arc<dyn Engine>)), client(&engine));
    let d = loser.mkdir(ROOT, "d").unwrap();
    let mut modes = [0o700, 0o755].iter().cycle().take(5);
    faulty.set_rival(move |_| match modes.next() {
        Some(mode) => rival.chmod(d, *mode).unwrap(),
        None => drop(rival.create(ROOT, "last")),
    });
    faulty.script([Fault::Rival; 100]);
    faulty.arm(true);
    let before = counting.counts();
    assert_eq!(loser.create(d, "f"), Err(Errno::ENOSPC));
    let after = counting.counts();
    assert_eq!((after.commits - before.commits, after.reads - before.reads), (6, 2));
    faulty.arm(false);
    check(&loser);
}

/// Commits together with the next transaction the one that is kept here, and tells of no inode that is then gone.
#[derive(Debug)]
struct Joined {
    engine: Arc<dyn Engine>,
    kept: Mutex<Option<Txn>>,
}

impl Engine for Joined {
    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let joined: Vec<_> = txns.iter().cloned().chain(self.kept.lock().unwrap().take()).collect();
        let is_dropped = |node: &Node| {
            joined.iter().flat_map(|txn| &txn.effects).any(|e| *e == Effect::DropNode { ino: node.ino })
        };
        let mut outcomes = self.engine.commit(&joined)?;
        outcomes.truncate(txns.len());
        for outcome in &mut outcomes {
            if let Outcome::Committed { nodes, .. } = outcome {
                nodes.retain(|node| !is_dropped(node));
            }
        }
        Ok(outcomes)
    }

    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.engine.read(wants)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.engine.scan(scan)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.engine.sync()
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.engine.wipe()
    }
}

/// One transaction takes a file's link, the next of the same call its last: the first one's outcome need not tell of it.
fn what_is_gone_by_the_same_call_is_not_kept(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let joined = Arc::new(Joined { engine: engine.clone(), kept: Mutex::default() });
    let own = client(&(Arc::clone(&joined) as Arc<dyn Engine>));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let f = own.create(ROOT, "f").unwrap();
    own.link(f, ROOT, "g").unwrap();
    assert_eq!(own.node(f).nlink, 2);
    let effects = vec![Effect::DropEdge { parent: ROOT, name: n("f") }, Effect::DropNode { ino: f }];
    *joined.kept.lock().unwrap() = Some(Txn { op_id: OpId(1), guards: Vec::new(), effects });
    own.unlink(ROOT, "g").unwrap();
    assert_eq!(client(&engine).run(&GetNode(f)), Err(Errno::ESTALE));
    assert_ne!(own.run(&GetNode(f)).map(|node| node.nlink), Ok(2));
}
