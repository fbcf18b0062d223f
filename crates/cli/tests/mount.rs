//! Mounting, unmounting, signals and crashes, as root. Each test has its own volume and mount point.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Place, command, limen};
use rustix::process::{Pid, Signal, kill_process};

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Whether the process is running. A zombie does not count as running.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Files of all kinds: inline, in one object, in several objects, and with a name that needs quoting.
fn write_tree(root: &str) {
    fs::create_dir(format!("{root}/dir")).unwrap();
    fs::write(format!("{root}/dir/small"), "small").unwrap();
    fs::write(format!("{root}/dir/medium"), vec![7; 100_000]).unwrap();
    fs::write(format!("{root}/large"), pattern(9 << 20)).unwrap();
    fs::write(format!("{root}/with space\n"), "x").unwrap();
    fs::set_permissions(format!("{root}/dir/small"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("dir/small", format!("{root}/link")).unwrap();
}

#[track_caller]
fn verify_tree(root: &str) {
    assert_eq!(fs::read(format!("{root}/link")).unwrap(), b"small");
    assert_eq!(fs::read(format!("{root}/dir/medium")).unwrap(), vec![7; 100_000]);
    assert!(fs::read(format!("{root}/large")).unwrap() == pattern(9 << 20));
    assert_eq!(fs::read(format!("{root}/with space\n")).unwrap(), b"x");
    assert_eq!(fs::metadata(format!("{root}/dir/small")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_dir(root).unwrap().count(), 4);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 + i % 251) as u8).collect()
}

#[test]
fn written_files_are_read_back_after_a_remount() {
    let place = Place::formatted();
    let said = place.mount(&[]).ok();
    assert!(said.contains("'vol' is mounted at") && said.contains(&place.text("log")), "{said}");
    assert!(place.is_mounted());
    write_tree(&place.mnt());
    verify_tree(&place.mnt());
    let status = place.status();
    assert_eq!(status["sessions"][0]["mountpoint"], place.mnt());
    assert_eq!(status["usage"]["inodes"], 7);
    let server = place.server();
    place.umount(&[]).ok();
    assert!(!is_running(server), "umount waits for the process");
    assert!(!place.is_mounted());
    assert_eq!(place.status()["sessions"], serde_json::json!([]));

    place.mount(&[]).ok();
    verify_tree(&place.mnt());
    place.umount(&[]).ok();
    assert!(place.log().contains("the session has ended"), "{}", place.log());
    let said = limen(&["destroy", "--yes", &place.url()]).ok();
    assert!(said.contains("4 objects"), "{said}");
}

#[test]
fn daemon_detaches_from_its_caller() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let server = place.server();
    assert_eq!(fs::read_link(format!("/proc/{server}/cwd")).unwrap().to_str(), Some("/"));
    let name = fs::read_to_string(format!("/proc/{server}/comm")).unwrap();
    assert_eq!(name, "limen\n");
    let fd = |n| fs::read_link(format!("/proc/{server}/fd/{n}")).unwrap().to_str().unwrap().to_owned();
    soon("standard output is closed", || fd(1) == "/dev/null");
    assert_eq!((fd(0), fd(2)), ("/dev/null".to_owned(), place.text("log")));
    let stat = fs::read_to_string(format!("/proc/{server}/stat")).unwrap();
    let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().to_owned();
    assert_eq!(session, server.to_string(), "the daemon is a session leader");
    kill(server, Signal::HUP);
    fs::write(format!("{}/a", place.mnt()), "still here").unwrap();
    assert_eq!(place.server(), server);
    for path in ["vol.db", "vol.data", "log"] {
        let mode = fs::metadata(place.path(path)).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{path} is accessible to other users: mode {mode:o}");
    }
}

#[test]
fn second_mount_names_the_first_one() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let server = place.server().to_string();
    let other = place.text("other");
    fs::create_dir(&other).unwrap();
    let parts = ["'vol'", &place.mnt(), &format!("process {server}"), "-o shared"];
    limen(&["mount", &place.url(), &other]).failed(1, &parts);
    limen(&["mount", "-d", "--log", &place.text("log2"), &place.url(), &other]).failed(1, &parts);
    limen(&["destroy", "--yes", &place.url()]).failed(1, &parts[1..3]);
    // Another volume cannot be mounted on the same mount point.
    limen(&["mount", "mem://", &place.mnt()]).failed(1, &["already mounted", &place.mnt()]);
    fs::write(format!("{}/a", place.mnt()), "unharmed").unwrap();
    place.umount(&[]).ok();
}

