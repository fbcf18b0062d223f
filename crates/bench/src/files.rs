//! `limen bench PATH`: measures file operations, alone or in alternation with a mount in memory, and one big
//! file.

use std::path::{Path, PathBuf};

use clap::ValueHint;
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output::{self, Columns};
use command::statistics::own_cpu;
use command::units::parse_size;
use serde_json::{Map, Value, json};
use types::counted;

use crate::big::{self, VolumeOf};
use crate::figure::{figure, round};
use crate::floor::Floor;
use crate::load::{Load, parse_rounds};
use crate::scratch::Scratch;
use crate::series::{Row, Series};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    load: Load,
    /// Number of rounds; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "3")]
    rounds: usize,
    /// Also measure a mount in memory, in alternation, and show the share of its speed that is reached
    #[arg(long)]
    floor: bool,
    /// Also write and read one file of this size, and compare with the directory of the mount's objects
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    big: Option<u64>,
    /// The directory to compare the big file with [default: the parent directory of the volume's bucket]
    #[arg(long, value_name = "DIR", requires = "big", value_hint = ValueHint::DirPath)]
    store: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark in `path`, and prints its results.
///
/// # Errors
/// The file system or the mount in memory fails; the user interrupted the command.
pub(crate) fn run(
    path: &Path,
    args: &Options,
    volume_of: VolumeOf<'_>,
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    let scratch = Scratch::make(path)?;
    let floor = if args.floor { Some(Floor::mount()?) } else { None };
    let floor_scratch = floor.as_ref().and_then(Floor::scratch);

    let places = 1 + u64::from(args.floor);
    let bar = output::steps(args.rounds as u64 * places);
    let (mut here, mut there) = (Series::default(), Series::default());
    for scratch in [Some(&scratch), floor_scratch].into_iter().flatten() {
        scratch.warm_up(&args.load, interrupt)?;
    }
    for number in 0..args.rounds {
        let name = number.to_string();
        here.add(scratch.round(&name, &args.load, &bar, interrupt, |_| Ok(()))?);
        if let Some(floor) = floor_scratch {
            there.add(floor.round(&name, &args.load, &bar, interrupt, |_| Ok(()))?);
        }
    }
    bar.finish_and_clear();
    let big = match args.big {
        Some(bytes) => {
            Some(big::run(&scratch, bytes, args.store.as_deref(), volume_of, args.rounds, interrupt)?)
        }
        None => None,
    };
    let floor = floor_scratch.map(|_| &there);
    let json = || {
        let mut value = to_json(path, args, &scratch, &here, floor);
        if let Some(big) = &big {
            value["big"] = big.to_json();
        }
        value
    };
    let text = || {
        let big = big.as_ref().map_or_else(String::new, |big| format!("\n{}", big.to_text()));
        heading(path, args, &scratch) + &to_text(&here, floor) + &big
    };
    output::result(args.json, json, text)
}

fn heading(path: &Path, args: &Options, scratch: &Scratch) -> String {
    let volume = scratch.probe.entry().map_or_else(String::new, |entry| {
        let transport = scratch.probe.transport().map_or_else(String::new, |name| format!(" over {name}"));
        format!(", volume '{}' served by process {}{transport}", entry.volume, entry.process.pid)
    });
    format!(
        "{}{volume}: {}, {}, medians of {}\n\n",
        path.display(),
        counted(args.load.files, "file", "files"),
        counted(args.load.threads, "thread", "threads"),
        counted(args.rounds, "round", "rounds")
    )
}

fn to_text(here: &Series, floor: Option<&Series>) -> String {
    let rows = here.rows();
    let ours = rows.iter().any(|row| row.mount.is_some());
    let mut head = vec!["operation", "ops/s", "min", "max", "CPU us/op"];
    if ours {
        head.extend(["mount us/op", "requests/op", "trips/op"]);
    }
    if floor.is_some() {
        head.extend(["floor ops/s", "floor us/op", "share %"]);
    }
    let mut columns = Columns::new(1, &head);
    for row in &rows {
        let mut cells = vec![row.op.name().to_owned()];
        let rate = row.rate;
        cells.extend([rate.median, rate.min, rate.max].map(|rate| format!("{rate:.0}")));
        cells.push(figure(row.cpu_us));
        if let Some(mount) = &row.mount {
            cells.extend([mount.cpu_us, mount.requests, mount.round_trips].map(figure));
        }
        if let Some((floor, other)) = floor.and_then(|floor| Some((floor, floor.row(row.op)?))) {
            cells.push(format!("{:.0}", other.rate.median));
            cells.push(other.mount.map_or_else(String::new, |mount| figure(mount.cpu_us)));
            cells.push(figure(here.share(row.op, floor).median));
        }
        columns.line(cells);
    }
    columns.render()
}

fn to_json(path: &Path, args: &Options, scratch: &Scratch, here: &Series, floor: Option<&Series>) -> Value {
    let operation = |row: &Row| -> Map<String, Value> {
        let mut value = row.to_json();
        if let Some((floor, other)) = floor.and_then(|floor| Some((floor, floor.row(row.op)?))) {
            value.insert("floor".into(), other.to_json().into());
            value.insert("share_pct".into(), here.share(row.op, floor).to_json());
        }
        value
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "path": path.to_string_lossy(),
        "volume": scratch.probe.entry().map(|entry| &entry.volume),
        "transport": scratch.probe.transport(),
        "threads": args.load.threads,
        "files": args.load.files,
        "rounds": args.rounds,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "operations": here.rows().iter().map(operation).collect::<Vec<_>>(),
        "took_turns_with_floor": floor.is_some(),
        "seconds_cpu": round(own_cpu().as_secs_f64()),
    })
}
