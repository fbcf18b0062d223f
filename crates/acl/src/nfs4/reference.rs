//! POSIX ACLs that programs set on a volume with NFSv4 ACLs.
//!
//! Programs copy permissions as POSIX ACLs (`cp -p`, `rsync -A`, `tar --acls`). For a file with an NFSv4 ACL,
//! they read its projection. A copy must not get the permissions of the projection, which may grant more than
//! the ACL. Therefore the projection that programs read also refers to its file ([`refer`]): it has entries
//! for groups, without permissions, whose gids encode the file. No system uses these gids. When a program
//! sets such an ACL, the copy gets the NFSv4 ACL of that file.
//!
//! An ACL without a reference comes from elsewhere and is converted by its own entries ([`from_posix`]).
//!
//! | group number | holds |
//! |---|---|
//! | `0x8000_0000` + 28 bits | the low bits of the inode number |
//! | `0x9000_0000` + 28 bits | the high bits, if there are any |
//! | `0xa000_0000` and `0xb000_0000`, + 28 bits | a hash of volume, inode, NFSv4 ACL and the other entries |
//!
//! Two simpler designs do not work. A request does not show whether the kernel or a program reads the ACL, so
//! the two cannot get different ACLs. If setting such an ACL failed, `rsync` and `tar` would set the mode
//! instead and lose the entries that deny.
//!
//! A reference contains the inode and a hash, not the id of the NFSv4 ACL. So the daemon can check that
//! the caller may read the ACL of that inode, and that the inode still has it.

use types::{AclId, Ino, Mode};

use crate::identity::Id;
use crate::posix::{self, Perm, PosixAcl, Tag};

use super::bits::{OF_EVERYONE, OF_OWNER, of_bits};
use super::{AclFlags, Entry, Mask, Nfs4Acl, Who};

const FIRST: u32 = 0x8000_0000;
const LAST: u32 = 0xbfff_ffff;
const BITS: u32 = 28;
const LOW: u64 = (1 << BITS) - 1;
/// The maximum number of entries that a reference adds to an ACL: its four parts, and a mask.
pub(super) const ENTRIES: usize = 5;

/// The file that a POSIX ACL was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub ino: Ino,
    hash: u64,
    /// The ACL without the reference.
    posix: PosixAcl,
    is_dir: bool,
}

/// The origin of a POSIX ACL that a program sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posix {
    /// It was read from a file of some volume with NFSv4 ACLs.
    Reference(Reference),
    /// It names groups in the number range of references, or has no room for a reference, so its origin is
    /// unknown.
    Unclear,
    /// It comes from elsewhere.
    Foreign,
}

impl Reference {
    /// Whether the reference is to a file of this volume with this NFSv4 ACL, and no entry of the POSIX ACL
    /// has changed since it was read.
    pub fn is_of(&self, volume: &str, access_acl: AclId) -> bool {
        hash(volume, self.ino, access_acl, &self.posix, self.is_dir) == self.hash
    }
}

/// The hash of a reference. It ignores the `w` of others on directories that comes with `x`
/// ([`super::project`]), because rsync sets the permissions of others from the mode, which does not have that
/// `w`.
fn hash(volume: &str, ino: Ino, access_acl: AclId, posix: &PosixAcl, is_dir: bool) -> u64 {
    let entries = posix.entries().map(|entry| match entry.tag {
        Tag::Other if is_dir && entry.perm.has(Perm::EXECUTE) => {
            posix::Entry { perm: entry.perm & (Perm::READ | Perm::EXECUTE), ..entry }
        }
        _ => entry,
    });
    let plain = PosixAcl::from_entries(entries).unwrap_or_else(|_| posix.clone());
    let text = format!("{volume} {ino} {access_acl} {}", plain.to_storage());
    (crate::content_id(b"limenfs acl reference 1\0", &text).0 >> (128 - 2 * BITS)) as u64
}

