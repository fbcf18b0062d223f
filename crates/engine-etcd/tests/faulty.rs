//! The conformance suite with delayed requests. The tests of the operations inject their own faults.

mod support;

suite::conformance!(|| {
    let (engine, server) = support::empty();
    let fault_rates = suite::FaultRates { delay: 50, delay_us: 200, ..suite::FaultRates::default() };
    let faulty = suite::Faulty::new(engine, 1, fault_rates);
    faulty.arm(true);
    (faulty, server)
});
