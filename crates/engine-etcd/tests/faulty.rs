//! The conformance suite where requests are late; those of the operations bring their own faults.

mod support;

suite::conformance!(|| {
    let (engine, server) = support::empty();
    let odds = meta::Odds { delay: 50, delay_us: 200, ..meta::Odds::default() };
    let faulty = meta::Faulty::new(engine, 1, odds);
    faulty.arm(true);
    (faulty, server)
});
