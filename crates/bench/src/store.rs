//! The benchmark of `limen objbench`: whether an object store answers as limenfs needs it, and how fast.

use std::time::Duration;

use bytes::Bytes;
use chunk::{BareStore, ChunkError};
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output::{self, Columns};
use command::units::{parse_size, parse_threads, parse_whole, show_size};
use serde_json::{Value, json};
use types::counted;

use crate::figure::figure;
use crate::mdtest::load::{self, Load};

/// The options of the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreOptions {
    /// The size of the large objects: the blocks that limenfs stores
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4M")]
    pub block_size: u64,
    /// Number of large objects
    #[arg(long, value_name = "N", value_parser = parse_whole, default_value = "64")]
    pub blocks: u64,
    /// The size of the small objects
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128K")]
    pub small_size: u64,
    /// Number of small objects
    #[arg(long, value_name = "N", value_parser = parse_whole, default_value = "200")]
    pub small: u64,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "4")]
    pub threads: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The largest size that the options accept. A block of limenfs has at most 4 MiB.
const MAX_BYTES: u64 = 64 << 20;
/// The number of bytes that a request for a part of a large object reads.
const PART_BYTES: u64 = 64 << 10;
/// The objects of the test are below this prefix, which no volume uses.
const PREFIX: &str = "objbench/";

/// The requests of one kind.
struct Phase {
    name: &'static str,
    load: Load,
    /// The bytes of one request; 0 if the request transfers no object.
    bytes: u64,
}

impl Phase {
    fn rate(&self) -> f64 {
        self.load.times.count() as f64 / self.load.wall.as_secs_f64().max(1e-9)
    }

    fn to_json(&self) -> Value {
        let times = &self.load.times;
        let micros = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        json!({
            "name": self.name,
            "count": times.count(),
            "bytes": self.bytes,
            "requests_per_s": (self.rate() * 10.0).round() / 10.0,
            "bytes_per_s": (self.rate() * self.bytes as f64).round(),
            "median_us": micros(times.quantile(0.5)),
            "p99_us": micros(times.quantile(0.99)),
            "longest_us": micros(times.longest()),
        })
    }
}

/// Tests and measures a store. `name` is shown, and `run` makes the keys of this run unique. Everything that
/// was stored is removed, even after an error or Ctrl-C.
///
/// # Errors
/// The store does not answer as it should, or a request fails; the user has interrupted the command.
pub fn run(
    store: &BareStore,
    name: &str,
    run: &str,
    options: &StoreOptions,
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    for (option, size) in [("--block-size", options.block_size), ("--small-size", options.small_size)] {
        if !(1..=MAX_BYTES).contains(&size) {
            return Err(CliError::usage(format!("{option} must be 1 to {}", show_size(MAX_BYTES))));
        }
    }
    let bench = Bench { store, prefix: format!("{PREFIX}{run}/"), options, interrupt };
    let measured = bench.check().and_then(|()| bench.measure());
    let cleaned = bench.clean();
    let phases = measured?;
    cleaned?;
    output::result(
        options.json,
        || {
            json!({
                "store": name,
                "threads": options.threads,
                "phases": phases.iter().map(Phase::to_json).collect::<Vec<_>>(),
            })
        },
        || format!("{name}, {}\n\n{}", counted(options.threads, "thread", "threads"), table(&phases)),
    )
}

fn table(phases: &[Phase]) -> String {
    let mut columns =
        Columns::new(1, &["request", "count", "size", "requests/s", "MiB/s", "p50 ms", "p99 ms", "max ms"]);
    for phase in phases {
        let times = &phase.load.times;
        let ms = |time: Duration| figure(time.as_secs_f64() * 1e3);
        let (size, throughput) = match phase.bytes {
            0 => (String::new(), String::new()),
            bytes => (show_size(bytes), figure(phase.rate() * bytes as f64 / f64::from(1 << 20))),
        };
        columns.line([
            phase.name.to_owned(),
            times.count().to_string(),
            size,
            figure(phase.rate()),
            throughput,
            ms(times.quantile(0.5)),
            ms(times.quantile(0.99)),
            ms(times.longest()),
        ]);
    }
    columns.render()
}

