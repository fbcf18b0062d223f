//! The documented differences between limenfs and ext4 or tmpfs: one table, and how each entry affects a
//! comparison. Nothing else may differ.

use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::side::Outcome;
use crate::step::{ACL_NAMES, At, Call, Step, USERS, Whence};

/// (difference, reason, how the comparison handles it).
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the table is documentation; a test checks that it is complete")
)]
pub(crate) const TABLE: &[(&str, &str, &str)] = &[
    ("atime", "reads do not update it, like with noatime", "the reference must be mounted noatime"),
    ("size of directories", "always 4096; ext4 grows them by blocks, tmpfs by entries", "not compared"),
    ("st_blocks, st_blksize", "holes count as data; nothing is allocated", "not compared"),
    (
        "inode numbers",
        "each file system has its own",
        "equality of two names is compared by link counts and content",
    ),
    (
        "order of ACL entries",
        "entries are stored sorted by ID; ext4 keeps the given order",
        "`sort_acl` before a comparison",
    ),
    ("repeated ACL entries", "EINVAL, according to acl(5); ext4 accepts them", "not generated"),
    (
        "SGID at chown",
        "chown of a file without group execute clears it if the file's group is not the caller's primary group",
        "`avoid` skips those calls",
    ),
    (
        "chown to -1, -1",
        "keeps SUID and SGID: FUSE cannot distinguish it from a request that changes nothing",
        "`avoid` skips those calls",
    ),
    (
        "SGID at write",
        "a write by a caller outside of the group keeps it if the file has no group execute: FUSE does not tell the caller's groups",
        "`avoid` skips those calls",
    ),
    ("collapse and insert range", "EOPNOTSUPP: not supported", "not generated"),
    (
        "SEEK_DATA, SEEK_HOLE",
        "holes are found by the byte, elsewhere by the block",
        "`holes` compares with the content",
    ),
    (
        "SGID when an access ACL is removed",
        "tmpfs clears it if the owner is not in the group; ext4 and limenfs do not",
        "`avoid` skips those calls",
    ),
    (
        "ctime when a missing ACL is removed, or an ACL or xattr is set to its present value",
        "tmpfs updates it, ext4 does not, so no program can rely on either",
        "`ctime_is_free` for that step",
    ),
    (
        "times of FIFOs",
        "writing to a FIFO updates no time, because the kernel does not tell FUSE",
        "not compared",
    ),
    (
        "removed directories, FIFOs, sockets and devices that are open",
        "their attributes stay readable, but cannot be changed, and their xattrs fail with ESTALE",
        "`avoid` skips those calls",
    ),
    (
        "O_PATH of a removed file",
        "the kernel does not tell FUSE about the descriptor, so the file is removed after the last real close",
        "O_PATH is not generated",
    ),
    (
        "large xattrs",
        "ext4 has one block for all xattrs of a file, tmpfs has a quota",
        "values are small, or too large for both",
    ),
];

/// The properties of the two file systems that steps and comparisons depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Whether the reference supports `FALLOC_FL_ZERO_RANGE`; tmpfs does not.
    pub(crate) zero_range: bool,
    /// Two changes that are less than this many nanoseconds apart may get the same timestamp on either side.
    /// Linux gives ext4 distinct timestamps once the previous one was read; the timestamps of a tmpfs
    /// directory have the resolution of the kernel's tick.
    pub(crate) grain_ns: i128,
}

impl Abilities {
    /// Probes a directory on each side.
    pub(crate) fn of(tested: &Path, directory: &Path) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(directory, flags, Mode::RUSR)?;
        let zero_range =
            rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 1) != Err(Errno::OPNOTSUPP);
        let stamps_differ = |directory: &Path| {
            let stamp = || rustix::fs::stat(directory).map(|now| (now.st_mtime, now.st_mtime_nsec));
            stamps_differ(directory, stamp)
        };
        let fine = stamps_differ(tested)? && stamps_differ(directory)?;
        Ok(Abilities { zero_range, grain_ns: if fine { 0 } else { 20_000_000 } })
    }
}

