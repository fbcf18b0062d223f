//! Removal of ACLs that no inode refers to, while clients use ACLs that they have cached.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meta::{Engine, Record, RecordKey, Scan};
use ops::{AclSweep, AclType, BeginAclSweep, MakeKind, SweepAcls};
use types::{AclId, Errno, Ino};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, acl, client, fresh};
use super::invariants::{check, inodes};
use crate::files::persistently;

pub(super) const CASES: &[Case] = &[
    ("a_removed_acl_is_stored_again_when_it_is_used", a_removed_acl_is_stored_again_when_it_is_used),
    ("a_condemned_acl_is_kept_if_it_is_used", a_condemned_acl_is_kept_if_it_is_used),
    ("only_the_last_sweep_removes_acls", only_the_last_sweep_removes_acls),
    ("no_inode_refers_to_a_removed_acl", no_inode_refers_to_a_removed_acl),
];

const DEFAULT: &str = "u::rwx,u:1000:rwx,g::r-x,m::rwx,o::r-x";

fn stored(engine: &Arc<dyn Engine>) -> BTreeSet<AclId> {
    let scan = Scan::Acls { after: AclId::NONE, limit: usize::MAX };
    let found = persistently(|| engine.scan(&scan)).snapshot.records;
    let id = |record: &Record| if let Record::Acl(id, _) = record { Some(*id) } else { None };
    found.iter().filter_map(id).collect()
}

fn unused(engine: &Arc<dyn Engine>, mut ids: BTreeSet<AclId>) -> BTreeSet<AclId> {
    for record in
        persistently(|| engine.scan(&Scan::Inodes { after: Ino(0), limit: usize::MAX })).snapshot.records
    {
        let Record::Inode(_, Some(inode)) = record else { continue };
        inode.acls().for_each(|id| _ = ids.remove(&id));
    }
    ids
}

fn sweep(c: &Client, ids: &BTreeSet<AclId>, drop: bool) -> Result<(), Errno> {
    let ids: Vec<AclId> = ids.iter().copied().collect();
    c.run(&SweepAcls { ids: &ids, step: 0, sweep: if drop { AclSweep::Drop } else { AclSweep::Condemn } })
}

/// One client sweeps the ACLs of removed files, while another one still has them cached.
fn a_removed_acl_is_stored_again_when_it_is_used(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let tool = client(c.engine());
    let dir = c.mkdir(ROOT, "d").unwrap();
    c.set_acl(dir, AclType::Default, Some(&acl(DEFAULT))).unwrap();
    let first = c.create(dir, "f").unwrap();
    let sub = c.mkdir(dir, "sub").unwrap();
    let plain = c.create(ROOT, "plain").unwrap();
    let (of_file, of_dir) = (c.inode(first).access_acl, c.inode(sub).access_acl);
    assert_eq!(of_dir, acl(DEFAULT).id());
    c.unlink(dir, "f").unwrap();
    c.rmdir(dir, "sub").unwrap();
    tool.run(&BeginAclSweep { step: 0 }).unwrap();
    for round in 0..3 {
        let ids = unused(c.engine(), stored(c.engine()));
        assert_eq!(ids, BTreeSet::from([of_file]), "round {round}");
        sweep(&tool, &ids, false).unwrap();
        sweep(&tool, &ids, true).unwrap();
        assert_eq!(stored(c.engine()), BTreeSet::from([acl(DEFAULT).id()]));
        // Each round tests one way in which an inode begins to refer to an ACL.
        match round {
            0 => {
                let again = c.create(dir, "f").unwrap();
                let sub = c.mkdir(dir, "sub").unwrap();
                assert_eq!((c.inode(again).access_acl, c.inode(sub).access_acl), (of_file, of_dir));
                check(&client(c.engine()));
                c.unlink(dir, "f").unwrap();
                c.rmdir(dir, "sub").unwrap();
            }
            1 => {
                let text = c.acl(of_file).unwrap();
                c.set_acl(plain, AclType::Access, Some(&text)).unwrap();
                c.set_acl(dir, AclType::Access, Some(&c.acl(of_dir).unwrap())).unwrap();
                check(&client(c.engine()));
                c.set_acl(plain, AclType::Access, None).unwrap();
                c.set_acl(dir, AclType::Access, None).unwrap();
            }
            _ => {}
        }
    }
    check(&client(c.engine()));
}

