//! The trash: what it keeps, under which names, how it counts in quotas, and what is deleted at once.

use std::sync::Arc;

use meta::{Counting, Engine, QuotaKey, Volume};
use ops::{
    Configure, EmptyTrash, Link, MakeKind, MakeTrash, Prune, Rmdir, TrashHour, TrashName, Unlink,
    UnlinkOutcome, Unlinked, WithTrash,
};
use types::{Errno, Ino, QuotaId, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, NO_REPLACE, REPLACE, ROOT, client, fresh, fresh_with, n, volume};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("the_trash_has_a_name_that_no_listing_shows", the_trash_has_a_name),
    ("a_volume_gets_a_trash_unless_the_name_is_taken", a_volume_gets_a_trash),
    ("a_removed_file_gets_a_name_in_the_trash", a_removed_file_gets_a_name),
    ("a_removal_into_the_trash_is_one_round_trip", a_removal_is_one_round_trip),
    ("a_replaced_file_or_directory_gets_a_name_in_the_trash", replaced_files),
    ("a_removed_tree_is_rebuilt_from_the_trash", a_removed_tree_is_rebuilt),
    ("what_is_removed_in_the_trash_is_deleted", removals_in_the_trash),
    ("what_cannot_be_kept_is_deleted", what_cannot_be_kept),
    ("the_trash_counts_for_the_owner_and_not_for_the_directory", the_trash_counts),
    ("a_directory_of_the_trash_that_was_deleted_comes_back", a_deleted_directory_comes_back),
];

fn with_trash() -> Volume {
    Volume { trash_days: 1, ..volume() }
}

impl Client {
    fn make_trash(&self, uid: u32) -> Ino {
        let hour = TrashHour::of(Time::now());
        let inos = [self.next_ino(), self.next_ino()];
        let [_, dir] = self.run(&MakeTrash { uid, hour, inos }).unwrap();
        self.meta.trash().put(uid, hour, dir);
        dir
    }

    /// Removes a name. If the directories of the trash for this hour are missing, creates them and tries
    /// again.
    fn trash(&self, parent: Ino, name: &str) -> Unlinked {
        loop {
            let unlinked = match self.at(parent, name).kind.is_dir() {
                true => self.run(&Rmdir { parent, name: n(name) }),
                false => self.unlink(parent, name),
            };
            let unlinked = unlinked.unwrap();
            if unlinked.outcome != UnlinkOutcome::NoTrash {
                return unlinked;
            }
            self.make_trash(unlinked.inode.uid);
        }
    }

    fn trash_usage(&self) -> (i64, i64) {
        self.used(QuotaId::TRASH)
    }
}

fn hour_of(unlinked: Unlinked) -> Ino {
    match unlinked.outcome {
        UnlinkOutcome::Trashed { hour } => hour,
        outcome => panic!("{outcome:?}"),
    }
}

fn name_of(parent: Ino, ino: Ino, name: &str) -> String {
    let name = TrashName::encode(parent, ino, &n(name)).unwrap();
    String::from_utf8(name.as_bytes().to_vec()).unwrap()
}

fn the_trash_has_a_name(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    for client in [&c, &c.stranger()] {
        let trash = client.at(ROOT, ".trash");
        assert_eq!((trash.ino, trash.parent, trash.mode.bits(), trash.uid), (Ino::TRASH, ROOT, 0o711, 0));
        assert!(client.list(ROOT).is_empty());
        assert_eq!(client.create(ROOT, ".trash"), Err(Errno::EEXIST));
        assert_eq!(client.mkdir(ROOT, ".trash"), Err(Errno::EEXIST));
        assert_eq!(client.unlink(ROOT, ".trash"), Err(Errno::EISDIR));
        assert_eq!(client.rmdir(ROOT, ".trash"), Err(Errno::EBUSY));
    }
    let (file, dir) = (c.create(ROOT, "f").unwrap(), c.mkdir(ROOT, "d").unwrap());
    let link = Link { ino: file, parent: ROOT, name: n(".trash"), orphan_of: None };
    assert_eq!(c.run(&link), Err(Errno::EEXIST));
    for name in ["f", "d"] {
        for flags in [REPLACE, EXCHANGE] {
            assert_eq!(c.rename(ROOT, name, ROOT, ".trash", flags), Err(Errno::EBUSY), "{name} {flags:?}");
            assert_eq!(c.rename(ROOT, ".trash", ROOT, name, flags), Err(Errno::EBUSY), "{name} {flags:?}");
        }
        assert_eq!(c.rename(ROOT, name, ROOT, ".trash", NO_REPLACE), Err(Errno::EEXIST));
    }
    assert_eq!(c.rename(ROOT, ".trash", dir, "x", REPLACE), Err(Errno::EBUSY));
    // The name is special in the root only.
    c.create(dir, ".trash").unwrap();
    check(&c);
}

