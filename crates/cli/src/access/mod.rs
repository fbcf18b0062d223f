//! `limen access`: explains access decisions, and lists who has access.
//!
//! | module | what it holds |
//! |---|---|
//! | `explain` | one access to one path, check by check |
//! | `audit` | the access of one user to a whole volume |
//! | `who` | the access of all users to one path |
//! | `whatif` | hypothetical changes of ACLs, modes, owners and groups |
//! | `show` | permissions, entries and reasons as text and JSON |

pub(crate) mod audit;
mod explain;
pub(crate) mod show;
pub(crate) mod whatif;
pub(crate) mod who;

use std::process::ExitCode;

use clap::Subcommand;
use command::output;

#[derive(Debug, clap::Args)]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    command: AccessCommand,
}

#[derive(Debug, Subcommand)]
enum AccessCommand {
    /// Show whether a user can access a file, and which entry decides at each directory on the path
    Explain(explain::ExplainArgs),
    /// Show what a user can access in a volume, who can access a file, or the effect of a change
    Audit(audit::AuditArgs),
}

pub(crate) fn run(args: &AccessArgs) -> ExitCode {
    let done = match &args.command {
        AccessCommand::Explain(args) => explain::run(args),
        AccessCommand::Audit(args) => audit::run(args),
    };
    done.unwrap_or_else(|error| {
        if !error.is_reported() {
            output::note(&error);
        }
        // Not 1: exit code 1 means that access is denied.
        ExitCode::from(2)
    })
}
