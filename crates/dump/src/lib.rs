//! Dumps: all records of a volume as one stream, for a backup, or to load into any engine.
//!
//! # Format
//!
//! A dump is lines of JSON, one record each ([`Line`]), in this order:
//!
//! 1. `dump`: the version and the id of the dump;
//! 2. settings, counters, ACLs;
//! 3. inodes by number, each followed by its xattrs and its symlink target or rows of chunks; a directory by
//!    its entries in bytewise order;
//! 4. the counts of shared slices;
//! 5. quotas, with the usage of the inodes of the dump;
//! 6. `end`: the totals, and a checksum of all lines.
//!
//! Bytes that are not UTF-8 are written as `base64:` and their base64. With `--json` these lines are the
//! dump. Otherwise they are compressed:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `limendmp` |
//! | 4 | the version; all numbers are little-endian |
//! | | frames, until the end: |
//! | 4 | the compressed length |
//! | 4 | the uncompressed length |
//! | 4 | CRC-32C of the frame's number (8 bytes), both lengths and the compressed lines |
//! | | one or more whole lines, compressed by zstd |
//!
//! Settings, ACLs, xattrs, chunks, shared slices and quotas are in order too (`order.rs`), so no record
//! occurs twice. The first inode is the root directory.
//!
//! A reader fails on a version that it does not know, on an unknown record or field, and if anything is
//! missing, changed or moved. A change of the format that an older limen cannot read increases [`VERSION`].
//!
//! # What is left out
//!
//! - Sessions, locks and the results of operations: no mount of the loaded volume knows them.
//! - Unlinked files that are open, unfinished copies of trees, and the list of garbage. `limen gc` finds
//!   their objects, because nothing refers to them.
//! - ACLs that are stored during the dump and that nothing uses any more at its end.
//! - Data that a mount has not stored yet.
//!
//! # One moment
//!
//! All records are of one moment. SQLite, PostgreSQL and MariaDB keep a snapshot for as long as the dump
//! takes ([`Engine::open_snapshot`](meta::Engine::open_snapshot)). etcd and TiKV keep one for a short time
//! only, and Redis keeps no old records. On these three, a dump reads changed records again until few are
//! left. It reads the last ones as of a snapshot on etcd and TiKV, and with one request on Redis (`live.rs`).
//!
//! # Loading
//!
//! The dump is read and checked as a whole before the first change. Records are stored in transactions. Each
//! transaction also updates the setting [`LOADING`](meta::Volume::LOADING), which names the dump and the
//! number of lines that are stored, and is guarded by its previous value. So each line is stored once,
//! however often the load is killed, and two loads cannot mix. The last transaction stores the volume's
//! settings and counters. Before it there is no volume, so nothing can mount, check or change it.
//!
//! # Two databases and one store
//!
//! File data stays in the object store, and the loaded volume has the same id. If the old and the new
//! database were both used, each would remove objects that the other needs. So a load gives the volume a new
//! value of the setting [`Volume::loaded`](meta::Volume::loaded), and the marker in the store must name this
//! value. Until `limen config --adopt-store` changes the marker, the loaded volume cannot be mounted or
//! collected, or destroyed with its objects. After that, the same holds for the volume in the old database.
//! Before the marker is changed, the counter of slices is raised above all numbers that the old database can
//! have given out since the dump.

mod compare;
mod counts;
mod error;
mod line;
mod live;
mod load;
mod order;
mod records;
mod stream;
mod write;

pub use compare::compare;
pub use error::DumpError;
pub use line::{Bytes, FirstLine, InodeLine, LastLine, Line, QuotaLine, RowLine, SlicePart, TypeName};
pub use live::dump_live;
pub use load::{CheckedDump, check, discard, load};
pub use records::{Live, dump};
pub use stream::{Form, Reader, Writer};
pub use write::{scratch, write};

/// The version of the format. This build reads this version and older ones. Version 1 has no quotas.
pub const VERSION: u32 = 2;

/// The first bytes of a compressed dump.
const MAGIC: &[u8; 8] = b"limendmp";

#[cfg(test)]
mod tests;
