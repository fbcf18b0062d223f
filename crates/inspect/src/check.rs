//! One access check on the way to a file. It does not depend on the caller.

use acl::posix::Perm;
use types::Mode;

use crate::access_attrs::AccessAttrs;

/// An operation on the file that one check must permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// To look up a name in the directory.
    Search,
    /// To follow this symbolic link, which is at the end of a path and in a sticky directory that everybody
    /// may write to (`may_follow_link`).
    Follow { dir_uid: u32 },
    /// To use all of these permissions together.
    Access(Perm),
    /// To add or remove names in the directory.
    Names,
    /// To remove this file's name from a sticky directory (`check_sticky`).
    Sticky { dir_mode: Mode, dir_uid: u32 },
    /// To remove this file's name from that directory, by NFSv4 rules, including the sticky bit.
    Remove { dir: Box<AccessAttrs> },
    /// To do what only the owner, or a caller with the capability to act as the owner, may do.
    Own,
    /// To change the owner.
    GiveAway,
    /// To set the times to now.
    SetTimes,
}

/// One access check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The path of the file with symbolic links resolved.
    pub path: Vec<u8>,
    pub access_attrs: AccessAttrs,
    pub requirement: Requirement,
}

impl Check {
    /// The highest domain index in the ACLs that the check may use.
    pub(crate) fn highest_domain(&self) -> u32 {
        let of_dir = match &self.requirement {
            Requirement::Remove { dir } => dir.rules.highest_domain(),
            _ => 0,
        };
        of_dir.max(self.access_attrs.rules.highest_domain())
    }
}
