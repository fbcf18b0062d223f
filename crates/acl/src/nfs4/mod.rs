//! NFSv4 ACLs: RFC 8881 section 6, and the behaviour of ZFS where the RFC leaves a choice.
//!
//! | file | rule | ZFS equivalent |
//! |---|---|---|
//! | `acl`, `entry`, `mask` | the validated, immutable value | |
//! | `xattr` | `system.nfs4_acl` and `system.nfs4_dacl` | (Linux's NFS client) |
//! | `sids` | the domains of SIDs in these attributes | |
//! | `mapped` | the ACL with SIDs mapped to uids and gids, for access checks | (Samba's idmap) |
//! | `text` | the text form, which is also the stored form | (nfs4-acl-tools) |
//! | `decide` | what an ACL grants to a caller | `zfs_zaccess_aces_check` |
//! | `explain` | which entry decided | |
//! | `bits` | what the bits of a mode stand for | `zfs_mode_compute` |
//! | `delete` | whether a caller may remove a name | `zfs_zaccess_delete` |
//! | `mode` | conversion between mode and ACL, chmod | `zfs_mode_compute`, `zfs_acl_chmod` |
//! | `inherit` | what a new file gets from its directory | `zfs_acl_inherit` |
//! | `project` | the POSIX ACL to show to the kernel | |
//! | `reference` | the meaning of POSIX ACLs that programs set | |
//! | `traverse` | decisions and projections with users that may search every directory | (Windows) |
//! | `compiled` | the decisions of `decide`, from a prepared form | |

mod acl;
mod bits;
mod compiled;
mod decide;
mod delete;
mod entry;
mod error;
mod explain;
mod inherit;
mod mapped;
mod mask;
mod mode;
mod project;
mod reference;
mod sids;
mod text;
mod traverse;
mod xattr;

pub use acl::{Nfs4Acl, Scope};
pub use compiled::Compiled;
pub(crate) use decide::decide_by_mode;
pub use decide::{
    Caller, Decision, FileAttrs, OWNER_RIGHTS, anyone_may_traverse, check, decide, decide_without_groups,
    may_open, overrides,
};
pub use delete::{Removal, may_remove};
pub use entry::{Entry, Kind, Who};
pub use error::AclError;
pub use explain::{Reason, Verdict, explain};
pub use inherit::{AclInherit, Inherited, Policy, inherit};
pub use mapped::Mapped;
pub use mask::{AclFlags, EntryFlags, Mask};
pub use mode::{AclMode, chmod, from_mode, set};
pub use project::{Projection, project};
pub use reference::{Posix, Reference, classify, from_posix, minimal, refer};
pub use sids::GrowingTable;
pub use text::AclText;
pub use traverse::{Traversers, project_for, without_traverser_bits};
pub use xattr::{Principals, XATTR_BYTES_MAX};
