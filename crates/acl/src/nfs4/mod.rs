//! NFSv4 ACLs: RFC 8881 section 6, and where that leaves room, what ZFS does.
//!
//! | file | rule | ZFS twin |
//! |---|---|---|
//! | `acl`, `entry`, `mask` | the validated, immutable value | |
//! | `xattr` | `system.nfs4_acl` and `system.nfs4_dacl` | (Linux's NFS client) |
//! | `sids` | the domains of SIDs that come in them | |
//! | `text` | the form people read, which is also the stored one | (nfs4-acl-tools) |
//! | `decide` | who may do what | `zfs_zaccess_aces_check` |
//! | `explain` | and why | |
//! | `delete` | who may remove a name | `zfs_zaccess_delete` |
//! | `mode` | mode and ACL from one another, chmod | `zfs_mode_compute`, `zfs_acl_chmod` |
//! | `inherit` | what a new file gets from its directory | `zfs_acl_inherit` |
//! | `project` | the POSIX ACL to show to the kernel | |
//! | `reference` | what POSIX ACLs mean that programs set | |
//! | `traverse` | the same where some may search every directory | (Windows) |
//! | `compiled` | the same decisions, faster | |

mod acl;
mod compiled;
mod decide;
mod delete;
mod entry;
mod error;
mod explain;
mod inherit;
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
pub use decide::{
    Caller, Decision, Node, OWNER_RIGHTS, anyone_may_traverse, check, decide, may_open, overrides,
};
pub use delete::{Removal, may_remove};
pub use entry::{Entry, Kind, Who};
pub use error::AclError;
pub use explain::{Reason, Verdict, explain};
pub use inherit::{AclInherit, Inherited, Policy, inherit};
pub use mask::{AclFlags, EntryFlags, Mask};
pub(crate) use mode::decide as decide_by_mode;
pub use mode::{AclMode, chmod, decide_without_groups, from_mode, set};
pub use project::{Projection, project};
pub use reference::{Posix, Reference, classify, from_posix, minimal, refer};
pub use sids::GrowingTable;
pub use text::BySid;
pub use traverse::{Traversers, project_for, without_lent};
pub use xattr::{Principals, XATTR_BYTES_MAX};
