//! Changes of another client between an operation's plan and its commit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::Failure;
use meta::{Counting, Effect, Engine, EngineError, ErrorKind, Inode, Outcome, Txn, Volume};
use ops::{
    Append, Authority, GetInode, GetXattrs, MakeKind, RemoveXattr, SetAttr, SetXattr, Unlink, XattrMode,
};
use types::{BootInstant, Errno, Mode, OpId, SliceSource};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, KERNEL, NO_REPLACE, REPLACE, ROOT, client, n, volume, x};
use super::invariants::check;
use crate::faulty::{Fault, FaultRates, Faulty};

pub(super) const CASES: &[Case] = &[
    ("names_taken_or_removed_before_the_commit", names_taken_or_removed_before_the_commit),
    ("directories_filled_or_removed_before_the_commit", directories_filled_or_removed_before_the_commit),
    ("ancestors_moved_before_the_commit", ancestors_moved_before_the_commit),
    ("links_and_access_changed_before_the_commit", links_and_access_changed_before_the_commit),
    ("xattrs_changed_before_the_commit", xattrs_changed_before_the_commit),
    ("a_retry_after_a_lost_reply_commits_once", a_retry_after_a_lost_reply_commits_once),
    (
        "records_are_read_again_after_an_indeterminate_error",
        records_are_read_again_after_an_indeterminate_error,
    ),
    ("repeated_conflicts_back_off_and_read_again", repeated_conflicts_back_off_and_read_again),
    ("repeated_conflicts_still_report_a_full_volume", repeated_conflicts_still_report_a_full_volume),
    ("an_inode_removed_by_the_same_call_is_not_cached", an_inode_removed_by_the_same_call_is_not_cached),
];

/// A client and a rival that acts right before the client's next commit.
pub(super) struct Race {
    pub(super) client: Client,
    pub(super) rival: Arc<Mutex<Client>>,
    pub(super) faulty: Arc<Faulty<Counting<Arc<dyn Engine>>>>,
}

impl Race {
    pub(super) fn new(factory: Factory<'_>) -> Self {
        let engine = factory();
        volume().format(&*engine).unwrap();
        let faulty = Arc::new(Faulty::new(Counting::new(engine.clone()), 1, FaultRates::default()));
        let wrapped: Arc<dyn Engine> = faulty.clone();
        let race = Race { client: client(&wrapped), rival: Arc::new(Mutex::new(client(&engine))), faulty };
        race.faulty.arm(true);
        race
    }

    /// The result of `act` if `first` commits before it. Reads of the client meet no fault.
    pub(super) fn lose<R: 'static, T>(&self, first: fn(&Client) -> R, act: impl FnOnce(&Client) -> T) -> T {
        let rival = self.rival.clone();
        let mut waiting = true;
        self.faulty.set_rival(move |_| {
            if std::mem::take(&mut waiting) {
                first(&rival.lock().unwrap());
            }
        });
        // An operation has at most a few requests; the rival acts at the first commit among them.
        self.faulty.script([Fault::Rival; 6]);
        let result = act(&self.client);
        self.faulty.script([]);
        result
    }
}

fn names_taken_or_removed_before_the_commit(factory: Factory<'_>) {
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
    // The error was true when it was found, but no longer is: the name is free again.
    race.client.lookup(ROOT, "h").unwrap();
    let free = race.lose(|r| r.unlink(ROOT, "h").unwrap(), |c| c.create(ROOT, "h"));
    assert!(free.is_ok());
    let gone = race.lose(|r| r.unlink(ROOT, "h").unwrap(), |c| c.rename(ROOT, "g", ROOT, "h", EXCHANGE));
    assert_eq!(gone.unwrap_err(), Errno::ENOENT);
    check(&race.client);
}

