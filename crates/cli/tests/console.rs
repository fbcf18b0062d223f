//! `limen console`: the server, and that its pages say what the commands say.
//!
//! The tests without a browser need no mount: they make the files by operations on the volume's database.

mod browser;
mod common;
mod harness;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use acl::posix::PosixAcl;
use browser::Browser;
use client::Meta;
use common::{LIMEN, Place, json_lines, limen};
use engine_sqlite::{Options, SqliteEngine};
use harness::Mounted;
use ops::{AclType, Authority, Make, MakeKind, SetAcl};
use serde_json::Value;
use types::{Ino, Mode, Name};

const BY_KERNEL: Authority<'static> = Authority::Kernel { revisions: None };

/// A running console.
#[derive(Debug)]
struct Served {
    child: Child,
    /// `127.0.0.1:PORT`
    host: String,
    token: String,
}

/// An answer to a request.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Served {
    fn start(url: &str) -> Served {
        let mut command = common::command(&["console", url]);
        Served::run(&mut command)
    }

    fn run(command: &mut Command) -> Served {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (host, token) = line.trim().strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
        assert!(host.starts_with("127.0.0.1:") && token.len() == 32, "{line}");
        Served { child, host: host.to_owned(), token: token.to_owned() }
    }

    fn port(&self) -> &str {
        self.host.rsplit(':').next().unwrap()
    }

    fn cookie(&self) -> String {
        format!("limen-console-{}={}", self.port(), self.token)
    }

    /// Sends a request as it is.
    fn send(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        // The server may answer, and stop reading, before it has the whole request.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn ask(&self, target: &str, host: &str, cookie: &str) -> Answer {
        let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: a=b; {cookie}\r\n") };
        self.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{cookie}\r\n").as_bytes())
    }

    /// A page, requested with the cookie. Also checks its markup.
    #[track_caller]
    fn page(&self, target: &str) -> String {
        let answer = self.ask(target, &self.host, &self.cookie());
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        check_markup(&answer.body);
        answer.body
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Panics if the page has a script, an event handler or a style attribute, or loads anything.
#[track_caller]
fn check_markup(body: &str) {
    let mut rest = body;
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        let end = tag.find('>').unwrap_or_else(|| panic!("an open tag: {tag}"));
        let (tag, after) = (&tag[..end], &tag[end..]);
        let name: String = tag.chars().take_while(|c| !c.is_whitespace()).collect();
        const KNOWN: &str = "!doctype html head meta title link style body a header svg path span nav ul li main footer div h1 h2 h3 p \
            section dl dt dd table thead tbody tr th td bdi b i br code pre ol details summary form fieldset label input select option \
            button datalist rect polygon polyline small";
        let known = name.trim_start_matches('/');
        assert!(KNOWN.split_whitespace().any(|one| one == known), "unknown element <{tag}>");
        for bad in [" on", " style=", " src=", "javascript:"] {
            let outside: String = tag.split('"').step_by(2).collect();
            assert!(!outside.contains(bad), "{bad} in <{tag}>");
        }
        rest = match name.as_str() {
            "style" => &after[after.find("</style>").unwrap()..],
            _ => after,
        };
    }
}

/// The values of an attribute, without escapes.
fn attributes<'a>(body: &'a str, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let needle = format!(" {name}=\"");
    body.split(&needle[..])
        .skip(1)
        .map(|rest| unescape(rest.split('"').next().unwrap()))
        .collect::<Vec<_>>()
        .into_iter()
}

fn unescape(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'");
    text.replace("&amp;", "&")
}

/// The text of a part of a page: without tags.
fn text_of(part: &str) -> String {
    let mut text = String::new();
    for piece in part.split('<') {
        text.push_str(piece.split_once('>').map_or(piece, |(_, text)| text));
    }
    unescape(&text)
}

/// The part of a page between two texts.
#[track_caller]
fn between<'a>(body: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = body.split_once(from).unwrap_or_else(|| panic!("no {from} in {body}"));
    rest.split(to).next().unwrap()
}

/// The cells of the rows of a table.
fn rows(body: &str, table: &str) -> Vec<Vec<String>> {
    let Some((_, table)) = body.split_once(table) else { return Vec::new() };
    let Some((_, table)) = table.split_once("<tbody>") else { return Vec::new() };
    let table = table.split("</tbody>").next().unwrap();
    table
        .split("<tr")
        .skip(1)
        .map(|row| {
            row.split("<td").skip(1).map(|cell| text_of(&format!("<td{cell}")).trim().to_owned()).collect()
        })
        .collect()
}

fn encode(text: &[u8]) -> String {
    text.iter().map(|byte| format!("%{byte:02X}")).collect()
}

/// Makes files in a volume that is not mounted.
struct Maker {
    meta: Meta,
    next: u64,
}

impl Maker {
    fn new(place: &Place) -> Maker {
        let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
        Maker { meta: Meta::open(Arc::new(engine), 1000).unwrap(), next: 1000 }
    }

