//! `limen stats`: what a mount does, one line for each interval.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueHint;
use command::error::CliError;
use command::output;
use command::process::Process;
use command::registry::{self, Entry};
use command::statistics::query_metrics;
use command::units::show_size;
use metrics::Samples;
use serde_json::{Value, json};

use crate::target::mount_of;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns, for the time since the line before:
  fuse/s, ms         requests of the kernel, and their average time
  read, write        bytes that programs read and wrote, per second
  engine/s, ms       round trips to the metadata engine, and their average time
  retry, confl       retries after failed round trips, and operations planned again because another client was faster
  cached             metadata records found in memory
  store/s, ms, err   requests to the object store, their average time, and how many failed
  unstored           written data that is not stored yet, now
  memory             memory of the mount's process, now

Examples:
  limen stats /mnt
  limen stats --json --count 60 /mnt >minute.json")]
pub(crate) struct StatsArgs {
    /// A path on a mounted volume
    #[arg(value_name = "MOUNT", value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Print each line as JSON, with numbers that are not rounded
    #[arg(long)]
    json: bool,
    /// The time between two lines
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
    /// End after this many lines
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
}

/// The histogram of the kernel's requests.
const FUSE: &str = "limen_fuse_request_duration_seconds";

/// Lines between two headings.
const HEADING_EVERY: u64 = 20;

const HEADING: &str = concat!(
    "  fuse/s       ms      read     write  engine/s       ms  retry  confl cached",
    "  store/s       ms  err  unstored    memory\n"
);

pub(crate) fn run(args: &StatsArgs) -> Result<(), CliError> {
    let entry = mount_of(&args.path)?;
    let mut before = Moment::read(&entry)?;
    for line in 0..args.count {
        thread::sleep(Duration::from_secs(args.interval));
        let after = Moment::read(&entry)?;
        let row = Row::between(&before, &after);
        let heading = if line % HEADING_EVERY == 0 && !args.json { HEADING } else { "" };
        let shown = if args.json { format!("{}\n", row.to_json()) } else { row.render() };
        if !output::print_live(&format!("{heading}{shown}"))? {
            break;
        }
        before = after;
    }
    Ok(())
}

/// The work of a mount within a second, as JSON. Sends no request to the mounted file system.
///
/// # Errors
/// The mount does not answer at its socket.
pub(crate) fn sample(entry: &Entry) -> Result<String, CliError> {
    let before = Moment::read(entry)?;
    thread::sleep(Duration::from_secs(1));
    Ok(format!("{:#}\n", Row::between(&before, &Moment::read(entry)?).to_json()))
}

/// The metrics of a mount at one moment.
pub(crate) struct Moment {
    pub(crate) at: Instant,
    process: Process,
    samples: Samples,
}

impl Moment {
    /// # Errors
    /// The mount does not answer at its socket.
    pub(crate) fn read(entry: &Entry) -> Result<Self, CliError> {
        // Another process may have taken the mount over since the entry was read.
        let entry = registry::by_device(entry.device).unwrap_or_else(|| entry.clone());
        Ok(Moment { at: Instant::now(), process: entry.process, samples: query_metrics(&entry)? })
    }

    /// The samples to subtract from those of this moment: those of `before`, or none if another process
    /// serves the mount now, because its counters began at zero.
    fn base(&self, before: &Moment) -> Samples {
        if before.process == self.process { before.samples.clone() } else { Samples::default() }
    }
}

/// The requests of one kind between two moments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OperationRow {
    pub(crate) name: String,
    pub(crate) per_second: f64,
    pub(crate) mean_ms: Option<f64>,
}

/// The work of a mount between two moments. A rate is per second; an average is `None` if nothing happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) seconds: f64,
    pub(crate) requests: f64,
    pub(crate) request_ms: Option<f64>,
    pub(crate) read_bytes: f64,
    pub(crate) written_bytes: f64,
    pub(crate) round_trips: f64,
    pub(crate) round_trip_ms: Option<f64>,
    pub(crate) retries: f64,
    pub(crate) conflicts: f64,
    pub(crate) cached_share: Option<f64>,
    pub(crate) store_requests: f64,
    pub(crate) store_ms: Option<f64>,
    pub(crate) store_errors: f64,
    pub(crate) unstored_bytes: f64,
    pub(crate) memory_bytes: f64,
}

impl Row {
    pub(crate) fn between(before: &Moment, after: &Moment) -> Self {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let (old, new) = (after.base(before), &after.samples);
        let more = |name: &str| new.sum(name) - old.sum(name);
        let of = |name: &str, label: &str, value: &str| {
            new.sum_of(name, label, &[value]) - old.sum_of(name, label, &[value])
        };
        let count = |histogram: &str| more(&format!("{histogram}_count"));
        let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        let mean_ms = |histogram: &str| {
            ratio(more(&format!("{histogram}_sum")) * 1e3, more(&format!("{histogram}_count")))
        };
        let (fuse, engine) = (FUSE, "limen_engine_request_duration_seconds");
        let store = "limen_store_request_duration_seconds";
        let hits = of("limen_cache_hits_total", "cache", "records");
        let misses = of("limen_cache_misses_total", "cache", "records");
        Row {
            seconds,
            requests: count(fuse) / seconds,
            request_ms: mean_ms(fuse),
            read_bytes: of("limen_fuse_request_bytes_sum", "op", "read") / seconds,
            written_bytes: of("limen_fuse_request_bytes_sum", "op", "write") / seconds,
            round_trips: count(engine) / seconds,
            round_trip_ms: mean_ms(engine),
            retries: more("limen_client_retries_total"),
            conflicts: more("limen_client_conflicts_total"),
            cached_share: ratio(hits, hits + misses),
            store_requests: count(store) / seconds,
            store_ms: mean_ms(store),
            store_errors: more("limen_store_errors_total"),
            unstored_bytes: new.sum_of("limen_memory_bytes", "owner", &["write_buffers"]),
            memory_bytes: new.sum("process_resident_memory_bytes"),
        }
    }

