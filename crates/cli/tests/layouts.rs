//! Volumes of every version of the embedded engine's tables: limen converts them when it opens them, also after a kill
//! in the middle, and refuses a newer one.
//!
//! `layouts/sqlite-N.sql` has a volume of version N. That of version 2 was made by a limen of that time; the others have
//! the tables and settings of the last commit with their version, and rows of version 5. `layouts/objects` has
//! their objects. Never change a file: a volume may have these tables. A new version needs a new file.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use common::{Place, killed_at, limen};
use engine_sqlite::VERSION;

const LAYOUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layouts");

/// The size of a page of the database. The index of SQLite's log has 32 KiB. With pages of this size, the log itself is
/// the first file that reaches the limit of [`killed_at`].
const PAGE_BYTES: u64 = 65536;

/// A place with the volume of version `version`.
fn volume(version: i64) -> Place {
    let place = Place::new();
    let file = format!("{LAYOUTS}/sqlite-{version}.sql");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    // A mount writes its marker to the store if the volume has none.
    let has_marker = text.contains("'store_marker'");
    let data = place.text("vol.data");
    let text = format!("PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL;\n{text}");
    sql(&place, &text.replace("@DIR@/vol.data", &data));
    assert_eq!(stored_version(&place), version);
    let objects = "chunks/0/0";
    fs::create_dir_all(place.path("vol.data").join(objects)).unwrap();
    for name in ["1_0_6000", "2_0_3"] {
        let name = format!("{objects}/{name}");
        fs::copy(format!("{LAYOUTS}/objects/{name}"), place.path("vol.data").join(&name)).unwrap();
    }
    if has_marker {
        let marker = "limen-volume";
        fs::copy(format!("{LAYOUTS}/objects/{marker}"), place.path("vol.data").join(marker)).unwrap();
    }
    place
}

/// The rows of a query, one a line, or nothing for several statements. Only `engine-sqlite` may link SQLite, so Python
/// runs them.
#[track_caller]
fn sql(place: &Place, sql: &str) -> String {
    const RUN: &str = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
if ';' in sys.argv[2]: db.executescript(sys.argv[2])
else: [print(*row, sep='|') for row in db.execute(sys.argv[2])]
db.close()";
    let output =
        Command::new("python3").args(["-c", RUN]).arg(place.path("vol.db")).arg(sql).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn stored_version(place: &Place) -> i64 {
    sql(place, "PRAGMA user_version").trim().parse().unwrap()
}

/// All tables and their columns, in the order in which SQLite lists them.
fn columns(place: &Place) -> String {
    sql(
        place,
        "SELECT t.name, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk FROM sqlite_schema t, pragma_table_info(t.name) c \
         WHERE t.type = 'table' ORDER BY t.name, c.cid",
    )
}

/// Checks all records and bytes, and then what a user sees.
#[track_caller]
fn check(place: &Place) {
    limen(&["fsck", "--data", &place.url()]).ok();
    assert_eq!(stored_version(place), VERSION);
    place.mount(&[]).ok();
    let mnt = place.path("mnt");
    assert_eq!(fs::read_to_string(mnt.join("hard")).unwrap(), "small\n");
    assert_eq!(fs::read_to_string(mnt.join("link")).unwrap(), "small\n");
    assert_eq!(fs::read_to_string(mnt.join("dir/large")).unwrap(), "0123456789".repeat(600));
    let sparse = fs::read(mnt.join("sparse")).unwrap();
    assert!(sparse.len() == 100_003 && sparse[..100_000].iter().all(|byte| *byte == 0));
    assert_eq!(sparse[100_000..], *b"end");
    let small = fs::metadata(mnt.join("dir/small")).unwrap();
    assert_eq!((small.nlink(), small.mtime(), small.mode() & 0o7777), (2, 1_000_000_000, 0o644));
    let acl = |name| acl_of(&mnt.join(name));
    assert_eq!(acl("dir/small"), "user::rw-,user:1234:r--,group::r--,mask::r--,other::r--");
    assert!(acl("dir").contains("default:group:4321:r-x"), "{}", acl("dir"));
    assert_eq!(acl("dir/inherits"), "user::rw-,group::r-x,group:4321:r-x,mask::r--,other::r--");
    let mut colour = [0; 8];
    let length = rustix::fs::getxattr(mnt.join("dir/small"), "user.colour", &mut colour[..]).unwrap();
    assert_eq!(colour[..length], *b"blue");
    // Changes are possible, and are counted correctly.
    fs::write(mnt.join("dir/inherits"), "x".repeat(5000)).unwrap();
    fs::File::options().write(true).open(mnt.join("dir/large")).unwrap().write_at(b"x", 5).unwrap();
    fs::remove_file(mnt.join("hard")).unwrap();
    fs::create_dir(mnt.join("new")).unwrap();
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &place.url()]).ok();
}

/// The output of getfacl with numbers, entries separated by commas.
fn acl_of(path: &Path) -> String {
    let output = Command::new("getfacl").args(["-cnpE"]).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().replace('\n', ",")
}

#[test]
fn volumes_of_all_versions_are_converted_and_keep_their_files() {
    let fresh = Place::formatted();
    for version in 1..=VERSION {
        println!("version {version}");
        let place = volume(version);
        check(&place);
        assert_eq!(columns(&place), columns(&fresh));
    }
}

#[test]
fn a_kill_during_the_conversion_changes_nothing_and_the_next_open_converts() {
    for version in 1..VERSION {
        println!("version {version}");
        let place = volume(version);
        // The kill comes in the middle of the pages that the conversion writes when it commits: the last step alone
        // changes two.
        let pages = if version + 1 == VERSION { 1 } else { 3 };
        killed_at(pages * PAGE_BYTES + PAGE_BYTES / 2, &place.path("vol.db"), &["status", &place.url()]);
        let log = fs::metadata(place.path("vol.db-wal")).unwrap().len();
        assert!(log > pages * PAGE_BYTES, "{log} bytes of the conversion are in the log");
        assert_eq!(stored_version(&place), version);
        check(&place);
    }
}

/// An older limen refuses a volume of today in the same way: it has this code with a smaller number.
#[test]
fn a_newer_volume_is_refused_by_name_and_stays_as_it_is() {
    let place = volume(VERSION);
    sql(&place, &format!("PRAGMA user_version = {}", VERSION + 1));
    let before = fs::read(place.path("vol.db")).unwrap();
    let parts = [
        &*place.text("vol.db"),
        &format!("schema version {}", VERSION + 1),
        &format!("supports versions up to {VERSION}"),
        "use the version of limen that wrote it, or a newer one",
    ];
    let commands = [(&["status"][..], 1), (&["fsck", "--repair"], 8), (&["gc", "--delete"], 1)];
    for (args, code) in commands {
        limen(&[args, &[&place.url()]].concat()).failed(code, &parts);
    }
    place.mount(&[]).failed(1, &parts);
    place.format(&[]).failed(1, &parts);
    assert_eq!(fs::read(place.path("vol.db")).unwrap(), before);
}
