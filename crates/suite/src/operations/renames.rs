//! Rename: to a free name, over an existing one, exchange, and errors.

use ops::{Reap, Rename, RenameFlags, UnlinkOutcome};
use types::{Errno, Ino};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, NO_REPLACE, REPLACE, ROOT, fresh, n};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("rename_moves_a_name", rename_moves_a_name),
    ("rename_moves_a_directory", rename_moves_a_directory),
    ("rename_replaces_the_target", rename_replaces_the_target),
    ("rename_checks_errors_in_order", rename_checks_errors_in_order),
    ("rename_onto_the_same_inode_does_nothing", rename_onto_the_same_inode_does_nothing),
    ("rename_creates_no_cycle", rename_creates_no_cycle),
    ("rename_into_a_deep_directory_reads_all_ancestors", rename_into_a_deep_directory_reads_all_ancestors),
    ("rename_exchanges", rename_exchanges),
    ("a_replaced_open_file_becomes_an_orphan", a_replaced_open_file_becomes_an_orphan),
];

fn nlink(c: &Client, ino: Ino) -> u32 {
    assert_eq!(c.inode(ino), c.stranger().inode(ino));
    c.inode(ino).nlink
}

fn rename_moves_a_name(factory: Factory<'_>) {
    let c = fresh(factory);
    let (from, to) = (c.mkdir(ROOT, "from").unwrap(), c.mkdir(ROOT, "to").unwrap());
    let file = c.create(from, "a").unwrap();
    let (inode, old, new) = (c.inode(file), c.inode(from), c.inode(to));
    let renamed = c.rename(from, "a", to, "b", REPLACE).unwrap();
    assert_eq!((renamed.moved, renamed.exchanged, renamed.replaced), (inode, None, None));
    assert_eq!(c.lookup(from, "a"), Ok(None));
    let moved = c.at(to, "b");
    assert_eq!((moved.ino, moved.nlink, moved.mtime), (file, 1, inode.mtime));
    assert!(moved.ctime > inode.ctime, "rename changes ctime of the inode");
    assert!(c.inode(from).mtime > old.mtime && c.inode(to).mtime > new.mtime);
    assert_eq!((nlink(&c, from), nlink(&c, to)), (2, 2));
    c.rename(to, "b", to, "c", NO_REPLACE).unwrap();
    assert_eq!(c.stranger().at(to, "c").ino, file);
    check(&c);
}

fn rename_moves_a_directory(factory: Factory<'_>) {
    let c = fresh(factory);
    let (from, to) = (c.mkdir(ROOT, "from").unwrap(), c.mkdir(ROOT, "to").unwrap());
    let dir = c.mkdir(from, "d").unwrap();
    c.create(dir, "f").unwrap();
    assert_eq!((nlink(&c, from), nlink(&c, to)), (3, 2));
    c.rename(from, "d", to, "d", REPLACE).unwrap();
    assert_eq!((nlink(&c, from), nlink(&c, to), c.inode(dir).parent), (2, 3, to));
    c.rename(to, "d", to, "e", REPLACE).unwrap();
    assert_eq!((nlink(&c, to), c.inode(dir).parent), (3, to));
    c.rename(to, "e", ROOT, "d", REPLACE).unwrap();
    assert_eq!((nlink(&c, to), nlink(&c, ROOT), c.inode(dir).parent), (2, 5, ROOT));
    assert!(c.lookup(dir, "f").unwrap().is_some());
    check(&c);
}

