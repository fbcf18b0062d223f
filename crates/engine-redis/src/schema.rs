//! The keys of a volume, and the version that says which of them there are.
//!
//! Every key begins with the table prefix in braces: with `{limen_}` unless the URL says otherwise. Numbers are
//! unsigned, big end first, of the width that stands behind them in bytes; times are nanoseconds since 1970-01-01 UTC in
//! 8 bytes with the first bit turned over, so that they order like their bytes.
//!
//! | key | type | content |
//! |---|---|---|
//! | `schema` | string | the version, in decimal digits |
//! | `state` | hash | `seq`: how many transactions were committed, in decimal digits; `inodes` (8), and `blocks` (8) of 4096 bytes |
//! | `node:` inode/16*16 (8) | hash | for each of these 16 inodes, under its number's last byte: a node |
//! | `nodes` | sorted set | inode/16*16 (8) of every such hash |
//! | `dir:` inode (8) | map | name: type as in `d_type` (1), inode (8) |
//! | `rows:` inode (8) | sorted set | chunk (8), number within it (8), a row |
//! | `xattrs:` inode (8) | hash | by name |
//! | `symlink:` inode (8) | string | the target |
//! | `acls` | map | id (16): the ACL's text |
//! | `settings` | hash | by name |
//! | `counters` | hash | by name: the next number (8) to lease |
//! | `sessions` | map | id (8): heartbeat, since, both signed, pid (4), PID namespace (8), start time (8), first slice (8); boot id, version, host and mount point, each a length (4) and a text |
//! | `orphans` | sorted set | session (8), inode (8) |
//! | `locks` | map | inode (8): its locks |
//! | `waits` | map | session (8), owner (8), kind (1): inode (8), and the lock that is waited for |
//! | `garbage` | map | slice (8): bytes (4) |
//! | `shared` | map | slice (8): how many rows (8) refer to it beyond the first; there if it was ever shared |
//! | `terms` | sorted set | session (8), term (4), of each term that is open |
//! | `ops:` session (8) term (4) | hash | id of an operation (16): the number of its commit, in decimal digits; if no term keeps it, in `ops`, `ops_before` |
//! | `changes` | stream | entry N-0, the transactions up to number N: for each its session (8) and what it touched |
//!
//! A *map* is a sorted set whose members all have score 0: a key, NUL, and its value. So it is in the order of its keys.
//!
//! | | bytes |
//! |---|---|
//! | a node | type as in `d_type` (1), mode (2), uid (4), gid (4), nlink (4), size (8), atime, mtime, ctime, parent (8), access revision (8); if it has one, access and default ACL (16 each); if a device, its number (4) |
//! | a row | position (4), length (4), kind (1): `h` a hole, `i` with its bytes, `b` in the object store; the bytes, or slice (8), offset (4), its size (4) |
//! | a lock | first byte (8), last byte (8), session (8), owner (8), kind (1): 0 fcntl, 1 flock; exclusive (1), pid (4) |
//!
//! Up to 64 bytes, which a node without ACLs has, and in up to 128 members, Redis keeps hashes and sorted sets without
//! pointers: so an inode costs about as much as its node and its name.

/// The version of this layout, in `schema`.
pub const VERSION: u64 = 3;
