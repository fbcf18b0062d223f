//! Messages and help for a user who types something slightly wrong or looks at a damaged volume, and
//! arguments that name a volume in another way.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMEN, Place, Said, command, limen, make_many};
use engine_sqlite::{Options, SqliteEngine};
use meta::{Effect, Engine, Txn};
use serde_json::Value;
use types::OpId;

fn json(said: Said) -> Value {
    serde_json::from_str(&said.ok()).unwrap()
}

#[test]
fn a_misspelt_command_is_never_answered_with_one_that_removes() {
    for name in ["restor", "destory", "rm", "gcc"] {
        let said = limen(&[name]);
        said.failed(2, &["unrecognized subcommand"]);
        for command in ["destroy", "rmr", "gc"] {
            assert!(!said.err.contains(&format!("'{command}'")), "{said:?}");
        }
    }
    limen(&["restore"]).failed(2, &["<PATH>"]);
    limen(&["recover"]).failed(2, &["limen restore", "limen backup restore"]);
    limen(&["statsu"]).failed(2, &["similar"]);
}

#[test]
fn help_has_at_most_100_columns_without_a_terminal() {
    for args in [&["--help"][..], &["mount", "--help"], &["format", "--help"], &["quota", "set", "--help"]] {
        let help = limen(args).ok();
        let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
    assert!(limen(&["mount", "--help"]).ok().contains("transport=auto|ring|dev"));
}

#[test]
fn a_path_on_a_mount_names_its_volume() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let (url, mnt) = (place.url(), place.mnt());
    fs::create_dir_all(place.path("mnt/d/e")).unwrap();
    fs::write(place.path("mnt/d/f"), "12345").unwrap();
    assert_eq!(json(limen(&["status", "--json", &mnt]))["url"], url.as_str());
    for command in ["config", "gc", "fsck"] {
        limen(&[command, &place.text("mnt/d")]).ok();
    }
    limen(&["status", &place.text("log")]).failed(2, &["this is a path", "sqlite://"]);
    // Name a file by its inode number. Then show the totals of a directory.
    let found = json(limen(&["info", "--json", &place.text("mnt/d/f")]));
    let ino = found[0]["inode"].as_u64().unwrap().to_string();
    for target in [&url, &mnt] {
        let by_number = json(limen(&["info", "--json", "--inode", &ino, target]));
        assert_eq!(by_number[0]["size"], 5, "{by_number}");
    }
    limen(&["info", "--inode", "4711", &url]).failed(1, &["inode 4711", "no longer exists"]);
    let in_volume = json(limen(&["info", "--json", &format!("{url}:/d")]));
    assert_eq!(in_volume[0]["entries"]["files"], 1);
    assert_eq!(in_volume[0]["entries"]["in_all"], Value::Null);
    let all = json(limen(&["info", "--json", "--recursive", &place.text("mnt/d")]));
    assert_eq!(all[0]["entries"]["in_all"]["inodes"], 3, "{all}");
    assert!(limen(&["info", &mnt]).ok().contains("0 files, 1 directory"));
}

#[test]
fn wrong_values_are_named_with_what_to_write() {
    let place = Place::formatted();
    let (url, bucket) = (place.url(), place.text("vol.data"));
    let other = format!("sqlite://{}", place.text("other.db"));
    let wrong: [(&[&str], &[&str]); 5] = [
        (&["format", &other, "w", "--inodes", "-5"], &["'-5' is not a whole number"]),
        (&["config", &url, "--capacity", "-5"], &["'-5' is not a size"]),
        (&["quota", "set", &url, "--bytes", "99999999999P"], &["too large", "16383P"]),
        (
            &["backup", "restore", &other, "--bucket", &bucket, "--id", "nosuch"],
            &["'nosuch'", "limen backup ls"],
        ),
        (&["profile", "--by", "colour", "/"], &["process"]),
    ];
    for (args, parts) in wrong {
        limen(args).failed(2, parts);
    }
    for verb in ["get", "delete"] {
        limen(&["quota", verb, &url, "--user", "1234"])
            .failed(1, &["user '1234' has no quota", "quota list"]);
        limen(&["quota", verb, &url, "--group", "7"]).failed(1, &["group '7' has no quota"]);
        limen(&["quota", verb, &url]).failed(1, &["the directory itself has no quota", "quota list"]);
    }
    for command in [&["compact"][..], &["warmup"], &["warmup", "--check"]] {
        limen(&[command, &[&url]].concat()).failed(2, &[&url, "needs a path on a mount"]);
    }
    let here = place.text("");
    limen(&["trash", "purge", &here]).failed(2, &["--older <TIME>", "--all"]);
    for command in
        [&["trash", "ls"][..], &["trash", "purge", "--all"], &["restore"], &["rmr", "--skip-trash"]]
    {
        limen(&[command, &[&here]].concat()).failed(1, &["not on a limenfs volume, but on"]);
    }
    limen(&["status", &url]).ok();
    let file = place.text("file");
    fs::write(&file, "").unwrap();
    limen(&["load", &other, &file]).failed(1, &["the file is empty", &file, "limen dump"]);
    fs::write(&file, "junk\n".repeat(30)).unwrap();
    limen(&["load", &other, &file]).failed(1, &["not a dump", &file, "limen dump"]);
    limen(&["load", &other, &place.text("absent")]).failed(1, &["cannot read the dump", "absent"]);
}