fn a_condemned_acl_is_kept_if_it_is_used(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let tool = client(c.engine());
    tool.run(&BeginAclSweep { step: 0 }).unwrap();
    let dir = c.mkdir(ROOT, "d").unwrap();
    c.set_acl(dir, AclType::Default, Some(&acl(DEFAULT))).unwrap();
    c.create(dir, "f").unwrap();
    c.mkdir(dir, "sub").unwrap();
    let all = stored(c.engine());
    assert_eq!(all.len(), 2);
    // Condemn the ACLs as if the preceding walk had not found the references. They are in use, so they can
    // still be read.
    sweep(&tool, &all, false).unwrap();
    check(&client(c.engine()));
    // A new directory inherits the default ACL of its parent, and the parent then loses it.
    c.make(dir, "heir", MakeKind::Directory, 0o700).unwrap();
    c.create(dir, "g").unwrap();
    c.set_acl(dir, AclType::Default, None).unwrap();
    c.rmdir(dir, "sub").unwrap();
    c.unlink(dir, "f").unwrap();
    sweep(&tool, &all, true).unwrap();
    assert!(all.is_subset(&stored(c.engine())));
    check(&client(c.engine()));
    // An inode keeps the ACLs that it has, even if they are condemned.
    sweep(&tool, &all, false).unwrap();
    let ino = c.at(dir, "g").ino;
    c.run(&ops::SetAttr { ino, uid: Some(7), ..ops::SetAttr::default() }).unwrap();
    c.rename(dir, "g", ROOT, "g", super::fixture::REPLACE).unwrap();
    check(&client(c.engine()));
}

fn only_the_last_sweep_removes_acls(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let (first, second) = (client(c.engine()), client(c.engine()));
    let ino = c.create(ROOT, "f").unwrap();
    c.set_acl(ino, AclType::Access, Some(&acl(DEFAULT))).unwrap();
    let ids = stored(c.engine());
    assert_eq!(sweep(&first, &ids, false), Err(Errno::EBUSY));
    first.run(&BeginAclSweep { step: 0 }).unwrap();
    sweep(&first, &ids, false).unwrap();
    second.run(&BeginAclSweep { step: 0 }).unwrap();
    assert_eq!(sweep(&first, &ids, true), Err(Errno::EBUSY));
    assert_eq!(stored(c.engine()), ids);
    sweep(&second, &ids, true).unwrap();
    assert_eq!(stored(c.engine()), BTreeSet::new());
}

/// Two clients create files and directories under default ACLs and set ACLs, while a tool removes unused ACLs
/// in a loop.
fn no_inode_refers_to_a_removed_acl(factory: Factory<'_>) {
    let a = Arc::new(fresh(factory));
    a.meta.set_exclusive(false);
    let b = Arc::new(client(a.engine()));
    let dir = a.mkdir(ROOT, "d").unwrap();
    a.set_acl(dir, AclType::Default, Some(&acl(DEFAULT))).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let make = |thread: usize| {
            let (c, ended) = ([&a, &b][thread % 2], &ended);
            scope.spawn(move || {
                for round in 0_usize.. {
                    let file = format!("f{thread}");
                    let ino = c.create(dir, &file).unwrap();
                    is_kept(c, ino);
                    let sub = c.mkdir(dir, &format!("s{thread}")).unwrap();
                    is_kept(c, sub);
                    let one = acl(&format!("u::rwx,u:{}:rwx,g::r-x,m::rwx,o::r-x", 2000 + round % 3));
                    c.set_acl(ino, AclType::Access, Some(&one)).unwrap();
                    is_kept(c, ino);
                    // The default ACL of the directory moves to its heir.
                    c.set_acl(sub, AclType::Default, Some(&one)).unwrap();
                    let heir = c.mkdir(sub, "heir").unwrap();
                    c.set_acl(sub, AclType::Default, None).unwrap();
                    is_kept(c, heir);
                    c.rmdir(sub, "heir").unwrap();
                    c.rmdir(dir, &format!("s{thread}")).unwrap();
                    c.unlink(dir, &file).unwrap();
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                }
            })
        };
        let threads: Vec<_> = (0..4).map(make).collect();
        let _end = End(&ended);
        let tool = client(a.engine());
        tool.run(&BeginAclSweep { step: 0 }).unwrap();
        let (mut dropped, began) = (0, Instant::now());
        for round in 0.. {
            let mut ids = unused(tool.engine(), stored(tool.engine()));
            sweep(&tool, &ids, false).unwrap();
            ids = unused(tool.engine(), ids);
            sweep(&tool, &ids, true).unwrap();
            dropped += ids.len();
            if round >= 30 && dropped >= 30 || threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "only {dropped} ACLs were removed in 60 s");
        }
    });
    check(&client(a.engine()));
    let ids = inodes(a.engine()).into_values().flat_map(|inode| inode.acls()).collect::<BTreeSet<_>>();
    assert!(ids.is_subset(&stored(a.engine())));
}

/// Ends the other threads, even if the test panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that the ACLs of an inode are stored.
fn is_kept(c: &Client, ino: Ino) {
    let records = persistently(|| c.engine().read(&[RecordKey::Inode(ino)])).records;
    let Some(Record::Inode(_, Some(inode))) = records.first() else { panic!("no inode {ino}") };
    let stored = stored(c.engine());
    let inode = *inode;
    assert!(inode.acls().count() > 0 && inode.acls().all(|id| stored.contains(&id)), "{inode:?}, {stored:?}");
}
