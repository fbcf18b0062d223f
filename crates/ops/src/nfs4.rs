//! The rules of volumes with NFSv4 ACLs: access checks, setting ACLs, and the effect of chmod and creation on
//! ACLs.
//!
//! The kernel allows everything that its projection of the ACLs grants ([`acl::nfs4::project`]), which is at
//! least as much as the ACLs grant. The functions here check the ACLs themselves. A damaged ACL can still be
//! replaced, because the rights of an owner do not depend on the ACL, and because capabilities are checked if
//! the ACL does not grant a permission.

use std::sync::Arc;

use acl::evaluate;
use acl::nfs4::{self, Compiled, Decision, Mask, Nfs4Acl, OWNER_RIGHTS, Removal, Scope};
use acl::sid_rules::SidRules;
use meta::{Access, AclKind, Effect, Inode};
use types::{AclId, Caps, Errno, FileType, Ino, Mode, XattrName};

use super::access::granted;
use super::domains::Numbering;
use super::xattr::XattrMode;
use crate::known::InheritKey;
use crate::op::{Authority, Ctx, Op, Plan};
use crate::view::{PlanStop, View};

impl Ctx<'_> {
    fn uid(&self) -> u32 {
        match self.authority {
            // If the kernel has checked the caller, no check here depends on the uid.
            Authority::Kernel { .. } => 0,
            Authority::Daemon(cred) => cred.uid,
            Authority::Both(source) => source.uid(),
            // No user has this number.
            Authority::Anyone => u32::MAX,
        }
    }

    fn caps(&self) -> Result<Caps, Errno> {
        Ok(self.cred()?.map_or(Caps::NONE, |cred| cred.caps))
    }

    /// The permissions that the mode or the ACL grants and denies to the caller, without capabilities.
    fn decision(&self, view: &mut View<'_>, inode: &Inode) -> Result<Decision, PlanStop> {
        let is_dir = inode.kind.is_dir();
        match self.authority {
            Authority::Kernel { .. } => Ok(Decision { granted: Mask::ALL, denied: Mask::NONE }),
            Authority::Anyone => Ok(Decision::default()),
            Authority::Daemon(cred) => {
                let acl = view.deciding_acl(inode.access_acl, &self.volume.sid_rules)?;
                let acl = acl.as_deref().map(Compiled::acl);
                let of = nfs4::FileAttrs { uid: inode.uid, gid: inode.gid, mode: inode.mode, is_dir, acl };
                Ok(nfs4::decide(cred, &[], &of))
            }
            Authority::Both(source) => {
                if inode.access_acl.is_none()
                    && let Some(known) = self.certain(view, inode)?
                {
                    return Ok(known);
                }
                let (credential, _) = source.identity()?;
                let sid_rules = &self.volume.sid_rules;
                let load = || compiled(view, inode.access_acl, sid_rules);
                self.decisions.nfs4(&credential, &inode.as_decided(sid_rules.version()), load)
            }
        }
    }

    /// The part of the decision that does not depend on the caller's supplementary groups: the permissions
    /// that are granted or denied whatever these groups are. `None` if the mode decides and the decision
    /// depends on these groups, if the authority is not [`Authority::Both`], or if the ACL cannot be read
    /// ([`Self::decision`] reports that error).
    fn certain(&self, view: &mut View<'_>, inode: &Inode) -> Result<Option<Decision>, PlanStop> {
        let Authority::Both(source) = self.authority else { return Ok(None) };
        let sid_rules = &self.volume.sid_rules;
        let load = || compiled(view, inode.access_acl, sid_rules);
        let of = inode.as_decided(sid_rules.version());
        match self.decisions.nfs4_certain((source.uid(), source.gid()), &of, load) {
            Err(PlanStop::Failed(Errno::EIO)) => Ok(None),
            certain => certain,
        }
    }

    /// Checks that the caller has all permissions in `want` on the inode.
    ///
    /// # Errors
    /// EIO if the decision depends on an ACL that is missing or damaged. `refusal` if a permission is not
    /// granted.
    pub(super) fn check_mask(
        &self,
        view: &mut View<'_>,
        inode: &Inode,
        want: Mask,
        refusal: Errno,
    ) -> Result<(), PlanStop> {
        if self.granted(view, inode, want)?.has(want) { Ok(()) } else { Err(refusal.into()) }
    }

    /// Whether the caller may search every directory.
    ///
    /// # Errors
    /// EACCES if the answer depends on the caller's groups, and these cannot be read.
    fn traverses(&self) -> Result<bool, Errno> {
        match self.authority {
            Authority::Kernel { .. } | Authority::Anyone => Ok(false),
            Authority::Daemon(cred) => Ok(self.traversers.holds(cred)),
            Authority::Both(source) => {
                match self.traversers.holds_without_groups(source.uid(), source.gid()) {
                    Some(holds) => Ok(holds),
                    None => Ok(self.traversers.holds(source.identity()?.0.cred())),
                }
            }
        }
    }

    /// The caller's permissions on the inode by mode, ACL and ownership. If these do not grant all of `want`,
    /// the right to search every directory and the capabilities are added. If `want` is granted, the result
    /// may lack other permissions that the caller has.
    ///
    /// # Errors
    /// EIO if `want` depends on an ACL that is missing or damaged.
    fn granted(&self, view: &mut View<'_>, inode: &Inode, want: Mask) -> Result<Mask, PlanStop> {
        if OWNER_RIGHTS.has(want) && self.uid() == inode.uid {
            return Ok(OWNER_RIGHTS);
        }
        if let Some(certain) = self.certain(view, inode)?
            && certain.allows(want)
        {
            return Ok(certain.granted);
        }
        let mut decided = match self.decision(view, inode) {
            Ok(decision) => Ok(decision.granted),
            Err(PlanStop::Failed(Errno::EIO)) => Err(Errno::EIO),
            Err(stop) => return Err(stop),
        };
        if let Ok(granted) = &mut decided {
            let search = want.without(*granted).has(Mask::SEARCH);
            if search && inode.kind.is_dir() && self.traverses()? {
                *granted |= Mask::SEARCH;
            }
            if granted.has(want) {
                return Ok(*granted);
            }
        }
        let is_dir = inode.kind.is_dir();
        let any_execute = inode.mode.rwx() & 0o111 != 0
            || match decided {
                Ok(_) => {
                    let acl = view.deciding_acl(inode.access_acl, &self.volume.sid_rules)?;
                    acl.is_some_and(|acl| acl.acl().lets_anybody_execute())
                }
                Err(_) => false,
            };
        let more = nfs4::overrides(self.caps()?, is_dir, any_execute);
        match decided {
            Ok(granted) => Ok(granted | more),
            Err(_) if more.has(want) => Ok(more),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Checks that the caller may remove `child` from the directory, by the rules of [`nfs4::may_remove`].
    pub(super) fn check_nfs4_removal(
        &self,
        view: &mut View<'_>,
        dir: &Inode,
        child: &Inode,
    ) -> Result<(), PlanStop> {
        self.check_mask(view, dir, Mask::SEARCH, Errno::EACCES)?;
        let by = |parent, target, caps| {
            let (parent_mode, parent_uid, target_uid) = (dir.mode, dir.uid, child.uid);
            let removal = Removal { parent, target, parent_mode, parent_uid, target_uid };
            granted(nfs4::may_remove(self.uid(), caps, &removal))
        };
        // If there is no ACL, the mode applies, which neither grants nor denies `DELETE`.
        let says_delete = !child.access_acl.is_none();
        let certain = (
            self.certain(view, dir)?,
            if says_delete { self.certain(view, child)? } else { Some(Decision::default()) },
        );
        if let (Some(parent), Some(target)) = certain
            && by(parent, target, Caps::NONE).is_ok()
        {
            return Ok(());
        }
        let parent = self.decision(view, dir);
        let target = if says_delete { self.decision(view, child) } else { Ok(Decision::default()) };
        match (parent, target) {
            (Err(PlanStop::Missing), _) | (_, Err(PlanStop::Missing)) => Err(PlanStop::Missing),
            (Err(stop @ PlanStop::Held(_)), _) | (_, Err(stop @ PlanStop::Held(_))) => Err(stop),
            (Ok(parent), Ok(target)) => {
                if by(parent, target, Caps::NONE).is_err() {
                    by(parent, target, self.caps()?)?;
                }
                Ok(())
            }
            (Err(stop), _) | (_, Err(stop)) => {
                let caps = self.caps()?;
                if !caps.has(Caps::DAC_OVERRIDE) {
                    return Err(stop);
                }
                by(Decision::default(), Decision::default(), caps)?;
                Ok(())
            }
        }
    }

    /// Checks that the caller may set or remove this xattr. For the namespaces other than `user.`, the kernel
    /// has already required the capability. That check counts unless the kernel assumes another identity for
    /// the caller.
    ///
    /// # Errors
    /// As [`Ctx::check_xattr`].
    pub(super) fn check_nfs4_xattr(
        &self,
        view: &mut View<'_>,
        inode: &Inode,
        name: &XattrName,
    ) -> Result<(), PlanStop> {
        let kernel_ids_differ = self.kernel_ids_differ();
        if !name.as_bytes().starts_with(b"user.") {
            if !kernel_ids_differ {
                return Ok(());
            }
            return granted(evaluate::capability(self.caps()?, Caps::SYS_ADMIN));
        }
        if kernel_ids_differ && inode.kind.is_dir() && inode.mode.has(Mode::STICKY) {
            self.check_owner(inode)?;
        }
        self.check_mask(view, inode, Mask::WRITE_NAMED_ATTRS, Errno::EACCES)
    }
}

/// Checks that the caller has permissions on an inode. Succeeds if the daemon does not decide about access:
/// on volumes without NFSv4 ACLs, and if the kernel is the authority.
///
/// # Errors
/// ESTALE if the inode does not exist; EIO if its ACL is missing or damaged; EACCES if a permission is not
/// granted.
#[derive(Debug)]
pub struct CheckAccess {
    pub ino: Ino,
    pub want: Mask,
}

impl Op for CheckAccess {
    type Reply = ();
    const NAME: &'static str = "access";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let inode = view.inode(self.ino)?;
        if ctx.checks_nfs4() {
            ctx.check_mask(view, &inode, self.want, Errno::EACCES)?;
        }
        Ok(Plan::answer(()))
    }
}

