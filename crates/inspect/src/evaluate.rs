//! The evaluation of one check for one caller: granted or denied, and the reason.

use acl::evaluate::{self, Class, Denial, Evaluation, Grant};
use acl::nfs4::{self, Mask};
use acl::posix::{self, Entry, Perm, PosixAcl, Reason, Tag};
use types::{Caps, Cred, Errno, Mode};

use crate::access_attrs::{AccessAttrs, Nfs4Rules, Rules};
use crate::check::{Check, Requirement};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The errno of a denial; `None` if the check is granted.
    pub errno: Option<Errno>,
    pub reason: CheckReason,
}

/// The reason of a check result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckReason {
    /// The mode's bits, as the ACL entry that they stand for.
    Mode(Entry),
    /// As `Mode`, for a file that has an ACL. The kernel ignores the ACL if the group bits of the mode, which
    /// are the ACL's mask, are all clear.
    ModeAside(Entry),
    /// An entry of the POSIX ACL, and the mask if it removes permissions from the entry.
    Entry(Entry, Option<Perm>),
    /// For each permission, the verdict of the NFSv4 ACL ([`Nfs4Rules::deciding`]), and the stored entry that
    /// decided it, if an entry did.
    Nfs4(Vec<(nfs4::Verdict, Option<nfs4::Entry>)>),
    /// This capability of the caller grants the access; mode and ACL do not.
    Capability(Caps),
    /// Only this capability would grant the access, and the caller lacks it.
    NeedsCapability(Caps),
    /// The caller owns the file.
    Owns,
    /// The caller does not own the file, and only its owner may do this.
    IsNotOwner,
    /// The caller owns the sticky directory.
    OwnsDirectory,
    /// The directory is sticky, and the caller owns neither it nor the file.
    OwnsNeither,
    /// The owner of the symbolic link is the owner of its directory.
    LinkOfDirectory,
    /// The owner of the symbolic link is neither the caller nor the owner of its directory, and the directory
    /// is sticky and writable for everybody.
    LinkOfOther,
}

impl CheckResult {
    pub fn is_granted(&self) -> bool {
        self.errno.is_none()
    }

    fn granted(reason: CheckReason) -> Self {
        CheckResult { errno: None, reason }
    }

    fn refused(errno: Errno, reason: CheckReason) -> Self {
        CheckResult { errno: Some(errno), reason }
    }

    /// Builds the result of an evaluation. `by_acl` builds the reason if the mode or an ACL decided.
    fn of(evaluation: Evaluation, by_acl: impl FnOnce() -> CheckReason) -> Self {
        let reason = match evaluation {
            Ok(Grant::Acl | Grant::FileAcl) | Err(Denial::Acl | Denial::FileAcl) => by_acl(),
            Ok(Grant::Owner) => CheckReason::Owns,
            Ok(Grant::DirectoryOwner) => CheckReason::OwnsDirectory,
            Ok(Grant::Capability(caps)) => CheckReason::Capability(caps),
            Err(Denial::NotOwner) => CheckReason::IsNotOwner,
            Err(Denial::Sticky) => CheckReason::OwnsNeither,
            Err(Denial::NeedsCapability(caps)) => CheckReason::NeedsCapability(caps),
        };
        CheckResult { errno: evaluation.err().map(Denial::errno), reason }
    }

    /// Builds the result of an evaluation in which no ACL takes part.
    fn of_ownership(evaluation: Evaluation) -> Self {
        CheckResult::of(evaluation, || CheckReason::Owns)
    }
}

/// Evaluates a check for a caller. The result agrees with the kernel, whose functions are named at
/// [`Requirement`].
pub fn evaluate(cred: &Cred, check: &Check) -> CheckResult {
    let access_attrs = &check.access_attrs;
    let owner = || evaluate::owner(cred.uid, cred.caps, access_attrs.uid);
    match &check.requirement {
        Requirement::Search => access(cred, Perm::EXECUTE, access_attrs),
        Requirement::Names => access(cred, Perm::WRITE | Perm::EXECUTE, access_attrs),
        Requirement::Access(want) => access(cred, *want, access_attrs),
        Requirement::Follow { dir_uid } => match access_attrs.uid {
            uid if uid == cred.uid => CheckResult::granted(CheckReason::Owns),
            uid if uid == *dir_uid => CheckResult::granted(CheckReason::LinkOfDirectory),
            _ => CheckResult::refused(Errno::EACCES, CheckReason::LinkOfOther),
        },
        Requirement::Sticky { dir_mode, dir_uid } => CheckResult::of_ownership(evaluate::sticky(
            cred.uid,
            cred.caps,
            *dir_mode,
            *dir_uid,
            access_attrs.uid,
        )),
        Requirement::Remove { dir } => remove(cred, access_attrs, dir),
        Requirement::Own => CheckResult::of_ownership(owner()),
        Requirement::GiveAway => CheckResult::of_ownership(evaluate::capability(cred.caps, Caps::CHOWN)),
        Requirement::SetTimes => match owner() {
            Err(_) => set_times(cred, access_attrs),
            owner => CheckResult::of_ownership(owner),
        },
    }
}

