//! The `limen` command: the only crate that names an engine.
//!
//! | module | what it holds |
//! |---|---|
//! | `args`, `help`, `parse` | the command line; its help and errors; values of options that several commands have |
//! | `format`, `mount`, `umount`, `status`, `info`, `config`, `destroy`, `version` | one command each |
//! | `dump`, `load`, `backup` | all metadata of a volume, written to a file or to its object store, and restored from there |
//! | `ls`, `summary`, `access` | listings; sizes of trees; permissions and their reasons |
//! | `quota` | limits of directories, users and groups |
//! | `sid` | rules that map SIDs to uids and gids |
//! | `fsck`, `gc`, with `scrub` | consistency check and repair; removal of unreferenced data |
//! | `clone` | copies of trees by reference |
//! | `trash`, `restore` | removed files: what is kept, and how it is put back |
//! | `rmr`, with `skip_trash`; `warmup` | commands for a path on any file system |
//! | `compact`, `each_file` | rewrites files that have many rows; sends a request to a mount for each file of a tree |
//! | `console` | a local web page with the answers of these commands; its pages are in the crate `console` |
//! | `stats`, `profile` | what a mount does, live; its requests by user, process and file |
//! | `debug` | an archive with what is needed to diagnose a problem |
//! | `bench`, `mdtest`, `objbench` | the benchmarks, whose options and work are in the crate `bench` |
//! | `man` | the manual pages |
//! | `schemes`, `url`, `network`, `target` | metadata URLs and the engines they open; a path on a mount or in a volume |
//! | `options`, `rights` | `-o` of `limen mount`; its options for ids, squashing and listings |
//! | `helper`, `umount_helper`, `boot`, `fstab` | mount(8) calls this program as mount.limen, umount(8) as umount.fuse.limen; `limen mount --update-fstab`; lines of fstab(5) |
//! | `daemon`, `report` | `limen mount -d`: the background process, and what it reports |
//! | `hand_over`, `take_over` | `limen mount --take-over`: the old process, and the new one |
//! | `open` | opening a volume for a client |
//! | `maintenance`, `lock` | exclusive use of a volume by a tool; the lock on a database file |
//! | `sessions`, `records` | the sessions of a volume; single records |
//! | `holders` | which processes hold a mount |
//! | `staged`, `journals` | where mounts on this machine keep blocks that wait for upload; changes that a killed mount had answered and not committed |
//! | `store`, `bucket`, `marker`, `adopt`, `move_store` | opening a volume's object store; its address; whether it is this volume's, and works; taking it over; changing its address |
//! | `secrets`, `public` | passwords off the command line; warnings about files that everyone can read |
//! | `confirm` | asks for confirmation before a change that cannot be undone |
//! | `users`, `sids`, `modes` | names of users and groups; Windows identities; modes in letters |
//! | `log`, `spans` | logs; spans of requests for OpenTelemetry |
//! | `documented` | tests that help texts and documents name what the program accepts |
//!
//! A command's arguments and work are in one file. Code that several commands share, and that names no
//! engine, is in the crate `command`.

mod access;
mod adopt;
mod args;
mod backup;
mod bench;
mod boot;
mod bucket;
mod clone;
mod compact;
mod config;
mod confirm;
mod console;
mod daemon;
mod debug;
mod destroy;
#[cfg(test)]
mod documented;
mod dump;
mod each_file;
mod format;
mod fsck;
mod fstab;
mod gc;
mod hand_over;
mod help;
mod helper;
mod holders;
mod info;
mod journals;
mod load;
mod lock;
mod log;
mod ls;
mod maintenance;
mod man;
mod marker;
mod mdtest;
mod modes;
mod mount;
mod move_store;
mod network;
mod objbench;
mod open;
mod options;
mod parse;
mod profile;
mod public;
mod quota;
mod records;
mod report;
mod restore;
mod rights;
mod rmr;
mod schemes;
mod scrub;
mod secrets;
mod sessions;
mod sid;
mod sids;
mod skip_trash;
#[cfg(feature = "otel")]
mod spans;
mod staged;
mod stats;
mod status;
mod store;
mod summary;
mod take_over;
mod target;
mod trash;
mod umount;
mod umount_helper;
mod url;
mod users;
mod version;
mod warmup;

use std::process::ExitCode;

use command::error::CliError;
use command::output;

use crate::args::Command;

fn main() -> ExitCode {
    // The permissions inside the volume protect its files only if no other user can read its database,
    // objects and logs.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    secrets::hide();
    if let Some(code) = helper::run_if_called() {
        return code;
    }
    match run(help::parse().command) {
        Ok(code) => code,
        Err(error) => {
            if !error.is_reported() {
                output::note(&error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: Command) -> Result<ExitCode, CliError> {
    // A mount sets up its own log. All other commands print to the terminal, and log only if LIMEN_LOG is
    // set.
    if !matches!(command, Command::Mount(_)) {
        log::init("off", None, None)?;
    }
    let done = match command {
        Command::Fsck(args) => return Ok(fsck::run(&args)),
        Command::Ls(args) => return Ok(ls::run(&args)),
        Command::Access(args) => return Ok(access::run(&args)),
        Command::Quota(args) => return quota::run(&args),
        Command::Gc(args) => gc::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Debug(args) => debug::run(&args),
        Command::Destroy(args) => destroy::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Sid(args) => sid::run(&args),
        Command::Summary(args) => summary::run(&args),
        Command::Console(args) => console::run(&args),
        Command::Clone(args) => clone::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Trash(args) => trash::run(&args),
        Command::Rmr(args) => rmr::run(&args),
        Command::Warmup(args) => warmup::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Mdtest(args) => mdtest::run(&args),
        Command::Objbench(args) => objbench::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Man(args) => man::run(&args, help::command()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut help::command(), "limen", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}
