//! Hundreds of concurrent writers, through several clients, below nested quotas that are resized and moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meta::{Batching, Engine, QuotaKey};
use ops::QuotaLimits;
use types::{Errno, Ino};

use super::case::Factory;
use super::fixture::{Client, REPLACE, ROOT, client, client_of, volume};
use super::invariants::check;
use crate::rng::split_mix;

/// The number of writers, and the duration.
#[derive(Clone, Copy, Debug)]
pub struct QuotaWriters {
    pub clients: usize,
    pub threads_each: usize,
    pub time: Duration,
}

/// The work that the writers did.
#[derive(Clone, Copy, Debug)]
pub struct QuotaWritten {
    /// Operations that succeeded.
    pub operations: u64,
    /// Operations that failed with EDQUOT.
    pub over_quota: u64,
    pub resizes: u64,
    pub moves: u64,
}

/// The number of commits of one client in flight, as in a mount.
const MAX_IN_FLIGHT: usize = 2;
/// The maximum number of inodes that a client creates.
const INODES: u64 = 100_000_000;
/// The maximum number of files of one writer. The files of all writers together exceed the limits.
const FILES: usize = 8;
/// The limit of each nested quota, in inodes and also in blocks. The second quota is resized to half of its
/// limit and back.
const LIMITS: [u64; 4] = [400, 240, 120, 40];
/// The quota of the user as which every second client acts, and its limit.
const USER: QuotaKey = QuotaKey::User(7);
const USER_LIMIT: u64 = 200;