    fn make(&mut self, parent: Ino, name: &[u8], kind: MakeKind, mode: u32, (uid, gid): (u32, u32)) -> Ino {
        self.next += 1;
        let (ino, name) = (Ino(self.next), Name::new(name).unwrap());
        let make = Make { parent, name, ino, kind, mode: Mode::new(mode), umask: 0, uid, gid };
        self.meta.run(&make, &BY_KERNEL).unwrap();
        ino
    }

    fn dir(&mut self, parent: Ino, name: &str, mode: u32, owner: (u32, u32)) -> Ino {
        self.make(parent, name.as_bytes(), MakeKind::Directory, mode, owner)
    }

    fn file(&mut self, parent: Ino, name: &str, mode: u32, owner: (u32, u32)) -> Ino {
        self.make(parent, name.as_bytes(), MakeKind::Regular, mode, owner)
    }

    fn acl(&mut self, ino: Ino, text: &str) {
        let acl = Some(PosixAcl::from_text(text).unwrap());
        self.meta.run(&SetAcl { ino, which: AclType::Access, acl, kill_sgid: false }, &BY_KERNEL).unwrap();
    }
}

/// The callers in the tests, with their groups: root, and user IDs that do not exist on this machine.
const USERS: [(u32, &str); 4] = [(7001, "7001"), (7002, "7002,7050"), (7003, "7003,7060"), (0, "0")];

/// A small tree with many kinds of permissions.
fn fill(place: &Place) -> Vec<&'static str> {
    let mut maker = Maker::new(place);
    let (root, bob) = ((0, 0), (7001, 7050));
    let open = maker.dir(Ino::ROOT, "open", 0o755, root);
    maker.file(open, "everyone", 0o644, root);
    maker.file(open, "group", 0o640, bob);
    maker.file(open, "owner", 0o400, bob);
    maker.file(open, "tool", 0o755, root);
    let named = maker.file(open, "named", 0o640, bob);
    maker.acl(named, "u::rw-,u:7003:r--,g::rw-,g:7060:-w-,m::r--,o::---");
    let closed = maker.dir(Ino::ROOT, "closed", 0o700, bob);
    maker.file(closed, "in", 0o666, root);
    let group = maker.dir(Ino::ROOT, "group", 0o750, bob);
    maker.file(group, "in", 0o600, bob);
    let passage = maker.dir(Ino::ROOT, "passage", 0o711, root);
    maker.file(passage, "in", 0o644, root);
    let sticky = maker.dir(Ino::ROOT, "sticky", 0o1777, root);
    maker.file(sticky, "of-bob", 0o666, bob);
    maker.make(open, b"link", MakeKind::Symlink(Arc::from(&b"../closed/in"[..])), 0o777, root);
    vec![
        "/",
        "/open",
        "/open/everyone",
        "/open/group",
        "/open/owner",
        "/open/tool",
        "/open/named",
        "/closed",
        "/closed/in",
        "/group",
        "/group/in",
        "/passage",
        "/passage/in",
        "/sticky",
        "/sticky/of-bob",
        "/open/link",
        "/open/none",
        "/closed/none",
    ]
}

#[test]
fn only_a_browser_with_the_token_sees_pages() {
    let place = Place::formatted();
    let served = Served::start(&place.url());
    let host = served.host.clone();
    let status = |target: &str, host: &str, cookie: &str| served.ask(target, host, cookie).status;
    for target in ["/", "/access", "/style.css", "/none"] {
        let refused = served.ask(target, &host, "");
        assert_eq!(refused.status, 403, "{target}");
        assert!(!refused.body.contains(">vol<"), "the refusal names the volume: {}", refused.body);
    }
    let wrong = "0".repeat(32);
    assert_eq!(status(&format!("/?token={wrong}"), &host, ""), 403);
    assert_eq!(status("/?token=", &host, ""), 403);
    assert_eq!(status(&format!("/?token={}", &served.token[..31]), &host, ""), 403);
    assert_eq!(status("/", &host, &format!("limen-console-{}={wrong}", served.port())), 403);
    assert_eq!(status("/", &host, &format!("limen-console={}", served.token)), 403);

    let first = served.ask(&format!("/access?path=%2Fa&token={}", served.token), &host, "");
    assert_eq!(first.status, 303, "{first:?}");
    assert!(first.head.contains("\r\nLocation: /access?path=/a\r\n"), "{first:?}");
    let cookie = format!("\r\nSet-Cookie: {}; Path=/; HttpOnly; SameSite=Strict\r\n", served.cookie());
    assert!(first.head.contains(&cookie), "{first:?}");
    assert!(!first.body.contains(&served.token));

    let page = served.ask("/", &host, &served.cookie());
    assert_eq!(page.status, 200);
    assert!(!page.body.contains(&served.token) && !page.head.contains(&served.token));
    let policy = between(&page.head, "Content-Security-Policy: ", "\r\n");
    for part in ["default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    let nonce = between(policy, "style-src 'nonce-", "'");
    assert!(page.body.contains(&format!("<style nonce=\"{nonce}\">")));
    assert!(!served.ask("/", &host, &served.cookie()).head.contains(nonce), "the nonce is used again");
    for header in
        ["Cache-Control: no-store", "Referrer-Policy: no-referrer", "X-Content-Type-Options: nosniff"]
    {
        assert!(page.head.contains(header), "{}", page.head);
    }
    assert_eq!(status("/none", &host, &served.cookie()), 404);
}

#[test]
fn a_request_by_another_name_of_this_machine_is_rejected() {
    let place = Place::formatted();
    let served = Served::start(&place.url());
    let port = served.port().to_owned();
    let of = |host: &str| served.ask("/", host, &served.cookie()).status;
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:99", &format!("localhost:{port}")] {
        assert_eq!(of(host), 200, "{host}");
    }
    // The token does not help either, so that no cookie is set for another name.
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "127.0.0.1:x",
        "[::2]",
    ] {
        assert_eq!(of(host), 403, "{host}");
        assert_eq!(served.ask(&format!("/?token={}", served.token), host, "").status, 403, "{host}");
    }
    let cookie = served.cookie();
    assert_eq!(served.send(format!("GET / HTTP/1.1\r\nCookie: {cookie}\r\n\r\n").as_bytes()).status, 403);
    let twice =
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nCookie: {cookie}\r\n\r\n");
    assert_eq!(served.send(twice.as_bytes()).status, 403);
    let refused = limen(&["console", "--listen", "0.0.0.0:0", &place.url()]);
    refused.failed(2, &["loopback", "0.0.0.0:0", "ssh -L"]);
}

