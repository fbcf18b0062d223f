//! Identifiers of the protocol, one newtype each.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// The id of a request, until it is answered.
    Unique
}
id! {
    /// The id of an inode between LOOKUP and FORGET; 0 means none.
    NodeId
}
id! {
    /// The handle of an open file, chosen by the server.
    Fh
}
id! {
    /// The owner of a lock: a hash of a kernel pointer. For `flock(2)` and open file description locks, this
    /// is the pointer to the `struct file`. For other locks, it is the pointer to the process's
    /// `struct files_struct`.
    LockOwner
}

impl NodeId {
    /// The root, which the kernel creates before INIT (`FUSE_ROOT_ID`).
    pub const ROOT: NodeId = NodeId(1);
}
