//! The visible state of a file, and comparisons of the two sides.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::known;
use crate::side::split_names;

/// Files up to this size are read as a whole. Of larger ones, only the ranges that either side reports as
/// data are read.
const WHOLE_BYTES: u64 = 2 << 20;

/// atime, mtime and ctime in seconds and nanoseconds.
pub(crate) type Times = [(i64, u64); 3];

pub(crate) fn times(stat: &Stat) -> Times {
    [
        (stat.st_atime, stat.st_atime_nsec),
        (stat.st_mtime, stat.st_mtime_nsec),
        (stat.st_ctime, stat.st_ctime_nsec),
    ]
}

/// The first difference in attributes other than times.
pub(crate) fn attributes(tested: &Stat, reference: &Stat) -> Option<String> {
    let kind = FileType::from_raw_mode(reference.st_mode);
    let pairs = [
        ("mode", u64::from(tested.st_mode), u64::from(reference.st_mode)),
        ("uid", u64::from(tested.st_uid), u64::from(reference.st_uid)),
        ("gid", u64::from(tested.st_gid), u64::from(reference.st_gid)),
        ("nlink", tested.st_nlink, reference.st_nlink),
        ("rdev", tested.st_rdev, reference.st_rdev),
    ];
    for (name, tested, reference) in pairs {
        if tested != reference {
            return Some(match name {
                "mode" => format!("mode is {tested:o}, expected {reference:o}"),
                _ => format!("{name} is {tested}, expected {reference}"),
            });
        }
    }
    let compare_size = kind != FileType::Directory;
    (compare_size && tested.st_size != reference.st_size)
        .then(|| format!("size is {}, expected {}", tested.st_size, reference.st_size))
}

/// The times of one file on both sides, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) tested: Times,
    pub(crate) reference: Times,
    /// The moment, in nanoseconds since 1970.
    pub(crate) at_ns: i128,
}

/// How timestamps are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When the episode began, in seconds. Timestamps more than 10 seconds earlier, or more than a day later,
    /// were set by a step and must be equal.
    pub(crate) began: i64,
    /// Two changes that are less than this many nanoseconds apart may get the same timestamp.
    pub(crate) grain_ns: i128,
}

/// The first difference between the sides: a time that changed on one side only since the last observation,
/// or a time that a step has set.
pub(crate) fn moved(
    then: Option<Observation>,
    now: Observation,
    clock: Clock,
    ctime_is_free: bool,
) -> Option<String> {
    let set = |stamp: (i64, u64)| stamp.0 < clock.began - 10 || stamp.0 > clock.began + 86_400;
    for (index, name) in ["atime", "mtime", "ctime"].into_iter().enumerate() {
        let (tested, reference) = (now.tested[index], now.reference[index]);
        if (set(tested) || set(reference)) && tested != reference {
            return Some(format!("{name} is {tested:?}, expected {reference:?}"));
        }
        let Some(then) = then else { continue };
        let (did, should) = (then.tested[index] != tested, then.reference[index] != reference);
        if did == should || index == 2 && did && ctime_is_free {
            continue;
        }
        // An unchanged timestamp may have been set again to the same value, if it is recent.
        let stayed = if did { reference } else { tested };
        let young =
            i128::from(stayed.0) * 1_000_000_000 + i128::from(stayed.1) >= then.at_ns - clock.grain_ns;
        if clock.grain_ns == 0 || !young {
            return Some(format!("{name} {}", if did { "changed unexpectedly" } else { "did not change" }));
        }
    }
    None
}

/// Names with their values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Names and values of all extended attributes, including ACLs. With `follow`, symbolic links are followed,
/// as the links in /proc that lead to open files require.
pub(crate) fn xattrs(path: &Path, follow: bool) -> Result<Xattrs, Errno> {
    let mut buffer = vec![0; 65_536];
    let len = match follow {
        true => rustix::fs::listxattr(path, &mut buffer[..])?,
        false => rustix::fs::llistxattr(path, &mut buffer[..])?,
    };
    let mut found = Vec::new();
    for name in split_names(&buffer[..len]) {
        let mut value = vec![0; 65_536];
        let len = match follow {
            true => rustix::fs::getxattr(path, &name[..], &mut value[..])?,
            false => rustix::fs::lgetxattr(path, &name[..], &mut value[..])?,
        };
        value.truncate(len);
        found.push((name, value));
    }
    Ok(found)
}

/// The first difference between the extended attributes of one file on the two sides.
pub(crate) fn compare_xattrs(tested: &Path, reference: &Path, follow: bool) -> Option<String> {
    let (mut tested, mut reference) = match (xattrs(tested, follow), xattrs(reference, follow)) {
        (Ok(tested), Ok(reference)) => (tested, reference),
        (Err(tested), Err(reference)) if tested == reference => return None,
        (tested, reference) => return Some(format!("listxattr returned {tested:?}, expected {reference:?}")),
    };
    for (name, value) in tested.iter_mut().chain(&mut reference) {
        known::sort_acl(name, value);
    }
    let show = |list: &[(Vec<u8>, Vec<u8>)]| {
        let parts: Vec<_> = list
            .iter()
            .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()))
            .collect();
        parts.join(" ")
    };
    (tested != reference).then(|| format!("xattrs are {}, expected {}", show(&tested), show(&reference)))
}

/// The first difference between the bytes of two regular files.
pub(crate) fn compare_content(tested: &Path, reference: &Path) -> Option<String> {
    let open = |path: &Path| -> Result<File, Errno> {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
            .map(File::from)
    };
    let (tested, reference) = match (open(tested), open(reference)) {
        (Ok(tested), Ok(reference)) => (tested, reference),
        (tested, reference) => {
            return Some(format!("open fails with {:?}, expected {:?}", tested.err(), reference.err()));
        }
    };
    let size = match (rustix::fs::fstat(&tested), rustix::fs::fstat(&reference)) {
        (Ok(tested), Ok(reference)) => tested.st_size.max(reference.st_size) as u64,
        (tested, reference) => {
            return Some(format!("fstat fails with {:?}, expected {:?}", tested.err(), reference.err()));
        }
    };
    let ranges = if size <= WHOLE_BYTES {
        vec![(0, size)]
    } else {
        let mut ranges = data_ranges(reference.as_fd());
        ranges.extend(data_ranges(tested.as_fd()));
        ranges
    };
    for (begin, end) in ranges {
        let mut at = begin;
        while at < end {
            let len = (end - at).min(1 << 20) as usize;
            let (a, b) = match (read_at(tested.as_fd(), at, len), read_at(reference.as_fd(), at, len)) {
                (Ok(a), Ok(b)) => (a, b),
                (a, b) => {
                    return Some(format!("read at {at} fails with {:?}, expected {:?}", a.err(), b.err()));
                }
            };
            if a != b {
                let first = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
                let show =
                    |bytes: &[u8]| bytes[first..bytes.len().min(first + 16)].escape_ascii().to_string();
                return Some(format!(
                    "content at {} of {size} is {}, expected {}",
                    at + first as u64,
                    show(&a),
                    show(&b)
                ));
            }
            at += len as u64;
        }
    }
    None
}

/// The data ranges that a file reports; empty if it cannot report any.
fn data_ranges(file: BorrowedFd<'_>) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(begin) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        let Ok(end) = rustix::fs::seek(file, SeekFrom::Hole(begin)) else { break };
        ranges.push((begin, end));
        at = end;
    }
    ranges
}

/// Reads until `len` bytes or the end of the file.
pub(crate) fn read_at(file: BorrowedFd<'_>, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match rustix::io::pread(file, &mut bytes[filled..], at + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
