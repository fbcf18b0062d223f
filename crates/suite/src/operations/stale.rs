//! The cache of one client right after another client's change: results must still be right.

use std::time::Duration;

use ops::{GetParent, GetXattrs, KillPriv, RemoveXattr, XattrMode};
use types::{Errno, Mode};

use super::case::{Case, Factory};
use super::fixture::{Client, REPLACE, ROOT, client, fresh, x};
use super::invariants::check;
use super::races::Race;
use crate::faulty::Fault;

pub(super) const CASES: &[Case] = &[
    ("a_stale_name_causes_no_wrong_result", a_stale_name_causes_no_wrong_result),
    ("a_stale_directory_causes_no_wrong_result", a_stale_directory_causes_no_wrong_result),
    ("a_stale_xattr_causes_no_error", a_stale_xattr_causes_no_error),
    ("stale_xattrs_hide_no_capability", stale_xattrs_hide_no_capability),
    ("stale_parents_that_form_a_cycle_are_read_again", stale_parents_that_form_a_cycle_are_read_again),
    ("the_parent_of_a_moved_directory_is_read_again", the_parent_of_a_moved_directory_is_read_again),
    ("the_parent_of_a_directory_that_moves_on_is_found", the_parent_of_a_directory_that_moves_on_is_found),
    ("stale_link_counts_stay_exact", stale_link_counts_stay_exact),
];

/// Two clients of one volume, neither with exclusive use.
fn two(factory: Factory<'_>) -> (Client, Client) {
    let a = fresh(factory);
    a.meta.set_exclusive(false);
    let b = client(a.engine());
    (a, b)
}

fn a_stale_name_causes_no_wrong_result(factory: Factory<'_>) {
    let (a, b) = two(factory);
    a.create(ROOT, "f").unwrap();
    b.unlink(ROOT, "f").unwrap();
    assert_eq!(a.unlink(ROOT, "f").unwrap_err(), Errno::ENOENT);
    b.create(ROOT, "f").unwrap();
    assert_eq!(a.create(ROOT, "f"), Err(Errno::EEXIST));
    b.unlink(ROOT, "f").unwrap();
    a.create(ROOT, "f").unwrap();
    b.rename(ROOT, "f", ROOT, "g", REPLACE).unwrap();
    assert_eq!(a.rename(ROOT, "f", ROOT, "h", REPLACE).unwrap_err(), Errno::ENOENT);
    assert!(a.rename(ROOT, "g", ROOT, "f", REPLACE).is_ok());
    assert_eq!(b.unlink(ROOT, "g").unwrap_err(), Errno::ENOENT);
    check(&a);
}

fn a_stale_directory_causes_no_wrong_result(factory: Factory<'_>) {
    let (a, b) = two(factory);
    let d = a.mkdir(ROOT, "d").unwrap();
    b.create(d, "f").unwrap();
    assert_eq!(a.rmdir(ROOT, "d").unwrap_err(), Errno::ENOTEMPTY);
    b.unlink(d, "f").unwrap();
    assert!(a.rmdir(ROOT, "d").is_ok());
    assert_eq!(b.create(d, "g"), Err(Errno::ENOENT));
    assert_eq!(b.mkdir(d, "g"), Err(Errno::ENOENT));
    check(&a);
}

fn a_stale_xattr_causes_no_error(factory: Factory<'_>) {
    let (a, b) = two(factory);
    let f = a.create(ROOT, "f").unwrap();
    a.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    // This client has cached the xattrs, but not the inode.
    let reader = client(a.engine());
    assert_eq!(reader.run(&GetXattrs(f)).unwrap().len(), 1);
    b.run(&RemoveXattr { ino: f, name: x("user.a") }).unwrap();
    assert_eq!(reader.set_xattr(f, "user.a", "2", XattrMode::Create), Ok(()));
    let reader = client(a.engine());
    reader.run(&GetXattrs(f)).unwrap();
    b.set_xattr(f, "user.b", "2", XattrMode::Set).unwrap();
    assert_eq!(reader.set_xattr(f, "user.b", "3", XattrMode::Replace), Ok(()));
    let reader = client(a.engine());
    reader.run(&GetXattrs(f)).unwrap();
    b.set_xattr(f, "user.c", "2", XattrMode::Set).unwrap();
    assert_eq!(reader.run(&RemoveXattr { ino: f, name: x("user.c") }), Ok(()));
}

