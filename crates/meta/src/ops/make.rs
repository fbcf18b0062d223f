//! New inodes: create, mknod, mkdir, symlink, and files without a name.

use std::sync::Arc;

use acl::posix;
use types::{AclId, Errno, FileType, Ino, Mode, Name};

use crate::driver::{Ctx, Op, Plan};
use crate::record::{Node, Want};
use crate::txn::Effect;
use crate::view::{Stop, View};
use crate::volume::{AclKind, DIR_BYTES};

/// Makes an inode and its name. Twin of `vfs_create`, `vfs_mknod`, `vfs_mkdir`, `vfs_symlink`.
///
/// The group is the directory's where that has the SGID bit (and a subdirectory inherits the bit), else the caller's
/// (`inode_init_owner`). Mode and ACLs follow from the directory's default ACL, or from what passes of its NFSv4 ACL by the
/// volume's policy, else from the umask.
///
/// # Errors
/// ENOENT where the directory is gone; ENOTDIR; ESTALE; EACCES; EEXIST; ENOSPC at the volume's limit.
#[derive(Debug)]
pub struct Make {
    pub parent: Ino,
    pub name: Name,
    /// A number from [`Counter::Ino`](crate::Counter::Ino) that no inode had.
    pub ino: Ino,
    pub kind: MakeKind,
    pub mode: Mode,
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MakeKind {
    Regular,
    Directory,
    Symlink(Arc<[u8]>),
    Fifo,
    Socket,
    CharDevice(u32),
    BlockDevice(u32),
}

impl MakeKind {
    fn file_type(&self) -> FileType {
        match self {
            MakeKind::Regular => FileType::Regular,
            MakeKind::Directory => FileType::Directory,
            MakeKind::Symlink(_) => FileType::Symlink,
            MakeKind::Fifo => FileType::Fifo,
            MakeKind::Socket => FileType::Socket,
            MakeKind::CharDevice(_) => FileType::CharDevice,
            MakeKind::BlockDevice(_) => FileType::BlockDevice,
        }
    }
}

impl Op for Make {
    type Reply = Node;
    const NAME: &'static str = "create";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Node>, Stop> {
        view.prefetch([Want::Node(self.parent)])?;
        let dir = view.dir(self.parent)?;
        ctx.admit_new(view, &dir, self.kind.file_type())?;
        if view.edge_unlikely(self.parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let mut effects = Vec::with_capacity(6);
        let node = self.node(view, ctx, &dir, &mut effects)?;
        let kind = node.kind;
        effects.push(Effect::PutNode(node));
        if let MakeKind::Symlink(target) = &self.kind {
            effects.push(Effect::PutSymlink { ino: self.ino, target: target.clone() });
        }
        effects.push(Effect::PutEdge { parent: self.parent, name: self.name.clone(), ino: self.ino, kind });
        if kind.is_dir() {
            effects.push(Effect::AddLinks { ino: self.parent, delta: 1 });
        }
        effects.push(super::touch_dir(self.parent, ctx.now));
        Ok(Plan { reply: node, effects })
    }
}

impl Make {
    /// The new inode, as the directory and the volume's limits let it be.
    fn node(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        dir: &Node,
        effects: &mut Vec<Effect>,
    ) -> Result<Node, Stop> {
        require_room(view, ctx)?;
        let kind = self.kind.file_type();
        let mut mode = self.mode;
        let mut gid = self.gid;
        if dir.mode.has(Mode::SGID) {
            gid = dir.gid;
            if kind.is_dir() {
                mode = mode.with(Mode::SGID);
            }
        }
        let access = self.inherit(view, ctx, dir, mode, effects)?;
        Ok(Node {
            ino: self.ino,
            kind,
            mode: access.mode,
            uid: self.uid,
            gid,
            rdev: match self.kind {
                MakeKind::CharDevice(rdev) | MakeKind::BlockDevice(rdev) => rdev,
                _ => 0,
            },
            nlink: if kind.is_dir() { 2 } else { 1 },
            size: match &self.kind {
                MakeKind::Symlink(target) => target.len() as u64,
                MakeKind::Directory => DIR_BYTES,
                _ => 0,
            },
            atime: ctx.now,
            mtime: ctx.now,
            ctime: ctx.now,
            access_acl: access.access_acl,
            default_acl: access.default_acl,
            parent: if kind.is_dir() { self.parent } else { Ino(0) },
            access_rev: 1,
        })
    }
}

/// Requires room for one more inode.
///
/// # Errors
/// ENOSPC at the volume's limit.
pub(super) fn require_room(view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<(), Stop> {
    match ctx.volume.limits() {
        Some((max_inodes, max_blocks)) if !view.has_room(max_inodes, max_blocks) => Err(Errno::ENOSPC.into()),
        _ => Ok(()),
    }
}

/// Makes a regular file without a name, open in this session: `O_TMPFILE`. Twin of `vfs_tmpfile`.
///
/// It is an orphan from the start: [`Link`](super::Link) gives it a name, [`Reap`](super::Reap) removes it.
///
/// # Errors
/// As [`Make`], but for EEXIST.
#[derive(Debug)]
pub struct MakeOrphan(pub Make);

impl Op for MakeOrphan {
    type Reply = Node;
    const NAME: &'static str = "tmpfile";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Node>, Stop> {
        view.prefetch([Want::Node(self.0.parent)])?;
        let dir = view.dir(self.0.parent)?;
        ctx.admit_new(view, &dir, FileType::Regular)?;
        let mut effects = Vec::with_capacity(3);
        let node = Node { nlink: 0, ..self.0.node(view, ctx, &dir, &mut effects)? };
        effects.push(Effect::PutNode(node));
        effects.push(Effect::PutOrphan { session: ctx.session, ino: node.ino });
        Ok(Plan { reply: node, effects })
    }
}

struct Inherited {
    mode: Mode,
    access_acl: AclId,
    default_acl: AclId,
}

impl Make {
    /// Mode and ACLs under the directory's default ACL. What a default ACL makes of a mode is remembered by ids, so
    /// that it costs neither a copy nor a hash after the first time.
    fn inherit(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        dir: &Node,
        mode: Mode,
        effects: &mut Vec<Effect>,
    ) -> Result<Inherited, Stop> {
        let kind = self.kind.file_type();
        if ctx.volume.acl == AclKind::Nfs4 {
            let (mode, access_acl) = super::nfs4::inherit(view, ctx, dir, (mode, self.umask), kind, effects)?;
            return Ok(Inherited { mode, access_acl, default_acl: AclId::NONE });
        }
        let default_id = if ctx.volume.acl == AclKind::Off { AclId::NONE } else { dir.default_acl };
        let default = if kind == FileType::Symlink { None } else { view.acl(default_id)? };
        let Some(default) = default else {
            let mode = posix::inherit(None, mode, self.umask, kind).mode;
            return Ok(Inherited { mode, access_acl: AclId::NONE, default_acl: AclId::NONE });
        };
        let default_acl = if kind.is_dir() { default_id } else { AclId::NONE };
        let (allowed, minimal) = default.equiv_mode();
        let shown = mode.without(0o777 & !allowed);
        if minimal {
            return Ok(Inherited { mode: shown, access_acl: AclId::NONE, default_acl });
        }
        if let Some((access_acl, _)) = view.inherited(default_id, shown, kind)
            && view.is_stored(access_acl)
        {
            return Ok(Inherited { mode: shown, access_acl, default_acl });
        }
        let inherited = posix::inherit(Some(&default), mode, self.umask, kind);
        let access_acl = match &inherited.access {
            Some(acl) => super::acl::put(view, acl, effects),
            None => AclId::NONE,
        };
        let remembered = (access_acl, inherited.mode.rwx());
        view.remember_inherited(default_id, inherited.mode, kind, remembered);
        Ok(Inherited { mode: inherited.mode, access_acl, default_acl })
    }
}
