//! The parser of requests.
//!
//! The parser does not trust its input: any bytes, including those of a fuzzer, result in a request or a
//! [`ParseError`]. A request is its header, the arguments of its opcode, and the extensions at the end.

use types::Time;
use zerocopy::FromBytes;

use crate::operation::*;
use crate::request::{Header, Malformed, ParseError, Request, SuppGroups};
use crate::wire;
use crate::{Fh, InitFlags, InitIn, LockOwner, NodeId, Opcode, RenameFlags, Unique};

impl<'a> Request<'a> {
    /// Parses `bytes`, which are one request.
    ///
    /// # Errors
    /// [`ParseError`], with the id of the request if its header is complete.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (head, args) = wire::InHeader::read_from_prefix(bytes).map_err(|_| ParseError {
            unique: None,
            opcode: None,
            why: Malformed::Short,
        })?;
        let header = Header {
            unique: Unique(head.unique),
            opcode: Opcode(head.opcode),
            nodeid: NodeId(head.nodeid),
            uid: head.uid,
            gid: head.gid,
            pid: head.pid,
        };
        parse_args(&head, bytes.len(), args)
            .map(|(operation, supp_groups)| Request { bytes, header, operation, supp_groups })
            .map_err(|why| ParseError { unique: Some(header.unique), opcode: Some(header.opcode), why })
    }
}

fn parse_args<'a>(
    head: &wire::InHeader,
    len: usize,
    args: &'a [u8],
) -> Result<(Operation<'a>, SuppGroups<'a>), Malformed> {
    if head.len as usize != len {
        return Err(Malformed::Length);
    }
    let ext_bytes = usize::from(head.total_extlen) * 8;
    let ext_start = args.len().checked_sub(ext_bytes).ok_or(Malformed::Extension)?;
    let (args, ext) = args.split_at(ext_start);
    let supp_groups = parse_extensions(ext)?;
    let mut args = Args(args);
    let operation = parse_operation(Opcode(head.opcode), &mut args)?;
    match args.0 {
        [] => Ok((operation, supp_groups)),
        _ => Err(Malformed::LeftOver),
    }
}

/// `FUSE_EXT_GROUPS`. A smaller type is the number of security contexts in the extension; such extensions and
/// those of unknown types are skipped.
const EXT_GROUPS: u32 = 32;

fn parse_extensions(mut ext: &[u8]) -> Result<SuppGroups<'_>, Malformed> {
    let mut groups = SuppGroups::default();
    while !ext.is_empty() {
        let (head, _) = wire::ExtHeader::read_from_prefix(ext).map_err(|_| Malformed::Extension)?;
        let (this, rest) = ext.split_at_checked(head.size as usize).ok_or(Malformed::Extension)?;
        let body = this.get(size_of::<wire::ExtHeader>()..).ok_or(Malformed::Extension)?;
        if head.kind == EXT_GROUPS {
            let (count, gids) = u32::read_from_prefix(body).map_err(|_| Malformed::Extension)?;
            let bytes = (count as usize).checked_mul(4).ok_or(Malformed::Extension)?;
            groups = SuppGroups(gids.get(..bytes).ok_or(Malformed::Extension)?);
        }
        ext = rest;
    }
    Ok(groups)
}

// Flags of requests, with the names of `include/uapi/linux/fuse.h`.
const GETATTR_FH: u32 = 1;
const WRITE_CACHE: u32 = 1;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
const SETXATTR_ACL_KILL_SGID: u32 = 1;
const LK_FLOCK: u32 = 1;

// The sizes of structures of which no field is needed.
const FSYNC_BYTES: usize = 16;
const SYNCFS_BYTES: usize = 8;

