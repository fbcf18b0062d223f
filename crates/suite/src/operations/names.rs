//! Creating, finding and removing names, and what happens to the inode with its last name.

use meta::{Record, Scan};
use ops::{Authority, GetSlices, GetXattrs, Lookup, MakeKind, ReadLink, Reap, UnlinkOutcome, XattrMode};
use types::{Errno, FileType, Ino, Mode};

use super::case::{Case, Factory};
use super::fixture::{ROOT, client, fresh, n};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("make_creates_every_file_type", make_creates_every_file_type),
    ("make_checks_errors_in_order", make_checks_errors_in_order),
    ("make_updates_links_and_times_of_the_parent", make_updates_links_and_times_of_the_parent),
    ("a_setgid_directory_passes_on_its_group", a_setgid_directory_passes_on_its_group),
    ("lookup_finds_names_and_reports_errors", lookup_finds_names_and_reports_errors),
    ("unlink_checks_errors_in_order", unlink_checks_errors_in_order),
    ("unlink_of_one_of_several_names", unlink_of_one_of_several_names),
    ("an_open_file_outlives_its_name", an_open_file_outlives_its_name),
    ("rmdir_removes_only_empty_directories", rmdir_removes_only_empty_directories),
    ("removing_an_inode_removes_its_records", removing_an_inode_removes_its_records),
    ("listings_are_paged_in_byte_order", listings_are_paged_in_byte_order),
];

fn make_creates_every_file_type(factory: Factory<'_>) {
    let c = fresh(factory);
    let kinds = [
        (MakeKind::Regular, FileType::Regular, 0, 0, 1),
        (MakeKind::Directory, FileType::Directory, 0, 4096, 2),
        (MakeKind::Symlink(b"to/there".as_slice().into()), FileType::Symlink, 0, 8, 1),
        (MakeKind::Fifo, FileType::Fifo, 0, 0, 1),
        (MakeKind::Socket, FileType::Socket, 0, 0, 1),
        (MakeKind::CharDevice(0x501), FileType::CharDevice, 0x501, 0, 1),
        (MakeKind::BlockDevice(0xffff_ffff), FileType::BlockDevice, 0xffff_ffff, 0, 1),
    ];
    for (kind, file_type, rdev, size, nlink) in kinds {
        let name = format!("{file_type:?}");
        let made = c.make(ROOT, &name, kind, 0o6777).unwrap();
        assert_eq!((made.kind, made.rdev, made.size, made.nlink), (file_type, rdev, size, nlink));
        let masked = if file_type == FileType::Symlink { 0o6777 } else { 0o6755 };
        assert_eq!(made.mode, Mode::new(masked), "{name}: the umask clears only permission bits");
        assert_eq!(made.parent, if file_type.is_dir() { ROOT } else { Ino(0) });
        assert_eq!(c.at(ROOT, &name), made, "the reply is the stored inode");
        assert_eq!(c.stranger().at(ROOT, &name), made);
    }
    let link = c.at(ROOT, "Symlink").ino;
    for client in [&c, &c.stranger()] {
        assert_eq!(&*client.run(&ReadLink(link)).unwrap(), b"to/there");
        assert_eq!(client.run(&ReadLink(ROOT)), Err(Errno::EINVAL));
    }
    check(&c);
}

fn make_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(client.create(Ino(1 << 40), "x"), Err(Errno::ENOENT), "no such directory");
        assert_eq!(client.create(file, "x"), Err(Errno::ENOTDIR));
        assert_eq!(client.create(ROOT, "file"), Err(Errno::EEXIST));
        assert_eq!(client.mkdir(ROOT, "file"), Err(Errno::EEXIST));
        assert_eq!(client.symlink(ROOT, "file", "t"), Err(Errno::EEXIST));
    }
    assert_eq!(c.at(ROOT, "file").ino, file);
    check(&c);
}

fn make_updates_links_and_times_of_the_parent(factory: Factory<'_>) {
    let c = fresh(factory);
    let before = c.inode(ROOT);
    let file = c.make(ROOT, "f", MakeKind::Regular, 0o644).unwrap();
    let after = c.inode(ROOT);
    assert_eq!((after.nlink, after.atime, after.access_rev), (2, before.atime, before.access_rev));
    assert_eq!((after.mtime, after.ctime), (file.mtime, file.ctime));
    assert_eq!(file.atime, file.mtime);
    assert!(after.mtime > before.mtime);
    c.mkdir(ROOT, "d").unwrap();
    assert_eq!(c.inode(ROOT).nlink, 3);
    c.rmdir(ROOT, "d").unwrap();
    let removed = c.inode(ROOT);
    assert_eq!(removed.nlink, 2);
    assert!(removed.mtime > after.mtime && removed.ctime == removed.mtime);
    check(&c);
}

