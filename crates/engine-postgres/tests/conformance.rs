//! The conformance suite on a server of its own: without faults, and with some requests delayed.

mod support;

mod plain {
    suite::conformance!(super::support::empty);
}

mod delayed {
    suite::conformance!(|| {
        let (engine, place) = super::support::empty();
        let fault_rates = meta::FaultRates { delay: 50, delay_us: 300, ..meta::FaultRates::default() };
        let faulty = meta::Faulty::new(engine, 1, fault_rates);
        faulty.arm(true);
        (faulty, place)
    });
}
