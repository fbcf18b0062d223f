//! The structures of `include/uapi/linux/fuse.h`, in native byte order.
//!
//! The names are the kernel's without `fuse_`, except that `type` is called `kind`. A test below checks every
//! size.

use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct InHeader {
    pub(crate) len: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) nodeid: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) total_extlen: u16,
    pub(crate) _padding: u16,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct InitIn16 {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ForgetIn {
    pub(crate) nlookup: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ForgetOne {
    pub(crate) nodeid: u64,
    pub(crate) nlookup: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct BatchForgetIn {
    pub(crate) count: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct GetattrIn {
    pub(crate) getattr_flags: u32,
    pub(crate) _padding: u32,
    pub(crate) fh: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct StatxIn {
    pub(crate) getattr_flags: u32,
    pub(crate) _reserved: u32,
    pub(crate) fh: u64,
    pub(crate) sx_flags: u32,
    pub(crate) sx_mask: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct MknodIn {
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    pub(crate) umask: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct MkdirIn {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct RenameIn {
    pub(crate) newdir: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct Rename2In {
    pub(crate) newdir: u64,
    pub(crate) flags: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct LinkIn {
    pub(crate) oldnodeid: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetattrIn {
    pub(crate) valid: u32,
    pub(crate) _padding: u32,
    pub(crate) fh: u64,
    pub(crate) size: u64,
    pub(crate) lock_owner: u64,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) atimensec: u32,
    pub(crate) mtimensec: u32,
    pub(crate) ctimensec: u32,
    pub(crate) mode: u32,
    pub(crate) _unused4: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) _unused5: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct OpenIn {
    pub(crate) flags: u32,
    pub(crate) open_flags: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct CreateIn {
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) open_flags: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ReleaseIn {
    pub(crate) fh: u64,
    pub(crate) flags: u32,
    pub(crate) release_flags: u32,
    pub(crate) lock_owner: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FlushIn {
    pub(crate) fh: u64,
    pub(crate) _unused: u32,
    pub(crate) _padding: u32,
    pub(crate) lock_owner: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ReadIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) read_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct WriteIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) write_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FsyncIn {
    pub(crate) fh: u64,
    pub(crate) fsync_flags: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetxattrIn {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) setxattr_flags: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct GetxattrIn {
    pub(crate) size: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct LkIn {
    pub(crate) fh: u64,
    pub(crate) owner: u64,
    pub(crate) lk: FileLock,
    pub(crate) lk_flags: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct AccessIn {
    pub(crate) mask: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct InterruptIn {
    pub(crate) unique: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct BmapIn {
    pub(crate) block: u64,
    pub(crate) blocksize: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct IoctlIn {
    pub(crate) fh: u64,
    pub(crate) flags: u32,
    pub(crate) cmd: u32,
    pub(crate) arg: u64,
    pub(crate) in_size: u32,
    pub(crate) out_size: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct PollIn {
    pub(crate) fh: u64,
    pub(crate) kh: u64,
    pub(crate) flags: u32,
    pub(crate) events: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct FallocateIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) mode: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct LseekIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) whence: u32,
    pub(crate) _padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct CopyFileRangeIn {
    pub(crate) fh_in: u64,
    pub(crate) off_in: u64,
    pub(crate) nodeid_out: u64,
    pub(crate) fh_out: u64,
    pub(crate) off_out: u64,
    pub(crate) len: u64,
    pub(crate) flags: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SyncfsIn {
    pub(crate) _padding: u64,
}

#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct ExtHeader {
    pub(crate) size: u32,
    pub(crate) kind: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct FileLock {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: u32,
    pub(crate) pid: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) time_gran: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) flags2: u32,
    pub(crate) max_stack_depth: u32,
    pub(crate) request_timeout: u16,
    pub(crate) unused: [u16; 11],
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Attr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) atimensec: u32,
    pub(crate) mtimensec: u32,
    pub(crate) ctimensec: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) blksize: u32,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct EntryOut {
    pub(crate) nodeid: u64,
    pub(crate) generation: u64,
    pub(crate) entry_valid: u64,
    pub(crate) attr_valid: u64,
    pub(crate) entry_valid_nsec: u32,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) attr: Attr,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AttrOut {
    pub(crate) attr_valid: u64,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) padding: u32,
    pub(crate) attr: Attr,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct SxTime {
    pub(crate) sec: i64,
    pub(crate) nsec: u32,
    pub(crate) reserved: i32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Statx {
    pub(crate) mask: u32,
    pub(crate) blksize: u32,
    pub(crate) attributes: u64,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pub(crate) spare0: u16,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) attributes_mask: u64,
    pub(crate) atime: SxTime,
    pub(crate) btime: SxTime,
    pub(crate) ctime: SxTime,
    pub(crate) mtime: SxTime,
    pub(crate) rdev_major: u32,
    pub(crate) rdev_minor: u32,
    pub(crate) dev_major: u32,
    pub(crate) dev_minor: u32,
    pub(crate) spare2: [u64; 14],
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct StatxOut {
    pub(crate) attr_valid: u64,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) flags: u32,
    pub(crate) spare: [u64; 2],
    pub(crate) stat: Statx,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenOut {
    pub(crate) fh: u64,
    pub(crate) open_flags: u32,
    pub(crate) backing_id: i32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WriteOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct StatfsOut {
    pub(crate) blocks: u64,
    pub(crate) bfree: u64,
    pub(crate) bavail: u64,
    pub(crate) files: u64,
    pub(crate) ffree: u64,
    pub(crate) bsize: u32,
    pub(crate) namelen: u32,
    pub(crate) frsize: u32,
    pub(crate) padding: u32,
    pub(crate) spare: [u32; 6],
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct GetxattrOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct BmapOut {
    pub(crate) block: u64,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct PollOut {
    pub(crate) revents: u32,
    pub(crate) padding: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct LseekOut {
    pub(crate) offset: u64,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CopyFileRangeOut {
    pub(crate) bytes_copied: u64,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Dirent {
    pub(crate) ino: u64,
    pub(crate) off: u64,
    pub(crate) namelen: u32,
    pub(crate) kind: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct NotifyInvalInodeOut {
    pub(crate) ino: u64,
    pub(crate) off: i64,
    pub(crate) len: i64,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct NotifyInvalEntryOut {
    pub(crate) parent: u64,
    pub(crate) namelen: u32,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct NotifyDeleteOut {
    pub(crate) parent: u64,
    pub(crate) child: u64,
    pub(crate) namelen: u32,
    pub(crate) padding: u32,
}

#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct NotifyRetrieveOut {
    pub(crate) notify_unique: u64,
    pub(crate) nodeid: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_structure_has_the_kernels_size() {
        let sizes = [
            (size_of::<InHeader>(), 40, "InHeader"),
            (size_of::<InitIn16>(), 16, "InitIn16"),
            (size_of::<ForgetIn>(), 8, "ForgetIn"),
            (size_of::<ForgetOne>(), 16, "ForgetOne"),
            (size_of::<BatchForgetIn>(), 8, "BatchForgetIn"),
            (size_of::<GetattrIn>(), 16, "GetattrIn"),
            (size_of::<StatxIn>(), 24, "StatxIn"),
            (size_of::<MknodIn>(), 16, "MknodIn"),
            (size_of::<MkdirIn>(), 8, "MkdirIn"),
            (size_of::<RenameIn>(), 8, "RenameIn"),
            (size_of::<Rename2In>(), 16, "Rename2In"),
            (size_of::<LinkIn>(), 8, "LinkIn"),
            (size_of::<SetattrIn>(), 88, "SetattrIn"),
            (size_of::<OpenIn>(), 8, "OpenIn"),
            (size_of::<CreateIn>(), 16, "CreateIn"),
            (size_of::<ReleaseIn>(), 24, "ReleaseIn"),
            (size_of::<FlushIn>(), 24, "FlushIn"),
            (size_of::<ReadIn>(), 40, "ReadIn"),
            (size_of::<WriteIn>(), 40, "WriteIn"),
            (size_of::<FsyncIn>(), 16, "FsyncIn"),
            (size_of::<SetxattrIn>(), 16, "SetxattrIn"),
            (size_of::<GetxattrIn>(), 8, "GetxattrIn"),
            (size_of::<LkIn>(), 48, "LkIn"),
            (size_of::<AccessIn>(), 8, "AccessIn"),
            (size_of::<InterruptIn>(), 8, "InterruptIn"),
            (size_of::<BmapIn>(), 16, "BmapIn"),
            (size_of::<IoctlIn>(), 32, "IoctlIn"),
            (size_of::<PollIn>(), 24, "PollIn"),
            (size_of::<FallocateIn>(), 32, "FallocateIn"),
            (size_of::<LseekIn>(), 24, "LseekIn"),
            (size_of::<CopyFileRangeIn>(), 56, "CopyFileRangeIn"),
            (size_of::<SyncfsIn>(), 8, "SyncfsIn"),
            (size_of::<ExtHeader>(), 8, "ExtHeader"),
            (size_of::<FileLock>(), 24, "FileLock"),
            (size_of::<OutHeader>(), 16, "OutHeader"),
            (size_of::<InitOut>(), 64, "InitOut"),
            (size_of::<Attr>(), 88, "Attr"),
            (size_of::<EntryOut>(), 128, "EntryOut"),
            (size_of::<AttrOut>(), 104, "AttrOut"),
            (size_of::<SxTime>(), 16, "SxTime"),
            (size_of::<Statx>(), 256, "Statx"),
            (size_of::<StatxOut>(), 288, "StatxOut"),
            (size_of::<OpenOut>(), 16, "OpenOut"),
            (size_of::<WriteOut>(), 8, "WriteOut"),
            (size_of::<StatfsOut>(), 80, "StatfsOut"),
            (size_of::<GetxattrOut>(), 8, "GetxattrOut"),
            (size_of::<BmapOut>(), 8, "BmapOut"),
            (size_of::<PollOut>(), 8, "PollOut"),
            (size_of::<LseekOut>(), 8, "LseekOut"),
            (size_of::<CopyFileRangeOut>(), 8, "CopyFileRangeOut"),
            (size_of::<Dirent>(), 24, "Dirent"),
            (size_of::<NotifyInvalInodeOut>(), 24, "NotifyInvalInodeOut"),
            (size_of::<NotifyInvalEntryOut>(), 16, "NotifyInvalEntryOut"),
            (size_of::<NotifyDeleteOut>(), 24, "NotifyDeleteOut"),
            (size_of::<NotifyRetrieveOut>(), 32, "NotifyRetrieveOut"),
        ];
        for (ours, kernels, name) in sizes {
            assert_eq!(ours, kernels, "{name}");
        }
    }
}
