//! The keys of a volume and the version of this layout.
//!
//! Every key begins with the table prefix in braces: `{limen_}` by default. Numbers are unsigned and
//! big-endian; their width in bytes is given in parentheses. Times are nanoseconds since 1970-01-01 UTC in 8
//! bytes with the sign bit inverted, so that byte order is time order, except where a time is called signed.
//!
//! | key | type | content |
//! |---|---|---|
//! | `schema` | string | the version, in decimal digits |
//! | `state` | hash | `seq`: the sequence number of the last commit, in decimal digits; a new volume starts at its time of creation in milliseconds; `inodes` (8); `blocks` (8) of 4096 bytes |
//! | `node:` inode/16*16 (8) | hash | up to 16 inodes; the field is the last byte of the inode number |
//! | `nodes` | sorted set | inode/16*16 (8) of every such hash |
//! | `dir:` inode (8) | map | name: type as in `d_type` (1), inode (8) |
//! | `rows:` inode (8) | sorted set | chunk (8), row number within the chunk (8), a slice row |
//! | `xattrs:` inode (8) | hash | by name |
//! | `symlink:` inode (8) | string | the target |
//! | `acls` | map | id (16): the ACL's text |
//! | `settings` | hash | by name |
//! | `counters` | hash | by name: the next number (8) to allocate |
//! | `sessions` | map | id (8): heartbeat and since: signed times (8 each); pid (4), PID namespace (8), start time (8), first slice (8); boot id, version, host and mount point, each a length (4) and a text |
//! | `orphans` | sorted set | session (8), inode (8) |
//! | `locks` | map | inode (8): its locks |
//! | `waits` | map | session (8), owner (8), kind (1): inode (8), and the lock that it waits for |
//! | `garbage` | map | slice (8): bytes (4) |
//! | `shared` | map | slice (8): the number of rows (8) that refer to it beyond the first, possibly 0; present from the first share until the slice becomes garbage |
//! | `quotas` | map | kind (1): 0 directory, 1 user, 2 group; number (8): used inodes and blocks, both signed (8 each), the ID of the outer quota (8), hard limits of inodes and blocks (8 each), soft limits (8 each), the directory (8), state (1) |
//! | `terms` | sorted set | session (8), term (4), of each open term |
//! | `ops:` session (8) term (4) | hash | operation ID (16): the number of its commit, in decimal digits; results that no term keeps are in `ops`, with the field `since`, its start in seconds since 1970; after a while `ops` is renamed to `ops_before`, which is dropped at the next renaming |
//! | `changes` | stream | entry N-0 holds the transactions up to number N: for each its session (8) and its invalidations; the entry of a wipe has the field `wiped` instead |
//! | `synced` | string | written by a sync, so that its `WAITAOF` has a write to wait for |
//!
//! A *map* is a sorted set whose members all have score 0: a key, NUL, and its value. So a map is ordered by
//! key: the names of a directory need no second structure for listings, and a lookup is a range of one
//! member.
//!
//! | | bytes |
//! |---|---|
//! | an inode | type as in `d_type` (1), mode (2), uid (4), gid (4), nlink (4), size (8), atime, mtime, ctime, parent (8), access revision (8); if it has one, access and default ACL (16 each); for a device, its number (4); if it counts in quotas, their tag (8); if it has extended attributes, their size in blocks (2) |
//! | a slice row | position (4), length (4), kind (1): `h` a hole, `i` inline bytes, `b` in the object store; the inline bytes, or slice (8), offset (4), slice size (4) |
//! | a lock | first byte (8), last byte (8), session (8), owner (8), kind (1): 0 fcntl, 1 flock; exclusive (1), pid (4) |
//!
//! Redis stores a hash or sorted set without pointers if it has at most 128 members of at most 64 bytes. An
//! inode without optional fields has 63 bytes. So a file costs little more memory than its record and its
//! name.

/// The version of this layout, stored in `schema`.
pub const VERSION: u64 = 4;
