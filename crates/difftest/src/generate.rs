//! Generates the next step from a seed and the existing names. Most steps name a file that exists; some are
//! invalid.

use rustix::fs::{Access, FallocateFlags, OFlags, RenameFlags, XattrFlags};

use crate::known::Abilities;
use crate::random::Random;
use crate::step::{ACL_NAMES, At, Call, RelativePath, SLOTS, Special, Stamp, Step, USERS, Whence};

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e\xff\n", b"f"];
/// IDs of users and groups, and one that no user has.
const IDS: [u32; 7] = [0, 1001, 1002, 1003, 2000, 1001, 77_777];
const MODES: [u32; 18] = [
    0o644, 0o600, 0o755, 0o777, 0o777, 0o770, 0o666, 0o000, 0o444, 0o711, 0o2755, 0o4755, 0o6777, 0o1777,
    0o2770, 0o2644, 0o4711, 0o2777,
];
const UMASKS: [u32; 5] = [0, 0o022, 0o022, 0o027, 0o077];
const XATTRS: [&str; 7] = [
    "user.a",
    "user.b",
    "user.",
    "trusted.t",
    "security.s",
    "nonsense.x",
    "user.\u{e4}-somewhat-longer-name",
];
const OFFSETS: [u64; 14] = [
    0,
    1,
    511,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    131_072,
    200_001,
    262_143,
    1 << 20,
    (4 << 20) - 1,
    (64 << 20) - 3,
];
const LENGTHS: [usize; 12] = [0, 1, 3, 100, 511, 4096, 4097, 10_000, 65_536, 70_001, 131_073, 300_000];

#[derive(Debug)]
pub(crate) struct Generator {
    random: Random,
    abilities: Abilities,
}

impl Generator {
    pub(crate) fn new(seed: u64, abilities: Abilities) -> Self {
        Generator { random: Random::new(seed), abilities }
    }

    /// `live` are the names that the last full comparison found, and those that later steps named.
    pub(crate) fn step(&mut self, live: &[RelativePath]) -> Step {
        // Root is more frequent, because its steps rarely fail and so create files for the others.
        let user = if self.random.chance(30) { 0 } else { self.random.below(USERS.len() as u64) as usize };
        let umask = self.random.pick(&UMASKS);
        Step { user, umask, call: self.call(live) }
    }