/// Reads the NFSv4 ACL that decides access in place of the stored ACL with this id, in its compiled form.
///
/// # Errors
/// EIO if the ACL is missing or corrupt.
#[derive(Debug)]
pub struct GetDeciding<'a> {
    pub acl: AclId,
    /// The rules for SIDs under whose version the decision will be cached.
    pub sid_rules: &'a SidRules,
}

impl Op for GetDeciding<'_> {
    type Reply = Arc<Compiled>;
    const NAME: &'static str = "getacl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<Compiled>>, PlanStop> {
        compiled(view, self.acl, self.sid_rules).map(Plan::answer)
    }
}

fn compiled(view: &mut View<'_>, id: AclId, sid_rules: &SidRules) -> Result<Arc<Compiled>, PlanStop> {
    Ok(view.deciding_acl(id, sid_rules)?.ok_or(Errno::EIO)?)
}

/// The kinds of access that a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenAccess {
    pub read: bool,
    pub write: bool,
    /// Writes go to the end: `O_APPEND`.
    pub append: bool,
    /// A program is to be executed from the file.
    pub execute: bool,
}

/// The result of [`Open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub inode: Inode,
    /// The caller may write only at the end of the file.
    pub append_only: bool,
}

/// Checks that the caller may open an inode in this way, by the rules of [`nfs4::may_open`].
///
/// # Errors
/// As [`CheckAccess`].
#[derive(Debug)]
pub struct Open {
    pub ino: Ino,
    pub open_access: OpenAccess,
}

