//! The cost of operations in round trips.

use std::sync::Arc;

use meta::{Counting, Engine};
use ops::{AclType, GetAcl, MakeKind, RemoveXattr, SetAttr, XattrMode};
use types::{Errno, Ino, Mode};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, REPLACE, ROOT, acl, client, n, volume};

pub(super) const CASES: &[Case] = &[
    ("a_warm_operation_is_one_round_trip", a_warm_operation_is_one_round_trip),
    ("a_warm_exclusive_operation_is_one_round_trip_and_a_read_none", alone),
    ("a_cold_name_is_one_round_trip", a_cold_name_is_one_round_trip),
    ("absent_names_in_a_fully_cached_directory_need_no_round_trip", absent_names_need_no_round_trip),
    ("an_error_is_one_round_trip_or_none", an_error_is_one_round_trip_or_none),
    ("a_thousand_entries_with_acls_are_two_round_trips", a_thousand_entries_with_acls_are_two_round_trips),
];

const NAMED: &str = "u::rwx,u:1000:rw-,g::r-x,m::rwx,o::---";

/// Runs an operation that must fail, and returns its errno.
type Try = Box<dyn Fn(&Client) -> Option<Errno>>;

struct Bench {
    engine: Arc<Counting<Arc<dyn Engine>>>,
    client: Client,
}

impl Bench {
    fn new(factory: Factory<'_>, alone: bool) -> Self {
        let engine = Arc::new(Counting::new(factory()));
        volume().format(&*engine).unwrap();
        let shared: Arc<dyn Engine> = engine.clone();
        let client = client(&shared);
        client.meta.set_exclusive(alone);
        Bench { engine, client }
    }

    /// The number of round trips of `act`, and its result. The names in `warm` and their directories are
    /// cached first.
    fn cost<T>(&self, warm: &[(Ino, &str)], act: impl FnOnce(&Client) -> T) -> (u64, T) {
        for dir in [ROOT].into_iter().chain(warm.iter().map(|(dir, _)| *dir)) {
            self.client.inode(dir);
        }
        for (dir, name) in warm {
            let _ = self.client.lookup(*dir, name);
        }
        let before = self.engine.counts();
        let reply = act(&self.client);
        ((self.engine.counts() - before).round_trips(), reply)
    }

    fn pin<T: std::fmt::Debug>(
        &self,
        most: u64,
        what: &str,
        warm: &[(Ino, &str)],
        act: impl FnOnce(&Client) -> Result<T, Errno>,
    ) -> T {
        let (trips, reply) = self.cost(warm, act);
        assert!(trips <= most, "{what}: {trips} round trips, not {most}");
        reply.unwrap_or_else(|errno| panic!("{what}: {errno}"))
    }
}

fn a_warm_operation_is_one_round_trip(factory: Factory<'_>) {
    warm_operations(&Bench::new(factory, false), 1);
}

fn alone(factory: Factory<'_>) {
    warm_operations(&Bench::new(factory, true), 0);
}