/// Evaluates all permissions of `want` together.
fn access(cred: &Cred, want: Perm, access_attrs: &AccessAttrs) -> CheckResult {
    match &access_attrs.rules {
        Rules::Posix(acl) => {
            let file = posix_file(access_attrs, acl.as_ref());
            CheckResult::of(posix::permits(cred, want, &file), || {
                let (_, reason) = posix::explain(cred, want, &file);
                posix_reason(access_attrs, acl.as_ref(), reason)
            })
        }
        Rules::Nfs4(acl) => {
            nfs4_access(cred, mask_of(want) | beforehand(access_attrs), access_attrs, acl.as_ref())
        }
    }
}

/// The permission that the daemon checks before the kernel checks a caller. The kernel sees a projection of
/// an NFSv4 ACL: a mode and a POSIX ACL. The projection and the NFSv4 ACL may grant search on a directory to
/// different callers. If so, the kernel first sends GETATTR (`fuse_perm_getattr`, fs/fuse/dir.c), which fails
/// with EACCES if the caller lacks search permission.
pub(crate) fn beforehand(access_attrs: &AccessAttrs) -> Mask {
    match &access_attrs.rules {
        Rules::Nfs4(Some(acl)) if access_attrs.kind.is_dir() => {
            let shown = nfs4::project(acl.deciding(), access_attrs.uid, access_attrs.gid, true);
            if shown.search_is_exact { Mask::NONE } else { Mask::SEARCH }
        }
        _ => Mask::NONE,
    }
}

/// Evaluates whether a caller that does not own the file may set its times to now. An NFSv4 ACL may grant
/// exactly that, but the kernel forwards the request only if the projection grants writing (`may_setattr`,
/// fs/attr.c).
fn set_times(cred: &Cred, access_attrs: &AccessAttrs) -> CheckResult {
    let by_data = access(cred, Perm::WRITE, access_attrs);
    let Rules::Nfs4(Some(acl)) = &access_attrs.rules else { return by_data };
    if by_data.is_granted() || !kernel_forwards(cred, Perm::WRITE, access_attrs, acl) {
        return by_data;
    }
    nfs4_access(cred, Mask::WRITE_ATTRIBUTES | beforehand(access_attrs), access_attrs, Some(acl))
}

/// Whether the kernel forwards a request that needs these bits. It decides by the projection of the ACL.
fn kernel_forwards(cred: &Cred, want: Perm, access_attrs: &AccessAttrs, acl: &Nfs4Rules) -> bool {
    let is_dir = access_attrs.kind.is_dir();
    let shown = nfs4::project(acl.deciding(), access_attrs.uid, access_attrs.gid, is_dir);
    let mode = Mode::new(shown.rwx);
    let file = posix::FileAttrs {
        uid: access_attrs.uid,
        gid: access_attrs.gid,
        mode,
        is_dir,
        acl: shown.acl.as_ref(),
    };
    posix::permits(cred, want, &file).is_ok()
}

/// Whether the kernel forwards the removal of names from a directory with an NFSv4 ACL. The projection grants
/// `w` with each search permission, except in the mode bits. These alone decide for the owner, and for all
/// callers if the group bits are clear. True without an ACL, because then the mode is checked anyway.
pub(crate) fn kernel_forwards_name_changes(cred: &Cred, dir: &AccessAttrs) -> bool {
    match &dir.rules {
        Rules::Nfs4(Some(acl)) => kernel_forwards(cred, Perm::WRITE | Perm::EXECUTE, dir, acl),
        _ => true,
    }
}

fn posix_file<'a>(access_attrs: &AccessAttrs, acl: Option<&'a PosixAcl>) -> posix::FileAttrs<'a> {
    let AccessAttrs { uid, gid, mode, .. } = *access_attrs;
    posix::FileAttrs { uid, gid, mode, is_dir: access_attrs.kind.is_dir(), acl }
}

fn posix_reason(access_attrs: &AccessAttrs, acl: Option<&PosixAcl>, reason: Reason) -> CheckReason {
    let class = match reason {
        Reason::Mode(class) => class,
        Reason::Entry { tag, .. } => {
            let entries = || acl.into_iter().flat_map(PosixAcl::entries);
            let of = |tag| entries().find(|entry| entry.tag == tag).map_or(Perm::NONE, |entry| entry.perm);
            let mask = entries().find(|entry| entry.tag == Tag::Mask).map(|entry| entry.perm);
            let perm = of(tag);
            let mask = mask.filter(|mask| tag != Tag::Other && !mask.has(perm));
            return CheckReason::Entry(Entry { tag, perm }, mask);
        }
    };
    let tag = match class {
        Class::Owner => Tag::UserObj,
        Class::Group => Tag::GroupObj,
        Class::Other => Tag::Other,
    };
    let entry = Entry { tag, perm: Perm::new(class.rwx(access_attrs.mode)) };
    // The owner's permissions are always those of the mode, with or without an ACL.
    if acl.is_some() && class != Class::Owner {
        CheckReason::ModeAside(entry)
    } else {
        CheckReason::Mode(entry)
    }
}

