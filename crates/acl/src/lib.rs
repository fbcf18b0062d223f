//! Access control lists as pure values: parsing, storage forms and access decisions. No I/O.
//!
//! Each family of ACLs is a module of its own, because they share names (entry, permission, mask) but not
//! meanings. Both families share the checks that do not depend on entries (`evaluate`: ownership, the sticky
//! bit, capabilities), the callers' credentials (`credential`), the mapping of user and group numbers on a
//! mount (`idmap`), and the cache of decisions. Only NFSv4 ACLs can name SIDs: `identity` has the principals
//! that NFSv4 ACLs name, and `sid_rules` the rules that map SIDs to uids and gids.

pub mod cache;
pub mod credential;
pub mod evaluate;
pub mod identity;
pub mod idmap;
mod keys;
pub mod nfs4;
pub mod posix;
pub mod sid_rules;

use types::AclId;

/// The items of a text, separated by commas or line ends, without surrounding blanks. Comments from `#` to
/// the end of the line are skipped.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|item| !item.is_empty())
}

/// The content hash of an ACL's stored form: never [`AclId::NONE`]. The prefix keeps the ids of different
/// kinds of ACLs, or of a later storage form, apart.
fn content_id(prefix: &[u8], stored: &str) -> AclId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(prefix).update(stored.as_bytes());
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    match AclId::from_bytes(id) {
        AclId::NONE => AclId(1),
        id => id,
    }
}