/// Runs each kind of operation once. `looks` is the cost of an operation that only reads.
fn warm_operations(bench: &Bench, looks: u64) {
    let b = bench;
    let dir = b.pin(1, "mkdir", &[], |c| c.mkdir(ROOT, "dir"));
    let other = b.pin(1, "mkdir", &[], |c| c.mkdir(ROOT, "other"));
    let file = b.pin(1, "create", &[(ROOT, "dir")], |c| c.create(dir, "file"));
    b.pin(1, "symlink", &[(ROOT, "dir")], |c| c.symlink(dir, "link", "target"));
    b.pin(1, "mknod", &[(ROOT, "dir")], |c| c.make(dir, "fifo", MakeKind::Fifo, 0o600));
    b.pin(looks, "lookup", &[(dir, "file")], |c| c.lookup(dir, "file"));
    b.pin(looks, "getattr", &[(dir, "file")], |c| c.run(&ops::GetInode(file)));
    b.pin(1, "link", &[(dir, "file")], |c| c.link(file, other, "twin"));
    b.pin(1, "chmod", &[(dir, "file")], |c| c.chmod(file, 0o640));
    b.pin(1, "truncate", &[(dir, "file")], |c| c.truncate(file, 77));
    let chown = SetAttr { ino: file, uid: Some(3), mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    b.pin(1, "chown", &[(dir, "file")], |c| c.run(&chown));
    b.pin(1, "write", &[(dir, "file")], |c| c.write(file, 0, 5, 1));
    for mode in [XattrMode::Set, XattrMode::Replace] {
        b.pin(1, "setxattr", &[(dir, "file")], |c| c.set_xattr(file, "user.a", "1", mode));
    }
    b.pin(1, "setxattr", &[(dir, "file")], |c| c.set_xattr(file, "user.b", "1", XattrMode::Create));
    let remove = RemoveXattr { ino: file, name: super::fixture::x("user.a") };
    b.pin(1, "removexattr", &[(dir, "file")], |c| c.run(&remove));
    let named = acl(NAMED);
    b.pin(1, "setacl", &[(dir, "file")], |c| c.set_acl(file, AclType::Access, Some(&named)));
    b.pin(1, "chmod with an ACL", &[(dir, "file")], |c| c.chmod(file, 0o600));
    b.pin(1, "setacl default", &[(ROOT, "dir")], |c| c.set_acl(dir, AclType::Default, Some(&named)));
    for name in ["heir", "heir2"] {
        b.pin(1, "create under a default ACL", &[(ROOT, "dir")], |c| c.create(dir, name));
    }
    b.pin(1, "mkdir under a default ACL", &[(ROOT, "dir")], |c| c.mkdir(dir, "sub"));
    b.pin(1, "rename", &[(dir, "file"), (dir, "new")], |c| c.rename(dir, "file", dir, "new", REPLACE));
    let onto = [(dir, "new"), (other, "twin2")];
    b.pin(1, "rename to another", &onto, |c| c.rename(dir, "new", other, "twin2", REPLACE));
    let both = [(dir, "heir"), (other, "twin")];
    b.pin(1, "rename onto a file", &both, |c| c.rename(dir, "heir", other, "twin", REPLACE));
    let dirs = [(dir, "sub"), (other, "sub"), (ROOT, "dir"), (ROOT, "other")];
    b.pin(1, "rename of a directory", &dirs, |c| c.rename(dir, "sub", other, "sub", REPLACE));
    let both = [(other, "sub"), (dir, "heir2"), (ROOT, "dir"), (ROOT, "other")];
    b.pin(1, "exchange", &both, |c| c.rename(other, "sub", dir, "heir2", EXCHANGE));
    b.pin(1, "unlink", &[(other, "twin")], |c| c.unlink(other, "twin"));
    let open = b.client.at(other, "twin2").ino;
    b.pin(1, "unlink of an open file", &[(other, "twin2")], |c| c.unlink_open(other, "twin2", Some(open)));
    let reap = ops::Reap { session: b.client.meta.session(), ino: open };
    b.pin(1, "reap", &[], |c| {
        c.inode(open);
        c.run(&reap)
    });
    b.pin(1, "rmdir", &[(dir, "heir2")], |c| c.rmdir(dir, "heir2"));
}

fn a_cold_name_is_one_round_trip(factory: Factory<'_>) {
    for alone in [false, true] {
        let b = Bench::new(factory, alone);
        let dir = b.client.mkdir(ROOT, "dir").unwrap();
        let file = b.client.create(dir, "file").unwrap();
        b.client.set_acl(file, AclType::Access, Some(&acl(NAMED))).unwrap();
        b.client.meta.set_exclusive(alone);
        let (trips, found) = b.cost(&[(ROOT, "dir")], |c| c.at(dir, "file"));
        assert_eq!(trips, 1, "the dirent, its inode and its ACL are read together");
        let (trips, found) = b.cost(&[], |c| c.run(&GetAcl(found.access_acl)).unwrap());
        assert_eq!((trips, found.as_deref()), (0, Some(&acl(NAMED))));
        let (trips, found) = b.cost(&[(ROOT, "dir")], |c| c.lookup(dir, "none").unwrap());
        assert_eq!((trips, found), (1, None));
        b.client.meta.set_exclusive(alone);
        let (trips, found) = b.cost(&[], |c| c.lookup(dir, "file").unwrap());
        assert!(trips <= 1 && found.is_some(), "not even the directory was cached");
        b.client.meta.set_exclusive(alone);
        let (trips, made) = b.cost(&[(ROOT, "dir")], |c| c.create(dir, "new"));
        assert!(trips <= 1 && made.is_ok(), "a new name needs no lookup");
    }
}

/// A client with exclusive use knows all names of a directory that it created or listed; other clients must
/// query absent names.
fn absent_names_need_no_round_trip(factory: Factory<'_>) {
    for (alone, look) in [(true, 0), (false, 1)] {
        let b = Bench::new(factory, alone);
        let dir = b.client.mkdir(ROOT, "dir").unwrap();
        let create = |name: &'static str| {
            move |c: &Client| c.lookup(dir, name).map(|found| (found, c.create(dir, name).unwrap()))
        };
        let (found, file) = b.pin(look + 1, "create in a new directory", &[], create("a"));
        assert_eq!(found, None);
        assert_eq!(b.client.at(dir, "a").ino, file);
        b.pin(look + 1, "rename there", &[(dir, "a")], |c| c.rename(dir, "a", dir, "b", REPLACE));
        b.pin(look + 1, "create where a name was moved away", &[], create("a"));
        for name in ["c", "d"] {
            b.client.create(dir, name).unwrap();
        }
        // Another client changes the directory, the cache is emptied (`set_exclusive`), and the directory is
        // listed in three pages.
        let others = b.client.stranger().create(dir, "e").unwrap();
        b.client.meta.set_exclusive(alone);
        b.pin(1, "an uncached name in an uncached directory", &[], |c| c.lookup(dir, "z"));
        let mut after = None;
        for (last, more) in [("b", true), ("d", true), ("e", false)] {
            let page = b.client.meta.list(dir, after, 2, true).unwrap();
            after = page.entries.last().map(|(name, ..)| name.clone());
            assert_eq!((after.as_ref(), page.more), (Some(&n(last)), more));
        }
        let (found, _) = b.pin(look + 1, "create in a directory that was listed", &[], create("bb"));
        assert_eq!(found, None);
        assert_eq!(b.client.at(dir, "e").ino, others);
    }
}

