//! The table of keys. Each key begins with the volume's prefix and one letter, the *table*. The parts that
//! follow have no separators. Numbers are big endian. They have eight bytes, except a term (four), an
//! operation or the id of an ACL (sixteen), the kind of a lock or quota (one), and the number after `x`
//! (one). `0` is one zero byte, which no name contains.
//!
//! | key | value |
//! |---|---|
//! | `v` | the version of this layout, as text |
//! | `e` parent name 0 | the dirent: the inode's number and type, and the inode itself if this is its location |
//! | `n` ino | the location of the inode: a dirent, or else the inode itself |
//! | a directory's location, then `c`, `h`, `m` | its ctime; its links and atime; its mtime |
//! | `i` ino `s` chunk row | a row of the file: a part of the chunk, and the source of its bytes |
//! | `i` ino `x` name | an extended attribute |
//! | `i` ino `y` | a symlink's target |
//! | `k` ino | the locks on the inode |
//! | `w` session owner kind | a waiting lock request |
//! | `a` id | an ACL's text; preceded by `!` if the ACL is condemned |
//! | `x` number | never stored; preconditions name it on a store that does not compare versions (TiKV), see `State::acl` |
//! | `t` name, `c` name | a setting, a counter |
//! | `u` shard | what one writer has added to the usage; on a volume with a limit also its reservation |
//! | `s` session, `o` session ino | a session; an unlinked inode that the session has open |
//! | `f` session term | the fence: exists while the term is open; on a store that compares versions (etcd), the fence of term 0 exists while the session does |
//! | `q` kind number | a quota; the kind is one byte |
//! | `g` slice | garbage: no row refers to the slice; its size |
//! | `h` slice | the number of rows that refer to the slice, minus one; exists only if the slice was ever shared |
//! | `z` | exists since the first slice of the volume was shared; written with every `h` |
//! | `l` operation | exists once the operation was applied: which records it invalidates in other clients' caches |
//! | `b` shard | on a store that pushes no changes (TiKV): the head of a shard: the numbers of its first and last write |
//! | `d` shard number | on such a store: which records the write with that number invalidates |
//!
//! An inode is stored in the dirent that names it, so that a lookup, and a listing of a directory with its
//! inodes, each read one range. If an inode has several names, one of them is its location; an inode without
//! a name is stored under its number. Fields of a directory that change with every create are stored next to
//! its location in separate keys, so that creates in the directory do not conflict.
//!
//! The cost: a rename of the dirent that stores the inode moves the inode's record to another key.

use types::{AclId, ChunkIndex, Ino, Name, OpId, SessionId, SliceId, Term, XattrName};

use meta::{Counter, LockKind, LockOwner, QuotaKey};

/// The version of the layout that this crate reads and writes.
pub const LAYOUT_VERSION: u64 = 3;

/// The keys from `start`, inclusive, to `end`, exclusive; at most the first `limit` of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    pub limit: usize,
}

/// The key under which an inode's record is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InodeLocation {
    /// In the dirent of that name.
    At(Ino, Name),
    /// Under its number.
    Here(Ino),
}

// The parts of a directory: fields that are stored under their own keys, which are the location and one
// letter.
pub(crate) const CTIME: u8 = b'c';
pub(crate) const LINKS: u8 = b'h';
pub(crate) const MTIME: u8 = b'm';
pub(crate) const PARTS: [u8; 3] = [CTIME, LINKS, MTIME];

/// Greater than the letter of every part. Appended to a location, it is the end of the range of the record
/// and its parts.
const ABOVE_PARTS: u8 = 0x7f;

/// The keys of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    prefix: Vec<u8>,
}

impl Keyspace {
    pub fn new(prefix: impl Into<Vec<u8>>) -> Self {
        Keyspace { prefix: prefix.into() }
    }

    fn key(&self, table: u8, parts: &[&[u8]]) -> Vec<u8> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut key = Vec::with_capacity(self.prefix.len() + 1 + length);
        key.extend_from_slice(&self.prefix);
        key.push(table);
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    /// All keys of a table.
    pub(crate) fn table(&self, table: u8) -> Span {
        Span { start: self.key(table, &[]), end: self.key(table + 1, &[]), limit: usize::MAX }
    }

    /// All keys of a table that begin with these bytes.
    fn all_with(&self, table: u8, first: &[u8]) -> Span {
        let start = self.key(table, &[first]);
        Span { end: after_prefix(&start), start, limit: usize::MAX }
    }