impl Op for Open {
    type Reply = Opened;
    const NAME: &'static str = "open";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Opened>, PlanStop> {
        let inode = view.inode(self.ino)?;
        if !ctx.checks_nfs4() {
            return Ok(Plan::answer(Opened { inode, append_only: false }));
        }
        let OpenAccess { read, write, append, execute } = self.open_access;
        let mut want = Mask::NONE;
        for (asked, mask) in [(read, Mask::READ_DATA), (write, Mask::WRITE_DATA), (execute, Mask::EXECUTE)] {
            want |= if asked { mask } else { Mask::NONE };
        }
        let granted = ctx.granted(view, &inode, want)?;
        if !nfs4::may_open(granted, read, write, append) || execute && !granted.has(Mask::EXECUTE) {
            return Err(Errno::EACCES.into());
        }
        let append_only = write && !granted.has(Mask::WRITE_DATA);
        Ok(Plan::answer(Opened { inode, append_only }))
    }
}

/// Reads the NFSv4 ACL of an inode, or, if it has none, an ACL that is equivalent to its mode.
///
/// # Errors
/// EOPNOTSUPP if the volume does not have NFSv4 ACLs; ESTALE if the inode does not exist; EOPNOTSUPP for a
/// symbolic link; EACCES if the caller lacks `READ_ACL`; EIO if the ACL is missing or corrupt.
#[derive(Debug)]
pub struct GetNfs4Acl(pub Ino);

