//! Writers add to a volume up to its limit; their reads and writes are interleaved at random. The values that
//! a writer has read may be out of date when it writes, as on a network.

mod support;

use meta::{Effect, Guard, Txn};
use support::{Client, Step, file, store, txn};
use types::Ino;

fn room(max_inodes: u64) -> Vec<Guard> {
    vec![Guard::Room { max_inodes, max_blocks: u64::MAX }]
}

/// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

#[test]
fn far_from_the_limit_writers_do_not_conflict() {
    let mut store = store();
    let mut clients: Vec<Client> = (1..5).map(Client::new).collect();
    let mut next = 10;
    let mut create = || {
        next += 1;
        txn(next, room(100_000), vec![file(next)])
    };
    for client in &mut clients {
        assert_eq!(client.commit(&mut store, &create()), Step::Done);
    }
    let (before, limit_reads): (u64, u64) = (clients.iter().map(|client| client.retries).sum(), 4);
    for _ in 0..300 {
        for client in &mut clients {
            // The commit takes a single step, although the others have written in the meantime.
            assert_eq!(client.step(&mut store, &create()), Step::Done);
        }
    }
    assert_eq!(clients.iter().map(|client| client.retries).sum::<u64>(), before);
    assert_eq!(clients.iter().map(|client| client.limit_reads).sum::<u64>(), limit_reads);
    assert_eq!(store.inodes(), 4 + 4 * 300);
}

#[test]
fn no_order_of_reads_and_writes_exceeds_a_limit() {
    const LIMIT: u64 = 6000;
    const WRITERS: u64 = 6;
    for seed in 0..3 {
        println!("seed {seed}");
        let mut random = seed;
        let mut store = store();
        let mut clients: Vec<Client> = (1..=WRITERS).map(Client::new).collect();
        // Some of the space is used already.
        let there = txn(1, Vec::new(), vec![Effect::AddUsage { inodes: LIMIT as i64 - 5000, blocks: 0 }]);
        assert_eq!(clients[0].commit(&mut store, &there), Step::Done);
        let (mut next, mut op) = (10, 10);
        let mut under_way: Vec<Option<(Txn, Option<u64>)>> = vec![None; clients.len()];
        let mut files: Vec<Vec<u64>> = vec![Vec::new(); clients.len()];
        let mut refused = 0;
        // Continue after the volume is full.
        while refused < 300 {
            let at = draw(&mut random, WRITERS) as usize;
            let (now, made) = under_way[at].take().unwrap_or_else(|| {
                (next, op) = (next + 1, op + 1);
                match draw(&mut random, 100) {
                    0..9 if !files[at].is_empty() => {
                        let gone = files[at].swap_remove(0);
                        (txn(op, Vec::new(), vec![Effect::DropInode { ino: Ino(gone) }]), None)
                    }
                    // Some transactions have a lower limit; while the usage is far below the limit, some have
                    // none.
                    9..12 => (txn(op, room(LIMIT - 500), vec![file(next)]), Some(next)),
                    12 if store.inodes() < LIMIT - 600 => (txn(op, Vec::new(), vec![file(next)]), Some(next)),
                    _ => (txn(op, room(LIMIT), vec![file(next)]), Some(next)),
                }
            });
            match clients[at].step(&mut store, &now) {
                Step::Done => files[at].extend(made),
                Step::Refused => refused += 1,
                Step::Read | Step::Beaten => under_way[at] = Some((now, made)),
            }
            assert!(store.inodes() <= LIMIT);
        }
        let left: u64 = LIMIT - store.inodes();
        for client in &mut clients {
            for _ in 0..left {
                next += 1;
                client.commit(&mut store, &txn(next + 1_000_000, room(LIMIT), vec![file(next)]));
            }
        }
        assert_eq!(store.inodes(), LIMIT, "all of the space can be used");
    }
}