    /// All keys of the volume.
    pub fn all(&self) -> Span {
        Span { start: self.key(0, &[]), end: self.key(0xff, &[]), limit: usize::MAX }
    }

    pub fn version(&self) -> Vec<u8> {
        self.key(b'v', &[])
    }

    pub(crate) fn dirent(&self, parent: Ino, name: &Name) -> Vec<u8> {
        self.key(b'e', &[&parent.0.to_be_bytes(), name.as_bytes(), &[0]])
    }

    pub(crate) fn dirents(&self, parent: Ino) -> Span {
        self.all_with(b'e', &parent.0.to_be_bytes())
    }

    /// The first key after all keys of the dirent of that name.
    pub(crate) fn after_dirent(&self, parent: Ino, name: &Name) -> Vec<u8> {
        self.key(b'e', &[&parent.0.to_be_bytes(), name.as_bytes(), &[1]])
    }

    pub(crate) fn inode_row(&self, ino: Ino) -> Vec<u8> {
        self.key(b'n', &[&ino.0.to_be_bytes()])
    }

    /// A key after the inode's record and its parts, and before the record of the next inode number.
    pub(crate) fn after_inode_row(&self, ino: Ino) -> Vec<u8> {
        self.key(b'n', &[&ino.0.to_be_bytes(), &[0xff]])
    }

    pub(crate) fn location(&self, location: &InodeLocation) -> Vec<u8> {
        match location {
            InodeLocation::At(parent, name) => self.dirent(*parent, name),
            InodeLocation::Here(ino) => self.inode_row(*ino),
        }
    }

    /// The range with the rows, extended attributes and symlink target of an inode.
    pub(crate) fn body(&self, ino: Ino) -> Span {
        self.all_with(b'i', &ino.0.to_be_bytes())
    }

    pub(crate) fn row(&self, ino: Ino, chunk: ChunkIndex, row: u64) -> Vec<u8> {
        self.key(b'i', &[&ino.0.to_be_bytes(), b"s", &chunk.0.to_be_bytes(), &row.to_be_bytes()])
    }

    /// The rows of the chunks from `from`, inclusive, to `to`, exclusive.
    pub(crate) fn rows(&self, ino: Ino, from: ChunkIndex, to: ChunkIndex) -> Span {
        let start = self.row(ino, from, 0);
        let end = self.row(ino, to.max(from), 0);
        Span { start, end, limit: usize::MAX }
    }

    /// The rows of one chunk.
    pub(crate) fn chunk(&self, ino: Ino, chunk: ChunkIndex) -> Span {
        let (start, end) = (self.row(ino, chunk, 0), self.row(ino, chunk, u64::MAX));
        Span { start, end, limit: usize::MAX }
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &XattrName) -> Vec<u8> {
        self.key(b'i', &[&ino.0.to_be_bytes(), b"x", name.as_bytes()])
    }

    pub(crate) fn xattrs(&self, ino: Ino) -> Span {
        let [start, end] = [b"x", b"y"].map(|letter| self.key(b'i', &[&ino.0.to_be_bytes(), letter]));
        Span { start, end, limit: usize::MAX }
    }

    pub(crate) fn symlink(&self, ino: Ino) -> Vec<u8> {
        self.key(b'i', &[&ino.0.to_be_bytes(), b"y"])
    }

    pub(crate) fn locks(&self, ino: Ino) -> Vec<u8> {
        self.key(b'k', &[&ino.0.to_be_bytes()])
    }

    pub(crate) fn wait(&self, owner: LockOwner) -> Vec<u8> {
        let kind = match owner.kind {
            LockKind::Posix => 0,
            LockKind::Flock => 1,
        };
        self.key(b'w', &[&owner.session.0.to_be_bytes(), &owner.owner.to_be_bytes(), &[kind]])
    }

    pub(crate) fn acl(&self, id: AclId) -> Vec<u8> {
        self.key(b'a', &[&id.to_bytes()])
    }

    /// A key that only preconditions name, and that is never written: see `State::acl`.
    pub(crate) fn acl_users(&self, number: u8) -> Vec<u8> {
        self.key(b'x', &[&[number]])
    }

    pub(crate) fn setting(&self, name: &str) -> Vec<u8> {
        self.key(b't', &[name.as_bytes()])
    }

    pub fn settings(&self) -> Span {
        self.table(b't')
    }

    pub(crate) fn counter(&self, counter: Counter) -> Vec<u8> {
        self.key(b'c', &[counter.name().as_bytes()])
    }

    pub fn usage_shard(&self, shard: u64) -> Vec<u8> {
        self.key(b'u', &[&shard.to_be_bytes()])
    }

