//! `limen destroy`: removes a volume's objects, then its records, then its database.

use std::io::{self, IsTerminal, Write};

use meta::{EngineError, Volume};

use crate::args::DestroyArgs;
use crate::fault::Fault;
use crate::mount;
use crate::output;
use crate::staged;
use crate::status::{usage, used_bytes};
use crate::store::{open_closed, store_fault};
use crate::units::show_size;
use crate::url::{self, MetaUrl};

pub(crate) fn run(args: &DestroyArgs) -> Result<(), Fault> {
    let url = MetaUrl::parse(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let engine = database.engine();
    let failed = |error: EngineError| Fault::new(error).at(&url);
    let lock = mount::lock(&url, &database, false)?;
    let usage = usage(&*engine).map_err(failed)?;
    if !args.yes {
        confirm(&volume, usage.inodes, &show_size(used_bytes(&usage)))?;
    }
    // The objects first: should this be interrupted, the volume is still there to be destroyed again.
    let bar = output::progress("objects removed");
    let mut removed = 0;
    let destroyed = open_closed(&volume)?.destroy(&mut |count| {
        removed = count;
        bar.set_position(count);
    });
    bar.finish_and_clear();
    destroyed
        .map_err(|error| store_fault(&volume, &error).advise("nothing else was removed; run it again"))?;
    staged::forget(&volume);
    engine.wipe().map_err(failed)?;
    drop(engine);
    drop(database);
    if let MetaUrl::Sqlite(path) = &url {
        url::remove_database(path)?;
    }
    drop(lock);
    output::print(&format!("Volume '{}' is gone, and {removed} objects with it.\n", volume.name))
}

/// Lets the person type the volume's name.
fn confirm(volume: &Volume, inodes: u64, data: &str) -> Result<(), Fault> {
    let fail = |error: io::Error| Fault::new(format!("cannot ask: {error}"));
    let name = &volume.name;
    if !io::stdin().is_terminal() {
        return Err(Fault::usage(format!(
            "volume '{name}' with {inodes} inodes and {data} would be removed"
        ))
        .advise("say --yes if that is meant"));
    }
    let mut terminal = io::stderr();
    write!(
        terminal,
        "This removes volume '{name}' with {inodes} inodes and {data} for good.\nType its name: "
    )
    .and_then(|()| terminal.flush())
    .map_err(fail)?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed).map_err(fail)?;
    match typed.trim() == name {
        true => Ok(()),
        false => Err(Fault::new("that is not its name: nothing was removed").at(name)),
    }
}
