//! Formats the results as text and JSON.

use std::time::Duration;

use meta::{Counts, Volume};
use serde_json::{Value, json};

use super::MdtestArgs;
use super::phase::Sample;
use crate::bench::table::{Columns, figure, round};
use crate::fault::Fault;
use crate::output;
use crate::units::show_size;
use crate::url::{Database, MetaUrl};

/// The results of one run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) args: &'a MdtestArgs,
    pub(super) url: &'a MetaUrl,
    pub(super) database: &'a Database,
    pub(super) volume: &'a Volume,
    pub(super) samples: &'a [Sample],
}

impl Report<'_> {
    /// # Errors
    /// Those of [`output::print`].
    pub(super) fn print(&self) -> Result<(), Fault> {
        if self.args.json { output::print_json(&self.to_json()) } else { output::print(&self.to_text()) }
    }

    fn to_text(&self) -> String {
        let MdtestArgs { dir, depth, dirs, files, threads, write, .. } = self.args;
        let server = self.server().map_or_else(String::new, |server| format!(" ({server})"));
        let mut text = format!(
            "{}{server}, volume '{}', {dir}: depth {depth}, {dirs} directories and {files} files \
                                of {} in each, {threads} threads\n\n",
            self.url,
            self.volume.name,
            show_size(*write)
        );
        let head =
            ["operation", "count", "ops/s", "p50 us", "p99 us", "CPU us/op", "requests/op", "trips/op"];
        let mut columns = Columns::new(&head);
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
        let args = self.args;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "url": self.url.to_string(),
            "engine": self.url.engine(),
            "server": self.server(),
            "volume": self.volume.name,
            "dir": args.dir,
            "depth": args.depth,
            "dirs": args.dirs,
            "files": args.files,
            "threads": args.threads,
            "write_bytes": args.write,
            "kept": args.keep,
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "phases": self.samples.iter().map(Sample::to_json).collect::<Vec<_>>(),
        })
    }

    /// The name and version of the database server.
    fn server(&self) -> Option<&str> {
        match self.database {
            Database::Network(network) => Some(&network.server),
            Database::Sqlite(_) | Database::Memory(_) => None,
        }
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

    /// Operations a second.
    fn rate(&self) -> f64 {
        self.count as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    fn each(&self, all: f64) -> f64 {
        all / self.count.max(1) as f64
    }
}

/// Round trips of operations. Syncs are left out, because housekeeping makes them at fixed times.
fn trips(counts: Counts) -> f64 {
    (counts.round_trips() - counts.syncs) as f64
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