fn stale_xattrs_hide_no_capability(factory: Factory<'_>) {
    let (a, b) = two(factory);
    let f = a.create(ROOT, "f").unwrap();
    assert!(a.run(&GetXattrs(f)).unwrap().is_empty());
    b.set_xattr(f, "security.capability", "cap", XattrMode::Set).unwrap();
    a.run(&KillPriv(f)).unwrap();
    assert!(a.stranger().run(&GetXattrs(f)).unwrap().is_empty());
    b.chmod(f, 0o4755).unwrap();
    a.run(&KillPriv(f)).unwrap();
    assert_eq!(a.stranger().inode(f).mode, Mode::new(0o755));
}

/// The cached records of two directories may be from different times, and then show each one inside the
/// other.
fn stale_parents_that_form_a_cycle_are_read_again(factory: Factory<'_>) {
    let (a, b) = two(factory);
    let outer = a.mkdir(ROOT, "outer").unwrap();
    let inner = a.mkdir(outer, "inner").unwrap();
    a.mkdir(ROOT, "moving").unwrap();
    let reader = client(a.engine());
    assert_eq!(reader.inode(inner).parent, outer);
    b.rename(outer, "inner", ROOT, "inner", REPLACE).unwrap();
    b.rename(ROOT, "outer", inner, "outer", REPLACE).unwrap();
    assert_eq!(reader.inode(outer).parent, inner);
    reader.rename(ROOT, "moving", outer, "moving", REPLACE).unwrap();
    check(&a);
}

fn the_parent_of_a_moved_directory_is_read_again(factory: Factory<'_>) {
    let (a, b) = two(factory);
    let outer = a.mkdir(ROOT, "outer").unwrap();
    let dir = a.mkdir(outer, "dir").unwrap();
    let reader = client(a.engine());
    reader.meta.set_lifetime(Duration::from_secs(3600));
    assert_eq!(reader.inode(dir).parent, outer);
    b.rename(outer, "dir", ROOT, "dir", REPLACE).unwrap();
    b.rmdir(ROOT, "outer").unwrap();
    assert_eq!(reader.run(&GetParent(dir)).map(|parent| parent.ino), Ok(ROOT));
    b.rmdir(ROOT, "dir").unwrap();
    let reader = client(a.engine());
    assert_eq!(reader.run(&GetParent(dir)), Err(Errno::ENOENT));
}

/// Between any two reads the directory is moved and its old parent removed, again and again.
fn the_parent_of_a_directory_that_moves_on_is_found(factory: Factory<'_>) {
    const MOVES: usize = 5;
    let race = Race::new(factory);
    let name = |at: usize| format!("{at}");
    let first = race.client.mkdir(ROOT, &name(0)).unwrap();
    let dir = race.client.mkdir(first, "dir").unwrap();
    let rival = race.rival.clone();
    let mut turn = 0;
    race.faulty.set_rival(move |_| {
        // The first read is that of the directory. Move it before each of the next `MOVES` reads.
        if (1..=MOVES).contains(&turn) {
            let rival = rival.lock().unwrap();
            let to = rival.mkdir(ROOT, &name(turn)).unwrap();
            rival.rename(rival.at(ROOT, &name(turn - 1)).ino, "dir", to, "dir", REPLACE).unwrap();
            rival.rmdir(ROOT, &name(turn - 1)).unwrap();
        }
        turn += 1;
    });
    let reader = client(race.client.engine());
    race.faulty.script([Fault::RivalOfRead; 40]);
    let found = reader.run(&GetParent(dir)).map(|parent| parent.ino);
    race.faulty.script([]);
    assert_eq!(found, Ok(race.client.at(ROOT, &format!("{MOVES}")).ino));
    check(&race.client);
}

fn stale_link_counts_stay_exact(factory: Factory<'_>) {
    let (a, b) = two(factory);
    let f = a.create(ROOT, "f").unwrap();
    b.link(f, ROOT, "g").unwrap();
    a.unlink(ROOT, "f").unwrap();
    assert_eq!(b.inode(f).ino, f);
    a.link(f, ROOT, "h").unwrap();
    b.unlink(ROOT, "h").unwrap();
    b.unlink(ROOT, "g").unwrap();
    assert_eq!(a.link(f, ROOT, "i"), Err(Errno::ENOENT));
    assert_eq!(a.unlink(ROOT, "g").unwrap_err(), Errno::ENOENT);
    check(&a);
}
