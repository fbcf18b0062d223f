//! `limen quota`, and the effect of quotas on programs that use a mount.

mod common;
mod harness;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Place, Said, command, limen};
use engine_sqlite::{Options, SqliteEngine};
use harness::{Mounted, NOBODY, as_user, refused};
use meta::{Effect, Engine, QuotaKey, Txn};
use rustix::fs::statvfs;
use rustix::io::Errno;
use serde_json::Value;
use servers::{Kind, Server};
use types::{OpId, QuotaId};

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&limen(args).ok()).unwrap()
}

/// Writes a file and syncs it, so that an error in storing the data is returned.
fn store(path: &Path, len: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![1; len])?;
    file.sync_all()
}

#[test]
fn a_directory_quota_is_enforced_and_shown_by_statfs() {
    let Some(volume) = Mounted::new(&[]) else { return };
    fs::create_dir(volume.at("d")).unwrap();
    fs::write(volume.at("d/old"), [1; 5000]).unwrap();
    volume.place.umount(&[]).ok();
    let dir = format!("{}:/d", volume.place.url());
    let set =
        json(&["quota", "set", &dir, "--bytes", "64K", "--inodes", "4", "--soft-inodes", "2", "--json"]);
    let quota = &set["quotas"][0];
    assert_eq!(
        (quota["path"].as_str(), quota["inodes"].as_i64(), quota["bytes"].as_i64()),
        (Some("/d"), Some(2), Some(8192))
    );
    assert_eq!((quota["max_bytes"].as_u64(), quota["state"].as_str()), (Some(65_536), Some("complete")));
    volume.place.mount(&[]).ok();

    refused(store(&volume.at("d/a"), 16 * 4096), Errno::DQUOT);
    fs::write(volume.at("d/a"), [1; 4096]).unwrap();
    fs::create_dir(volume.at("d/sub")).unwrap();
    refused(File::create(volume.at("d/b")), Errno::DQUOT);
    refused(fs::create_dir(volume.at("d/sub/c")), Errno::DQUOT);
    fs::write(volume.at("beside"), [1; 100_000]).unwrap();
    let at = |name: &str| statvfs(volume.at(name)).unwrap();
    let (inside, outside) = (at("d/sub"), at(""));
    assert_eq!((inside.f_blocks * inside.f_frsize, inside.f_bfree), (65_536, 13));
    assert_eq!((inside.f_files, inside.f_ffree), (4, 0));
    assert!(outside.f_blocks > 1 << 20 && outside.f_ffree > 1 << 20);

    // The usage of a file moves with it; a directory does not move.
    fs::rename(volume.at("d/old"), volume.at("old")).unwrap();
    assert_eq!((at("d").f_ffree, at("d").f_bfree), (1, 15));
    refused(fs::rename(volume.at("d/sub"), volume.at("sub")), Errno::XDEV);
    refused(fs::hard_link(volume.at("old"), volume.at("d/link")), Errno::XDEV);
    // Limits change while the volume is mounted.
    let raised = json(&["quota", "set", volume.at("d").to_str().unwrap(), "--inodes", "0", "--json"]);
    assert_eq!(raised["quotas"][0]["max_inodes"], Value::Null);
    (0..9).for_each(|n| drop(File::create(volume.at(&format!("d/{n}"))).unwrap()));
    let listed = json(&["quota", "list", &volume.place.url(), "--json"]);
    assert_eq!(listed["quotas"][0]["above_soft_limit"], true);
    let status = &volume.place.status()["quotas"];
    assert_eq!(
        (&status["all"], &status["above_soft_limit"], &status["full"]),
        (&1.into(), &1.into(), &0.into())
    );
    let shown = limen(&["quota", "list", &volume.place.url()]).ok();
    assert!(shown.contains("/d ") && shown.contains("above the soft limit"), "{shown}");
    volume.place.umount(&[]).ok();
    limen(&["quota", "set", &format!("{}:/", volume.place.url()), "--inodes", "9"])
        .failed(1, &["/d below it"]);
    limen(&["fsck", &volume.place.url()]).ok();
    limen(&["quota", "delete", &dir]).ok();
    assert_eq!(json(&["quota", "list", &volume.place.url(), "--json"])["quotas"], Value::Array(Vec::new()));
    limen(&["fsck", &volume.place.url()]).ok();
    volume.place.mount(&[]).ok();
    fs::rename(volume.at("d/sub"), volume.at("sub")).unwrap();
}

