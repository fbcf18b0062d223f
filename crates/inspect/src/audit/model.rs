//! The types of an audit: its question, the result for a name, and the totals.

use meta::Inode;
use types::{Cred, FileType, Ino, Name};

use crate::QueryError;
use crate::change::{ChangeError, Edit};

/// The user whose access is audited, and a planned change.
#[derive(Clone, Debug)]
pub struct AuditView {
    pub cred: Cred,
    /// An edit of one inode, or (with `true`) of a directory and its whole content.
    pub edit: Option<(Ino, bool, Edit)>,
}

impl AuditView {
    /// The volume without a change.
    pub fn of(cred: Cred) -> Self {
        AuditView { cred, edit: None }
    }
}

/// The place at which an audit starts.
#[derive(Clone, Debug)]
pub struct Start {
    /// A directory.
    pub dir: Ino,
    /// Its path, the prefix of the paths of all names.
    pub path: Vec<u8>,
}

/// The kind of file that a name refers to, as far as access depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File,
    /// A symbolic link, device, fifo or socket.
    Other,
}

/// The rights of a user on a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    pub read: bool,
    pub write: bool,
    /// To execute a file, or to search a directory.
    pub execute: bool,
    /// To remove the name.
    pub delete: bool,
    /// To change the mode and ACL of the file, as its owner or by capability.
    pub own: bool,
}

/// The access that the user of a view has to a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether all directories above may be searched. If not, all rights are false.
    pub reached: bool,
    pub rights: Rights,
}

/// The number of names, and the number of names with each right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub names: u64,
    pub reached: u64,
    pub read: u64,
    pub write: u64,
    pub execute: u64,
    pub delete: u64,
    pub own: u64,
}

/// The counts of all kinds. A file with several names counts once for each name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub directories: Counts,
    pub files: Counts,
    /// Symbolic links, devices, fifos and sockets. For symbolic links, reading, writing and execution mean
    /// nothing and are not counted.
    pub others: Counts,
}

/// Names whose rights differ between the two views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Names that gain a right, or become reached.
    pub gained: u64,
    /// Names that lose a right, or are no longer reached.
    pub lost: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub before: Totals,
    /// With the planned change; equal to `before` without one.
    pub after: Totals,
    pub difference: Difference,
    /// Distinct combinations of ACL, owner, group and mode that were decided, summed over all threads and
    /// views.
    pub decisions: u64,
    /// Names whose inode or ACL is missing or damaged. If the inode is missing, nobody has a right. If the ACL
    /// is, only rights that do not depend on it count.
    pub damaged: u64,
}

/// A visited name.
#[derive(Clone, Copy, Debug)]
pub struct VisitedName<'a> {
    pub path: &'a [u8],
    pub kind: Kind,
    pub before: Seen,
    pub after: Seen,
}

/// A name in a directory, as the user of a view sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenEntry {
    pub name: Name,
    pub kind: FileType,
    /// `None` if the name refers to a missing inode, which is damage.
    pub inode: Option<Inode>,
    pub seen: Seen,
    /// Whether listings that show a caller only what it may read show the name.
    pub listed: bool,
}

/// Called for every name. An error ends the audit.
pub type OnName<'a, E> = dyn FnMut(VisitedName<'_>) -> Result<(), E> + 'a;

/// Called with the number of names that a thread has visited since its last call.
pub type Progress<'a> = dyn Fn(u64) + Sync + 'a;

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    QueryError(#[from] QueryError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("not a directory: use limen access explain for a single file")]
    NoDirectory,
    /// The start of the audit was removed or moved after its path was resolved.
    #[error("the directory does not exist any more, or was moved: try again")]
    Gone,
}

impl From<meta::EngineError> for AuditError {
    fn from(error: meta::EngineError) -> Self {
        AuditError::QueryError(error.into())
    }
}

impl Counts {
    fn add(&mut self, seen: Seen) {
        let Seen { reached, rights: Rights { read, write, execute, delete, own } } = seen;
        self.names += 1;
        for (count, has) in [
            (&mut self.reached, reached),
            (&mut self.read, read),
            (&mut self.write, write),
            (&mut self.execute, execute),
            (&mut self.delete, delete),
            (&mut self.own, own),
        ] {
            *count += u64::from(has);
        }
    }

    fn merge(&mut self, more: &Counts) {
        self.names += more.names;
        self.reached += more.reached;
        self.read += more.read;
        self.write += more.write;
        self.execute += more.execute;
        self.delete += more.delete;
        self.own += more.own;
    }
}

impl Totals {
    fn of(&mut self, kind: Kind) -> &mut Counts {
        match kind {
            Kind::Directory => &mut self.directories,
            Kind::File => &mut self.files,
            Kind::Other => &mut self.others,
        }
    }

    fn merge(&mut self, more: &Totals) {
        self.directories.merge(&more.directories);
        self.files.merge(&more.files);
        self.others.merge(&more.others);
    }
}

impl Seen {
    /// Whether `after` has a right or reaches the name and `self` does not, and whether the reverse is true.
    pub fn compare(self, after: Seen) -> (bool, bool) {
        let (had, has) = (self.bits(), after.bits());
        (has & !had != 0, had & !has != 0)
    }

    fn bits(self) -> u8 {
        let Rights { read, write, execute, delete, own } = self.rights;
        [self.reached, read, write, execute, delete, own]
            .into_iter()
            .fold(0, |bits, has| bits << 1 | u8::from(has))
    }
}

impl Audit {
    pub(super) fn add(&mut self, kind: Kind, before: Seen, after: Seen) {
        self.before.of(kind).add(before);
        self.after.of(kind).add(after);
        let (gains, loses) = before.compare(after);
        self.difference.gained += u64::from(gains);
        self.difference.lost += u64::from(loses);
    }

    pub(super) fn merge(&mut self, more: &Audit) {
        self.before.merge(&more.before);
        self.after.merge(&more.after);
        self.difference.gained += more.difference.gained;
        self.difference.lost += more.difference.lost;
        self.decisions += more.decisions;
        self.damaged += more.damaged;
    }
}
