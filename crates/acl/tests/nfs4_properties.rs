//! Properties that hold for all NFSv4 ACLs.

mod common;

use acl::identity::{DomainTable, Id};
use acl::nfs4::{
    AclError, AclFlags, AclInherit, AclMode, Entry, EntryFlags, FileAttrs, Inherited, Kind, Mask, Nfs4Acl,
    Policy, Scope, Who, chmod, decide, from_mode, inherit, may_open, project, set,
};
use proptest::prelude::*;
use types::{AclId, Caps, Cred, Errno, FileType, Mode};

fn mask() -> impl Strategy<Value = Mask> {
    let bits = Mask::ALL.bits();
    prop_oneof![any::<u32>(), any::<u32>().prop_map(|sparse| sparse & sparse >> 7 & sparse << 5)]
        .prop_map(move |any| Mask::from_bits(any & bits).unwrap())
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop_oneof![4 => Just(Kind::Allow), 3 => Just(Kind::Deny), 1 => Just(Kind::Audit), 1 => Just(Kind::Alarm)];
    let flags = prop_oneof![
        2 => Just(EntryFlags::NONE),
        1 => any::<u32>().prop_map(|any| EntryFlags::from_bits(any & EntryFlags::ALL.bits()).unwrap()),
    ];
    let id = prop_oneof![
        4 => (0..6_u32).prop_map(|id| Id::system(id).unwrap()),
        1 => (1..3_u32, 0..3_u32).prop_map(|(domain, rid)| format!("{domain}-{rid}").parse().unwrap()),
        1 => Just(Id::system(u32::MAX - 1).unwrap()),
    ];
    let who = prop_oneof![
        Just(Who::Owner),
        Just(Who::Group),
        Just(Who::Everyone),
        id.clone().prop_map(Who::User),
        id.prop_map(Who::NamedGroup),
    ];
    (kind, flags, who, mask()).prop_map(|(kind, flags, who, mask)| Entry { kind, flags, who, mask })
}

fn acl() -> impl Strategy<Value = Nfs4Acl> {
    (0..8_u32, proptest::collection::vec(entry(), 1..12))
        .prop_map(|(flags, entries)| Nfs4Acl::new(AclFlags::from_bits(flags).unwrap(), entries).unwrap())
}

fn table() -> DomainTable {
    let domains = ["S-1-5-21-1-2-3", "S-1-5-32"];
    DomainTable::from_domains(domains.map(|domain| domain.parse().unwrap())).unwrap()
}

fn policy() -> impl Strategy<Value = Policy> {
    let mode = prop_oneof![
        Just(AclMode::Discard),
        Just(AclMode::GroupMask),
        Just(AclMode::Passthrough),
        Just(AclMode::Restricted),
    ];
    let inherit = prop_oneof![
        Just(AclInherit::Discard),
        Just(AclInherit::NoAllow),
        Just(AclInherit::Restricted),
        Just(AclInherit::Passthrough),
        Just(AclInherit::PassthroughX),
    ];
    (mode, inherit).prop_map(|(mode, inherit)| Policy { mode, inherit })
}

