//! Prints the results of `limen mdtest` as text or JSON.

use std::time::Duration;

use command::error::CliError;
use command::output::{self, Columns};
use command::units::show_size;
use meta::Counts;
use serde_json::{Value, json};
use types::counted;

use super::options::{OpenVolume, Options, Shape};
use super::phase::Sample;
use crate::figure::{figure, round};

/// The results of one run of the benchmark, and its options.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) options: &'a Options,
    pub(super) volume: &'a OpenVolume,
    pub(super) samples: &'a [Sample],
}

impl Report<'_> {
    /// Prints the results.
    ///
    /// # Errors
    /// Those of [`output::print`].
    pub(super) fn print(&self) -> Result<(), CliError> {
        output::result(self.options.json, || self.to_json(), || self.to_text())
    }

    fn to_text(&self) -> String {
        let Options { dir, shape, threads, write, .. } = self.options;
        let Shape { depth, dirs, files, .. } = shape;
        let server = self.volume.server.as_ref().map_or_else(String::new, |server| format!(" ({server})"));
        let mut text = format!(
            "{}{server}, volume '{}', {dir}: depth {depth}, {} and {} of {} in each, {}\n\n",
            self.volume.url,
            self.volume.vfs.meta().volume().name,
            counted(*dirs, "directory", "directories"),
            counted(*files, "file", "files"),
            show_size(*write),
            counted(*threads, "thread", "threads")
        );
        let head =
            ["operation", "count", "ops/s", "p50 us", "p99 us", "CPU us/op", "requests/op", "trips/op"];
        let mut columns = Columns::new(1, &head);
        for sample in self.samples {
            let mut cells = vec![sample.name.to_owned(), sample.count.to_string()];
            cells.push(format!("{:.0}", sample.rate()));
            cells.extend([sample.median, sample.p99].map(|time| figure(micros(time))));
            cells.push(figure(sample.each(micros(sample.cpu))));
            cells.extend([sample.asked, sample.sent].map(|counts| figure(sample.each(trips(counts)))));
            columns.line(cells);
        }
        text.push_str(&columns.render());
        text
    }

    fn to_json(&self) -> Value {
        let (options, volume) = (self.options, self.volume);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "url": volume.url,
            "engine": volume.engine,
            "server": volume.server,
            "volume": volume.vfs.meta().volume().name,
            "dir": options.dir,
            "depth": options.shape.depth,
            "dirs": options.shape.dirs,
            "files": options.shape.files,
            "threads": options.threads,
            "write_bytes": options.write,
            "kept": options.keep,
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "phases": self.samples.iter().map(Sample::to_json).collect::<Vec<_>>(),
        })
    }
}

impl Sample {
    fn to_json(&self) -> Value {
        let each = |count: u64| round(self.each(count as f64));
        let counts = |counts: Counts| {
            json!({
                "reads": each(counts.reads),
                "scans": each(counts.scans),
                "commits": each(counts.commits),
                "transactions": each(counts.txns),
            })
        };
        json!({
            "name": self.name,
            "count": self.count,
            "seconds": round(self.wall.as_secs_f64()),
            "ops_per_s": round(self.rate()),
            "p50_us": round(micros(self.median)),
            "p99_us": round(micros(self.p99)),
            "max_us": round(micros(self.longest)),
            "cpu_us": round(self.each(micros(self.cpu))),
            "engine_requests": round(self.each(trips(self.asked))),
            "engine_round_trips": round(self.each(trips(self.sent))),
            "requests": counts(self.asked),
            "round_trips": counts(self.sent),
        })
    }

    /// Operations per second.
    fn rate(&self) -> f64 {
        self.count as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// `all` divided by the number of operations.
    fn each(&self, all: f64) -> f64 {
        all / self.count.max(1) as f64
    }
}

/// Reads, scans and commits: requests of the client, or round trips to the server. Syncs are not counted,
/// because housekeeping sends them at fixed times, however many operations run.
fn trips(counts: Counts) -> f64 {
    (counts.round_trips() - counts.syncs) as f64
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
