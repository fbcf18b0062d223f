//! Who may what in a whole volume.
//!
//! Every name is met once, directory by directory, with all that its access depends on, in pages; of a directory that has
//! more than one page the rest waits until what was found so far is worked off. So memory goes with the depth of the
//! tree, not with how many files there are. Rights follow from ACL, owner, group and mode, and most files have these in
//! common with many others: each distinct combination is decided once, then counted. ACLs are read when a combination is
//! met for the first time, and not with each inode that carries them.
//!
//! A name is *reached* if all directories above it may be searched: a refusal is inherited by all that is below.

mod class;
mod texts;
mod walk;

use meta::{AclKind, Engine};
use types::{Cred, Ino};

use crate::Trouble;
use crate::change::{ChangeError, Edit};

pub(crate) use class::Classes;

/// Who is asked about, and what is thought to be different.
#[derive(Clone, Debug)]
pub struct View {
    pub cred: Cred,
    /// An edit of one inode, or of a directory and all that is in it.
    pub edit: Option<(Ino, bool, Edit)>,
}

impl View {
    /// The volume as it is.
    pub fn of(cred: Cred) -> Self {
        View { cred, edit: None }
    }
}

/// What is looked at.
#[derive(Clone, Debug)]
pub struct Start {
    /// A directory.
    pub dir: Ino,
    /// Its path, which those of the names met begin with.
    pub path: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that read and decide, if nothing is listed.
    pub threads: usize,
}

/// What kind of file a name leads to, as far as rights go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File,
    /// A symbolic link, device, fifo or socket.
    Other,
}

/// What somebody may do with a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    pub read: bool,
    pub write: bool,
    /// To execute a file, or search a directory.
    pub execute: bool,
    /// To take the name away.
    pub delete: bool,
    /// To change mode and ACL, as its owner or as if.
    pub own: bool,
}

/// A name and somebody who looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All directories above may be searched. Without that there are no rights.
    pub reached: bool,
    pub rights: Rights,
}

/// How many names there are, and of how many there is which right.
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

/// The counts of all kinds. A file with several names counts as often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub directories: Counts,
    pub files: Counts,
    /// Symbolic links, devices, fifos and sockets. Of symbolic links rights to read, write and execute mean nothing, and
    /// are not counted.
    pub others: Counts,
}

/// Names of which the second view has other rights than the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Names with a right that was not there before, or reached anew.
    pub gained: u64,
    /// Names with a right less than before.
    pub lost: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub before: Totals,
    /// With the change; as `before` where there is none.
    pub after: Totals,
    pub difference: Difference,
    /// Distinct combinations of ACL, owner, group and mode that were decided, by all threads and views together.
    pub decisions: u64,
    /// Names whose inode or ACL is missing or damaged: nobody may anything with them.
    pub damaged: u64,
}

/// A name that was met.
#[derive(Clone, Copy, Debug)]
pub struct Met<'a> {
    pub path: &'a [u8],
    pub kind: Kind,
    pub before: Seen,
    pub after: Seen,
}

/// Whoever is told of every name, and may end the audit.
pub type Told<'a, E> = dyn FnMut(Met<'_>) -> Result<(), E> + 'a;

/// Whoever is told how far an audit is.
pub type Progress<'a> = dyn Fn(u64) + Sync + 'a;

/// Goes through all names below a directory, and through the directory itself. `after` is what is thought to be
/// different. With `each` every name is told, in the order of the tree, by one thread. `progress` is called with how many
/// names were met since the last call, by each thread.
///
/// # Errors
/// The database fails; the directory is not there; the edit cannot be made to a file that it is for. What `each` returns.
pub fn audit<E: From<AuditError> + Send>(
    engine: &dyn Engine,
    acl: AclKind,
    start: &Start,
    (before, after): (&View, Option<&View>),
    options: Options,
    each: Option<&mut Told<'_, E>>,
    progress: &Progress<'_>,
) -> Result<Audit, E> {
    let audit = walk::Audited { engine, acl, before, after, progress };
    match each {
        Some(each) => audit.list(start, each),
        None => audit.count(start, options.threads).map_err(E::from),
    }
}

/// Why an audit came to no end.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error(transparent)]
    Trouble(#[from] Trouble),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("this is no directory: limen access explain tells of single files")]
    NoDirectory,
}

impl From<meta::EngineError> for AuditError {
    fn from(error: meta::EngineError) -> Self {
        AuditError::Trouble(error.into())
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
    fn bits(self) -> u8 {
        let Rights { read, write, execute, delete, own } = self.rights;
        [self.reached, read, write, execute, delete, own]
            .into_iter()
            .fold(0, |bits, has| bits << 1 | u8::from(has))
    }
}

impl Audit {
    fn add(&mut self, kind: Kind, before: Seen, after: Seen) {
        self.before.of(kind).add(before);
        self.after.of(kind).add(after);
        let (had, has) = (before.bits(), after.bits());
        self.difference.gained += u64::from(has & !had != 0);
        self.difference.lost += u64::from(had & !has != 0);
    }

    fn merge(&mut self, more: &Audit) {
        self.before.merge(&more.before);
        self.after.merge(&more.after);
        self.difference.gained += more.difference.gained;
        self.difference.lost += more.difference.lost;
        self.decisions += more.decisions;
        self.damaged += more.damaged;
    }
}