fn parse_operation<'a>(opcode: Opcode, args: &mut Args<'a>) -> Result<Operation<'a>, Malformed> {
    Ok(match opcode {
        Opcode::LOOKUP => Operation::Lookup { name: args.name()? },
        Opcode::FORGET => Operation::Forget { lookups: args.take()? },
        Opcode::BATCH_FORGET => Operation::BatchForget(args.forgets()?),
        Opcode::GETATTR => {
            let a: wire::GetattrIn = args.take()?;
            Operation::GetAttr { by_handle: a.flags & GETATTR_FH != 0 }
        }
        Opcode::SETATTR => Operation::SetAttr(args.set_attr()?),
        Opcode::READLINK => Operation::ReadLink,
        Opcode::SYMLINK => Operation::Symlink { name: args.name()?, target: args.string()? },
        Opcode::MKNOD => {
            let a: wire::MknodIn = args.take()?;
            Operation::MkNod { name: args.name()?, mode: a.mode, rdev: a.rdev, umask: a.umask }
        }
        Opcode::MKDIR => {
            let a: wire::MkdirIn = args.take()?;
            Operation::MkDir { name: args.name()?, mode: a.mode, umask: a.umask }
        }
        Opcode::UNLINK => Operation::Unlink { name: args.name()? },
        Opcode::RMDIR => Operation::RmDir { name: args.name()? },
        Opcode::RENAME => {
            let new_parent = args.take()?;
            args.rename(new_parent, 0)?
        }
        Opcode::RENAME2 => {
            let a: wire::Rename2In = args.take()?;
            args.rename(a.newdir, a.flags)?
        }
        Opcode::LINK => Operation::Link { node: NodeId(args.take()?), name: args.name()? },
        Opcode::OPEN => Operation::Open { flags: args.take::<wire::OpenIn>()?.flags },
        Opcode::CREATE => {
            let a: wire::CreateIn = args.take()?;
            Operation::Create(create(a, args.name()?))
        }
        Opcode::TMPFILE => {
            // The kernel sends "/" as the name of a file without a name (`vfs_tmpfile`).
            let a: wire::CreateIn = args.take()?;
            args.string()?;
            Operation::TmpFile(create(a, b""))
        }
        Opcode::READ => Operation::Read(args.read()?),
        Opcode::WRITE => Operation::Write(args.write()?),
        Opcode::FLUSH => Operation::Flush { lock_owner: LockOwner(args.take::<wire::FlushIn>()?.lock_owner) },
        Opcode::RELEASE => Operation::Release(args.release()?),
        Opcode::RELEASEDIR => Operation::ReleaseDir(args.release()?),
        Opcode::FSYNC => {
            args.take::<[u8; FSYNC_BYTES]>()?;
            Operation::Fsync
        }
        Opcode::FSYNCDIR => {
            args.take::<[u8; FSYNC_BYTES]>()?;
            Operation::FsyncDir
        }
        Opcode::STATFS => Operation::StatFs,
        Opcode::SETXATTR => {
            let a: wire::SetxattrIn = args.take()?;
            Operation::SetXattr(SetXattr {
                name: args.xattr_name()?,
                value: args.data(a.size)?,
                flags: a.flags,
                acl_kill_sgid: a.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0,
            })
        }
        Opcode::GETXATTR => Operation::GetXattr { size: args.number()?, name: args.xattr_name()? },
        Opcode::LISTXATTR => Operation::ListXattr { size: args.number()? },
        Opcode::REMOVEXATTR => Operation::RemoveXattr { name: args.xattr_name()? },
        Opcode::INIT => Operation::Init(args.init()?),
        Opcode::OPENDIR => Operation::OpenDir { flags: args.take::<wire::OpenIn>()?.flags },
        Opcode::READDIR => Operation::ReadDir(args.read()?),
        Opcode::READDIRPLUS => Operation::ReadDirPlus(args.read()?),
        Opcode::GETLK => Operation::GetLk(args.lock()?),
        Opcode::SETLK => Operation::SetLk { request: args.lock()?, wait: false },
        Opcode::SETLKW => Operation::SetLk { request: args.lock()?, wait: true },
        Opcode::ACCESS => Operation::Access { mask: args.number()? },
        Opcode::INTERRUPT => Operation::Interrupt { unique: Unique(args.take()?) },
        Opcode::DESTROY => Operation::Destroy,
        Opcode::FALLOCATE => {
            let a: wire::FallocateIn = args.take()?;
            Operation::Fallocate { fh: Fh(a.fh), offset: a.offset, len: a.length, mode: a.mode }
        }
        Opcode::LSEEK => {
            let a: wire::LseekIn = args.take()?;
            Operation::Lseek { offset: a.offset, whence: a.whence }
        }
        Opcode::COPY_FILE_RANGE => Operation::CopyFileRange(args.copy_range()?),
        Opcode::COPY_FILE_RANGE_64 => Operation::CopyFileRange64(args.copy_range()?),
        Opcode::SYNCFS => {
            args.take::<[u8; SYNCFS_BYTES]>()?;
            Operation::SyncFs
        }
        unknown => {
            args.0 = &[];
            Operation::Unknown(unknown)
        }
    })
}

