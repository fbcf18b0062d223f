//! Shared parts of the randomised tests: a random number generator, random ACLs and callers with ids from a
//! small range, and naive implementations that follow the text of the standards.

#![allow(dead_code, reason = "each test uses a part")]

use std::time::{SystemTime, UNIX_EPOCH};

use acl::identity::Id;
use acl::nfs4::{self, AclFlags, EntryFlags, Kind, Mask, Nfs4Acl, Who};
use acl::posix::{self, Perm, PosixAcl, Tag};
use types::{Caps, Cred, Mode};

/// SplitMix64: small, and good enough to choose cases. Every run takes a new seed and prints it;
/// `ACL_SEED=...` replays one.
pub(crate) struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    pub(crate) fn new(test: &str) -> Self {
        let seed = match std::env::var("ACL_SEED") {
            Ok(seed) => seed.parse().expect("ACL_SEED is a decimal number"),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
        };
        eprintln!("{test}: ACL_SEED={seed}");
        Rng { seed, state: seed }
    }

    pub(crate) fn name(&self) -> String {
        format!("ACL_SEED={}", self.seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end)) as u32
    }

    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// The number of cases that a test tries: the environment variable `ACL_CASES`, or `default` if it is not
/// set.
pub(crate) fn cases(default: u64) -> u64 {
    match std::env::var("ACL_CASES") {
        Ok(cases) => cases.parse().expect("ACL_CASES is a decimal number"),
        Err(_) => default,
    }
}

/// A random valid POSIX ACL with ids below `ids`. One in four names no user or group, and another one in four
/// names exactly one.
pub(crate) fn posix_acl(ids: u32, rng: &mut Rng) -> PosixAcl {
    let (users, groups) = match rng.below(8) {
        0 | 1 => (0, 0),
        2 => (1, 0),
        3 => (0, 1),
        _ => (rng.below((ids / 4).min(250)) + 1, rng.below((ids / 4).min(250)) + 1),
    };
    let mut named = |count: u32, tag: fn(u32) -> Tag| -> Vec<posix::Entry> {
        let ids: std::collections::BTreeSet<u32> = (0..count).map(|_| rng.below(ids)).collect();
        ids.into_iter().map(|id| posix::Entry { tag: tag(id), perm: Perm::new(rng.below(8)) }).collect()
    };
    let mut entries = named(users, Tag::User);
    entries.extend(named(groups, Tag::Group));
    if !entries.is_empty() || rng.one_in(2) {
        let perm = if rng.one_in(2) { Perm::ALL } else { Perm::new(rng.below(8)) };
        entries.push(posix::Entry { tag: Tag::Mask, perm });
    }
    for tag in [Tag::UserObj, Tag::GroupObj, Tag::Other] {
        entries.push(posix::Entry { tag, perm: Perm::new(rng.below(8)) });
    }
    PosixAcl::from_entries(entries).unwrap()
}

/// A random NFSv4 ACL of 1 to `max_entries` entries, which name ids below `ids` and a few SIDs.
pub(crate) fn nfs4_acl(ids: u32, max_entries: u32, rng: &mut Rng) -> Nfs4Acl {
    let count = rng.below(max_entries) + 1;
    let entries: Vec<nfs4::Entry> = (0..count).map(|_| nfs4_entry(ids, rng)).collect();
    Nfs4Acl::new(AclFlags::from_bits(rng.below(8)).unwrap(), entries).unwrap()
}

fn nfs4_entry(ids: u32, rng: &mut Rng) -> nfs4::Entry {
    let kind = rng.pick(&[Kind::Allow, Kind::Allow, Kind::Allow, Kind::Deny, Kind::Deny, Kind::Audit]);
    let flags = if rng.one_in(3) { EntryFlags::from_bits(rng.below(64)).unwrap() } else { EntryFlags::NONE };
    let id = if rng.one_in(8) { sid(rng) } else { Id::system(rng.below(ids)).unwrap() };
    let who = match rng.below(10) {
        0 => Who::Owner,
        1 => Who::Group,
        2 => Who::Everyone,
        3..6 => Who::User(id),
        _ => Who::NamedGroup(id),
    };
    // With few bits, many entries take part in a decision; with many bits, few do.
    let bits = match rng.below(4) {
        0 => rng.next() as u32,
        1 => rng.next() as u32 & rng.next() as u32,
        2 => 1 << rng.below(21),
        _ => rng.pick(&[0x20, 0x21, 0x27, 0x0012_0081, 0x0016_0187, 0x0001_0040]),
    };
    nfs4::Entry { kind, flags, who, mask: Mask::from_bits(bits & Mask::ALL.bits()).unwrap() }
}

pub(crate) fn sid(rng: &mut Rng) -> Id {
    format!("{}-{}", rng.below(2) + 1, rng.below(3)).parse().unwrap()
}

