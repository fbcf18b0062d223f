//! Indeterminate operations: a request without a reply may still arrive.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::Failure;
use meta::{Engine, ErrorKind};
use ops::{GetSlices, GetWaits, MakeKind, UnlinkOutcome, Write};
use types::{ChunkIndex, Errno, Ino, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, KERNEL, REPLACE, ROOT, blocks, client, volume};
use super::invariants::check;
use crate::faulty::{Fault, FaultRates, Faulty};

pub(super) const CASES: &[Case] = &[
    ("an_error_after_an_indeterminate_attempt_is_final", an_error_after_an_indeterminate_attempt_is_final),
    (
        "a_success_without_effect_after_an_indeterminate_attempt_is_final",
        a_success_without_effect_after_an_indeterminate_attempt_is_final,
    ),
    (
        "a_late_attempt_before_the_error_is_recorded_succeeds",
        a_late_attempt_before_the_error_is_recorded_succeeds,
    ),
    (
        "the_reply_of_an_operation_in_doubt_is_that_of_the_plan_that_was_committed",
        the_reply_of_an_operation_in_doubt_is_that_of_the_plan_that_was_committed,
    ),
    ("work_in_doubt_continues_under_its_operation_id", work_in_doubt_continues_under_its_operation_id),
    (
        "a_canceled_operation_happened_before_or_never_does",
        a_canceled_operation_happened_before_or_never_does,
    ),
    (
        "nothing_is_retried_after_its_result_may_be_dropped",
        nothing_is_retried_after_its_result_may_be_dropped,
    ),
];

type Unreliable = Arc<Faulty<Arc<dyn Engine>>>;

/// A client whose requests can hang, and another one without faults.
fn start(factory: Factory<'_>) -> (Client, Unreliable, Arc<Mutex<Client>>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let faulty = Arc::new(Faulty::new(engine.clone(), 1, FaultRates::default()));
    let own = client(&(faulty.clone() as Arc<dyn Engine>));
    own.lookup(ROOT, "d").unwrap();
    faulty.arm(true);
    (own, faulty, Arc::new(Mutex::new(client(&engine))))
}

fn an_error_after_an_indeterminate_attempt_is_final(factory: Factory<'_>) {
    let (own, faulty, rival) = start(factory);
    faulty.set_rival({
        let rival = rival.clone();
        move |_| {
            rival.lock().unwrap().create(ROOT, "d").unwrap();
        }
    });
    // The first attempt hangs, and another client takes the name before the second one.
    faulty.script([Fault::Late, Fault::Rival]);
    assert_eq!(own.mkdir(ROOT, "d"), Err(Errno::EEXIST));
    // When the first attempt arrives, all its guards would hold again.
    rival.lock().unwrap().unlink(ROOT, "d").unwrap();
    faulty.deliver().unwrap();
    assert_eq!(own.stranger().lookup(ROOT, "d"), Ok(None));
    check(&own);
}

fn a_success_without_effect_after_an_indeterminate_attempt_is_final(factory: Factory<'_>) {
    let (own, faulty, rival) = start(factory);
    let f = own.create(ROOT, "f").unwrap();
    faulty.set_rival({
        let rival = rival.clone();
        move |_| rival.lock().unwrap().link(f, ROOT, "d").unwrap()
    });
    // Before the second attempt, both names refer to one file: the rename does nothing, and succeeds.
    faulty.script([Fault::Late, Fault::Rival]);
    assert!(own.rename(ROOT, "f", ROOT, "d", REPLACE).is_ok());
    rival.lock().unwrap().unlink(ROOT, "d").unwrap();
    faulty.deliver().unwrap();
    assert!(own.stranger().lookup(ROOT, "f").unwrap().is_some());
    check(&own);
}

fn a_late_attempt_before_the_error_is_recorded_succeeds(factory: Factory<'_>) {
    let (own, faulty, rival) = start(factory);
    let mut turn = 0;
    faulty.set_rival({
        let (rival, late) = (rival.clone(), Arc::downgrade(&faulty));
        move |_| {
            turn += 1;
            let rival = rival.lock().unwrap();
            if turn == 1 {
                rival.create(ROOT, "d").unwrap();
            } else {
                rival.unlink(ROOT, "d").unwrap();
                late.upgrade().unwrap().deliver().unwrap();
            }
        }
    });
    // The first attempt arrives before the error "the name exists" is recorded.
    faulty.script([Fault::Late, Fault::Rival, Fault::Rival]);
    let made = own.make(ROOT, "d", MakeKind::Directory, 0o777).unwrap();
    assert_eq!(own.stranger().at(ROOT, "d").ino, made.ino);
    assert_eq!(own.at(ROOT, "d").ino, made.ino);
    check(&own);
}

