//! `limen access`: why somebody may or may not, and who may what.
//!
//! | module | what it holds |
//! |---|---|
//! | `explain` | one path and one wish, check by check |
//! | `audit` | a whole volume and one user |
//! | `who` | one path and all users |
//! | `whatif` | a change that is only thought of |
//! | `show` | rights, entries and reasons, for people and for programs |

mod audit;
mod explain;
mod show;
mod whatif;
mod who;

use std::process::ExitCode;

use clap::Subcommand;
use inspect::Trouble;

use crate::fault::Fault;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    command: AccessCommand,
}

#[derive(Debug, Subcommand)]
enum AccessCommand {
    /// Say whether somebody may do something with a file, and which entry decides at each directory on the way
    Explain(explain::ExplainArgs),
    /// Say what somebody can reach in a volume, who can reach a file, or what a change would change
    Audit(audit::AuditArgs),
}

pub(crate) fn run(args: &AccessArgs) -> ExitCode {
    let done = match &args.command {
        AccessCommand::Explain(args) => explain::run(args),
        AccessCommand::Audit(args) => audit::run(args),
    };
    done.unwrap_or_else(|fault| {
        if !fault.is_told() {
            output::note(&fault);
        }
        // 1 is an answer: refused.
        ExitCode::from(2)
    })
}

/// Why there is no answer.
fn trouble(error: Trouble) -> Fault {
    Fault::new(error)
}
