//! Development tasks: `cargo xtask tidy`.
//!
//! Checks the layering of ARCHITECTURE.md and the style rules that every file must follow. This program has
//! no dependencies, so that it is built and run in seconds.
//!
//! | module | what it checks |
//! |---|---|
//! | `graph` | the table of crates in ARCHITECTURE.md against the manifests |
//! | `manifest` | one `Cargo.toml` |
//! | `circles` | that the files of a crate import each other in one direction |
//! | `names` | that two crates have no public types of the same name |
//! | `source`, `language`, `host_only` | one file; words and commit subjects; clocks and threads |
//! | `documents` | that Markdown files name existing files and tests |
//! | `tidy`, `problem` | the walk through the workspace; a broken rule |

mod circles;
mod documents;
mod graph;
mod host_only;
mod language;
mod manifest;
mod names;
mod problem;
mod source;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("tidy"), None) => report(),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}

/// Runs every check on the checkout from which this program was built. Prints each problem.
fn report() -> ExitCode {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match tidy::check(top) {
        Ok(summary) if summary.problems.is_empty() => {
            println!("tidy: {} crates, {} files, no problems", summary.crates, summary.files);
            ExitCode::SUCCESS
        }
        Ok(summary) => {
            for problem in &summary.problems {
                eprintln!("{problem}");
            }
            eprintln!("tidy: {} problems", summary.problems.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}