#[test]
fn invalid_mount_points_are_named() {
    let place = Place::formatted();
    let url = place.url();
    fs::write(place.path("file"), "").unwrap();
    fs::write(place.path("mnt/entry"), "").unwrap();
    limen(&["mount", &url, &place.text("none")]).failed(1, &["none", "does not exist"]);
    limen(&["mount", &url, &place.text("file")]).failed(1, &["file", "not a directory"]);
    limen(&["mount", &url, &place.mnt()]).failed(1, &["mnt", "not empty", "nonempty"]);
    place.mount(&[]).failed(1, &["mnt", "not empty"]);
    assert_eq!(place.status()["sessions"], serde_json::json!([]), "no session is left");
    place.mount(&["-o", "nonempty"]).ok();
    assert_eq!(fs::read_dir(place.mnt()).unwrap().count(), 0);
    place.umount(&[]).ok();
}

#[test]
fn mount_options_take_effect() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    fs::copy("/bin/true", format!("{}/true", place.mnt())).unwrap();
    place.umount(&[]).ok();
    place.mount(&["-o", "ro,noexec", "-o", "workers=2,cache=8M"]).ok();
    let error = fs::write(format!("{}/a", place.mnt()), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "EROFS");
    let program = format!("{}/true", place.mnt());
    let error = std::process::Command::new(program).status().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(13), "EACCES");
    place.umount(&[]).ok();
}

fn foreground(place: &Place) -> Child {
    let mut child = command(&["mount", &place.url(), &place.mnt()]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("mounted and serving")));
    // Drain the rest of the output, so that the process never blocks on a full pipe.
    std::thread::spawn(move || lines.count());
    child
}

#[test]
fn signals_unmount_and_lose_nothing() {
    let place = Place::formatted();
    for (round, signal) in [Signal::TERM, Signal::INT, Signal::HUP].into_iter().enumerate() {
        let mut child = foreground(&place);
        let path = format!("{}/{round}", place.mnt());
        fs::write(&path, pattern(5 << 20)).unwrap();
        kill(child.id(), signal);
        assert!(child.wait().unwrap().success(), "{signal:?}");
        assert!(!place.is_mounted());
        place.mount(&[]).ok();
        assert!(fs::read(&path).unwrap() == pattern(5 << 20), "{signal:?}");
        place.umount(&[]).ok();
    }
}

#[test]
fn signal_unmounts_a_mount_that_is_in_use() {
    let place = Place::formatted();
    let mut child = foreground(&place);
    let path = format!("{}/open", place.mnt());
    let mut file = File::create(&path).unwrap();
    file.write_all(&pattern(3 << 20)).unwrap();
    kill(child.id(), Signal::TERM);
    assert!(child.wait().unwrap().success());
    assert!(!place.is_mounted());
    assert!(file.write_all(b"more").is_err(), "a write after the unmount fails");
    drop(file);
    place.mount(&[]).ok();
    assert!(fs::read(&path).unwrap() == pattern(3 << 20));
    place.umount(&[]).ok();
}

#[test]
fn mount_in_use_is_unmounted_only_lazily_or_by_force() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let server = place.server();
    let path = format!("{}/open", place.mnt());
    let mut file = File::create(&path).unwrap();
    place.umount_once(&[]).failed(1, &["in use", &place.mnt(), "limen umount -l"]);
    assert!(place.is_mounted());
    place.umount(&["-l"]).ok();
    assert!(!place.is_mounted());
    file.write_all(b"written after the lazy umount").unwrap();
    assert!(is_running(server));
    drop(file);
    // The volume is unmounted already, so this `umount` only waits for the process.
    let _ = place.umount(&[]);
    soon("the process ends", || !is_running(server));
    place.mount(&[]).ok();
    assert_eq!(fs::read(&path).unwrap(), b"written after the lazy umount");

    let file = File::open(&path).unwrap();
    place.umount(&["--force"]).ok();
    assert!(!place.is_mounted());
    drop(file);
    assert_eq!(place.status()["sessions"], serde_json::json!([]));
}

#[test]
fn umount_reports_data_that_could_not_be_stored() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let mut file = File::create(format!("{}/lost", place.mnt())).unwrap();
    file.write_all(&pattern(1 << 20)).unwrap();
    fs::remove_dir_all(place.path("vol.data")).unwrap();
    fs::write(place.path("vol.data"), "not a directory any more").unwrap();
    // The file stays open, so its data is stored at the end of the session.
    place.umount(&["--force"]).failed(1, &["could be stored", &place.text("log")]);
    assert!(place.log().contains("ERROR"), "{}", place.log());
    drop(file);
}

