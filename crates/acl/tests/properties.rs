//! Properties that hold for all POSIX ACLs, and a comparison with a naive implementation of `acl(5)`.

mod common;

use std::collections::BTreeMap;

use acl::nfs4;
use acl::posix::{AclError, Entry, FileAttrs, Perm, PosixAcl, Tag, decide, inherit, permits, set_access};
use common::naive_posix;
use proptest::prelude::*;
use types::{AclId, Caps, Cred, Errno, FileType, Mode};

/// Ids from a small range, so that callers and entries match often.
const IDS: std::ops::Range<u32> = 0..12;

fn perm() -> impl Strategy<Value = Perm> {
    (0..8u32).prop_map(Perm::new)
}

fn named() -> impl Strategy<Value = BTreeMap<u32, Perm>> {
    prop_oneof![
        Just(BTreeMap::new()),
        proptest::collection::btree_map(IDS, perm(), 0..6),
        proptest::collection::btree_map(IDS, perm(), 6..12),
    ]
}

/// The entries of a valid ACL, in any order.
fn entries() -> impl Strategy<Value = Vec<Entry>> {
    (perm(), named(), perm(), named(), proptest::option::of(perm()), perm())
        .prop_map(|(user_obj, users, group_obj, groups, mask, other)| {
            let mask = mask.or((!users.is_empty() || !groups.is_empty()).then_some(Perm::ALL));
            let mut entries = vec![
                Entry { tag: Tag::UserObj, perm: user_obj },
                Entry { tag: Tag::GroupObj, perm: group_obj },
                Entry { tag: Tag::Other, perm: other },
            ];
            entries.extend(users.into_iter().map(|(id, perm)| Entry { tag: Tag::User(id), perm }));
            entries.extend(groups.into_iter().map(|(id, perm)| Entry { tag: Tag::Group(id), perm }));
            entries.extend(mask.map(|perm| Entry { tag: Tag::Mask, perm }));
            entries
        })
        .prop_shuffle()
}

fn acl() -> impl Strategy<Value = PosixAcl> {
    entries().prop_map(|entries| PosixAcl::from_entries(entries).unwrap())
}

fn caps() -> impl Strategy<Value = Caps> {
    prop_oneof![
        4 => Just(Caps::NONE),
        1 => Just(Caps::DAC_READ_SEARCH),
        1 => Just(Caps::DAC_OVERRIDE),
    ]
}

fn cred() -> impl Strategy<Value = Cred> {
    (IDS, IDS, proptest::collection::vec(IDS, 0..12), caps())
        .prop_map(|(uid, gid, groups, caps)| Cred::new(uid, gid, &groups, caps))
}

