//! Dumps: all records of a volume as one stream, to keep, or to load into any engine.
//!
//! # Format
//!
//! A dump is lines of JSON, one record each ([`Line`]), in this order: `dump` (version and id), settings, counters, ACLs,
//! then the inodes by number, each followed by what is stored with it (xattrs, symlink target, rows of chunks) and, if
//! it is a directory, by its entries in bytewise order, then the counts of shared slices, and `end` with the totals and a
//! checksum of all lines. Bytes that are not UTF-8 are base64 after `base64:`. With `--json` these lines are the dump.
//! Otherwise they are packed:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `limendmp` |
//! | 4 | the version; all numbers are little-endian |
//! | | frames, until the end: |
//! | 4, 4, 4 | the length of the packed lines; that of the lines; CRC-32C of the frame's number (8 bytes), both lengths and the packed lines |
//! | | one or more whole lines, packed by zstd |
//!
//! A reader fails on a version that it does not know, on an unknown record or field, and if anything is missing, changed
//! or moved. A change of the format that an older limen cannot read increases [`VERSION`].
//!
//! # What is left out
//!
//! Sessions, locks and the results of operations, because no mount of the loaded volume knows them. Unlinked files that
//! are open, and the list of garbage: `limen gc` finds their objects, which nothing refers to. ACLs that nothing uses any
//! more, if they were stored during the dump. Data that a mount has not stored yet.
//!
//! # One moment
//!
//! All records are of one moment. SQLite, PostgreSQL and MariaDB provide that themselves
//! ([`Engine::frozen`](meta::Engine::frozen)), for as long as the dump takes. Redis keeps no old records, and etcd and TiKV
//! remove them after a minute, because each mount asks them to. For these a dump reads again what changes while it
//! reads, until the rest is read with one request (`live.rs`).
//!
//! # Loading
//!
//! The dump is read and checked as a whole before the first change. Records are stored in transactions; each also moves
//! the setting [`LOADING`](meta::Volume::LOADING), which names the dump and the number of lines that are stored, and is
//! guarded by its previous value. So each line is stored once, however often the load is killed, and two loads cannot
//! mix. The volume's settings and counters are stored by the last transaction. Before it there is no volume, so nothing
//! can mount, check or change it.
//!
//! # Two databases and one store
//!
//! File data stays in the object store, and the loaded volume has the same id. If both databases were used, each would
//! remove objects that the other needs. So a load gives the volume a new value of the setting
//! [`Volume::loaded`](meta::Volume::loaded), which the marker in the store must name too: the loaded volume can be neither
//! mounted, collected nor destroyed with its objects until `limen config --adopt-store` changes the marker, and from
//! then on this is true for the other database.

mod compare;
mod error;
mod line;
mod live;
mod load;
mod records;
mod stream;

pub use compare::compare;
pub use error::DumpError;
pub use line::{Bytes, Head, InodeLine, Kind, Line, Row, Stored, Tail};
pub use live::dump_live;
pub use load::{Checked, check, load};
pub use records::{Live, dump};
pub use stream::{Form, Reader, Writer};

/// The version of the format. This build reads no newer one.
pub const VERSION: u32 = 1;

/// The first bytes of a packed dump.
const MAGIC: &[u8; 8] = b"limendmp";

#[cfg(test)]
mod tests;