#[test]
fn a_dump_that_is_interrupted_leaves_nothing_and_touches_no_other_file() {
    let place = Place::formatted();
    make_many(&place);
    let (url, file) = (place.url(), place.text("a.dump"));
    fs::write(format!("{file}.part"), "mine").unwrap();
    limen(&["dump", &url, &file]).ok();
    assert_eq!(fs::read_to_string(format!("{file}.part")).unwrap(), "mine");
    fs::remove_file(&file).unwrap();
    // The signal arrives at different moments; in each case, the dump is complete or nothing is left.
    for wait_ms in [5, 20, 60] {
        let mut child = Command::new(LIMEN);
        child.args(["dump", &url, &file]).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        thread::sleep(Duration::from_millis(wait_ms));
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        let said: Said = child.wait_with_output().unwrap().into();
        let left = fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        let parts = left.filter(|name| name.to_string_lossy().ends_with(".part")).count();
        assert_eq!(parts, 1, "{said:?}");
        assert!(said.code == Some(0) || !place.path("a.dump").exists(), "{said:?}");
        assert!(said.code != Some(1) || said.err.contains("interrupted: no dump was written"), "{said:?}");
        let _ = fs::remove_file(&file);
    }
}

#[test]
fn status_says_that_the_object_store_is_gone() {
    let place = Place::formatted();
    assert_eq!(place.status()["store_error"], Value::Null);
    fs::rename(place.path("vol.data"), place.path("away")).unwrap();
    let text = limen(&["status", &place.url()]).ok();
    assert!(text.lines().any(|line| line.starts_with("warning") && line.contains("vol.data")), "{text}");
    assert!(place.status()["store_error"].as_str().unwrap().contains("vol.data"));
}

#[test]
fn a_store_is_not_taken_from_a_live_mount_of_another_database() {
    let place = Place::formatted();
    limen(&["backup", "create", &place.url()]).ok();
    place.mount(&[]).ok();
    let (other, bucket) = (format!("sqlite://{}", place.text("other.db")), place.text("vol.data"));
    let restore = ["backup", "restore", &other, "--bucket", &bucket];
    let said = limen(&[&restore[..], &["--yes"]].concat());
    said.failed(1, &["is mounted at", &place.mnt(), &place.url(), "limen umount"]);
    assert!(!place.path("other.db").exists(), "nothing is loaded before the check");
    let said = limen(&[&restore[..], &["--no-adopt"]].concat()).ok();
    assert!(said.contains("cannot be mounted, because its objects belong to another database"), "{said}");
    limen(&["config", "--adopt-store", &other]).failed(1, &["is mounted at", "--force"]);
    limen(&["config", "--adopt-store", "--force", &other]).ok();
    let said = limen(&[&restore[..], &["--no-adopt"]].concat()).ok();
    assert!(said.contains("Its objects belong to this database"), "{said}");
    place.umount(&["--force"]);
}

/// A server that answers each request with this status and error code of S3, until the test ends.
fn s3_server(status: &'static str, code: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 16384]);
            let body = format!("<Error><Code>{code}</Code><Message>Words of the server.</Message></Error>");
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    format!("http://{address}/bkt/home")
}