fn the_reply_of_an_operation_in_doubt_is_that_of_the_plan_that_was_committed(factory: Factory<'_>) {
    for first_arrives in [true, false] {
        let (own, faulty, rival) = start(factory);
        let first = own.create(ROOT, "f").unwrap();
        own.link(first, ROOT, "other").unwrap();
        let second = own.create(ROOT, "g").unwrap();
        let mut turn = 0;
        faulty.set_rival({
            let late = Arc::downgrade(&faulty);
            move |_| {
                turn += 1;
                let rival = rival.lock().unwrap();
                match turn {
                    // The name now refers to another file.
                    1 => drop(rival.rename(ROOT, "g", ROOT, "f", REPLACE).unwrap()),
                    // All guards of the first plan hold again, and it arrives before the second plan.
                    _ if first_arrives => {
                        rival.rename(ROOT, "f", ROOT, "g", REPLACE).unwrap();
                        rival.link(first, ROOT, "f").unwrap();
                        late.upgrade().unwrap().deliver().unwrap();
                    }
                    _ => {}
                }
            }
        });
        own.at(ROOT, "f");
        // If the first plan does not arrive, the answer to the second one is lost.
        let last = if first_arrives { Fault::Rival } else { Fault::After };
        faulty.script([Fault::Late, Fault::Rival, last]);
        let unlinked = own.unlink(ROOT, "f").unwrap();
        faulty.deliver().unwrap();
        let expected =
            if first_arrives { (first, UnlinkOutcome::Linked) } else { (second, UnlinkOutcome::Removed) };
        assert_eq!((unlinked.inode.ino, unlinked.outcome), expected);
        let names =
            ["f", "g", "other"].map(|name| own.stranger().lookup(ROOT, name).unwrap().map(|it| it.ino));
        assert_eq!(names, [None, first_arrives.then_some(second), Some(first)]);
        assert!(own.stranger().run(&GetWaits).unwrap().is_empty(), "the marks are removed");
        check(&own);
    }
}

fn work_in_doubt_continues_under_its_operation_id(factory: Factory<'_>) {
    let (own, faulty, _) = start(factory);
    own.meta.set_retry_timeout(Duration::ZERO);
    let rows = |ino: Ino| own.stranger().run(&GetSlices { ino, chunk: ChunkIndex(0) }).unwrap().len();
    for (number, name, arrives_first) in [(1, "a", true), (2, "b", false)] {
        let ino = own.create(ROOT, name).unwrap();
        let slices = vec![(ChunkIndex(0), blocks(0, 10, number))];
        let write = Write { ino, slices, end: 10, mtime: Time::now() };
        let mut in_doubt = None;
        faulty.script([Fault::Late]);
        let failure = own.meta.run_once(&write, &KERNEL, &mut in_doubt).unwrap_err();
        let Failure::Engine(error) = failure else { panic!("{failure}") };
        assert!(error.kind == ErrorKind::Indeterminate && in_doubt.is_some(), "{error}");
        if arrives_first {
            faulty.deliver().unwrap();
        }
        own.meta.run_once(&write, &KERNEL, &mut in_doubt).unwrap();
        assert!(in_doubt.is_none());
        faulty.deliver().unwrap();
        assert_eq!((rows(ino), own.inode(ino).size), (1, 10));
    }
    check(&own);
}

fn a_canceled_operation_happened_before_or_never_does(factory: Factory<'_>) {
    for arrives_first in [true, false] {
        let (own, faulty, _) = start(factory);
        own.meta.set_retry_timeout(Duration::ZERO);
        let make = own.make_op(ROOT, "d", MakeKind::Directory, 0o777);
        let mut in_doubt = None;
        faulty.script([Fault::Late]);
        assert!(own.meta.run_cancelable(&make, &KERNEL, &mut in_doubt).is_err());
        if arrives_first {
            faulty.deliver().unwrap();
        }
        // The first cancellation is itself in doubt; the second one succeeds.
        faulty.script([Fault::After]);
        assert!(own.meta.cancel(&mut in_doubt).is_err() && in_doubt.is_some());
        assert_eq!(own.meta.cancel(&mut in_doubt).unwrap().is_some(), arrives_first);
        faulty.deliver().unwrap();
        assert_eq!(own.stranger().lookup(ROOT, "d").unwrap().is_some(), arrives_first);
        assert!(own.stranger().run(&GetWaits).unwrap().is_empty(), "the mark is removed");
        check(&own);
    }
}

fn nothing_is_retried_after_its_result_may_be_dropped(factory: Factory<'_>) {
    let (own, faulty, _) = start(factory);
    own.meta.set_retry_timeout(Duration::from_secs(3600));
    own.meta.set_repeat_for(Duration::ZERO);
    let before = faulty.injected();
    faulty.script([Fault::Late, Fault::Late]);
    let make = own.make_op(ROOT, "d", MakeKind::Directory, 0o777);
    let failure = own.meta.run(&make, &KERNEL).unwrap_err();
    let Failure::Engine(error) = failure else { panic!("{failure}") };
    assert_eq!((error.kind, faulty.injected() - before), (ErrorKind::Indeterminate, 1));
    // An operation that is not in doubt is retried as long as the mount permits.
    faulty.script([Fault::Before, Fault::Before]);
    own.mkdir(ROOT, "e").unwrap();
    check(&own);
}
