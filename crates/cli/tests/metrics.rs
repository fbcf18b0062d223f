//! The metrics of a mount: their format, what they count, and where they are served.

mod common;
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Said, command, json_lines, limen};
use harness::Mounted;
use serde_json::Value;
use servers::{Kind, Server, free_port};

/// Nothing here takes this long unless it hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The metric families of a text in the Prometheus format, each with its type and samples.
#[derive(Debug, Default)]
struct Families(BTreeMap<String, Family>);

#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Families {
    /// Reads a text, and panics unless the text follows the format strictly: each family begins with HELP and
    /// TYPE and is in one piece, names and labels are well-formed, no sample exists twice, counters end with
    /// `_total`, and histograms are complete, cumulative and consistent.
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let mut families = Families::default();
        let mut current = String::new();
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty() && is_name(name), "{line}");
                assert!(families.0.insert(name.to_owned(), Family::default()).is_none(), "twice: {line}");
                current = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                let family = families.0.get_mut(name).unwrap();
                assert!(name == current && family.kind.is_empty() && family.samples.is_empty(), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                family.kind = kind.to_owned();
            } else {
                let sample = parse_sample(line);
                let family = families.0.get_mut(&current).unwrap();
                let suffix =
                    sample.name.strip_prefix(&current).unwrap_or_else(|| panic!("not in one piece: {line}"));
                match family.kind.as_str() {
                    "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                    _ => assert_eq!(suffix, "", "{line}"),
                }
                assert!(family.kind == "gauge" || sample.value >= 0.0, "{line}");
                assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
                family.samples.push(sample);
            }
        }
        families.0.values().filter(|family| family.kind == "histogram").for_each(check_histogram);
        families
    }

    /// The sum of the samples that have this name and these labels; 0 if there is none.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.0.values().flat_map(|family| &family.samples);
        let is = |sample: &&Sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(label, value)| sample.labels.get(*label).is_some_and(|have| have == value))
        };
        all.filter(is).map(|sample| sample.value).sum()
    }

    /// The names that a query can use.
    fn names(&self) -> BTreeSet<String> {
        let names = self.0.iter().flat_map(|(name, family)| {
            let suffixes: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
        });
        names.collect()
    }
}

fn check_histogram(family: &Family) {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<&Sample>> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        series.entry(labels).or_default().push(sample);
    }
    for samples in series.values() {
        let [buckets @ .., sum, count] = &samples[..] else { panic!("{samples:?}") };
        assert!(sum.name.ends_with("_sum") && count.name.ends_with("_count"), "{samples:?}");
        let bound = |sample: &Sample| sample.labels["le"].parse::<f64>().unwrap();
        for pair in buckets.windows(2) {
            assert!(bound(pair[0]) < bound(pair[1]) && pair[0].value <= pair[1].value, "{pair:?}");
        }
        let last = buckets.last().unwrap();
        assert_eq!((bound(last), last.value), (f64::INFINITY, count.value), "{samples:?}");
        assert_eq!(count.value == 0.0, sum.value == 0.0 && buckets.iter().all(|bucket| bucket.value == 0.0));
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn parse_sample(line: &str) -> Sample {
    let (name, value) = line.rsplit_once(' ').unwrap();
    let value = value.parse().unwrap();
    let Some((name, rest)) = name.split_once('{') else {
        assert!(is_name(name), "{line}");
        return Sample { name: name.to_owned(), labels: BTreeMap::new(), value };
    };
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    for label in rest.strip_suffix('}').unwrap().split("\",") {
        let (label, value) = label.split_once("=\"").unwrap();
        let value = value.strip_suffix('"').unwrap_or(value);
        // No label here needs an escape.
        assert!(is_name(label) && !value.contains(['"', '\\', '{', '}']), "{line}");
        assert!(labels.insert(label.to_owned(), value.to_owned()).is_none(), "{line}");
    }
    Sample { name: name.to_owned(), labels, value }
}

/// The address of the metrics of the volume's only mount, as `limen status` shows it.
fn address(place: &Place) -> Option<String> {
    place.status()["sessions"][0]["metrics"].as_str().map(str::to_owned)
}

/// The body of the answer for this path. The server closes the connection after its answer.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(head.split(' ').nth(1), Some("200"), "{answer}");
    body.to_owned()
}

fn scrape(address: &str) -> Families {
    Families::parse(&get(address, "/metrics"))
}