#[test]
fn a_user_quota_counts_existing_files_and_binds_the_user() {
    let Some(volume) = Mounted::new(&[]) else { return };
    fs::set_permissions(volume.at(""), PermissionsExt::from_mode(0o777)).unwrap();
    as_user(NOBODY, NOBODY, || fs::write(volume.at("mine"), [1; 8192]).unwrap());
    volume.place.umount(&[]).ok();
    let url = volume.place.url();
    let nobody = NOBODY.to_string();
    let set = json(&["quota", "set", &url, "--user", &nobody, "--bytes", "12K", "--inodes", "3", "--json"]);
    assert_eq!(
        (set["quotas"][0]["inodes"].as_u64(), set["quotas"][0]["bytes"].as_u64()),
        (Some(1), Some(8192))
    );
    volume.place.mount(&[]).ok();
    as_user(NOBODY, NOBODY, || {
        fs::write(volume.at("a"), "x").unwrap();
        refused(store(&volume.at("a"), 9000), Errno::DQUOT);
        fs::write(volume.at("b"), "").unwrap();
        refused(File::create(volume.at("c")), Errno::DQUOT);
    });
    fs::write(volume.at("by root"), "").unwrap();
    fs::remove_file(volume.at("mine")).unwrap();
    as_user(NOBODY, NOBODY, || drop(File::create(volume.at("c")).unwrap()));
    let got = json(&["quota", "get", &url, "--user", &nobody, "--json"]);
    assert_eq!(got["quotas"][0]["inodes"], 3);
    limen(&["quota", "delete", &url, "--user", &nobody]).ok();
    as_user(NOBODY, NOBODY, || drop(File::create(volume.at("d")).unwrap()));
    volume.place.umount(&[]).ok();
    limen(&["fsck", &url]).ok();
}

#[test]
fn a_quota_is_set_and_removed_in_use() {
    if !skip::is_root() {
        return;
    }
    for kind in [Kind::Redis, Kind::Postgres, Kind::Mariadb] {
        let (server, place) = (Server::start(kind, false), Place::new());
        limen(&["format", &server.url_with_long_timeouts(), "vol", "--bucket", &place.text("data")]).ok();
        place.mount_url(&server.url_with_long_timeouts(), &[]).ok();
        set_and_remove_in_use(&place, &server.url_with_long_timeouts());
    }
}

/// On the embedded engine, the mount's process changes the quotas.
#[test]
fn a_quota_of_the_embedded_engine_is_set_and_removed_in_use() {
    let Some(volume) = Mounted::new(&[]) else { return };
    set_and_remove_in_use(&volume.place, &volume.place.url());
    volume.place.mount(&["-o", "shared"]).ok();
    let url = volume.place.url();
    json(&["quota", "set", &format!("{url}:/d"), "--inodes", "150", "--json"]);
    limen(&["quota", "delete", volume.at("d").to_str().unwrap()]).ok();
    volume.place.umount(&[]).ok();
    limen(&["fsck", &url]).ok();

    // Another process has the database, and no mount is known here.
    let engine = SqliteEngine::open(&volume.place.path("vol.db"), &Options::default()).unwrap();
    let _lock = engine.lock_exclusive().unwrap();
    limen(&["quota", "set", &format!("{url}:/d"), "--inodes", "150"])
        .failed(1, &["another process uses the database", "on the machine"]);
}

#[test]
fn an_interrupted_quota_of_a_mounted_volume_is_completed() {
    let Some(volume) = Mounted::new(&[]) else { return };
    for dir in ["d", "d/a", "d/b"] {
        fs::create_dir(volume.at(dir)).unwrap();
        (0..500).for_each(|n| drop(File::create(volume.at(&format!("{dir}/f{n}"))).unwrap()));
    }
    let (dir, root) = (volume.at("d"), volume.at(""));
    let set = ["quota", "set", dir.to_str().unwrap(), "--inodes", "2000", "--json"];
    let delete = ["quota", "delete", dir.to_str().unwrap()];
    let owner = NOBODY.to_string();
    let of_owner = ["quota", "set", root.to_str().unwrap(), "--user", &owner, "--inodes", "9", "--json"];
    for wait in 0..10 {
        for args in [&set[..], &delete[..], &of_owner[..]] {
            let mut child = command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(5 + 4 * wait));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        fs::write(volume.at(&format!("d/a/new{wait}")), "text").unwrap();
    }
    let _ = limen(&delete);
    let set = json(&set);
    assert_eq!((&set["quotas"][0]["inodes"], &set["quotas"][0]["state"]), (&1513.into(), &"complete".into()));
    assert_eq!(json(&of_owner)["quotas"][0]["inodes"], 0);
    limen(&["quota", "check", root.to_str().unwrap()]).ok();
    volume.place.umount(&[]).ok();
    limen(&["fsck", &volume.place.url()]).ok();
}

