//! The rules of the operations, on a database in a temporary directory.

use engine_sqlite::{Options, SqliteEngine};

meta::ops_suite!(|| {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { create: true, ..Options::default() };
    (SqliteEngine::open(&directory.path().join("v.db"), &options).unwrap(), directory)
});