fn directories_filled_or_removed_before_the_commit(factory: Factory<'_>) {
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

/// Two renames that are each valid, but together would create a cycle.
fn ancestors_moved_before_the_commit(factory: Factory<'_>) {
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
    assert_eq!(race.client.stranger().inode(b).parent, a);
    check(&race.client);
}

fn links_and_access_changed_before_the_commit(factory: Factory<'_>) {
    let race = Race::new(factory);
    let f = race.client.create(ROOT, "f").unwrap();
    let linked = race.lose(
        |r| {
            let f = r.at(ROOT, "f").ino;
            r.link(f, ROOT, "g").unwrap();
        },
        |c| c.unlink(ROOT, "f"),
    );
    assert_eq!(linked.unwrap().outcome, ops::UnlinkOutcome::Linked);
    assert_eq!(race.client.stranger().inode(f).nlink, 1, "the inode stays, because it has a new name");
    let chmod = race.lose(|r| r.chmod(r.at(ROOT, "g").ino, 0o4711).unwrap(), |c| c.chmod(f, 0o600));
    assert_eq!((chmod, race.client.stranger().inode(f).mode), (Ok(()), Mode::new(0o600)));
    let create = |c: &Client| c.set_xattr(f, "user.a", "mine", XattrMode::Create);
    let taken =
        race.lose(|r| r.set_xattr(r.at(ROOT, "g").ino, "user.a", "theirs", XattrMode::Set).unwrap(), create);
    assert_eq!(taken, Err(Errno::EEXIST));
    let d = race.client.mkdir(ROOT, "d").unwrap();
    let rev = [(d, race.client.inode(d).access_rev)];
    let by_kernel = Authority::Kernel { revisions: Some(&rev) };
    let revoked = race.lose(
        |r| r.chmod(r.at(ROOT, "d").ino, 0o700).unwrap(),
        |c| c.run_as(&c.make_op(d, "x", MakeKind::Regular, 0o644), &by_kernel),
    );
    assert_eq!(revoked.unwrap_err(), Errno::ESTALE);
    let rev = [(f, race.client.inode(f).access_rev)];
    let disowned = race.lose(
        |r| r.run(&SetAttr { ino: r.at(ROOT, "g").ino, uid: Some(7), ..SetAttr::default() }).unwrap(),
        |c| {
            let chmod = SetAttr { ino: f, mode: Some(Mode::new(0o666)), ..SetAttr::default() };
            c.run_as(&chmod, &Authority::Kernel { revisions: Some(&rev) })
        },
    );
    assert_eq!(disowned, Err(Errno::ESTALE));
    check(&race.client);
}

fn xattrs_changed_before_the_commit(factory: Factory<'_>) {
    let race = Race::new(factory);
    let f = race.client.create(ROOT, "f").unwrap();
    let set = |name: &str, len: usize| {
        let (name, value) = (x(name), vec![7; len].into());
        move |c: &Client| {
            let ino = c.at(ROOT, "f").ino;
            c.run(&SetXattr { ino, name: name.clone(), value, mode: XattrMode::Set })
        }
    };
    (0..15).for_each(|n| set(&format!("user.{n}"), 65_536)(&race.client).unwrap());
    set("user.15", 61_440)(&race.client).unwrap();
    // One block is left, and both clients need it.
    let last = race.lose(
        |r| r.set_xattr(r.at(ROOT, "f").ino, "user.theirs", "", XattrMode::Set).unwrap(),
        set("user.own", 1),
    );
    assert_eq!(last, Err(Errno::ENOSPC));
    assert_eq!(race.client.stranger().inode(f).xattr_blocks, Inode::MAX_XATTR_BLOCKS);
    let remove = |name: &'static str| {
        move |c: &Client| c.run(&RemoveXattr { ino: c.at(ROOT, "f").ino, name: x(name) })
    };
    let freed = race.lose(
        |r| r.run(&RemoveXattr { ino: r.at(ROOT, "f").ino, name: x("user.theirs") }).unwrap(),
        set("user.own", 1),
    );
    assert_eq!(freed, Ok(()));
    // Another client enlarges or removes the attribute that this one replaces or removes.
    let grow = |r: &Client| {
        let (ino, name, mode) = (r.at(ROOT, "f").ino, x("user.own"), XattrMode::Set);
        r.run(&RemoveXattr { ino, name: x("user.15") }).unwrap();
        r.run(&SetXattr { ino, name, value: vec![7; 9000].into(), mode }).unwrap();
    };
    assert_eq!(race.lose(grow, set("user.own", 4097)), Ok(()));
    assert_eq!(race.client.stranger().inode(f).xattr_blocks, 15 * 16 + 2);
    let grow = |r: &Client| {
        let (ino, name, mode) = (r.at(ROOT, "f").ino, x("user.own"), XattrMode::Set);
        r.run(&SetXattr { ino, name, value: vec![7; 9000].into(), mode }).unwrap();
    };
    assert_eq!(race.lose(grow, remove("user.own")), Ok(()));
    assert_eq!(race.client.stranger().inode(f).xattr_blocks, 15 * 16);
    let gone = race.lose(
        |r| r.run(&RemoveXattr { ino: r.at(ROOT, "f").ino, name: x("user.0") }).unwrap(),
        remove("user.0"),
    );
    assert_eq!(gone, Err(Errno::ENODATA));
    check(&race.client);
}

fn a_retry_after_a_lost_reply_commits_once(factory: Factory<'_>) {
    let race = Race::new(factory);
    // The create commits, its reply is lost, and the rival removes the new name before the retry.
    race.faulty.set_rival({
        let rival = race.rival.clone();
        move |_| {
            rival.lock().unwrap().unlink(ROOT, "f").unwrap();
        }
    });
    race.faulty.script([Fault::None, Fault::After, Fault::Rival]);
    let made = race.client.create(ROOT, "f");
    assert!(made.is_ok(), "the create committed exactly once: {made:?}");
    assert_eq!(race.client.stranger().lookup(ROOT, "f"), Ok(None));
    check(&race.client);
}