/// Runs writers that create, write, truncate, move and remove files, in directories of four nested quotas and
/// outside. They act as two users; one of them has a quota. Meanwhile one quota is resized, and the directory
/// of another one moved. Each call of `open` returns another engine on the same database, which has no
/// records at first.
///
/// # Panics
/// The engine fails, an operation fails with an unexpected errno, a quota counts more than its hard limit, or
/// the volume is not consistent at the end, including the counters of the quotas.
pub fn quota_writers(open: Factory<'_>, of: QuotaWriters) -> QuotaWritten {
    let first = open();
    volume().format(&*first).unwrap();
    let tool = client(&first);
    let mut clients: Vec<Client> = Vec::new();
    for number in 0..of.clients {
        let engine: Arc<dyn Engine> = Arc::new(Batching::new(open(), MAX_IN_FLIGHT));
        let mut client = client_of(&engine, INODES);
        client.uid = 7 + (number % 2) as u32;
        clients.push(client);
    }
    let (mut dirs, mut keys) = (vec![ROOT, tool.mkdir(ROOT, "outside").unwrap()], Vec::new());
    let mut parent = ROOT;
    for (number, limit) in LIMITS.into_iter().enumerate() {
        parent = tool.mkdir(parent, &format!("quota{number}")).unwrap();
        let id = tool.meta.set_directory_quota(parent, both(limit), &mut |_| true).unwrap();
        keys.push(QuotaKey::Directory(id));
        dirs.push(parent);
    }
    tool.meta.set_owner_quota(USER, both(USER_LIMIT), &mut |_| true).unwrap();
    let quotas = Quotas { resized: dirs[3], places: [dirs[3], tool.mkdir(dirs[3], "place").unwrap()], keys };
    let (operations, over_quota) = (AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let (resizes, moves) = std::thread::scope(|scope| {
        for number in 0..of.clients * of.threads_each {
            let (client, dirs) = (&clients[number % of.clients], &dirs[..]);
            let (operations, over_quota) = (&operations, &over_quota);
            scope.spawn(move || {
                let (files, seed) = (Vec::new(), number as u64);
                let mut writer = Writer { client, dirs, number, seed, made: 0, files };
                while began.elapsed() < of.time {
                    match writer.step() {
                        Ok(()) => operations.fetch_add(1, Ordering::Relaxed),
                        Err(Errno::EDQUOT) => over_quota.fetch_add(1, Ordering::Relaxed),
                        Err(errno) => panic!("writer {number}: {errno}"),
                    };
                }
            });
        }
        quotas.change(&tool, || began.elapsed() < of.time)
    });
    quotas.check(&tool, LIMITS[1]);
    check(&client(&first));
    QuotaWritten { operations: operations.into_inner(), over_quota: over_quota.into_inner(), resizes, moves }
}

/// A limit for inodes and for blocks.
fn both(limit: u64) -> QuotaLimits {
    QuotaLimits { max_inodes: Some(limit), max_blocks: Some(limit), ..QuotaLimits::default() }
}

/// The quotas of the volume.
struct Quotas {
    /// The directory of the second quota.
    resized: Ino,
    /// Two directories in the second quota, between which the directory of the third quota is moved.
    places: [Ino; 2],
    keys: Vec<QuotaKey>,
}

impl Quotas {
    /// Resizes and moves while `goes_on` returns true. Returns the numbers of resizes and of moves.
    fn change(&self, tool: &Client, goes_on: impl Fn() -> bool) -> (u64, u64) {
        let (mut resizes, mut moves) = (0, 0);
        while goes_on() {
            let limit = if resizes % 2 == 0 { LIMITS[1] / 2 } else { LIMITS[1] };
            tool.meta.set_directory_quota(self.resized, both(limit), &mut |_| true).unwrap();
            resizes += 1;
            // The quota may count more than a limit that was lowered, but from then on nothing is added.
            let most = self.check(tool, LIMITS[1]).max(limit);
            let [from, to] = if moves % 2 == 0 { self.places } else { [self.places[1], self.places[0]] };
            tool.rename(from, "quota2", to, "quota2", REPLACE).unwrap();
            moves += 1;
            for _ in 0..4 {
                self.check(tool, most);
            }
        }
        (resizes, moves)
    }

    /// Checks that no quota counts more than its limit, which is `limit` for the second quota. Returns the
    /// usage of the second quota.
    fn check(&self, tool: &Client, limit: u64) -> u64 {
        let mut counted = 0;
        for (key, quota) in tool.meta.quotas().unwrap() {
            let used = quota.inodes.max(quota.blocks);
            assert!(quota.inodes >= 0 && quota.blocks >= 0, "{key:?} {quota:?}");
            let limit = match self.keys.iter().position(|own| *own == key) {
                Some(1) => {
                    counted = used.unsigned_abs();
                    limit
                }
                Some(at) => LIMITS[at],
                None if key == USER => USER_LIMIT,
                None => continue,
            };
            assert!(used.unsigned_abs() <= limit, "more than {limit}: {key:?} {quota:?}");
        }
        counted
    }
}

struct Writer<'a> {
    client: &'a Client,
    dirs: &'a [Ino],
    number: usize,
    seed: u64,
    /// The number of names created so far.
    made: u64,
    files: Vec<(Ino, String, Ino)>,
}

impl Writer<'_> {
    fn draw(&mut self, below: usize) -> usize {
        (split_mix(&mut self.seed) % below as u64) as usize
    }

    fn step(&mut self) -> Result<(), Errno> {
        let dir = self.dirs[self.draw(self.dirs.len())];
        let what = self.draw(100);
        if what < 35 && self.files.len() < FILES || self.files.is_empty() {
            self.made += 1;
            let name = format!("{}.{}", self.number, self.made);
            let file = self.client.create(dir, &name)?;
            self.files.push((dir, name, file));
            return Ok(());
        }
        let at = self.draw(self.files.len());
        let (from, name, file) = self.files[at].clone();
        match what {
            0..55 => self.client.write(file, 0, 1 + self.draw(3 * 4096) as u32, self.made)?,
            55..65 => self.client.truncate(file, self.draw(2 * 4096) as u64)?,
            65..80 => {
                self.client.rename(from, &name, dir, &name, REPLACE)?;
                self.files[at].0 = dir;
            }
            _ => {
                self.client.unlink(from, &name)?;
                self.files.swap_remove(at);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::MemEngine;

    #[test]
    fn writers_below_quotas_keep_the_volume_consistent() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        let of = QuotaWriters { clients: 4, threads_each: 32, time: Duration::from_millis(500) };
        let written = quota_writers(&|| engine.clone(), of);
        assert!(written.operations > 0 && written.over_quota > 0 && written.moves > 1, "{written:?}");
    }
}
