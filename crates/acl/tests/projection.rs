//! The projection of an NFSv4 ACL to a POSIX ACL, checked with every caller of a small world of users and
//! groups. If `project` reports that the projection is not exact, and the group bits are not clear, the test
//! tries every POSIX ACL of that world. None of them may be exact.
//!
//! The test is quick by default; `ACL_CASES=... cargo test -p acl --test projection --release` tries that
//! many ACLs.

mod common;

use acl::identity::Id;
use acl::nfs4::{self, Decision, Mask, Nfs4Acl, project};
use acl::posix::{self, Entry, Perm, PosixAcl, Tag};
use common::{Rng, cases, nfs4_acl};
use types::{Caps, Cred, Ino, Mode};

/// The owner, two users that ACLs may name, one that only long ACLs name, and one that no ACL names.
const USERS: [u32; 5] = [0, 1, 2, 1300, 9];
/// The owning group and two others, and one that only long ACLs name; a caller may be in any of them.
const GROUPS: [u32; 4] = [0, 1, 2, 1301];
const OWNER: u32 = 0;
const OWNING_GROUP: u32 = 0;

/// All callers: each user in each set of groups, with and without each SID.
fn callers(sids: &[Id]) -> Vec<(Cred, Vec<Id>)> {
    let mut callers = Vec::new();
    for uid in USERS {
        for set in 0..1_u32 << GROUPS.len() {
            let groups = GROUPS.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
            let groups: Vec<u32> = groups.map(|(_, gid)| *gid).collect();
            for sid_set in 0..1_u32 << sids.len() {
                let held =
                    sids.iter().enumerate().filter(|(at, _)| sid_set & 1 << at != 0).map(|(_, id)| *id);
                callers.push((Cred::new(uid, 99, &groups, Caps::NONE), held.collect()));
            }
        }
    }
    callers
}

/// The permissions that the NFSv4 ACL grants to the caller, in the kernel's terms.
fn rwx(decision: Decision, is_dir: bool) -> Perm {
    let bit = |set: bool, perm: Perm| if set { perm } else { Perm::NONE };
    let write = Mask::WRITE_DATA | Mask::APPEND_DATA;
    let write = if is_dir { write | Mask::DELETE_CHILD } else { write };
    bit(decision.granted.has(Mask::READ_DATA), Perm::READ)
        | bit(decision.granted.has_any(write), Perm::WRITE)
        | bit(decision.granted.has(Mask::EXECUTE), Perm::EXECUTE)
}

/// An ACL over the small world. Most entries contain search.
fn small_acl(rng: &mut Rng) -> Nfs4Acl {
    let length = rng.pick(&[3, 5, 8]);
    let acl = nfs4_acl(3, length, rng);
    let with_search = acl.entries().iter().map(|entry| {
        if rng.one_in(4) { *entry } else { nfs4::Entry { mask: entry.mask | Mask::EXECUTE, ..*entry } }
    });
    let with_search = with_search.collect();
    // Some ACLs are so long that a POSIX ACL cannot name all principals. The additional entries do not
    // contain search.
    let mut with_search: Vec<nfs4::Entry> = with_search;
    if rng.one_in(4) {
        let at = rng.below(with_search.len() as u32 + 1) as usize;
        let kind = rng.pick(&[nfs4::Kind::Allow, nfs4::Kind::Deny]);
        let flags = nfs4::EntryFlags::NONE;
        let mut long = with_search.split_off(at);
        with_search.extend((0..600).map(|index| {
            let id = Id::system(1000 + index).unwrap();
            let who = if rng.one_in(2) { nfs4::Who::User(id) } else { nfs4::Who::NamedGroup(id) };
            nfs4::Entry { kind, flags, who, mask: Mask::READ_DATA }
        }));
        with_search.append(&mut long);
    }
    // Most ACLs have no SIDs, which POSIX ACLs cannot name.
    let keeps_sids = rng.one_in(4);
    let kept = with_search.iter().filter(|entry| match entry.who {
        nfs4::Who::User(id) | nfs4::Who::NamedGroup(id) => keeps_sids || id.to_system().is_some(),
        _ => true,
    });
    Nfs4Acl::new(acl.flags(), kept.copied()).unwrap_or(acl)
}

fn sids_of(acl: &Nfs4Acl) -> Vec<Id> {
    let mut sids: Vec<Id> = acl
        .named()
        .filter_map(|who| match who {
            nfs4::Who::User(id) | nfs4::Who::NamedGroup(id) if id.to_system().is_none() => Some(id),
            _ => None,
        })
        .collect();
    sids.sort();
    sids.dedup();
    sids
}

