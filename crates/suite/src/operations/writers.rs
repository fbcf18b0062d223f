//! Hundreds of concurrent writers, through several clients, in shared directories, on a volume with a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meta::{Batching, Counting, Engine, Volume};
use types::{Errno, Ino};

use super::case::Factory;
use super::fixture::{Client, REPLACE, ROOT, client, client_of, volume};
use super::invariants::check;
use crate::rng::split_mix;

/// The number of writers, the duration, and the limit.
#[derive(Clone, Copy, Debug)]
pub struct Writers {
    pub clients: usize,
    pub threads_each: usize,
    /// How long the writers run. On a slow machine they run longer, until they have done [`FEWEST`]
    /// operations each on average.
    pub time: Duration,
    /// The maximum number of inodes of the volume; further creates fail.
    pub max_inodes: u64,
}

/// The work that the writers did.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub operations: u64,
    /// Operations that failed with ENOSPC. They count in `operations` too.
    pub without_room: u64,
    /// Requests to the engine: reads and transactions, including transactions that were planned again after a
    /// conflict.
    pub asked: u64,
    /// The round trips for these requests.
    pub round_trips: u64,
    pub took: Duration,
}

/// The maximum number of commit requests of one client in flight, as in a mount.
const MAX_IN_FLIGHT: usize = 2;
/// The shared directories: this number in the root, and as many in each of them.
const DIRS: usize = 4;
/// The maximum number of inodes that a client creates.
const INODES: u64 = 100_000_000;
/// The minimum number of operations per writer, on average, so that the reads into empty caches at the
/// beginning are a small part of all requests.
const FEWEST: u64 = 16;
/// The maximum number of files of one writer.
const FILES: usize = 40;

/// Runs writers that randomly create, move and remove names, most of them their own, in shared directories.
/// Each call of `open` returns an engine on the same database, which has no records at first.
///
/// # Panics
/// The engine fails, an operation fails with an unexpected errno, or the volume is not consistent at the end,
/// including its usage.
pub fn writers(open: Factory<'_>, of: Writers) -> Written {
    let first = open();
    Volume { max_inodes: of.max_inodes, ..volume() }.format(&*first).unwrap();
    let engines: Vec<_> = (0..of.clients).map(|_| Arc::new(Counting::new(open()))).collect();
    let asked: Vec<_> = engines
        .iter()
        .map(|engine| Arc::new(Counting::new(Batching::new(Arc::clone(engine), MAX_IN_FLIGHT))))
        .collect();
    let clients: Vec<Client> =
        asked.iter().map(|engine| client_of(&(Arc::clone(engine) as Arc<dyn Engine>), INODES)).collect();
    let mut dirs = Vec::new();
    for top in 0..DIRS {
        let top = clients[0].mkdir(ROOT, &format!("top{top}")).unwrap();
        dirs.push(top);
        dirs.extend((0..DIRS).map(|dir| clients[0].mkdir(top, &format!("dir{dir}")).unwrap()));
    }
    let (operations, without_room) = (AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let fewest = FEWEST * (of.clients * of.threads_each) as u64;
    std::thread::scope(|scope| {
        for number in 0..of.clients * of.threads_each {
            let (client, dirs) = (&clients[number % of.clients], &dirs);
            let (operations, without_room) = (&operations, &without_room);
            scope.spawn(move || {
                let mut writer =
                    Writer { client, dirs, number, seed: number as u64, made: 0, files: Vec::new() };
                let done = || operations.load(Ordering::Relaxed) + without_room.load(Ordering::Relaxed);
                while began.elapsed() < of.time || done() < fewest {
                    match writer.step() {
                        Ok(done) => operations.fetch_add(done, Ordering::Relaxed),
                        Err(Errno::ENOSPC) => without_room.fetch_add(1, Ordering::Relaxed),
                        Err(errno) => panic!("writer {number}: {errno}"),
                    };
                }
            });
        }
    });
    let took = began.elapsed();
    check(&client(&first));
    let without_room = without_room.into_inner();
    Written {
        operations: operations.into_inner() + without_room,
        without_room,
        asked: asked.iter().map(|engine| engine.counts()).map(|counts| counts.reads + counts.txns).sum(),
        round_trips: engines.iter().map(|engine| engine.counts().round_trips()).sum(),
        took,
    }
}

struct Writer<'a> {
    client: &'a Client,
    dirs: &'a [Ino],
    number: usize,
    seed: u64,
    /// The number of names created so far.
    made: u64,
    files: Vec<(Ino, String)>,
}

impl Writer<'_> {
    fn draw(&mut self, below: usize) -> usize {
        (split_mix(&mut self.seed) % below as u64) as usize
    }

    fn dir(&mut self) -> Ino {
        self.dirs[self.draw(self.dirs.len())]
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("{}.{}", self.number, self.made)
    }

    /// Runs one step, and returns its number of operations.
    fn step(&mut self) -> Result<u64, Errno> {
        let dir = self.dir();
        match self.draw(100) {
            0..45 if self.files.len() < FILES => {
                let name = self.new_name();
                self.client.create(dir, &name)?;
                self.files.push((dir, name));
            }
            45..65 if !self.files.is_empty() => {
                let at = self.draw(self.files.len());
                let (from, old) = self.files[at].clone();
                let name = self.new_name();
                self.client.rename(from, &old, dir, &name, REPLACE)?;
                self.files[at] = (dir, name);
            }
            65..70 => {
                let name = self.new_name();
                self.client.mkdir(dir, &name)?;
                self.client.rmdir(dir, &name)?;
                return Ok(2);
            }
            // Other writers use these names too.
            70..80 => {
                let (name, to) = (format!("shared{}", self.draw(20)), self.dir());
                let done = match self.draw(3) {
                    0 => self.client.create(dir, &name).map(drop),
                    1 => self.client.rename(dir, &name, to, &name, REPLACE).map(drop),
                    _ => self.client.unlink(dir, &name).map(drop),
                };
                match done {
                    Err(Errno::EEXIST | Errno::ENOENT) => {}
                    done => done?,
                }
            }
            _ if self.files.is_empty() => return Ok(0),
            _ => {
                let at = self.draw(self.files.len());
                let (dir, name) = self.files.swap_remove(at);
                self.client.unlink(dir, &name)?;
            }
        }
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::MemEngine;

    #[test]
    fn writers_keep_the_volume_consistent() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        let of = Writers { clients: 2, threads_each: 8, time: Duration::from_millis(200), max_inodes: 100 };
        let written = writers(&|| engine.clone(), of);
        assert!(written.operations > 0 && written.without_room > 0, "{written:?}");
        assert!(written.asked >= written.operations / 2, "{written:?}");
    }
}
