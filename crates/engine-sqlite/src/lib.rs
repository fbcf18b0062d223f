//! engine-sqlite