fn a_volume_gets_a_trash(factory: Factory<'_>) {
    let c = fresh(factory);
    let on = Configure { trash_days: Some(2), ..Configure::default() };
    assert_eq!(c.lookup(ROOT, ".trash"), Ok(None));
    c.mkdir(ROOT, ".trash").unwrap();
    assert_eq!(c.run(&on), Err(Errno::EEXIST));
    c.rename(ROOT, ".trash", ROOT, "mine", REPLACE).unwrap();
    let other = c.stranger();
    assert_eq!(other.lookup(ROOT, ".trash"), Ok(None));
    c.run(&on).unwrap();
    c.run(&on).unwrap();
    assert_eq!(Volume::load(&**c.engine()).unwrap().trash_days, 2);
    // Another client that believes that the name is free cannot take it.
    assert_eq!(other.create(ROOT, ".trash"), Err(Errno::EEXIST));
    c.meta.refresh_settings().unwrap();
    assert_eq!(c.trash_usage(), (1, 0));
    c.create(ROOT, "f").unwrap();
    hour_of(c.trash(ROOT, "f"));
    // If the trash is turned off, files are deleted, and the content of the trash remains.
    c.run(&Configure { trash_days: Some(0), ..Configure::default() }).unwrap();
    c.meta.refresh_settings().unwrap();
    c.create(ROOT, "g").unwrap();
    assert_eq!(c.trash(ROOT, "g").outcome, UnlinkOutcome::Removed);
    assert_eq!(c.at(ROOT, ".trash").ino, Ino::TRASH);
    check(&c);
}

fn a_removed_file_gets_a_name(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    let dir = c.mkdir(ROOT, "d").unwrap();
    let file = c.create(dir, "f").unwrap();
    c.write(file, 0, 5000, 7).unwrap();
    let before = c.inode(file);
    assert_eq!(c.unlink(dir, "f").unwrap().outcome, UnlinkOutcome::NoTrash);
    assert_eq!(c.at(dir, "f").ino, file, "nothing was changed");
    let hour = hour_of(c.trash(dir, "f"));
    assert_eq!(c.lookup(dir, "f"), Ok(None));
    for client in [&c, &c.stranger()] {
        let user = client.at(Ino::TRASH, "0");
        let now = TrashHour::of(Time::now()).name();
        assert_eq!((user.mode.bits(), user.nlink), (0o700, 3));
        assert_eq!(client.at(user.ino, &now).ino, hour);
        let kept = client.at(hour, &name_of(dir, file, "f"));
        assert_eq!((kept.ino, kept.nlink, kept.size, kept.mtime), (file, 1, before.size, before.mtime));
        assert!(kept.ctime > before.ctime);
    }
    // A file that is open is deleted at its last close, as without a trash.
    let open = c.create(dir, "open").unwrap();
    assert_eq!(c.unlink_open(dir, "open", Some(open)).unwrap().outcome, UnlinkOutcome::Orphan);
    // A file with other names is not removed.
    let file = c.create(dir, "a").unwrap();
    c.link(file, dir, "b").unwrap();
    assert_eq!(c.trash(dir, "a").outcome, UnlinkOutcome::Linked);
    hour_of(c.trash(dir, "b"));
    // Remove a symbolic link with a long name.
    let long = "é".repeat(120);
    let link = c.symlink(dir, &long, "target").unwrap();
    let hour = hour_of(c.trash(dir, &long));
    let name = name_of(dir, link, &long);
    assert!(name.len() <= 255 && c.at(hour, &name).ino == link);
    check(&c);
}

fn a_removal_is_one_round_trip(factory: Factory<'_>) {
    for alone in [false, true] {
        let engine = Arc::new(Counting::new(factory()));
        with_trash().format(&*engine).unwrap();
        let shared: Arc<dyn Engine> = engine.clone();
        let c = client(&shared);
        c.meta.set_exclusive(alone);
        let make = |name: &str| {
            let dir = c.mkdir(ROOT, &format!("dir of {name}")).unwrap();
            c.create(dir, name).unwrap();
            c.create(dir, "new").unwrap();
            dir
        };
        let trips = |act: &dyn Fn()| {
            let before = engine.counts();
            act();
            (engine.counts() - before).round_trips()
        };
        let (first, second, third) = (make("a"), make("b"), make("c"));
        hour_of(c.trash(first, "a"));
        let unlink = || _ = hour_of(c.unlink(second, "b").unwrap());
        assert_eq!(trips(&unlink), 1, "unlink, exclusive: {alone}");
        let replace = || {
            let renamed = c.rename(third, "new", third, "c", REPLACE).unwrap();
            hour_of(renamed.replaced.unwrap());
        };
        assert_eq!(trips(&replace), 1, "rename, exclusive: {alone}");
        c.unlink(second, "new").unwrap();
        let rmdir = || _ = hour_of(c.run(&Rmdir { parent: ROOT, name: n("dir of b") }).unwrap());
        assert_eq!(trips(&rmdir), 1, "rmdir, exclusive: {alone}");
    }
}

