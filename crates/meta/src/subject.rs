//! Whom an operation checks.

use std::fmt;
use std::sync::Arc;

use acl::credential::Credential;
use types::{Caps, Errno};

/// A caller whom the daemon has to check. What takes time to find out is asked for only where the answer depends on it.
pub trait Subject: Send + Sync + fmt::Debug {
    fn uid(&self) -> u32;

    /// The primary group.
    fn gid(&self) -> u32;

    /// Whether the kernel takes him for somebody else: what it has checked of him, and says of him, counts for nothing.
    fn is_mistaken(&self) -> bool {
        false
    }

    /// All that decisions depend on. Each call gives the same, so that an operation that is planned again decides
    /// about the same caller.
    ///
    /// # Errors
    /// EACCES where it cannot be found out: nothing is granted to somebody unknown.
    fn identity(&self) -> Result<(Arc<Credential>, Caps), Errno>;
}