impl Op for GetNfs4Acl {
    type Reply = Nfs4Acl;
    const NAME: &'static str = "getnfs4acl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Nfs4Acl>, PlanStop> {
        let inode = inode_with_acl(view, ctx, self.0)?;
        if ctx.checks_nfs4() {
            ctx.check_mask(view, &inode, Mask::READ_ACL, Errno::EACCES)?;
        }
        let acl = view.nfs4_acl(inode.access_acl)?;
        Ok(Plan::answer(match acl {
            Some(acl) => acl.acl().clone(),
            None => nfs4::from_mode(inode.mode, inode.kind.is_dir()),
        }))
    }
}

/// Reads the POSIX ACL that the kernel is shown in place of an inode's NFSv4 ACL. If some users may search
/// every directory, the kernel is also shown a POSIX ACL for a directory that has only a mode. `None` if the
/// mode alone is exact.
///
/// # Errors
/// EIO if the ACL is missing or corrupt.
#[derive(Debug)]
pub struct GetProjection<'a>(pub &'a Inode);

impl Op for GetProjection<'_> {
    type Reply = Option<Arc<nfs4::Projection>>;
    const NAME: &'static str = "getacl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        Ok(Plan::answer(view.projection(self.0, ctx.traversers, &ctx.volume.sid_rules)?))
    }
}

/// Sets an inode's NFSv4 ACL, or removes it (`None`), so that only the mode applies. Equivalent to
/// `zfs_setacl`.
///
/// The ACL sets the mode, and is stored only if it is not equivalent to the mode. Entries outside the given
/// [`Scope`] remain ([`Nfs4Acl::replaced_by`]). As with chmod, SGID is removed if the caller is not in the
/// owning group. Domains of the ACL that are new to the volume are added to its table.
///
/// # Errors
/// - EOPNOTSUPP: the volume does not have NFSv4 ACLs.
/// - ESTALE: the inode does not exist.
/// - EOPNOTSUPP: the inode is a symbolic link.
/// - EEXIST: the mode is [`XattrMode::Create`], because every inode has an ACL.
/// - EPERM: the caller lacks `WRITE_ACL`.
/// - EIO: the table of domains is damaged.
/// - ENOSPC: the table of domains is full.
/// - E2BIG: the ACL has too many entries, together with those that remain.
#[derive(Debug)]
pub struct SetNfs4Acl {
    pub ino: Ino,
    pub acl: Option<(Nfs4Acl, Scope)>,
    pub mode: XattrMode,
    pub numbering: Numbering,
}

