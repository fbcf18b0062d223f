//! The conformance suite with delayed requests. The tests of the operations inject their own faults.

mod support;

suite::conformance!(|| {
    let (engine, server) = support::empty();
    let fault_rates = meta::FaultRates { delay: 50, delay_us: 200, ..meta::FaultRates::default() };
    let faulty = meta::Faulty::new(engine, 1, fault_rates);
    faulty.arm(true);
    (faulty, server)
});