/// The NFSv4 permissions for reading, writing and executing a file or directory.
pub(crate) fn mask_of(want: Perm) -> Mask {
    let all =
        [(Perm::READ, Mask::READ_DATA), (Perm::WRITE, Mask::WRITE_DATA), (Perm::EXECUTE, Mask::EXECUTE)];
    all.into_iter().filter(|(perm, _)| want.has(*perm)).fold(Mask::NONE, |mask, (_, one)| mask | one)
}

pub(crate) fn nfs4_file<'a>(access_attrs: &AccessAttrs, acl: Option<&'a Nfs4Rules>) -> nfs4::FileAttrs<'a> {
    let AccessAttrs { uid, gid, mode, .. } = *access_attrs;
    let acl = acl.map(Nfs4Rules::deciding);
    nfs4::FileAttrs { uid, gid, mode, is_dir: access_attrs.kind.is_dir(), acl }
}

fn nfs4_access(cred: &Cred, want: Mask, access_attrs: &AccessAttrs, acl: Option<&Nfs4Rules>) -> CheckResult {
    let granted = nfs4::decide(cred, &[], &nfs4_file(access_attrs, acl)).granted;
    let any_execute = any_execute(access_attrs, acl);
    let evaluation = nfs4::check(granted, cred.caps, want, access_attrs.kind.is_dir(), any_execute);
    CheckResult::of(evaluation, || nfs4_reason(cred, want, access_attrs, acl))
}

/// Whether anybody may execute the file, both by the rules of the volume's operations and by the bits that
/// the kernel sees.
pub(crate) fn any_execute(access_attrs: &AccessAttrs, acl: Option<&Nfs4Rules>) -> bool {
    let is_dir = access_attrs.kind.is_dir();
    let by_volume =
        access_attrs.mode.rwx() & 0o111 != 0 || acl.is_some_and(|acl| acl.deciding().lets_anybody_execute());
    let by_kernel = acl.is_none_or(|acl| {
        nfs4::project(acl.deciding(), access_attrs.uid, access_attrs.gid, is_dir).rwx & 0o111 != 0
    });
    by_volume && by_kernel
}

/// The decision of the file's own ACL on the removal of the file. Without an ACL there is none, because a
/// mode does not contain `DELETE`.
pub(crate) fn nfs4_target(
    cred: &Cred,
    access_attrs: &AccessAttrs,
    acl: Option<&Nfs4Rules>,
) -> nfs4::Decision {
    match acl {
        Some(_) => nfs4::decide(cred, &[], &nfs4_file(access_attrs, acl)),
        None => nfs4::Decision::default(),
    }
}

/// The entries that decide each permission of `want`.
fn nfs4_reason(cred: &Cred, want: Mask, access_attrs: &AccessAttrs, acl: Option<&Nfs4Rules>) -> CheckReason {
    let verdicts = nfs4::explain(cred, &[], &nfs4_file(access_attrs, acl), want);
    let entry = |verdict: &nfs4::Verdict| match verdict.reason {
        nfs4::Reason::Entry(at) => acl.and_then(|acl| acl.stored_entry(at)),
        _ => None,
    };
    CheckReason::Nfs4(verdicts.into_iter().map(|verdict| (verdict, entry(&verdict))).collect())
}

/// Evaluates [`nfs4::may_remove`], after the check that the kernel makes first.
fn remove(cred: &Cred, access_attrs: &AccessAttrs, dir: &AccessAttrs) -> CheckResult {
    let acl_of = |of: &AccessAttrs| match &of.rules {
        Rules::Nfs4(acl) => acl.clone(),
        Rules::Posix(_) => None,
    };
    let (dir_acl, own_acl) = (acl_of(dir), acl_of(access_attrs));
    let of_dir = || nfs4_reason(cred, Mask::DELETE_CHILD | Mask::WRITE_DATA, dir, dir_acl.as_ref());
    if !kernel_forwards_name_changes(cred, dir) {
        return CheckResult::refused(Errno::EACCES, of_dir());
    }
    let removal = nfs4::Removal {
        parent: nfs4::decide(cred, &[], &nfs4_file(dir, dir_acl.as_ref())),
        target: nfs4_target(cred, access_attrs, own_acl.as_ref()),
        parent_mode: dir.mode,
        parent_uid: dir.uid,
        target_uid: access_attrs.uid,
    };
    let evaluation = nfs4::may_remove(cred.uid, cred.caps, &removal);
    match evaluation {
        Ok(Grant::FileAcl) | Err(Denial::FileAcl) => {
            CheckResult::of(evaluation, || nfs4_reason(cred, Mask::DELETE, access_attrs, own_acl.as_ref()))
        }
        _ => CheckResult::of(evaluation, of_dir),
    }
}