/// A random caller with ids below `ids`, with no, few or many supplementary groups.
pub(crate) fn cred(ids: u32, caps: &[Caps], rng: &mut Rng) -> Cred {
    let count = rng.pick(&[0, 1, 2, ids / 3, ids]);
    let groups: Vec<u32> = (0..count).map(|_| rng.below(ids)).collect();
    Cred::new(rng.below(ids), rng.below(ids), &groups, rng.pick(caps))
}

/// The access check algorithm of `acl(5)`, step by step. The mode decides if there is no ACL, or if the group
/// bits of the mode are clear, because Linux then ignores the ACL.
pub(crate) fn naive_posix(cred: &Cred, want: Perm, inode: &posix::FileAttrs<'_>) -> bool {
    let in_group = |gid: u32| cred.gid == gid || cred.groups().contains(&gid);
    let class = |shift: u32| Perm::new(inode.mode.bits() >> shift).has(want);
    if cred.uid == inode.uid {
        return class(6);
    }
    let Some(acl) = inode.acl.filter(|_| inode.mode.bits() & 0o070 != 0) else {
        return if in_group(inode.gid) { class(3) } else { class(0) };
    };
    let entries: Vec<posix::Entry> = acl.entries().collect();
    let of = |tag: Tag| entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm);
    let mask = of(Tag::Mask).unwrap_or(Perm::ALL);
    if let Some(perm) = of(Tag::User(cred.uid)) {
        return perm.has(want) && mask.has(want);
    }
    let groups: Vec<Perm> = entries
        .iter()
        .filter(|entry| match entry.tag {
            Tag::GroupObj => in_group(inode.gid),
            Tag::Group(gid) => in_group(gid),
            _ => false,
        })
        .map(|entry| entry.perm)
        .collect();
    if !groups.is_empty() {
        return groups.iter().any(|perm| perm.has(want)) && mask.has(want);
    }
    of(Tag::Other).unwrap().has(want)
}

/// The result of the algorithm of RFC 8881 section 6.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Denied,
    /// The list ended before all requested permissions were decided.
    Open,
}

/// The algorithm of RFC 8881 section 6.2.1: "Each ACE is processed until all of the bits of the requester's
/// access have been ALLOWED. Once a bit has been ALLOWED by an ACCESS_ALLOWED_ACE, it is no longer considered
/// in the processing of later ACEs. If an ACCESS_DENIED_ACE is encountered where the requester's access still
/// has unALLOWED bits in common with the 'access_mask' of the ACE, the request is denied." Permissions that
/// owners always have are removed from the request first.
pub(crate) fn naive_nfs4(cred: &Cred, sids: &[Id], uid: u32, gid: u32, acl: &Nfs4Acl, want: Mask) -> Outcome {
    let in_group = |gid: u32| cred.gid == gid || cred.groups().contains(&gid);
    let always = Mask::READ_ACL | Mask::WRITE_ACL | Mask::READ_ATTRIBUTES | Mask::WRITE_ATTRIBUTES;
    let mut open = want.bits();
    if cred.uid == uid {
        open &= !always.bits();
    }
    for entry in acl.entries() {
        let fits = match entry.who {
            Who::Owner => cred.uid == uid,
            Who::Group => in_group(gid),
            Who::Everyone => true,
            Who::User(id) | Who::NamedGroup(id) if id.to_system().is_none() => sids.contains(&id),
            Who::User(id) => id.rid() == cred.uid,
            Who::NamedGroup(id) => in_group(id.rid()),
        };
        if open == 0 {
            break;
        }
        if !fits || entry.flags.has(EntryFlags::INHERIT_ONLY) {
            continue;
        }
        match entry.kind {
            Kind::Allow => open &= !entry.mask.bits(),
            Kind::Deny if open & entry.mask.bits() != 0 => return Outcome::Denied,
            _ => {}
        }
    }
    if open == 0 { Outcome::Allowed } else { Outcome::Open }
}

/// The NFSv4 permissions that a POSIX mode grants: those of the first class that applies, from its `rwx`
/// bits, and those that do not depend on these bits.
pub(crate) fn naive_nfs4_mode(cred: &Cred, uid: u32, gid: u32, mode: Mode, is_dir: bool) -> u32 {
    let in_group = cred.gid == gid || cred.groups().contains(&gid);
    let (rwx, rest) = if cred.uid == uid {
        (mode.bits() >> 6, 0x1e_0198)
    } else if in_group {
        (mode.bits() >> 3, 0x12_0088)
    } else {
        (mode.bits(), 0x12_0088)
    };
    let w = if is_dir { 0x46 } else { 0x06 };
    let bit = |shift: u32, mask: u32| if rwx >> shift & 1 == 1 { mask } else { 0 };
    rest | bit(2, 0x01) | bit(1, w) | bit(0, 0x20)
}
