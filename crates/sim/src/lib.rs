//! A deterministic simulator of several clients of one volume.
//!
//! Each thread of a client is a real thread that runs the real `client::Meta`. It stops at each request to
//! the engine, and a scheduler with a seed decides which thread runs next and what happens to its request. So
//! one thread runs at a time, the engine in memory defines the order of all commits, and the same seed gives
//! the same history. At the end, the history is replayed in that order on a small model of a tree, and every
//! reply, every inode and every byte is compared.
//!
//! Time is simulated: the scheduler controls the clocks and the sleeps of a client ([`host::sim`]).
//! `docs/testing.md` says what is covered.

mod act;
mod check;
mod client;
mod cut;
mod machine;
mod model;
mod mounts;
mod mutant;
mod port;
mod quotas;
mod rng;
mod scan;
mod schedule;
mod shared;
mod shorten;
mod shown;
mod upkeep;
mod worker;
mod world;
mod xattrs;

pub use mounts::run_mounts;
pub use mutant::Mutant;
pub use schedule::{History, run};
pub use shorten::{shorten, shorten_mounts};