fn set_and_remove_in_use(place: &Place, url: &str) {
    let at = |name: &str| place.path("mnt").join(name);
    for dir in ["d", "d/x", "d/y"] {
        fs::create_dir(at(dir)).unwrap();
        (0..40).for_each(|n| fs::write(at(&format!("{dir}/f{n}")), "text").unwrap());
    }
    let dir = at("d");
    let path = dir.to_str().unwrap();
    let set = json(&["quota", "set", path, "--inodes", "124", "--json"]);
    assert_eq!(set["quotas"][0]["inodes"], 123);
    drop(File::create(at("d/x/new")).unwrap());
    refused(File::create(at("d/x/newer")), Errno::DQUOT);
    // A second quota is set inside the first. A rename out of its directory does not change the outer quota,
    // which is still full.
    json(&["quota", "set", &format!("{url}:/d/x"), "--inodes", "1000", "--json"]);
    fs::rename(at("d/x/new"), at("d/y/other")).unwrap();
    refused(File::create(at("d/x/n")), Errno::DQUOT);
    limen(&["quota", "delete", path]).failed(1, &["/d/x below it", "outside in"]);
    limen(&["quota", "delete", at("d/x").to_str().unwrap()]).ok();
    limen(&["quota", "delete", path]).ok();
    drop(File::create(at("d/x/newer")).unwrap());
    json(&["quota", "set", path, "--soft-inodes", "9", "--json"]);
    while_files_change(&at("d/y"), || {
        (0..3).for_each(|_| assert!(limen(&["quota", "check", path]).ok().contains("1 was compared")));
    });
    while_files_change(&at("d/y"), || {
        for _ in 0..3 {
            limen(&["quota", "delete", path]).ok();
            json(&["quota", "set", path, "--inodes", "200", "--json"]);
        }
        limen(&["quota", "check", path]).ok();
    });
    limen(&["quota", "delete", path]).ok();
    place.umount(&[]).ok();
    limen(&["fsck", url]).ok();
}

/// Creates, resizes and removes files in a directory while `work` runs.
fn while_files_change(dir: &Path, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            for n in (0..7).cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let file = dir.join(format!("changing{n}"));
                store(&file, n * 3000).unwrap();
                fs::remove_file(dir.join(format!("changing{}", (n + 3) % 7))).ok();
                // Other programs of the machine need a turn too.
                thread::yield_now();
            }
        });
        work();
    });
}

#[test]
fn a_wrong_quota_is_corrected_in_use() {
    let Some(volume) = Mounted::new(&[]) else { return };
    for dir in ["d", "d/sub", "e"] {
        fs::create_dir(volume.at(dir)).unwrap();
        (0..20).for_each(|n| fs::write(volume.at(&format!("{dir}/f{n}")), "text").unwrap());
    }
    volume.place.umount(&[]).ok();
    let url = volume.place.url();
    let of = |dir: &str| format!("{url}:/{dir}");
    let set = json(&["quota", "set", &of("d"), "--inodes", "1000", "--json"]);
    let id = QuotaId(set["quotas"][0]["id"].as_u64().unwrap());
    json(&["quota", "set", &of("e"), "--inodes", "1000", "--json"]);
    assert!(limen(&["quota", "check", &url]).ok().contains("2 were compared"));
    let charge = Effect::Charge { key: QuotaKey::Directory(id), inodes: 5, blocks: -2 };
    let txn = Txn { op_id: OpId(1 << 120), guards: Vec::new(), effects: vec![charge] };
    let database = volume.place.path("vol.db");
    SqliteEngine::open(&database, &Options::default()).unwrap().commit(&[txn]).unwrap();
    volume.place.mount(&[]).ok();

    while_files_change(&volume.at("d/sub"), || {
        let check = |args: &[&str]| limen(&[&["quota", "check"], args].concat());
        for _ in 0..3 {
            let said = check(&[&url, "--json"]);
            assert_eq!(said.code, Some(4), "{said:?}");
            let wrong = &serde_json::from_str::<Value>(&said.out).unwrap()["wrong"][0];
            let differs =
                |what: &str| wrong["says"][what].as_i64().unwrap() - wrong["is"][what].as_i64().unwrap();
            assert_eq!((differs("inodes"), differs("bytes"), &wrong["path"]), (5, -8192, &"/d".into()));
        }
        check(&[volume.at("e").to_str().unwrap()]).ok();
        let said = check(&[&of("d")]);
        assert!(said.code == Some(4) && said.out.contains("/d: counts "), "{said:?}");
        let said = check(&[&url, "--repair"]);
        assert!(said.code == Some(1) && said.out.contains("1 quota was corrected"), "{said:?}");
        (0..3).for_each(|_| _ = check(&[&url]).ok());
    });
    volume.place.umount(&[]).ok();
    limen(&["fsck", &url]).ok();
    limen(&["quota", "check", &of("none")]).failed(8, &["No such file"]);
}

