//! Code shared by the engines on SQL servers: it builds records from the rows of a reply, and rows from
//! records, and it orders effects so that statements can apply them. Pure: nothing here talks to a server.
//!
//! A row of a reply is a *fact*: its kind, its numbers and its byte strings. A record without facts in the
//! reply is absent.
//!
//! | | fact | numbers | byte strings |
//! |---|---|---|---|
//! | 1 | inode | ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, access_rev, xattr_blocks | access ACL, default ACL; their texts, if they were read |
//! | 2 | dirent | parent, ino, kind | name |
//! | 3 | a directory is not empty | ino | |
//! | 4 | extended attribute | ino | name, value |
//! | 5 | symlink | ino | target |
//! | 6 | row of a chunk | ino, chunk, pos, len, slice, slice_off, slice_size; its position, if rows are not ordered | data |
//! | 7 | ACL | | id, text |
//! | 8, 9 | setting; counter | ; value | name, value; name |
//! | 10 | usage | inodes, blocks | |
//! | 11, 12 | lock; waiting lock request | ino, first, last, session, owner, kind, exclusive, pid | |
//! | 13 | session | id, pid, since, heartbeat, pid_namespace, start_time, first_slice | host, mountpoint, boot_id, version |
//! | 14, 15, 16 | orphan; garbage; shared slice | session, ino; slice, size; slice, extra | |
//! | 17 | dirent and its inode, which may be absent | those of 2, then those of 1 | those of 2, then those of 1 |
//!
//! | module | content |
//! |---|---|
//! | `fact`, `values` | the values of a fact; those of a record |
//! | `found` | answers record keys from facts |
//! | `page` | answers scans from facts |
//! | `table`, `scan` | the tables whose rows are facts; scans as statements |
//! | `line` | the rows of a record key, and the rows that an effect puts and removes |
//! | `part` | the inodes and names of guards and effects; the locks of transactions; their effects on inodes |
//! | `text`, `literal` | helpers for the texts of statements |
//! | `layer` | stages: the effects that statements may apply together, and the changes of an inode's row |

mod fact;
mod found;
mod line;
pub mod literal;
mod page;
mod part;
mod scan;
mod stage;
mod table;
mod text;
pub mod values;

pub use fact::{Fact, Malformed, Row};
pub use found::{Found, want};
pub use line::{Line, put, removed, wanted};
pub use page::page;
pub use part::{Locks, follow, free, holder, inode, made, named, puts_free_names};
pub use scan::{Arg, Select, select};
pub use stage::{Change, Size, Stage, Sum, stages};
pub use table::Table;
pub use text::{fill, hex, joined, list};
