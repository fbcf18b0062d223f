//! The conformance suite on a server of its own: with anonymous blocks, as on MariaDB, and with the stored
//! procedure, as on MySQL.

mod support;

suite::conformance!(support::empty);

mod routine {
    suite::conformance!(|| super::support::empty_with("routine=always"));
}

/// The suite's case `snapshot_records_stay_as_they_were` also passes for an engine that cannot read records
/// as of an earlier moment. This engine can.
#[test]
fn records_of_one_moment_can_be_read() {
    let (engine, _place) = support::empty();
    assert!(meta::Engine::open_snapshot(&engine).unwrap().is_some());
}
