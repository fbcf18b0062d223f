//! The trash on a mount: removed and overwritten files, `limen restore` and `limen trash`.

mod common;
mod harness;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, limen};
use harness::{Mounted, NOBODY, as_user};
use serde_json::Value;
use servers::{Kind, Server};

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The items of `limen trash ls`.
fn listed(volume: &str) -> Vec<Value> {
    common::json_lines(&limen(&["trash", "ls", "--json", volume]).ok())
}

fn names(volume: &str) -> Vec<String> {
    let mut names: Vec<String> =
        listed(volume).iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect();
    names.sort_unstable();
    names
}

fn restore(args: &[&str]) -> Value {
    serde_json::from_str(&limen(&[&["restore", "--json"], args].concat()).ok()).unwrap()
}

/// Everything that a restore must bring back.
fn shown(root: &Path) -> String {
    let within = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(root).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    [
        within("find", &[".", "-printf", "%P %i %y %m %U %G %l\n"]),
        within("find", &[".", "-type", "f", "-printf", "%P %s %T@\n"]),
        within("getfacl", &["-R", "-n", "-p", "."]),
        within("getfattr", &["-R", "-h", "-d", "-m", "-", "."]),
        within("sh", &["-c", "find . -type f -exec sha256sum {} +"]),
    ]
    .join("\n---\n")
}

fn fill(top: &Path) {
    fs::create_dir_all(top.join("sub/deep/er")).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    fs::write(top.join("small"), "small").unwrap();
    fs::write(top.join("sub/large"), vec![7; (5 << 20) + 3]).unwrap();
    fs::write(top.join("sub/deep/er/f"), "deep").unwrap();
    symlink("sub/large", top.join("symlink")).unwrap();
    chown(top.join("small"), Some(1000), Some(1000)).unwrap();
    let at = |name: &str| text(&top.join(name)).to_owned();
    run("setfacl", &["-m", "u:1000:rwx,g:7:r-x,m::rwx", &at("sub")]);
    run("setfacl", &["-d", "-m", "u:1000:rwx,o::---", &at("sub")]);
    run("setfacl", &["-m", "u:5:r--", &at("small")]);
    run("setfattr", &["-n", "user.a", "-v", "value", &at("small")]);
    run("setfattr", &["-n", "user.long", "-v", &"x".repeat(9000), &at("sub/deep")]);
}

#[track_caller]
fn fsck(place: &Place) {
    place.umount(&[]).ok();
    limen(&["fsck", &place.url()]).ok();
    place.mount(&[]).ok();
}

#[test]
fn a_removed_tree_is_restored() {
    let Some(m) = Mounted::new(&["--trash-days", "1"]) else { return };
    let (top, mnt) = (m.at("top"), m.place.mnt());
    fill(&top);
    let before = shown(&top);
    fs::remove_dir_all(&top).unwrap();
    assert!(!top.exists());
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "a listing does not show the trash");
    assert_eq!(names(&mnt).len(), 9);
    let dry: Value = restore(&["--dry-run", text(&top)]);
    assert_eq!((dry["files"].as_u64(), dry["directories"].as_u64()), (Some(4), Some(5)), "{dry}");
    assert!(!top.exists());
    let done = restore(&[text(&top)]);
    assert_eq!((done["files"].as_u64(), done["directories"].as_u64()), (Some(4), Some(5)), "{done}");
    assert_eq!(shown(&top), before);
    assert_eq!(names(&mnt), [""; 0]);
    // A file deep in a tree is restored with the directories above it, and nothing else.
    fs::remove_dir_all(&top).unwrap();
    restore(&[text(&top.join("sub/deep/er/f"))]);
    assert_eq!(fs::read(top.join("sub/deep/er/f")).unwrap(), b"deep");
    assert!(!top.join("small").exists() && !top.join("sub/large").exists());
    // Restore the rest of a directory that exists.
    restore(&[text(&top)]);
    assert_eq!(shown(&top), before);
    fsck(&m.place);
    assert_eq!(shown(&top), before);
}