/// Scrapes until `is_there` returns true, because a request is counted shortly after its reply.
fn scrape_until(address: &str, is_there: impl Fn(&Families) -> bool) -> Families {
    let until = Instant::now() + HANG_TIMEOUT;
    loop {
        let families = scrape(address);
        if is_there(&families) {
            return families;
        }
        assert!(Instant::now() < until, "{families:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn metrics_count_what_happened_on_the_mount() {
    let Some(mounted) = Mounted::with(&["--inline", "0"], |_| {}) else { return };
    let address = address(&mounted.place).unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let before = scrape(&address);
    for n in 0..10 {
        fs::write(mounted.at(&format!("f{n}")), vec![7; 5000]).unwrap();
    }
    fs::create_dir(mounted.at("d")).unwrap();
    assert_eq!(fs::read(mounted.at("f3")).unwrap().len(), 5000);
    let duration = "limen_fuse_request_duration_seconds_count";
    let more = |after: &Families, name: &str, labels: &[(&str, &str)]| {
        after.value(name, labels) - before.value(name, labels)
    };
    // The kernel sends RELEASE after close(2) has returned.
    let after = scrape_until(&address, |after| {
        more(after, duration, &[("op", "mkdir")]) == 1.0
            && more(after, duration, &[("op", "release")]) == 11.0
    });
    for (name, labels, expected) in [
        (duration, ("op", "create"), 10.0),
        ("limen_fuse_requests_total", ("op", "create"), 10.0),
        ("limen_fuse_requests_total", ("op", "mkdir"), 1.0),
        ("limen_fuse_request_bytes_count", ("op", "write"), 10.0),
        ("limen_fuse_request_bytes_sum", ("op", "write"), 50_000.0),
        ("limen_store_request_duration_seconds_count", ("op", "put"), 10.0),
        ("limen_store_request_duration_seconds_count", ("op", "delete"), 0.0),
        ("limen_store_errors_total", ("op", "put"), 0.0),
    ] {
        assert_eq!(more(&after, name, &[labels]), expected, "{name} {labels:?}");
    }
    // Each block has a trailer.
    assert!(more(&after, "limen_store_request_bytes_sum", &[("op", "put")]) > 50_000.0);
    assert!(more(&after, "limen_cache_hits_total", &[("cache", "records")]) > 0.0);
    assert_eq!(
        after.value("limen_mount_info", &[("volume", "vol"), ("mountpoint", &mounted.place.mnt())]),
        1.0
    );
    assert_eq!(after.value("limen_coherence", &[("state", "exclusive")]), 1.0);
    assert_eq!((after.value("limen_sessions", &[]), after.value("limen_open_files", &[])), (1.0, 0.0));
    assert!(after.value("process_resident_memory_bytes", &[]) > 1e6);
}

#[test]
fn engine_round_trips_equal_those_of_the_statistics() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let address = address(&mounted.place).unwrap();
    for n in 0..20 {
        fs::create_dir(mounted.at(&format!("d{n}"))).unwrap();
    }
    let kinds = [("reads", "read"), ("commits", "commit"), ("scans", "scan")];
    // Background threads send requests too, so both counts must be read between two of these requests.
    let until = Instant::now() + HANG_TIMEOUT;
    loop {
        let before = mounted.place.statistics();
        let scraped = scrape(&address);
        let after = mounted.place.statistics();
        if before["engine"] == after["engine"] {
            for (counted, kind) in kinds {
                let count = before["engine"][counted].as_u64().unwrap() as f64;
                let name = "limen_engine_request_duration_seconds_count";
                assert_eq!(scraped.value(name, &[("kind", kind)]), count, "{kind}");
                assert_eq!(scraped.value("limen_engine_calls_total", &[("kind", kind)]), count, "{kind}");
            }
            assert!(scraped.value("limen_engine_calls_total", &[("kind", "commit")]) >= 20.0);
            let transactions = before["engine"]["transactions"].as_u64().unwrap() as f64;
            assert_eq!(scraped.value("limen_engine_commit_transactions_sum", &[]), transactions);
            return;
        }
        assert!(Instant::now() < until);
    }
}

#[test]
fn a_port_in_use_fails_the_mount_and_off_serves_nothing() {
    let place = Place::formatted();
    let port = free_port();
    let taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let wanted = format!("127.0.0.1:{port}");
    place.mount(&["--metrics", &wanted]).failed(1, &[&wanted, "--metrics off"]);
    assert!(!place.is_mounted());
    place.mount(&["--metrics", "host"]).failed(2, &["IP:PORT"]);
    drop(taken);
    place.mount(&["-o", "metrics=off"]).ok();
    assert_eq!(address(&place), None);
    place.umount(&[]).ok();
    // `--metrics` takes precedence over `metrics` in `-o`.
    place.mount(&["-o", "metrics=off", "--metrics", &wanted]).ok();
    assert_eq!(address(&place), Some(wanted.clone()));
    assert!(limen(&["status", &place.url()]).ok().contains(&format!("http://{wanted}/metrics")));
    scrape(&wanted);
}

#[test]
fn stats_print_a_line_for_each_interval_until_nobody_reads() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let mnt = mounted.place.mnt();
    let lines = json_lines(&limen(&["stats", "--json", "--count", "2", &mnt]).ok());
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert!(
            line["seconds"].as_f64().unwrap() >= 1.0 && line["memory_bytes"].as_f64().unwrap() > 1e6,
            "{line}"
        );
        assert_eq!((&line["retries"], &line["store_errors"]), (&0.0.into(), &0.0.into()), "{line}");
    }
    let text = limen(&["stats", "--count", "1", &mnt]).ok();
    assert!(text.lines().count() == 2 && text.contains("engine/s"), "{text}");
    let mut live = command(&["stats", &mnt]).stdout(Stdio::piped()).spawn().unwrap();
    drop(live.stdout.take());
    assert!(live.wait().unwrap().success());
    limen(&["stats", "/proc"]).failed(1, &["/proc", "not on a limenfs volume"]);
    limen(&["stats", "--interval", "0", &mnt]).failed(2, &["--interval"]);
}

