//! Any bytes as `system.posix_acl_access`: they are rejected, mean no ACL, or are an ACL that stays the same
//! when it is encoded in any form and decoded again.

#![no_main]

use acl::posix::{Compiled, PosixAcl};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| {
    if let Ok(Some(acl)) = PosixAcl::from_xattr(value) {
        assert_eq!(PosixAcl::from_xattr(&acl.to_xattr()), Ok(Some(acl.clone())));
        assert_eq!(PosixAcl::from_storage(&acl.to_storage()), Ok(acl.clone()));
        assert_eq!(Compiled::new(acl.clone()).id(), acl.id());
    }
});
