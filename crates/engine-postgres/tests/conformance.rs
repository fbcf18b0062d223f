//! The conformance suite on a server of its own: without faults, and with some requests delayed.

mod support;

mod plain {
    suite::conformance!(super::support::empty);
}

mod delayed {
    suite::conformance!(|| {
        let (engine, place) = super::support::empty();
        let fault_rates = suite::FaultRates { delay: 50, delay_us: 300, ..suite::FaultRates::default() };
        let faulty = suite::Faulty::new(engine, 1, fault_rates);
        faulty.arm(true);
        (faulty, place)
    });
}

/// The suite's case `snapshot_records_stay_as_they_were` also passes for an engine that cannot read records
/// as of an earlier moment. This engine can.
#[test]
fn records_of_one_moment_can_be_read() {
    let (engine, _place) = support::empty();
    assert!(meta::Engine::open_snapshot(&engine).unwrap().is_some());
}