fn replaced_files(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    c.make_trash(0);
    let (old, new) = (c.create(ROOT, "old").unwrap(), c.create(ROOT, "new").unwrap());
    let renamed = c.rename(ROOT, "new", ROOT, "old", REPLACE).unwrap();
    let hour = hour_of(renamed.replaced.unwrap());
    assert_eq!((c.at(ROOT, "old").ino, c.at(hour, &name_of(ROOT, old, "old")).ino), (new, old));
    let (old, new) = (c.mkdir(ROOT, "old dir").unwrap(), c.mkdir(ROOT, "new dir").unwrap());
    c.rename(ROOT, "new dir", ROOT, "old dir", REPLACE).unwrap();
    let kept = c.at(hour, &name_of(ROOT, old, "old dir"));
    assert_eq!((c.at(ROOT, "old dir").ino, kept.ino, kept.parent), (new, old, hour));
    assert_eq!(c.inode(hour).nlink, 3);
    check(&c);
}

fn a_removed_tree_is_rebuilt(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    let dir = c.mkdir(ROOT, "d").unwrap();
    let below = c.mkdir(dir, "below").unwrap();
    let file = c.create(below, "f").unwrap();
    let hour = hour_of(c.trash(below, "f"));
    c.trash(dir, "below");
    c.trash(ROOT, "d");
    assert_eq!(c.rmdir(ROOT, "d"), Err(Errno::ENOENT));
    assert_eq!(c.inode(dir).parent, hour);
    let steps = [(ROOT, dir, "d"), (dir, below, "below"), (below, file, "f")];
    let mover = c.stranger();
    for (parent, ino, name) in steps {
        mover.rename(hour, &name_of(parent, ino, name), parent, name, NO_REPLACE).unwrap();
    }
    assert_eq!(mover.at(below, "f").ino, file);
    assert_eq!((mover.inode(below).parent, mover.inode(dir).parent), (dir, ROOT));
    // The trash still counts its root and the directories of the user and of the hour.
    assert_eq!(mover.trash_usage(), (3, 0));
    check(&mover);
}

fn removals_in_the_trash(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    c.create(ROOT, "a").unwrap();
    c.create(ROOT, "b").unwrap();
    c.mkdir(ROOT, "d").unwrap();
    let hour = hour_of(c.trash(ROOT, "a"));
    hour_of(c.trash(ROOT, "b"));
    hour_of(c.trash(ROOT, "d"));
    let names: Vec<String> =
        c.list(hour).iter().map(|(name, ..)| String::from_utf8(name.as_bytes().to_vec()).unwrap()).collect();
    assert_eq!(names.len(), 3);
    let before = c.trash_usage();
    let dir = names.iter().find(|name| name.ends_with("-d")).unwrap();
    assert_eq!(c.trash(hour, dir).outcome, UnlinkOutcome::Removed);
    let file = names.iter().find(|name| name.ends_with("-a")).unwrap();
    assert_eq!(c.trash(hour, file).outcome, UnlinkOutcome::Removed);
    assert_eq!(c.trash_usage(), (before.0 - 2, before.1));
    // Only directories of the trash are emptied.
    let live = c.mkdir(ROOT, "live").unwrap();
    c.create(live, "f").unwrap();
    assert_eq!(c.run(&EmptyTrash(Prune { dir: live, names: &[n("f")] })), Err(Errno::EPERM));
    // Only removals create names in the trash, because `limen restore` trusts these names. A removed
    // directory gets no new names either.
    c.create(ROOT, "g").unwrap();
    for name in ["live", "g"] {
        assert_eq!(c.rename(ROOT, name, hour, name, REPLACE).unwrap_err(), Errno::EPERM, "{name}");
    }
    assert_eq!(c.mkdir(hour, "tree").unwrap_err(), Errno::ENOENT);
    assert_eq!(c.create(hour, "f").unwrap_err(), Errno::ENOENT);
    let removed = c.mkdir(ROOT, "removed").unwrap();
    c.trash(ROOT, "removed");
    assert_eq!(c.create(removed, "f").unwrap_err(), Errno::ENOENT);
    // The quota of the trash is not inside another quota.
    c.limit(ROOT, super::quotas::inodes(1000)).unwrap();
    check(&c);
}

