//! Operations that only read: lookup, getattr, readlink, and reads of the records that belong to an inode.

use std::sync::Arc;

use acl::posix::PosixAcl;
use meta::{Inode, RecordKey, Usage, Xattrs};
use types::{AclId, ChunkIndex, Errno, Ino, Name, Slice};

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Looks up a name in a directory. Replies with the inode, or `None` if the name does not exist.
///
/// # Errors
/// ENOENT if the directory does not exist; ENOTDIR if `parent` is not a directory; ESTALE if the kernel
/// checked with outdated attributes; EACCES if the caller has no search permission; EIO if the name refers to
/// a missing inode.
#[derive(Debug)]
pub struct Lookup {
    pub parent: Ino,
    pub name: Name,
}

impl Op for Lookup {
    type Reply = Option<Inode>;
    const NAME: &'static str = "lookup";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Option<Inode>>, PlanStop> {
        view.expect([RecordKey::Inode(self.parent), RecordKey::Dirent(self.parent, self.name.clone())]);
        let dir = view.dir(self.parent)?;
        ctx.check_search(view, &dir)?;
        let Some(dirent) = view.dirent(self.parent, &self.name)? else { return Ok(Plan::answer(None)) };
        // An entry without an inode is damage that fsck repairs. Report EIO, not ENOENT.
        let inode = view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?;
        Ok(Plan::answer(Some(inode)))
    }
}

/// As [`Lookup`]. Also replies whether everybody may search the directory. This follows from the mode, or is
/// computed once for each ACL, so it rarely needs a further read.
#[derive(Debug)]
pub struct CountedLookup<'a>(pub &'a Lookup);

impl Op for CountedLookup<'_> {
    type Reply = (Option<Inode>, bool);
    const NAME: &'static str = Lookup::NAME;
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let found = self.0.plan(view, ctx)?.reply;
        let dir = view.dir(self.0.parent)?;
        let passes = match ctx.anyone_may_search(view, &dir) {
            // A damaged ACL lets nobody search, but the lookup does not fail.
            Err(PlanStop::Failed(_)) => false,
            passes => passes?,
        };
        Ok(Plan::answer((found, passes)))
    }
}

/// Reads an inode.
///
/// # Errors
/// ESTALE if the inode does not exist.
#[derive(Debug)]
pub struct GetInode(pub Ino);

impl Op for GetInode {
    type Reply = Inode;
    const NAME: &'static str = "getattr";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        Ok(Plan::answer(view.inode(self.0)?))
    }
}

/// Reads an inode that is known by its number only, as for `open_by_handle_at(2)`.
///
/// # Errors
/// ESTALE if the inode does not exist or has no links left.
#[derive(Debug)]
pub struct GetByHandle(pub Ino);

impl Op for GetByHandle {
    type Reply = Inode;
    const NAME: &'static str = "get by handle";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        let inode = view.inode(self.0)?;
        if inode.nlink == 0 { Err(Errno::ESTALE.into()) } else { Ok(Plan::answer(inode)) }
    }
}

/// Reads the parent of a directory.
///
/// # Errors
/// ENOENT if the directory does not exist; ENOTDIR if it is not a directory; ESTALE if it is the root,
/// because the root's parent is outside the volume; EIO if the parent does not exist or is not a directory.
#[derive(Debug)]
pub struct GetParent(pub Ino);

impl Op for GetParent {
    type Reply = Inode;
    const NAME: &'static str = "get parent";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        let dir = view.dir(self.0)?;
        if dir.parent == self.0 {
            return Err(Errno::ESTALE.into());
        }
        // Unless the parent is known, one request reads both directories: between two requests, the directory
        // may be moved, and its old parent removed.
        let is_dir = |parent: &Inode| parent.kind.is_dir();
        if !view.known_inode(dir.parent).as_ref().is_some_and(is_dir) {
            view.prefetch_snapshot([self.0, dir.parent].map(RecordKey::Inode).into())?;
        }
        let parent = view.find_inode(dir.parent)?.filter(is_dir);
        Ok(Plan::answer(parent.ok_or(Errno::EIO)?))
    }
}

/// Reads the target of a symbolic link.
///
/// # Errors
/// EINVAL if the inode is not a symbolic link.
#[derive(Debug)]
pub struct ReadLink(pub Ino);

impl Op for ReadLink {
    type Reply = Arc<[u8]>;
    const NAME: &'static str = "readlink";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<[u8]>>, PlanStop> {
        Ok(Plan::answer(view.symlink(self.0)?.ok_or(Errno::EINVAL)?))
    }
}

/// Reads all xattrs of an inode, without its ACLs.
#[derive(Debug)]
pub struct GetXattrs(pub Ino);

impl Op for GetXattrs {
    type Reply = Arc<Xattrs>;
    const NAME: &'static str = "getxattr";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<Xattrs>>, PlanStop> {
        view.expect([RecordKey::Inode(self.0), RecordKey::Xattrs(self.0)]);
        // If another session holds the directory, the stored xattrs may be out of date. Then this read of the
        // inode stops the plan.
        view.find_inode(self.0)?;
        Ok(Plan::answer(view.xattrs(self.0)?))
    }
}

/// Reads an ACL; `None` for [`AclId::NONE`].
///
/// # Errors
/// EIO if the ACL is missing or corrupt.
#[derive(Debug)]
pub struct GetAcl(pub AclId);

impl Op for GetAcl {
    type Reply = Option<Arc<PosixAcl>>;
    const NAME: &'static str = "getacl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        Ok(Plan::answer(view.acl(self.0)?))
    }
}

/// Reads the slices of one chunk, in commit order.
#[derive(Debug)]
pub struct GetSlices {
    pub ino: Ino,
    pub chunk: ChunkIndex,
}

impl Op for GetSlices {
    type Reply = Arc<[Slice]>;
    const NAME: &'static str = "read";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<[Slice]>>, PlanStop> {
        Ok(Plan::answer(view.slices(self.ino, self.chunk)?))
    }
}

/// Reads the slices of one chunk, as [`GetSlices`], and the size of the file at the same moment. Neither is
/// from a cache: with a size from before a truncation, the bytes that the truncation removed would read as
/// zeros.
///
/// # Errors
/// ESTALE if the inode does not exist.
#[derive(Debug)]
pub struct GetChunk {
    pub ino: Ino,
    pub chunk: ChunkIndex,
}

/// A chunk of a file as of one moment.
#[derive(Clone, Debug)]
pub struct StoredChunk {
    /// The size of the file in bytes.
    pub size: u64,
    /// The slices of the chunk, in commit order.
    pub rows: Arc<[Slice]>,
}

impl Op for GetChunk {
    type Reply = StoredChunk;
    const NAME: &'static str = "read";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<StoredChunk>, PlanStop> {
        let (inode, rows) = view.fresh_chunk(self.ino, self.chunk)?;
        let size = inode.ok_or(Errno::ESTALE)?.size;
        Ok(Plan::answer(StoredChunk { size, rows }))
    }
}

/// Reads the number of inodes and blocks in use.
#[derive(Debug)]
pub struct GetUsage;

impl Op for GetUsage {
    type Reply = Usage;
    const NAME: &'static str = "statfs";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Usage>, PlanStop> {
        Ok(Plan::answer(view.usage()?))
    }
}