/// Whether consecutive changes of a directory get different timestamps. `stamp` reads the timestamp.
fn stamps_differ<T: PartialEq>(
    directory: &Path,
    stamp: impl Fn() -> Result<T, Errno>,
) -> Result<bool, Errno> {
    let mut last = stamp()?;
    let mut differ = true;
    // The number of rounds is even, so that nothing is left in the directory.
    for round in 0..8 {
        let name = directory.join("probe");
        match round % 2 {
            0 => rustix::fs::mkdir(&name, Mode::RWXU)?,
            _ => rustix::fs::rmdir(&name)?,
        }
        let now = stamp()?;
        differ &= now != last;
        last = now;
    }
    Ok(differ)
}

/// Whether a step is skipped on both sides. `stat` returns the reference's attributes of the target of a
/// call.
pub(crate) fn avoid(step: &Step, stat: impl Fn(&At) -> Option<Stat>) -> bool {
    let (uid, primary, groups) = USERS[step.user];
    if let Some(at @ At::Slot(_)) = step.call.at()
        && let Some(stat) = stat(at)
        && is_unlinked(&stat)
    {
        return true;
    }
    if let Call::Chown { at, uid: None, gid: None } = &step.call {
        return stat(at).is_some_and(|stat| stat.st_mode & 0o6000 != 0);
    }
    if uid == 0 {
        return false;
    }
    let sgid_alone = |stat: &Stat| stat.st_mode & 0o2010 == 0o2000;
    let outsider = |stat: &Stat| stat.st_gid != primary && !groups.contains(&stat.st_gid);
    if let Some(at) = removes_acl(&step.call) {
        return stat(at).is_some_and(|stat| stat.st_mode & 0o2000 != 0 && outsider(&stat));
    }
    match &step.call {
        Call::Chown { at, .. } => stat(at)
            .is_some_and(|stat| sgid_alone(&stat) && stat.st_gid != primary && groups.contains(&stat.st_gid)),
        call => {
            written(call).is_some_and(|at| stat(&at).is_some_and(|stat| sgid_alone(&stat) && outsider(&stat)))
        }
    }
}

/// The file whose content a call changes.
fn written(call: &Call) -> Option<At> {
    match call {
        Call::Write { slot, .. }
        | Call::Pwrite { slot, .. }
        | Call::Truncate { slot, .. }
        | Call::Allocate { slot, .. }
        | Call::Copy { to: slot, .. } => Some(At::Slot(*slot)),
        Call::Open { rel_path, flags, .. } if flags.contains(OFlags::TRUNC) => {
            Some(At::Path(rel_path.clone(), true))
        }
        _ => None,
    }
}

/// Whether this call may update ctime on one side only. ext4 and tmpfs disagree about calls that set the
/// present value, and about removing a missing attribute.
pub(crate) fn ctime_is_free(call: &Call) -> bool {
    match call {
        Call::RemoveXattr { name, .. } => ACL_NAMES.contains(name),
        // Values other than the empty one are used once, so they always differ from the present value.
        Call::SetXattr { name, value, .. } => ACL_NAMES.contains(name) || value.is_empty(),
        _ => false,
    }
}

/// The file whose access ACL a call removes; a value without entries removes it too.
fn removes_acl(call: &Call) -> Option<&At> {
    match call {
        Call::RemoveXattr { at, name } if *name == ACL_NAMES[0] => Some(at),
        Call::SetXattr { at, name, value, .. } if *name == ACL_NAMES[0] && value.len() <= 4 => Some(at),
        _ => None,
    }
}

/// Sorts the entries of an ACL xattr: see "order of ACL entries" in [`TABLE`].
pub(crate) fn sort_acl(name: &[u8], value: &mut Vec<u8>) {
    if !ACL_NAMES.iter().any(|acl| acl.as_bytes() == name) || value.len() < 4 || value.len() % 8 != 4 {
        return;
    }
    let mut entries: Vec<[u8; 8]> = value[4..].as_chunks::<8>().0.to_vec();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    entries.sort_by_key(|entry| (number(&entry[..2]), number(&entry[4..])));
    value.truncate(4);
    value.extend(entries.concat());
}