#[test]
fn projections_are_never_narrower_and_exact_if_they_say_so() {
    let mut rng = Rng::new("projections_are_never_narrower_and_exact_if_they_say_so");
    let (mut tried, mut exact, mut impossible, mut ungrouped) = (0, 0, 0, 0);
    let goal = cases(1_500);
    while tried < goal {
        let acl = small_acl(&mut rng);
        let is_dir = rng.one_in(2);
        let shown = project(&acl, OWNER, OWNING_GROUP, is_dir);
        let inode = posix::FileAttrs {
            uid: OWNER,
            gid: OWNING_GROUP,
            mode: Mode::new(shown.rwx),
            is_dir,
            acl: shown.acl.as_ref(),
        };
        let everybody = callers(&sids_of(&acl));
        let rights: Vec<Perm> = everybody
            .iter()
            .map(|(cred, sids)| {
                let inode = nfs4::FileAttrs {
                    uid: OWNER,
                    gid: OWNING_GROUP,
                    mode: Mode::new(0),
                    is_dir,
                    acl: Some(&acl),
                };
                rwx(nfs4::decide(cred, sids, &inode), is_dir)
            })
            .collect();
        for ((cred, sids), right) in everybody.iter().zip(&rights) {
            let context = || format!("{} {acl} dir {is_dir}: {shown:?} {cred:?} {sids:?}", rng.name());
            let decision = posix::decide(cred, &inode);
            assert!(decision.allows(*right), "narrower than {right}: {}", context());
            if shown.search_is_exact {
                let search = right.has(Perm::EXECUTE);
                assert_eq!(decision.allows(Perm::EXECUTE), search, "not exact: {}", context());
            }
            // The owner has the bits of the mode. If the group bits are clear, the kernel ignores the ACL and
            // the mode decides.
            if is_dir && right.has(Perm::EXECUTE) && cred.uid != OWNER && shown.rwx & 0o070 != 0 {
                assert!(decision.allows(Perm::WRITE | Perm::EXECUTE), "no w with x: {}", context());
            }
        }
        // The ACL that programs read has a reference, so that they can copy it.
        let posix = shown.acl.clone().unwrap_or_else(|| nfs4::minimal(Mode::new(shown.rwx)));
        let read = nfs4::refer(&posix, "volume", (Ino(7), is_dir), acl.id());
        let nfs4::Posix::Reference(reference) = nfs4::classify(&read, is_dir) else {
            panic!("{} {acl}: {read:?}", rng.name());
        };
        assert!(reference.ino == Ino(7) && reference.is_of("volume", acl.id()));
        if let Ok(Some(set)) = PosixAcl::from_xattr(&read.to_xattr()) {
            assert_eq!(nfs4::classify(&set, is_dir), nfs4::Posix::Reference(reference));
        }
        for (cred, _) in &everybody {
            let with = posix::FileAttrs { acl: Some(&read), ..inode };
            assert_eq!(posix::decide(cred, &with), posix::decide(cred, &inode), "{cred:?} {read:?}");
        }
        if shown.search_is_exact {
            exact += 1;
        } else if shown.rwx & 0o070 == 0 {
            // The mode must show what a chmod requested, even if an ACL with other group bits would be exact.
            ungrouped += 1;
        } else {
            impossible += 1;
            let found = any_posix_acl(|inode| {
                everybody.iter().zip(&rights).all(|((cred, _), right)| {
                    posix::decide(cred, inode).allows(Perm::EXECUTE) == right.has(Perm::EXECUTE)
                })
            });
            assert_eq!(found, None, "{} {acl}: {shown:?} says that nothing is exact", rng.name());
        }
        tried += 1;
    }
    eprintln!(
        "{tried} ACLs, {exact} exact, {impossible} that no POSIX ACL expresses, {ungrouped} without group bits"
    );
    assert!(exact > tried / 5 && impossible > tried / 20);
}

/// Tries all POSIX ACLs of the small world that differ in search, and returns the first one that satisfies
/// `fits`.
fn any_posix_acl(fits: impl Fn(&posix::FileAttrs<'_>) -> bool) -> Option<PosixAcl> {
    // Each named user and group has no entry, an entry without x, or one with x; owner, owning group and
    // others have x or not.
    for choice in 0..3_u32.pow(4) * 8 {
        let (base, named) = (choice % 8, choice / 8);
        // The mask limits nothing, and keeps the group bits from being clear.
        let mut entries = vec![
            Entry { tag: Tag::UserObj, perm: Perm::new(base & 1) },
            Entry { tag: Tag::GroupObj, perm: Perm::new(base >> 1 & 1) },
            Entry { tag: Tag::Other, perm: Perm::new(base >> 2 & 1) },
            Entry { tag: Tag::Mask, perm: Perm::ALL },
        ];
        let tags = [Tag::User(1), Tag::User(2), Tag::Group(1), Tag::Group(2)];
        for (tag, power) in tags.into_iter().zip(0..) {
            match named / 3_u32.pow(power) % 3 {
                0 => {}
                right => entries.push(Entry { tag, perm: Perm::new(right - 1) }),
            }
        }
        let acl = PosixAcl::from_entries(entries).unwrap();
        let (rwx, _) = acl.equiv_mode();
        let inode = posix::FileAttrs {
            uid: OWNER,
            gid: OWNING_GROUP,
            mode: Mode::new(rwx),
            is_dir: true,
            acl: Some(&acl),
        };
        if fits(&inode) {
            return Some(acl);
        }
    }
    None
}