    fn call(&mut self, live: &[RelativePath]) -> Call {
        let slot = self.slot();
        match self.random.below(100) {
            0..13 => self.open(slot, live),
            13..15 => Call::Close { slot },
            15..20 => self.read(slot),
            20..30 => self.write(slot),
            30..33 => Call::Truncate { slot, len: self.offset() },
            33..36 => self.allocate(slot),
            36..41 => self.seek(slot),
            41..44 => {
                let from_offset = self.random.chance(60).then(|| self.offset());
                let to_offset = self.random.chance(60).then(|| self.offset());
                Call::Copy {
                    from: slot,
                    from_offset,
                    to: self.slot(),
                    to_offset,
                    len: self.random.pick(&LENGTHS),
                }
            }
            44 => match self.random.chance(25) {
                true => Call::Sync { slot },
                false => Call::Stat { at: self.at(live) },
            },
            45..50 => Call::Mkdir { rel_path: self.new_path(live), mode: self.mode() },
            50..52 => Call::Rmdir { rel_path: self.path_below(live) },
            52..57 => Call::Unlink { rel_path: self.path_below(live) },
            57..60 => {
                let from = match self.random.chance(30) {
                    true => At::Slot(slot),
                    false => At::Path(self.any_path(live), self.random.chance(30)),
                };
                Call::Link { from, to: self.new_path(live) }
            }
            60..62 => Call::Symlink { target: self.target(live), rel_path: self.new_path(live) },
            62 => Call::Readlink { rel_path: self.any_path(live) },
            63..70 => self.rename(live),
            70 => {
                let kind =
                    self.random.pick(&[Special::Fifo, Special::Socket, Special::Null, Special::Regular]);
                Call::Special { rel_path: self.new_path(live), mode: self.mode(), kind }
            }
            71..73 => Call::List { rel_path: self.any_path(live) },
            73..75 => {
                let mask = self.random.below(8) as u32;
                Call::Access { rel_path: self.any_path(live), mask: Access::from_bits_truncate(mask) }
            }
            75..80 => Call::Chmod { at: self.at(live), mode: self.mode() },
            80..83 => {
                let uid = self.random.chance(50).then(|| self.random.pick(&IDS));
                let gid = self.random.chance(70).then(|| self.random.pick(&IDS));
                Call::Chown { at: self.at(live), uid, gid }
            }
            83..86 => Call::Times { at: self.at(live), atime: self.stamp(), mtime: self.stamp() },
            86..92 => self.set_acl(live),
            92..94 => {
                let name = self.random.pick(&ACL_NAMES);
                match self.random.chance(60) {
                    true => Call::RemoveXattr { at: self.at(live), name },
                    false => Call::GetXattr { at: self.at(live), name },
                }
            }
            94..97 => {
                // Each value occurs once, except the empty one.
                let mut value = format!("{:016x}", self.random.below(1 << 48)).into_bytes();
                value.resize(self.random.pick(&[0, 16, 20, 200, 65_537]), b'x');
                let flags = self.random.pick(&[
                    XattrFlags::empty(),
                    XattrFlags::empty(),
                    XattrFlags::CREATE,
                    XattrFlags::REPLACE,
                    XattrFlags::CREATE | XattrFlags::REPLACE,
                ]);
                Call::SetXattr { at: self.at(live), name: self.random.pick(&XATTRS), value, flags }
            }
            97 => Call::GetXattr { at: self.at(live), name: self.random.pick(&XATTRS) },
            98 => Call::RemoveXattr { at: self.at(live), name: self.random.pick(&XATTRS) },
            _ => Call::ListXattr { at: self.at(live) },
        }
    }

    fn open(&mut self, slot: usize, live: &[RelativePath]) -> Call {
        let mut flags = self.random.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
        // Opening a FIFO must not wait for the other end.
        flags |= OFlags::NONBLOCK;
        let mut rel_path = self.any_path(live);
        if self.random.chance(12) {
            flags |= OFlags::TMPFILE;
        } else {
            if self.random.chance(60) {
                flags |= OFlags::CREATE;
                rel_path = self.new_path(live);
            }
            for (flag, percent) in [
                (OFlags::EXCL, 15),
                (OFlags::TRUNC, 15),
                (OFlags::APPEND, 20),
                (OFlags::DIRECTORY, 5),
                (OFlags::NOFOLLOW, 10),
                (OFlags::NOATIME, 5),
            ] {
                if self.random.chance(percent) {
                    flags |= flag;
                }
            }
        }
        if flags.contains(OFlags::TMPFILE) && self.random.chance(20) {
            flags |= OFlags::EXCL;
        }
        Call::Open { slot, rel_path, flags, mode: self.mode() }
    }

    fn read(&mut self, slot: usize) -> Call {
        let len = self.random.pick(&LENGTHS);
        match self.random.chance(50) {
            true => Call::Read { slot, len },
            false => Call::Pread { slot, offset: self.offset(), len },
        }
    }

    fn write(&mut self, slot: usize) -> Call {
        let (len, fill) = (self.random.pick(&LENGTHS), self.random.below(256) as u8);
        match self.random.chance(50) {
            true => Call::Write { slot, len, fill },
            false => Call::Pwrite { slot, offset: self.offset(), len, fill },
        }
    }

    fn allocate(&mut self, slot: usize) -> Call {
        let keep = FallocateFlags::KEEP_SIZE;
        let mut modes = vec![
            FallocateFlags::empty(),
            keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE,
        ];
        if self.abilities.zero_range {
            modes.extend([FallocateFlags::ZERO_RANGE, FallocateFlags::ZERO_RANGE | keep]);
        }
        // A small reference file system cannot allocate hundreds of MiB.
        let offset = self.offset().min(4 << 20);
        Call::Allocate {
            slot,
            mode: self.random.pick(&modes),
            offset,
            len: self.random.pick(&LENGTHS) as u64,
        }
    }