#[test]
fn a_hostile_client_gets_an_error_and_delays_nobody() {
    let place = Place::formatted();
    let served = Served::start(&place.url());
    let cookie = served.cookie();
    // These clients send a part of a request, and then nothing.
    let slow: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&served.host).unwrap();
            stream.write_all(b"GET /garb").unwrap();
            stream
        })
        .collect();
    // All are still open while the pages are answered: the server gives up on a client only after five
    // seconds.
    for page in ["/", "/sessions", "/quotas", "/garbage"] {
        served.page(page);
    }
    for mut stream in slow {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let long = format!("GET /?{} HTTP/1.1\r\n", "x".repeat(100_000));
    assert_eq!(served.send(long.as_bytes()).status, 431);
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"] {
        let request = format!("{method} / HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}\r\n\r\n", served.host);
        assert_eq!(served.send(request.as_bytes()).status, 405, "{method}");
    }
    for wrong in [
        "GET\r\n\r\n",
        "GET x HTTP/1.1\r\n\r\n",
        "GET / HTTP/2\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
    ] {
        assert_eq!(served.send(wrong.as_bytes()).status, 400, "{wrong}");
    }
    for target in ["/access?path=%zz", "/access?%ff=1", "/access?path=%"] {
        assert_eq!(served.ask(target, &served.host, &cookie).status, 400, "{target}");
    }
    for target in [
        "/access?path=/none",
        "/access?user=no-such-user&path=/",
        "/usage?path=/none",
        "/access?path=/&want=frob",
    ] {
        let answer = served.ask(target, &served.host, &cookie);
        assert_eq!(answer.status, 404, "{target}: {answer:?}");
        check_markup(&answer.body);
    }
    served.page("/");
}

#[test]
fn hostile_names_are_only_text() {
    let place = Place::formatted();
    let mut maker = Maker::new(&place);
    let names: [&[u8]; 9] = [
        b"<script>alert(1)<script>",
        b"\"><img src=x onerror=alert(1)>",
        b"a\"onmouseover=\"alert(1)",
        b"line\nbreak\x1b[31m",
        b"not utf-8 \xff\xfe",
        "right\u{202e}gpj.exe".as_bytes(),
        b"&lt;b&gt; %2F + # ? = & ;",
        b"it's `$(rm -rf)` \\",
        b"<!--<style>",
    ];
    for name in names {
        let dir = maker.make(Ino::ROOT, name, MakeKind::Directory, 0o755, (0, 0));
        maker.make(dir, name, MakeKind::Regular, 0o600, (7001, 7001));
    }
    drop(maker);
    let served = Served::start(&place.url());
    let who = "user=7002&groups=7002";
    for list in [format!("/access?{who}&path=/"), "/access?path=/".to_owned(), "/usage?path=/".to_owned()] {
        let body = served.page(&list);
        for name in names {
            // A link leads to each directory, and a link on that page leads to the file in it.
            let at = [b"/", name].concat();
            let links: BTreeSet<String> =
                attributes(&body, "href").filter(|link| path_in(link).as_deref() == Some(&at)).collect();
            assert!(!links.is_empty(), "{list}: no link to {:?}: {body}", String::from_utf8_lossy(name));
            for link in links {
                let below = served.page(&link);
                let at = [&at, &b"/"[..], name].concat();
                let link = attributes(&below, "href").find(|link| path_in(link).as_deref() == Some(&at));
                let link =
                    link.unwrap_or_else(|| panic!("{list}: no link to {:?}", String::from_utf8_lossy(&at)));
                let file = served.page(&link);
                assert_eq!(file.contains("id=\"verdict\""), link.contains("user="), "{link}");
            }
        }
        assert!(!text_of(&body).contains('\u{202e}') && !text_of(&body).contains('\u{1b}'));
    }
    // Text from the request is escaped in the page.
    let evil = encode(b"\"><script>alert(1)</script>");
    for target in [
        format!("/access?user={evil}&path={evil}"),
        format!("/access?user=0&path=/&groups={evil}"),
        format!("/access?user=0&path=/&want={evil}"),
        format!("/usage?path={evil}&by={evil}"),
        format!("/change?path=/&kind=setfacl&name={evil}&user={evil}"),
        format!("/change?path=/&kind={evil}&name=x"),
        format!("/change?path=/&kind=chmod&mode={evil}"),
        format!("/{evil}"),
    ] {
        let answer = served.ask(&target, &served.host, &served.cookie());
        check_markup(&answer.body);
        assert!(!answer.body.contains("<script"), "{target}");
    }
}

