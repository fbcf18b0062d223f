//! The command line, and commands that need no mount.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;

use ::command::process::Process;
use ::command::registry::Entry;
use common::{LIMEN, Place, Said, limen};
use engine_sqlite::{Options, SqliteEngine};
use meta::{Effect, Engine, Record, RecordKey, Txn, Volume};
use types::{Ino, OpId};

#[test]
fn wrong_url_error_shows_the_correct_form() {
    for command in ["format", "status", "destroy", "mount"] {
        for url in ["oracle://h/1", "/tmp/v.db", "sqlite://rel.db", "sqlite://", "nonsense"] {
            let more: &[&str] = match command {
                "format" => &["name"],
                "mount" => &["/mnt"],
                _ => &[],
            };
            let said = limen(&[&[command, url], more].concat());
            said.failed(2, &["limen: ", "write sqlite:///"]);
        }
    }
    let said = limen(&["status", "redis://user:geheim@host/1"]);
    assert!(!said.err.contains("geheim"), "{said:?}");
}

#[test]
fn missing_volume_is_named() {
    let place = Place::new();
    for args in [&["status"][..], &["destroy", "--yes"]] {
        limen(&[args, &[&place.url()]].concat()).failed(1, &["no volume here yet", "vol.db", "limen format"]);
    }
    place.mount(&[]).failed(1, &["no volume here yet", "vol.db"]);
    assert!(!place.path("vol.db").exists(), "reading does not create a database");
    assert!(!place.path("log").exists(), "a mount that fails early leaves no log");

    fs::write(place.path("vol.db"), "this is a letter, not a database\n".repeat(100)).unwrap();
    for said in [limen(&["status", &place.url()]), place.mount(&[]), place.format(&[])] {
        said.failed(1, &["not a limenfs database", "vol.db"]);
    }
    limen(&["status", "sqlite:///no/such/dir/v.db"]).failed(1, &["no volume here yet"]);
    limen(&["format", "sqlite:///proc/v.db", "v"]).failed(1, &["/proc/v"]);
}

#[test]
fn status_shows_the_settings_of_format() {
    let place = Place::new();
    place.format(&["--acl", "off", "--inline", "1K", "--capacity", "1.5G", "--inodes", "1000"]).ok();
    let status = place.status();
    let expect = [
        ("name", "vol".into()),
        ("engine", "sqlite".into()),
        ("format_version", 1.into()),
        ("url", place.url().into()),
        ("storage", "file".into()),
        ("bucket", place.text("vol.data").into()),
        ("acl", "off".into()),
        ("inline_bytes", 1024.into()),
        ("capacity_bytes", (3_u64 << 29).into()),
        ("max_inodes", 1000.into()),
        ("sessions", serde_json::json!([])),
        ("usage", serde_json::json!({ "inodes": 1, "bytes": 0 })),
    ];
    for (key, value) in expect {
        assert_eq!(status[key], value, "{key}");
    }
    assert_eq!(status["uuid"].as_str().unwrap().len(), 36);
    let text = limen(&["status", &place.url()]).ok();
    for part in ["vol", "of 1.5 GiB", "1 of 1000", "not mounted"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

#[test]
fn second_format_fails_and_changes_nothing() {
    let place = Place::formatted();
    let before = place.status();
    let said = limen(&["format", &place.url(), "other", "--bucket", &place.text("elsewhere")]);
    said.failed(1, &["volume here already", "'vol'", "limen destroy"]);
    assert_eq!(place.status(), before);
    assert!(!place.path("elsewhere").exists());
}

#[test]
fn bucket_that_is_not_empty_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("bucket")).unwrap();
    fs::write(place.path("bucket/letter"), "dear").unwrap();
    let bucket = place.text("bucket");
    place.format(&["--bucket", &bucket]).failed(1, &["not empty", "bucket/letter", "--bucket"]);
    assert!(!place.path("vol.db").exists());
    // An empty tmp directory, which an interrupted format leaves behind, is accepted.
    fs::remove_file(place.path("bucket/letter")).unwrap();
    fs::create_dir(place.path("bucket/tmp")).unwrap();
    place.format(&["--bucket", &bucket]).ok();
}