#[test]
fn writers_with_different_limits_get_reservations() {
    let mut store = store();
    let (mut maker, mut writer) = (Client::new(1), Client::new(2));
    let limits = (100_000, 10_000_000);
    let create = |ino| {
        let guards = vec![Guard::Room { max_inodes: limits.0, max_blocks: limits.1 }];
        txn(ino, guards, vec![file(ino)])
    };
    let write = |op, size: u64| {
        let guards = vec![Guard::Room { max_inodes: u64::MAX, max_blocks: limits.1 - 1 }];
        txn(op, guards, vec![Effect::Extend { ino: Ino(10), size }])
    };
    assert_eq!(writer.commit(&mut store, &txn(10, Vec::new(), vec![file(10)])), Step::Done);
    for round in 1..4 {
        assert_eq!(writer.commit(&mut store, &write(round, 8192 + round * 4096)), Step::Done);
        assert_eq!(maker.commit(&mut store, &create(20 + round)), Step::Done);
    }
    let before = (writer.retries + maker.retries, writer.limit_reads + maker.limit_reads);
    for round in 100..200 {
        assert_eq!(writer.step(&mut store, &write(round, 8192 + round * 4096)), Step::Done);
        assert_eq!(maker.step(&mut store, &create(1000 + round)), Step::Done);
    }
    assert_eq!((writer.retries + maker.retries, writer.limit_reads + maker.limit_reads), before);
}

#[test]
fn outdated_reads_are_detected() {
    const LIMIT: u64 = 5000;
    let mut store = store();
    let [mut early, mut late, mut busy] = [1, 2, 3].map(Client::new);
    let create = |ino| txn(ino, room(LIMIT), vec![file(ino)]);
    // One client has read the shards before there were reservations, and one after.
    assert_eq!(early.step(&mut store, &create(10)), Step::Read);
    assert_eq!(busy.commit(&mut store, &create(11)), Step::Done);
    assert_eq!(late.step(&mut store, &create(12)), Step::Read);
    for ino in 13.. {
        if busy.commit(&mut store, &create(ino)) != Step::Done {
            break;
        }
    }
    assert_eq!(store.inodes(), LIMIT);
    for (client, ino) in [(&mut early, 10), (&mut late, 12)] {
        assert_eq!(client.step(&mut store, &create(ino)), Step::Beaten);
        assert_eq!(client.commit(&mut store, &create(ino)), Step::Refused);
    }
}

#[test]
fn usage_added_without_reservations_is_detected() {
    const LIMIT: u64 = 5000;
    let mut store = store();
    let [mut early, mut free] = [1, 2].map(Client::new);
    let create = txn(10, room(LIMIT), vec![file(10)]);
    assert_eq!(early.step(&mut store, &create), Step::Read);
    for ino in 0..LIMIT {
        assert_eq!(free.commit(&mut store, &txn(ino + 11, Vec::new(), vec![file(ino + 11)])), Step::Done);
    }
    assert_eq!(early.step(&mut store, &create), Step::Beaten);
    assert_eq!(early.commit(&mut store, &create), Step::Refused);
}

#[test]
fn a_writer_without_a_limit_ends_all_reservations() {
    let mut store = store();
    let [mut sharing, mut free] = [1, 2].map(Client::new);
    let limited = |ino| txn(ino, room(100_000), vec![file(ino)]);
    let unlimited = |ino| txn(ino, Vec::new(), vec![file(ino)]);
    assert_eq!(free.commit(&mut store, &unlimited(10)), Step::Done);
    assert_eq!(sharing.commit(&mut store, &limited(11)), Step::Done);
    assert_eq!(sharing.step(&mut store, &limited(12)), Step::Done);
    assert_eq!(free.step(&mut store, &unlimited(13)), Step::Beaten);
    assert_eq!(free.commit(&mut store, &unlimited(13)), Step::Done);
    assert_eq!(free.step(&mut store, &unlimited(14)), Step::Done, "the reservations have ended");
    assert_eq!(sharing.step(&mut store, &limited(15)), Step::Beaten);
    assert_eq!(sharing.commit(&mut store, &limited(15)), Step::Done);
    assert_eq!(store.inodes(), 6);
}
