//! The rules of volumes with NFSv4 ACLs: who may do what, how ACLs are set, and what chmod and creation make of them.
//!
//! The kernel has let through what its projection of the ACLs grants ([`acl::nfs4::project`]), which is never less than
//! they do; here they are asked themselves. Rights of owners need no ACL, and capabilities are found out only where
//! the ACL does not grant something, so that a damaged ACL still can be replaced.

use std::sync::Arc;

use acl::cache;
use acl::evaluate;
use acl::nfs4::{self, Compiled, Decision, Mask, Nfs4Acl, OWNER_RIGHTS, Removal, Scope};
use types::{AclId, Caps, Errno, FileType, Ino, Mode, XattrName};

use super::access::granted;
use super::domains::Numbering;
use super::xattr::XattrMode;
use crate::driver::{Ctx, Op, Plan, Vouch};
use crate::record::{Node, Want};
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};
use crate::volume::AclKind;

impl Ctx<'_> {
    fn uid(&self) -> u32 {
        match self.vouch {
            // It is asked nothing of the kernel's callers.
            Vouch::Kernel { .. } => 0,
            Vouch::Daemon(cred) => cred.uid,
            Vouch::Both(subject) => subject.uid(),
            // Nobody has this number.
            Vouch::Anyone => u32::MAX,
        }
    }

    fn caps(&self) -> Result<Caps, Errno> {
        Ok(self.cred()?.map_or(Caps::NONE, |cred| cred.caps))
    }

    /// What mode or ACL say to the caller, capabilities aside.
    fn decision(&self, view: &mut View<'_>, node: &Node) -> Result<Decision, Stop> {
        let is_dir = node.kind.is_dir();
        let load = |view: &mut View<'_>| Ok(view.nfs4_acl(node.access_acl)?.ok_or(Errno::EIO)?);
        match self.vouch {
            Vouch::Kernel { .. } => Ok(Decision { granted: Mask::ALL, denied: Mask::NONE }),
            Vouch::Anyone => Ok(Decision::default()),
            Vouch::Daemon(cred) => {
                let acl = view.nfs4_acl(node.access_acl)?;
                let acl = acl.as_deref().map(Compiled::acl);
                let of = nfs4::Node { uid: node.uid, gid: node.gid, mode: node.mode, is_dir, acl };
                Ok(nfs4::decide(cred, &[], &of))
            }
            Vouch::Both(subject) => {
                if node.access_acl.is_none()
                    && let Some(known) = self.certain(view, node)?
                {
                    return Ok(known);
                }
                let (credential, _) = subject.identity()?;
                let Node { uid, gid, mode, .. } = *node;
                let of = cache::Node { uid, gid, mode, is_dir, acl: node.access_acl };
                self.decisions.nfs4(&credential, &of, || load(view))
            }
        }
    }

    /// What is certain of the caller before it is found out which groups he is in: this much is granted, and no more than
    /// this denied. An ACL that cannot be read is for [`Self::decision`] to speak of.
    fn certain(&self, view: &mut View<'_>, node: &Node) -> Result<Option<Decision>, Stop> {
        let Vouch::Both(subject) = self.vouch else { return Ok(None) };
        let Node { uid, gid, mode, .. } = *node;
        let of = cache::Node { uid, gid, mode, is_dir: node.kind.is_dir(), acl: node.access_acl };
        let load = || Ok(view.nfs4_acl(node.access_acl)?.ok_or(Errno::EIO)?);
        match self.decisions.nfs4_certain((subject.uid(), subject.gid()), &of, load) {
            Err(Stop::Refused(Errno::EIO)) => Ok(None),
            certain => certain,
        }
    }

    /// The caller may do all of `want` to the inode.
    ///
    /// # Errors
    /// EIO where that would depend on an ACL that is missing or damaged; else `refusal`.
    pub(super) fn admit_mask(
        &self,
        view: &mut View<'_>,
        node: &Node,
        want: Mask,
        refusal: Errno,
    ) -> Result<(), Stop> {
        if self.granted(view, node, want)?.has(want) { Ok(()) } else { Err(refusal.into()) }
    }

    /// Whether the caller may search every directory.
    ///
    /// # Errors
    /// EACCES where it depends on his groups, and these cannot be found out.
    fn traverses(&self) -> Result<bool, Errno> {
        match self.vouch {
            Vouch::Kernel { .. } | Vouch::Anyone => Ok(false),
            Vouch::Daemon(cred) => Ok(self.traversers.holds(cred)),
            Vouch::Both(subject) => {
                match self.traversers.holds_without_groups(subject.uid(), subject.gid()) {
                    Some(holds) => Ok(holds),
                    None => Ok(self.traversers.holds(subject.identity()?.0.cred())),
                }
            }
        }
    }

    /// What the caller may do to the inode, by mode, ACL and ownership, and by the right to search every directory and by
    /// capabilities where these do not grant all of `want`. Where `want` is granted, what else is may be more than is said.
    ///
    /// # Errors
    /// EIO where `want` depends on an ACL that is missing or damaged.
    fn granted(&self, view: &mut View<'_>, node: &Node, want: Mask) -> Result<Mask, Stop> {
        if OWNER_RIGHTS.has(want) && self.uid() == node.uid {
            return Ok(OWNER_RIGHTS);
        }
        if let Some(certain) = self.certain(view, node)?
            && certain.allows(want)
        {
            return Ok(certain.granted);
        }
        let mut decided = match self.decision(view, node) {
            Ok(decision) => Ok(decision.granted),
            Err(Stop::Refused(Errno::EIO)) => Err(Errno::EIO),
            Err(stop) => return Err(stop),
        };
        if let Ok(granted) = &mut decided {
            let search = want.without(*granted).has(Mask::SEARCH);
            if search && node.kind.is_dir() && self.traverses()? {
                *granted |= Mask::SEARCH;
            }
            if granted.has(want) {
                return Ok(*granted);
            }
        }
        let is_dir = node.kind.is_dir();
        let any_execute = node.mode.rwx() & 0o111 != 0
            || match decided {
                Ok(_) => view.nfs4_acl(node.access_acl)?.is_some_and(|acl| acl.acl().lets_anybody_execute()),
                Err(_) => false,
            };
        let more = nfs4::overrides(self.caps()?, is_dir, any_execute);
        match decided {
            Ok(granted) => Ok(granted | more),
            Err(_) if more.has(want) => Ok(more),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The caller may take `child` out of the directory, by the rules of [`nfs4::may_remove`].
    pub(super) fn admit_nfs4_removal(
        &self,
        view: &mut View<'_>,
        dir: &Node,
        child: &Node,
    ) -> Result<(), Stop> {
        self.admit_mask(view, dir, Mask::SEARCH, Errno::EACCES)?;
        let by = |parent, target, caps| {
            let (parent_mode, parent_uid, target_uid) = (dir.mode, dir.uid, child.uid);
            let removal = Removal { parent, target, parent_mode, parent_uid, target_uid };
            granted(nfs4::may_remove(self.uid(), caps, &removal))
        };
        // A mode says nothing of `DELETE`.
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
            (Err(Stop::Missing), _) | (_, Err(Stop::Missing)) => Err(Stop::Missing),
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

    /// The caller may set or remove that xattr. Of the other namespaces the kernel leaves nothing to anybody without the
    /// capability, if it takes him for whom he is.
    ///
    /// # Errors
    /// As [`Ctx::admit_xattr`].
    pub(super) fn admit_nfs4_xattr(
        &self,
        view: &mut View<'_>,
        node: &Node,
        name: &XattrName,
    ) -> Result<(), Stop> {
        let is_mistaken = self.is_mistaken();
        if !name.as_bytes().starts_with(b"user.") {
            if !is_mistaken {
                return Ok(());
            }
            return granted(evaluate::capability(self.caps()?, Caps::SYS_ADMIN));
        }
        if is_mistaken && node.kind.is_dir() && node.mode.has(Mode::STICKY) {
            self.admit_owner(node)?;
        }
        self.admit_mask(view, node, Mask::WRITE_NAMED_ATTRS, Errno::EACCES)
    }
}

/// Asks whether the caller may do something to an inode; on volumes of other ACLs, and where the kernel vouches, it is
/// not for the daemon to say, and so yes.
///
/// # Errors
/// ESTALE where the inode is gone; EIO for an ACL that is missing or damaged; EACCES.
#[derive(Debug)]
pub struct Admit {
    pub ino: Ino,
    pub want: Mask,
}

impl Op for Admit {
    type Reply = ();
    const NAME: &'static str = "access";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        if ctx.asks_nfs4() {
            ctx.admit_mask(view, &node, self.want, Errno::EACCES)?;
        }
        Ok(Plan::answer(()))
    }
}

