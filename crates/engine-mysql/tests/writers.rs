//! Hundreds of concurrent writers cause no deadlock and few retries, and the counters of nested quotas stay
//! exact. If `LIMEN_LONG` is set, each test runs for ten minutes; `LIMEN_LONG_SECONDS` sets another time for
//! the second one. Without `LIMEN_LONG`, the first test runs for a few seconds, and the second one is
//! skipped.

mod support;

use std::time::Duration;

use engine_mysql::MysqlEngine;
use mysql::prelude::Queryable;
use suite::operations::{QuotaWriters, Writers, keep, quota_writers, writers};
use support::{LONG_TIMEOUTS, Server};

#[test]
fn hundreds_of_writers_meet_in_no_deadlock() {
    let server = Server::fast();
    let seconds = if std::env::var_os("LIMEN_LONG").is_some() { 300 } else { 4 };
    // The limit is first above the number of inodes, then below it.
    for max_inodes in [1_000_000, 500] {
        let url = server.url(&format!("table_prefix=w{max_inodes}_&{LONG_TIMEOUTS}"));
        let open = || keep((MysqlEngine::open(&url, true).unwrap(), ()));
        let time = Duration::from_secs(seconds);
        let written = writers(&open, Writers { clients: 8, threads_each: 32, time, max_inodes });
        println!("at most {max_inodes} inodes: {written:?}");
        assert!(written.asked <= written.operations * 3 / 2, "too many retries: {written:?}");
    }
    assert_eq!(deadlocks(&server), Some(0));
}

#[test]
fn hundreds_of_writers_below_nested_quotas_count_exactly() {
    let Some(time) = skip::long_time() else { return };
    let server = Server::fast();
    let url = server.url(&format!("table_prefix=q_&{LONG_TIMEOUTS}"));
    let open = || keep((MysqlEngine::open(&url, true).unwrap(), ()));
    let written = quota_writers(&open, QuotaWriters { clients: 8, threads_each: 32, time });
    println!("{written:?}");
    assert!(written.over_quota > 0 && written.resizes > 10 && written.moves > 10, "{written:?}");
    assert_eq!(deadlocks(&server), Some(0));
}

fn deadlocks(server: &Server) -> Option<u64> {
    const DEADLOCKS: &str =
        "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'";
    server.root().query_first(DEADLOCKS).unwrap()
}