/// The bytes of the path in a link.
fn path_in(link: &str) -> Option<Vec<u8>> {
    let field = link.split(['?', '&']).find_map(|field| field.strip_prefix("path="))?;
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap());
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    Some(bytes)
}

#[test]
fn verdicts_are_those_of_access_explain() {
    let place = Place::formatted();
    let paths = fill(&place);
    let served = Served::start(&place.url());
    let (mut granted, mut denied, mut remedies) = (0, 0, 0);
    for path in &paths {
        for (user, groups) in USERS {
            for want in ["r", "w", "x", "rw", "create", "delete", "chmod", "chown", "touch"] {
                let target = format!("{}:{path}", place.url());
                let said = limen(&[
                    "access",
                    "explain",
                    &target,
                    "--user",
                    &user.to_string(),
                    "--groups",
                    groups,
                    "--want",
                    want,
                    "--json",
                ]);
                let link = format!(
                    "/access?user={user}&groups={}&want={want}&path={}",
                    encode(groups.as_bytes()),
                    encode(path.as_bytes())
                );
                let answer = served.ask(&link, &served.host, &served.cookie());
                if said.code == Some(2) {
                    assert_eq!(answer.status, 404, "{link}: {said:?}");
                    continue;
                }
                let explained: Value = serde_json::from_str(&said.out).unwrap();
                if answer.status == 404 {
                    // All checks grant the access, but the name does not exist.
                    assert_eq!(explained["errno"], "ENOENT", "{link}: {explained}");
                    continue;
                }
                assert_eq!(answer.status, 200, "{link}");
                let verdict = between(&answer.body, "id=\"verdict\"", "</section>");
                let is_granted = answer.body.contains("verdict good");
                assert_eq!(is_granted, said.code == Some(0), "{link}: {explained}");
                *if is_granted { &mut granted } else { &mut denied } += 1;
                let steps = between(verdict, "<ol class=\"path\"", "</ol>");
                let steps: Vec<&str> = steps.split("<li class=\"").skip(1).collect();
                let checks = explained["checks"].as_array().unwrap();
                assert!(steps.len() >= checks.len(), "{link}: {explained}");
                for (step, check) in steps.iter().zip(checks) {
                    let class = if check["granted"] == true { "yes" } else { "no" };
                    assert!(step.starts_with(class), "{link}: {step}: {check}");
                    let words = text_of(step);
                    assert!(words.contains(check["path"].as_str().unwrap()), "{words}: {check}");
                    assert!(words.ends_with(check["by"]["text"].as_str().unwrap()), "{words}: {check}");
                }
                assert!(steps[checks.len()..].iter().all(|step| step.starts_with("off")), "{link}");
                // The page shows the command whose answer was compared.
                let command = text_of(between(
                    verdict,
                    "<summary>The same answer in a terminal</summary><pre>",
                    "</pre>",
                ));
                let name = if user == 0 { "root".to_owned() } else { user.to_string() };
                assert_eq!(
                    command,
                    format!("limen access explain {target} --user {name} --want {want} --groups {groups}")
                );
                remedies += check_remedies(&place, path, (user, groups), want, verdict);
            }
        }
    }
    assert!(granted > 200 && denied > 200 && remedies > 50, "{granted} {denied} {remedies}");
}