/// Reads an NFSv4 ACL by its id, prepared for deciding.
///
/// # Errors
/// EIO where it is not stored or corrupt.
#[derive(Debug)]
pub struct GetCompiled(pub AclId);

impl Op for GetCompiled {
    type Reply = Arc<Compiled>;
    const NAME: &'static str = "getacl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Arc<Compiled>>, Stop> {
        Ok(Plan::answer(view.nfs4_acl(self.0)?.ok_or(Errno::EIO)?))
    }
}

/// What an open file is to be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFor {
    pub read: bool,
    pub write: bool,
    /// Writes go to the end, `O_APPEND`.
    pub append: bool,
    /// A program is to be run from it.
    pub execute: bool,
}

/// A file that may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub node: Node,
    /// The caller may write nowhere but at the end.
    pub append_only: bool,
}

/// Asks whether the caller may open an inode so, by the rules of [`nfs4::may_open`].
///
/// # Errors
/// As [`Admit`].
#[derive(Debug)]
pub struct Open {
    pub ino: Ino,
    pub what_for: OpenFor,
}

impl Op for Open {
    type Reply = Opened;
    const NAME: &'static str = "open";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Opened>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        if !ctx.asks_nfs4() {
            return Ok(Plan::answer(Opened { node, append_only: false }));
        }
        let OpenFor { read, write, append, execute } = self.what_for;
        let mut want = Mask::NONE;
        for (asked, mask) in [(read, Mask::READ_DATA), (write, Mask::WRITE_DATA), (execute, Mask::EXECUTE)] {
            want |= if asked { mask } else { Mask::NONE };
        }
        let granted = ctx.granted(view, &node, want)?;
        if !nfs4::may_open(granted, read, write, append) || execute && !granted.has(Mask::EXECUTE) {
            return Err(Errno::EACCES.into());
        }
        let append_only = write && !granted.has(Mask::WRITE_DATA);
        Ok(Plan::answer(Opened { node, append_only }))
    }
}

