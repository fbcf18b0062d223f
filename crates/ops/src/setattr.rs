//! chmod, chown, truncate, utimensat: everything in a SETATTR request, in one transaction.

use acl::nfs4::Mask;
use acl::posix::Perm;
use meta::{Access, AclKind, Effect, Inode};
use types::{AclId, Caps, Errno, FileType, Ino, Mode, Time};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::room::make_room_to;
use crate::view::{PlanStop, View};
use crate::write::kill_priv;

/// Changes attributes. Equivalent to `notify_change`. Returns the changed inode.
///
/// A chmod also changes the access ACL (`posix_acl_chmod`). A chown removes SUID, SGID and file capabilities,
/// except from a directory. SGID remains if the group may not execute the file and `keep_sgid` is set, which
/// means that the caller is in the group or has `CAP_FSETID` (`setattr_should_drop_sgid`). atime and mtime
/// are set as given, and every change sets ctime to the present time.
///
/// On a volume with NFSv4 ACLs, chmod requires `WRITE_ACL`, and changes the ACL by the volume's policy. chown
/// by the owner may change the group to one of the owner's groups. Any other chown requires `WRITE_OWNER`,
/// and can only set the caller's own uid and groups (`zfs_setattr`). Truncation requires `WRITE_DATA`.
/// Setting times requires `WRITE_ATTRIBUTES`; for the present time, `WRITE_DATA` suffices (RFC 8881 section
/// 6.2.1.3.1).
///
/// # Errors
/// - ESTALE: the inode does not exist, or the kernel checked with outdated attributes.
/// - EPERM: the caller sets the owner or group without `CAP_CHOWN`, and it does not own the inode, or it sets
///   another owner, or another group that it is not in (`chown_ok`, `chgrp_ok`).
/// - EPERM: the caller does not own the inode and lacks `CAP_FOWNER`, and sets the mode or a given time.
/// - EACCES: the caller sets the present time, but neither owns the inode nor has write permission.
/// - EACCES: the caller sets the size without an open file, and has no write permission.
/// - EISDIR: the size of a directory is set.
/// - EINVAL: the size of another inode that is not a regular file is set.
/// - ENOSPC: the file would grow beyond the volume's limit. Holes count too.
#[derive(Debug, Default)]
pub struct SetAttr {
    pub ino: Ino,
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The times are set to the present time: `UTIME_NOW`.
    pub sets_times_to_now: bool,
    /// The file is truncated through a file description that is open for writing.
    pub is_open: bool,
    pub keep_sgid: bool,
    /// The caller truncates the file and lacks `CAP_FSETID`, so SUID, SGID and file capabilities are removed.
    pub kill_suidgid: bool,
    /// The caller is the superuser.
    pub is_superuser: bool,
}