/// If an explanation proposes exactly one change, checks by an audit that this change grants the access.
/// Returns the number of changes that were checked.
fn check_remedies(
    place: &Place,
    path: &str,
    (user, groups): (u32, &str),
    want: &str,
    verdict: &str,
) -> usize {
    if path == "/open/link" || !["r", "w", "x"].contains(&want) {
        return 0;
    }
    let Some((_, remedy)) = verdict.split_once("<div class=\"remedy\">") else { return 0 };
    let commands: Vec<String> =
        remedy.split("<pre>").skip(1).map(|rest| text_of(rest.split("</pre>").next().unwrap())).collect();
    let commands: Vec<&String> = commands.iter().filter(|command| !command.starts_with("limen")).collect();
    let [command] = &commands[..] else { return 0 };
    // `access audit --who` lists a user that is not in the user database only if the user owns a file or an
    // ACL names it. So this audits the access of the user.
    let said = limen(&[
        "access",
        "audit",
        &place.url(),
        "--user",
        &user.to_string(),
        "--groups",
        groups,
        "--list",
        "--json",
        "--what-if",
        command,
    ]);
    let lines = json_lines(&said.ok());
    let own = lines
        .iter()
        .find(|line| line["path"] == path)
        .unwrap_or_else(|| panic!("{command}: no change at {path}"));
    assert!(own["after"]["rights"].as_str().unwrap().contains(want), "{command}: {own}");
    1
}

#[test]
fn listings_and_holders_are_those_of_the_audit() {
    let place = Place::formatted();
    let paths = fill(&place);
    let served = Served::start(&place.url());
    for (user, groups) in USERS {
        let said = limen(&[
            "access",
            "audit",
            &place.url(),
            "--user",
            &user.to_string(),
            "--groups",
            groups,
            "--list",
            "--json",
        ]);
        let lines = json_lines(&said.ok());
        for dir in ["/", "/open", "/closed", "/group", "/passage", "/sticky"] {
            let link = format!("/access?user={user}&groups={}&path={dir}", encode(groups.as_bytes()));
            let body = served.page(&link);
            for row in rows(&body, "<table id=\"tree\">") {
                let name = row[0]
                    .trim_end_matches("out of reach")
                    .trim_end_matches("not listed")
                    .trim()
                    .trim_end_matches('/')
                    .to_owned();
                let path = format!("{}/{name}", dir.trim_end_matches('/'));
                let own = lines.iter().find(|line| line["path"] == *path);
                let rights = own.map_or("-----", |line| line["rights"].as_str().unwrap());
                assert_eq!(row[1].replace('–', "-"), &rights[..4], "{user} {path}: {row:?}");
                assert_eq!(own.is_none(), row[0].ends_with("out of reach"), "{user} {path}: {row:?}");
            }
        }
    }
    for path in paths.iter().filter(|path| !path.ends_with("none")) {
        let said = limen(&["access", "audit", "--json", "--who", &format!("{}:{path}", place.url())]);
        let who: Value = serde_json::from_str(&said.ok()).unwrap();
        let body = served.page(&format!("/access?path={path}"));
        let shown = rows(&body, "<table id=\"who\">");
        for row in &shown {
            let [name, rights, by] = &row[..] else { panic!("{row:?}") };
            let own = who["users"].as_array().unwrap().iter().find(|user| user["user"] == **name).unwrap();
            assert_eq!(
                (rights.replace('–', "-"), by.as_str()),
                (own["rights"].as_str().unwrap().to_owned(), own["by"].as_str().unwrap()),
                "{path}"
            );
        }
        let with_access =
            who["users"].as_array().unwrap().iter().filter(|user| user["rights"] != "---").count();
        let folded = body.split(" system accounts have").next().unwrap();
        let folded: usize =
            if folded.len() == body.len() { 0 } else { folded.rsplit('>').next().unwrap().parse().unwrap() };
        assert_eq!(shown.len() + folded, with_access, "{path}: {who}");
    }
}

#[test]
fn effects_of_a_change_are_those_of_the_audit() {
    let place = Place::formatted();
    fill(&place);
    let served = Served::start(&place.url());
    for (path, fields, command) in [
        ("/open/group", "kind=setfacl&class=u&name=7003&r=1", "setfacl -m u:7003:r-- /open/group"),
        ("/open/named", "kind=setfacl&class=g&name=7060&r=1&w=1", "setfacl -m g:7060:rw- /open/named"),
        ("/open/named", "kind=unset&class=u&name=7003", "setfacl -x u:7003 /open/named"),
        ("/closed", "kind=chmod&mode=755", "chmod 755 /closed"),
        ("/group", "kind=chmod&mode=777&recursive=1", "chmod -R 777 /group"),
        ("/open/owner", "kind=chown&class=u&name=7003", "chown 7003 /open/owner"),
        ("/open/everyone", "kind=chmod&mode=644", "chmod 644 /open/everyone"),
    ] {
        let body = served.page(&format!("/change?path={path}&user=7002&groups=7002%2C7050&{fields}"));
        assert_eq!(text_of(between(&body, "<pre>", "</pre>")), command);
        let target = format!("{}:{path}", place.url());
        let said = limen(&["access", "audit", "--json", "--who", &target, "--what-if", command]);
        let who: Value = serde_json::from_str(&said.ok()).unwrap();
        let users = who["users"].as_array().unwrap();
        let changed: BTreeSet<Vec<String>> = users
            .iter()
            .filter(|user| {
                (&user["reached"], &user["rights"], &user["by"])
                    != (&user["after"]["reached"], &user["after"]["rights"], &user["after"]["by"])
            })
            .map(|user| {
                let show = |of: &Value| {
                    if of["reached"] == true { of["rights"].as_str().unwrap() } else { "none" }.to_owned()
                };
                vec![
                    user["user"].as_str().unwrap().to_owned(),
                    show(user),
                    show(&user["after"]),
                    user["after"]["by"].as_str().unwrap().to_owned(),
                ]
            })
            .collect();
        let shown: BTreeSet<Vec<String>> =
            rows(&body, "id=\"effect\"").into_iter().filter(|_| !changed.is_empty()).collect();
        assert_eq!(shown, changed, "{command}");
        let others = match users.len() - changed.len() {
            1 => "1 other".to_owned(),
            others => format!("{others} others"),
        };
        assert!(body.contains(&format!("Nothing changes for {others}.")), "{command}");
        if !["/closed", "/group"].contains(&path) {
            continue;
        }
        let said = limen(&[
            "access",
            "audit",
            &target,
            "--user",
            "7002",
            "--groups",
            "7002,7050",
            "--json",
            "--what-if",
            command,
        ]);
        let audit: Value = serde_json::from_str(&said.ok()).unwrap();
        let open = text_of(between(&body, "<span class=\"opens\">", "</span>"));
        let close = text_of(between(&body, "<span class=\"closes\">", "</span>"));
        assert_eq!(
            (open, close),
            (format!("{} open", audit["gained"]), format!("{} close", audit["lost"])),
            "{command}"
        );
    }
    // Nothing was changed.
    let said = limen(&["ls", "-l", &format!("{}:/", place.url())]).ok();
    assert!(said.contains("drwx------"), "{said}");
}