#[test]
fn format_on_an_unwritable_bucket_leaves_no_volume() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let bucket = place.text("file/below");
    place.format(&["--bucket", &bucket]).failed(1, &["file/below"]);
    assert!(!place.path("vol.db").exists());
}

#[test]
fn user_owns_the_root_directory_even_if_the_store_is_not_marked() {
    if !skip::is_root() {
        return;
    }
    const USER: u32 = 1000;
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    // The user can write blocks, but not the marker.
    for name in ["own", "bucket", "bucket/chunks", "bucket/tmp"] {
        fs::create_dir(place.path(name)).unwrap();
        chown(place.path(name), Some(if name == "bucket" { 0 } else { USER }), None).unwrap();
    }
    let url = format!("sqlite://{}", place.text("own/vol.db"));
    let user = ["--reuid", "1000", "--regid", "1000", "--clear-groups", LIMEN, "format"];
    let bucket = place.text("bucket");
    let output =
        Command::new("setpriv").args(user).args(["--bucket", &bucket, &url, "vol"]).output().unwrap();
    Said::from(output).failed(1, &["limen config --adopt-store"]);
    let engine = SqliteEngine::open(&place.path("own/vol.db"), &Options::default()).unwrap();
    let records = engine.read(&[RecordKey::Inode(Ino::ROOT)]).unwrap().records;
    let [Record::Inode(_, Some(root))] = &records[..] else { panic!("{records:?}") };
    assert_eq!((root.uid, root.gid), (USER, USER));
}

#[test]
fn arguments_are_checked() {
    let place = Place::new();
    let url = place.url();
    let wrong: [(&[&str], &str); 8] = [
        (&["format", &url, "Big Name"], "a-z"),
        (&["format", &url, "vol", "--capacity", "lots"], "10G"),
        (&["format", &url, "vol", "--inline", "1M"], "64K"),
        (&["format", &url, "vol", "--acl", "nt"], "posix"),
        (&["format", &url, "vol", "--storage", "memory", "--bucket", "/x"], "--storage memory"),
        (&["format", &url, "vol", "--storage", "s3"], "needs a bucket"),
        (&["mount", "-o", "rx", &url, "/mnt"], "known options are ro"),
        (&["frobnicate"], "unrecognized"),
    ];
    for (args, part) in wrong {
        limen(args).failed(2, &[part]);
    }
    limen(&["format", "mem://", "vol"]).failed(2, &["limen mount mem://"]);
    limen(&["status", "mem://"]).failed(1, &["within its mount"]);
    assert!(!place.path("vol.db").exists());
}

/// Removes the entry of a mount when it is dropped.
struct Registered<'a>(&'a Entry);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// A command that reads the database must see what a mount has answered and not committed yet.
#[test]
fn command_asks_the_mounts_of_its_url_to_commit() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let mut entry = Entry {
        device: u64::MAX - u64::from(std::process::id()),
        mountpoint: place.path("mnt"),
        url: place.url(),
        volume: "vol".into(),
        process: Process::this(),
        registered: 0,
        log: None,
        ids: String::new(),
        failure: None,
    };
    entry.register().unwrap();
    let _registered = Registered(&entry);
    let listener = UnixListener::bind(entry.socket().unwrap()).unwrap();
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut request = String::new();
            let _ = BufReader::new(&stream).read_line(&mut request);
            // Commands of other tests may ask for something else.
            if request == "commit\n" {
                let effects =
                    vec![Effect::PutSetting { name: Volume::SYNC_METADATA, value: "on".to_owned() }];
                engine.commit(&[Txn { op_id: OpId(7), guards: Vec::new(), effects }]).unwrap();
                let _ = (&stream).write_all(b"\n");
            }
        }
    });
    let shown: serde_json::Value =
        serde_json::from_str(&limen(&["config", "--json", &place.url()]).ok()).unwrap();
    assert_eq!(shown["sync_metadata"], true, "{shown}");
}