    /// The kernel's requests by operation, the most frequent first. Operations without requests are omitted.
    pub(crate) fn operations(before: &Moment, after: &Moment) -> Vec<OperationRow> {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let (counts, sums) = (format!("{FUSE}_count"), format!("{FUSE}_sum"));
        let base = after.base(before);
        let more = |name: &str, operation: &str| {
            after.samples.sum_of(name, "op", &[operation]) - base.sum_of(name, "op", &[operation])
        };
        let mut rows: Vec<OperationRow> = after
            .samples
            .by(&counts, "op")
            .map(|(operation, _)| {
                let count = more(&counts, operation);
                let mean_ms = (count > 0.0).then(|| more(&sums, operation) * 1e3 / count);
                OperationRow { name: operation.to_owned(), per_second: count / seconds, mean_ms }
            })
            .filter(|row| row.per_second > 0.0)
            .collect();
        rows.sort_by(|one, other| {
            other.per_second.total_cmp(&one.per_second).then_with(|| one.name.cmp(&other.name))
        });
        rows
    }

    fn render(&self) -> String {
        let ms = |mean: Option<f64>| mean.map_or("-".to_owned(), |mean| format!("{mean:.3}"));
        let size = |bytes: f64| show_size(bytes as u64).replace("iB", "").replace(' ', "");
        format!(
            "{:8.0} {:>8} {:>9} {:>9} {:9.0} {:>8} {:6.0} {:6.0} {:>6} {:8.0} {:>8} {:4.0} {:>9} {:>9}\n",
            self.requests,
            ms(self.request_ms),
            size(self.read_bytes),
            size(self.written_bytes),
            self.round_trips,
            ms(self.round_trip_ms),
            self.retries,
            self.conflicts,
            self.cached_share.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0)),
            self.store_requests,
            ms(self.store_ms),
            self.store_errors,
            size(self.unstored_bytes),
            size(self.memory_bytes),
        )
    }

    fn to_json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "fuse_requests_per_s": self.requests,
            "fuse_request_ms": self.request_ms,
            "read_bytes_per_s": self.read_bytes,
            "written_bytes_per_s": self.written_bytes,
            "engine_round_trips_per_s": self.round_trips,
            "engine_round_trip_ms": self.round_trip_ms,
            "retries": self.retries,
            "conflicts": self.conflicts,
            "cached_share": self.cached_share,
            "store_requests_per_s": self.store_requests,
            "store_request_ms": self.store_ms,
            "store_errors": self.store_errors,
            "unstored_bytes": self.unstored_bytes,
            "memory_bytes": self.memory_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::{Buckets, Histogram, Text};

    fn moment(at: Instant, requests: &[u64], bytes: u64) -> Moment {
        let (times, sizes) = (Histogram::new(Buckets::SECONDS), Histogram::new(Buckets::BYTES));
        requests.iter().for_each(|nanos| times.record(*nanos));
        sizes.record(bytes);
        let mut text = Text::default();
        text.histograms("limen_fuse_request_duration_seconds", "T.", "op", [("read", times.summary())]);
        text.histograms("limen_fuse_request_bytes", "B.", "op", [("read", sizes.summary())]);
        text.counters("limen_cache_hits_total", "H.", "cache", [("records", 3 * requests.len() as u64)]);
        text.counters("limen_cache_misses_total", "M.", "cache", [("records", requests.len() as u64)]);
        text.gauge("process_resident_memory_bytes", "R.", 3e6);
        let process = Process { pid: 1, started: 1 };
        Moment { at, process, samples: Samples::parse(&text.finish()).unwrap() }
    }

    #[test]
    fn counters_of_another_process_begin_at_zero() {
        let at = Instant::now();
        let before = moment(at, &[9_000_000, 1_000_000, 2_000_000, 3_000_000], 5000);
        let after = moment(at + Duration::from_secs(2), &[4_000_000], 1000);
        let after = Moment { process: Process { pid: 2, started: 5 }, ..after };
        let row = Row::between(&before, &after);
        assert_eq!((row.requests, row.read_bytes, row.cached_share), (0.5, 500.0, Some(0.75)));
        assert!((row.request_ms.unwrap() - 4.0).abs() < 1e-9, "{row:?}");
        let operations = Row::operations(&before, &after);
        let [read] = &operations[..] else { panic!("{operations:?}") };
        assert_eq!((read.name.as_str(), read.per_second), ("read", 0.5));
    }

    #[test]
    fn a_row_shows_the_difference_of_two_samples() {
        let at = Instant::now();
        let before = moment(at, &[9_000_000], 1000);
        let after = moment(at + Duration::from_secs(2), &[9_000_000, 1_000_000, 2_000_000, 3_000_000], 5000);
        let row = Row::between(&before, &after);
        assert_eq!((row.requests, row.read_bytes, row.written_bytes), (1.5, 2000.0, 0.0));
        assert!((row.request_ms.unwrap() - 2.0).abs() < 1e-9, "{row:?}");
        assert_eq!((row.cached_share, row.round_trip_ms, row.memory_bytes), (Some(0.75), None, 3e6));
        let text = row.render();
        assert_eq!(text.len(), HEADING.len(), "{HEADING}{text}");
        assert!(text.contains(" 2.000 ") && text.contains(" 75.0% ") && text.contains(" 2.8M"), "{text}");
    }
}