/// The arguments that are not parsed yet.
struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    /// Takes the next structure. It is copied, because the bytes may be unaligned.
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed::Short)?;
        self.0 = rest;
        Ok(value)
    }

    /// Takes a number and its padding.
    fn number(&mut self) -> Result<u32, Malformed> {
        let [number, _padding] = self.take()?;
        Ok(number)
    }

    /// Takes the bytes up to the next NUL, and the NUL.
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Malformed::Unterminated)?;
        let string = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(string)
    }

    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        match name.is_empty() || name.contains(&b'/') {
            true => Err(Malformed::Name),
            false => Ok(name),
        }
    }

    fn xattr_name(&mut self) -> Result<&'a [u8], Malformed> {
        match self.string()? {
            [] => Err(Malformed::Name),
            name => Ok(name),
        }
    }

    /// Takes all remaining bytes. There must be exactly `size` of them.
    fn data(&mut self, size: u32) -> Result<&'a [u8], Malformed> {
        match self.0.len() == size as usize {
            true => Ok(std::mem::take(&mut self.0)),
            false => Err(Malformed::Count),
        }
    }

    fn forgets(&mut self) -> Result<Forgets<'a>, Malformed> {
        let count = self.number()? as usize;
        let (forgets, odd) = self.0.as_chunks();
        if forgets.len() != count || !odd.is_empty() {
            return Err(Malformed::Count);
        }
        self.0 = &[];
        Ok(Forgets(forgets))
    }

    fn rename(&mut self, newdir: u64, flags: u32) -> Result<Operation<'a>, Malformed> {
        Ok(Operation::Rename {
            name: self.name()?,
            new_parent: NodeId(newdir),
            new_name: self.name()?,
            flags: RenameFlags::from_bits_retain(flags),
        })
    }

    fn set_attr(&mut self) -> Result<SetAttr, Malformed> {
        // The bits of `valid`, `FATTR_*`.
        const MODE: u32 = 1;
        const UID: u32 = 1 << 1;
        const GID: u32 = 1 << 2;
        const SIZE: u32 = 1 << 3;
        const ATIME: u32 = 1 << 4;
        const MTIME: u32 = 1 << 5;
        const FH: u32 = 1 << 6;
        const ATIME_NOW: u32 = 1 << 7;
        const MTIME_NOW: u32 = 1 << 8;
        const CTIME: u32 = 1 << 10;
        const KILL_SUIDGID: u32 = 1 << 11;

        let a: wire::SetattrIn = self.take()?;
        let has = |bit: u32| a.valid & bit != 0;
        let set_time = |set: u32, now: u32, sec: i64, nsec: u32| match (has(now), has(set)) {
            (true, _) => Ok(Some(SetTime::Now)),
            (false, true) => time(sec, nsec).map(|t| Some(SetTime::At(t))),
            (false, false) => Ok(None),
        };
        Ok(SetAttr {
            mode: has(MODE).then_some(a.mode),
            uid: has(UID).then_some(a.uid),
            gid: has(GID).then_some(a.gid),
            size_bytes: has(SIZE).then_some(a.size),
            atime: set_time(ATIME, ATIME_NOW, a.atime, a.atimensec)?,
            mtime: set_time(MTIME, MTIME_NOW, a.mtime, a.mtimensec)?,
            ctime: has(CTIME).then(|| time(a.ctime, a.ctimensec)).transpose()?,
            fh: has(FH).then_some(Fh(a.fh)),
            kill_suidgid: has(KILL_SUIDGID),
        })
    }

    fn read(&mut self) -> Result<Read, Malformed> {
        let a: wire::ReadIn = self.take()?;
        Ok(Read { fh: Fh(a.fh), offset: a.offset, size_bytes: a.size, flags: a.flags })
    }

    fn write(&mut self) -> Result<Write<'a>, Malformed> {
        let a: wire::WriteIn = self.take()?;
        Ok(Write {
            fh: Fh(a.fh),
            offset: a.offset,
            data: self.data(a.size)?,
            flags: a.flags,
            from_cache: a.write_flags & WRITE_CACHE != 0,
            kill_suidgid: a.write_flags & WRITE_KILL_SUIDGID != 0,
        })
    }

    fn release(&mut self) -> Result<Release, Malformed> {
        let a: wire::ReleaseIn = self.take()?;
        Ok(Release {
            fh: Fh(a.fh),
            lock_owner: LockOwner(a.lock_owner),
            flock_unlock: a.release_flags & RELEASE_FLOCK_UNLOCK != 0,
        })
    }

    /// Kernels without `INIT_EXT` send 16 bytes, newer ones 64, and future ones may send more.
    fn init(&mut self) -> Result<InitIn, Malformed> {
        let a: wire::InitIn16 = self.take()?;
        let flags2 = match std::mem::take(&mut self.0) {
            [] => 0,
            rest => u32::read_from_prefix(rest).map_err(|_| Malformed::Short)?.0,
        };
        let flags = InitFlags::from_bits_retain(u64::from(a.flags));
        let flags = match flags.contains(InitFlags::INIT_EXT) {
            true => flags | InitFlags::from_bits_retain(u64::from(flags2) << 32),
            false => flags,
        };
        Ok(InitIn { major: a.major, minor: a.minor, max_readahead_bytes: a.max_readahead, flags })
    }

    fn lock(&mut self) -> Result<LockRequest, Malformed> {
        let a: wire::LkIn = self.take()?;
        Ok(LockRequest {
            fh: Fh(a.fh),
            owner: LockOwner(a.owner),
            lock: FileLock { start: a.lk.start, end: a.lk.end, kind: a.lk.kind, pid: a.lk.pid },
            flock: a.lk_flags & LK_FLOCK != 0,
        })
    }

    fn copy_range(&mut self) -> Result<CopyRange, Malformed> {
        let a: wire::CopyFileRangeIn = self.take()?;
        Ok(CopyRange {
            offset_in: a.off_in,
            node_out: NodeId(a.nodeid_out),
            fh_out: Fh(a.fh_out),
            offset_out: a.off_out,
            len: a.len,
        })
    }
}

fn create(a: wire::CreateIn, name: &[u8]) -> Create<'_> {
    Create { name, flags: a.flags, mode: a.mode, umask: a.umask }
}

fn time(sec: i64, nsec: u32) -> Result<Time, Malformed> {
    match nsec < 1_000_000_000 {
        true => Ok(Time::new(sec, nsec)),
        false => Err(Malformed::Time),
    }
}
