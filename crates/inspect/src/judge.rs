//! One check and one caller: granted or not, and what decides it.

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
    Capability(&'static str),
    /// Only this capability would do.
    NeedsCapability(&'static str),
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
}

/// Judges a check for a caller; agrees with the kernel, whose functions are named at [`Demand`].
pub fn judge(cred: &Cred, check: &Check) -> Verdict {
    let subject = &check.subject;
    let owns = cred.uid == subject.uid;
    match &check.demand {
        Demand::Search => access(cred, Perm::EXECUTE, subject),
        Demand::Names => access(cred, Perm::WRITE | Perm::EXECUTE, subject),
        Demand::Access(want) => access(cred, *want, subject),
        Demand::Follow { dir_uid } => match subject.uid {
            _ if owns => Verdict::granted(Ground::Owns),
            uid if uid == *dir_uid => Verdict::granted(Ground::LinkOfDirectory),
            _ => Verdict::refused(Errno::EACCES, Ground::LinkOfOther),
        },
        Demand::Sticky { dir_uid } => sticky(cred, subject, *dir_uid),
        Demand::Remove { dir } => remove(cred, subject, dir),
        Demand::Own if owns => Verdict::granted(Ground::Owns),
        Demand::Own if cred.caps.has(Caps::FOWNER) => Verdict::granted(Ground::Capability("CAP_FOWNER")),
        Demand::Own => Verdict::refused(Errno::EPERM, Ground::OwnsNot),
        Demand::GiveAway if cred.caps.has(Caps::CHOWN) => Verdict::granted(Ground::Capability("CAP_CHOWN")),
        Demand::GiveAway => Verdict::refused(Errno::EPERM, Ground::NeedsCapability("CAP_CHOWN")),
        Demand::Touch if owns => Verdict::granted(Ground::Owns),
        Demand::Touch if cred.caps.has(Caps::FOWNER) => Verdict::granted(Ground::Capability("CAP_FOWNER")),
        Demand::Touch => touch(cred, subject),
    }
}

/// All of `want` at once. Twin of `generic_permission`.
fn access(cred: &Cred, want: Perm, subject: &Subject) -> Verdict {
    match &subject.rules {
        Rules::Posix(acl) => {
            let node = posix_node(subject, acl.as_ref());
            let (granted, reason) = posix::explain(cred, want, &node);
            let ground = posix_ground(subject, acl.as_ref(), reason);
            if granted {
                return Verdict::granted(ground);
            }
            let with = |caps| {
                let mut only = cred.clone();
                only.caps = caps;
                cred.caps.has(caps) && posix::check(&only, want, &node).is_ok()
            };
            by_capability(with, ground)
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
    posix::check(cred, want, &node).is_ok()
}

/// Whether the kernel lets the caller try to remove names from a directory with an NFSv4 ACL: the owner only with `w` in the
/// mode, and nobody else without it if the group bits are clear. True without an ACL, where the mode is checked anyway.
pub(crate) fn lets_try_names(cred: &Cred, dir: &Subject) -> bool {
    match &dir.rules {
        Rules::Nfs4(Some(acl)) => lets_try(cred, Perm::WRITE | Perm::EXECUTE, dir, acl),
        _ => true,
    }
}

/// Refused by `ground`, unless a capability helps: the weaker one is named where both do.
fn by_capability(with: impl Fn(Caps) -> bool, ground: Ground) -> Verdict {
    let known = [(Caps::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"), (Caps::DAC_OVERRIDE, "CAP_DAC_OVERRIDE")];
    match known.into_iter().find(|(caps, _)| with(*caps)) {
        Some((_, name)) => Verdict::granted(Ground::Capability(name)),
        None => Verdict::refused(Errno::EACCES, ground),
    }
}

fn posix_node<'a>(subject: &Subject, acl: Option<&'a PosixAcl>) -> posix::Node<'a> {
    let Subject { uid, gid, mode, .. } = *subject;
    posix::Node { uid, gid, mode, is_dir: subject.kind.is_dir(), acl }
}

fn posix_ground(subject: &Subject, acl: Option<&PosixAcl>, reason: Reason) -> Ground {
    let rwx = subject.mode.rwx();
    let (tag, bits) = match reason {
        Reason::Owner => (Tag::UserObj, rwx >> 6),
        Reason::Group => (Tag::GroupObj, rwx >> 3),
        Reason::Other => (Tag::Other, rwx),
        Reason::Entry { tag, .. } => {
            let entries = || acl.into_iter().flat_map(PosixAcl::entries);
            let of = |tag| entries().find(|entry| entry.tag == tag).map_or(Perm::NONE, |entry| entry.perm);
            let mask = entries().find(|entry| entry.tag == Tag::Mask).map(|entry| entry.perm);
            let perm = of(tag);
            let mask = mask.filter(|mask| tag != Tag::Other && !mask.has(perm));
            return Ground::Entry(Entry { tag, perm }, mask);
        }
    };
    let entry = Entry { tag, perm: Perm::new(bits) };
    // The owner's rights stand in the mode in any case.
    if acl.is_some() && reason != Reason::Owner { Ground::ModeAside(entry) } else { Ground::Mode(entry) }
}

fn sticky(cred: &Cred, subject: &Subject, dir_uid: u32) -> Verdict {
    if cred.uid == subject.uid {
        Verdict::granted(Ground::Owns)
    } else if cred.uid == dir_uid {
        Verdict::granted(Ground::OwnsDirectory)
    } else if cred.caps.has(Caps::FOWNER) {
        Verdict::granted(Ground::Capability("CAP_FOWNER"))
    } else {
        Verdict::refused(Errno::EPERM, Ground::OwnsNeither)
    }
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
    let (granted, ground) = nfs4_ground(cred, want, subject, acl);
    if granted.has(want) {
        return Verdict::granted(ground);
    }
    let left = want.without(granted);
    let with = |caps: Caps| cred.caps.has(caps) && nfs4_overrides(caps, subject, acl).has(left);
    by_capability(with, ground)
}

/// What capabilities add, as the operations of a volume have it, and the kernel by the bits that it is shown.
pub(crate) fn nfs4_overrides(caps: Caps, subject: &Subject, acl: Option<&Nfs4Acl>) -> Mask {
    let is_dir = subject.kind.is_dir();
    let by_volume = subject.mode.rwx() & 0o111 != 0 || acl.is_some_and(Nfs4Acl::lets_anybody_execute);
    let by_kernel =
        acl.is_none_or(|acl| nfs4::project(acl, subject.uid, subject.gid, is_dir).rwx & 0o111 != 0);
    nfs4::overrides(caps, is_dir, by_volume && by_kernel)
}

/// What is decided about the removal of a file: a mode says nothing of `DELETE`.
pub(crate) fn nfs4_target(cred: &Cred, subject: &Subject, acl: Option<&Nfs4Acl>) -> nfs4::Decision {
    match acl {
        Some(_) => nfs4::decide(cred, &[], &nfs4_node(subject, acl)),
        None => nfs4::Decision::default(),
    }
}

/// What the entries grant of `want`, and which of them decide.
fn nfs4_ground(cred: &Cred, want: Mask, subject: &Subject, acl: Option<&Nfs4Acl>) -> (Mask, Ground) {
    let verdicts = nfs4::explain(cred, &[], &nfs4_node(subject, acl), want);
    let granted =
        verdicts.iter().filter(|verdict| verdict.granted).fold(Mask::NONE, |all, one| all | one.permission);
    let entry = |verdict: &nfs4::Verdict| match verdict.reason {
        nfs4::Reason::Entry(at) => acl.and_then(|acl| acl.entries().get(at)).copied(),
        _ => None,
    };
    let grounds = verdicts.into_iter().map(|verdict| (verdict, entry(&verdict))).collect();
    (granted, Ground::Nfs4(grounds))
}

/// Twin of [`nfs4::may_remove`], with its reason.
fn remove(cred: &Cred, subject: &Subject, dir: &Subject) -> Verdict {
    let acl_of = |of: &Subject| match &of.rules {
        Rules::Nfs4(acl) => acl.clone(),
        Rules::Posix(_) => None,
    };
    let (dir_acl, own_acl) = (acl_of(dir), acl_of(subject));
    let removal = nfs4::Removal {
        parent: nfs4::decide(cred, &[], &nfs4_node(dir, dir_acl.as_ref())),
        target: nfs4_target(cred, subject, own_acl.as_ref()),
        parent_mode: dir.mode,
        parent_uid: dir.uid,
        target_uid: subject.uid,
    };
    if !lets_try_names(cred, dir) {
        let (_, ground) = nfs4_ground(cred, Mask::DELETE_CHILD | Mask::WRITE_DATA, dir, dir_acl.as_ref());
        return Verdict::refused(Errno::EACCES, ground);
    }
    let errno = nfs4::may_remove(cred, &removal).err();
    let mut without = cred.clone();
    without.caps = Caps::NONE;
    if errno.is_none()
        && let Err(errno) = nfs4::may_remove(&without, &removal)
    {
        let name = if errno == Errno::EPERM { "CAP_FOWNER" } else { "CAP_DAC_OVERRIDE" };
        return Verdict::granted(Ground::Capability(name));
    }
    if errno == Some(Errno::EPERM) {
        return Verdict::refused(Errno::EPERM, Ground::OwnsNeither);
    }
    let own = removal.target;
    let decided_by_file = own.granted.has(Mask::DELETE) || own.denied.has(Mask::DELETE);
    let (_, ground) = if decided_by_file {
        nfs4_ground(cred, Mask::DELETE, subject, own_acl.as_ref())
    } else {
        nfs4_ground(cred, Mask::DELETE_CHILD | Mask::WRITE_DATA, dir, dir_acl.as_ref())
    };
    Verdict { errno, ground }
}