    pub fn usage_shards(&self) -> Span {
        self.table(b'u')
    }

    pub(crate) fn session(&self, session: SessionId) -> Vec<u8> {
        self.key(b's', &[&session.0.to_be_bytes()])
    }

    /// The key whose existence each commit of the term checks. The commits cannot check the record of the
    /// session instead, because every heartbeat changes it, and so would conflict with them.
    pub(crate) fn fence(&self, session: SessionId, term: Term) -> Vec<u8> {
        self.key(b'f', &[&term.key(session)])
    }

    /// The fences of all terms of a session.
    pub(crate) fn fences(&self, session: SessionId) -> Span {
        self.all_with(b'f', &session.0.to_be_bytes())
    }

    pub(crate) fn unlinked(&self, session: SessionId, ino: Ino) -> Vec<u8> {
        self.key(b'o', &[&session.0.to_be_bytes(), &ino.0.to_be_bytes()])
    }

    pub(crate) fn garbage(&self, slice: SliceId) -> Vec<u8> {
        self.key(b'g', &[&slice.0.to_be_bytes()])
    }

    pub(crate) fn shared(&self, slice: SliceId) -> Vec<u8> {
        self.key(b'h', &[&slice.0.to_be_bytes()])
    }

    /// Whether the key is one that [`Keyspace::shared`] returns.
    pub(crate) fn is_shared(&self, key: &[u8]) -> bool {
        self.rest(key, b'h').is_some()
    }

    pub(crate) fn quota(&self, quota: QuotaKey) -> Vec<u8> {
        let (kind, number) = quota.to_numbers();
        self.key(b'q', &[&[kind], &number.to_be_bytes()])
    }

    /// The quota of a key, without the prefix and the letter of the table.
    pub(crate) fn parse_quota(rest: &[u8]) -> Option<QuotaKey> {
        let (kind, number) = rest.split_first()?;
        QuotaKey::from_numbers(*kind, u64::from_be_bytes(number.try_into().ok()?))
    }

    pub(crate) fn any_shared(&self) -> Vec<u8> {
        self.key(b'z', &[])
    }

    /// Whether a read may use any value that the key ever had. This is so for ACLs, because the id of an ACL
    /// is the hash of its text. A commit must not use such a value, because the ACL may have been condemned
    /// or removed.
    pub fn is_constant(&self, key: &[u8]) -> bool {
        self.rest(key, b'a').is_some()
    }

    /// An upper bound of the size of a key with its value, in bytes. Locks and settings have no limit and may
    /// be larger, but there are few of them.
    pub fn max_bytes(&self, key: &[u8]) -> usize {
        match key.strip_prefix(self.prefix.as_slice()).and_then(<[u8]>::first) {
            // Inodes, which have no field of variable length, and numbers.
            Some(b'b' | b'e' | b'f' | b'g' | b'h' | b'n' | b'o' | b'u') => 1 << 10,
            // Rows with data and extended attributes have at most 64 KiB.
            _ => 80 << 10,
        }
    }

    pub fn log(&self, op: OpId) -> Vec<u8> {
        self.key(b'l', &[&op.0.to_be_bytes()])
    }

    /// The operations of one session.
    pub(crate) fn log_of(&self, session: SessionId) -> Span {
        self.all_with(b'l', &session.0.to_be_bytes())
    }

    /// The operations of one term.
    pub(crate) fn log_of_term(&self, session: SessionId, term: Term) -> Span {
        let (first, last) = OpId::range(session, term).into_inner();
        Span { start: self.log(first), end: after_prefix(&self.log(last)), limit: usize::MAX }
    }

    pub fn logs(&self) -> Span {
        self.table(b'l')
    }

