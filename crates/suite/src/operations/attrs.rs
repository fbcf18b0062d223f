//! Attributes, extended attributes, and the rows of a file after a truncation.

use std::sync::Arc;

use meta::Inode;
use ops::{
    GetInode, GetSlices, GetUsage, GetXattrs, KillPriv, MakeKind, Reap, RemoveXattr, SetAtimes, SetAttr,
    SetXattr, Write, XattrMode,
};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Mode, Slice, SliceSource, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, blocks, fresh, x};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("attributes_are_set_separately_and_together", attributes_are_set_separately_and_together),
    ("operations_change_the_right_times", operations_change_the_right_times),
    ("access_times_change_alone", access_times_change_alone),
    ("chown_clears_setid_bits_and_capabilities", chown_clears_setid_bits_and_capabilities),
    ("writing_clears_setid_bits_and_capabilities", writing_clears_setid_bits_and_capabilities),
    ("only_regular_files_are_truncated", only_regular_files_are_truncated),
    ("truncated_bytes_read_as_zeros", truncated_bytes_read_as_zeros),
    ("writes_extend_and_append", writes_extend_and_append),
    ("xattrs_are_created_replaced_removed", xattrs_are_created_replaced_removed),
    ("xattrs_of_an_inode_are_bounded", xattrs_of_an_inode_are_bounded),
    ("xattrs_count_in_usage", xattrs_count_in_usage),
];

const CAPABILITY: &str = "security.capability";

fn attributes_are_set_separately_and_together(factory: Factory<'_>) {
    let c = fresh(factory);
    let made = c.make(ROOT, "f", MakeKind::Regular, 0o644).unwrap();
    let ino = made.ino;
    c.chmod(ino, 0o4751).unwrap();
    let after = c.inode(ino);
    assert_eq!((after.mode, after.access_rev), (Mode::new(0o4751), made.access_rev + 1));
    let all = SetAttr {
        ino,
        mode: Some(Mode::new(0o600)),
        uid: Some(1000),
        gid: Some(100),
        size: Some(5000),
        atime: Some(Time::new(-5, 1)),
        mtime: Some(Time::new(1 << 33, 999_999_999)),
        ..SetAttr::default()
    };
    let changed = c.run(&all).unwrap();
    for client in [&c, &c.stranger()] {
        let inode = client.inode(ino);
        assert_eq!(inode, Inode { access_rev: inode.access_rev, ..changed });
        assert_eq!((inode.mode, inode.uid, inode.gid, inode.size), (Mode::new(0o600), 1000, 100, 5000));
        assert_eq!((inode.atime, inode.mtime), (Time::new(-5, 1), Time::new(1 << 33, 999_999_999)));
    }
    assert_eq!(c.run(&GetUsage).unwrap().blocks, 2);
    c.unlink(ROOT, "f").unwrap();
    assert_eq!(c.run(&all), Err(Errno::ESTALE));
    check(&c);
}

fn operations_change_the_right_times(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    let mut before = c.inode(ino);
    let mut step = |what: &str, mtime_moves: bool, ctime_moves: bool| {
        let after = c.inode(ino);
        assert_eq!(after.atime, before.atime, "{what}: atime");
        assert_eq!(after.mtime > before.mtime, mtime_moves, "{what}: mtime");
        assert_eq!(after.ctime > before.ctime, ctime_moves, "{what}: ctime");
        before = after;
    };
    c.chmod(ino, 0o600).unwrap();
    step("chmod", false, true);
    c.truncate(ino, 0).unwrap();
    step("truncate to the same size", true, true);
    c.truncate(ino, 7).unwrap();
    step("truncate", true, true);
    c.write(ino, 0, 3, 1).unwrap();
    step("write", true, true);
    c.set_xattr(ino, "user.a", "b", XattrMode::Set).unwrap();
    step("setxattr", false, true);
    c.run(&RemoveXattr { ino, name: x("user.a") }).unwrap();
    step("removexattr", false, true);
    c.link(ino, ROOT, "g").unwrap();
    step("link", false, true);
    c.unlink(ROOT, "g").unwrap();
    step("unlink", false, true);
    assert_eq!(c.link(ino, ROOT, "f"), Err(Errno::EEXIST));
    assert_eq!(c.truncate(ROOT, 0), Err(Errno::EISDIR));
    step("refused operations", false, false);
    let _ = (c.lookup(ROOT, "f"), c.list(ROOT));
    step("lookup and readdir", false, false);
}

