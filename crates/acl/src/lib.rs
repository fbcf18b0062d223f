//! Access control lists as pure values: what they say, how they travel, who they let in. No I/O.
//!
//! Each family of ACLs is a module of its own, because they share names (entry, permission, mask) but not meanings.

pub mod posix;
