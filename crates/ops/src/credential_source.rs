//! The source of a caller's credential, for operations that check access themselves.

use std::fmt;
use std::sync::Arc;

use acl::credential::Credential;
use types::{Caps, Errno};

/// A caller whose access the daemon must check. It takes time to read the groups and capabilities, so they
/// are requested only if the decision depends on them.
pub trait CredentialSource: Send + Sync + fmt::Debug {
    fn uid(&self) -> u32;

    /// The primary group.
    fn gid(&self) -> u32;

    /// Whether the kernel assumes another identity for the caller than the daemon does. If so, the kernel's
    /// checks and flags for this caller must be ignored.
    fn kernel_ids_differ(&self) -> bool {
        false
    }

    /// The full credential and the capabilities. Each call returns the same values, so a replanned operation
    /// decides for the same caller.
    ///
    /// # Errors
    /// EACCES if they cannot be read, because an unknown caller gets no access.
    fn identity(&self) -> Result<(Arc<Credential>, Caps), Errno>;
}