    fn seek(&mut self, slot: usize) -> Call {
        let whence =
            self.random.pick(&[Whence::Start, Whence::Current, Whence::End, Whence::Data, Whence::Hole]);
        let offset = self.offset() as i64;
        let back = matches!(whence, Whence::Current | Whence::End) && self.random.chance(40);
        Call::Seek { slot, whence, offset: if back { -offset } else { offset } }
    }

    fn rename(&mut self, live: &[RelativePath]) -> Call {
        let flags = self.random.pick(&[
            RenameFlags::empty(),
            RenameFlags::empty(),
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
            RenameFlags::EXCHANGE,
            RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
        ]);
        let to = if self.random.chance(60) { self.path_below(live) } else { self.new_path(live) };
        Call::Rename { from: self.path_below(live), to, flags }
    }

    fn set_acl(&mut self, live: &[RelativePath]) -> Call {
        let name = self.random.pick(&ACL_NAMES);
        let flags = match self.random.below(10) {
            0 => XattrFlags::CREATE,
            1 => XattrFlags::REPLACE,
            _ => XattrFlags::empty(),
        };
        Call::SetXattr { at: self.at(live), name, value: self.acl(), flags }
    }

    /// The bytes of an ACL (acl(5), linux/posix_acl_xattr.h); one in five is malformed.
    fn acl(&mut self) -> Vec<u8> {
        const UNDEFINED: u32 = u32::MAX;
        let mut entries: Vec<(u16, u16, u32)> = vec![(0x01, self.permission(), UNDEFINED)];
        let named = self.random.chance(75);
        if named {
            self.named(0x02, &mut entries);
        }
        entries.push((0x04, self.permission(), UNDEFINED));
        if named {
            self.named(0x08, &mut entries);
        }
        if named || self.random.chance(20) {
            entries.push((0x10, self.permission(), UNDEFINED));
        }
        entries.push((0x20, self.permission(), UNDEFINED));
        let mut version = 2_u32;
        let mut extra = 0;
        match self.random.below(50) {
            0 => entries.clear(),
            1 => version = self.random.pick(&[0, 1, 3]),
            2 => extra = 3,
            3 => drop(entries.pop()),
            4 => entries.reverse(),
            5 => entries[0].1 = 0o10,
            6 => entries[0].0 = 0x40,
            7 => entries.push((0x20, 7, UNDEFINED)),
            8 => drop(entries.remove(0)),
            9 => return Vec::new(),
            _ => {}
        }
        let mut bytes = version.to_le_bytes().to_vec();
        for (tag, permission, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permission.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes.extend(vec![0; extra]);
        bytes
    }

    /// Up to three entries of one kind, each ID once and mostly in order.
    fn named(&mut self, tag: u16, entries: &mut Vec<(u16, u16, u32)>) {
        let mut ids: Vec<u32> = (0..self.random.below(4)).map(|_| self.random.pick(&IDS)).collect();
        ids.sort_unstable();
        ids.dedup();
        if self.random.chance(10) {
            ids.reverse();
        }
        for id in ids {
            entries.push((tag, self.permission(), id));
        }
    }

    fn permission(&mut self) -> u16 {
        self.random.pick(&[7, 7, 6, 5, 4, 3, 2, 1, 0])
    }

    fn stamp(&mut self) -> Stamp {
        match self.random.below(8) {
            0..2 => Stamp::Now,
            2..4 => Stamp::Omit,
            4 => Stamp::Exact(-1_000_000_000 - self.random.below(1_000_000_000) as i64, 999_999_999),
            5 => Stamp::Exact(5_000_000_000 + self.random.below(4_000_000_000) as i64, 1),
            6 => Stamp::Exact(0, self.random.pick(&[0, 1, 999_999_999, 1_000_000_000])),
            _ => Stamp::Exact(1_000_000_000 + self.random.below(500_000_000) as i64, 123_456_789),
        }
    }

    fn mode(&mut self) -> u32 {
        if self.random.chance(10) { self.random.below(0o10000) as u32 } else { self.random.pick(&MODES) }
    }

    fn offset(&mut self) -> u64 {
        // Most files stay small.
        let near = if self.random.chance(92) { 11 } else { OFFSETS.len() };
        let offset = self.random.pick(&OFFSETS[..near]);
        if self.random.chance(30) { offset + self.random.below(10_000) } else { offset }
    }

    fn slot(&mut self) -> usize {
        self.random.below(SLOTS as u64) as usize
    }

    fn at(&mut self, live: &[RelativePath]) -> At {
        if self.random.chance(25) {
            return At::Slot(self.slot());
        }
        At::Path(self.any_path(live), self.random.chance(80))
    }

    /// A path, in most cases that of an existing file.
    fn any_path(&mut self, live: &[RelativePath]) -> RelativePath {
        let mut rel_path = match self.random.below(20) {
            0..16 if !live.is_empty() => self.random.pick(live),
            16 => RelativePath(Vec::new()),
            _ => self.new_path(live),
        };
        let suffix: &[u8] = match self.random.below(60) {
            0 => b"/",
            1 => b"/.",
            2 => b"/..",
            3 => b"/a",
            4 => b"//b",
            _ => b"",
        };
        // A path contains `..` at most once, so it leads at most one level above the directory under
        // test.
        if !rel_path.0.is_empty() && (suffix != b"/.." || !leads_up(&rel_path)) {
            rel_path.0.extend_from_slice(suffix);
        }
        rel_path
    }

    /// Like `any_path`, but never the directory under test itself, which must not be removed.
    fn path_below(&mut self, live: &[RelativePath]) -> RelativePath {
        match self.any_path(live) {
            RelativePath(bytes) if bytes.is_empty() => self.new_path(live),
            rel_path => rel_path,
        }
    }

    /// A name in the directory under test, or below an existing name.
    fn new_path(&mut self, live: &[RelativePath]) -> RelativePath {
        let mut bytes = Vec::new();
        if !live.is_empty() && self.random.chance(65) {
            let rel_path = self.random.pick(live);
            // At most three components. A name directly in the directory under test gets no slash before it,
            // because it may become the target of a link, which would then be an absolute path.
            if !rel_path.0.is_empty() && rel_path.0.iter().filter(|byte| **byte == b'/').count() < 2 {
                bytes = rel_path.0;
                bytes.push(b'/');
            }
        }
        match self.random.below(150) {
            0 => bytes.extend(vec![b'n'; 255]),
            1 => bytes.extend(vec![b'n'; 256]),
            _ => bytes.extend_from_slice(self.random.pick(&NAMES)),
        }
        RelativePath(bytes)
    }

    /// The target of a symbolic link. It must not lead upwards or to the real root, because root follows
    /// links too and could change files outside of the directory under test.
    fn target(&mut self, live: &[RelativePath]) -> RelativePath {
        match self.random.below(10) {
            0 => RelativePath(vec![b't'; 4000]),
            1 => RelativePath(b".".to_vec()),
            2 => RelativePath(Vec::new()),
            3..6 => RelativePath(self.random.pick(&NAMES).to_vec()),
            _ => match self.new_path(live) {
                rel_path if leads_up(&rel_path) => RelativePath(self.random.pick(&NAMES).to_vec()),
                rel_path => rel_path,
            },
        }
    }
}

fn leads_up(rel_path: &RelativePath) -> bool {
    rel_path.0.split(|byte| *byte == b'/').any(|name| name == b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_links_stay_inside_the_directory() {
        let abilities = Abilities { zero_range: true, grain_ns: 0 };
        let mut generator = Generator::new(1, abilities);
        let live =
            [&b""[..], b"a", b"a/..", b"a/b", b"c/../d"].map(|rel_path| RelativePath(rel_path.to_vec()));
        for _ in 0..20_000 {
            let target = generator.target(&live);
            assert!(!target.0.starts_with(b"/") && !leads_up(&target), "{target}");
            let rel_path = generator.any_path(&live);
            let up = rel_path.0.split(|byte| *byte == b'/').filter(|name| *name == b"..").count();
            assert!(!rel_path.0.starts_with(b"/") && up <= 1, "{rel_path}");
        }
    }
}