/// Whether two outcomes of one call are equivalent. `content` reads the reference's file in a slot, from an
/// offset on, and returns its whole size too.
pub(crate) fn same(
    call: &Call,
    tested: &Outcome,
    reference: &Outcome,
    content: impl FnOnce(usize, u64) -> Option<(Vec<u8>, u64)>,
) -> bool {
    match (call, tested, reference) {
        (Call::GetXattr { name, .. }, Outcome::Bytes(tested), Outcome::Bytes(reference)) => {
            let (mut tested, mut reference) = (tested.clone(), reference.clone());
            sort_acl(name.as_bytes(), &mut tested);
            sort_acl(name.as_bytes(), &mut reference);
            tested == reference
        }
        (Call::Seek { slot, whence, offset }, tested, reference)
            if matches!(whence, Whence::Data | Whence::Hole) && tested != reference =>
        {
            let offset = u64::try_from(*offset).unwrap_or(0);
            content(*slot, offset)
                .is_some_and(|(bytes, size)| holes(*whence, tested, reference, offset, &bytes, size))
        }
        _ => tested == reference,
    }
}

/// Whether the tested side found a valid offset. SEEK_DATA may skip only zeros, and must find an offset in
/// the file. SEEK_HOLE must find a zero byte or the end of the file. `bytes` is the content from `offset` on.
fn holes(
    whence: Whence,
    tested: &Outcome,
    reference: &Outcome,
    offset: u64,
    bytes: &[u8],
    size: u64,
) -> bool {
    let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    match (whence, tested) {
        (Whence::Data, Outcome::Failed(Errno::NXIO)) => offset >= size || zero(bytes),
        (Whence::Data, Outcome::Number(found)) => {
            let skipped = found.saturating_sub(offset) as usize;
            *found >= offset && *found < size && bytes.get(..skipped).is_some_and(zero)
        }
        (Whence::Hole, Outcome::Number(found)) => {
            // If the reference is in a hole, the tested side may find a later offset, but it must be a hole
            // too.
            let at = found.saturating_sub(offset) as usize;
            matches!(reference, Outcome::Number(_))
                && *found >= offset
                && (*found == size || *found < size && bytes.get(at) == Some(&0))
        }
        _ => false,
    }
}

/// Whether this is a removed inode that is not a regular file: FUSE keeps only regular files open.
pub(crate) fn is_unlinked(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile && stat.st_nlink == 0
}

/// Whether the times of this file are compared.
pub(crate) fn has_times(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) != FileType::Fifo
}

/// Whether the content of this file is compared.
pub(crate) fn has_content(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_probe_of_the_timestamps_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let count = Cell::new(0);
        let fine = || Ok((1, count.replace(count.get() + 1)));
        assert_eq!(stamps_differ(directory.path(), fine), Ok(true));
        assert_eq!(stamps_differ(directory.path(), || Ok((1, 1))), Ok(false));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn every_entry_is_complete() {
        assert!(
            TABLE.iter().all(|(what, why, done)| !what.is_empty() && !why.is_empty() && !done.is_empty())
        );
    }

    #[test]
    fn holes_are_checked_against_the_content() {
        let (at, none) = (Outcome::Number, Outcome::Failed(Errno::NXIO));
        let bytes = [0, 0, 7, 0];
        assert!(holes(Whence::Data, &at(12), &at(10), 10, &bytes, 14));
        assert!(!holes(Whence::Data, &at(13), &at(10), 10, &bytes, 14));
        assert!(!holes(Whence::Data, &none, &at(10), 10, &bytes, 14));
        assert!(holes(Whence::Data, &none, &at(10), 10, &[0; 4], 14));
        assert!(holes(Whence::Hole, &at(13), &at(14), 10, &bytes, 14));
        assert!(!holes(Whence::Hole, &at(12), &at(14), 10, &bytes, 14));
    }

    #[test]
    fn acl_entries_are_sorted_by_tag_and_id() {
        let mut acl =
            vec![2, 0, 0, 0, 2, 0, 7, 0, 9, 0, 0, 0, 2, 0, 6, 0, 5, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255];
        sort_acl(b"system.posix_acl_access", &mut acl);
        assert_eq!(
            acl[4..],
            [1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 5, 0, 0, 0, 2, 0, 7, 0, 9, 0, 0, 0]
        );
    }
}