/// An operation was committed, but its client got an error: the client must read the records again.
fn records_are_read_again_after_an_indeterminate_error(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let faulty = Arc::new(Faulty::new(engine, 1, FaultRates { before: 1000, ..FaultRates::default() }));
    let client = client(&(Arc::clone(&faulty) as Arc<dyn Engine>));
    client.meta.set_exclusive(true);
    client.meta.set_retry_timeout(Duration::from_millis(20));
    let dir = client.mkdir(ROOT, "d").unwrap();
    let [f, g] = ["f", "g"].map(|name| client.create(dir, name).unwrap());
    assert_eq!(client.lookup(dir, "new"), Ok(None));
    // The first attempt commits; all later ones fail.
    let lose = |act: &dyn Fn() -> Result<(), Failure>| {
        faulty.script([Fault::After]);
        faulty.arm(true);
        let failure = act().unwrap_err();
        faulty.arm(false);
        let Failure::Engine(error) = failure else { panic!("{failure}") };
        assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    };
    let chmod = SetAttr { ino: f, mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    lose(&|| client.meta.run(&chmod, &KERNEL).map(drop));
    assert_eq!(client.inode(f).mode, Mode::new(0o600));
    let set = SetXattr { ino: f, name: x("user.a"), value: (*b"1").into(), mode: XattrMode::Set };
    lose(&|| client.meta.run(&set, &KERNEL));
    assert_eq!(client.run(&GetXattrs(f)).unwrap().len(), 1);
    lose(&|| client.meta.run(&Unlink { parent: dir, name: n("g"), open: None }, &KERNEL).map(drop));
    assert_eq!(client.lookup(dir, "g"), Ok(None));
    assert_eq!(client.run(&GetInode(g)), Err(Errno::ESTALE));
    let make = client.make_op(dir, "new", MakeKind::Regular, 0o644);
    lose(&|| client.meta.run(&make, &KERNEL).map(drop));
    assert!(client.lookup(dir, "new").unwrap().is_some());
    assert_eq!(client.create(dir, "new").unwrap_err(), Errno::EEXIST);
    check(&client);
}

/// If many clients append to one file, the records that a client read before a back-off pause are stale after
/// it.
fn repeated_conflicts_back_off_and_read_again(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let counting = Arc::new(Counting::new(engine.clone()));
    let faulty = Arc::new(Faulty::new(Arc::clone(&counting), 1, FaultRates::default()));
    let (loser, rival) = (client(&(Arc::clone(&faulty) as Arc<dyn Engine>)), client(&engine));
    let ino = loser.create(ROOT, "f").unwrap();
    let append =
        move |c: &Client| c.run(&Append { ino, source: SliceSource::Inline((*b"ab").into()), len: 2 });
    assert_eq!((append(&loser), append(&rival)), (Ok(0), Ok(2)));
    // The rival commits first unless the file was read right before the commit.
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
    assert_eq!(append(&loser), Ok(12), "after four more appends of the rival");
    let after = counting.counts();
    assert_eq!((after.commits - before.commits, after.reads - before.reads), (5, 1));
    faulty.arm(false);
    check(&loser);
}

/// A client that finds the volume full after several conflicts must not retry as if there were space.
fn repeated_conflicts_still_report_a_full_volume(factory: Factory<'_>) {
    let engine = factory();
    Volume { max_inodes: 3, ..volume() }.format(&*engine).unwrap();
    let counting = Arc::new(Counting::new(engine.clone()));
    let faulty = Arc::new(Faulty::new(Arc::clone(&counting), 1, FaultRates::default()));
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

/// Commits the transaction in `kept` together with the next one, and leaves removed inodes out of the
/// outcome.
#[derive(Debug)]
struct Joined {
    engine: Arc<dyn Engine>,
    kept: Mutex<Option<Txn>>,
}

impl Engine for Joined {
    meta::pass_on! { (.engine) read scan sync wipe }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let joined: Vec<_> = txns.iter().cloned().chain(self.kept.lock().unwrap().take()).collect();
        let is_dropped = |inode: &Inode| {
            joined.iter().flat_map(|txn| &txn.effects).any(|e| *e == Effect::DropInode { ino: inode.ino })
        };
        let mut outcomes = self.engine.commit(&joined)?;
        outcomes.truncate(txns.len());
        for outcome in &mut outcomes {
            if let Outcome::Committed { inodes, .. } = outcome {
                inodes.retain(|inode| !is_dropped(inode));
            }
        }
        Ok(outcomes)
    }
}

/// One transaction drops a link of a file, and the next one of the same call drops the last link. The outcome
/// of the first one need not contain the inode.
fn an_inode_removed_by_the_same_call_is_not_cached(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let joined = Arc::new(Joined { engine: engine.clone(), kept: Mutex::default() });
    let own = client(&(Arc::clone(&joined) as Arc<dyn Engine>));
    own.meta.set_current_until(BootInstant::now() + Duration::from_secs(3600));
    let f = own.create(ROOT, "f").unwrap();
    own.link(f, ROOT, "g").unwrap();
    assert_eq!(own.inode(f).nlink, 2);
    let effects = vec![Effect::DropDirent { parent: ROOT, name: n("f") }, Effect::DropInode { ino: f }];
    *joined.kept.lock().unwrap() = Some(Txn { op_id: OpId(1), guards: Vec::new(), effects });
    own.unlink(ROOT, "g").unwrap();
    assert_eq!(client(&engine).run(&GetInode(f)), Err(Errno::ESTALE));
    assert_ne!(own.run(&GetInode(f)).map(|inode| inode.nlink), Ok(2));
}