fn rename_replaces_the_target(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    let replaced = c.rename(ROOT, "a", ROOT, "b", REPLACE).unwrap().replaced.unwrap();
    assert_eq!((replaced.inode.ino, replaced.outcome), (b, UnlinkOutcome::Removed));
    assert_eq!(c.at(ROOT, "b").ino, a);
    assert_eq!(c.run(&ops::GetInode(b)), Err(Errno::ESTALE));
    // A file with another name survives being replaced.
    let twin = c.create(ROOT, "twin").unwrap();
    c.link(twin, ROOT, "twin2").unwrap();
    let replaced = c.rename(ROOT, "b", ROOT, "twin", REPLACE).unwrap().replaced.unwrap();
    assert_eq!((replaced.outcome, c.inode(twin).nlink), (UnlinkOutcome::Linked, 1));
    // An empty directory may be replaced by a directory, within a parent and between parents.
    let (d, e, f) = (c.mkdir(ROOT, "d").unwrap(), c.mkdir(ROOT, "e").unwrap(), c.mkdir(ROOT, "f").unwrap());
    c.rename(ROOT, "d", ROOT, "e", REPLACE).unwrap();
    assert_eq!((nlink(&c, ROOT), c.at(ROOT, "e").ino), (4, d));
    let inner = c.mkdir(f, "e").unwrap();
    c.rename(ROOT, "e", f, "e", REPLACE).unwrap();
    assert_eq!((nlink(&c, ROOT), nlink(&c, f), c.at(f, "e").ino), (3, 3, d));
    for gone in [e, inner] {
        assert_eq!(c.stranger().run(&ops::GetInode(gone)), Err(Errno::ESTALE));
    }
    // A symlink and a file may replace each other: only directories are treated differently.
    c.symlink(ROOT, "s", "t").unwrap();
    c.rename(ROOT, "s", ROOT, "twin2", REPLACE).unwrap();
    check(&c);
}

fn rename_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    let (full, empty) = (c.mkdir(ROOT, "full").unwrap(), c.mkdir(ROOT, "empty").unwrap());
    c.create(full, "x").unwrap();
    let both = RenameFlags { no_replace: true, exchange: true };
    let nowhere = Ino(1 << 40);
    let cases = [
        ((nowhere, "file", nowhere, "x", both), Errno::EINVAL),
        ((nowhere, "file", file, "x", REPLACE), Errno::ENOENT),
        ((ROOT, "file", nowhere, "x", REPLACE), Errno::ENOENT),
        ((file, "file", ROOT, "x", REPLACE), Errno::ENOTDIR),
        ((ROOT, "none", file, "x", REPLACE), Errno::ENOTDIR),
        ((ROOT, "none", ROOT, "file", NO_REPLACE), Errno::ENOENT),
        ((ROOT, "none", ROOT, "file", EXCHANGE), Errno::ENOENT),
        ((ROOT, "file", ROOT, "none", EXCHANGE), Errno::ENOENT),
        ((ROOT, "file", ROOT, "full", NO_REPLACE), Errno::EEXIST),
        ((ROOT, "file", ROOT, "file", NO_REPLACE), Errno::EEXIST),
        ((ROOT, "full", full, "x", NO_REPLACE), Errno::EEXIST),
        ((ROOT, "full", full, "y", REPLACE), Errno::EINVAL),
        ((ROOT, "full", full, "x", EXCHANGE), Errno::EINVAL),
        ((full, "x", ROOT, "full", REPLACE), Errno::ENOTEMPTY),
        ((full, "x", ROOT, "full", EXCHANGE), Errno::EINVAL),
        ((ROOT, "empty", ROOT, "file", REPLACE), Errno::ENOTDIR),
        ((ROOT, "file", ROOT, "empty", REPLACE), Errno::EISDIR),
        ((ROOT, "file", ROOT, "full", REPLACE), Errno::EISDIR),
        ((ROOT, "empty", ROOT, "full", REPLACE), Errno::ENOTEMPTY),
    ];
    let alone_and_cold = c.stranger();
    alone_and_cold.meta.set_exclusive(true);
    for ((from, name, to, new_name, flags), errno) in cases {
        for client in [&c, &c.stranger(), &alone_and_cold] {
            let refused = client.rename(from, name, to, new_name, flags);
            assert_eq!(refused.unwrap_err(), errno, "{name} to {new_name}, {flags:?}");
        }
    }
    assert_eq!(c.inode(empty).nlink, 2);
    check(&c);
}

fn rename_onto_the_same_inode_does_nothing(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, dir) = (c.create(ROOT, "a").unwrap(), c.mkdir(ROOT, "d").unwrap());
    c.link(a, ROOT, "b").unwrap();
    c.link(a, dir, "c").unwrap();
    let (inode, root) = (c.inode(a), c.inode(ROOT));
    for flags in [REPLACE, EXCHANGE] {
        for client in [&c, &c.stranger()] {
            client.rename(ROOT, "a", ROOT, "a", flags).unwrap();
            client.rename(ROOT, "a", ROOT, "b", flags).unwrap();
            client.rename(ROOT, "a", dir, "c", flags).unwrap();
            client.rename(ROOT, "d", ROOT, "d", flags).unwrap();
        }
    }
    assert_eq!((c.inode(a), c.inode(ROOT)), (inode, root), "no time changed");
    assert_eq!(c.at(ROOT, "a").ino, a);
    check(&c);
}

