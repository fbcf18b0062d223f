//! Operations that only look: lookup, getattr, readlink, and reads of what hangs on an inode.

use std::sync::Arc;

use acl::posix::PosixAcl;
use types::{AclId, ChunkIndex, Errno, Ino, Name, Slice};

use crate::driver::{Ctx, Op, Plan};
use crate::record::{Node, Usage, Want, Xattrs};
use crate::view::{Stop, View};

/// Finds a name in a directory: `Some` inode, or `None` where the name is free.
///
/// # Errors
/// ENOENT where the directory is gone; ENOTDIR; EACCES without search permission.
#[derive(Debug)]
pub struct Lookup {
    pub parent: Ino,
    pub name: Name,
}

impl Op for Lookup {
    type Reply = Option<Node>;
    const NAME: &'static str = "lookup";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Option<Node>>, Stop> {
        view.prefetch([Want::Node(self.parent), Want::Entry(self.parent, self.name.clone())])?;
        let dir = view.dir(self.parent)?;
        ctx.admit_search(view, &dir)?;
        let Some(edge) = view.edge(self.parent, &self.name)? else { return Ok(Plan::answer(None)) };
        // An entry without an inode is damage that fsck mends; EIO says so better than "no such file".
        let node = view.node(edge.ino)?.ok_or(Errno::EIO)?;
        Ok(Plan::answer(Some(node)))
    }
}

/// Reads an inode.
///
/// # Errors
/// ESTALE where it is gone.
#[derive(Debug)]
pub struct GetNode(pub Ino);

impl Op for GetNode {
    type Reply = Node;
    const NAME: &'static str = "getattr";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Node>, Stop> {
        Ok(Plan::answer(view.inode(self.0)?))
    }
}

/// Reads an inode that somebody knows by its number alone, `open_by_handle_at(2)`.
///
/// # Errors
/// ESTALE where it is gone or has no name left.
#[derive(Debug)]
pub struct GetByHandle(pub Ino);

impl Op for GetByHandle {
    type Reply = Node;
    const NAME: &'static str = "get by handle";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Node>, Stop> {
        let node = view.inode(self.0)?;
        if node.nlink == 0 { Err(Errno::ESTALE.into()) } else { Ok(Plan::answer(node)) }
    }
}

/// Reads the directory that holds a directory.
///
/// # Errors
/// ENOENT where one of them is gone; ENOTDIR; ESTALE for the root, because what holds it is not in the volume.
#[derive(Debug)]
pub struct GetParent(pub Ino);

impl Op for GetParent {
    type Reply = Node;
    const NAME: &'static str = "get parent";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Node>, Stop> {
        let dir = view.dir(self.0)?;
        if dir.parent == self.0 {
            return Err(Errno::ESTALE.into());
        }
        Ok(Plan::answer(view.dir(dir.parent)?))
    }
}

/// Reads the target of a symbolic link.
///
/// # Errors
/// EINVAL where the inode is no symbolic link.
#[derive(Debug)]
pub struct ReadLink(pub Ino);

impl Op for ReadLink {
    type Reply = Arc<[u8]>;
    const NAME: &'static str = "readlink";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<[u8]>>, Stop> {
        Ok(Plan::answer(view.symlink(self.0)?.ok_or(Errno::EINVAL)?))
    }
}

/// Reads all xattrs of an inode, ACLs not among them.
#[derive(Debug)]
pub struct GetXattrs(pub Ino);

impl Op for GetXattrs {
    type Reply = Arc<Xattrs>;
    const NAME: &'static str = "getxattr";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<Xattrs>>, Stop> {
        Ok(Plan::answer(view.xattrs(self.0)?))
    }
}

/// Reads an ACL; `None` for [`AclId::NONE`].
///
/// # Errors
/// EIO where it is not stored or corrupt.
#[derive(Debug)]
pub struct GetAcl(pub AclId);

impl Op for GetAcl {
    type Reply = Option<Arc<PosixAcl>>;
    const NAME: &'static str = "getacl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, Stop> {
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

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<[Slice]>>, Stop> {
        Ok(Plan::answer(view.slices(self.ino, self.chunk)?))
    }
}

/// Reads what the volume holds.
#[derive(Debug)]
pub struct GetUsage;

impl Op for GetUsage {
    type Reply = Usage;
    const NAME: &'static str = "statfs";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Usage>, Stop> {
        Ok(Plan::answer(view.usage()?))
    }
}
