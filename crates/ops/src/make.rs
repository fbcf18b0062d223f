//! New inodes: create, mknod, mkdir, symlink, and files without a name.

use std::sync::Arc;

use acl::nfs4::Policy;
use acl::posix;
use meta::{AclKind, DIR_BYTES, Effect, Inode, QuotaTag};
use types::{AclId, Errno, FileType, Ino, Mode, Name};

use crate::known::InheritKey;
use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::room::require_room;
use crate::view::{PlanStop, View};

/// Creates an inode and its name. Equivalent to `vfs_create`, `vfs_mknod`, `vfs_mkdir`, `vfs_symlink`.
///
/// If the directory has the SGID bit, the inode gets the directory's group, and a subdirectory gets the bit;
/// otherwise the group is the caller's (`inode_init_owner`). Mode and ACLs follow from the directory's
/// default ACL, or from what its NFSv4 ACL lets new files inherit under the volume's policy, or else from the
/// umask. The inode gets the directory's quota tag.
///
/// # Errors
/// ENOENT if the directory does not exist; ENOTDIR if `parent` is not a directory; ENOENT if the directory is
/// in the trash; ESTALE if the kernel checked with outdated attributes; EACCES if the caller may not add
/// names to the directory; EEXIST if the name exists; ENOSPC if the volume is full.
#[derive(Debug)]
pub struct Make {
    pub parent: Ino,
    pub name: Name,
    /// A number from [`Counter::Ino`](meta::Counter::Ino) that no inode ever had.
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
    type Reply = Inode;
    const NAME: &'static str = "create";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        let dir = view.dir(self.parent)?;
        ctx.check_new(view, &dir, self.kind.file_type())?;
        if view.dirent_unlikely(self.parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let mut effects = Vec::with_capacity(4);
        let inode = self.inode(view, ctx, &dir, &mut effects)?;
        let kind = inode.kind;
        effects.push(Effect::PutInode(inode));
        if let MakeKind::Symlink(target) = &self.kind {
            effects.push(Effect::PutSymlink { ino: self.ino, target: target.clone() });
        }
        effects.push(Effect::PutDirent { parent: self.parent, name: self.name.clone(), ino: self.ino, kind });
        if kind.is_dir() {
            effects.push(Effect::AddLinks { ino: self.parent, delta: 1 });
        }
        effects.push(super::set_dir_times(self.parent, ctx.now));
        Ok(Plan { reply: inode, effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::caller(self.uid == 0)
    }
}

impl Make {
    /// Builds the new inode, with the mode and ACLs that it inherits from the directory. Fails with ENOSPC if
    /// the volume is full.
    fn inode(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        dir: &Inode,
        effects: &mut Vec<Effect>,
    ) -> Result<Inode, PlanStop> {
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
        // A directory that counts in a quota is not held, because only the database knows how much of the
        // quota is left.
        let held = Inode::held_size(ctx.session).filter(|_| ctx.holds && dir.quota == QuotaTag::NONE);
        Ok(Inode {
            uid: self.uid,
            gid,
            rdev: match self.kind {
                MakeKind::CharDevice(rdev) | MakeKind::BlockDevice(rdev) => rdev,
                _ => 0,
            },
            size: match &self.kind {
                MakeKind::Symlink(target) => target.len() as u64,
                MakeKind::Directory => held.unwrap_or(DIR_BYTES),
                _ => 0,
            },
            access_acl: access.access_acl,
            default_acl: access.default_acl,
            parent: if kind.is_dir() { self.parent } else { Ino(0) },
            quota: dir.quota,
            ..Inode::new(self.ino, kind, access.mode, ctx.now)
        })
    }
}

/// Creates a regular file without a name, open in this session: `O_TMPFILE`. Equivalent to `vfs_tmpfile`.
///
/// The file is an orphan from the start. [`Link`](super::Link) gives it a name, [`Reap`](super::Reap) removes
/// it.
///
/// # Errors
/// As [`Make`], without EEXIST.
#[derive(Debug)]
pub struct MakeOrphan(pub Make);

impl Op for MakeOrphan {
    type Reply = Inode;
    const NAME: &'static str = "tmpfile";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        let dir = view.dir(self.0.parent)?;
        ctx.check_new(view, &dir, FileType::Regular)?;
        let mut effects = Vec::with_capacity(3);
        let inode = Inode { nlink: 0, ..self.0.inode(view, ctx, &dir, &mut effects)? };
        effects.push(Effect::PutInode(inode));
        effects.push(Effect::PutOrphan { session: ctx.session, ino: inode.ino });
        Ok(Plan { reply: inode, effects })
    }

    fn bound_by(&self) -> BoundBy {
        self.0.bound_by()
    }
}

struct Inherited {
    mode: Mode,
    access_acl: AclId,
    default_acl: AclId,
}

impl Make {
    /// Computes the mode and ACLs from the ACL that the directory passes on, or from the umask. The result
    /// for an ACL and a mode is cached by ids, so repeated creates neither copy nor hash an ACL.
    fn inherit(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        dir: &Inode,
        mode: Mode,
        effects: &mut Vec<Effect>,
    ) -> Result<Inherited, PlanStop> {
        let kind = self.kind.file_type();
        if ctx.volume.acl == AclKind::Nfs4 {
            let (mode, access_acl) = super::nfs4::inherit(view, ctx, dir, (mode, self.umask), kind, effects)?;
            return Ok(Inherited { mode, access_acl, default_acl: AclId::NONE });
        }
        // The setting of the volume is not checked here, because this client may not know yet that ACLs were
        // turned on.
        let default_id = dir.default_acl;
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
        let inherit_key =
            |mode: Mode| InheritKey { kind, mode: mode.rwx(), requested: 0, policy: Policy::default() };
        if let Some((access_acl, _)) = view.inherited(default_id, inherit_key(shown))
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
        view.remember_inherited(default_id, inherit_key(inherited.mode), remembered);
        Ok(Inherited { mode: inherited.mode, access_acl, default_acl })
    }
}
