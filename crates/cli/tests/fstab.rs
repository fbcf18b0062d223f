//! mount(8), umount(8) and fstab(5): what they need from limen, as an administrator uses them.
//!
//! mount(8) finds the helper only in /sbin. Each test has a mount namespace in which /sbin is a directory of
//! its own, so that nothing changes on the machine.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMEN, Place, Said, Server, limen, until_unused};

/// A mount namespace with a volume's place. Dropping it unmounts what is left there.
struct Machine {
    place: Place,
    keeper: Child,
}

impl Machine {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.path("sbin")).unwrap();
        for helper in ["mount.limen", "umount.fuse.limen"] {
            symlink(LIMEN, place.path("sbin").join(helper)).unwrap();
        }
        let script =
            format!("mount --bind {} \"$(readlink -f /sbin)\" && echo ready && exec cat", place.text("sbin"));
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Machine { place, keeper }
    }

    fn formatted() -> Self {
        let machine = Machine::new();
        machine.place.format(&[]).ok();
        machine
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.keeper.id().to_string(), "--"]).args(args);
        command.stdin(Stdio::null()).env_remove("LIMEN_LOG").env("LC_ALL", "C");
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }

    /// The lines of mountinfo for the volumes that are mounted below this place.
    fn mounts(&self) -> Vec<String> {
        let all = self.run(&["cat", "/proc/self/mountinfo"]).ok();
        let top = self.place.text("");
        let ours = all.lines().filter(|line| line.contains(" - fuse.limen ") && line.contains(&top));
        ours.map(str::to_owned).collect()
    }

    fn umount(&self, mountpoint: &str) {
        until_unused(|| {
            let mut said = self.run(&["umount", mountpoint]);
            said.err = said.err.replace("busy", "in use");
            said
        })
        .ok();
        let until = Instant::now() + Duration::from_secs(30);
        while self.place.status()["sessions"] != serde_json::json!([]) {
            assert!(Instant::now() < until, "the session does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for line in self.mounts() {
            let mountpoint = line.split(' ').nth(4).unwrap().replace("\\040", " ");
            self.run(&[LIMEN, "umount", "--force", &mountpoint]);
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[test]
fn mount_by_type_and_umount_work_as_for_any_file_system() {
    if !skip::is_root() {
        return;
    }
    let machine = Machine::formatted();
    let (url, mnt, log) = (machine.place.url(), machine.place.mnt(), machine.place.text("log"));
    let options = format!(
        "_netdev,user,nofail,x-systemd.automount,comment=a,noexec,transport=dev,metrics=off,log={log}"
    );
    let said = machine.run(&["mount", "-t", "limen", &url, &mnt, "-o", &options]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(0), "", ""));
    let mounts = machine.mounts();
    assert!(mounts.len() == 1 && mounts[0].contains("noexec"), "{mounts:?}");
    machine.run(&["sh", "-c", &format!("echo hello >{mnt}/f")]).ok();
    machine.umount(&mnt);
    assert_eq!(machine.mounts(), [""; 0]);
    let said = machine.run(&["mount", "-v", "-t", "limen", &url, &mnt, "-o", &format!("ro,log={log}")]).ok();
    assert!(said.contains("Volume 'vol' is mounted at"), "{said}");
    assert_eq!(machine.run(&["cat", &format!("{mnt}/f")]).ok(), "hello\n");
    machine.umount(&mnt);
    assert!(machine.place.log().contains("the session has ended"));
}

/// systemd calls `umount -c`.
#[test]
fn umount_as_systemd_calls_it_waits_until_all_data_is_stored() {
    if !skip::is_root() {
        return;
    }
    let machine = Machine::formatted();
    let (url, mnt, log) = (machine.place.url(), machine.place.mnt(), machine.place.text("log"));
    for (round, args) in [&["-c", &mnt][..], &["-c", "-v", &mnt], &["-l", "-f", &mnt]].iter().enumerate() {
        machine.run(&["mount", "-t", "limen", &url, &mnt, "-o", &format!("log={log}")]).ok();
        machine.run(&["sh", "-c", &format!("head -c 9000000 /dev/zero >{mnt}/f{round}")]).ok();
        until_unused(|| {
            let mut said = machine.run(&[&["umount"], *args].concat());
            said.err = said.err.replace("busy", "in use");
            said
        })
        .ok();
        assert_eq!(machine.mounts(), [""; 0]);
        assert_eq!(machine.place.status()["sessions"], serde_json::json!([]), "{args:?} has not waited");
    }
    limen(&["fsck", "--data", &url]).ok();
    machine.run(&["mount", "-t", "limen", &url, &mnt, "-o", &format!("log={log}")]).ok();
    let mut user = machine.command(&["sh", "-c", &format!("exec 3<{mnt}/f0; echo ready; exec cat")]);
    let mut user = user.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(user.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    machine.run(&["umount", "-c", &mnt]).failed(32, &["the mount is in use", "cat"]);
    assert_eq!(machine.mounts().len(), 1);
    drop(user.stdin.take());
    user.wait().unwrap();
    machine.umount(&mnt);
}

#[test]
fn a_line_of_fstab_mounts_once_however_often_it_is_called() {
    if !skip::is_root() {
        return;
    }
    let machine = Machine::formatted();
    let place = &machine.place;
    let mnt = place.text("a b");
    fs::create_dir(&mnt).unwrap();
    fs::rename(place.path("vol.db"), place.path("v l.db")).unwrap();
    let (fstab, log) = (place.text("fstab"), place.text("log"));
    let encoded = |text: &str| text.replace(' ', "\\040");
    let url = format!("sqlite://{}", place.text("v l.db"));
    fs::write(
        &fstab,
        format!("# comment\n{} {} limen nofail,_netdev,log={log} 0 0\n", encoded(&url), encoded(&mnt)),
    )
    .unwrap();
    machine.run(&["mount", "-T", &fstab, &mnt]).ok();
    assert_eq!(machine.mounts().len(), 1);
    // mount(8) cannot know that the volume is mounted: mountinfo names the volume, not its URL.
    for _ in 0..2 {
        machine.run(&["mount", "-T", &fstab, "-a"]).ok();
        assert_eq!(machine.mounts().len(), 1);
    }
    until_unused(|| machine.run(&[LIMEN, "umount", &mnt])).ok();
    assert_eq!(limen(&["status", "--json", &url]).code, Some(0));
    machine.run(&["mount", "-T", &fstab, "-a"]).ok();
    assert_eq!(machine.mounts().len(), 1);
}

#[test]
fn exit_codes_and_messages_are_those_of_mount() {
    if !skip::is_root() {
        return;
    }
    let machine = Machine::formatted();
    let (url, mnt) = (machine.place.url(), machine.place.mnt());
    let mount = |url: &str, options: &str| machine.run(&["mount", "-t", "limen", url, &mnt, "-o", options]);
    mount(&url, "nofail,frob=1").failed(1, &["unknown mount option", "frob=1"]);
    mount(&url, "cache=big").failed(1, &["-o cache=big"]);
    mount("oracle://h", "rw").failed(1, &["oracle"]);
    mount(&format!("sqlite://{}", machine.place.text("none.db")), "rw")
        .failed(32, &["there is no volume here yet"]);
    fs::write(machine.place.path("mnt/f"), "").unwrap();
    mount(&url, "rw").failed(32, &["is not empty"]);
    fs::remove_file(machine.place.path("mnt/f")).unwrap();
    // With -f, nothing is mounted. With -s, unknown options are ignored.
    machine.run(&["mount", "-f", "-t", "limen", &url, &mnt]).ok();
    assert_eq!(machine.mounts(), [""; 0]);
    let log = format!("frob=1,log={}", machine.place.text("log"));
    let said = machine.run(&["mount", "-s", "-t", "limen", &url, &mnt, "-o", &log]);
    said.failed(0, &["'frob=1' is unknown and ignored"]);
    assert_eq!(machine.mounts().len(), 1);
    machine.umount(&mnt);
}

#[test]
fn an_interrupted_mount_ends_with_the_code_for_that() {
    if !skip::is_root() {
        return;
    }
    // A server that accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let machine = Machine::new();
    let mut command = Command::new(machine.place.path("sbin/mount.limen"));
    let child =
        command.args([&url, &machine.place.mnt(), "-o", "rw"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(listener.accept().map(|(stream, _)| std::mem::forget(stream)));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    Said::from(child.wait_with_output().unwrap()).failed(8, &["interrupted"]);
}

#[test]
fn no_password_is_needed_in_fstab() {
    if !skip::is_root() {
        return;
    }
    if Command::new("redis-server").arg("--version").output().is_err() {
        return skip::missing("redis-server");
    }
    let machine = Machine::new();
    let place = &machine.place;
    let (socket, secret) = (place.text("redis.sock"), place.text("secret"));
    let server = Command::new("redis-server")
        .args(["--port", "0", "--unixsocket", &socket, "--save", "", "--appendonly", "yes"])
        .args(["--requirepass", "pass-7319", "--dir", &place.text("")])
        .stdout(Stdio::null())
        .spawn();
    let _server = Server(server.unwrap());
    fs::write(&secret, "pass-7319\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let url = format!("redis+unix://{socket}?password_file={secret}");
    let until = Instant::now() + Duration::from_secs(30);
    while limen(&["format", &url, "vol", "--bucket", &place.text("data")]).code != Some(0) {
        assert!(Instant::now() < until, "no volume on Redis");
        thread::sleep(Duration::from_millis(50));
    }
    let (fstab, log, mnt) = (place.text("fstab"), place.text("log"), place.mnt());
    let update = |url: &str| {
        machine.run(&[LIMEN, "mount", "--update-fstab", "--fstab", &fstab, "--log", &log, url, &mnt])
    };
    update(&format!("redis+unix://:pass-7319@{socket}"))
        .failed(2, &["not written to fstab", "password_file"]);
    assert!(!place.path("fstab").exists());
    update(&url).ok();
    let line = fs::read_to_string(&fstab).unwrap();
    assert_eq!(line, format!("{url} {mnt} limen log={log},_netdev 0 0\n"));
    until_unused(|| machine.run(&[LIMEN, "umount", &mnt])).ok();
    machine.run(&["mount", "-T", &fstab, &mnt]).ok();
    assert_eq!(machine.mounts().len(), 1);
    until_unused(|| machine.run(&[LIMEN, "umount", &mnt])).ok();
}

#[test]
fn update_fstab_writes_one_line_and_creates_the_link() {
    if !skip::is_root() {
        return;
    }
    let machine = Machine::formatted();
    let place = &machine.place;
    let (url, mnt, fstab, log) = (place.url(), place.mnt(), place.text("fstab"), place.text("log"));
    let others = "UUID=1 / ext4 defaults 0 1\n# end";
    fs::write(&fstab, others).unwrap();
    fs::set_permissions(&fstab, fs::Permissions::from_mode(0o640)).unwrap();
    for helper in ["mount.limen", "umount.fuse.limen"] {
        fs::remove_file(place.path("sbin").join(helper)).unwrap();
    }
    let update = |more: &[&str], url: &str| {
        let first = [LIMEN, "mount", "--update-fstab", "--fstab", &fstab, "--log", &log];
        machine.run(&[&first[..], more, &[url, &mnt]].concat())
    };
    // The line of a volume that cannot be mounted is not written.
    update(&[], &format!("sqlite://{}", place.text("none.db"))).failed(1, &["there is no volume here yet"]);
    assert_eq!(fs::read_to_string(&fstab).unwrap(), others);
    let said = update(&["-o", "nofail"], &url).ok();
    let line = format!("{url} {mnt} limen nofail,log={log} 0 0");
    assert!(said.contains(&format!("\n{line}\n")) && said.contains("Created /sbin/mount.limen"), "{said}");
    assert!(said.contains("Created /sbin/umount.fuse.limen"), "{said}");
    let text = fs::read_to_string(&fstab).unwrap();
    assert_eq!(text, format!("{others}\n{line}\n"));
    assert_eq!(fs::metadata(&fstab).unwrap().permissions().mode() & 0o777, 0o640);
    // Run the command again while the volume is mounted.
    let again = update(&["-o", "nofail"], &url);
    again.failed(0, &["already mounted"]);
    assert!(again.out.contains("has this line already") && !again.out.contains("Created"), "{again:?}");
    assert_eq!(fs::read_to_string(&fstab).unwrap(), text);
    machine.umount(&mnt);
    machine.run(&["mount", "-T", &fstab, &mnt]).ok();
    machine.umount(&mnt);
    // The file names another file system for this mount point.
    fs::write(&fstab, format!("tmpfs {mnt} tmpfs defaults 0 0\n")).unwrap();
    update(&[], &url).failed(1, &["another file system", "tmpfs", &fstab]);
    assert_eq!(machine.mounts(), [""; 0]);
}
