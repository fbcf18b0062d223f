//! Backups of a volume's metadata in its object store, made by mounts and by `limen backup`, and volumes that
//! are restored from the store alone.
//!
//! Most tests mount, which requires root.

mod common;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, command, killed_at, limen, loaded_lines, make_many};
use engine_sqlite::{Options, SqliteEngine};
use meta::{Effect, Engine, LastBackup, Txn};
use serde_json::Value;
use servers::{Kind, Server};
use tree::{MIB, make_tree, sum_of, walk};
use types::{OpId, Time};

/// Nothing in this file takes this long unless it hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The backups in the store of a place, the newest first.
fn backups(place: &Place) -> Vec<Value> {
    backups_in(&place.text("data"))
}

fn backups_in(bucket: &str) -> Vec<Value> {
    serde_json::from_str(&limen(&["backup", "ls", "--json", "--bucket", bucket]).ok()).unwrap()
}

fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG_TIMEOUT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "there is no {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Lets a mount of the volume at `url` back up everything up to now, and then turns its backups off.
fn let_mount_back_up(place: &Place, url: &str) {
    let before = Time::now().nanos();
    limen(&["config", "--backup-interval", "1s", url]).ok();
    wait_for("new backup", || {
        let newest = backups(place).into_iter().find(|backup| backup["complete"] == true)?;
        (newest["id"].as_i64().unwrap() > before).then_some(())
    });
    limen(&["config", "--backup-interval", "0", url]).ok();
    // A mount that began one more backup completes it.
    wait_for("mount that has applied the setting", || {
        let before = backups(place);
        thread::sleep(Duration::from_secs(7));
        (backups(place) == before && before.iter().all(|backup| backup["complete"] == true)).then_some(())
    });
}