fn a_setgid_directory_passes_on_its_group(factory: Factory<'_>) {
    let mut c = fresh(factory);
    (c.uid, c.gid) = (1000, 100);
    let plain = c.make(ROOT, "plain", MakeKind::Directory, 0o777).unwrap();
    assert_eq!((plain.uid, plain.gid), (1000, 100));
    c.gid = 7;
    let team = c.make(ROOT, "team", MakeKind::Directory, 0o2775).unwrap();
    c.gid = 100;
    let file = c.make(team.ino, "f", MakeKind::Regular, 0o666).unwrap();
    assert_eq!((file.gid, file.mode), (7, Mode::new(0o644)), "a file gets the group, not the bit");
    let sub = c.make(team.ino, "d", MakeKind::Directory, 0o700).unwrap();
    assert_eq!((sub.gid, sub.mode), (7, Mode::new(0o2700)), "a directory gets both");
    let deeper = c.make(sub.ino, "d", MakeKind::Directory, 0o700).unwrap();
    assert_eq!((deeper.gid, deeper.mode), (7, Mode::new(0o2700)));
}

fn lookup_finds_names_and_reports_errors(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(client.lookup(ROOT, "file").unwrap().map(|inode| inode.ino), Some(file));
        assert_eq!(client.lookup(ROOT, "none"), Ok(None));
        assert_eq!(client.lookup(ROOT, "FILE"), Ok(None), "names are bytes");
        assert_eq!(client.lookup(Ino(1 << 40), "file"), Err(Errno::ENOENT));
        assert_eq!(client.lookup(file, "file"), Err(Errno::ENOTDIR));
    }
    let longest = "n".repeat(255);
    c.create(ROOT, &longest).unwrap();
    assert!(c.stranger().lookup(ROOT, &longest).unwrap().is_some());
    let bytes = types::Name::new(b"\xff\xfe \n'\"\\%").unwrap();
    let mut make = c.make_op(ROOT, "x", MakeKind::Regular, 0o600);
    make.name = bytes.clone();
    let odd = c.run(&make).unwrap();
    let found = c.stranger().run(&Lookup { parent: ROOT, name: bytes }).unwrap();
    assert_eq!(found, Some(odd), "a name need not be UTF-8");
}

fn unlink_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    c.mkdir(ROOT, "dir").unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(client.unlink(Ino(1 << 40), "x").unwrap_err(), Errno::ENOENT);
        assert_eq!(client.unlink(file, "x").unwrap_err(), Errno::ENOTDIR);
        assert_eq!(client.unlink(ROOT, "x").unwrap_err(), Errno::ENOENT);
        assert_eq!(client.unlink(ROOT, "dir").unwrap_err(), Errno::EISDIR);
    }
    check(&c);
}

fn unlink_of_one_of_several_names(factory: Factory<'_>) {
    let c = fresh(factory);
    let made = c.make(ROOT, "a", MakeKind::Regular, 0o644).unwrap();
    c.link(made.ino, ROOT, "b").unwrap();
    let unlinked = c.unlink(ROOT, "a").unwrap();
    assert_eq!((unlinked.outcome, unlinked.inode.nlink), (UnlinkOutcome::Linked, 2));
    let left = c.at(ROOT, "b");
    assert_eq!((left.ino, left.nlink, left.mtime), (made.ino, 1, made.mtime));
    assert!(left.ctime > made.ctime, "unlink changes ctime of the inode");
    assert_eq!(
        c.unlink_open(ROOT, "b", Some(Ino(77))).unwrap().outcome,
        UnlinkOutcome::Removed,
        "another inode is open"
    );
    assert_eq!(c.run(&ops::GetInode(made.ino)), Err(Errno::ESTALE));
    check(&c);
}