fn access_times_change_alone(factory: Factory<'_>) {
    let c = fresh(factory);
    let inos = ["a", "b", "gone"].map(|name| c.create(ROOT, name).unwrap());
    let before = inos.map(|ino| c.inode(ino));
    c.unlink(ROOT, "gone").unwrap();
    let times = [Time::new(1 << 33, 1), Time::new(-7, 999_999_999), Time::new(5, 5)];
    c.run(&SetAtimes(inos.into_iter().zip(times).collect())).unwrap();
    for client in [&c, &c.stranger()] {
        for ((ino, atime), before) in inos.into_iter().zip(times).zip(before).take(2) {
            assert_eq!(client.inode(ino), Inode { atime, ..before });
        }
    }
    assert_eq!(c.stranger().run(&GetInode(inos[2])), Err(Errno::ESTALE));
    check(&c);
}

fn chown_clears_setid_bits_and_capabilities(factory: Factory<'_>) {
    let c = fresh(factory);
    // (mode, keep_sgid, mode after a chown), as in inode(7) and in setattr_should_drop_sgid of Linux.
    let cases = [
        (0o6755, false, 0o0755),
        (0o6755, true, 0o0755),
        (0o6745, true, 0o2745),
        (0o6745, false, 0o0745),
        (0o1644, false, 0o1644),
    ];
    for (i, (mode, keep_sgid, left)) in cases.into_iter().enumerate() {
        let ino = c.create(ROOT, &format!("f{i}")).unwrap();
        c.chmod(ino, mode).unwrap();
        c.set_xattr(ino, CAPABILITY, "cap", XattrMode::Set).unwrap();
        c.set_xattr(ino, "user.kept", "1", XattrMode::Set).unwrap();
        c.run(&SetAttr { ino, uid: Some(5), keep_sgid, ..SetAttr::default() }).unwrap();
        assert_eq!((c.inode(ino).mode, c.inode(ino).uid), (Mode::new(left), 5), "{mode:o}, keep {keep_sgid}");
        let names: Vec<_> = c.run(&GetXattrs(ino)).unwrap().keys().cloned().collect();
        assert_eq!(names, [x("user.kept")]);
    }
    let dir = c.mkdir(ROOT, "d").unwrap();
    c.chmod(dir, 0o6755).unwrap();
    c.run(&SetAttr { ino: dir, uid: Some(5), gid: Some(6), ..SetAttr::default() }).unwrap();
    assert_eq!(c.inode(dir).mode, Mode::new(0o6755), "on directories the bits have another meaning");
    check(&c);
}

fn writing_clears_setid_bits_and_capabilities(factory: Factory<'_>) {
    let c = fresh(factory);
    for (i, truncates) in [false, true].into_iter().enumerate() {
        let ino = c.create(ROOT, &format!("f{i}")).unwrap();
        c.chmod(ino, 0o6755).unwrap();
        c.set_xattr(ino, CAPABILITY, "cap", XattrMode::Set).unwrap();
        if truncates {
            c.run(&SetAttr { ino, size: Some(1), kill_suidgid: true, ..SetAttr::default() }).unwrap();
        } else {
            assert_eq!(c.run(&KillPriv(ino)), Ok(true));
        }
        assert_eq!(c.inode(ino).mode, Mode::new(0o755));
        assert!(c.run(&GetXattrs(ino)).unwrap().is_empty());
        let settled = c.inode(ino);
        assert_eq!(c.run(&KillPriv(ino)), Ok(false));
        assert_eq!(c.inode(ino), settled, "nothing is left to clear");
        c.chmod(ino, 0o2745).unwrap();
        c.run(&KillPriv(ino)).unwrap();
        assert_eq!(c.inode(ino).mode, Mode::new(0o2745), "SGID without group execute is not a setid bit");
    }
    assert_eq!(c.run(&KillPriv(Ino(1 << 40))), Err(Errno::ESTALE));
}

fn only_regular_files_are_truncated(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = c.mkdir(ROOT, "d").unwrap();
    let link = c.symlink(ROOT, "l", "t").unwrap();
    let fifo = c.make(ROOT, "p", MakeKind::Fifo, 0o644).unwrap().ino;
    assert_eq!(c.truncate(dir, 0), Err(Errno::EISDIR));
    assert_eq!(c.truncate(link, 0), Err(Errno::EINVAL));
    assert_eq!(c.truncate(fifo, 0), Err(Errno::EINVAL));
    assert_eq!(c.truncate(Ino(1 << 40), 0), Err(Errno::ESTALE));
    check(&c);
}

fn rows(c: &Client, ino: Ino, chunk: u64) -> Vec<Slice> {
    c.run(&GetSlices { ino, chunk: ChunkIndex(chunk) }).unwrap().to_vec()
}

/// The slice that each byte of a chunk comes from according to its rows; 0 for none.
fn resolve(rows: &[Slice], len: usize) -> Vec<u64> {
    let mut bytes = vec![0; len];
    for row in rows {
        let id = match row.source {
            SliceSource::Blocks { id, .. } => id.0,
            _ => 0,
        };
        let (from, to) = (row.pos as usize, (row.pos as usize + row.len as usize).min(len));
        bytes[from.min(to)..to].fill(id);
    }
    bytes
}

