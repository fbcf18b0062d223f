//! `limen bench PATH`: the operations, alone or in alternation with the mount in memory, and the big file.

use std::path::PathBuf;

use command::fault::Fault;
use command::interrupt::Interrupt;
use command::output;
use command::statistics::own_cpu;
use serde_json::{Map, Value, json};

use crate::big::{self, VolumeOf};
use crate::floor::Floor;
use crate::load::Load;
use crate::place::Place;
use crate::series::{Row, Series};
use crate::table::{Columns, figure, round};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory on the file system to measure.
    pub path: PathBuf,
    pub load: Load,
    pub rounds: usize,
    /// Whether to alternate with a mount in memory.
    pub floor: bool,
    /// The size of the big file, if there is to be one.
    pub big_bytes: Option<u64>,
    /// The directory to compare the big file with.
    pub store: Option<PathBuf>,
    pub json: bool,
}

/// Runs the benchmark and prints its results. `volume_of` finds the objects of the volume, with which the big
/// file is compared.
///
/// # Errors
/// The file system or the mount in memory fails; the user interrupted the command.
pub fn run(args: &Options, volume_of: VolumeOf<'_>, interrupt: &Interrupt) -> Result<(), Fault> {
    let place = Place::make(&args.path)?;
    let floor = if args.floor { Some(Floor::mount()?) } else { None };
    let floor_place = floor.as_ref().and_then(Floor::place);

    let places = 1 + u64::from(args.floor);
    let bar = output::steps(args.rounds as u64 * places);
    let (mut here, mut there) = (Series::default(), Series::default());
    for place in [Some(&place), floor_place].into_iter().flatten() {
        place.warm_up(&args.load, interrupt)?;
    }
    for number in 0..args.rounds {
        let name = number.to_string();
        here.add(place.round(&name, &args.load, &bar, interrupt, |_| Ok(()))?);
        if let Some(floor) = floor_place {
            there.add(floor.round(&name, &args.load, &bar, interrupt, |_| Ok(()))?);
        }
    }
    bar.finish_and_clear();
    let big = match args.big_bytes {
        Some(bytes) => {
            let beside = big::Beside { store: args.store.as_deref(), volume_of };
            Some(big::run(&place, bytes, &beside, args.rounds, interrupt)?)
        }
        None => None,
    };
    let floor_series = floor_place.map(|_| &there);
    if args.json {
        let mut value = to_json(args, &place, &here, floor_series);
        if let Some(big) = &big {
            value["big"] = big.to_json();
        }
        return output::print_json(&value);
    }
    let mut text = heading(args, &place);
    text += &to_text(&here, floor_series);
    if let Some(big) = &big {
        text.push('\n');
        text += &big.to_text();
    }
    output::print(&text)
}

fn heading(args: &Options, place: &Place) -> String {
    let volume = place.probe.entry().map_or_else(String::new, |entry| {
        format!(", volume '{}' served by process {}", entry.volume, entry.process.pid)
    });
    format!(
        "{}{volume}: {} files, {} threads, medians of {} rounds\n\n",
        args.path.display(),
        args.load.files,
        args.load.threads,
        args.rounds
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
    let mut columns = Columns::new(&head);
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

fn to_json(args: &Options, place: &Place, here: &Series, floor: Option<&Series>) -> Value {
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
        "path": args.path.to_string_lossy(),
        "volume": place.probe.entry().map(|entry| &entry.volume),
        "threads": args.load.threads,
        "files": args.load.files,
        "rounds": args.rounds,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "operations": here.rows().iter().map(operation).collect::<Vec<_>>(),
        "took_turns_with_floor": floor.is_some(),
        "seconds_cpu": round(own_cpu().as_secs_f64()),
    })
}
