//! Any ACL, caller and file: the compiled ACL and the cache give the same decision as a walk over the
//! entries, and the projection never grants less.

#![no_main]

use std::convert::Infallible;
use std::sync::Arc;

use acl::cache::{self, DecisionCache};
use acl::credential::Credentials;
use acl::identity::Id;
use acl::nfs4::{self, AclFlags, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who};
use acl::posix::{self, Perm};
use libfuzzer_sys::fuzz_target;
use types::{Caps, Cred, Mode};

// One byte each: the caller's uid and primary gid, the file's uid and gid, whether the file is a directory,
// and the number of supplementary groups. Then one byte for each of these groups, and five bytes for each
// entry.
fuzz_target!(|input: &[u8]| {
    let Some(([caller_uid, caller_gid, uid, gid, is_dir, count], rest)) = input.split_first_chunk() else {
        return;
    };
    let Some((groups, entries)) = rest.split_at_checked(usize::from(*count)) else { return };
    let Ok(acl) = Nfs4Acl::new(AclFlags::NONE, entries.as_chunks().0.iter().map(entry)) else { return };
    let groups: Vec<u32> = groups.iter().map(|gid| u32::from(*gid)).collect();
    let cred = Cred::new((*caller_uid).into(), (*caller_gid).into(), &groups, Caps::NONE);
    let sids: Vec<Id> = groups.first().and_then(|rid| format!("1-{rid}").parse().ok()).into_iter().collect();
    let (uid, gid, mode, is_dir) = (u32::from(*uid), u32::from(*gid), Mode::new(0o640), is_dir & 1 == 1);

    let by_value = nfs4::FileAttrs { uid, gid, mode, is_dir, acl: Some(&acl) };
    let step_by_step = nfs4::decide(&cred, &sids, &by_value);
    let compiled = Arc::new(nfs4::Compiled::new(acl.clone()));
    let by_id = cache::FileAttrs { uid, gid, mode, is_dir, acl: compiled.id(), sid_rules: 0 };
    let caller = Credentials::new(1 << 10).intern(&cred, &sids);
    let cache = DecisionCache::new(2);
    for _ in 0..2 {
        let cached = cache.nfs4(&caller, &by_id, || Ok::<_, Infallible>(compiled.clone()));
        assert_eq!(cached, Ok(step_by_step));
    }
    for verdict in nfs4::explain(&cred, &sids, &by_value, Mask::ALL) {
        assert_eq!(verdict.granted, step_by_step.allows(verdict.permission));
    }

    let shown = nfs4::project(&acl, uid, gid, is_dir);
    let shown_mode = Mode::new(shown.rwx);
    let inode = posix::FileAttrs { uid, gid, mode: shown_mode, is_dir, acl: shown.acl.as_ref() };
    let mut wanted = Perm::NONE;
    for (mask, perm) in [
        (Mask::READ_DATA, Perm::READ),
        (Mask::WRITE_DATA, Perm::WRITE),
        (Mask::APPEND_DATA, Perm::WRITE),
        (Mask::EXECUTE, Perm::EXECUTE),
    ] {
        if step_by_step.allows(mask) {
            wanted = wanted | perm;
        }
    }
    let shown_to_caller = posix::decide(&cred, &inode);
    assert!(shown_to_caller.allows(wanted));
    if shown.search_is_exact {
        assert_eq!(shown_to_caller.allows(Perm::EXECUTE), step_by_step.allows(Mask::EXECUTE));
    }
});

fn entry(&[kind, who, id, mask, more]: &[u8; 5]) -> Entry {
    let id = if who & 0x80 == 0 { id.to_string() } else { format!("1-{id}") };
    let id = id.parse().expect("a small id");
    let who = match who % 5 {
        0 => Who::Owner,
        1 => Who::Group,
        2 => Who::Everyone,
        3 => Who::User(id),
        _ => Who::NamedGroup(id),
    };
    let flags = if kind & 4 == 0 { EntryFlags::NONE } else { EntryFlags::INHERIT_ONLY };
    let kind = [Kind::Allow, Kind::Deny, Kind::Allow, Kind::Audit][usize::from(kind % 4)];
    let bits = u32::from(mask) | u32::from(more) << 13;
    Entry { kind, flags, who, mask: Mask::from_bits(bits & Mask::ALL.bits()).expect("defined bits") }
}
