//! A formatted volume, clients of it, and short names for operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use acl::posix::PosixAcl;
use client::{Failure, ListedEntry, Meta};
use meta::{Counter, Engine, Inode, Volume};
use ops::{
    AclType, Authority, GetAcl, GetInode, Link, Lookup, Make, MakeKind, Op, Rename, RenameFlags, Renamed,
    Rmdir, SetAcl, SetAttr, SetXattr, Unlink, Unlinked, Write, XattrMode,
};
use types::{AclId, ChunkIndex, Errno, Ino, Mode, Name, Slice, SliceId, SliceSource, Time, XattrName};

use super::case::Factory;

pub(super) const ROOT: Ino = Ino::ROOT;
/// A kernel whose attributes are always current, as for a client with exclusive use of the volume.
pub(super) const KERNEL: Authority<'_> = Authority::Kernel { revisions: None };
pub(super) const REPLACE: RenameFlags = RenameFlags { no_replace: false, exchange: false };
pub(super) const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, exchange: false };
pub(super) const EXCHANGE: RenameFlags = RenameFlags { no_replace: false, exchange: true };
const CACHE_RECORDS: usize = 100_000;

pub(super) fn volume() -> Volume {
    Volume::in_memory("test")
}

/// A client, and the inode numbers it has leased. Its operations run under [`Client::authority`].
#[derive(Debug)]
pub(super) struct Client {
    pub(super) meta: Meta,
    pub(super) authority: Authority<'static>,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) umask: u32,
    next_ino: AtomicU64,
}

/// An empty volume on a new engine, and a client with exclusive use of it.
pub(super) fn fresh(factory: Factory<'_>) -> Client {
    fresh_with(factory, &volume())
}

pub(super) fn fresh_with(factory: Factory<'_>, volume: &Volume) -> Client {
    let engine = factory();
    volume.format(&*engine).unwrap();
    let client = client(&engine);
    client.meta.set_exclusive(true);
    client
}

/// Another client, without exclusive use.
pub(super) fn client(engine: &Arc<dyn Engine>) -> Client {
    client_of(engine, 10_000)
}

/// Another client, which leases `inodes` inode numbers. The caller must not create more inodes with it.
pub(super) fn client_of(engine: &Arc<dyn Engine>, inodes: u64) -> Client {
    let meta = Meta::open(engine.clone(), CACHE_RECORDS).unwrap();
    let first = meta.lease(Counter::Ino, inodes).unwrap();
    Client { meta, authority: KERNEL, uid: 0, gid: 0, umask: 0o022, next_ino: AtomicU64::new(first) }
}

impl Client {
    pub(super) fn engine(&self) -> &Arc<dyn Engine> {
        self.meta.engine()
    }

    /// A client with an empty cache.
    pub(super) fn stranger(&self) -> Client {
        client(self.engine())
    }

    pub(super) fn run<O: Op>(&self, op: &O) -> Result<O::Reply, Errno> {
        self.run_as(op, &self.authority)
    }

    pub(super) fn run_as<O: Op>(&self, op: &O, authority: &Authority<'_>) -> Result<O::Reply, Errno> {
        self.meta.run(op, authority).map_err(|failure| match failure {
            Failure::Operation(errno) => errno,
            Failure::Engine(error) => panic!("{}: the engine failed: {error}", O::NAME),
            Failure::Fenced(session) => panic!("{}: session {session} is gone", O::NAME),
        })
    }