#[test]
fn wrong_limits_and_targets_change_nothing() {
    let place = Place::formatted();
    let (url, none) = (place.url(), format!("{}:/none", place.url()));
    for (args, parts) in [
        (&["set", &url][..], &["nothing to set"][..]),
        (&["set", &url, "--inodes", "-1"], &["invalid value '-1' for '--inodes"]),
        (&["set", &url, "--soft-bytes", "-1024"], &["'-1024' is not a size"]),
        (&["set", &url, "--inodes", "99999999999999999999"], &["99999999999999999999"]),
        (&["set", &url, "--inodes", "9223372036854775807"], &["too large"]),
        (&["set", &url, "--bytes", "18000000000G"], &["too large"]),
        (&["set", &url, "--bytes", "1M", "--soft-bytes", "2M"], &["soft limit must not be above"]),
        (&["set", &url, "--inodes", "5", "--user", "no such user"], &["no such user"]),
        (&["set", &url, "--inodes", "5", "--user", "0", "--group", "0"], &["cannot be used with"]),
    ] {
        limen(&[&["quota"], args].concat()).failed(2, parts);
    }
    limen(&["quota", "set", &none, "--inodes", "5"]).failed(1, &["No such file"]);
    limen(&["quota", "get", &url]).failed(1, &["no quota"]);
    limen(&["quota", "delete", &url]).failed(1, &["no quota"]);
    limen(&["quota", "delete", &url, "--user", "0"]).failed(1, &["user '0' has no quota"]);
    limen(&["quota", "delete", &url, "--id", "7"]).failed(1, &["no quota"]);
    assert_eq!(json(&["quota", "list", &url, "--json"])["quotas"], Value::Array(Vec::new()));
}

#[test]
fn a_soft_limit_stays_below_the_hard_limit_that_is_set_already() {
    let place = Place::formatted();
    let url = place.url();
    for whose in [&["--user", "7"][..], &[]] {
        let set = |limits: &[&str]| limen(&[&["quota", "set", &url], whose, limits].concat());
        set(&["--bytes", "1M", "--inodes", "9"]).ok();
        set(&["--soft-bytes", "2M"]).failed(2, &["soft limit must not be above", "0 removes it"]);
        set(&["--soft-bytes", "1M"]).ok();
        set(&["--bytes", "512K"]).failed(2, &["soft limit must not be above"]);
        set(&["--bytes", "512K", "--soft-bytes", "0"]).ok();
        set(&["--soft-inodes", "9"]).ok();
        set(&["--inodes", "0"]).ok();
    }
}

#[test]
fn a_file_has_no_quota_and_odd_names_are_shown_whole() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let odd = volume.at("").join(OsStr::from_bytes(b"odd\n\xff"));
    fs::create_dir(&odd).unwrap();
    fs::write(volume.at("file"), b"").unwrap();
    let file = volume.at("file");
    let file = file.to_str().unwrap();
    for (args, code) in [
        (&["set", file, "--inodes", "5"][..], 1),
        (&["get", file], 1),
        (&["delete", file], 1),
        (&["check", file], 8),
    ] {
        limen(&[&["quota"], args].concat()).failed(code, &["Not a directory"]);
    }
    volume.place.umount(&[]).ok();
    let url = volume.place.url();
    let odd = OsString::from_vec([url.as_bytes(), b":/odd\n\xff"].concat());
    let quota =
        |args: &[&str]| Said::from(command(&["quota", args[0]]).arg(&odd).args(&args[1..]).output().unwrap());
    quota(&["get"]).failed(1, &["no quota", ":/odd\\n\\xff"]);
    let set: Value = serde_json::from_str(&quota(&["set", "--inodes", "5", "--json"]).ok()).unwrap();
    assert_eq!(set["quotas"][0]["path_bytes"], "2f6f64640aff");
}