#[test]
fn usage_quotas_and_garbage_are_those_of_the_commands() {
    let place = Place::formatted();
    limen(&[
        "mdtest",
        &place.url(),
        "/tree",
        "--depth",
        "2",
        "--dirs",
        "3",
        "--files",
        "5",
        "--write",
        "5000",
        "--keep",
    ])
    .ok();
    limen(&[
        "quota",
        "set",
        &format!("{}:/tree", place.url()),
        "--bytes",
        "1G",
        "--soft-bytes",
        "4K",
        "--inodes",
        "10",
    ])
    .code
    .unwrap();
    let served = Served::start(&place.url());
    let status = place.status();
    let overview = served.page("/");
    let inodes: u64 = status["usage"]["inodes"].as_u64().unwrap();
    assert!(text_of(&overview).contains(&format!("Files and directories{inodes}")), "{}", text_of(&overview));
    assert!(text_of(&overview).contains("the volume is not mounted"));

    for path in ["/", "/tree"] {
        let said = limen(&[
            "summary",
            "--json",
            "--depth",
            "1",
            "--entries",
            "0",
            &format!("{}:{path}", place.url()),
        ]);
        let summary: Value = serde_json::from_str(&said.ok()).unwrap();
        let body = served.page(&format!("/usage?path={path}"));
        let entries = summary["entries"].as_array().unwrap();
        let shown = rows(&body, "<table class=\"list\">");
        assert_eq!(shown.len(), entries.len(), "{body}");
        for entry in entries {
            let name = entry["path"].as_str().unwrap().rsplit('/').next().unwrap();
            let row = shown.iter().find(|row| row[0].trim_end_matches('/') == name).unwrap();
            assert_eq!(row[2].replace(',', ""), entry["inodes"].to_string(), "{row:?}");
        }
        assert!(!body.contains("at least"), "the walk was complete");
    }

    let listed = limen(&["quota", "list", &place.url()]).ok();
    let row = rows(&served.page("/quotas"), "<table>").remove(0);
    for cell in [row[0].trim_end_matches("full").trim_end_matches("above the soft limit, "), &row[1], &row[2]]
    {
        assert!(listed.contains(cell.trim()), "{cell}: {listed}");
    }
    assert!(overview.contains("/tree") && overview.contains("1 full"), "a full quota is on the first page");

    let said: Value = serde_json::from_str(&limen(&["gc", "--json", &place.url()]).ok()).unwrap();
    let garbage = text_of(&served.page("/garbage"));
    let slices = format!("Slices{}, ", said["garbage"]["slices"]);
    assert!(garbage.contains(&slices), "{garbage}: {said}");
    assert!(garbage.contains(&format!("Sessions{} whose", said["sessions"])), "{garbage}: {said}");
}

/// The users and groups of the test in a browser, as lines of passwd(5) and group(5).
const PEOPLE: &str = "ann:x:1101:1200:Ann:/home/ann:/bin/sh\nbob:x:1102:1200:Bob:/home/bob:/bin/sh\n\
    cleo:x:1103:1200:Cleo:/home/cleo:/bin/sh\ndave:x:1104:1202:Dave:/home/dave:/bin/sh\n";
