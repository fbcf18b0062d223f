//! One check and one caller: granted or not, and what decides it.

use acl::evaluate::{self, Class, Denial, Evaluation, Grant};
use acl::nfs4::{self, Mask, Nfs4Acl};
use acl::posix::{self, Entry, Perm, PosixAcl, Reason, Tag};
use types::{Caps, Cred, Errno, Mode};

use crate::route::{Check, Demand};
use crate::subject::{Rules, Subject};

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it is refused with; none where it is granted.
    pub errno: Option<Errno>,
    pub ground: Ground,
}

/// What decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Bits of the mode, as the entry that they stand for.
    Mode(Entry),
    /// The same, because the group bits of the mode, which are the ACL's mask, are all clear and so put it aside.
    ModeAside(Entry),
    /// An entry of the POSIX ACL, and the mask where that takes something away from it.
    Entry(Entry, Option<Perm>),
    /// What decided each permission of an NFSv4 ACL, and the entry where one did.
    Nfs4(Vec<(nfs4::Verdict, Option<nfs4::Entry>)>),
    /// A capability, though mode and ACL refuse.
    Capability(Caps),
    /// Only this capability would do.
    NeedsCapability(Caps),
    /// The caller owns the file.
    Owns,
    /// The caller does not own the file, and that would be needed.
    OwnsNot,
    /// The caller owns the sticky directory.
    OwnsDirectory,
    /// The directory is sticky, and the caller owns neither it nor the file.
    OwnsNeither,
    /// The symbolic link belongs to the owner of the directory that it is in.
    LinkOfDirectory,
    /// The symbolic link belongs to a third, and lies where everybody could have put it.
    LinkOfOther,
}

impl Verdict {
    pub fn is_granted(&self) -> bool {
        self.errno.is_none()
    }

    fn granted(ground: Ground) -> Self {
        Verdict { errno: None, ground }
    }

    fn refused(errno: Errno, ground: Ground) -> Self {
        Verdict { errno: Some(errno), ground }
    }

    /// The verdict of an evaluation. `by_acl` says which part of mode or ACL decided, if one did.
    fn of(evaluation: Evaluation, by_acl: impl FnOnce() -> Ground) -> Self {
        let ground = match evaluation {
            Ok(Grant::Acl | Grant::FileAcl) | Err(Denial::Acl | Denial::FileAcl) => by_acl(),
            Ok(Grant::Owner) => Ground::Owns,
            Ok(Grant::DirectoryOwner) => Ground::OwnsDirectory,
            Ok(Grant::Capability(caps)) => Ground::Capability(caps),
            Err(Denial::NotOwner) => Ground::OwnsNot,
            Err(Denial::Sticky) => Ground::OwnsNeither,
            Err(Denial::NeedsCapability(caps)) => Ground::NeedsCapability(caps),
        };
        Verdict { errno: evaluation.err().map(Denial::errno), ground }
    }

    /// The verdict of an evaluation that no ACL bears on.
    fn of_ownership(evaluation: Evaluation) -> Self {
        Verdict::of(evaluation, || Ground::Owns)
    }
}

/// Judges a check for a caller; agrees with the kernel, whose functions are named at [`Demand`].
pub fn judge(cred: &Cred, check: &Check) -> Verdict {
    let subject = &check.subject;
    let owner = || evaluate::owner(cred.uid, cred.caps, subject.uid);
    match &check.demand {
        Demand::Search => access(cred, Perm::EXECUTE, subject),
        Demand::Names => access(cred, Perm::WRITE | Perm::EXECUTE, subject),
        Demand::Access(want) => access(cred, *want, subject),
        Demand::Follow { dir_uid } => match subject.uid {
            uid if uid == cred.uid => Verdict::granted(Ground::Owns),
            uid if uid == *dir_uid => Verdict::granted(Ground::LinkOfDirectory),
            _ => Verdict::refused(Errno::EACCES, Ground::LinkOfOther),
        },
        Demand::Sticky { dir_mode, dir_uid } => {
            Verdict::of_ownership(evaluate::sticky(cred.uid, cred.caps, *dir_mode, *dir_uid, subject.uid))
        }
        Demand::Remove { dir } => remove(cred, subject, dir),
        Demand::Own => Verdict::of_ownership(owner()),
        Demand::GiveAway => Verdict::of_ownership(evaluate::capability(cred.caps, Caps::CHOWN)),
        Demand::Touch => match owner() {
            Err(_) => touch(cred, subject),
            owner => Verdict::of_ownership(owner),
        },
    }
}

