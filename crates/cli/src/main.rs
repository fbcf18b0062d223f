//! The `limen` command: the only crate that names an engine, and the only one that talks to a person.
//!
//! | module | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `format`, `mount`, `umount`, `status`, `info`, `config`, `destroy`, `version` | one command each |
//! | `ls`, `access` | listings; permissions and their reasons |
//! | `fsck`, `gc`, with `scrub` | consistency check and repair; removal of unreferenced data |
//! | `rmr`, `warmup`, `bench` | commands for any mounted path |
//! | `mdtest` | the metadata benchmark, without a mount |
//! | `url`, `network`, `target` | metadata URLs and the engines they open; a path on a mount or in a volume |
//! | `options`, `rights` | `-o` of `limen mount`; its options for ids, squashing and listings |
//! | `daemon` | `limen mount -d`: the background process, which reports when it serves |
//! | `maintenance` | exclusive use of a volume by a tool |
//! | `holders` | which processes hold a mount |
//! | `registry` | which process serves which mount on this machine |
//! | `staged` | where mounts on this machine keep blocks that wait for upload |
//! | `statistics` | what a mount reports about its work |
//! | `pool`, `interrupt` | tree walks by several threads; Ctrl-C |
//! | `store`, `marker` | opening a volume's object store; whether a store is this volume's, and works |
//! | `process`, `paths` | processes by id and start time; where a user's files are |
//! | `users`, `modes` | names of users and groups; modes in letters |
//! | `log`, `output`, `units`, `fault` | logs, printed output, sizes, error messages |

mod access;
mod args;
mod bench;
mod config;
mod daemon;
mod destroy;
mod fault;
mod format;
mod fsck;
mod gc;
mod holders;
mod info;
mod interrupt;
mod log;
mod ls;
mod maintenance;
mod marker;
mod mdtest;
mod modes;
mod mount;
mod network;
mod options;
mod output;
mod paths;
mod pool;
mod process;
mod registry;
mod rights;
mod rmr;
mod scrub;
mod staged;
mod statistics;
mod status;
mod store;
mod target;
mod umount;
mod units;
mod url;
mod users;
mod version;
mod warmup;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};
use crate::fault::Fault;

fn main() -> ExitCode {
    // Only the permissions inside the volume protect its files, so no other user may read its database,
    // objects and logs.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(fault) => {
            if !fault.is_told() {
                output::note(&fault);
            }
            ExitCode::from(fault.exit_code())
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Fault> {
    // A mount sets up its own log. All other commands print to the terminal, and log only if LIMEN_LOG is
    // set.
    if !matches!(command, Command::Mount(_)) {
        log::init("off", None)?;
    }
    let done = match command {
        Command::Fsck(args) => return Ok(fsck::run(&args)),
        Command::Ls(args) => return Ok(ls::run(&args)),
        Command::Access(args) => return Ok(access::run(&args)),
        Command::Gc(args) => gc::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Destroy(args) => destroy::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Rmr(args) => rmr::run(&args),
        Command::Warmup(args) => warmup::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Mdtest(args) => mdtest::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "limen", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}
