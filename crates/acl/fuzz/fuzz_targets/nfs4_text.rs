//! Any text as an NFSv4 or a POSIX ACL: it is rejected, or it is an ACL whose stored form parses to the same
//! ACL.

#![no_main]

use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(acl) = Nfs4Acl::from_text(text) {
        assert_eq!(Nfs4Acl::from_storage(&acl.to_storage()), Ok(acl));
    }
    if let Ok(acl) = PosixAcl::from_text(text) {
        assert_eq!(PosixAcl::from_storage(&acl.to_storage()), Ok(acl));
    }
});