    /// The operation of a key that [`Keyspace::log`] returned.
    pub fn parse_log(&self, key: &[u8]) -> Option<OpId> {
        let bytes = self.rest(key, b'l')?;
        Some(OpId(u128::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// The key with the numbers of the first and the last write of a shard (`change_log`).
    pub fn head(&self, shard: u64) -> Vec<u8> {
        self.key(b'b', &[&shard.to_be_bytes()])
    }

    pub fn heads(&self) -> Span {
        self.table(b'b')
    }

    /// The shard of a key of [`Keyspace::heads`].
    pub fn parse_head(&self, key: &[u8]) -> Option<u64> {
        Some(u64::from_be_bytes(self.rest(key, b'b')?.try_into().ok()?))
    }

    /// The key for the invalidations of one write: the write with this number in a shard.
    pub fn changes(&self, shard: u64, number: u64) -> Vec<u8> {
        self.key(b'd', &[&shard.to_be_bytes(), &number.to_be_bytes()])
    }

    pub fn all_changes(&self, shard: u64) -> Span {
        self.all_with(b'd', &shard.to_be_bytes())
    }

    /// The part of the key after the letter of the table.
    pub(crate) fn rest<'a>(&self, key: &'a [u8], table: u8) -> Option<&'a [u8]> {
        key.strip_prefix(self.prefix.as_slice())?.strip_prefix(&[table])
    }

    /// The directory and the name of the dirent that a key belongs to; if the key is that of a part, also its
    /// letter.
    pub(crate) fn parse_dirent(&self, key: &[u8]) -> Option<(Ino, Name, Option<u8>)> {
        let (parent, rest) = self.rest(key, b'e')?.split_first_chunk()?;
        let parent = Ino(u64::from_be_bytes(*parent));
        let end = rest.iter().position(|&byte| byte == 0)?;
        let name = Name::new(rest.get(..end)?).ok()?;
        match rest.get(end + 1..)? {
            [] => Some((parent, name, None)),
            [part] => Some((parent, name, Some(*part))),
            _ => None,
        }
    }

    pub(crate) fn parse_row(&self, key: &[u8]) -> Option<(ChunkIndex, u64)> {
        let (_, rest) = self.rest(key, b'i')?.split_at_checked(9)?;
        let (chunk, row) = rest.split_first_chunk()?;
        Some((ChunkIndex(u64::from_be_bytes(*chunk)), u64::from_be_bytes(row.try_into().ok()?)))
    }

    pub(crate) fn parse_xattr(&self, key: &[u8]) -> Option<XattrName> {
        let (_, name) = self.rest(key, b'i')?.split_at_checked(9)?;
        XattrName::new(name).ok()
    }
}

/// The key of a part of the directory with this location.
pub(crate) fn part(location: &[u8], part: u8) -> Vec<u8> {
    let mut key = Vec::with_capacity(location.len() + 1);
    key.extend_from_slice(location);
    key.push(part);
    key
}

/// The keys of the record at this location and of its parts.
pub(crate) fn group(location: &[u8]) -> Span {
    Span { start: location.to_vec(), end: part(location, ABOVE_PARTS), limit: usize::MAX }
}

/// The first key after all keys that begin with `prefix`. There is one, because `prefix` contains the letter
/// of the table, which is below 0xff.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.last() == Some(&0xff) {
        end.pop();
    }
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_dirents_are_ordered_by_name_and_parse() {
        let keys = Keyspace::new("p_");
        let names: [&[u8]; 6] = [b"\x01", b"a", b"a\x01", b"a!", b"ab", b"\xff\xff"];
        let names = names.map(|name| Name::new(name).unwrap());
        let mut all = Vec::new();
        for name in &names {
            let location = keys.dirent(Ino(7), name);
            assert_eq!(keys.parse_dirent(&location), Some((Ino(7), name.clone(), None)));
            assert_eq!(keys.parse_dirent(&part(&location, MTIME)), Some((Ino(7), name.clone(), Some(MTIME))));
            all.extend([location.clone(), part(&location, CTIME), part(&location, MTIME)]);
            let end = keys.after_dirent(Ino(7), name);
            assert!(group(&location).end <= end && part(&location, MTIME) < end);
        }
        assert!(all.is_sorted());
        let span = keys.dirents(Ino(7));
        assert!(all.iter().all(|key| *key >= span.start && *key < span.end));
        assert!(keys.dirent(Ino(8), &names[0]) >= span.end);
    }

    #[test]
    fn spans_do_not_overlap() {
        let keys = Keyspace::new("");
        for ino in [Ino(0), Ino(0xff), Ino(u64::MAX >> 1), Ino(u64::MAX)] {
            let body = keys.body(ino);
            let name = XattrName::new(&[0xff; 255]).unwrap();
            for key in
                [keys.row(ino, ChunkIndex(u64::MAX), u64::MAX), keys.xattr(ino, &name), keys.symlink(ino)]
            {
                assert!(key >= body.start && key < body.end, "{key:?}");
            }
            assert!(keys.body(Ino(ino.0.wrapping_add(1))).start >= body.end || ino.0 == u64::MAX);
            assert!(group(&keys.inode_row(ino)).end < keys.after_inode_row(ino));
        }
        assert_eq!(keys.parse_log(&keys.log(OpId(u128::MAX))), Some(OpId(u128::MAX)));
    }
}