impl Op for SetNfs4Acl {
    type Reply = ();
    const NAME: &'static str = "setnfs4acl";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let inode = inode_with_acl(view, ctx, self.ino)?;
        if self.mode == XattrMode::Create {
            return Err(Errno::EEXIST.into());
        }
        if ctx.checks_nfs4() {
            ctx.check_mask(view, &inode, Mask::WRITE_ACL, Errno::EPERM)?;
        }
        let mut effects = Vec::with_capacity(4);
        let mut access = Access::from(&inode);
        access.access_acl = AclId::NONE;
        if let Some((new, scope)) = &self.acl {
            let new = super::domains::renumber(view, new, &self.numbering, &mut effects)?;
            // If the old ACL is damaged, there are no entries to keep.
            let old = match view.nfs4_acl(inode.access_acl) {
                Err(PlanStop::Failed(Errno::EIO)) => None,
                found => found?,
            };
            let whole = match old {
                Some(old) => old.acl().replaced_by(new, *scope).map_err(Errno::from)?,
                None => new,
            };
            let kills_sgid = inode.mode.has(Mode::SGID) && must_drop_sgid(ctx, &inode)?;
            let (mode, stored) = nfs4::set(inode.mode, inode.kind.is_dir(), &whole, kills_sgid);
            access.mode = mode;
            access.access_acl = stored.map_or(AclId::NONE, |acl| put(view, &acl, &mut effects));
        }
        effects.push(Effect::SetAccess { ino: self.ino, access });
        effects.push(super::set_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// Whether the SGID bit must be removed, because the caller is not in the inode's group and lacks
/// `CAP_FSETID` (`setattr_prepare`).
pub(super) fn must_drop_sgid(ctx: &Ctx<'_>, inode: &Inode) -> Result<bool, Errno> {
    let cred = ctx.cred()?;
    Ok(cred.is_some_and(|cred| !cred.in_group(inode.gid) && !cred.caps.has(Caps::FSETID)))
}

pub(super) fn inode_with_acl(view: &mut View<'_>, ctx: &Ctx<'_>, ino: Ino) -> Result<Inode, PlanStop> {
    if ctx.volume.acl != AclKind::Nfs4 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let inode = view.inode(ino)?;
    if inode.kind == FileType::Symlink { Err(Errno::EOPNOTSUPP.into()) } else { Ok(inode) }
}

/// The mode and ACL after a chmod, by the rules of [`nfs4::chmod`] and the volume's `aclmode`.
///
/// The returned mode is the stored one. It shows the permissions that the ACL grants to owner, group and
/// everyone; `stat(2)` shows the requested mode ([`GetProjection`]). On a directory, `stat(2)` may also show
/// bits that are there only because some users may search every directory. If the requested bits of a class
/// equal the bits that were shown, these additional bits do not count as requested
/// ([`nfs4::without_traverser_bits`]).
///
/// # Errors
/// EIO for an ACL that is missing or damaged, unless the policy discards it; those of [`nfs4::chmod`].
pub(super) fn chmod(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    inode: &Inode,
    asked: Mode,
    effects: &mut Vec<Effect>,
) -> Result<(Mode, AclId), PlanStop> {
    let policy = ctx.volume.policy.mode;
    let sid_rules = &ctx.volume.sid_rules;
    let shown = match view.projection(inode, ctx.traversers, sid_rules) {
        Ok(None) => return Ok((asked, AclId::NONE)),
        Ok(Some(projection)) => projection.rwx,
        Err(PlanStop::Failed(Errno::EIO)) if policy == nfs4::AclMode::Discard => {
            return Ok((asked, AclId::NONE));
        }
        Err(stop) => return Err(stop),
    };
    let (owners, is_dir) = ((inode.uid, inode.gid), inode.kind.is_dir());
    let acl = view.nfs4_acl(inode.access_acl)?;
    let acl = acl.as_deref().map(Compiled::acl);
    let mut asked = asked;
    if is_dir && !ctx.traversers.is_empty() {
        let deciding = view.deciding_acl(inode.access_acl, sid_rules)?;
        let own =
            deciding.map_or(inode.mode.rwx(), |acl| nfs4::project(acl.acl(), owners.0, owners.1, is_dir).rwx);
        asked = nfs4::without_traverser_bits(asked, shown, own);
    }
    let (mode, changed) = nfs4::chmod(acl, asked, owners, is_dir, policy)?;
    Ok((mode, changed.map_or(AclId::NONE, |acl| put(view, &acl, effects))))
}

/// The mode and ACL of a new inode, by the volume's `aclinherit`. The result is cached by ids, as with
/// default ACLs.
pub(super) fn inherit(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    dir: &Inode,
    (mode, umask): (Mode, u32),
    kind: FileType,
    effects: &mut Vec<Effect>,
) -> Result<(Mode, AclId), PlanStop> {
    let asked = mode.without(umask & 0o777);
    let policy = ctx.volume.policy;
    let inherit_key = InheritKey { kind, mode: asked.rwx(), requested: mode.rwx(), policy };
    let parent = if kind == FileType::Symlink { None } else { view.nfs4_acl(dir.access_acl)? };
    let parent = parent.as_deref().map(Compiled::acl).filter(|acl| acl.is_inheritable());
    if let Some(from) = parent.map(|_| dir.access_acl)
        && let Some((access_acl, rwx)) = view.inherited(from, inherit_key)
        && (access_acl.is_none() || view.is_stored(access_acl))
    {
        return Ok((asked.without(0o777).with(rwx), access_acl));
    }
    let made = nfs4::inherit(parent, mode, umask, kind, policy).map_err(Errno::from)?;
    let access_acl = made.acl.map_or(AclId::NONE, |acl| put(view, &acl, effects));
    if parent.is_some() {
        view.remember_inherited(dir.access_acl, inherit_key, (access_acl, made.mode.rwx()));
    }
    Ok((made.mode, access_acl))
}

/// As [`super::acl::put`].
pub(super) fn put(view: &View<'_>, acl: &Nfs4Acl, effects: &mut Vec<Effect>) -> AclId {
    let id = acl.id();
    if !view.is_stored(id) {
        effects.push(Effect::PutAcl { id, text: acl.to_storage().into() });
    }
    id
}