#[test]
fn umount_8_stores_all_data() {
    let place = Place::formatted();
    for round in 0..3 {
        place.mount(&[]).ok();
        fs::write(format!("{}/{round}", place.mnt()), pattern(1 << 20)).unwrap();
        // A child that another test starts may still hold the file, until it calls exec.
        soon("umount(8) succeeds", || {
            std::process::Command::new("umount").arg(place.mnt()).status().unwrap().success()
        });
    }
    place.mount(&[]).ok();
    assert_eq!(fs::read_dir(place.mnt()).unwrap().count(), 3);
    place.umount(&[]).ok();
}

#[test]
fn mount_and_umount_clean_up_after_a_killed_server() {
    let place = Place::formatted();
    for cleaner in ["mount", "umount"] {
        // Mount without a journal, because the replay of a journal would remove the session.
        place.mount(&["-o", "sync_metadata"]).ok();
        let path = format!("{}/{cleaner}", place.mnt());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"kept").unwrap();
        file.sync_all().unwrap();
        kill(place.server(), Signal::KILL);
        soon("the mount is dead", || fs::metadata(place.mnt()).is_err());
        assert!(place.is_mounted());
        let alive = place.status()["sessions"][0]["alive"].as_bool();
        assert_eq!(alive, Some(false));
        if cleaner == "umount" {
            let said = place.umount(&[]).ok();
            assert!(said.contains("Cleaned up"), "{said}");
            assert!(!place.is_mounted());
        }
        let said = place.mount(&[]);
        assert_eq!(said.err.contains("cleaned up"), cleaner == "mount", "{said:?}");
        said.ok();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        place.umount(&[]).ok();
        assert!(!place.is_mounted());
    }
}

#[test]
fn info_shows_stored_attributes_and_objects() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    write_tree(&place.mnt());
    let dir = format!("{}/dir", place.mnt());
    let small = format!("{dir}/small");
    let large = format!("{}/large", place.mnt());
    let acl = std::process::Command::new("setfacl").args(["-m", "u:1234:rw", &small]).status();
    let infos: serde_json::Value =
        serde_json::from_str(&limen(&["info", "--json", &dir, &small, &large]).ok()).unwrap();
    assert_eq!(infos[0]["inode"], fs::metadata(&dir).unwrap().ino());
    assert_eq!((&infos[0]["type"], &infos[0]["parent"]), (&"directory".into(), &2.into()));
    assert_eq!((&infos[1]["parent"], &infos[1]["size"]), (&infos[0]["inode"], &5.into()));
    assert_eq!(infos[1]["chunks"][0]["slices"][0]["source"], "inline");
    if acl.is_ok_and(|status| status.success()) {
        let entries = infos[1]["access_acl"]["entries"].as_array().unwrap();
        assert!(entries.contains(&"user:1234:rw-".into()), "{}", infos[1]);
    }
    let slices = infos[2]["chunks"][0]["slices"].as_array().unwrap();
    let keys = slices.iter().flat_map(|slice| slice["objects"].as_array().cloned().unwrap_or_default());
    let keys: Vec<String> = keys.map(|key| key.as_str().unwrap().to_owned()).collect();
    assert!(keys.len() >= 3, "{keys:?}");
    for key in keys {
        assert!(place.path("vol.data").join(&key).exists(), "{key}");
    }
    let text = limen(&["info", &large]).ok();
    assert!(text.contains("chunks/0/0/"), "{text}");
    place.umount(&[]).ok();
    limen(&["info", &place.mnt()]).failed(1, &["not on a limenfs volume"]);
}

#[test]
fn volume_in_memory_is_created_by_its_mount() {
    let place = Place::new();
    for _ in 0..2 {
        let said = place.mount_url("mem://scratch", &[]);
        assert!(said.err.contains("new, empty volume in memory"), "{said:?}");
        said.ok();
        assert_eq!(fs::read_dir(place.mnt()).unwrap().count(), 0);
        write_tree(&place.mnt());
        verify_tree(&place.mnt());
        limen(&["info", &place.mnt()]).failed(1, &["in the memory of process"]);
        place.umount(&[]).ok();
    }
}