    pub(super) fn next_ino(&self) -> Ino {
        Ino(self.next_ino.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn make_op(&self, parent: Ino, name: &str, kind: MakeKind, mode: u32) -> Make {
        Make {
            parent,
            name: n(name),
            ino: self.next_ino(),
            kind,
            mode: Mode::new(mode),
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
        }
    }

    pub(super) fn make(&self, parent: Ino, name: &str, kind: MakeKind, mode: u32) -> Result<Inode, Errno> {
        self.run(&self.make_op(parent, name, kind, mode))
    }

    pub(super) fn mkdir(&self, parent: Ino, name: &str) -> Result<Ino, Errno> {
        self.make(parent, name, MakeKind::Directory, 0o777).map(|inode| inode.ino)
    }

    pub(super) fn create(&self, parent: Ino, name: &str) -> Result<Ino, Errno> {
        self.make(parent, name, MakeKind::Regular, 0o666).map(|inode| inode.ino)
    }

    pub(super) fn symlink(&self, parent: Ino, name: &str, target: &str) -> Result<Ino, Errno> {
        self.make(parent, name, MakeKind::Symlink(target.as_bytes().into()), 0o777).map(|inode| inode.ino)
    }

    pub(super) fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Inode>, Errno> {
        self.run(&Lookup { parent, name: n(name) })
    }

    /// The inode that a name refers to; the name must exist.
    pub(super) fn at(&self, parent: Ino, name: &str) -> Inode {
        self.lookup(parent, name).unwrap().unwrap_or_else(|| panic!("no {name} in {parent}"))
    }

    pub(super) fn inode(&self, ino: Ino) -> Inode {
        self.run(&GetInode(ino)).unwrap()
    }

    /// The operation that gives an inode another name. The inode may be an orphan of this client.
    pub(super) fn link_op(&self, ino: Ino, parent: Ino, name: &str) -> Link {
        Link { ino, parent, name: n(name), orphan_of: Some(self.meta.session()) }
    }

    pub(super) fn link(&self, ino: Ino, parent: Ino, name: &str) -> Result<(), Errno> {
        self.run(&self.link_op(ino, parent, name)).map(drop)
    }

    pub(super) fn unlink(&self, parent: Ino, name: &str) -> Result<Unlinked, Errno> {
        self.unlink_open(parent, name, None)
    }

    pub(super) fn unlink_open(&self, parent: Ino, name: &str, open: Option<Ino>) -> Result<Unlinked, Errno> {
        self.run(&Unlink { parent, name: n(name), open })
    }

    pub(super) fn rmdir(&self, parent: Ino, name: &str) -> Result<Inode, Errno> {
        self.run(&Rmdir { parent, name: n(name) }).map(|done| done.inode)
    }

    pub(super) fn rename(
        &self,
        parent: Ino,
        name: &str,
        new_parent: Ino,
        new_name: &str,
        flags: RenameFlags,
    ) -> Result<Renamed, Errno> {
        let (name, new_name) = (n(name), n(new_name));
        self.run(&Rename { parent, name, new_parent, new_name, flags, whiteout: None, open: None })
    }

    pub(super) fn chmod(&self, ino: Ino, mode: u32) -> Result<(), Errno> {
        self.run(&SetAttr { ino, mode: Some(Mode::new(mode)), ..SetAttr::default() }).map(drop)
    }

    pub(super) fn truncate(&self, ino: Ino, size: u64) -> Result<(), Errno> {
        self.run(&SetAttr { ino, size: Some(size), ..SetAttr::default() }).map(drop)
    }

    pub(super) fn set_acl(&self, ino: Ino, which: AclType, acl: Option<&PosixAcl>) -> Result<(), Errno> {
        self.run(&SetAcl { ino, which, acl: acl.cloned(), kill_sgid: false })
    }

    pub(super) fn acl(&self, id: AclId) -> Option<Arc<PosixAcl>> {
        self.run(&GetAcl(id)).unwrap()
    }

    pub(super) fn set_xattr(&self, ino: Ino, name: &str, value: &str, mode: XattrMode) -> Result<(), Errno> {
        self.run(&SetXattr { ino, name: x(name), value: value.as_bytes().into(), mode })
    }

    /// Writes `len` bytes of slice `id` at `pos` of the first chunk.
    pub(super) fn write(&self, ino: Ino, pos: u32, len: u32, id: u64) -> Result<(), Errno> {
        let slice = blocks(pos, len, id);
        let end = u64::from(pos) + u64::from(len);
        self.run(&Write { ino, slices: vec![(ChunkIndex(0), slice)], end, mtime: Time::now() })
    }

    /// All entries of a directory, read from the engine.
    pub(super) fn list(&self, dir: Ino) -> Vec<ListedEntry> {
        let mut entries: Vec<ListedEntry> = Vec::new();
        loop {
            let after = entries.last().map(|(name, ..)| name.clone());
            let page = self.meta.list(dir, after, 100, true).unwrap();
            entries.extend(page.entries);
            if !page.more {
                return entries;
            }
        }
    }
}

pub(super) fn blocks(pos: u32, len: u32, id: u64) -> Slice {
    Slice { pos, len, source: SliceSource::Blocks { id: SliceId(id), offset: 0, size: len } }
}

pub(super) fn n(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

pub(super) fn x(name: &str) -> XattrName {
    XattrName::new(name.as_bytes()).unwrap()
}

pub(super) fn acl(text: &str) -> PosixAcl {
    PosixAcl::from_text(text).unwrap()
}