/// A naive check with `CAP_DAC_READ_SEARCH` and `CAP_DAC_OVERRIDE`, as `capabilities(7)` describes them.
fn naive_with_caps(cred: &Cred, want: Perm, inode: &FileAttrs<'_>) -> bool {
    let bypass_read = want == Perm::READ || inode.is_dir && !want.has(Perm::WRITE);
    let bypass_all = inode.is_dir || !want.has(Perm::EXECUTE) || inode.mode.bits() & 0o111 != 0;
    naive_posix(cred, want, inode)
        || cred.caps.has(Caps::DAC_READ_SEARCH) && bypass_read
        || cred.caps.has(Caps::DAC_OVERRIDE) && bypass_all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_form_round_trips(entries in entries()) {
        let acl = PosixAcl::from_entries(entries.iter().copied()).unwrap();
        prop_assert_eq!(acl.entry_count(), entries.len());
        prop_assert_eq!(PosixAcl::from_xattr(&acl.to_xattr()), Ok(Some(acl.clone())));
        prop_assert_eq!(PosixAcl::from_storage(&acl.to_storage()), Ok(acl.clone()));
        prop_assert_eq!(PosixAcl::from_text(&acl.to_long_text()), Ok(acl.clone()));
        prop_assert!(acl.to_storage().is_ascii());
        prop_assert_ne!(acl.id(), AclId::NONE);
    }

    #[test]
    fn equal_ids_mean_equal_acls(left in acl(), right in acl()) {
        prop_assert_eq!(left.id() == right.id(), left == right);
    }

    #[test]
    fn garbage_is_rejected_or_has_a_canonical_form(value in proptest::collection::vec(any::<u8>(), 0..64), text in "\\PC*") {
        if let Ok(Some(acl)) = PosixAcl::from_xattr(&value) {
            prop_assert_eq!(PosixAcl::from_xattr(&acl.to_xattr()), Ok(Some(acl)));
        }
        if let Ok(acl) = PosixAcl::from_text(&text) {
            prop_assert_eq!(PosixAcl::from_storage(&acl.to_storage()), Ok(acl));
        }
    }

    #[test]
    fn near_misses_are_rejected_or_have_a_canonical_form(
        acl in acl(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut value = acl.to_xattr();
        let index = at.index(value.len());
        value[index] = byte;
        value.truncate(cut.index(value.len() * 4) + 1);
        match PosixAcl::from_xattr(&value) {
            Ok(Some(acl)) => prop_assert_eq!(PosixAcl::from_storage(&acl.to_storage()), Ok(acl)),
            Ok(None) => prop_assert_eq!(value, [2, 0, 0, 0]),
            Err(error) => {
                let expected = if error == AclError::Version { Errno::EOPNOTSUPP } else { Errno::EINVAL };
                prop_assert_eq!(Errno::from(error), expected);
            }
        }
        let mut text = acl.to_storage().into_bytes();
        let index = at.index(text.len());
        text[index] = byte;
        let text = String::from_utf8_lossy(&text);
        if let Ok(acl) = PosixAcl::from_storage(&text) {
            prop_assert_eq!(acl.to_storage(), text);
        }
    }

    #[test]
    fn checks_follow_acl_5(
        acl in proptest::option::of(acl()),
        mode in 0..0o1000u32,
        owner in IDS,
        group in IDS,
        is_dir in any::<bool>(),
        cred in cred(),
    ) {
        // The mode is not derived from the ACL, because the rules must hold even if a crash or a bug has made
        // mode and ACL inconsistent.
        let inode = FileAttrs { uid: owner, gid: group, mode: Mode::new(mode), is_dir, acl: acl.as_ref() };
        for want in (0..8).map(Perm::new) {
            prop_assert_eq!(decide(&cred, &inode).allows(want), naive_posix(&cred, want, &inode), "{}", want);
            prop_assert_eq!(permits(&cred, want, &inode).is_ok(), naive_with_caps(&cred, want, &inode), "{}", want);
        }
        for want in [Perm::READ, Perm::WRITE, Perm::EXECUTE] {
            prop_assert_eq!(decide(&cred, &inode).each().has(want), naive_posix(&cred, want, &inode));
        }
    }

    #[test]
    fn mode_and_acl_stay_consistent(acl in acl(), old in 0..0o10000u32, new in 0..0o10000u32, umask in 0..0o1000u32) {
        let (mode, stored) = set_access(Mode::new(old), Some(acl.clone()), false);
        prop_assert_eq!(mode.rwx(), acl.equiv_mode().0);
        prop_assert_eq!(mode.bits() & 0o7000, old & 0o7000);
        prop_assert_eq!(stored.is_none(), acl.entry_count() == 3);
        prop_assert_eq!(stored.unwrap_or(acl.clone()), acl.clone());

        let changed = acl.chmod(Mode::new(new));
        prop_assert_eq!(changed.equiv_mode(), (new & 0o777, acl.is_minimal()));
        prop_assert_eq!(changed.chmod(mode), acl.clone());

        for file_type in [FileType::Regular, FileType::Directory] {
            let child = inherit(Some(&acl), Mode::new(new), umask, file_type);
            prop_assert_eq!(child.mode, Mode::new(new & (acl.equiv_mode().0 | 0o7000)));
            prop_assert_eq!(child.access.is_none(), acl.is_minimal());
            if let Some(access) = child.access {
                prop_assert_eq!(access.equiv_mode().0, child.mode.rwx());
            }
            prop_assert_eq!(child.default, file_type.is_dir().then(|| acl.clone()));
        }
    }

    /// An NFSv4 ACL converted from a POSIX ACL grants what the POSIX ACL grants. If the group bits are clear,
    /// so that the kernel ignores the POSIX ACL, the NFSv4 ACL may grant less than the kernel, but never
    /// more.
    #[test]
    fn entries_converted_from_a_posix_acl_grant_the_same(
        acl in acl(),
        uid in IDS,
        gid in IDS,
        groups in proptest::collection::vec(IDS, 0..5),
        is_dir in any::<bool>(),
    ) {
        let cred = Cred::new(uid, gid, &groups, Caps::NONE);
        let mode = Mode::new(acl.equiv_mode().0);
        let by_acl = decide(&cred, &FileAttrs { uid: 1, gid: 2, mode, is_dir, acl: Some(&acl) }).each();
        let made = nfs4::from_posix(&acl, is_dir);
        let granted = nfs4::decide(&cred, &[], &nfs4::FileAttrs { uid: 1, gid: 2, mode, is_dir, acl: Some(&made) }).granted;
        let writes = nfs4::Mask::WRITE_DATA | nfs4::Mask::APPEND_DATA;
        let bits = [(Perm::READ, nfs4::Mask::READ_DATA), (Perm::WRITE, writes), (Perm::EXECUTE, nfs4::Mask::EXECUTE)];
        for (perm, mask) in bits {
            let (may, might) = (granted.has(mask), granted.has_any(mask));
            prop_assert_eq!(may, might);
            prop_assert!(by_acl.has(perm) || !may, "{} of {} by {:?}", perm, made, cred);
            prop_assert!(may || !by_acl.has(perm) || mode.rwx() & 0o070 == 0, "{} of {} by {:?}", perm, made, cred);
        }
        // The stored ACL grants the same as the converted one.
        let (shown, stored) = nfs4::set(Mode::new(0), is_dir, &made, false);
        let stored = nfs4::FileAttrs { uid: 1, gid: 2, mode: shown, is_dir, acl: stored.as_ref() };
        prop_assert_eq!(nfs4::decide(&cred, &[], &stored).granted, granted);
    }
}
