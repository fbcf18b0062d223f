//! The conformance suite on a database in a temporary directory, with and without the exclusive lock.

use engine_sqlite::{Options, SqliteEngine};
use tempfile::TempDir;

fn new() -> (SqliteEngine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { create: true, ..Options::default() };
    (SqliteEngine::open(&directory.path().join("v.db"), &options).unwrap(), directory)
}

mod exclusive {
    suite::conformance!(without_stream, || {
        let (engine, directory) = super::new();
        let lock = engine.lock_exclusive().unwrap();
        (engine, (directory, lock))
    });
}

mod shared {
    suite::conformance!(without_stream, super::new);
}

/// The suite's case `snapshot_records_stay_as_they_were` also passes for an engine that cannot read records
/// as of an earlier moment. This engine can.
#[test]
fn records_of_one_moment_can_be_read() {
    let (engine, _directory) = new();
    assert!(meta::Engine::open_snapshot(&engine).unwrap().is_some());
}