fn an_error_is_one_round_trip_or_none(factory: Factory<'_>) {
    for (alone, most) in [(false, 1), (true, 0)] {
        let b = Bench::new(factory, alone);
        let dir = b.client.mkdir(ROOT, "dir").unwrap();
        let file = b.client.create(ROOT, "file").unwrap();
        let none = [(ROOT, "none"), (ROOT, "file"), (ROOT, "dir")];
        let refused: [(&str, Try, Errno); 7] = [
            ("create", Box::new(|c| c.create(ROOT, "file").err()), Errno::EEXIST),
            ("unlink", Box::new(|c| c.unlink(ROOT, "none").err()), Errno::ENOENT),
            ("unlink of a directory", Box::new(|c| c.unlink(ROOT, "dir").err()), Errno::EISDIR),
            ("rmdir", Box::new(|c| c.rmdir(ROOT, "file").err()), Errno::ENOTDIR),
            ("rename", Box::new(|c| c.rename(ROOT, "none", ROOT, "x", REPLACE).err()), Errno::ENOENT),
            ("link", Box::new(move |c| c.link(file, ROOT, "dir").err()), Errno::EEXIST),
            ("truncate", Box::new(move |c| c.truncate(dir, 0).err()), Errno::EISDIR),
        ];
        for (what, act, errno) in refused {
            let (trips, found) = b.cost(&[none.as_slice(), &[(ROOT, "x")]].concat(), act);
            assert_eq!(found, Some(errno), "{what}");
            assert!(trips <= most, "{what}: {trips} round trips, not {most}");
        }
    }
}

fn a_thousand_entries_with_acls_are_two_round_trips(factory: Factory<'_>) {
    let b = Bench::new(factory, true);
    let dir = b.client.mkdir(ROOT, "dir").unwrap();
    for i in 0..1000 {
        let file = b.client.create(dir, &format!("f{i:04}")).unwrap();
        if i % 2 == 0 {
            let acl = acl(&format!("u::rw-,u:{}:r--,g::r--,m::r--,o::---", 1000 + i % 20));
            b.client.set_acl(file, AclType::Access, Some(&acl)).unwrap();
        }
    }
    b.client.meta.set_exclusive(false);
    let (trips, entries) = b.cost(&[], |c| {
        let listing = c.meta.list(dir, None, 1000, true).unwrap();
        assert_eq!(listing.entries.last().map(|(name, ..)| name.clone()), Some(n("f0999")));
        for (_, _, inode) in &listing.entries {
            let id = inode.unwrap().access_acl;
            assert_eq!(c.acl(id).is_some(), !id.is_none());
        }
        listing.entries.len()
    });
    assert!(entries == 1000 && trips <= 2, "{trips} round trips");
}
