//! Values at the limits of their types.

use std::sync::Arc;

use meta::{Counter, Dirent, Effect, Engine, Inode, QuotaTag, Record, RecordKey};
use types::{AclId, ChunkIndex, FileType, Ino, Mode, Slice, SliceSource, Time};

use super::fixture::*;

pub fn names_of_any_bytes(engine: &dyn Engine) {
    let every_byte: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    let names = [vec![0xff; 255], vec![b'a'; 255], every_byte, b"'; --".to_vec(), b"%_*?[\\".to_vec()];
    for (number, bytes) in names.iter().enumerate() {
        let (parent, name, ino) = (Ino(2), name(bytes), Ino(10 + number as u64));
        apply(engine, vec![Effect::PutDirent { parent, name: name.clone(), ino, kind: FILE }]);
        let dirent = Some(Dirent { ino, kind: FILE });
        assert_eq!(
            read(engine, &[RecordKey::Dirent(parent, name.clone())]),
            [Record::Dirent(parent, name, dirent), Record::Inode(ino, None)]
        );
    }
}

pub fn numbers_at_their_limits(engine: &dyn Engine) {
    let most = Inode {
        ino: Ino(i64::MAX as u64),
        kind: FileType::CharDevice,
        mode: Mode::new(0o7777),
        uid: u32::MAX,
        gid: u32::MAX,
        rdev: u32::MAX,
        nlink: u32::MAX,
        size: i64::MAX as u64,
        atime: Time::MIN,
        mtime: Time::from_nanos(i64::MAX),
        ctime: Time::from_nanos(-1),
        access_acl: AclId(u128::MAX),
        default_acl: AclId(1),
        parent: Ino(i64::MAX as u64),
        access_rev: i64::MAX as u64,
        xattr_blocks: u16::MAX,
        quota: QuotaTag::NONE,
    };
    let kinds = [
        FileType::Fifo,
        FileType::CharDevice,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::Regular,
        FileType::Symlink,
        FileType::Socket,
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        let inode = Inode { ino: Ino(most.ino.0 - number as u64), kind, ..most };
        apply(engine, vec![Effect::PutInode(inode)]);
        assert_eq!(read_inode(engine, inode.ino.0), Some(inode));
    }
    apply(engine, vec![Effect::AddLinks { ino: most.ino, delta: i32::MAX }]);
    assert_eq!(read_inode(engine, most.ino.0).map(|inode| inode.nlink), Some(u32::MAX));
    assert_eq!(read_usage(engine).blocks, (1 << 51) + 7 * u64::from(u16::MAX));
    let counter = Counter::Session;
    apply(engine, vec![Effect::SetCounter { counter, value: i64::MAX as u64 }]);
    assert_eq!(read(engine, &[RecordKey::Counter(counter)]), [Record::Counter(counter, i64::MAX as u64)]);
    let chunk = ChunkIndex((i64::MAX as u64) >> 26);
    let slice = Slice { pos: u32::MAX, len: u32::MAX, source: SliceSource::Hole };
    apply(engine, vec![Effect::AppendSlice { ino: most.ino, chunk, slice: slice.clone() }]);
    assert_eq!(
        read(engine, &[RecordKey::Slices(most.ino, chunk)]),
        [Record::Slices(most.ino, chunk, vec![slice].into())]
    );
}

pub fn long_values(engine: &dyn Engine) {
    let ino = Ino(3);
    let bytes: Arc<[u8]> = (0..64 << 10).map(|n| n as u8).collect();
    let text: Arc<str> = "ü".repeat(32 << 10).into();
    let target: Arc<[u8]> = vec![b'x'; 4095].into();
    let slice = Slice { pos: 0, len: bytes.len() as u32, source: SliceSource::Inline(bytes.clone()) };
    let name = xattr([b'n'; 255]);
    apply(
        engine,
        vec![
            put(3, FILE),
            Effect::PutXattr { ino, name: name.clone(), value: bytes.clone() },
            Effect::PutAcl { id: AclId(9), text: text.clone() },
            Effect::PutSymlink { ino, target: target.clone() },
            Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice: slice.clone() },
        ],
    );
    let xattrs = Arc::new([(name, bytes)].into_iter().collect());
    assert_eq!(
        read(
            engine,
            &[
                RecordKey::Xattrs(ino),
                RecordKey::Acl(AclId(9)),
                RecordKey::Symlink(ino),
                RecordKey::Slices(ino, ChunkIndex(0))
            ]
        ),
        [
            Record::Xattrs(ino, xattrs),
            Record::Acl(AclId(9), Some(text)),
            Record::Symlink(ino, Some(target)),
            Record::Slices(ino, ChunkIndex(0), vec![slice].into()),
        ]
    );
}

/// Reading an inode also returns its ACLs, even if they are absent or equal.
pub fn acls_are_read_with_inodes(engine: &dyn Engine) {
    let (here, gone) = (AclId(5), AclId(6));
    let mut dir = inode(3, DIR);
    (dir.access_acl, dir.default_acl) = (here, gone);
    apply(
        engine,
        vec![Effect::PutAcl { id: here, text: "text".into() }, Effect::PutInode(dir), put_dirent(2, "a", 3)],
    );
    let acls = [Record::Acl(here, Some("text".into())), Record::Acl(gone, None)];
    for key in [RecordKey::Inode(Ino(3)), RecordKey::Dirent(Ino(2), name("a"))] {
        let records = read(engine, &[key]);
        assert!(
            records.contains(&Record::Inode(Ino(3), Some(dir))) && records.ends_with(&acls),
            "{records:?}"
        );
    }
}