/// Reads the NFSv4 ACL of an inode; where it has none, the one that says what its mode does.
///
/// # Errors
/// EOPNOTSUPP on a volume of other ACLs; ESTALE where the inode is gone; EOPNOTSUPP for a symbolic link; EACCES without
/// `READ_ACL`; EIO where the ACL is not stored or corrupt.
#[derive(Debug)]
pub struct GetNfs4Acl(pub Ino);

impl Op for GetNfs4Acl {
    type Reply = Nfs4Acl;
    const NAME: &'static str = "getnfs4acl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Nfs4Acl>, Stop> {
        let node = node_with_acl(view, ctx, self.0)?;
        if ctx.asks_nfs4() {
            ctx.admit_mask(view, &node, Mask::READ_ACL, Errno::EACCES)?;
        }
        let acl = view.nfs4_acl(node.access_acl)?;
        Ok(Plan::answer(match acl {
            Some(acl) => acl.acl().clone(),
            None => nfs4::from_mode(node.mode, node.kind.is_dir()),
        }))
    }
}

/// Reads what the kernel is shown in place of an inode's NFSv4 ACL, or, where some may search every directory, of its
/// mode; `None` where the mode is all there is.
///
/// # Errors
/// EIO where the ACL is not stored or corrupt.
#[derive(Debug)]
pub struct GetProjection<'a>(pub &'a Node);

impl Op for GetProjection<'_> {
    type Reply = Option<Arc<nfs4::Projection>>;
    const NAME: &'static str = "getacl";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, Stop> {
        Ok(Plan::answer(view.projection(self.0, ctx.traversers)?))
    }
}