/// All of `want` at once.
fn access(cred: &Cred, want: Perm, subject: &Subject) -> Verdict {
    match &subject.rules {
        Rules::Posix(acl) => {
            let node = posix_node(subject, acl.as_ref());
            Verdict::of(posix::permits(cred, want, &node), || {
                let (_, reason) = posix::explain(cred, want, &node);
                posix_ground(subject, acl.as_ref(), reason)
            })
        }
        Rules::Nfs4(acl) => nfs4_access(cred, mask_of(want) | beforehand(subject), subject, acl.as_ref()),
    }
}

/// What the kernel asks the volume for before it checks anything else of a directory of which it cannot tell who may
/// search it: that (`fuse_perm_getattr`, fs/fuse/dir.c).
pub(crate) fn beforehand(subject: &Subject) -> Mask {
    match &subject.rules {
        Rules::Nfs4(Some(acl)) if subject.kind.is_dir() => {
            let shown = nfs4::project(acl, subject.uid, subject.gid, true);
            if shown.search_is_exact { Mask::NONE } else { Mask::SEARCH }
        }
        _ => Mask::NONE,
    }
}

/// By who does not own it. An NFSv4 ACL may grant just that, but the kernel lets only those try to whom it is shown to
/// grant writing (`setattr_prepare`, and `inode_permission` in `vfs_utimes`).
fn touch(cred: &Cred, subject: &Subject) -> Verdict {
    let by_data = access(cred, Perm::WRITE, subject);
    let Rules::Nfs4(Some(acl)) = &subject.rules else { return by_data };
    if by_data.is_granted() || !lets_try(cred, Perm::WRITE, subject, acl) {
        return by_data;
    }
    nfs4_access(cred, Mask::WRITE_ATTRIBUTES | beforehand(subject), subject, Some(acl))
}

/// Whether the kernel, by what it is shown of the ACL, lets the caller try what takes these bits.
fn lets_try(cred: &Cred, want: Perm, subject: &Subject, acl: &Nfs4Acl) -> bool {
    let is_dir = subject.kind.is_dir();
    let shown = nfs4::project(acl, subject.uid, subject.gid, is_dir);
    let mode = Mode::new(shown.rwx);
    let node = posix::Node { uid: subject.uid, gid: subject.gid, mode, is_dir, acl: shown.acl.as_ref() };
    posix::permits(cred, want, &node).is_ok()
}

/// Whether the kernel lets the caller try to remove names from a directory with an NFSv4 ACL: the owner only with `w` in the
/// mode, and nobody else without it if the group bits are clear. True without an ACL, where the mode is checked anyway.
pub(crate) fn lets_try_names(cred: &Cred, dir: &Subject) -> bool {
    match &dir.rules {
        Rules::Nfs4(Some(acl)) => lets_try(cred, Perm::WRITE | Perm::EXECUTE, dir, acl),
        _ => true,
    }
}

fn posix_node<'a>(subject: &Subject, acl: Option<&'a PosixAcl>) -> posix::Node<'a> {
    let Subject { uid, gid, mode, .. } = *subject;
    posix::Node { uid, gid, mode, is_dir: subject.kind.is_dir(), acl }
}

fn posix_ground(subject: &Subject, acl: Option<&PosixAcl>, reason: Reason) -> Ground {
    let class = match reason {
        Reason::Mode(class) => class,
        Reason::Entry { tag, .. } => {
            let entries = || acl.into_iter().flat_map(PosixAcl::entries);
            let of = |tag| entries().find(|entry| entry.tag == tag).map_or(Perm::NONE, |entry| entry.perm);
            let mask = entries().find(|entry| entry.tag == Tag::Mask).map(|entry| entry.perm);
            let perm = of(tag);
            let mask = mask.filter(|mask| tag != Tag::Other && !mask.has(perm));
            return Ground::Entry(Entry { tag, perm }, mask);
        }
    };
    let tag = match class {
        Class::Owner => Tag::UserObj,
        Class::Group => Tag::GroupObj,
        Class::Other => Tag::Other,
    };
    let entry = Entry { tag, perm: Perm::new(class.rwx(subject.mode)) };
    // The owner's rights stand in the mode in any case.
    if acl.is_some() && class != Class::Owner { Ground::ModeAside(entry) } else { Ground::Mode(entry) }
}