fn granted(acl: Option<&Nfs4Acl>, mode: Mode, is_dir: bool, uid: u32, groups: &[u32]) -> Mask {
    let inode = FileAttrs { uid: 1, gid: 2, mode, is_dir, acl };
    decide(&Cred::new(uid, 99, groups, Caps::NONE), &[], &inode).granted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_form_round_trips(acl in acl(), other in acl()) {
        prop_assert_eq!(Nfs4Acl::from_storage(&acl.to_storage()), Ok(acl.clone()));
        prop_assert!(acl.to_storage().is_ascii());
        let value = acl.to_xattr(Scope::Entries, &table()).unwrap();
        let read = Nfs4Acl::from_xattr(&value, Scope::Entries, &table()).unwrap();
        prop_assert_eq!(acl.replaced_by(read, Scope::Entries), Ok(acl.clone()));
        prop_assert_ne!(acl.id(), AclId::NONE);
        prop_assert_eq!(acl.id() == other.id(), acl == other);

        let value = acl.to_xattr(Scope::Access, &table()).unwrap();
        let read = Nfs4Acl::from_xattr(&value, Scope::Access, &table()).unwrap();
        prop_assert_eq!(read.flags(), acl.flags());
        let kept = acl.replaced_by(read, Scope::Access).unwrap();
        let others = |acl: &Nfs4Acl| acl.entries().iter().filter(|entry| !entry.mask.is_none()).count();
        prop_assert_eq!(others(&kept), others(&acl));
    }

    #[test]
    fn garbage_is_rejected_or_has_a_canonical_form(
        acl in acl(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        noise in proptest::collection::vec(any::<u8>(), 0..96),
        text in "\\PC*",
    ) {
        for scope in [Scope::Entries, Scope::Access] {
            let mut value = acl.to_xattr(scope, &table()).unwrap();
            let index = at.index(value.len());
            value[index] = byte;
            value.truncate(cut.index(value.len() * 4) + 1);
            for value in [value, noise.clone()] {
                match Nfs4Acl::from_xattr(&value, scope, &table()) {
                    Ok(acl) => prop_assert_eq!(Nfs4Acl::from_storage(&acl.to_storage()), Ok(acl)),
                    Err(error) => {
                        let expected = if error == AclError::TooLong { Errno::E2BIG } else { Errno::EINVAL };
                        prop_assert_eq!(Errno::from(error), expected);
                    }
                }
            }
        }
        let mut spoiled = acl.to_storage().into_bytes();
        let index = at.index(spoiled.len());
        spoiled[index] = byte;
        for text in [String::from_utf8_lossy(&spoiled).into_owned(), text] {
            if let Ok(acl) = Nfs4Acl::from_storage(&text) {
                prop_assert_eq!(acl.to_storage(), text.clone());
            }
            if let Ok(acl) = Nfs4Acl::from_text(&text) {
                prop_assert_eq!(Nfs4Acl::from_storage(&acl.to_storage()), Ok(acl));
            }
        }
    }

    /// A trivial ACL is not stored, which changes nobody's permissions.
    #[test]
    fn acl_that_is_not_stored_equals_the_mode(acl in acl(), old in 0..0o10000_u32, is_dir in any::<bool>()) {
        let (mode, stored) = set(Mode::new(old), is_dir, &acl, false);
        let shown = if is_dir { acl.clone() } else { acl.for_file() };
        prop_assert_eq!(mode.bits() & 0o7000, old & 0o7000);
        for (uid, groups) in [(1, [2]), (1, [3]), (7, [2]), (7, [3])] {
            let by_acl = granted(Some(&shown), mode, is_dir, uid, &groups);
            prop_assert_eq!(by_acl, granted(stored.as_ref(), mode, is_dir, uid, &groups));
        }
    }

    /// A mode and the ACL that is shown for it grant the same to everybody, even when a file is opened.
    #[test]
    fn mode_and_its_acl_agree(bits in 0..0o1000_u32, is_dir in any::<bool>(), uid in 0..3_u32, gid in 0..4_u32) {
        let mode = Mode::new(bits);
        let by_acl = granted(Some(&from_mode(mode, is_dir)), mode, is_dir, uid, &[gid]);
        let by_mode = granted(None, mode, is_dir, uid, &[gid]);
        prop_assert_eq!(by_acl, by_mode);
        let class = if uid == 1 { bits >> 6 } else if gid == 2 { bits >> 3 } else { bits };
        for want in 0..8_u32 {
            let (read, write) = (want & 4 != 0, want & 2 != 0);
            prop_assert_eq!(may_open(by_mode, read, write, false), want & 6 & !class == 0);
        }
    }

    /// After a chmod, stat(2) shows the requested mode.
    #[test]
    fn chmod_shows_the_mode_asked_for(
        acl in acl(),
        bits in 0..0o10000_u32,
        is_dir in any::<bool>(),
        policy in policy(),
        uid in 0..6_u32,
        gid in 0..6_u32,
    ) {
        let (asked, owners) = (Mode::new(bits), (uid, gid));
        let shown = |mode: Mode, acl: Option<&Nfs4Acl>| {
            let rwx = acl.map_or(mode.rwx(), |acl| project(acl, uid, gid, is_dir).rwx);
            mode.bits() & 0o7000 | rwx
        };
        match chmod(Some(&acl), asked, owners, is_dir, policy.mode) {
            Err(error) => prop_assert!(error == Errno::EPERM && policy.mode == AclMode::Restricted),
            Ok((mode, new)) => {
                prop_assert_eq!(shown(mode, new.as_ref()), bits, "{:?}", new);
                if let Some(new) = new {
                    prop_assert_eq!(new.mode_bits(), mode.rwx());
                    let again = chmod(Some(&new), asked, owners, is_dir, policy.mode);
                    prop_assert_eq!(again, Ok((mode, Some(new.clone()))));
                    let denials = |acl: &Nfs4Acl| -> Vec<Entry> {
                        // The mode also covers the owning group if an entry names it.
                        let own = Who::NamedGroup(Id::system(gid).unwrap());
                        let named =
                            acl.entries().iter().filter(|entry| !entry.who.is_special() && entry.who != own);
                        named.filter(|entry| entry.kind == Kind::Deny).copied().collect()
                    };
                    prop_assert_eq!(denials(&new), denials(&acl));
                }
            }
        }
    }

    /// After a chmod, each caller has permissions that it had before or that the mode gives to its class, and
    /// no others. Of read, write and execute, a caller other than the owner has only what the group bits or
    /// the bits of its own class allow.
    #[test]
    fn nobody_gains_more_than_the_mode_says(
        acl in acl(),
        bits in 0..0o1000_u32,
        is_dir in any::<bool>(),
        policy in policy(),
        uid in 0..6_u32,
        groups in proptest::collection::vec(0..6_u32, 0..4),
    ) {
        let asked = Mode::new(bits);
        let Ok((mode, new)) = chmod(Some(&acl), asked, (1, 2), is_dir, policy.mode) else { return Ok(()) };
        let before = granted(Some(&acl), mode, is_dir, uid, &groups);
        let after = granted(new.as_ref(), mode, is_dir, uid, &groups);
        let class = granted(None, asked, is_dir, uid, &groups);
        prop_assert!((before | class).has(after), "{} -> {:?}: {:?}", acl, new, after.without(before | class));
        // The group bits limit what entries for named users and groups grant.
        if uid != 1 && policy.mode != AclMode::Discard {
            let by_group = granted(None, asked, is_dir, 9, &[2]);
            let rwx = granted(None, Mode::new(0o777), is_dir, 9, &[]);
            prop_assert!((by_group | class | !rwx).has(after), "{} -> {:?}", acl, new);
        }
    }

    #[test]
    fn children_get_only_entries_that_pass(
        parent in acl(),
        bits in 0..0o10000_u32,
        umask in 0..0o1000_u32,
        policy in policy(),
    ) {
        for file_type in [FileType::Regular, FileType::Directory, FileType::Socket, FileType::Symlink] {
            let is_dir = file_type.is_dir();
            let Inherited { mode, acl } =
                inherit(Some(&parent), Mode::new(bits), umask, file_type, policy).unwrap();
            prop_assert_eq!(mode.bits() & 0o7000, bits & 0o7000);
            let Some(acl) = acl else { continue };
            prop_assert_eq!(acl.mode_bits(), mode.rwx());
            prop_assert!(!acl.is_trivial(is_dir));
            prop_assert!(file_type != FileType::Symlink && policy.inherit != AclInherit::Discard);
            for entry in acl.entries().iter().filter(|entry| entry.flags.has(EntryFlags::INHERITED)) {
                prop_assert!(is_dir || !entry.flags.has_any(EntryFlags::OF_DIRECTORIES));
                let from = parent.entries().iter().filter(|old| {
                    old.is_inheritable() && old.kind == entry.kind && old.who == entry.who && old.mask.has(entry.mask)
                });
                prop_assert!(from.count() > 0);
                if entry.kind == Kind::Allow {
                    prop_assert_ne!(policy.inherit, AclInherit::NoAllow);
                    let kept = Mask::WRITE_ACL | Mask::WRITE_OWNER;
                    prop_assert!(policy.inherit != AclInherit::Restricted || !entry.mask.has_any(kept));
                }
            }
        }
    }
}