#[test]
fn newer_volume_is_refused_and_unchanged() {
    let place = Place::formatted();
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    let effects = vec![Effect::PutSetting { name: "format_version", value: "99".to_owned() }];
    engine.commit(&[Txn { op_id: OpId(7), guards: Vec::new(), effects }]).unwrap();
    drop(engine);
    let url = place.url();
    let all = [
        limen(&["status", &url]),
        limen(&["destroy", "--yes", &url]),
        place.mount(&[]),
        limen(&["mount", &url, &place.mnt()]),
        place.format(&[]),
    ];
    for said in all {
        said.failed(1, &["'vol'", "newer limen", "format 99", "vol.db"]);
    }
}

#[test]
fn destroy_requires_yes_and_removes_everything() {
    let place = Place::formatted();
    let url = place.url();
    limen(&["destroy", &url]).failed(2, &["'vol'", "--yes"]);
    place.status();
    limen(&["destroy", "--yes", &url]).ok();
    let left: Vec<_> =
        fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mnt"]);
    place.format(&[]).ok();
}

/// Runs a command line on a pseudoterminal (script(1)) and types a line.
fn on_a_terminal(line: &str, typed: &str) -> Said {
    let mut script = Command::new("script");
    script
        .args(["-qec", line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(format!("{typed}\n").as_bytes()).unwrap();
    let said = child.wait_with_output().unwrap().into();
    drop(keyboard);
    said
}

#[test]
fn destroy_on_a_terminal_asks_for_the_name() {
    let place = Place::formatted();
    let line = format!("{LIMEN} destroy {}", place.url());
    let said = on_a_terminal(&line, "bol");
    assert!(said.code == Some(1) && said.out.contains("nothing was removed"), "{said:?}");
    place.status();
    let said = on_a_terminal(&line, "vol");
    assert!(said.code == Some(0) && said.out.contains("Volume 'vol' and 0 objects are removed"), "{said:?}");
    assert!(!place.path("vol.db").exists());
}

#[test]
fn version_help_and_completions_are_printed() {
    assert!(limen(&["version"]).ok().starts_with("limen 0."));
    assert!(limen(&["--version"]).ok().starts_with("limen 0."));
    let version: serde_json::Value = serde_json::from_str(&limen(&["version", "--json"]).ok()).unwrap();
    assert_eq!(version["volume_format"], 1);
    for command in ["format", "mount", "umount", "status", "info", "destroy", "completions"] {
        assert!(limen(&[command, "--help"]).ok().contains("Example"), "{command}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(limen(&["completions", shell]).ok().contains("umount"), "{shell}");
    }
}

#[test]
fn manual_pages_are_written_for_every_user() {
    let place = Place::new();
    let dir = place.path("man/man1");
    limen(&["man", dir.to_str().unwrap()]).ok();
    for page in ["limen.1", "limen-mount.1", "limen-access-explain.1"] {
        let path = dir.join(page);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644, "{page}");
        assert!(fs::read_to_string(&path).unwrap().contains(".SH SYNOPSIS"), "{page}");
    }
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o755);
    limen(&["man", "/proc/nowhere"]).failed(1, &["cannot write the manual pages", "/proc/nowhere"]);
}

#[test]
fn foreign_paths_and_mount_points_are_named() {
    limen(&["info", "/proc"]).failed(1, &["not on a limenfs volume", "/proc"]);
    limen(&["info", "/no/such/file"]).failed(1, &["/no/such/file"]);
    for mode in [&[][..], &["-l"], &["-f"]] {
        limen(&[&["umount"], mode, &["/proc"]].concat()).failed(1, &["no limenfs volume", "/proc"]);
    }
    limen(&["umount", "/no/such/dir"]).failed(1, &["/no/such/dir"]);
}
