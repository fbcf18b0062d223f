//! The conformance suite on a server of its own, plain and with requests that take longer than others.

mod support;

mod plain {
    suite::conformance!(super::support::empty);
}

mod delayed {
    suite::conformance!(|| {
        let (engine, place) = super::support::empty();
        let odds = meta::Odds { delay: 50, delay_us: 300, ..meta::Odds::default() };
        let faulty = meta::Faulty::new(engine, 1, odds);
        faulty.arm(true);
        (faulty, place)
    });
}
