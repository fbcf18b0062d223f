//! POSIX ACLs, `acl(5)`: the rules of Linux's `fs/posix_acl.c` and `generic_permission`, rule by rule.
//!
//! | file | rule | kernel equivalent |
//! |---|---|---|
//! | `acl` | the validated, normalised, immutable value | `posix_acl_valid` |
//! | `xattr` | `system.posix_acl_access` and `_default` | `posix_acl_from_xattr`, `posix_acl_to_xattr` |
//! | `text` | the text form, which is also the stored form | (libacl) |
//! | `mode` | conversion between mode and ACL, chmod | `posix_acl_update_mode`, `__posix_acl_chmod` |
//! | `inherit` | what a new file gets from its directory | `posix_acl_create` |
//! | `check` | what mode, ACL and capabilities grant | `generic_permission`, `posix_acl_permission` |
//! | `compiled` | an ACL prepared for the decisions of `check` | |
//! | `explain` | which entry decided | |
//! | `traverse` | whether every caller may search a directory | |

mod acl;
mod check;
mod compiled;
mod entry;
mod error;
mod explain;
mod inherit;
mod mode;
mod text;
mod traverse;
mod xattr;

pub use acl::PosixAcl;
pub(crate) use check::class;
pub use check::{Decision, FileAttrs, check, decide, is_certain, permits};
pub use compiled::Compiled;
pub use entry::{Entry, Perm, Tag};
pub use error::AclError;
pub use explain::{Reason, explain};
pub use inherit::{Inherited, inherit};
pub use mode::set_access;
pub use traverse::anyone_may_traverse;