#[test]
fn errors_of_s3_are_in_plain_words() {
    let place = Place::new();
    for (status, code, part) in [
        ("404 Not Found", "NoSuchBucket", "the bucket does not exist"),
        ("403 Forbidden", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        ("400 Bad Request", "OddCode", "the server answered OddCode: Words of the server."),
    ] {
        let bucket = s3_server(status, code);
        let url = place.url();
        let mut format = command(&["format", &url, "vol", "--storage", "s3", "--bucket", &bucket]);
        format.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
        let said: Said = format.output().unwrap().into();
        said.failed(1, &[part, &bucket]);
        assert!(!said.err.contains("context") && !said.err.contains("persistent"), "{said:?}");
    }
}

#[test]
fn a_redis_server_with_a_password_asks_for_it() {
    let place = Place::new();
    if Command::new("redis-server").arg("--version").output().is_err() {
        skip::missing("redis-server");
        return;
    }
    let socket = place.text("redis.sock");
    let mut server = Command::new("redis-server")
        .args(["--port", "0", "--unixsocket", &socket, "--requirepass", "geheim", "--save", ""])
        .args(["--dir", &place.text("")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !place.path("redis.sock").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let url = format!("redis+unix://{socket}");
    let without = limen(&["status", &url]);
    let file = place.text("password");
    fs::write(&file, "falsch\n").unwrap();
    let wrong = limen(&["status", &format!("{url}?password_file={file}")]);
    server.kill().unwrap();
    server.wait().unwrap();
    without.failed(1, &["the server needs a password", "?password_file=FILE", "LIMEN_META_PASSWORD"]);
    wrong.failed(1, &["rejected the user name or password", "check the user and the password"]);
}

#[test]
fn a_password_in_a_url_is_not_in_the_command_line() {
    let place = Place::new();
    // A server that accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("redis://:ge%40heim@{address}/3");
    let mut child = command(&["mount", &url, &place.mnt()]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _connected = listener.accept().unwrap();
    let line = fs::read_to_string(format!("/proc/{}/cmdline", child.id())).unwrap();
    let name = fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, format!("{LIMEN}\0mount\0redis://{address}/3\0{}\0", place.mnt()));
    assert_eq!(name, "limen\n");
}

#[test]
fn status_says_that_the_object_store_does_not_answer() {
    let place = Place::formatted();
    // A server that accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let bucket = format!("http://{}/bucket", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut open = Vec::new();
        listener.incoming().for_each(|connection| open.push(connection));
    });
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    let effects = [("storage", "s3"), ("bucket", &bucket)]
        .map(|(name, value)| Effect::PutSetting { name, value: value.to_owned() });
    engine.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects: effects.into() }]).unwrap();
    drop(engine);
    let status = |more: &[&str]| {
        let mut command = command(&[&["status", &place.url()], more].concat());
        command.envs([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "c")]);
        let began = Instant::now();
        let said = Said::from(command.output().unwrap());
        // The store's own timeouts are longer.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        said
    };
    let error = "the object store of volume 'vol' does not answer within 5 s";
    let text = status(&[]).ok();
    assert!(text.contains(error) && text.contains("session"), "{text}");
    let value = json(status(&["--json"]));
    assert!(value["store_error"].as_str().unwrap().contains(error), "{value}");
}

#[test]
fn files_with_secrets_that_everyone_can_read_are_named() {
    let place = Place::new();
    let key = place.text("key");
    fs::write(&key, "00".repeat(32)).unwrap();
    for (mode, warned) in [(0o644, true), (0o640, false), (0o600, false)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let url = format!("sqlite://{}", place.text(&format!("v{mode}.db")));
        let said = limen(&["format", &url, "vol", "--encrypt", "aes-256-gcm", "--key-file", &key]);
        assert_eq!(said.err.contains("every user of this machine can read the key"), warned, "{said:?}");
        assert_eq!(said.code, Some(0));
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o604)).unwrap();
    let said = limen(&["status", &format!("redis://127.0.0.1:1/0?password_file={key}")]);
    said.failed(
        1,
        &["every user of this machine can read the file with the password", &key, "Connection refused"],
    );
}

#[test]
fn a_volume_in_a_directory_has_the_room_of_its_disk() {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    let disk = place.text("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |args: &[&str]| Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    assert!(mount(&["mount", "-t", "tmpfs", "-o", "size=64m", "none", &disk]));
    place.format(&["--bucket", &format!("{disk}/data")]).ok();
    place.mount(&[]).ok();
    let room = |path: &str| {
        let stat = rustix::fs::statvfs(path).unwrap();
        (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)
    };
    fs::write(place.path("mnt/f"), vec![7; 8 << 20]).unwrap();
    std::fs::File::open(place.path("mnt/f")).unwrap().sync_all().unwrap();
    let (free, all) = room(&place.mnt());
    let (on_disk, _) = room(&disk);
    place.umount(&[]).ok();
    assert!(mount(&["umount", &disk]));
    assert_eq!((free, all), (on_disk, on_disk + (8 << 20)));
    assert!(free <= 56 << 20, "{free}");
}

#[test]
fn an_audit_explains_its_letters_and_sums_up_system_accounts() {
    let place = Place::formatted();
    let root = format!("{}:/", place.url());
    let list = limen(&["access", "audit", &place.url(), "--user", "0", "--list"]).ok();
    assert!(list.contains("r read, w write, x execute or search"), "{list}");
    let who = limen(&["access", "audit", "--who", &root]).ok();
    let listed: Vec<&str> = who.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(listed.contains(&"root") && listed.contains(&"everyone"), "{who}");
    assert!(
        !listed.contains(&"daemon") && who.contains("system accounts have the access of everyone"),
        "{who}"
    );
    let csv = limen(&["access", "audit", "--who", &root, "--csv"]).ok();
    assert!(csv.starts_with("user,reached,rights,reached_after,rights_after,by,by_after\n"), "{csv}");
    assert!(csv.contains("\n\"daemon\",1,r-x,1,r-x,\""), "{csv}");
}