fn what_cannot_be_kept(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    c.make_trash(0);
    for (name, kind) in [("p", MakeKind::Fifo), ("s", MakeKind::Socket), ("c", MakeKind::CharDevice(259))] {
        c.make(ROOT, name, kind, 0o600).unwrap();
        assert_eq!(c.trash(ROOT, name).outcome, UnlinkOutcome::Removed, "{name}");
    }
    // The directory of a quota is not kept, because a restore could not give it its tag back.
    let dir = c.mkdir(ROOT, "q").unwrap();
    c.limit(dir, super::quotas::inodes(10)).unwrap();
    assert_eq!(c.trash(ROOT, "q").outcome, UnlinkOutcome::Removed);
    // A caller can remove a file without the trash.
    c.create(ROOT, "f").unwrap();
    let op = Unlink { parent: ROOT, name: n("f"), open: None };
    assert_eq!(c.run(&WithTrash { op: &op, is_on: false }).unwrap().outcome, UnlinkOutcome::Removed);
    check(&c);
}

fn the_trash_counts(factory: Factory<'_>) {
    let mut c = fresh_with(factory, &with_trash());
    let user = QuotaKey::User(1000);
    c.meta.set_owner_quota(user, super::quotas::inodes(3), &mut |_| true).unwrap();
    let dir = c.mkdir(ROOT, "q").unwrap();
    let id = c.limit(dir, super::quotas::inodes(100)).unwrap();
    (c.uid, c.gid) = (1000, 1000);
    let file = c.create(dir, "f").unwrap();
    c.write(file, 0, 5000, 7).unwrap();
    c.create(dir, "g").unwrap();
    assert_eq!(c.used(id), (3, 2));
    let hour = hour_of(c.trash(dir, "f"));
    assert_eq!((c.used(id), c.trash_usage()), ((2, 0), (4, 2)));
    // The quota of the user counts the files, and the directories of the user and of the hour, which are
    // created even if the quota is full.
    assert_eq!((c.quota(user).inodes, c.quota(user).blocks), (4, 2));
    assert_eq!(c.create(dir, "h"), Err(Errno::EDQUOT));
    hour_of(c.trash(dir, "g"));
    assert_eq!((c.used(id), c.trash_usage()), ((1, 0), (5, 2)));
    c.rename(hour, &name_of(dir, file, "f"), dir, "f", NO_REPLACE).unwrap();
    assert_eq!((c.used(id), c.trash_usage()), ((2, 2), (4, 0)));
    // No quota can be set on the trash or on a directory in it.
    assert!(c.meta.set_directory_quota(Ino::TRASH, super::quotas::inodes(1), &mut |_| true).is_err());
    assert!(c.meta.set_directory_quota(hour, super::quotas::inodes(1), &mut |_| true).is_err());
    check(&c);
}

fn a_deleted_directory_comes_back(factory: Factory<'_>) {
    let c = fresh_with(factory, &with_trash());
    c.create(ROOT, "a").unwrap();
    let hour = hour_of(c.trash(ROOT, "a"));
    // Another client empties the trash.
    let other = c.stranger();
    let names: Vec<_> = other.list(hour).into_iter().map(|(name, ..)| name).collect();
    other.run(&EmptyTrash(Prune { dir: hour, names: &names })).unwrap();
    let user = other.at(Ino::TRASH, "0").ino;
    let now = TrashHour::of(Time::now()).name();
    assert_eq!(other.run(&EmptyTrash(Prune { dir: Ino::TRASH, names: &[n("0")] })), Err(Errno::ENOTEMPTY));
    other.run(&EmptyTrash(Prune { dir: user, names: &[n(&now)] })).unwrap();
    other.run(&EmptyTrash(Prune { dir: Ino::TRASH, names: &[n("0")] })).unwrap();
    let c = other;
    c.meta.trash().put(0, TrashHour::of(Time::now()), hour);
    c.create(ROOT, "b").unwrap();
    assert_eq!(c.unlink(ROOT, "b").unwrap().outcome, UnlinkOutcome::NoTrash);
    let again = hour_of(c.trash(ROOT, "b"));
    assert_ne!(again, hour);
    assert_eq!(c.trash_usage(), (4, 0));
    check(&c);
}
