//! Combines the rounds of a benchmark.

use std::time::Duration;

use clap::ValueEnum;
use command::statistics::Statistics;
use serde_json::{Map, Value, json};

use crate::figure::round;
use crate::ops::Op;
use crate::suite::Sample;

/// All rounds, in order.
#[derive(Debug, Default)]
pub(crate) struct Series(Vec<Vec<Sample>>);

/// A figure over the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// One operation over the rounds.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) op: Op,
    /// The number of operations in all rounds.
    pub(crate) count: u64,
    /// Operations per second.
    pub(crate) rate: Spread,
    /// CPU time of the benchmark's threads per operation.
    pub(crate) cpu_us: f64,
    pub(crate) mount: Option<MountRow>,
}

/// The cost in the mount's process per operation.
#[derive(Debug)]
pub(crate) struct MountRow {
    pub(crate) cpu_us: f64,
    pub(crate) requests: f64,
    pub(crate) round_trips: f64,
    total: Statistics,
}

impl Series {
    pub(crate) fn add(&mut self, round: Vec<Sample>) {
        self.0.push(round);
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        Op::value_variants().iter().filter_map(|op| self.row(*op)).collect()
    }

    pub(crate) fn row(&self, op: Op) -> Option<Row> {
        let samples: Vec<&Sample> = self.samples(op).collect();
        let count: u64 = samples.iter().map(|sample| sample.count).sum();
        if count == 0 {
            return None;
        }
        let total = samples.iter().try_fold(Statistics::default(), |mut total, sample| {
            total += sample.mount.as_ref()?;
            Some(total)
        });
        let each = |time: Duration, sample: &Sample| time.as_secs_f64() * 1e6 / sample.count.max(1) as f64;
        let mount_cpu = samples
            .iter()
            .map(|sample| each(sample.mount.as_ref().map_or(Duration::ZERO, |mount| mount.cpu), sample));
        let mount = total.map(|total| MountRow {
            cpu_us: Spread::of(mount_cpu).median,
            requests: total.all_requests() as f64 / count as f64,
            round_trips: total.engine.round_trips() as f64 / count as f64,
            total,
        });
        Some(Row {
            op,
            count,
            rate: Spread::of(samples.iter().map(|sample| sample.rate())),
            cpu_us: Spread::of(samples.iter().map(|sample| each(sample.cpu, sample))).median,
            mount,
        })
    }

    /// By how many percent the operation is slower than in `other`, whose rounds alternated with those of
    /// this series.
    pub(crate) fn loss(&self, op: Op, other: &Series) -> Spread {
        let pairs = self.samples(op).zip(other.samples(op));
        Spread::of(pairs.map(|(this, that)| 100.0 * (1.0 - this.rate() / that.rate())))
    }

    /// By how many percent the operation uses more CPU time than in `other`, in this process and the mount's
    /// together. Other programs disturb CPU time less than wall-clock time.
    pub(crate) fn cpu_loss(&self, op: Op, other: &Series) -> Spread {
        let pairs = self.samples(op).zip(other.samples(op));
        Spread::of(pairs.map(|(this, that)| 100.0 * (this.cpu_us() / that.cpu_us().max(1e-9) - 1.0)))
    }

    /// The rate of this series as a percentage of the rate of `other`, whose rounds alternated with these.
    pub(crate) fn share(&self, op: Op, other: &Series) -> Spread {
        let pairs = self.samples(op).zip(other.samples(op));
        Spread::of(pairs.map(|(this, that)| 100.0 * this.rate() / that.rate()))
    }

    fn samples(&self, op: Op) -> impl Iterator<Item = &Sample> {
        self.0.iter().flatten().filter(move |sample| sample.op == op)
    }
}

impl Sample {
    /// CPU time of this process and the mount's per operation.
    fn cpu_us(&self) -> f64 {
        let mount = self.mount.as_ref().map_or(Duration::ZERO, |mount| mount.cpu);
        (self.cpu + mount).as_secs_f64() * 1e6 / self.count.max(1) as f64
    }

    fn rate(&self) -> f64 {
        self.count as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

impl Spread {
    /// The spread of `values`; all zeros if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Spread::default() };
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Spread { median, min, max }
    }

    pub(crate) fn to_json(self) -> Value {
        json!({ "median": round(self.median), "min": round(self.min), "max": round(self.max) })
    }
}

impl Row {
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut row = Map::new();
        row.insert("name".into(), self.op.name().into());
        row.insert("count".into(), self.count.into());
        row.insert("ops_per_s".into(), self.rate.to_json());
        row.insert("cpu_us".into(), round(self.cpu_us).into());
        if let Some(mount) = &self.mount {
            let each = |count: u64| round(count as f64 / self.count as f64);
            let engine = mount.total.engine;
            let requests: Map<String, Value> = mount
                .total
                .requests
                .iter()
                .map(|(name, &count)| (name.clone(), each(count).into()))
                .collect();
            let searches = mount.total.searches;
            let value = json!({
                "lookups": { "skipped": each(searches.skipped), "checked": each(searches.checked) },
                "cpu_us": round(mount.cpu_us),
                "fuse_requests": round(mount.requests),
                "fuse_requests_by_opcode": requests,
                "engine_round_trips": round(mount.round_trips),
                "engine": {
                    "reads": each(engine.reads),
                    "commits": each(engine.commits),
                    "scans": each(engine.scans),
                    "syncs": each(engine.syncs),
                    "transactions": each(engine.txns),
                },
            });
            row.insert("mount".into(), value);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(op: Op, count: u64, wall_ms: u64) -> Sample {
        Sample {
            op,
            count,
            wall: Duration::from_millis(wall_ms),
            cpu: Duration::from_millis(wall_ms / 2),
            mount: None,
        }
    }

    #[test]
    fn spread_has_median_minimum_and_maximum() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn rounds_are_compared_pairwise() {
        let (mut this, mut that) = (Series::default(), Series::default());
        for (slow, fast) in [(2000, 1000), (200, 100), (60, 30)] {
            this.add(vec![sample(Op::Create, 10, slow), sample(Op::Open, 10, 10)]);
            that.add(vec![sample(Op::Create, 10, fast)]);
        }
        assert_eq!(this.loss(Op::Create, &that).median, 50.0);
        assert_eq!(this.cpu_loss(Op::Create, &that).median, 100.0);
        assert_eq!(this.share(Op::Create, &that), Spread { median: 50.0, min: 50.0, max: 50.0 });
        let rows = this.rows();
        assert_eq!(
            rows.iter().map(|row| (row.op, row.count)).collect::<Vec<_>>(),
            [(Op::Create, 30), (Op::Open, 30)]
        );
        assert_eq!(rows[0].rate.median, 50.0);
        assert_eq!(rows[1].cpu_us, 500.0);
        assert!(this.row(Op::Delete).is_none());
    }
}
