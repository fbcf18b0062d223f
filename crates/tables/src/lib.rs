//! What engines on SQL servers share: records out of the rows of an answer and back, and effects in the order in which
//! statements may apply them. Pure: nothing here talks to a server.
//!
//! A row of an answer is a *fact*: what it is about, its numbers and its byte strings. What is not in an answer is not
//! there.
//!
//! | | fact | numbers | byte strings |
//! |---|---|---|---|
//! | 1 | inode | ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, access_rev | access ACL, default ACL; their texts, if they were looked up |
//! | 2 | directory entry | parent, ino, kind | name |
//! | 3 | a directory is not empty | ino | |
//! | 4 | extended attribute | ino | name, value |
//! | 5 | symlink | ino | target |
//! | 6 | row of a chunk | ino, chunk, pos, len, slice, slice_off, slice_size; its place, if rows come in no order | data |
//! | 7 | ACL | | id, text |
//! | 8, 9 | setting; counter | ; value | name, value; name |
//! | 10 | usage | inodes, blocks | |
//! | 11, 12 | lock; who waits for one | ino, first, last, session, owner, kind, exclusive, pid | |
//! | 13 | session | id, pid, since, heartbeat, pid_namespace, start_time, first_slice | host, mountpoint, boot_id, version |
//! | 14, 15, 16 | orphan; garbage; shared slice | session, ino; slice, size; slice, extra | |
//! | 17 | directory entry and its inode, which may be missing | those of 2, then those of 1 | those of 2, then those of 1 |
//!
//! | module | what it holds |
//! |---|---|
//! | `fact`, `values` | the values of a fact; those of a record |
//! | `found` | wants answered by facts |
//! | `page` | ranges answered by facts |
//! | `table`, `scan` | the tables whose rows are facts; ranges of them as statements |
//! | `line` | the rows that wants ask for, and those that effects put and remove |
//! | `part` | what guards and effects have to do with; what transactions lock, and what they make of inodes |
//! | `text`, `literal` | what the texts of statements are made of |
//! | `layer` | which effects may be applied together, and what becomes of an inode's row |

mod fact;
mod found;
mod layer;
mod line;
pub mod literal;
mod page;
mod part;
mod scan;
mod table;
mod text;
pub mod values;

pub use fact::{Fact, Malformed, Row};
pub use found::{Found, want};
pub use layer::{Change, Layer, Size, layers};
pub use line::{Line, put, removed, wanted};
pub use page::page;
pub use part::{Locks, follow, free, holder, inode, made, named, puts_free_names};
pub use scan::{Arg, Select, select};
pub use table::Table;
pub use text::{fill, hex, joined, list};
