//! Volumes of every version of the embedded engine's tables: limen converts them when it opens them, also
//! after a kill in the middle, and refuses a newer one. Volumes of earlier layouts on servers: those that are
//! converted, and those that are refused.
//!
//! `layouts/sqlite-N.sql` has a volume of version N. That of version 2 was made by a limen of that time; the
//! others have the tables and settings of the last commit with their version, and rows of version 5.
//! `layouts/postgres-3.sql` and `layouts/mariadb-3.sql` have the tables of the last commit with version 3,
//! and the same rows. `layouts/objects` has their objects. Never change a file: a volume may have these
//! tables. A new version needs a new file.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine};
use common::{Place, Said, killed_at, limen};
use engine_sqlite::VERSION;
use servers::{Kind, Server};

const LAYOUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layouts");

/// The size of a page of the database. The index of SQLite's log has 32 KiB. With pages of this size, the log
/// itself is the first file that reaches the limit of [`killed_at`].
const PAGE_BYTES: u64 = 65536;

/// A place with the volume of version `version`.
fn volume(version: i64) -> Place {
    let place = Place::new();
    let text = fixture(&place, &format!("sqlite-{version}.sql"));
    sql(&place, &format!("PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL;\n{text}"));
    assert_eq!(stored_version(&place), version);
    place
}

/// Returns the statements of a fixture file, which create a volume, and stores the objects of that volume.
fn fixture(place: &Place, name: &str) -> String {
    let file = format!("{LAYOUTS}/{name}");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    // A mount writes its marker to the store if the volume has none.
    let has_marker = text.contains("'store_marker'");
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
    text.replace("@DIR@/vol.data", &place.text("vol.data"))
}

/// The rows of a query, one a line, or nothing for several statements. Only `engine-sqlite` may link SQLite,
/// so Python runs them.
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
    check_at(place, &place.url());
    assert_eq!(stored_version(place), VERSION);
}

