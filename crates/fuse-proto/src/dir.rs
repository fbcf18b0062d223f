//! Listings: the bodies of READDIR and READDIRPLUS.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::Entry;
use crate::wire;

/// A listing of bounded size.
///
/// The reply ends when the buffer is full; the kernel then continues from the last entry's `next_offset`. An
/// empty buffer means the end of the directory.
#[derive(Debug)]
pub struct DirBuffer {
    bytes: Vec<u8>,
    max_bytes: usize,
}

/// The bytes of `entry_valid` to `attr_valid_nsec` in [`wire::EntryOut`].
const LIFETIMES: Range<usize> = 16..40;
/// The bytes of `namelen` in [`wire::Dirent`].
const NAMELEN: Range<usize> = 16..20;

/// The entry did not fit and was not added: send the entries before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl DirBuffer {
    /// `max_bytes` is the size in the request.
    pub fn new(max_bytes: usize) -> Self {
        DirBuffer { bytes: Vec::new(), max_bytes }
    }

    /// Adds an entry of READDIR. `next_offset` is the offset of the next entry; `dtype` is
    /// [`types::FileType::to_dtype`].
    ///
    /// The kernel fails the whole listing with EIO if a name is empty, too long or contains `/`
    /// (`parse_dirfile`), so `name` must be a valid name.
    ///
    /// # Errors
    /// [`Full`] if the entry does not fit.
    pub fn push(&mut self, ino: u64, next_offset: u64, dtype: u32, name: &[u8]) -> Result<(), Full> {
        self.append(&[], ino, next_offset, dtype, name)
    }

    /// Adds an entry of READDIRPLUS; inode number and type are those of the attributes. An added entry with a
    /// `nodeid` other than 0 counts as a lookup. `.` and `..` are sent with `nodeid` 0
    /// (`fuse_direntplus_link`).
    ///
    /// # Errors
    /// [`Full`] if the entry does not fit; it does not count as a lookup then.
    pub fn push_plus(&mut self, entry: &Entry, next_offset: u64, name: &[u8]) -> Result<(), Full> {
        let dtype = (entry.attr.mode & 0o170000) >> 12;
        self.append(wire::EntryOut::from(entry).as_bytes(), entry.attr.ino, next_offset, dtype, name)
    }

    /// Sets the lifetimes of all entries to 0. All of them must be entries of READDIRPLUS.
    pub fn clear_lifetimes(&mut self) {
        let mut rest = &mut self.bytes[..];
        while let Some((entry, after)) = rest.split_at_mut_checked(size_of::<wire::EntryOut>()) {
            entry[LIFETIMES].fill(0);
            let Some(&[a, b, c, d]) = after.get(NAMELEN) else { return };
            let name = u32::from_ne_bytes([a, b, c, d]) as usize;
            let record = (size_of::<wire::Dirent>() + name).next_multiple_of(8);
            rest = after.get_mut(record..).unwrap_or_default();
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn append(&mut self, entry: &[u8], ino: u64, off: u64, kind: u32, name: &[u8]) -> Result<(), Full> {
        let record = (entry.len() + size_of::<wire::Dirent>() + name.len()).next_multiple_of(8);
        let end = self.bytes.len() + record;
        let namelen = u32::try_from(name.len()).map_err(|_| Full)?;
        if end > self.max_bytes {
            return Err(Full);
        }
        self.bytes.extend_from_slice(entry);
        self.bytes.extend_from_slice(wire::Dirent { ino, off, namelen, kind }.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Attr, NodeId};

    #[test]
    fn entries_are_padded_to_eight_bytes_and_stop_at_the_bound() {
        let mut dir = DirBuffer::new(32 + 40);
        assert_eq!(dir.push(9, 1, 4, b"abc"), Ok(()));
        assert_eq!(dir.push(10, 2, 8, b"123456789"), Ok(()));
        assert_eq!(dir.push(11, 3, 8, b"x"), Err(Full));
        let b = dir.as_bytes();
        assert_eq!(b.len(), 72);
        assert_eq!(b[..8], 9u64.to_ne_bytes());
        assert_eq!(b[8..16], 1u64.to_ne_bytes());
        assert_eq!(b[16..20], 3u32.to_ne_bytes());
        assert_eq!(b[20..24], 4u32.to_ne_bytes());
        assert_eq!(&b[24..32], b"abc\0\0\0\0\0");
        assert_eq!(b[32..40], 10u64.to_ne_bytes());
        assert_eq!(&b[56..], b"123456789\0\0\0\0\0\0\0");
    }

    #[test]
    fn plus_entries_begin_with_the_whole_entry() {
        let attr = Attr { ino: 5, mode: 0o040755, ..Attr::default() };
        let entry = Entry { nodeid: NodeId(5), attr, ..Entry::default() };
        let mut dir = DirBuffer::new(160);
        assert_eq!(dir.push_plus(&entry, 3, b"d"), Ok(()));
        assert_eq!(dir.push_plus(&entry, 4, b"e"), Err(Full));
        let b = dir.as_bytes();
        assert_eq!((b.len(), b[148], b[152]), (160, 4, b'd'));
        assert_eq!(b[..8], 5u64.to_ne_bytes());
        assert_eq!(b[128..136], 5u64.to_ne_bytes());
    }

    #[test]
    fn cleared_lifetimes_are_those_of_entries_without_any() {
        let attr = Attr { ino: 5, mode: 0o100644, size_bytes: u64::MAX, ..Attr::default() };
        let (entry_ttl, attr_ttl) = (Duration::new(60, 7), Duration::new(30, 9));
        let list = |entry_ttl, attr_ttl| {
            let mut dir = DirBuffer::new(4096);
            for name in [&b"a"[..], b"12345678", b"123456789"] {
                let entry = Entry { nodeid: NodeId(5), generation: u64::MAX, attr, entry_ttl, attr_ttl };
                assert_eq!(dir.push_plus(&entry, u64::MAX, name), Ok(()));
            }
            dir
        };
        let mut dir = list(entry_ttl, attr_ttl);
        dir.clear_lifetimes();
        assert_eq!(dir.as_bytes(), list(Duration::ZERO, Duration::ZERO).as_bytes());
        DirBuffer::new(0).clear_lifetimes();
    }
}