impl Op for SetAttr {
    type Reply = Inode;
    const NAME: &'static str = "setattr";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        let inode = view.inode(self.ino)?;
        self.check_access(view, ctx, &inode)?;
        let mut effects = Vec::with_capacity(6);
        let mut access = Access::from(&inode);
        let mut drops_capabilities = false;
        if self.uid.is_some() || self.gid.is_some() {
            access.uid = self.uid.unwrap_or(inode.uid);
            access.gid = self.gid.unwrap_or(inode.gid);
            if !inode.kind.is_dir() {
                access.mode = kill_priv(inode.mode, ctx.keeps_sgid(inode.gid, self.keep_sgid)?);
                drops_capabilities = true;
            }
        }
        if let Some(size) = self.size {
            match inode.kind {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            make_room_to(view, ctx, &inode, size)?;
            super::range::truncate(self.ino, size, &mut effects);
            if self.kill_suidgid || ctx.is_without_fsetid()? {
                access.mode = kill_priv(access.mode, true);
                drops_capabilities = true;
            }
        }
        if drops_capabilities {
            effects.extend(super::write::drop_capabilities(view, &inode));
        }
        if let Some(mode) = self.mode {
            // If the kernel is the authority, it has removed the bit itself (`setattr_prepare`).
            let mode = if ctx.keeps_sgid(access.gid, true)? { mode } else { mode.without(Mode::SGID) };
            (access.mode, access.access_acl) = chmod(view, ctx, &inode, mode, &mut effects)?;
        }
        if access != Access::from(&inode) {
            effects.push(Effect::SetAccess { ino: self.ino, access });
        }
        let mtime = self.mtime.or(self.size.map(|_| ctx.now));
        effects.push(Effect::SetTimes { ino: self.ino, atime: self.atime, mtime, ctime: Some(ctx.now) });
        let Access { mode, uid, gid, access_acl, default_acl, quota } = access;
        let changed = Inode {
            mode,
            uid,
            gid,
            access_acl,
            default_acl,
            quota,
            size: self.size.unwrap_or(inode.size),
            atime: self.atime.unwrap_or(inode.atime),
            mtime: mtime.unwrap_or(inode.mtime),
            ctime: ctx.now,
            ..inode
        };
        Ok(Plan { reply: changed, effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::caller(self.is_superuser)
    }
}

/// The mode and ACL after a chmod.
fn chmod(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    inode: &Inode,
    mode: Mode,
    effects: &mut Vec<Effect>,
) -> Result<(Mode, AclId), PlanStop> {
    if ctx.volume.acl == AclKind::Nfs4 {
        return super::nfs4::chmod(view, ctx, inode, mode, effects);
    }
    let from = inode.access_acl;
    let Some(acl) = view.acl(from)? else { return Ok((mode, AclId::NONE)) };
    if let Some(acl) = view.chmod_acl(from, mode.rwx())
        && view.is_stored(acl)
    {
        return Ok((mode, acl));
    }
    let acl = super::acl::put(view, &acl.chmod(mode), effects);
    view.remember_chmod_acl(from, mode.rwx(), acl);
    Ok((mode, acl))
}

impl SetAttr {
    /// Equivalent to `setattr_prepare`, for callers that the kernel has not checked.
    fn check_access(&self, view: &mut View<'_>, ctx: &Ctx<'_>, inode: &Inode) -> Result<(), PlanStop> {
        if ctx.checks_nfs4() {
            return self.check_nfs4(view, ctx, inode);
        }
        let is_changed = self.mode.is_some() || self.uid.is_some() || self.gid.is_some();
        let sets_time = self.atime.is_some() || self.mtime.is_some();
        if self.is_open && !is_changed && !sets_time {
            // The permission was checked when the file was opened.
            return Ok(());
        }
        let Some(cred) = ctx.cred_about(inode)? else { return Ok(()) };
        // Equivalent to `chown_ok` and `chgrp_ok` in fs/attr.c: `CAP_FOWNER` does not count.
        let is_owner = cred.uid == inode.uid;
        let may_chown = self.uid.is_none_or(|uid| is_owner && uid == inode.uid);
        let may_chgrp = self.gid.is_none_or(|gid| is_owner && (gid == inode.gid || cred.in_group(gid)));
        if !(may_chown && may_chgrp || cred.caps.has(Caps::CHOWN)) {
            return Err(Errno::EPERM.into());
        }
        if self.mode.is_some() || sets_time && !self.sets_times_to_now {
            ctx.check_owner(inode)?;
        } else if sets_time && self.size.is_none() && ctx.check_owner(inode).is_err() {
            ctx.check_posix(view, inode, Perm::WRITE)?;
        }
        // EISDIR and EINVAL are checked after the permission (`vfs_truncate`).
        if self.size.is_some() && !self.is_open { ctx.check_posix(view, inode, Perm::WRITE) } else { Ok(()) }
    }

    fn check_nfs4(&self, view: &mut View<'_>, ctx: &Ctx<'_>, inode: &Inode) -> Result<(), PlanStop> {
        if self.uid.is_some() || self.gid.is_some() {
            let Some(cred) = ctx.cred()? else { return Ok(()) };
            let is_member = self.gid.is_none_or(|gid| gid == inode.gid || cred.in_group(gid));
            let keeps_owner = self.uid.is_none_or(|uid| uid == inode.uid);
            let takes = self.uid.is_none_or(|uid| uid == cred.uid);
            let by_ownership = cred.uid == inode.uid && keeps_owner && is_member;
            if !by_ownership && !cred.caps.has(Caps::CHOWN) {
                if !(takes && self.gid.is_none_or(|gid| cred.in_group(gid))) {
                    return Err(Errno::EPERM.into());
                }
                ctx.check_mask(view, inode, Mask::WRITE_OWNER, Errno::EPERM)?;
            }
        }
        if self.mode.is_some() {
            ctx.check_mask(view, inode, Mask::WRITE_ACL, Errno::EPERM)?;
        }
        if self.size.is_some() {
            if !self.is_open {
                ctx.check_mask(view, inode, Mask::WRITE_DATA, Errno::EACCES)?;
            }
        } else if self.atime.is_some() || self.mtime.is_some() {
            let by_data = self.sets_times_to_now
                && ctx.check_mask(view, inode, Mask::WRITE_DATA, Errno::EACCES) == Ok(());
            if !by_data {
                let refusal = if self.sets_times_to_now { Errno::EACCES } else { Errno::EPERM };
                ctx.check_mask(view, inode, Mask::WRITE_ATTRIBUTES, refusal)?;
            }
        }
        Ok(())
    }
}