fn an_open_file_outlives_its_name(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    c.link(file, ROOT, "twin").unwrap();
    assert_eq!(c.unlink_open(ROOT, "twin", Some(file)).unwrap().outcome, UnlinkOutcome::Linked);
    assert_eq!(c.unlink_open(ROOT, "file", Some(file)).unwrap().outcome, UnlinkOutcome::Orphan);
    assert_eq!(c.inode(file).nlink, 0);
    let back = c.link_op(file, ROOT, "back");
    let root = Authority::Daemon(types::Cred::root());
    assert_eq!(
        c.meta.run(&back, &root).map_err(Errno::from),
        Err(Errno::ENOENT),
        "an unlinked inode gets no new name"
    );
    let other = client(c.engine());
    let back = ops::Link { orphan_of: None, ..other.link_op(file, ROOT, "back") };
    assert_eq!(other.run(&back), Err(Errno::ENOENT), "its own session will remove it");
    c.write(file, 0, 10, 1).unwrap();
    assert_eq!(c.inode(file).size, 10);
    let orphans = |after| c.meta.scan(&Scan::Orphans { after, limit: 10 }).unwrap().snapshot.records;
    let none = (types::SessionId(0), Ino(0));
    assert_eq!(orphans(none), vec![Record::Orphan(c.meta.session(), file)]);
    check(&c);
    let reap = Reap { session: c.meta.session(), ino: file };
    c.run(&reap).unwrap();
    assert_eq!(orphans(none), vec![]);
    assert_eq!(c.run(&ops::GetInode(file)), Err(Errno::ESTALE));
    c.run(&reap).unwrap();
    let kept = c.create(ROOT, "kept").unwrap();
    c.run(&Reap { session: c.meta.session(), ino: kept }).unwrap();
    assert_eq!(c.at(ROOT, "kept").ino, kept, "an inode with a name is not reaped");
    check(&c);
}

fn rmdir_removes_only_empty_directories(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = c.mkdir(ROOT, "dir").unwrap();
    let file = c.create(dir, "file").unwrap();
    for client in [&c, &c.stranger()] {
        assert_eq!(client.rmdir(Ino(1 << 40), "x").unwrap_err(), Errno::ENOENT);
        assert_eq!(client.rmdir(file, "x").unwrap_err(), Errno::ENOTDIR);
        assert_eq!(client.rmdir(ROOT, "x").unwrap_err(), Errno::ENOENT);
        assert_eq!(client.rmdir(dir, "file").unwrap_err(), Errno::ENOTDIR);
        assert_eq!(client.rmdir(ROOT, "dir").unwrap_err(), Errno::ENOTEMPTY);
    }
    c.unlink(dir, "file").unwrap();
    assert_eq!(c.rmdir(ROOT, "dir").unwrap().ino, dir);
    for client in [&c, &c.stranger()] {
        assert_eq!(client.lookup(ROOT, "dir"), Ok(None));
        assert_eq!(client.create(dir, "late"), Err(Errno::ENOENT), "a removed directory accepts no names");
        assert_eq!(client.lookup(dir, "file"), Err(Errno::ENOENT));
    }
    check(&c);
}

fn removing_an_inode_removes_its_records(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = c.create(ROOT, "file").unwrap();
    c.set_xattr(file, "user.a", "1", XattrMode::Set).unwrap();
    c.write(file, 0, 4096, 11).unwrap();
    c.write(file, 4096, 1, 12).unwrap();
    c.unlink(ROOT, "file").unwrap();
    let link = c.symlink(ROOT, "link", "t").unwrap();
    c.unlink(ROOT, "link").unwrap();
    let s = c.stranger();
    assert!(s.run(&GetXattrs(file)).unwrap().is_empty());
    assert!(s.run(&GetSlices { ino: file, chunk: types::ChunkIndex(0) }).unwrap().is_empty());
    assert_eq!(s.run(&ReadLink(link)), Err(Errno::EINVAL));
    let scan = Scan::Garbage { after: types::SliceId(0), limit: 10 };
    let garbage: Vec<_> = c.meta.scan(&scan).unwrap().snapshot.records.into_iter().collect();
    assert_eq!(garbage.len(), 2, "the blocks become garbage: {garbage:?}");
    check(&c);
}

fn listings_are_paged_in_byte_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let mut names: Vec<String> = (0..25).map(|i| format!("f{i}")).collect();
    names.extend(["Z", "a", "\u{e9}", "~"].map(String::from));
    for name in &names {
        c.create(ROOT, name).unwrap();
    }
    names.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = c.meta.list(ROOT, after, 7, false).unwrap();
        assert!(page.entries.len() <= 7 && page.entries.iter().all(|(_, _, inode)| inode.is_none()));
        found.extend(page.entries.iter().map(|(name, ..)| name.clone()));
        after = found.last().cloned();
        if !page.more {
            break;
        }
    }
    assert_eq!(found, names.iter().map(|name| n(name)).collect::<Vec<_>>());
    let exact = c.meta.list(ROOT, None, names.len(), true).unwrap();
    assert!(!exact.more && exact.entries.iter().all(|(_, dirent, inode)| inode.unwrap().ino == dirent.ino));
}
