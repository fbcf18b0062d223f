//! Many threads in two shared directories.

use std::sync::Arc;

use types::Ino;

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, NO_REPLACE, REPLACE, ROOT, client, fresh};
use super::invariants::{check, inodes};
use crate::rng::split_mix;

pub(super) const CASES: &[Case] = &[
    ("threads_of_one_client_keep_the_volume_consistent", threads_of_one_client_keep_the_volume_consistent),
    ("threads_of_two_clients_keep_the_volume_consistent", threads_of_two_clients_keep_the_volume_consistent),
];

const THREADS: u64 = 8;
const STEPS: u64 = 150;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn threads_of_one_client_keep_the_volume_consistent(factory: Factory<'_>) {
    let c = Arc::new(fresh(factory));
    run(&[&c]);
    let dirs = dirs(&c);
    let stranger = c.stranger();
    // With exclusive use the cache is authoritative: check it before anything else is read.
    for &dir in &dirs {
        for name in NAMES {
            assert_eq!(c.lookup(dir, name), stranger.lookup(dir, name), "{name} in {dir}");
        }
    }
    for (ino, inode) in inodes(c.engine()) {
        assert_eq!(c.inode(ino), inode);
        assert_eq!(stranger.inode(ino), inode);
    }
}

fn threads_of_two_clients_keep_the_volume_consistent(factory: Factory<'_>) {
    let a = Arc::new(fresh(factory));
    a.meta.set_exclusive(false);
    let b = Arc::new(client(a.engine()));
    run(&[&a, &b]);
}

fn dirs(c: &Client) -> Vec<Ino> {
    inodes(c.engine()).values().filter(|inode| inode.kind.is_dir()).map(|inode| inode.ino).collect()
}

/// Each thread randomly creates, links, moves and removes names in two shared directories.
fn run(clients: &[&Arc<Client>]) {
    let shared = clients[0].mkdir(ROOT, "shared").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let c = clients[thread as usize % clients.len()];
            scope.spawn(move || {
                let mut seed = thread;
                for _ in 0..STEPS {
                    step(c, &mut seed, [ROOT, shared]);
                }
            });
        }
    });
    check(clients[0]);
}

fn step(c: &Client, seed: &mut u64, dirs: [Ino; 2]) {
    let mut draw = |below: usize| (split_mix(seed) % below as u64) as usize;
    let (dir, to) = (dirs[draw(2)], dirs[draw(2)]);
    let (name, new_name) = (NAMES[draw(6)], NAMES[draw(6)]);
    let flags = [REPLACE, REPLACE, NO_REPLACE, EXCHANGE][draw(4)];
    // The success of these operations depends on the other threads; the invariants do not.
    match draw(10) {
        0..3 => drop(c.create(dir, name)),
        3 => drop(c.mkdir(dir, name)),
        4 => drop(c.unlink(dir, name)),
        5 => drop(c.rmdir(dir, name)),
        6 => {
            if let Ok(Some(inode)) = c.lookup(dir, name) {
                let _ = c.link(inode.ino, to, new_name);
            }
        }
        7 => {
            if let Ok(Some(inode)) = c.lookup(dir, name) {
                let _ = (c.chmod(inode.ino, 0o700), c.truncate(inode.ino, 5000));
            }
        }
        _ => drop(c.rename(dir, name, to, new_name, flags)),
    }
}