#[test]
fn server_that_dies_before_it_serves_is_reported() {
    let place = Place::formatted();
    let mut filter = command(&["mount", "-d", "--log", &place.text("log"), &place.url(), &place.mnt()]);
    let said: common::Said = filter.env("LIMEN_LOG", "=/=").output().unwrap().into();
    said.failed(2, &["LIMEN_LOG"]);
    limen(&["mount", "-d", "--log", "/proc/none/log", &place.url(), &place.mnt()])
        .failed(1, &["/proc/none/log", "--log"]);
    // The directory of the objects is replaced by a file.
    fs::remove_dir_all(place.path("vol.data")).unwrap();
    fs::write(place.path("vol.data"), "").unwrap();
    place.mount(&[]).failed(1, &["object store of volume 'vol'", "vol.data"]);
    assert!(!place.is_mounted());
}

#[test]
fn a_mount_tells_its_transport() {
    let place = Place::formatted();
    let note = "mount with -o transport=ring";
    let out = place.mount(&["-o", "transport=dev"]);
    assert!(!out.err.contains(note), "{out:?}");
    let status = place.status();
    assert_eq!(status["sessions"][0]["transport"], "dev", "{status}");
    assert!(limen(&["status", &place.url()]).ok().contains("requests over /dev/fuse"));
    let bench = ["bench", "--json", "--files", "4", "--rounds", "1", &place.mnt()];
    let bench: serde_json::Value = serde_json::from_str(&limen(&bench).ok()).unwrap();
    assert_eq!(bench["transport"], "dev");
    place.umount(&[]).ok();
    // Whether io_uring is used depends on the kernel, and only root is told how to allow it.
    let out = place.mount(&[]);
    let transport = place.status()["sessions"][0]["transport"].clone();
    assert!(transport == "ring" || transport == "dev", "{transport}");
    let parameter = "/sys/module/fuse/parameters/enable_uring";
    let is_off = fs::read_to_string(parameter).is_ok_and(|value| value.trim() == "N");
    let can_enable = is_off && rustix::process::geteuid().is_root();
    assert_eq!(out.err.contains(note), can_enable, "{out:?}");
    if can_enable {
        assert_eq!(transport, "dev");
    }
    if transport == "ring" {
        place.mount(&["--take-over"]).ok();
        fs::write(place.path("mnt/a"), "still served").unwrap();
        assert_eq!(place.status()["sessions"][0]["transport"], "ring");
    }
    place.umount(&[]).ok();
}

/// A caller stays on its CPU if the thread that answers it is in the class SCHED_IDLE.
#[test]
fn threads_of_the_ring_are_in_the_idle_class_while_they_are_busy() {
    const IDLE: &str = "5";
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    place.mount(&[]).ok();
    let is_alone = std::thread::available_parallelism().unwrap().get() == 1;
    if place.status()["sessions"][0]["transport"] != "ring" || is_alone {
        skip::unsupported_in_part("FUSE over io_uring, on two CPUs");
        return;
    }
    let ring_threads = || -> Vec<PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{}/task", place.server())).unwrap();
        let stats = tasks.map(|task| task.unwrap().path().join("stat"));
        stats
            .filter(|stat| fs::read_to_string(stat).is_ok_and(|stat| stat.contains("(limen-ring-")))
            .collect()
    };
    let is_idle = |threads: &[PathBuf]| {
        threads.iter().any(|stat| {
            let stat = fs::read_to_string(stat).unwrap();
            // The policy is field 41 of proc_pid_stat(5); the name is field 2.
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38) == Some(IDLE)
        })
    };
    // Another thread sends the requests, because they may have to wait for a thread of this class.
    let requests_while = |watch: &dyn Fn()| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // The kernel caches no extended attribute.
                    let _ = rustix::fs::getxattr(place.mnt(), "user.none", &mut [0; 8][..]);
                }
            });
            let _end = Deferred(|| is_over.store(true, Ordering::Relaxed));
            watch();
        });
    };
    let threads = ring_threads();
    requests_while(&|| {
        let deadline = Instant::now() + Duration::from_secs(60);
        // On a busy machine, no thread stays in the class for more than some milliseconds.
        while !is_idle(&threads) {
            assert!(Instant::now() < deadline, "no thread is in the class");
        }
    });
    soon("no thread is in the class", || !is_idle(&threads));

    place.umount(&[]).ok();
    place.mount(&["-o", "noidle_class"]).ok();
    let threads = ring_threads();
    requests_while(&|| (0..2_000).for_each(|_| assert!(!is_idle(&threads))));
}

/// Calls a function when it is dropped.
struct Deferred<F: Fn()>(F);

impl<F: Fn()> Drop for Deferred<F> {
    fn drop(&mut self) {
        self.0();
    }
}
