//! The log of a mount: its file, when it is opened again, and what it says about a database that is down.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Server, limen, until_unused};

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < until, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_renamed_log_is_opened_again_at_sighup() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    place.mount(&[]).ok();
    let pid = place.server().to_string();
    fs::rename(place.path("log"), place.path("log.1")).unwrap();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    wait_for("a new log", || place.path("log").exists());
    place.umount(&[]).ok();
    assert!(place.log().contains("the session has ended"), "{}", place.log());
    assert!(fs::read_to_string(place.path("log.1")).unwrap().contains("mounted and serving"));
}

#[test]
fn two_volumes_of_one_name_have_a_log_each() {
    if !skip::is_root() {
        return;
    }
    let (one, two) = (Place::new(), Place::new());
    let name = format!("logs-{}", std::process::id());
    let logs: Vec<String> = [&one, &two]
        .into_iter()
        .map(|place| {
            limen(&["format", &place.url(), &name]).ok();
            let said = limen(&["mount", "-d", &place.url(), &place.mnt()]).ok();
            said.trim_end().trim_end_matches('.').rsplit_once(' ').unwrap().1.to_owned()
        })
        .collect();
    for place in [&one, &two] {
        until_unused(|| limen(&["umount", &place.mnt()])).ok();
    }
    let texts: Vec<String> = logs.iter().map(|log| fs::read_to_string(log).unwrap()).collect();
    logs.iter().for_each(|log| fs::remove_file(log).unwrap());
    assert_eq!(logs, [format!("/var/log/limen-{name}.log"), format!("/var/log/limen-{name}.2.log")]);
    for (text, place) in texts.iter().zip([&one, &two]) {
        assert_eq!(text.matches("mounted and serving").count(), 1, "{text}");
        assert!(text.contains(&place.mnt()), "{text}");
    }
}

fn redis(place: &Place) -> Server {
    let socket = place.text("redis.sock");
    let server = Command::new("redis-server")
        .args(["--port", "0", "--unixsocket", &socket, "--save", "", "--appendonly", "yes"])
        .args(["--dir", &place.text("")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let server = Server(server);
    let answers = || {
        let ping = Command::new("redis-cli").args(["-s", &socket, "ping"]).output();
        ping.is_ok_and(|said| said.stdout.starts_with(b"PONG"))
    };
    wait_for("Redis", answers);
    server
}

#[test]
fn a_database_that_is_down_is_logged_when_it_begins_and_when_it_ends() {
    if !skip::is_root() {
        return;
    }
    if Command::new("redis-server").arg("--version").output().is_err() {
        return skip::missing("redis-server");
    }
    let place = Place::new();
    let url = format!("redis+unix://{}", place.text("redis.sock"));
    let server = redis(&place);
    limen(&["format", &url, "vol", "--bucket", &place.text("data")]).ok();
    place.mount_url(&url, &["-o", "transport=dev"]).ok();
    let streams = || place.log().matches("receiving other clients' changes").count();
    wait_for("the stream", || streams() == 1);
    drop(server);
    wait_for("the failure", || place.log().contains("cannot open the stream"));
    // The stream is tried twice a second.
    thread::sleep(Duration::from_secs(4));
    let server = redis(&place);
    wait_for("the stream again", || streams() == 2);
    place.umount(&[]).ok();
    drop(server);
    let log = place.log();
    for line in ["cannot open the stream of other clients' changes; retrying", "cannot renew the session"] {
        assert!(log.matches(line).count() <= 1, "{log}");
    }
    assert!(Path::new(&place.mnt()).exists());
}