fn truncated_bytes_read_as_zeros(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    c.write(ino, 0, 8, 1).unwrap();
    c.write(ino, 6, 4, 2).unwrap();
    assert_eq!(resolve(&rows(&c, ino, 0), 10), [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    c.truncate(ino, 4).unwrap();
    c.truncate(ino, 10).unwrap();
    assert_eq!(c.inode(ino).size, 10);
    assert_eq!(resolve(&rows(&c, ino, 0), 10), [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
    c.write(ino, 5, 2, 3).unwrap();
    assert_eq!(resolve(&rows(&c, ino, 0), 10), [1, 1, 1, 1, 0, 3, 3, 0, 0, 0]);
    // Chunks beyond the end lose their rows; the chunk with the end keeps the rows before it.
    let slices = vec![(ChunkIndex(1), blocks(0, 9, 4)), (ChunkIndex(3), blocks(0, 9, 5))];
    let end = 3 * CHUNK_BYTES + 9;
    c.run(&Write { ino, slices, end, mtime: Time::now() }).unwrap();
    c.truncate(ino, CHUNK_BYTES + 2).unwrap();
    assert!(rows(&c, ino, 3).is_empty());
    assert_eq!(resolve(&rows(&c, ino, 1), 4), [4, 4, 0, 0]);
    assert_eq!(resolve(&rows(&c, ino, 0), 2), [1, 1]);
    c.truncate(ino, CHUNK_BYTES).unwrap();
    assert!(rows(&c, ino, 1).is_empty(), "a truncation to the start of a chunk drops all its rows");
    c.truncate(ino, 0).unwrap();
    assert!(rows(&c, ino, 0).is_empty() && c.inode(ino).size == 0);
    check(&c);
}

fn writes_extend_and_append(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    c.write(ino, 100, 10, 1).unwrap();
    c.write(ino, 0, 10, 2).unwrap();
    assert_eq!(c.inode(ino).size, 110, "a write before the end does not change the size");
    assert_eq!(rows(&c, ino, 0), [blocks(100, 10, 1), blocks(0, 10, 2)]);
    let (mtime, earlier) = (Time::new(6_000_000_001, 3), Time::new(1_700_000_001, 3));
    c.run(&Write { ino, slices: Vec::new(), end: 4097, mtime }).unwrap();
    let inode = c.inode(ino);
    assert_eq!((inode.size, inode.mtime, inode.ctime), (4097, mtime, mtime));
    c.run(&Write { ino, slices: Vec::new(), end: 1, mtime: earlier }).unwrap();
    let inode = c.inode(ino);
    assert_eq!((inode.mtime, inode.ctime), (earlier, mtime), "ctime does not go back");
    assert_eq!(c.run(&GetUsage).unwrap().blocks, 2);
    c.unlink(ROOT, "f").unwrap();
    assert_eq!(c.write(ino, 0, 1, 3), Err(Errno::ESTALE));
    check(&c);
}

fn xattrs_of_an_inode_are_bounded(factory: Factory<'_>) {
    let a = fresh(factory);
    a.meta.set_exclusive(false);
    let b = a.stranger();
    let ino = a.create(ROOT, "f").unwrap();
    let set = |c: &Client, name: &str, len: usize| {
        c.run(&SetXattr { ino, name: x(name), value: vec![7; len].into(), mode: XattrMode::Set })
    };
    for n in 10..26 {
        set(&a, &format!("user.{n}"), 65_536).unwrap();
    }
    for client in [&a, &b] {
        assert_eq!(set(client, "user.26", 0), Err(Errno::ENOSPC));
    }
    set(&b, "user.10", 65_536).unwrap();
    set(&b, "user.10", 61_440).unwrap();
    set(&a, "user.26", 0).unwrap();
    for client in [&a, &b] {
        assert_eq!(set(client, "user.10", 61_441), Err(Errno::ENOSPC));
        assert_eq!(client.inode(ino).xattr_blocks, Inode::MAX_XATTR_BLOCKS);
    }
    // Space freed by another client is usable at once, whatever is cached.
    assert_eq!(a.run(&GetXattrs(ino)).unwrap().len(), 17);
    b.run(&RemoveXattr { ino, name: x("user.11") }).unwrap();
    set(&a, "user.27", 65_536).unwrap();
    // The names of all attributes fit in a list.
    let ino = a.create(ROOT, "names").unwrap();
    let set = |n: usize| {
        let name = format!("user.{n:0>250}");
        a.run(&SetXattr { ino, name: x(&name), value: Arc::default(), mode: XattrMode::Set })
    };
    (0..256).for_each(|n| set(n).unwrap());
    assert_eq!(set(256), Err(Errno::ENOSPC));
    set(0).unwrap();
    let list = a.run(&GetXattrs(ino)).unwrap().keys().map(|name| name.as_bytes().len() + 1).sum::<usize>();
    assert_eq!(list, 65_536);
    check(&a);
}

fn xattrs_count_in_usage(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let stranger = c.stranger();
    let blocks = || c.run(&GetUsage).unwrap().blocks;
    let set = |c: &Client, ino, name: &str, len: usize| {
        c.run(&SetXattr { ino, name: x(name), value: vec![7; len].into(), mode: XattrMode::Set }).unwrap();
    };
    let f = c.create(ROOT, "f").unwrap();
    c.write(f, 0, 5000, 1).unwrap();
    assert_eq!(blocks(), 2);
    for (name, len, used) in
        [("a", 0, 3), ("a", 4096, 3), ("a", 4097, 4), ("b", 65_536, 20), ("a", 1, 19), ("b", 1, 4)]
    {
        set(if len > 4096 { &stranger } else { &c }, f, &format!("user.{name}"), len);
        assert_eq!(blocks(), used, "{name} of {len} bytes");
    }
    let cold = c.stranger();
    set(&cold, f, "user.b", 65_536);
    c.run(&RemoveXattr { ino: f, name: x("user.b") }).unwrap();
    cold.run(&RemoveXattr { ino: f, name: x("user.a") }).unwrap();
    assert_eq!((blocks(), c.stranger().inode(f).xattr_blocks), (2, 0));
    // A change of the owner or the size removes `security.capability`, and frees its block.
    for change in
        [SetAttr { uid: Some(5), ..SetAttr::default() }, SetAttr { size: Some(1), ..SetAttr::default() }]
    {
        set(&c, f, CAPABILITY, 1);
        c.run(&SetAttr { ino: f, kill_suidgid: true, ..change }).unwrap();
        assert_eq!(c.inode(f).xattr_blocks, 0);
    }
    set(&c, f, CAPABILITY, 1);
    c.run(&KillPriv(f)).unwrap();
    assert_eq!(blocks(), 1);
    // Removing an inode frees its blocks, whatever its type and however it is removed.
    let dir = c.mkdir(ROOT, "d").unwrap();
    let link = c.symlink(ROOT, "l", "t").unwrap();
    [f, dir, link].into_iter().for_each(|ino| set(&c, ino, "trusted.x", 8192));
    assert_eq!(blocks(), 7);
    c.rmdir(ROOT, "d").unwrap();
    assert_eq!(blocks(), 5);
    c.rename(ROOT, "f", ROOT, "l", super::fixture::REPLACE).unwrap();
    assert_eq!(blocks(), 3);
    c.unlink_open(ROOT, "l", Some(f)).unwrap();
    assert_eq!(blocks(), 3, "it is open");
    c.run(&Reap { session: c.meta.session(), ino: f }).unwrap();
    assert_eq!(blocks(), 0);
    check(&c);
}

fn xattrs_are_created_replaced_removed(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    let get = |c: &Client, name: &str| c.run(&GetXattrs(ino)).unwrap().get(&x(name)).map(|v| v.to_vec());
    for client in [&c, &c.stranger()] {
        assert_eq!(client.set_xattr(ino, "user.a", "0", XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(client.run(&RemoveXattr { ino, name: x("user.a") }), Err(Errno::ENODATA));
    }
    c.set_xattr(ino, "user.a", "1", XattrMode::Create).unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(client.set_xattr(ino, "user.a", "2", XattrMode::Create), Err(Errno::EEXIST));
        assert_eq!(get(client, "user.a"), Some(b"1".to_vec()));
    }
    c.set_xattr(ino, "user.a", "3", XattrMode::Replace).unwrap();
    c.set_xattr(ino, "user.b", "", XattrMode::Set).unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!((get(client, "user.a"), get(client, "user.b")), (Some(b"3".to_vec()), Some(Vec::new())));
    }
    let set = |ino, len: usize| {
        c.run(&SetXattr { ino, name: x("user.big"), value: vec![7; len].into(), mode: XattrMode::Set })
    };
    assert_eq!(set(Ino(1 << 40), 65_537), Err(Errno::E2BIG));
    assert_eq!(set(Ino(1 << 40), 1), Err(Errno::ESTALE));
    set(ino, 65_536).unwrap();
    assert_eq!(get(&c.stranger(), "user.big").map(|v| v.len()), Some(65_536));
    c.run(&RemoveXattr { ino, name: x("user.a") }).unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(get(client, "user.a"), None);
    }
    assert_eq!(c.run(&RemoveXattr { ino: Ino(1 << 40), name: x("user.a") }), Err(Errno::ESTALE));
    check(&c);
}