#[track_caller]
fn check_at(place: &Place, url: &str) {
    limen(&["fsck", "--data", url]).ok();
    place.mount_url(url, &[]).ok();
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
    limen(&["fsck", "--data", url]).ok();
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

/// The first volumes of version 1 have no settings for compression, encryption, NFSv4 ACLs and listings.
#[test]
fn volumes_from_before_compression_are_converted() {
    let newer = "'compression', 'encryption', 'abe', 'aclmode', 'aclinherit'";
    let place = volume(1);
    sql(&place, &format!("DELETE FROM setting WHERE name IN ({newer}); SELECT 1"));
    check(&place);
    let status = place.status();
    assert_eq!((&status["compression"], &status["encryption"]), (&"none".into(), &"".into()));
    // If only one of the two is missing, the volume may be encrypted, so limen refuses it.
    for missing in ["encryption", "compression"] {
        let place = volume(1);
        sql(&place, &format!("DELETE FROM setting WHERE name = '{missing}'; SELECT 1"));
        let advice = ["is missing or damaged", missing, "restore the database from a backup"];
        limen(&["status", &place.url()]).failed(1, &advice);
    }
}

/// The commits of 2026-11-20 20:06 and 20:33 UTC, and of 2026-11-23 06:23 UTC, added tables without a new
/// version. Later versions of limen opened such a volume and raised its number, but the tables were still
/// missing.
#[test]
fn volumes_with_fewer_tables_than_their_version_get_them() {
    let fresh = Place::formatted();
    let all = ["lock", "lock_wait", "shared", "term"];
    for (first, missing) in [(1, &all[..3]), (1, &all[..2]), (3, &all[3..]), (3, &all)] {
        for version in [first, VERSION] {
            println!("version {version} without {missing:?}");
            let place = volume(version);
            let drop: String = missing.iter().map(|table| format!("DROP TABLE {table}; ")).collect();
            sql(&place, &drop);
            check(&place);
            assert_eq!(columns(&place), columns(&fresh));
        }
    }
}

#[test]
fn a_kill_during_the_conversion_changes_nothing_and_the_next_open_converts() {
    for version in 1..VERSION {
        println!("version {version}");
        let place = volume(version);
        // The kill comes while the commit of the conversion writes its pages to the log. The last step alone
        // writes only two pages.
        let pages = if version + 1 == VERSION { 1 } else { 3 };
        killed_at(pages * PAGE_BYTES + PAGE_BYTES / 2, &place.path("vol.db"), &["status", &place.url()]);
        let log = fs::metadata(place.path("vol.db-wal")).unwrap().len();
        assert!(log > pages * PAGE_BYTES, "{log} bytes of the conversion are in the log");
        assert_eq!(stored_version(&place), version);
        check(&place);
    }
}

/// An older limen refuses a volume of today in the same way: it has this code with a smaller `VERSION`.
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

/// The version of the volume on a server.
fn version_on(server: &Server) -> u64 {
    let database = if server.kind == Kind::Mariadb { "limen." } else { "" };
    server.sql(&format!("SELECT version FROM {database}vol_layout")).trim().parse().unwrap()
}

/// The columns of all tables with a prefix, without the prefix. A view lists its columns too.
fn columns_on(server: &Server, prefix: &str) -> Vec<String> {
    let (length, schema) = match server.kind {
        Kind::Mariadb => ("column_type", "limen"),
        _ => ("data_type", "public"),
    };
    let rows = server.sql(&format!(
        "SELECT table_name, column_name, {length}, is_nullable, column_default FROM information_schema.columns \
         WHERE table_schema = '{schema}' AND table_name LIKE '{prefix}\\_%' ORDER BY table_name, ordinal_position"
    ));
    rows.lines().map(|row| row.replace(&format!("{prefix}_"), "")).collect()
}

/// Layout version 3 had no quotas.
fn volume_of_version_3_is_converted(kind: Kind, file: &str) {
    let (server, place) = (Server::start(kind, false), Place::new());
    let (url, database) =
        (server.url_with_long_timeouts(), if kind == Kind::Mariadb { "limen." } else { "" });
    let use_database = if kind == Kind::Mariadb { "USE limen; " } else { "" };
    server.sql(&format!("{use_database}{}", fixture(&place, file)));
    assert_eq!(version_on(&server), 3);
    // While an older limen uses the volume, a newer one changes nothing.
    server.sql(&format!(
        "INSERT INTO {database}vol_session (id, host, pid, mountpoint, since, heartbeat, pid_namespace, start_time, \
         first_slice, boot_id, version) VALUES (1, 'far', 7, '/far', 0, {}, 0, 0, 1, '', '0.1.0')",
        types::Time::now().nanos()
    ));
    let before = columns_on(&server, "vol");
    let in_use = ["has the layout of an earlier limen, which still uses it", "unmount it everywhere"];
    for (args, code) in [(&["status"][..], 1), (&["fsck", "--repair"], 8)] {
        limen(&[args, &[&url]].concat()).failed(code, &in_use);
    }
    place.mount_url(&url, &[]).failed(1, &in_use);
    assert_eq!((version_on(&server), columns_on(&server, "vol")), (3, before));

    server.sql(&format!("DELETE FROM {database}vol_session"));
    check_at(&place, &url);
    assert_eq!(version_on(&server), 4);
    let fresh = url.replace("vol_", "fresh_");
    limen(&["format", &fresh, "fresh", "--bucket", &place.text("fresh.data")]).ok();
    assert_eq!(columns_on(&server, "vol"), columns_on(&server, "fresh"));
    // The converted volume has quotas.
    limen(&["quota", "set", &format!("{url}:/dir"), "--inodes", "100"]).ok();
    limen(&["quota", "check", &url]).ok();
    limen(&["destroy", "--yes", &fresh]).ok();
}

#[test]
fn volume_of_version_3_on_postgresql_is_converted() {
    volume_of_version_3_is_converted(Kind::Postgres, "postgres-3.sql");
}

#[test]
fn volume_of_version_3_on_mariadb_is_converted() {
    volume_of_version_3_is_converted(Kind::Mariadb, "mariadb-3.sql");
}

/// Stores another version of the layout.
fn put_version(server: &Server, version: u64) {
    match server.kind {
        Kind::Postgres => drop(server.sql(&format!("UPDATE vol_layout SET version = {version}"))),
        Kind::Mariadb => drop(server.sql(&format!("UPDATE limen.vol_layout SET version = {version}"))),
        Kind::Redis => {
            let url = server.url_with_long_timeouts();
            let port = url.trim_start_matches("redis://127.0.0.1:").split('/').next().unwrap();
            let version = version.to_string();
            let said = Command::new("redis-cli").args(["-p", port, "SET", "{vol_}schema", &version]).output();
            assert_eq!(Said::from(said.unwrap()).ok(), "OK\n");
        }
        Kind::Etcd => {
            let [key, value] = ["vol_/v", &version.to_string()].map(|text| BASE64_STANDARD.encode(text));
            let body = format!(r#"{{"key": "{key}", "value": "{value}"}}"#);
            let length = body.len();
            let request = format!("POST /v3/kv/put HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
            let answer = server.http(&request).unwrap();
            assert!(answer.contains("revision"), "{answer}");
        }
        Kind::Tikv => {
            // A value ends with the timestamp of its transaction, in eight bytes.
            let value = format!("{version}{}%01", "%00".repeat(7));
            let request = format!("GET /put?key=vol_/v&value={value} HTTP/1.0\r\n\r\n");
            let answer = server.http(&request).unwrap();
            assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        }
    }
}

/// Every command refuses a volume with a layout of these versions, says what to do, and changes nothing.
fn other_versions_are_refused(kind: Kind, known: u64, older: impl IntoIterator<Item = u64>) {
    let (server, place) = (Server::start(kind, false), Place::new());
    let url = server.url_with_long_timeouts();
    limen(&["format", &url, "vol", "--bucket", &place.text("data")]).ok();
    place.mount_url(&url, &[]).ok();
    fs::write(place.path("mnt/f"), "x".repeat(10_000)).unwrap();
    place.umount(&[]).ok();
    let names = server.everything();
    let refused = |version: u64, advice: &[&str]| {
        println!("{kind:?}: version {version}");
        put_version(&server, version);
        let what = format!("has layout version {version}");
        let parts = [&[&*what], advice].concat();
        let commands = [
            (&["status"][..], 1),
            (&["fsck", "--repair"], 8),
            (&["gc", "--delete"], 1),
            (&["dump"], 1),
            (&["destroy", "--yes"], 1),
        ];
        for (args, code) in commands {
            limen(&[args, &[&url]].concat()).failed(code, &parts);
        }
        place.mount_url(&url, &[]).failed(1, &parts);
        limen(&["format", &url, "again", "--bucket", &place.text("other")]).failed(1, &parts);
        assert_eq!(server.everything(), names);
    };
    let only = format!("this limen supports only version {known}");
    for version in older {
        refused(version, &[&only, "copy its files out with the limen that wrote it"]);
    }
    let up_to = format!("this limen supports versions up to {known}");
    refused(known + 1, &[&up_to, "use the limen that wrote it, or a newer one"]);
    put_version(&server, known);
    limen(&["fsck", "--data", &url]).ok();
    place.mount_url(&url, &[]).ok();
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "x".repeat(10_000));
    place.umount(&[]).ok();
}

#[test]
fn other_versions_on_postgresql_are_refused() {
    other_versions_are_refused(Kind::Postgres, engine_postgres::VERSION, 1..=2);
}

#[test]
fn other_versions_on_mariadb_are_refused() {
    other_versions_are_refused(Kind::Mariadb, engine_mysql::VERSION, 1..=2);
}

#[test]
fn other_versions_on_redis_are_refused() {
    other_versions_are_refused(Kind::Redis, engine_redis::VERSION, 1..=3);
}

#[test]
fn other_versions_on_etcd_are_refused() {
    other_versions_are_refused(Kind::Etcd, 3, 1..=2);
}

#[cfg(feature = "tikv")]
#[test]
fn other_versions_on_tikv_are_refused() {
    match Kind::Tikv.missing() {
        Some(what) => skip::missing(&what),
        None => other_versions_are_refused(Kind::Tikv, 3, 1..=2),
    }
}
