//! Any bytes as `system.nfs4_acl` and `system.nfs4_dacl`: they are rejected, or they are an ACL that can be
//! projected, compiled and changed, and that stays the same when it is encoded in any form and decoded again.

#![no_main]

use acl::identity::DomainTable;
use acl::nfs4::{AclMode, Compiled, Nfs4Acl, Scope, XATTR_BYTES_MAX, chmod, project, set};
use libfuzzer_sys::fuzz_target;
use types::Mode;

fuzz_target!(|value: &[u8]| {
    let domain = "S-1-5-21-1-2-3".parse().expect("a domain");
    let table = DomainTable::from_domains([domain]).expect("one domain");
    for scope in [Scope::Entries, Scope::Access] {
        let Ok(acl) = Nfs4Acl::from_xattr(value, scope, &table) else { continue };
        assert!(value.len() <= XATTR_BYTES_MAX && acl.entries().len() <= Nfs4Acl::MAX_ENTRIES);
        assert_eq!(Nfs4Acl::from_storage(&acl.to_storage()), Ok(acl.clone()));
        // The canonical text of a number or of a SID is never longer than the parsed text, so the value fits
        // again.
        let again = acl.to_xattr(scope, &table).expect("it was parsed from this form");
        assert_eq!(Nfs4Acl::from_xattr(&again, scope, &table), Ok(acl.clone()));
        for is_dir in [false, true] {
            let _ = project(&acl, 1, 2, is_dir);
            let _ = set(Mode::new(0o755), is_dir, &acl, true);
            let _ = chmod(Some(&acl), Mode::new(0o640), (1, 2), is_dir, AclMode::GroupMask);
        }
        assert_eq!(Compiled::new(acl.clone()).id(), acl.id());
    }
});
