//! Numbers of the protocol, one newtype each.

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
    /// Names one request until it is answered.
    Unique
}
id! {
    /// An inode as the kernel knows it between LOOKUP and FORGET; 0 names none.
    NodeId
}
id! {
    /// What the server chose to name an open file by.
    Fh
}
id! {
    /// Whose lock it is: a hash of the kernel's `struct files_struct` pointer.
    LockOwner
}

impl NodeId {
    /// The root that the kernel makes before INIT (`FUSE_ROOT_ID`).
    pub const ROOT: NodeId = NodeId(1);
}