const TEAMS: &str = "staff:x:1200:\ndesign:x:1201:bob,cleo\nfinance:x:1202:\n";
const ANN: u32 = 1101;
const BOB: u32 = 1102;
const CLEO: u32 = 1103;
const DAVE: u32 = 1104;
const STAFF: u32 = 1200;
const DESIGN: u32 = 1201;
const FINANCE: u32 = 1202;
/// If set, the pictures of docs/console.md are written to this directory.
const PICTURES: &str = "LIMEN_CONSOLE_PICTURES";

/// Files of a small studio. The large files are sparse, so that their sizes cost no space.
fn furnish(volume: &Mounted) {
    let dir = |path: &str, mode: u32, uid: u32, gid: u32| {
        fs::create_dir_all(volume.at(path)).unwrap();
        own(&volume.at(path), mode, uid, gid);
    };
    let file = |path: &str, mib: u64, mode: u32, uid: u32, gid: u32| {
        let file = fs::File::create(volume.at(path)).unwrap();
        file.set_len(mib << 20).unwrap();
        own(&volume.at(path), mode, uid, gid);
    };
    own(&volume.at("."), 0o755, 0, 0);
    for (path, mode, uid, gid) in [
        ("projects", 0o755, 0, STAFF),
        ("projects/apollo", 0o750, BOB, DESIGN),
        ("projects/apollo/renders", 0o775, BOB, DESIGN),
        ("projects/hermes", 0o2770, ANN, STAFF),
        ("projects/hermes/models", 0o775, ANN, STAFF),
        ("projects/vesta", 0o755, CLEO, STAFF),
        ("media", 0o755, 0, STAFF),
        ("media/footage", 0o755, CLEO, STAFF),
        ("media/music", 0o755, CLEO, STAFF),
        ("archive", 0o755, 0, 0),
        ("archive/2024", 0o755, 0, 0),
        ("archive/2025", 0o755, 0, 0),
        ("payroll", 0o700, DAVE, FINANCE),
        ("home", 0o755, 0, 0),
        ("home/ann", 0o700, ANN, STAFF),
        ("home/bob", 0o700, BOB, STAFF),
        ("shared", 0o1777, 0, STAFF),
    ] {
        dir(path, mode, uid, gid);
    }
    for (path, mib, mode, uid, gid) in [
        ("projects/apollo/brief.pdf", 48, 0o644, BOB, DESIGN),
        ("projects/apollo/budget.ods", 3, 0o640, DAVE, FINANCE),
        ("projects/apollo/renders/final.mov", 92_000, 0o664, BOB, DESIGN),
        ("projects/apollo/renders/draft.mov", 41_000, 0o664, BOB, DESIGN),
        ("projects/hermes/plan.md", 1, 0o664, ANN, STAFF),
        ("projects/hermes/models/hull.blend", 38_000, 0o664, ANN, STAFF),
        ("projects/vesta/scans.tar", 57_000, 0o644, CLEO, STAFF),
        ("media/footage/day-1.mxf", 120_000, 0o644, CLEO, STAFF),
        ("media/footage/day-2.mxf", 74_000, 0o644, CLEO, STAFF),
        ("media/music/score.wav", 9_000, 0o644, CLEO, STAFF),
        ("archive/2024/all.tar", 88_000, 0o644, 0, 0),
        ("archive/2025/all.tar", 61_000, 0o644, 0, 0),
        ("payroll/march.ods", 2, 0o600, DAVE, FINANCE),
        ("home/ann/notes.txt", 1, 0o600, ANN, STAFF),
        ("home/bob/cv.pdf", 12_000, 0o600, BOB, STAFF),
        ("shared/welcome.txt", 1, 0o644, 0, STAFF),
        ("shared/minutes.txt", 1, 0o640, CLEO, DESIGN),
    ] {
        file(path, mib, mode, uid, gid);
    }
    symlink("../projects/apollo/brief.pdf", volume.at("shared/brief.pdf")).unwrap();
    let text = |path: &str, text: &str| fs::write(volume.at(path), text).unwrap();
    text("shared/welcome.txt", "welcome");
    let named = ["-m", "u:1101:r--,g:1202:r--", "projects/apollo/budget.ods"];
    let done = Command::new("setfacl").args(&named[..2]).arg(volume.at(named[2])).status();
    assert!(done.unwrap().success());
}

