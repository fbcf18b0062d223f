//! The rules of the operations on a server of its own, also where requests fail.

mod support;

meta::ops_suite!(support::empty);

mod faulty {
    meta::ops_suite!(|| {
        let (engine, place) = super::support::empty();
        let odds = meta::Odds { before: 10, after: 10, delay: 10, rival: 0, delay_us: 100 };
        let faulty = meta::Faulty::new(engine, 7, odds);
        faulty.arm(true);
        (faulty, place)
    });
}