/// What reading, writing and executing are on a file or directory, `nfs4::Mask`.
pub(crate) fn mask_of(want: Perm) -> Mask {
    let all =
        [(Perm::READ, Mask::READ_DATA), (Perm::WRITE, Mask::WRITE_DATA), (Perm::EXECUTE, Mask::EXECUTE)];
    all.into_iter().filter(|(perm, _)| want.has(*perm)).fold(Mask::NONE, |mask, (_, one)| mask | one)
}

pub(crate) fn nfs4_node<'a>(subject: &Subject, acl: Option<&'a Nfs4Acl>) -> nfs4::Node<'a> {
    let Subject { uid, gid, mode, .. } = *subject;
    nfs4::Node { uid, gid, mode, is_dir: subject.kind.is_dir(), acl }
}

fn nfs4_access(cred: &Cred, want: Mask, subject: &Subject, acl: Option<&Nfs4Acl>) -> Verdict {
    let granted = nfs4::decide(cred, &[], &nfs4_node(subject, acl)).granted;
    let any_execute = any_execute(subject, acl);
    let evaluation = nfs4::check(granted, cred.caps, want, subject.kind.is_dir(), any_execute);
    Verdict::of(evaluation, || nfs4_ground(cred, want, subject, acl))
}

/// Whether anybody may execute, as the operations of a volume have it, and the kernel by the bits that it is shown.
pub(crate) fn any_execute(subject: &Subject, acl: Option<&Nfs4Acl>) -> bool {
    let is_dir = subject.kind.is_dir();
    let by_volume = subject.mode.rwx() & 0o111 != 0 || acl.is_some_and(Nfs4Acl::lets_anybody_execute);
    let by_kernel =
        acl.is_none_or(|acl| nfs4::project(acl, subject.uid, subject.gid, is_dir).rwx & 0o111 != 0);
    by_volume && by_kernel
}

/// What is decided about the removal of a file: a mode says nothing of `DELETE`.
pub(crate) fn nfs4_target(cred: &Cred, subject: &Subject, acl: Option<&Nfs4Acl>) -> nfs4::Decision {
    match acl {
        Some(_) => nfs4::decide(cred, &[], &nfs4_node(subject, acl)),
        None => nfs4::Decision::default(),
    }
}

/// The entries that decide each permission of `want`.
fn nfs4_ground(cred: &Cred, want: Mask, subject: &Subject, acl: Option<&Nfs4Acl>) -> Ground {
    let verdicts = nfs4::explain(cred, &[], &nfs4_node(subject, acl), want);
    let entry = |verdict: &nfs4::Verdict| match verdict.reason {
        nfs4::Reason::Entry(at) => acl.and_then(|acl| acl.entries().get(at)).copied(),
        _ => None,
    };
    Ground::Nfs4(verdicts.into_iter().map(|verdict| (verdict, entry(&verdict))).collect())
}

/// [`nfs4::may_remove`], after what the kernel checks before it.
fn remove(cred: &Cred, subject: &Subject, dir: &Subject) -> Verdict {
    let acl_of = |of: &Subject| match &of.rules {
        Rules::Nfs4(acl) => acl.clone(),
        Rules::Posix(_) => None,
    };
    let (dir_acl, own_acl) = (acl_of(dir), acl_of(subject));
    let of_dir = || nfs4_ground(cred, Mask::DELETE_CHILD | Mask::WRITE_DATA, dir, dir_acl.as_ref());
    if !lets_try_names(cred, dir) {
        return Verdict::refused(Errno::EACCES, of_dir());
    }
    let removal = nfs4::Removal {
        parent: nfs4::decide(cred, &[], &nfs4_node(dir, dir_acl.as_ref())),
        target: nfs4_target(cred, subject, own_acl.as_ref()),
        parent_mode: dir.mode,
        parent_uid: dir.uid,
        target_uid: subject.uid,
    };
    let evaluation = nfs4::may_remove(cred.uid, cred.caps, &removal);
    match evaluation {
        Ok(Grant::FileAcl) | Err(Denial::FileAcl) => {
            Verdict::of(evaluation, || nfs4_ground(cred, Mask::DELETE, subject, own_acl.as_ref()))
        }
        _ => Verdict::of(evaluation, of_dir),
    }
}