fn own(path: &Path, mode: u32, uid: u32, gid: u32) {
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Starts a console in a mount namespace of its own, in which [`PEOPLE`] and [`TEAMS`] exist.
fn serve_story(place: &Place) -> Served {
    for (name, more) in [("passwd", PEOPLE), ("group", TEAMS)] {
        let mut text = fs::read_to_string(Path::new("/etc").join(name)).unwrap();
        text.push_str(more);
        fs::write(place.path(name), text).unwrap();
    }
    let script =
        "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group && exec \"$3\" console \"$4\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.args([place.text("passwd"), place.text("group"), LIMEN.to_owned(), place.url()]);
    command.stdin(Stdio::null()).env_remove("LIMEN_LOG");
    Served::run(&mut command)
}

#[test]
fn three_clicks_say_why_a_colleague_cannot_open_a_file() {
    let Some(volume) = Mounted::with(&["--capacity", "1T"], |_| {}) else { return };
    let Some(browser) = Browser::start() else { return };
    furnish(&volume);
    let place = &volume.place;
    place.umount(&[]).ok();
    let limits = ["--bytes", "160G", "--soft-bytes", "120G"];
    limen(&[&["quota", "set", &place.url(), "--user", "1102"], &limits[..]].concat()).ok();
    place.mount(&[]).ok();
    let served = serve_story(place);
    let base = format!("http://{}", served.host);
    let pictures = std::env::var_os(PICTURES).map(PathBuf::from);
    let picture = |name: &str, width: u32, height: u32, is_dark: bool| {
        browser.show_as(width, height, is_dark);
        if let Some(dir) = &pictures {
            browser.screenshot(&dir.join(name));
        }
    };
    let opens =
        |path: &str| harness::as_member(ANN, STAFF, &[STAFF], || fs::File::open(volume.at(path)).is_ok());
    browser.show_as(1200, 900, false);
    browser.open(&format!("{base}/?token={}", served.token));
    assert_eq!(browser.address(), format!("{base}/"), "the token stays in the address");
    picture("overview.png", 1200, 860, false);

    // Find the answer by the tree: Access, ann, payroll.
    browser.click_link("Access");
    browser.click_link("ann");
    picture("tree.png", 1200, 900, false);
    browser.click_link("payroll");
    let verdict = browser.text("#verdict");
    assert!(verdict.contains("ann cannot list payroll"), "{verdict}");
    assert!(verdict.contains("drwx------") && verdict.contains("dave"), "{verdict}");
    assert!(fs::metadata(volume.at("payroll")).is_ok() && !opens("payroll"));

    // Find the answer by name: Access, Explain, and then the effect of the remedy.
    browser.click_link("Access");
    browser.type_into("input[name=user]", "ann");
    browser.type_into("input[name=path]", "/projects/apollo/brief.pdf");
    browser.click("form.ask button");
    let verdict = browser.text("#verdict");
    for part in [
        "ann cannot read brief.pdf",
        "The directory /projects/apollo (drwxr-x--- bob:design) does not let ann pass",
        "neither its owner (bob) nor in its group (design)",
        "/projects/apollo/brief.pdf itself would allow it",
        &format!("setfacl -m u:ann:--x {}/projects/apollo", place.mnt()),
        "member of the group design",
    ] {
        assert!(verdict.contains(part), "{part:?} is missing: {verdict}");
    }
    assert!(!opens("projects/apollo/brief.pdf"));
    picture("verdict.png", 1200, 1000, false);
    picture("verdict-phone-dark.png", 400, 860, true);
    browser.show_as(1200, 900, false);
    browser.click_link("See what else it would open");
    let effect = browser.text("#effect");
    assert!(effect.contains("ann") && effect.contains("--x"), "{effect}");
    picture("change.png", 1200, 900, false);

    // The remedy does what the page says.
    let done = Command::new("setfacl").args(["-m", "u:1101:--x"]).arg(volume.at("projects/apollo")).status();
    assert!(done.unwrap().success());
    assert!(opens("projects/apollo/brief.pdf"));
    browser.open(&format!("{base}/access?user=ann&path=/projects/apollo/brief.pdf"));
    assert!(browser.text("#verdict").contains("ann can read brief.pdf"));

    browser.open(&format!("{base}/usage"));
    picture("usage.png", 1200, 960, false);
    browser.click_link("projects");
    assert!(browser.address().contains("/usage?path=/projects"), "{}", browser.address());
    // Keep the mount busy while its figures are read.
    let looks = std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            for round in 0..60 {
                let path = volume.at(&format!("shared/work-{round}"));
                fs::write(&path, vec![7; 100_000]).unwrap();
                let _ = fs::read(&path);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        browser.open(&format!("{base}/live"));
        let looks = browser.text("main");
        work.join().unwrap();
        looks
    });
    assert!(looks.contains("write") && looks.contains("Requests per second"), "{looks}");
    picture("live.png", 1200, 900, true);
    browser.open(&format!("{base}/sessions"));
    let sessions = browser.text("main");
    let pid = place.server().to_string();
    assert!(
        sessions.contains("healthy") && sessions.contains(&pid) && sessions.contains(&place.mnt()),
        "{sessions}"
    );
    picture("sessions.png", 1200, 700, false);

    // No page is wider than a phone.
    browser.show_as(400, 800, false);
    for page in [
        "/",
        "/usage",
        "/access",
        "/access?user=ann&path=/shared",
        "/change?path=/payroll",
        "/sessions",
        "/live",
        "/quotas",
        "/garbage",
    ] {
        browser.open(&format!("{base}{page}"));
        let width = browser.evaluate("document.documentElement.scrollWidth");
        assert!(width.as_u64().unwrap() <= 400, "{page} is {width} wide");
        picture(&format!("phone{}.png", page.split('?').next().unwrap().replace('/', "-")), 400, 800, false);
    }
}
