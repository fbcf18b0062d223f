//! Development tasks: `cargo xtask tidy`.
//!
//! Style is a test, not a wish: what ARCHITECTURE.md promises of the layering and what the house style asks of every
//! file is checked here, without dependencies, so that it costs seconds.

mod manifest;
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

/// Runs every check on the checkout this program was built from and prints one line a problem.
fn report() -> ExitCode {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match tidy::check(top) {
        Ok(summary) if summary.problems.is_empty() => {
            println!("tidy: {} crates, {} files, nothing to do", summary.crates, summary.files);
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
