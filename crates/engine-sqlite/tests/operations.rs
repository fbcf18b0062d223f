//! The rules of the operations, on a database in a temporary directory, with the exclusive lock.

use engine_sqlite::{Options, SqliteEngine};

suite::operations!(without_stream, || {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { create: true, ..Options::default() };
    let engine = SqliteEngine::open(&directory.path().join("v.db"), &options).unwrap();
    let lock = engine.lock_exclusive().unwrap();
    (engine, (directory, lock))
});
