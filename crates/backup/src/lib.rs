//! Backups of a volume's metadata in its own object store: dumps, cut into parts.
//!
//! | module | content |
//! |---|---|
//! | `manifest` | what can be read about a backup without its key |
//! | `write` | makes a backup |
//! | `read` | reads a backup as a dump |
//! | `thin` | which old backups are removed |
//! | `schedule` | the thread of a mount that makes backups |
//!
//! The store is enough to restore a volume: the manifest of a backup says how it is encrypted, and the dump
//! has all other settings. The layout of the objects is in `chunk/src/backups.rs`.
//!
//! A backup shows one moment, as every dump does. The blocks that it refers to may no longer exist when it is
//! restored, because blocks that no file refers to are removed even if an older backup refers to them.

mod manifest;
mod read;
mod schedule;
mod thin;
mod write;

pub use manifest::Manifest;
pub use read::open;
pub use schedule::{Backups, CheckOwner};
pub use thin::remove_old;
pub use write::create;

#[cfg(test)]
mod tests;
