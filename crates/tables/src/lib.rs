//! Code shared by the engines on SQL databases (SQLite, PostgreSQL, MySQL): it builds records from the rows
//! of a reply, and rows from records, and it orders effects so that statements can apply them. Nothing here
//! talks to a database.
//!
//! A row of a reply has a [`kind`], numbers and byte strings. A record without rows in the reply is absent.
//!
//! | kind | row | numbers | byte strings |
//! |---|---|---|---|
//! | `INODE` | inode | ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, access_rev, xattr_blocks, quota tag | access ACL, default ACL; their texts, if they were read |
//! | `DIRENT` | dirent | parent, ino, kind | name |
//! | `NOT_EMPTY` | a directory is not empty | ino | |
//! | `XATTR` | extended attribute | ino | name, value |
//! | `SYMLINK` | symlink | ino | target |
//! | `SLICE` | row of a chunk | ino, chunk, pos, len, slice, slice_off, slice_size; its position, if rows are not ordered | data |
//! | `ACL` | ACL | | id, text |
//! | `SETTING`, `COUNTER` | setting; counter | ; value | name, value; name |
//! | `USAGE` | usage | inodes, blocks | |
//! | `LOCK`, `LOCK_WAIT` | lock; waiting lock request | ino, first, last, session, owner, kind, exclusive, pid | |
//! | `SESSION` | session | id, pid, since, heartbeat, pid_namespace, start_time, first_slice | host, mountpoint, boot_id, version |
//! | `ORPHAN`, `GARBAGE`, `SHARED` | orphan; garbage; shared slice | session, ino; slice, size; slice, extra | |
//! | `QUOTA` | quota | kind and number of its key, outer quota, the hard and soft limits, root, state; inodes, blocks | |
//! | `DIRENT_WITH_INODE` | dirent and its inode, which may be absent | those of both | those of both |
//!
//! | module | content |
//! |---|---|
//! | `kind`, `reply` | the kinds of the rows of replies; their values |
//! | `values` | the values of records as stored in columns |
//! | `content` | answers record keys from the rows of a reply |
//! | `page` | answers scans from the rows of a reply |
//! | `table`, `scan`, `source` | the tables and their columns; scans as statements; the columns of selects |
//! | `line` | the rows of a record key, and the rows that an effect puts and removes |
//! | `part` | inodes, names and sessions of guards and effects; locks of transactions; changed inodes |
//! | `text`, `literal` | helpers for the texts of statements |
//! | `stage` | stages: effects that statements may apply together; the combined change of an inode's row |

mod content;
pub mod kind;
mod line;
pub mod literal;
mod page;
mod part;
mod reply;
mod scan;
mod source;
mod stage;
mod table;
mod text;
pub mod values;

pub use content::{ReplyContent, kind_of};
pub use line::{Line, put, removed, row_key};
pub use page::PageBuilder;
pub use part::{LockSet, follow, free, holder, made, named, puts_free_names};
pub use reply::{Malformed, ReplyRow, RowValues};
pub use scan::{Arg, Select, select};
pub use source::RowSource;
pub use stage::{InodeChange, Size, Stage, Sum, stages};
pub use table::Table;
pub use text::{fill, hex, joined, list};