struct Bench<'a> {
    store: &'a BareStore,
    prefix: String,
    options: &'a StoreOptions,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn key(&self, kind: &str, number: u64) -> String {
        format!("{}{kind}-{number}", self.prefix)
    }

    /// Checks the properties that limenfs relies on: an object is read as it was stored, in whole or in part,
    /// is replaced as a whole, is listed, and is absent after it was removed.
    fn check(&self) -> Result<(), CliError> {
        let key = self.key("check", 0);
        let (first, second) = (pattern(1, 100_000), pattern(2, 5000));
        let read = |offset, len| self.store.get(&key, offset, len).map_err(failed);
        let require = |holds: bool, what: &str| match holds {
            true => Ok(()),
            false => Err(CliError::new(format!("the store does not work as limenfs needs it: {what}"))),
        };
        require(read(0, 10)?.is_none(), "it has an object that was not stored")?;
        self.store.put(&key, first.clone()).map_err(failed)?;
        require(read(0, 100_000)? == Some(first.clone()), "an object is not read as it was stored")?;
        require(read(70_000, 20)? == Some(first.slice(70_000..70_020)), "a part of an object is wrong")?;
        require(read(99_990, 50)? == Some(first.slice(99_990..)), "the end of an object is wrong")?;
        self.store.put(&key, second.clone()).map_err(failed)?;
        require(read(0, 100_000)? == Some(second), "an object that was replaced is not read as it is now")?;
        let names = self.store.list(&self.prefix).map_err(failed)?;
        require(names == ["check-0"], "it does not list an object that was stored")?;
        self.store.delete(&key).map_err(failed)?;
        require(read(0, 10)?.is_none(), "an object that was removed is still there")?;
        self.store.delete(&key).map_err(failed)?;
        require(self.store.list(&self.prefix).map_err(failed)?.is_empty(), "it lists removed objects")
    }

    fn measure(&self) -> Result<Vec<Phase>, CliError> {
        let StoreOptions { block_size, blocks, small_size, small, .. } = *self.options;
        let part = PART_BYTES.min(block_size);
        let (large_data, small_data) = (pattern(3, block_size), pattern(4, small_size));
        let put = |kind, data: Bytes| {
            move |number| self.store.put(&self.key(kind, number), data.clone()).map_err(failed)
        };
        let get = |kind, len: u64| {
            move |number: u64| {
                // Read parts at different offsets, as random reads do.
                let offset = (number * 7 % block_size.div_ceil(part)) * part;
                let offset = if len == part && kind == "large" { offset.min(block_size - len) } else { 0 };
                let found = self.store.get(&self.key(kind, number), offset, len as usize).map_err(failed)?;
                match found.is_some_and(|data| data.len() as u64 == len) {
                    true => Ok(()),
                    false => Err(CliError::new("an object that was stored is not there or too short")
                        .at(self.key(kind, number))),
                }
            }
        };
        let delete = |kind| move |number| self.store.delete(&self.key(kind, number)).map_err(failed);
        Ok(vec![
            self.phase("put", blocks, block_size, &put("large", large_data))?,
            self.phase("get", blocks, block_size, &get("large", block_size))?,
            self.phase("get part", blocks, part, &get("large", part))?,
            self.phase("put", small, small_size, &put("small", small_data))?,
            self.phase("get", small, small_size, &get("small", small_size))?,
            self.phase("list", 10, 0, &|_| self.store.list(&self.prefix).map(drop).map_err(failed))?,
            self.phase("delete", blocks, 0, &delete("large"))?,
            self.phase("delete", small, 0, &delete("small"))?,
        ])
    }

    fn phase(
        &self,
        name: &'static str,
        count: u64,
        bytes: u64,
        work: &(dyn Fn(u64) -> Result<(), CliError> + Sync),
    ) -> Result<Phase, CliError> {
        let bar = output::progress_of(name, count);
        let load = load::run(self.options.threads, 0..count, &bar, &|| self.interrupt.check(), work);
        bar.finish_and_clear();
        Ok(Phase { name, load: load?, bytes })
    }

    /// Removes what this run has stored.
    fn clean(&self) -> Result<(), CliError> {
        for name in self.store.list(&self.prefix).map_err(failed)? {
            self.store.delete(&format!("{}{name}", self.prefix)).map_err(failed)?;
        }
        [self.prefix.as_str(), PREFIX]
            .iter()
            .try_for_each(|prefix| self.store.remove_directory(prefix).map_err(failed))
    }
}

fn failed(error: ChunkError) -> CliError {
    CliError::new(error)
}

/// Bytes that no store can compress well.
fn pattern(seed: u64, len: u64) -> Bytes {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while (bytes.len() as u64) < len {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use chunk::{FILE, StorageConfig};

    use super::*;

    #[test]
    fn a_good_store_is_measured_and_left_empty() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = dir.path().join("objects");
        let config =
            StorageConfig { storage: FILE.to_owned(), bucket: bucket.to_string_lossy().into_owned() };
        let store = BareStore::open(&config, true).unwrap();
        let options = StoreOptions {
            block_size: 200_000,
            blocks: 5,
            small_size: 100,
            small: 7,
            threads: 2,
            json: false,
        };
        let interrupt = Interrupt::never();
        let bench =
            Bench { store: &store, prefix: "objbench/t/".into(), options: &options, interrupt: &interrupt };
        bench.check().unwrap();
        let counts: Vec<_> = bench
            .measure()
            .unwrap()
            .iter()
            .map(|phase| (phase.name, phase.load.times.count(), phase.bytes))
            .collect();
        let expected = [
            ("put", 5, 200_000),
            ("get", 5, 200_000),
            ("get part", 5, 65_536),
            ("put", 7, 100),
            ("get", 7, 100),
            ("list", 10, 0),
            ("delete", 5, 0),
            ("delete", 7, 0),
        ];
        assert_eq!(counts, expected);
        store.put("objbench/t/left", Bytes::from_static(b"x")).unwrap();
        bench.clean().unwrap();
        assert_eq!(store.list("objbench/").unwrap(), Vec::<String>::new());
    }
}