fn rename_creates_no_cycle(factory: Factory<'_>) {
    let c = fresh(factory);
    let a = c.mkdir(ROOT, "a").unwrap();
    let b = c.mkdir(a, "b").unwrap();
    let d = c.mkdir(b, "c").unwrap();
    let other = c.mkdir(ROOT, "other").unwrap();
    for client in [&c, &c.stranger()] {
        for (to, name) in [(a, "x"), (b, "x"), (d, "x")] {
            for flags in [REPLACE, NO_REPLACE] {
                assert_eq!(client.rename(ROOT, "a", to, name, flags).unwrap_err(), Errno::EINVAL);
            }
        }
        assert_eq!(client.rename(b, "c", ROOT, "a", REPLACE).unwrap_err(), Errno::ENOTEMPTY);
        assert_eq!(client.rename(b, "c", ROOT, "a", EXCHANGE).unwrap_err(), Errno::EINVAL);
        assert_eq!(client.rename(ROOT, "a", b, "c", EXCHANGE).unwrap_err(), Errno::EINVAL);
    }
    c.rename(a, "b", other, "b", REPLACE).unwrap();
    c.rename(ROOT, "a", d, "a", REPLACE).unwrap();
    assert_eq!((c.inode(a).parent, c.inode(b).parent), (d, other));
    check(&c);
}

/// A client that works far below the root may not have the ancestors in its cache.
fn rename_into_a_deep_directory_reads_all_ancestors(factory: Factory<'_>) {
    let c = fresh(factory);
    let moved = c.mkdir(ROOT, "moved").unwrap();
    let top = c.mkdir(ROOT, "top").unwrap();
    let bottom = (0..100).fold(top, |above, _| c.mkdir(above, "below").unwrap());
    let stranger = c.stranger();
    stranger.rename(ROOT, "moved", bottom, "moved", REPLACE).unwrap();
    assert_eq!(c.stranger().at(bottom, "moved").ino, moved);
    assert_eq!(c.stranger().rename(ROOT, "top", moved, "top", REPLACE).unwrap_err(), Errno::EINVAL);
    check(&c.stranger());
}

fn rename_exchanges(factory: Factory<'_>) {
    let c = fresh(factory);
    let (left, right) = (c.mkdir(ROOT, "left").unwrap(), c.mkdir(ROOT, "right").unwrap());
    let (dir, file) = (c.mkdir(left, "x").unwrap(), c.create(right, "y").unwrap());
    c.create(dir, "inside").unwrap();
    let before = c.inode(file);
    let renamed = c.rename(left, "x", right, "y", EXCHANGE).unwrap();
    assert_eq!((renamed.moved.ino, renamed.exchanged.unwrap().ino, renamed.replaced), (dir, file, None));
    assert_eq!((c.at(left, "x").ino, c.at(right, "y").ino), (file, dir));
    assert_eq!((nlink(&c, left), nlink(&c, right), c.inode(dir).parent), (2, 3, right));
    assert!(c.inode(file).ctime > before.ctime, "exchange changes ctime of both inodes");
    // Two directories of different parents: the link counts stay, the parents are exchanged.
    let dir2 = c.mkdir(left, "z").unwrap();
    c.rename(left, "z", right, "y", EXCHANGE).unwrap();
    assert_eq!((nlink(&c, left), nlink(&c, right)), (3, 3));
    assert_eq!((c.inode(dir).parent, c.inode(dir2).parent), (left, right));
    c.rename(left, "x", left, "z", EXCHANGE).unwrap();
    assert_eq!((c.at(left, "x").ino, c.at(left, "z").ino, c.inode(dir).parent), (dir, file, left));
    check(&c);
}

fn a_replaced_open_file_becomes_an_orphan(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    let op = Rename {
        parent: ROOT,
        name: n("a"),
        new_parent: ROOT,
        new_name: n("b"),
        flags: REPLACE,
        whiteout: None,
        open: Some(b),
    };
    assert_eq!(c.run(&op).unwrap().replaced.unwrap().outcome, UnlinkOutcome::Orphan);
    assert_eq!((c.at(ROOT, "b").ino, c.inode(b).nlink), (a, 0));
    check(&c);
    c.run(&Reap { session: c.meta.session(), ino: b }).unwrap();
    check(&c);
}