#[test]
fn a_slow_request_is_logged_with_where_its_time_went() {
    if !skip::is_root() {
        return;
    }
    let server = Server::start(Kind::Redis, false);
    let place = Place::new();
    limen(&["format", &server.url_with_long_timeouts(), "vol", "--bucket", &place.text("data")]).ok();
    place.mount_url(&server.url_with_long_timeouts(), &["--slow-ops", "200"]).ok();
    let until = Instant::now() + HANG_TIMEOUT;
    let line = loop {
        server.stop(true);
        let directory = place.path("mnt").join("a\nb\u{1b}[2J\" op=x");
        let made = thread::spawn(move || fs::create_dir(directory));
        thread::sleep(Duration::from_millis(500));
        server.stop(false);
        let _ = made.join().unwrap();
        let log = place.log();
        if let Some(line) =
            log.lines().find(|line| line.contains("slow request") && line.contains(" name=\"a"))
        {
            break line.to_owned();
        }
        assert!(Instant::now() < until, "{log}");
    };
    assert!(line.contains(r#"name="a\nb\x1b[2J\" op=x" uid=0 "#), "{line}");
    // The request waited for the engine almost all of the time.
    let ms = |field: &str| {
        let value = line.split_once(&format!(" {field}=")).unwrap().1.split(' ').next().unwrap();
        let seconds = value.strip_suffix("ms").map(|ms| ms.parse::<f64>().unwrap());
        seconds.unwrap_or_else(|| value.strip_suffix('s').unwrap().parse::<f64>().unwrap() * 1e3)
    };
    assert!(ms("time") >= 200.0 && ms("engine") >= 200.0 && ms("engine") <= ms("time"), "{line}");
    assert!(line.contains(" store=0ns store_calls=0 "), "{line}");
    // The volume is on a database server, so the mount reads other clients' changes from a stream.
    let status: Value =
        serde_json::from_str(&limen(&["status", "--json", &server.url_with_long_timeouts()]).ok()).unwrap();
    let address = status["sessions"][0]["metrics"].as_str().unwrap();
    let families = scrape_until(address, |families| {
        families.value("limen_stream_answers_total", &[]) > 0.0
            && families.value("limen_lease_seconds", &[]) > 0.0
    });
    assert_eq!(families.value("limen_coherence", &[("state", "exclusive")]), 0.0);
    place.umount(&[]).ok();
}

#[test]
fn held_directories_and_queued_changes_are_counted() {
    if !skip::is_root() {
        return;
    }
    let server = Server::start(Kind::Redis, false);
    let place = Place::new();
    limen(&["format", &server.url_with_long_timeouts(), "vol", "--bucket", &place.text("data")]).ok();
    place.mount_url(&server.url_with_long_timeouts(), &[]).ok();
    let status: Value =
        serde_json::from_str(&limen(&["status", "--json", &server.url_with_long_timeouts()]).ok()).unwrap();
    let address = status["sessions"][0]["metrics"].as_str().unwrap();
    let queued = |families: &Families| families.value("limen_queued_changes", &[]);
    // On a database server, a mount holds the directories that it creates only while it is in the state
    // `notified`.
    scrape_until(address, |families| families.value("limen_coherence", &[("state", "notified")]) == 1.0);
    assert_eq!(scrape(address).value("limen_held_directories", &[]), 0.0);
    let directory = place.path("mnt").join("d");
    fs::create_dir(&directory).unwrap();
    scrape_until(address, |families| families.value("limen_held_directories", &[]) == 1.0);
    server.stop(true);
    // The call is answered although the server does not answer.
    let made = fs::create_dir(directory.join("e"));
    scrape_until(address, |families| queued(families) > 0.0);
    server.stop(false);
    made.unwrap();
    scrape_until(address, |families| queued(families) == 0.0);
    place.umount(&[]).ok();
}

#[test]
fn profile_tells_who_did_what_and_where() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    fs::create_dir_all(mounted.at("d/e")).unwrap();
    let mut profile =
        command(&["profile", "--json", &mounted.place.mnt()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(profile.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    // After its first line, the profiler is attached.
    next();
    for n in 0..10 {
        fs::write(mounted.at(&format!("d/e/f{n}")), [7; 1000]).unwrap();
    }
    let own = fs::read_to_string("/proc/self/comm").unwrap();
    let mut count = 0;
    while count < 10 {
        let line = next();
        for row in line["rows"].as_array().unwrap().iter().filter(|row| row["op"] == "create") {
            count += row["count"].as_u64().unwrap();
            assert_eq!((&row["path"], &row["user"]), (&"/d/e".into(), &"root".into()), "{row}");
            assert_eq!(
                (&row["pid"], &row["process"]),
                (&std::process::id().into(), &own.trim_end().into()),
                "{row}"
            );
            assert!(row["engine_ms"].as_f64().unwrap() <= row["time_ms"].as_f64().unwrap(), "{row}");
        }
    }
    assert_eq!(count, 10);
    profile.kill().unwrap();
    profile.wait().unwrap();
    // Record a profile for two seconds, with one row for each kind of operation.
    let mut recorded = command(&["profile", "--seconds", "2", "--by", "op", &mounted.place.mnt()]);
    let mut recorded = recorded.stdout(Stdio::piped()).spawn().unwrap();
    while recorded.try_wait().unwrap().is_none() {
        fs::read(mounted.at("d/e/f1")).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    let text = Said::from(recorded.wait_with_output().unwrap()).ok();
    assert!(text.lines().next().unwrap().ends_with("op          ") && text.contains("  open"), "{text}");
    assert!(!text.contains("/d/e") && !text.contains("root"), "{text}");
}

#[test]
fn the_dashboard_uses_only_metrics_that_exist() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    let names = scrape(&address(&mounted.place).unwrap()).names();
    let is_metric = |word: &&str| word.starts_with("limen_") || word.starts_with("process_");
    for query in queries() {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let used: Vec<&str> = words.filter(is_metric).collect();
        assert!(!used.is_empty() && used.iter().all(|name| names.contains(*name)), "{query}");
    }
}

/// The queries of the dashboard, with its variables replaced.
fn queries() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<String> = targets
        .map(|target| {
            target["expr"].as_str().unwrap().replace("$instance", ".+").replace("$__rate_interval", "1m")
        })
        .collect();
    assert!(queries.len() > 30, "{queries:?}");
    queries
}

/// A running program of Debian's package `prometheus`, killed when this is dropped. `start` returns `None`,
/// and reports a skip, if the package is not installed.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Option<Self> {
        match command.spawn() {
            Ok(child) => Some(Program(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                skip::missing("the package prometheus");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn promtool_accepts_the_metrics() {
    let Some(mounted) = Mounted::new(&[]) else { return };
    fs::write(mounted.at("f"), "x").unwrap();
    let text = get(&address(&mounted.place).unwrap(), "/metrics");
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Some(mut promtool) = Program::start(&mut command) else { return };
    promtool.0.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let mut said = String::new();
    promtool.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(promtool.0.wait().unwrap().success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn prometheus_scrapes_a_mount_and_answers_the_queries_of_the_dashboard() {
    let Some(mounted) = Mounted::with(&["--inline", "0"], |_| {}) else { return };
    let (place, address) = (&mounted.place, address(&mounted.place).unwrap());
    let config = format!(
        "{{global: {{scrape_interval: 1s}}, scrape_configs: [{{job_name: limen, static_configs: [{{targets: ['{address}']}}]}}]}}"
    );
    fs::write(place.path("prometheus.yml"), config).unwrap();
    let own = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", place.text("prometheus.yml")));
    command.arg(format!("--storage.tsdb.path={}", place.text("tsdb")));
    command.arg(format!("--web.listen-address={own}")).stderr(Stdio::null());
    let Some(_prometheus) = Program::start(&mut command) else { return };
    let until = Instant::now() + HANG_TIMEOUT;
    let mut left = queries();
    for round in 0.. {
        fs::write(mounted.at(format!("f{round}").as_str()), vec![7; 5000]).unwrap();
        fs::read(mounted.at("f0")).unwrap();
        thread::sleep(Duration::from_millis(500));
        if TcpStream::connect(&own).is_err() {
            continue;
        }
        left.retain(|query| {
            let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let answer: Value = serde_json::from_str(&get(&own, &format!("/api/v1/query?query={encoded}")))
                .unwrap_or_default();
            answer["data"]["result"].as_array().is_none_or(Vec::is_empty)
        });
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "no data for {left:#?}");
    }
}