/// The projection of a file's NFSv4 ACL in the form that programs read, with a reference. If it has no room
/// for one, or names groups in the number range of references, it is returned unchanged, and [`classify`]
/// calls it unclear.
pub fn refer(shown: &PosixAcl, volume: &str, (ino, is_dir): (Ino, bool), access_acl: AclId) -> PosixAcl {
    let (low, high) = (ino.0 & LOW, ino.0 >> BITS);
    if !has_room(shown) || shown.entries().any(is_of_reference) {
        return shown.clone();
    }
    // An ACL with named entries needs a mask. If there is none, add one that limits nothing.
    let most = shown.entries().filter(|entry| matches!(entry.tag, Tag::GroupObj | Tag::Mask)).last();
    let mask = most.map_or(Perm::NONE, |entry| entry.perm);
    let has_mask = shown.entries().any(|entry| entry.tag == Tag::Mask);
    let mask = (!has_mask).then_some(posix::Entry { tag: Tag::Mask, perm: mask });
    let masked = PosixAcl::from_entries(shown.entries().chain(mask));
    let Ok(masked) = masked else { return shown.clone() };
    let hash = hash(volume, ino, access_acl, &masked, is_dir);
    let parts = [(0, low), (1, high), (2, hash & LOW), (3, hash >> BITS)];
    // The high part is left out if it is 0. If the number does not fit in both parts, the ACL gets no
    // complete reference, so it is unclear.
    let parts = parts.into_iter().filter(|(index, part)| match index {
        1 => (1..=LOW).contains(part),
        2 => high <= LOW,
        _ => true,
    });
    let parts = parts.map(|(index, part)| posix::Entry {
        tag: Tag::Group(FIRST | index << BITS | part as u32),
        perm: Perm::NONE,
    });
    PosixAcl::from_entries(masked.entries().chain(parts)).unwrap_or_else(|_| shown.clone())
}

fn has_room(acl: &PosixAcl) -> bool {
    acl.entry_count() + ENTRIES <= PosixAcl::MAX_ENTRIES
}

fn is_of_reference(entry: posix::Entry) -> bool {
    matches!(entry.tag, Tag::Group(FIRST..=LAST))
}

/// Classifies an ACL that a program sets on a file or directory.
pub fn classify(acl: &PosixAcl, is_dir: bool) -> Posix {
    let mut parts = [None; 4];
    for entry in acl.entries().filter(|entry| is_of_reference(*entry)) {
        let Tag::Group(gid) = entry.tag else { continue };
        let part = &mut parts[(gid >> BITS & 3) as usize];
        if part.replace(u64::from(gid) & LOW).is_some() || entry.perm != Perm::NONE {
            return Posix::Unclear;
        }
    }
    let posix = PosixAcl::from_entries(acl.entries().filter(|entry| !is_of_reference(*entry)));
    match (parts, posix) {
        ([None, None, None, None], _) if has_room(acl) => Posix::Foreign,
        ([Some(low), high, Some(first), Some(second)], Ok(posix)) => {
            let ino = Ino(low | high.unwrap_or(0) << BITS);
            Posix::Reference(Reference { ino, hash: first | second << BITS, posix, is_dir })
        }
        _ => Posix::Unclear,
    }
}

/// The NFSv4 ACL that grants what a POSIX ACL grants: to the owner the owner's entry, to a named user its
/// entry limited by the mask, to members of groups the union of their entries, and to everybody else the
/// entry for others. It follows draft-ietf-nfsv4-acl-mapping-05, which puts the deny entries for groups
/// behind the allow entries.
pub fn from_posix(acl: &PosixAcl, is_dir: bool) -> Nfs4Acl {
    let mask = acl.entries().find(|entry| entry.tag == Tag::Mask).map_or(Perm::ALL, |entry| entry.perm);
    let (mut users, mut groups, mut denied) = (Vec::new(), Vec::new(), Vec::new());
    let mut other = Mask::NONE;
    let all = of_bits(7, is_dir);
    for posix::Entry { tag, perm } in acl.entries() {
        let limited = of_bits((perm & mask).bits(), is_dir);
        let whole = of_bits(perm.bits(), is_dir);
        match tag {
            Tag::UserObj => {
                users.push(Entry::allow(Who::Owner, whole | OF_OWNER));
                users.push(Entry::deny(Who::Owner, all.without(whole)));
            }
            Tag::User(uid) => {
                let Some(id) = Id::system(uid) else { continue };
                users.push(Entry::allow(Who::User(id), limited | OF_EVERYONE));
                users.push(Entry::deny(Who::User(id), all.without(limited)));
            }
            Tag::GroupObj => {
                groups.push(Entry::allow(Who::Group, limited | OF_EVERYONE));
                denied.push(Entry::deny(Who::Group, all.without(limited)));
            }
            Tag::Group(gid) => {
                let Some(id) = Id::system(gid) else { continue };
                groups.push(Entry::allow(Who::NamedGroup(id), limited | OF_EVERYONE));
                denied.push(Entry::deny(Who::NamedGroup(id), all.without(limited)));
            }
            Tag::Mask => {}
            Tag::Other => other = whole,
        }
    }
    let entries = users.into_iter().chain(groups).chain(denied);
    let entries = entries.filter(|entry| entry.is_allow() || !entry.mask.is_none());
    let everyone = Entry::allow(Who::Everyone, other | OF_EVERYONE);
    Nfs4Acl::of_few(AclFlags::NONE, entries.chain([everyone]))
}

