//! The structures of `include/uapi/linux/fuse.h`, in native byte order.
//!
//! The names are the kernel's without `fuse_`, except that `type` is called `kind`, and that a field of a
//! request that limenfs does not need begins with an underscore. Structures that consist of one u64, or of
//! one u32 and padding, are not defined here: the parser and the replies use a `u64` or a `[u32; 2]` instead.
//! A test below checks every size.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Defines structures in the layout of C that derive the given traits.
macro_rules! structures {
    ($traits:tt $($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[derive $traits]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*
    };
}

// Structures that are read from requests.
structures! {
    (FromBytes)

    InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        _padding: u16,
    }

    InitIn16 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    }

    ForgetOne {
        nodeid: u64,
        nlookup: u64,
    }

    GetattrIn {
        flags: u32,
        _dummy: u32,
        _fh: u64,
    }

    MknodIn {
        mode: u32,
        rdev: u32,
        umask: u32,
        _padding: u32,
    }

    MkdirIn {
        mode: u32,
        umask: u32,
    }

    Rename2In {
        newdir: u64,
        flags: u32,
        _padding: u32,
    }

    SetattrIn {
        valid: u32,
        _padding: u32,
        fh: u64,
        size: u64,
        _lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        _unused4: u32,
        uid: u32,
        gid: u32,
        _unused5: u32,
    }

    OpenIn {
        flags: u32,
        _open_flags: u32,
    }

    CreateIn {
        flags: u32,
        mode: u32,
        umask: u32,
        _open_flags: u32,
    }

    ReleaseIn {
        fh: u64,
        _flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }

    FlushIn {
        _fh: u64,
        _unused: u32,
        _padding: u32,
        lock_owner: u64,
    }

    ReadIn {
        fh: u64,
        offset: u64,
        size: u32,
        _read_flags: u32,
        _lock_owner: u64,
        flags: u32,
        _padding: u32,
    }

    WriteIn {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        _lock_owner: u64,
        flags: u32,
        _padding: u32,
    }

    SetxattrIn {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        _padding: u32,
    }

    LkIn {
        fh: u64,
        owner: u64,
        lk: FileLock,
        lk_flags: u32,
        _padding: u32,
    }

    FallocateIn {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        _padding: u32,
    }

    LseekIn {
        _fh: u64,
        offset: u64,
        whence: u32,
        _padding: u32,
    }

    CopyFileRangeIn {
        _fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        _flags: u64,
    }

    ExtHeader {
        size: u32,
        kind: u32,
    }
}

// Structures that are read and written.
structures! {
    (Default, FromBytes, IntoBytes, Immutable)

    FileLock {
        start: u64,
        end: u64,
        kind: u32,
        pid: u32,
    }
}

// Structures that are written to replies and notifications.
structures! {
    (Default, IntoBytes, Immutable)

    OutHeader {
        len: u32,
        error: i32,
        unique: u64,
    }

    InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }

    Attr {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }

    EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }

    AttrOut {
        attr_valid: u64,
        attr_valid_nsec: u32,
        padding: u32,
        attr: Attr,
    }

    OpenOut {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }

    StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    Dirent {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }

    NotifyInvalInodeOut {
        ino: u64,
        off: i64,
        len: i64,
    }

    NotifyInvalEntryOut {
        parent: u64,
        namelen: u32,
        flags: u32,
    }

    NotifyRetrieveOut {
        notify_unique: u64,
        nodeid: u64,
        offset: u64,
        size: u32,
        padding: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_structure_has_the_kernels_size() {
        let sizes = [
            (size_of::<InHeader>(), 40, "InHeader"),
            (size_of::<InitIn16>(), 16, "InitIn16"),
            (size_of::<ForgetOne>(), 16, "ForgetOne"),
            (size_of::<GetattrIn>(), 16, "GetattrIn"),
            (size_of::<MknodIn>(), 16, "MknodIn"),
            (size_of::<MkdirIn>(), 8, "MkdirIn"),
            (size_of::<Rename2In>(), 16, "Rename2In"),
            (size_of::<SetattrIn>(), 88, "SetattrIn"),
            (size_of::<OpenIn>(), 8, "OpenIn"),
            (size_of::<CreateIn>(), 16, "CreateIn"),
            (size_of::<ReleaseIn>(), 24, "ReleaseIn"),
            (size_of::<FlushIn>(), 24, "FlushIn"),
            (size_of::<ReadIn>(), 40, "ReadIn"),
            (size_of::<WriteIn>(), 40, "WriteIn"),
            (size_of::<SetxattrIn>(), 16, "SetxattrIn"),
            (size_of::<LkIn>(), 48, "LkIn"),
            (size_of::<FallocateIn>(), 32, "FallocateIn"),
            (size_of::<LseekIn>(), 24, "LseekIn"),
            (size_of::<CopyFileRangeIn>(), 56, "CopyFileRangeIn"),
            (size_of::<ExtHeader>(), 8, "ExtHeader"),
            (size_of::<FileLock>(), 24, "FileLock"),
            (size_of::<OutHeader>(), 16, "OutHeader"),
            (size_of::<InitOut>(), 64, "InitOut"),
            (size_of::<Attr>(), 88, "Attr"),
            (size_of::<EntryOut>(), 128, "EntryOut"),
            (size_of::<AttrOut>(), 104, "AttrOut"),
            (size_of::<OpenOut>(), 16, "OpenOut"),
            (size_of::<StatfsOut>(), 80, "StatfsOut"),
            (size_of::<Dirent>(), 24, "Dirent"),
            (size_of::<NotifyInvalInodeOut>(), 24, "NotifyInvalInodeOut"),
            (size_of::<NotifyInvalEntryOut>(), 16, "NotifyInvalEntryOut"),
            (size_of::<NotifyRetrieveOut>(), 32, "NotifyRetrieveOut"),
        ];
        for (ours, kernels, name) in sizes {
            assert_eq!(ours, kernels, "{name}");
        }
    }
}
