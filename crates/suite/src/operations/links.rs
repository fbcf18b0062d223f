//! Hard links.

use ops::MakeKind;
use types::{Errno, Ino};

use super::case::{Case, Factory};
use super::fixture::{ROOT, fresh};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("a_link_adds_a_name", a_link_adds_a_name),
    ("link_checks_errors_in_order", link_checks_errors_in_order),
];

fn a_link_adds_a_name(factory: Factory<'_>) {
    let c = fresh(factory);
    let made = c.make(ROOT, "a", MakeKind::Regular, 0o644).unwrap();
    let dir = c.mkdir(ROOT, "d").unwrap();
    let before = c.inode(dir);
    let linked = c.run(&c.link_op(made.ino, dir, "b")).unwrap();
    assert_eq!(linked, c.at(dir, "b"));
    assert_eq!((linked.ino, linked.nlink, linked.mtime), (made.ino, 2, made.mtime));
    assert!(linked.ctime > made.ctime);
    let after = c.inode(dir);
    assert_eq!((after.nlink, after.mtime), (2, linked.ctime));
    assert!(after.mtime > before.mtime);
    for (name, kind) in [("s", MakeKind::Symlink(b"t".as_slice().into())), ("p", MakeKind::Fifo)] {
        let ino = c.make(ROOT, name, kind, 0o644).unwrap().ino;
        c.link(ino, dir, name).unwrap();
        assert_eq!(c.stranger().at(dir, name).nlink, 2, "{name}");
    }
    check(&c);
}

fn link_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    let dir = c.mkdir(ROOT, "dir").unwrap();
    let gone = c.create(ROOT, "gone").unwrap();
    c.unlink(ROOT, "gone").unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(client.link(file, Ino(1 << 40), "x"), Err(Errno::ENOENT));
        assert_eq!(client.link(file, file, "x"), Err(Errno::ENOTDIR));
        assert_eq!(client.link(file, ROOT, "dir"), Err(Errno::EEXIST));
        assert_eq!(client.link(gone, ROOT, "x"), Err(Errno::ENOENT));
        assert_eq!(client.link(dir, ROOT, "x"), Err(Errno::EPERM));
    }
    // EEXIST comes first, even if the name is not cached.
    for ino in [dir, gone] {
        assert_eq!(c.link(ino, ROOT, "file"), Err(Errno::EEXIST));
        assert_eq!(c.stranger().link(ino, ROOT, "file"), Err(Errno::EEXIST));
        let alone = c.stranger();
        alone.meta.set_exclusive(true);
        assert_eq!(alone.link(ino, ROOT, "file"), Err(Errno::EEXIST));
    }
    check(&c);
}