/// The POSIX ACL that is equivalent to a mode.
pub fn minimal(mode: Mode) -> PosixAcl {
    let perm = |shift: u32| Perm::new(mode.rwx() >> shift & 7);
    let tags = [(Tag::UserObj, perm(6)), (Tag::GroupObj, perm(3)), (Tag::Other, perm(0))];
    PosixAcl::from_entries(tags.map(|(tag, perm)| posix::Entry { tag, perm })).expect("all three are there")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posix(text: &str) -> PosixAcl {
        PosixAcl::from_text(text).unwrap()
    }

    #[test]
    fn projection_names_the_file_it_was_read_from() {
        let shown = posix("u::rw,u:7:rw,g::-,m::rw,o::-");
        for ino in [1, 0xfff_ffff, 0x1000_0000, 0xff_ffff_ffff_ffff].map(Ino) {
            let read = refer(&shown, "volume", (ino, false), AclId(5));
            let Posix::Reference(reference) = classify(&read, false) else { panic!("{read:?}") };
            assert_eq!(reference.ino, ino);
            assert!(reference.is_of("volume", AclId(5)));
            assert!(!reference.is_of("another", AclId(5)));
            assert!(!reference.is_of("volume", AclId(6)));
            // If a program changes an entry, the reference is no longer valid.
            let changed: Vec<_> = read
                .entries()
                .map(|entry| match entry.tag {
                    Tag::Other => posix::Entry { perm: Perm::READ, ..entry },
                    _ => entry,
                })
                .collect();
            let changed = PosixAcl::from_entries(changed).unwrap();
            let Posix::Reference(reference) = classify(&changed, false) else { panic!("{changed:?}") };
            assert!(!reference.is_of("volume", AclId(5)));
        }
        let mode = refer(&minimal(Mode::new(0o640)), "v", (Ino(1), false), AclId(5));
        assert!(matches!(classify(&mode, false), Posix::Reference(_)));
        assert_eq!(classify(&shown, false), Posix::Foreign);
    }

    #[test]
    fn reference_ignores_the_extra_write_bit_of_others_on_directories() {
        let shown = posix("u::rwx,u:7:rwx,g::rwx,m::rwx,o::rwx");
        let text = refer(&shown, "v", (Ino(1), true), AclId(5)).to_storage();
        for (other, is_same) in [("rwx", true), ("r-x", true), ("--x", false), ("r--", false)] {
            let set = PosixAcl::from_storage(&text.replace("o::rwx", &format!("o::{other}"))).unwrap();
            let Posix::Reference(reference) = classify(&set, true) else { panic!("{set:?}") };
            assert_eq!(reference.is_of("v", AclId(5)), is_same, "{other}");
        }
    }

    #[test]
    fn acl_without_room_for_a_reference_is_unclear() {
        let taken = posix("u::rw,g::-,g:2147483648:r,m::r,o::-");
        assert_eq!(refer(&taken, "v", (Ino(1), false), AclId(5)), taken);
        assert_eq!(classify(&taken, false), Posix::Unclear);
        let users: Vec<String> = (0..505).map(|uid| format!("u:{uid}:r")).collect();
        let long = posix(&format!("u::rw,{},g::-,m::r,o::-", users.join(",")));
        assert_eq!(refer(&long, "v", (Ino(1), false), AclId(5)), long);
        assert_eq!(classify(&long, false), Posix::Unclear);
        let short = posix("u::rw,g::-,o::-");
        assert_eq!(classify(&refer(&short, "v", (Ino(1 << 56), false), AclId(5)), false), Posix::Unclear);
    }

    #[test]
    fn posix_acl_converts_to_nfs4_entries() {
        let acl = from_posix(&posix("u::rw,u:7:rwx,g::r,g:30:w,m::rw,o::r"), false);
        assert_eq!(
            acl.to_storage(),
            "A::OWNER@:rwatTnNcCoy,D::OWNER@:x,A::7:rwatncy,D::7:x,A::GROUP@:rtncy,A:g:30:watncy,\
             D::GROUP@:wax,D:g:30:rx,A::EVERYONE@:rtncy"
        );
        assert!(from_posix(&minimal(Mode::new(0o750)), true).is_trivial(true));
    }
}