/// All block objects, with a checksum of each.
fn objects(place: &Place) -> BTreeMap<PathBuf, u64> {
    fn collect(dir: &Path, found: &mut BTreeMap<PathBuf, u64>) {
        for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                collect(&entry, found);
            } else {
                let sum = sum_of(&fs::read(&entry).unwrap());
                found.insert(entry, sum);
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(&place.path("data/chunks"), &mut found);
    found
}

/// A mount backs up the volume, the database is lost, and the volume is restored into another database.
fn volume_is_restored(from: Option<Kind>, to: Option<Kind>, format: &[&str], with_key: &[&str]) {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    let lost = from.map(|kind| Server::start(kind, false));
    let target = to.map(|kind| Server::start(kind, false));
    let url = lost.as_ref().map_or_else(|| place.url(), Server::url);
    let new = target.as_ref().map_or_else(|| format!("sqlite://{}", place.text("new.db")), Server::url);
    let bucket = place.text("data");
    fs::write(place.path("key"), "5a".repeat(32)).unwrap();
    let key = place.text("key");
    let with_key: Vec<&str> = with_key.iter().map(|arg| if *arg == "KEY" { &key } else { *arg }).collect();
    limen(&[&["format", &url, "vol", "--bucket", &bucket], format, &with_key].concat()).ok();
    place.mount_url(&url, &with_key).ok();
    let mnt = place.path("mnt");
    make_tree(&mnt, false);
    rustix::fs::sync();
    let_mount_back_up(&place, &url);
    let before = walk(&mnt);
    let inodes = backups(&place)[0]["inodes"].as_u64().unwrap();
    assert!(inodes > 300, "{inodes}");
    // These files are stored after the backup, under slice numbers that the backup does not contain. It does
    // contain the numbers that the first mount had reserved, so a second mount writes the files.
    place.umount(&[]).ok();
    place.mount_url(&url, &with_key).ok();
    for later in 0..4 {
        fs::write(mnt.join(format!("later {later}")), vec![later; 5 * MIB as usize]).unwrap();
    }
    place.umount(&[]).ok();
    drop(lost);
    for suffix in ["", "-wal", "-shm"] {
        // Only the embedded engine has these files.
        let _ = fs::remove_file(place.path(&format!("vol.db{suffix}")));
    }

    let stored = objects(&place);
    let restore = [&["backup", "restore", "--json", &new, "--bucket", &bucket], &with_key[..]].concat();
    limen(&restore).failed(2, &["volume 'vol' would be restored", "--yes"]);
    let said: Value =
        serde_json::from_str(&limen(&[&restore[..], &["--yes", "--verify"]].concat()).ok()).unwrap();
    assert_eq!((&said["volume"], &said["inodes"]), (&"vol".into(), &inodes.into()), "{said}");
    place.mount_url(&new, &with_key).ok();
    let after = walk(&mnt);
    for (path, says) in &before {
        assert_eq!(after.get(path), Some(says), "{}", path.escape_ascii());
    }
    assert_eq!(after.len(), before.len());
    // New files must not overwrite objects that are already in the store.
    for new in 0..4 {
        fs::write(mnt.join(format!("new {new}")), vec![100 + new; 6 * MIB as usize]).unwrap();
    }
    rustix::fs::sync();
    let now = objects(&place);
    for (key, sum) in &now {
        assert!(stored.get(key).is_none_or(|before| before == sum), "{}", key.display());
    }
    assert!(now.keys().filter(|key| !stored.contains_key(*key)).count() >= 8);
    place.umount(&[]).ok();
    // gc removes the objects that only the lost database referenced, but no backup.
    let kept = backups(&place);
    limen(&["gc", "--delete", "--grace", "0", &new]).ok();
    assert!(objects(&place).len() <= now.len() - 8, "the objects of four files are removed");
    assert_eq!(backups(&place), kept);
    let again = format!("sqlite://{}", place.text("again.db"));
    let look = ["backup", "restore", "--no-adopt", "--verify", &again, "--bucket", &bucket];
    limen(&[&look[..], &with_key].concat()).ok();
    let data = limen(&[&["fsck", "--data", &new], &with_key[..]].concat());
    assert_eq!(data.code, Some(0), "{data:?}");
    assert!(!data.out.contains("unreferenced"), "{data:?}");
    limen(&["destroy", "--yes", &new]).ok();
    assert!(!place.path("data").exists());
}

#[test]
fn volume_on_sqlite_is_restored() {
    volume_is_restored(None, None, &[], &[]);
}

#[test]
fn encrypted_volume_on_postgres_is_restored_into_redis() {
    let format = ["--compress", "zstd", "--encrypt", "aes-256-gcm"];
    volume_is_restored(Some(Kind::Postgres), Some(Kind::Redis), &format, &["--key-file", "KEY"]);
}

#[test]
fn volume_on_etcd_is_restored_into_mariadb() {
    volume_is_restored(Some(Kind::Etcd), Some(Kind::Mariadb), &[], &[]);
}

#[test]
fn volume_on_redis_is_restored_into_postgres() {
    volume_is_restored(Some(Kind::Redis), Some(Kind::Postgres), &["--compress", "lz4"], &[]);
}

fn sqlite(place: &Place) -> SqliteEngine {
    SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap()
}

#[test]
fn two_mounts_make_one_backup() {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    place.format(&["--bucket", &place.text("data")]).ok();
    // The last backup is two hours old.
    let began = Time::new(Time::now().sec() - 7200, 0);
    let value = LastBackup { took_secs: Some(0), ..LastBackup::begun(began) }.encode();
    let effects = vec![Effect::PutSetting { name: LastBackup::SETTING, value }];
    sqlite(&place).commit(&[Txn { op_id: OpId(1 << 90), guards: Vec::new(), effects }]).unwrap();
    place.mount(&["-o", "shared"]).ok();
    fs::create_dir(place.path("mnt2")).unwrap();
    limen(&["mount", "-d", "-o", "shared", &place.url(), &place.text("mnt2")]).ok();
    wait_for("complete backup", || {
        let status: Value = serde_json::from_str(&limen(&["status", "--json", &place.url()]).ok()).unwrap();
        (status["last_backup"]["took_secs"].is_number() && !backups(&place).is_empty()).then_some(())
    });
    // By the end of this pause, both mounts have asked whether a backup is due.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(backups(&place).len(), 1);
    limen(&["umount", &place.text("mnt2")]).ok();
    place.umount(&[]).ok();
    assert!(place.log().lines().filter(|line| line.contains("backed up the metadata")).count() <= 1);
}

#[test]
fn backups_are_off_if_the_administrator_says_so_and_never_in_memory() {
    let place = Place::formatted();
    let config = |args: &[&str]| limen(&[&["config", &place.url()], args].concat());
    assert!(config(&[]).ok().contains("of the metadata every 60 minutes"));
    assert!(config(&["--backup-interval", "0"]).ok().contains("none (--backup-interval)"));
    config(&["--backup-interval", "often"]).failed(2, &["'often' is not a length of time"]);
    let memory = format!("sqlite://{}", place.text("memory.db"));
    limen(&["format", &memory, "mem", "--storage", "memory"]).ok();
    for action in [&["backup", "ls"][..], &["backup", "create"]] {
        limen(&[action, &[&memory]].concat()).failed(2, &["--storage memory has no backups"]);
    }
}

#[test]
fn bad_input_of_a_restore_changes_nothing() {
    let place = Place::formatted();
    let (bucket, new) = (place.text("vol.data"), format!("sqlite://{}", place.text("new.db")));
    let restore = |more: &[&str]| limen(&[&["backup", "restore", "--yes", &new], more].concat());
    let from_store = |more: &[&str]| restore(&[&["--bucket", &bucket], more].concat());
    restore(&[]).failed(2, &["--bucket"]);
    restore(&["--bucket", &place.text("absent")])
        .failed(1, &["does not exist", "check --storage and --bucket"]);
    from_store(&[]).failed(1, &["there is no complete backup", "no backups at all"]);
    assert_eq!(limen(&["backup", "ls", "--bucket", &bucket]).ok(), "There are no backups.\n");
    let said: Value =
        serde_json::from_str(&limen(&["backup", "create", "--json", &place.url()]).ok()).unwrap();
    let id = said["id"].to_string();
    assert!(limen(&["backup", "ls", &place.url()]).ok().contains(&id));
    from_store(&["--id", "7"]).failed(1, &["there is no backup 7", "limen backup ls"]);
    let key = place.text("key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    from_store(&["--key-file", &key]).failed(2, &["not encrypted", "omit --key-file"]);
    let mut with_passphrase = command(&["backup", "restore", "--yes", &new, "--bucket", &bucket]);
    let refused: common::Said = with_passphrase.env("LIMEN_PASSPHRASE", "secret").output().unwrap().into();
    refused.failed(2, &["not encrypted", "omit LIMEN_PASSPHRASE"]);
    limen(&["backup", "restore", "--yes", &place.url(), "--bucket", &bucket])
        .failed(1, &["holds a volume already", "nothing was changed"]);
    let at = |name: &str| place.path("vol.data/backups").join(name);
    let (part, manifest) = (at(&format!("{id}/0")), at(&format!("{id}.json")));
    let (whole, text) = (fs::read(&part).unwrap(), fs::read_to_string(&manifest).unwrap());
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&part, changed).unwrap();
    from_store(&[]).failed(1, &[&id, "the backup is damaged"]);
    fs::remove_file(&part).unwrap();
    from_store(&[]).failed(1, &["it is missing"]);
    fs::write(&part, &whole).unwrap();
    fs::write(&manifest, text.replacen("\"version\":", "\"version\":9", 1)).unwrap();
    from_store(&[]).failed(1, &["newer limen", "9"]);
    let list = limen(&["backup", "ls", "--bucket", &bucket]).ok();
    assert!(list.contains(&id) && list.contains("newer limen"), "{list}");
    let uuid = said["uuid"].as_str().unwrap();
    fs::write(&manifest, text.replace(uuid, "0b6a1a4e-6d1c-4b53-9d5a-0a4f2b1f4f10")).unwrap();
    from_store(&[]).failed(1, &["the object store belongs to volume 'vol'"]);
    fs::remove_file(place.path("vol.data/limen-volume")).unwrap();
    from_store(&[]).failed(1, &["the manifest of the backup was changed"]);
    fs::remove_file(&manifest).unwrap();
    from_store(&["--id", &id]).failed(1, &["is not complete"]);
    from_store(&[]).failed(1, &["there is no complete backup", "limen backup ls"]);
    assert!(!place.path("new.db").exists());
}

#[test]
fn killed_restore_goes_on_and_can_leave_the_objects_to_the_old_database() {
    let place = Place::formatted();
    make_many(&place);
    limen(&["backup", "create", &place.url()]).ok();
    // The objects are at another place now.
    fs::rename(place.path("vol.data"), place.path("moved")).unwrap();
    let (new, bucket) = (format!("sqlite://{}", place.text("new.db")), place.text("moved"));
    let restore = ["backup", "restore", "--no-adopt", "--verify", &new, "--bucket", &bucket];
    killed_at(256 << 10, &place.path("new.db"), &restore);
    let stored = loaded_lines(&place.path("new.db"));
    assert!(stored > 1000, "{stored}");
    limen(&["fsck", &new]).failed(8, &["only in part"]);
    limen(&restore).ok();
    limen(&["gc", &new]).failed(1, &["belongs to another database", "limen config --adopt-store"]);
    limen(&["config", "--adopt-store", &new]).ok();
    assert!(limen(&["config", &new]).ok().contains(&bucket));
    let said = limen(&["fsck", "--data", &new]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn restore_takes_a_backup_of_the_database_that_uses_the_objects() {
    let place = Place::formatted();
    let (bucket, new) = (place.text("vol.data"), format!("sqlite://{}", place.text("new.db")));
    let create = |url: &str| {
        let said: Value = serde_json::from_str(&limen(&["backup", "create", "--json", url]).ok()).unwrap();
        said["id"].as_u64().unwrap()
    };
    let restored = |more: &[&str]| {
        let copy = format!("sqlite://{}", place.text("copy.db"));
        let restore = ["backup", "restore", "--json", "--no-adopt", &copy, "--bucket", &bucket];
        let said: Value = serde_json::from_str(&limen(&[&restore[..], more].concat()).ok()).unwrap();
        limen(&["destroy", "--yes", "--keep-objects", &copy]).ok();
        said["id"].as_u64().unwrap()
    };
    let first = create(&place.url());
    limen(&["backup", "restore", "--no-adopt", &new, "--bucket", &bucket]).ok();
    let second = create(&place.url());
    assert_eq!(restored(&[]), second);
    limen(&["config", "--adopt-store", &new]).ok();
    // The second backup is newer, but the new database was not restored from it.
    assert_eq!(restored(&[]), first);
    assert_eq!(restored(&["--id", &second.to_string()]), second);
    limen(&["backup", "create", &place.url()]).failed(1, &["belongs to another database"]);
    let third = create(&new);
    // This copy stands for a later backup that a mount of the old database completed.
    let manifest = |id: u64| place.path(&format!("vol.data/backups/{id}.json"));
    let later = third + 1_000_000_000;
    fs::copy(manifest(second), manifest(later)).unwrap();
    assert_eq!(restored(&[]), third);
    let list = limen(&["backup", "ls", "--bucket", &bucket]).ok();
    assert_eq!(list.matches("(another database)").count(), 3, "{list}");
    let found: Vec<(u64, bool)> = backups_in(&bucket)
        .iter()
        .map(|backup| (backup["id"].as_u64().unwrap(), backup["of_this_database"].as_bool().unwrap()))
        .collect();
    assert_eq!(found, [(later, false), (third, true), (second, false), (first, false)]);
    let restore = ["backup", "restore", "--no-adopt", "--bucket", &bucket, "sqlite:///nowhere/copy.db"];
    [first, third].iter().for_each(|id| fs::remove_file(manifest(*id)).unwrap());
    limen(&restore)
        .failed(1, &["no backup was made by the database that the object store belongs to", "--id"]);
    fs::rename(place.path("vol.data/limen-volume"), place.path("marker")).unwrap();
    assert_eq!(restored(&["--id", &second.to_string()]), second);
    fs::write(
        manifest(third),
        fs::read_to_string(manifest(second)).unwrap().replace("\"loaded\":\"", "\"loaded\":\"x"),
    )
    .unwrap();
    limen(&restore).failed(1, &["the backups are of several databases", "--id"]);
}

#[test]
fn mount_of_a_database_that_lost_the_store_makes_no_more_backups() {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    let (bucket, new) = (place.text("data"), format!("sqlite://{}", place.text("new.db")));
    place.format(&["--bucket", &bucket]).ok();
    place.mount(&[]).ok();
    limen(&["config", "--backup-interval", "1s", &place.url()]).ok();
    wait_for("backup", || backups(&place).iter().any(|backup| backup["complete"] == true).then_some(()));
    limen(&["backup", "restore", "--yes", "--force", &new, "--bucket", &bucket]).ok();
    wait_for("refusal", || place.log().contains("belongs to another database").then_some(()));
    let before = backups(&place);
    // A backup is due every second.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(backups(&place), before);
    assert!(
        before.iter().all(|backup| backup["complete"] == false || backup["of_this_database"] == false),
        "{before:?}"
    );
    place.umount(&[]).ok();
}