/// Sets an inode's NFSv4 ACL, or with `None` leaves it what its mode says. Twin of `zfs_setacl`.
///
/// The ACL sets the mode, and is stored only if it says more. What the scope does not speak of stays
/// ([`Nfs4Acl::replaced_by`]). As with chmod, SGID goes where the caller is not in the owning group. Domains that it names
/// join the volume's table.
///
/// # Errors
/// EOPNOTSUPP on a volume of other ACLs; ESTALE where the inode is gone; EOPNOTSUPP for a symbolic link; EEXIST under
/// [`XattrMode::Create`], for every inode has an ACL; EPERM without `WRITE_ACL`; ENOSPC where the table of domains is full, EIO
/// where it is damaged; E2BIG.
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

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        let node = node_with_acl(view, ctx, self.ino)?;
        if self.mode == XattrMode::Create {
            return Err(Errno::EEXIST.into());
        }
        if ctx.asks_nfs4() {
            ctx.admit_mask(view, &node, Mask::WRITE_ACL, Errno::EPERM)?;
        }
        let mut effects = Vec::with_capacity(4);
        let mut access = Access::from(&node);
        access.access_acl = AclId::NONE;
        if let Some((new, scope)) = &self.acl {
            let new = super::domains::settle(view, new, &self.numbering, &mut effects)?;
            // One that is damaged has nothing to keep.
            let old = match view.nfs4_acl(node.access_acl) {
                Err(Stop::Refused(Errno::EIO)) => None,
                found => found?,
            };
            let whole = match old {
                Some(old) => old.acl().replaced_by(new, *scope).map_err(Errno::from)?,
                None => new,
            };
            let kills_sgid = node.mode.has(Mode::SGID) && is_foreign(ctx, &node)?;
            let (mode, stored) = nfs4::set(node.mode, node.kind.is_dir(), &whole, kills_sgid);
            access.mode = mode;
            access.access_acl = stored.map_or(AclId::NONE, |acl| put(view, &acl, &mut effects));
        }
        effects.push(Effect::SetAccess { ino: self.ino, access });
        effects.push(super::touch_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// Whether the caller may not leave an SGID bit on the inode, `setattr_prepare`.
pub(super) fn is_foreign(ctx: &Ctx<'_>, node: &Node) -> Result<bool, Errno> {
    let cred = ctx.cred()?;
    Ok(cred.is_some_and(|cred| !cred.in_group(node.gid) && !cred.caps.has(Caps::FSETID)))
}

pub(super) fn node_with_acl(view: &mut View<'_>, ctx: &Ctx<'_>, ino: Ino) -> Result<Node, Stop> {
    if ctx.volume.acl != AclKind::Nfs4 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    view.prefetch([Want::Node(ino)])?;
    let node = view.inode(ino)?;
    if node.kind == FileType::Symlink { Err(Errno::EOPNOTSUPP.into()) } else { Ok(node) }
}

/// Mode and ACL after a chmod, by the rules of [`nfs4::chmod`] and the volume's `aclmode`.
///
/// The mode is the stored one, which says what the ACL grants to owner, group and everyone; `stat(2)` shows the mode that was
/// asked for ([`GetProjection`]). Bits that are shown only because some may search every directory are not asked for, if all
/// bits of their class were sent as shown ([`nfs4::without_lent`]).
///
/// # Errors
/// EIO for an ACL that is missing or damaged, unless it is discarded; those of [`nfs4::chmod`].
pub(super) fn chmod(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    node: &Node,
    asked: Mode,
    effects: &mut Vec<Effect>,
) -> Result<(Mode, AclId), Stop> {
    let policy = ctx.volume.policy.mode;
    let shown = match view.projection(node, ctx.traversers) {
        Ok(None) => return Ok((asked, AclId::NONE)),
        Ok(Some(projection)) => projection.rwx,
        Err(Stop::Refused(Errno::EIO)) if policy == nfs4::AclMode::Discard => {
            return Ok((asked, AclId::NONE));
        }
        Err(stop) => return Err(stop),
    };
    let (owners, is_dir) = ((node.uid, node.gid), node.kind.is_dir());
    let acl = view.nfs4_acl(node.access_acl)?;
    let acl = acl.as_deref().map(Compiled::acl);
    let mut asked = asked;
    if is_dir && !ctx.traversers.is_empty() {
        let own = acl.map_or(node.mode.rwx(), |acl| nfs4::project(acl, owners.0, owners.1, is_dir).rwx);
        asked = nfs4::without_lent(asked, shown, own);
    }
    let (mode, changed) = nfs4::chmod(acl, asked, owners, is_dir, policy)?;
    Ok((mode, changed.map_or(AclId::NONE, |acl| put(view, &acl, effects))))
}

/// Mode and ACL of a new inode, by the volume's `aclinherit`; remembered by ids as with default ACLs.
pub(super) fn inherit(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    dir: &Node,
    (mode, umask): (Mode, u32),
    kind: FileType,
    effects: &mut Vec<Effect>,
) -> Result<(Mode, AclId), Stop> {
    let asked = mode.without(umask & 0o777);
    let parent = if kind == FileType::Symlink { None } else { view.nfs4_acl(dir.access_acl)? };
    let parent = parent.as_deref().map(Compiled::acl).filter(|acl| acl.is_inheritable());
    if let Some(from) = parent.map(|_| dir.access_acl)
        && let Some((access_acl, rwx)) = view.inherited(from, asked, kind)
        && (access_acl.is_none() || view.is_stored(access_acl))
    {
        return Ok((asked.without(0o777).with(rwx), access_acl));
    }
    let made = nfs4::inherit(parent, mode, umask, kind, ctx.volume.policy).map_err(Errno::from)?;
    let access_acl = made.acl.map_or(AclId::NONE, |acl| put(view, &acl, effects));
    if parent.is_some() {
        view.remember_inherited(dir.access_acl, asked, kind, (access_acl, made.mode.rwx()));
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