#[test]
fn an_overwritten_file_is_restored_elsewhere() {
    let Some(m) = Mounted::new(&["--trash-days", "1"]) else { return };
    let (file, elsewhere) = (m.at("f"), m.at("old"));
    fs::create_dir(&elsewhere).unwrap();
    for version in ["first", "second", "third"] {
        fs::write(m.at("f.tmp"), version).unwrap();
        fs::rename(m.at("f.tmp"), &file).unwrap();
        // Wait, so that the times of two removals differ.
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(names(&m.place.mnt()), ["f", "f"]);
    limen(&["restore", text(&file)]).failed(1, &["File exists", "--to"]);
    restore(&["--to", text(&elsewhere), text(&file)]);
    assert_eq!(fs::read_to_string(elsewhere.join("f")).unwrap(), "second");
    assert_eq!(fs::read_to_string(&file).unwrap(), "third");
    limen(&["restore", text(&m.at("never"))]).failed(1, &["nothing was removed under this path"]);
    limen(&["restore", "--hour", "2001-01-01-01", text(&m.at("f2"))]).failed(1, &["nothing was removed"]);
}

#[test]
fn users_see_and_purge_only_their_own() {
    let Some(m) = Mounted::new(&["--trash-days", "1"]) else { return };
    fs::set_permissions(m.at(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(m.at("of root"), "secret").unwrap();
    as_user(1000, 1000, || fs::write(m.at("of 1000"), "x").unwrap());
    wait_for_release();
    fs::remove_file(m.at("of root")).unwrap();
    as_user(1000, 1000, || fs::remove_file(m.at("of 1000")).unwrap());
    let kind = |path: PathBuf| fs::read_dir(path).err().map(|error| error.kind());
    as_user(1000, 1000, || {
        assert_eq!(kind(m.at(".trash")), Some(ErrorKind::PermissionDenied));
        assert_eq!(kind(m.at(".trash/0")), Some(ErrorKind::PermissionDenied));
        assert_eq!(kind(m.at(".trash/1000")), None);
    });
    as_user(NOBODY, NOBODY, || {
        assert_eq!(kind(m.at(".trash/1000")), Some(ErrorKind::PermissionDenied));
    });
    // A user cannot create names in the trash: otherwise, root might restore a name that the user made up.
    as_user(1000, 1000, || {
        let hour = fs::read_dir(m.at(".trash/1000")).unwrap().next().unwrap().unwrap().path();
        assert_eq!(fs::write(hour.join("1-5-evil"), "x").unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(m.at("mine"), "x").unwrap();
        let moved = fs::rename(m.at("mine"), hour.join("1-5-evil")).unwrap_err();
        assert_eq!(moved.kind(), ErrorKind::PermissionDenied, "{moved}");
    });
    let hours = |uid: &str| fs::read_dir(m.at(".trash").join(uid)).map_or(0, Iterator::count);
    // The commands as a user: `setpriv` starts them without capabilities.
    let as_1000 = |args: &[&str]| {
        let mut all = vec!["--reuid", "1000", "--regid", "1000", "--clear-groups", common::LIMEN];
        all.extend(args);
        Command::new("setpriv").args(all).output().unwrap()
    };
    let mnt = m.place.mnt();
    let listed = as_1000(&["trash", "ls", &mnt]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("of 1000") && !listed.contains("of root"), "{listed}");
    assert!(!as_1000(&["restore", text(&m.at("of root"))]).status.success());
    let done = as_1000(&["restore", text(&m.at("of 1000"))]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(fs::metadata(m.at("of 1000")).unwrap().uid(), 1000);
    as_user(1000, 1000, || fs::remove_file(m.at("of 1000")).unwrap());
    assert!(as_1000(&["trash", "purge", "--all", &mnt]).status.success());
    assert_eq!((hours("0"), hours("1000")), (1, 0));
    let purged: Value =
        serde_json::from_str(&limen(&["trash", "purge", "--json", "--all", &mnt]).ok()).unwrap();
    assert_eq!((purged["files"].as_u64(), purged["failed"].as_u64()), (Some(1), Some(0)));
    assert_eq!(hours("0"), 0);

    // A user's directory in the trash is named after the user ID in the volume, which is not the ID that this
    // mount shows.
    m.remount_with(&["--uid-map", "0:0:1,1000:201000:100", "--gid-map", "0:0:1,1000:201000:100"]);
    let as_mapped = |args: &[&str]| {
        let mut all = vec!["--reuid", "201000", "--regid", "201000", "--clear-groups", common::LIMEN];
        all.extend(args);
        common::Said::from(Command::new("setpriv").args(all).output().unwrap())
    };
    let remove = |name: &str| {
        as_user(201_000, 201_000, || {
            fs::write(m.at(name), "x").unwrap();
            wait_for_release();
            fs::remove_file(m.at(name)).unwrap();
        });
    };
    remove("mapped");
    assert_eq!(hours("1000"), 1);
    assert!(as_mapped(&["trash", "ls", &mnt]).ok().contains("mapped"));
    as_mapped(&["restore", text(&m.at("mapped"))]).ok();
    as_mapped(&["rmr", "--skip-trash", text(&m.at("mapped"))]).ok();
    assert_eq!(names(&mnt), [""; 0]);
    remove("purged");
    as_mapped(&["trash", "purge", "--all", &mnt]).ok();
    assert_eq!(names(&mnt), [""; 0]);
    m.remount_with(&["--all-squash"]);
    as_user(1000, 1000, || {
        fs::write(m.at("squashed"), "x").unwrap();
        wait_for_release();
        fs::remove_file(m.at("squashed")).unwrap();
    });
    let listed = common::Said::from(as_1000(&["trash", "ls", &mnt]));
    assert!(listed.out.contains("squashed"), "{listed:?}");
    m.remount();
    assert_eq!(names(&mnt), ["squashed"]);
    fsck(&m.place);
}

#[test]
fn rmr_skips_the_trash_and_says_what_is_left_there() {
    let Some(m) = Mounted::new(&["--trash-days", "1"]) else { return };
    let mnt = m.place.mnt();
    let rmr = |args: &[&str]| -> Value {
        serde_json::from_str(&limen(&[&["rmr", "--json"], args].concat()).ok()).unwrap()
    };
    let top = m.at("top");
    fill(&top);
    fs::create_dir_all(top.join("many")).unwrap();
    (0..300).for_each(|number| fs::write(top.join(format!("many/{number}")), "x").unwrap());
    (0..50).for_each(|number| {
        fs::hard_link(top.join(format!("many/{number}")), top.join(format!("many/link {number}"))).unwrap();
    });
    fs::hard_link(top.join("small"), m.at("kept")).unwrap();
    run("mkfifo", &[text(&top.join("fifo"))]);
    let open = File::open(top.join("sub/large")).unwrap();
    let done = rmr(&["--skip-trash", text(&top)]);
    assert_eq!(
        (&done["files"], &done["directories"], &done["left_in_trash"]),
        (&355.into(), &6.into(), &0.into())
    );
    assert_eq!(open.metadata().unwrap().len(), (5 << 20) + 3);
    drop(open);
    assert_eq!(names(&mnt), [""; 0]);
    assert_eq!(fs::read(m.at("kept")).unwrap(), b"small");
    // Without the option, everything goes to the trash.
    fs::create_dir(&top).unwrap();
    fs::write(top.join("f"), "x").unwrap();
    assert_eq!(rmr(&[text(&top)])["left_in_trash"], 0);
    assert_eq!(names(&mnt), ["f", "top"]);

    // A user cannot delete the files of others from the trash.
    fs::create_dir(&top).unwrap();
    fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(top.join("of root"), "x").unwrap();
    as_user(1000, 1000, || fs::write(top.join("of 1000"), "x").unwrap());
    // An open file does not go to the trash.
    let open = File::create(top.join("open")).unwrap();
    let user = ["--reuid", "1000", "--regid", "1000", "--clear-groups", common::LIMEN, "rmr", "--skip-trash"];
    let paths = [top.join("of root"), top.join("of 1000"), top.join("open")];
    let output = Command::new("setpriv").args(user).args(&paths).output().unwrap();
    let said = common::Said::from(output);
    said.failed(1, &["1 removed file or directory is still in the trash", "limen trash purge"]);
    assert_eq!(names(&mnt), ["f", "of root", "top"]);
    drop(open);

    limen(&["rmr", "--skip-trash", &m.place.text("vol.data/none")]).failed(1, &["not on a limenfs volume"]);
    fs::create_dir(m.at("sub")).unwrap();
    fs::write(m.at("sub/f"), "x").unwrap();
    m.place.umount(&[]).ok();
    m.place.mount(&["--subdir", "sub"]).ok();
    limen(&["rmr", "--skip-trash", text(&m.at("f"))])
        .failed(1, &["does not show the root", "mount the whole volume"]);
    assert!(m.at("f").exists());
    m.place.umount(&[]).ok();
    // The owner's directory in the trash is named after the user ID in the volume, which is not the ID that
    // this mount shows.
    m.place.mount(&["--uid-map", "0:0:1,1000:201000:100"]).ok();
    fs::write(m.at("mapped"), "x").unwrap();
    chown(m.at("mapped"), Some(201_007), None).unwrap();
    rmr(&["--skip-trash", text(&m.at("mapped"))]);
    assert_eq!(names(&mnt), ["f", "of root", "top"]);
    m.place.umount(&[]).ok();
    limen(&["config", "--trash-days", "0", &m.place.url()]).ok();
    m.place.mount(&[]).ok();
    fs::write(m.at("g"), "x").unwrap();
    assert_eq!(rmr(&["--skip-trash", text(&m.at("g"))])["files"], 1);
    fsck(&m.place);
}

#[test]
fn the_trash_is_counted_and_a_full_volume_is_purged() {
    let Some(m) = Mounted::new(&["--trash-days", "1", "--capacity", "64M"]) else { return };
    let mnt = m.place.mnt();
    let trash = || {
        let status = m.place.status();
        (status["trash"]["inodes"].as_u64().unwrap(), status["trash"]["bytes"].as_u64().unwrap())
    };
    assert_eq!(trash(), (0, 0));
    fs::write(m.at("f"), vec![1; 1 << 20]).unwrap();
    let used = m.bytes();
    fs::remove_file(m.at("f")).unwrap();
    assert_eq!((m.bytes(), trash()), (used, (3, 1 << 20)));
    limen(&["trash", "purge", "--all", &mnt]).ok();
    assert_eq!(m.bytes(), 0);
    // The mount deletes the oldest files when the volume is nearly full.
    for n in 0..7 {
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(error) = fs::write(m.at("large"), vec![n; 20 << 20]) {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            assert!(Instant::now() < until, "the trash is not emptied: {:?}", trash());
            thread::sleep(Duration::from_millis(100));
        }
        fs::remove_file(m.at("large")).unwrap();
    }
    assert!(m.bytes() <= 64 << 20);
    fsck(&m.place);
    assert!(fs::read_dir(m.at(".trash")).is_ok());
}

#[test]
fn an_open_file_is_deleted_and_the_rest_survives_a_kill() {
    let Some(m) = Mounted::new(&["--trash-days", "1"]) else { return };
    let mut open = File::create(m.at("open")).unwrap();
    open.write_all(b"x").unwrap();
    fs::remove_file(m.at("open")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    drop(open);
    let top = m.at("top");
    fill(&top);
    let before = shown(&top);
    fs::remove_dir_all(&top).unwrap();
    File::open(m.at("")).unwrap().sync_all().unwrap();
    m.kill_and_remount();
    assert!(!names(&m.place.mnt()).contains(&"open".to_owned()));
    restore(&[text(&top)]);
    assert_eq!(shown(&top), before);
    fsck(&m.place);
}

/// The kernel sends RELEASE after close(2) has returned. Until it arrives, the file counts as open, and its
/// removal deletes it instead of moving it to the trash.
fn wait_for_release() {
    std::thread::sleep(std::time::Duration::from_millis(100));
}

#[test]
fn the_trash_is_turned_on_and_off() {
    let Some(m) = Mounted::new(&[]) else { return };
    assert!(!m.at(".trash").exists());
    fs::create_dir(m.at(".trash")).unwrap();
    let url = m.place.url();
    let turn_on = || limen(&["config", &url, "--trash-days", "3"]);
    turn_on().failed(1, &["is mounted", "unmount it"]);
    m.place.umount(&[]).ok();
    turn_on().failed(1, &["'.trash'", "rename it"]);
    m.place.mount(&[]).ok();
    fs::remove_dir(m.at(".trash")).unwrap();
    m.place.umount(&[]).ok();
    turn_on().ok();
    limen(&["fsck", &url]).ok();
    m.place.mount(&[]).ok();
    assert_eq!(fs::metadata(m.at(".trash")).unwrap().permissions().mode() & 0o7777, 0o711);
    assert_eq!(fs::create_dir(m.at(".trash")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::remove_dir(m.at(".trash")).unwrap_err().kind(), ErrorKind::ResourceBusy);
    fs::create_dir(m.at("d")).unwrap();
    for name in ["a", "b"] {
        fs::write(m.at("d").join(name), name).unwrap();
    }
    wait_for_release();
    fs::remove_dir_all(m.at("d")).unwrap();
    m.place.umount(&[]).ok();
    // List the names by the URL, without a mount.
    assert_eq!(names(&url), ["a", "b", "d"]);
    limen(&["trash", "purge", "--older", "1h", &url]).ok();
    assert_eq!(names(&url).len(), 3);
    let ls = limen(&["ls", &format!("{url}:/.trash")]).ok();
    assert!(ls.contains('0'), "{ls}");
    limen(&["trash", "purge", "--all", &url]).ok();
    assert_eq!(names(&url), [""; 0]);
    limen(&["fsck", &url]).ok();
    // A dump contains the trash.
    m.place.mount(&[]).ok();
    fs::write(m.at("f"), "kept").unwrap();
    wait_for_release();
    fs::remove_file(m.at("f")).unwrap();
    m.place.umount(&[]).ok();
    let (dump, other) = (m.place.text("dump"), format!("sqlite://{}", m.place.text("other.db")));
    limen(&["dump", &url, &dump]).ok();
    limen(&["load", &other, &dump]).ok();
    assert_eq!(names(&other), ["f"]);
    m.place.mount(&[]).ok();
    limen(&["config", &url, "--trash-days", "0"]).ok();
    let until = Instant::now() + Duration::from_secs(60);
    while m.place.status()["trash"]["inodes"] != 0 {
        assert!(Instant::now() < until, "{}", m.place.status());
        thread::sleep(Duration::from_millis(200));
    }
}

/// Two mounts on a server: one restores files that the other has removed.
#[test]
fn two_mounts_share_the_trash() {
    if !skip::is_root() {
        return;
    }
    let server = Server::start(Kind::Redis, false);
    let (a, b) = (Place::new(), Place::new());
    let url = server.url_with_long_timeouts();
    limen(&["format", &url, "vol", "--bucket", &a.text("bucket"), "--trash-days", "1"]).ok();
    a.mount_url(&url, &[]).ok();
    b.mount_url(&url, &[]).ok();
    let [top, seen] = [&a, &b].map(|place| Path::new(&place.mnt()).join("top"));
    fill(&top);
    let before = shown(&seen);
    fs::remove_dir_all(&seen).unwrap();
    assert_eq!(names(&a.mnt()), names(&b.mnt()));
    restore(&[text(&top)]);
    assert_eq!(shown(&seen), before);
    fs::remove_dir_all(&top).unwrap();
    limen(&["config", &url, "--trash-days", "0"]).ok();
    let until = Instant::now() + Duration::from_secs(60);
    while !names(&b.mnt()).is_empty() {
        assert!(Instant::now() < until, "{:?}", names(&b.mnt()));
        thread::sleep(Duration::from_millis(200));
    }
    for place in [&a, &b] {
        place.umount(&[]).ok();
    }
    limen(&["fsck", &url]).ok();
}
