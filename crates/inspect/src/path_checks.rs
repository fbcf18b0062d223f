//! A path, and every access check on the way to an operation on the file at its end.
//!
//! The checks do not depend on the caller (see the kernel's `link_path_walk` and `path_init`, fs/namei.c), so
//! they are found once and then evaluated for any number of callers.
//!
//! The evaluation of a check is a pure function of the check and the caller, so tests compare it with the
//! kernel.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use acl::identity::DomainTable;
use acl::posix::Perm;
use types::{Cred, Errno, Mode, Name, NameError};

use crate::QueryError;
use crate::access_attrs::Rules;
use crate::check::{Check, Requirement};
use crate::evaluate::{CheckResult, beforehand, evaluate};
use crate::path::join;
use crate::tree::{Tree, TreeFile, is_link};

/// The requested operation on the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// These permissions at once, as in `access(2)` and `open(2)`. Without any permission it is like
    /// [`Operation::Stat`].
    Access(Perm),
    /// To read its attributes.
    Stat,
    /// To create a file of that name, which does not exist yet.
    Create,
    /// To remove the name. Whether a directory is empty is not checked.
    Delete,
    /// To change its mode or POSIX ACL.
    Chmod,
    /// To give it to another owner.
    Chown,
    /// To set its times to now.
    SetTimes,
}

/// The text is not an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown access type '{0}': use letters of rwx, or stat, create, delete, chmod, chown or touch")]
pub struct OperationError(String);

const NAMED: [(&str, Operation); 6] = [
    ("stat", Operation::Stat),
    ("create", Operation::Create),
    ("delete", Operation::Delete),
    ("chmod", Operation::Chmod),
    ("chown", Operation::Chown),
    ("touch", Operation::SetTimes),
];

impl FromStr for Operation {
    type Err = OperationError;

    fn from_str(text: &str) -> Result<Self, OperationError> {
        if let Some((_, want)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*want);
        }
        let wrong = || OperationError(text.to_owned());
        let perm = text.chars().try_fold(Perm::NONE, |perm, letter| {
            let one = match letter {
                'r' => Perm::READ,
                'w' => Perm::WRITE,
                'x' => Perm::EXECUTE,
                _ => return None,
            };
            (!perm.has(one)).then_some(perm | one)
        });
        perm.filter(|perm| *perm != Perm::NONE).map(Operation::Access).ok_or_else(wrong)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Access(perm) => f.write_str(&perm.to_string().replace('-', "")),
            other => f.write_str(NAMED.iter().find(|(_, want)| want == other).map_or("", |(name, _)| name)),
        }
    }
}

/// All checks on the way to an operation, in the order in which the kernel makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChecks {
    pub checks: Vec<Check>,
    /// The result for a caller that passes all checks. `Err` with
    /// - ENOENT if the path is empty, or a name does not exist (except the name to create);
    /// - ENAMETOOLONG if the path or a name in it is too long;
    /// - ENOTDIR if a file that is not a directory has names after it, or a slash at the end of the path;
    /// - ELOOP if the path leads through more than 40 symbolic links;
    /// - EEXIST if the name to create exists;
    /// - EBUSY if the root is to be removed.
    pub end: Result<(), Errno>,
    /// The Windows domains in the ACLs on the way.
    pub domains: Arc<DomainTable>,
}

/// The checks evaluated for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAnswer {
    /// One result for each check made: all checks, or those up to the first that denies.
    pub results: Vec<CheckResult>,
    /// The error of the system call; `None` if it succeeds.
    pub errno: Option<Errno>,
}

/// The maximum number of symbolic links in a path lookup (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;
/// The maximum length of a path in bytes, including its NUL (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;

impl PathChecks {
    /// Follows `path` from the root of `tree`.
    ///
    /// # Errors
    /// [`QueryError`] if the tree cannot be read, or is damaged on the way; if a symbolic link points outside
    /// the volume; if a name contains a NUL byte; or if a name is to be created or removed and the path ends
    /// in `.` or `..`.
    pub fn find<T: Tree>(tree: &T, path: &[u8], want: Operation) -> Result<PathChecks, QueryError> {
        let root = tree.root()?;
        let mut walk =
            Walk { tree, path, want, above: vec![Here::new(b"/".to_vec(), root)], checks: Vec::new() };
        let end = match walk.run() {
            Ok(()) => Ok(()),
            Err(Stop::Ends(errno)) => Err(errno),
            Err(Stop::QueryError(query_error)) => return Err(query_error),
        };
        let reach = walk.checks.iter().map(Check::highest_domain).max().unwrap_or(0);
        Ok(PathChecks { domains: tree.domains(reach)?, checks: walk.checks, end })
    }

    /// Whether the caller may do the operation, and the reason at each step.
    pub fn explain(&self, cred: &Cred) -> PathAnswer {
        let mut results = Vec::with_capacity(self.checks.len());
        for check in &self.checks {
            let result = evaluate(cred, check);
            let errno = result.errno;
            results.push(result);
            if errno.is_some() {
                return PathAnswer { results, errno };
            }
        }
        PathAnswer { results, errno: self.end.err() }
    }

    /// The last check. For [`Operation::Chmod`] it is on the file at the path if [`PathChecks::end`] is `Ok`.
    pub fn target(&self) -> Option<&Check> {
        self.checks.last()
    }
}

/// The position of a walk.
struct Here<I> {
    path: Vec<u8>,
    found: TreeFile<I>,
}

impl<I> Here<I> {
    fn new(path: Vec<u8>, found: TreeFile<I>) -> Self {
        Here { path, found }
    }
}

enum Stop {
    /// The lookup ends with this error for every caller that passes the preceding checks.
    Ends(Errno),
    QueryError(QueryError),
}

impl From<QueryError> for Stop {
    fn from(query_error: QueryError) -> Self {
        Stop::QueryError(query_error)
    }
}

struct Walk<'a, T: Tree> {
    tree: &'a T,
    path: &'a [u8],
    want: Operation,
    /// The directories from the root to the current position, never empty.
    above: Vec<Here<T::Id>>,
    checks: Vec<Check>,
}

impl<T: Tree> Walk<'_, T> {
    fn run(&mut self) -> Result<(), Stop> {
        if self.path.is_empty() {
            return Err(Stop::Ends(Errno::ENOENT));
        }
        if self.path.len() >= PATH_BYTES_MAX {
            return Err(Stop::Ends(Errno::ENAMETOOLONG));
        }
        let by_name = matches!(self.want, Operation::Create | Operation::Delete);
        let must_be_dir = self.path.ends_with(b"/");
        // The next component is the last element.
        let mut left: Vec<Vec<u8>> = components(self.path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            let is_last = left.is_empty();
            self.search()?;
            match &name[..] {
                b"." | b".." if is_last && by_name => {
                    return Err(self.unusable("it ends in '.' or '..': write it with the file's own name"));
                }
                b"." => continue,
                b".." => {
                    if self.above.len() > 1 {
                        self.above.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let name = Name::new(&name).map_err(|error| match error {
                NameError::TooLong => Stop::Ends(Errno::ENAMETOOLONG),
                _ => self.unusable("a name in it contains a NUL byte"),
            })?;
            let id = &self.here().found.id;
            let found = self.tree.entry(id, &name)?;
            if is_last && by_name {
                return self.change_names(&name, found);
            }
            let found = found.ok_or(Stop::Ends(Errno::ENOENT))?;
            if !is_link(&found.access_attrs) {
                let path = self.below(&name);
                self.above.push(Here::new(path, found));
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Stop::Ends(Errno::ELOOP));
            }
            if is_last {
                self.follow(&name, &found);
            }
            let target = self.tree.target(&found.id)?;
            if target.starts_with(b"/") {
                if !self.tree.has_absolute_links() {
                    return Err(QueryError::LeadsOut { path: self.below(&name), target }.into());
                }
                self.above.truncate(1);
            }
            left.extend(components(&target));
        }
        if by_name {
            // The path is the root, which has no name.
            return Err(Stop::Ends(if self.want == Operation::Create {
                Errno::EEXIST
            } else {
                Errno::EBUSY
            }));
        }
        if must_be_dir && !self.here().found.access_attrs.kind.is_dir() {
            return Err(Stop::Ends(Errno::ENOTDIR));
        }
        match self.want {
            Operation::Access(perm) => self.require(Requirement::Access(perm)),
            Operation::Chmod => self.require(Requirement::Own),
            Operation::Chown => self.require(Requirement::GiveAway),
            Operation::SetTimes => self.require(Requirement::SetTimes),
            Operation::Stat if !beforehand(&self.here().found.access_attrs).is_none() => {
                self.require(Requirement::Search)
            }
            Operation::Stat | Operation::Create | Operation::Delete => {}
        }
        Ok(())
    }

    fn here(&self) -> &Here<T::Id> {
        // The list begins with the root, which is never popped.
        &self.above[self.above.len() - 1]
    }

    fn below(&self, name: &Name) -> Vec<u8> {
        join(&self.here().path, name.as_bytes())
    }

    fn require(&mut self, requirement: Requirement) {
        let Here { path, found } = self.here();
        self.checks.push(Check { path: path.clone(), access_attrs: found.access_attrs.clone(), requirement });
    }

    /// Requires that the current directory may be searched. The kernel checks that for each component. One
    /// check for each directory gives the same result.
    fn search(&mut self) -> Result<(), Stop> {
        let here = self.here();
        if !here.found.access_attrs.kind.is_dir() {
            return Err(Stop::Ends(Errno::ENOTDIR));
        }
        let known = self
            .checks
            .iter()
            .any(|check| check.requirement == Requirement::Search && check.path == here.path);
        if !known {
            self.require(Requirement::Search);
        }
        Ok(())
    }

    /// Adds the check for following a symbolic link at the end of a path.
    fn follow(&mut self, name: &Name, link: &TreeFile<T::Id>) {
        let dir = &self.here().found.access_attrs;
        if dir.mode.has(Mode::STICKY | 0o002) && self.tree.protects_links() {
            let requirement = Requirement::Follow { dir_uid: dir.uid };
            self.checks.push(Check {
                path: self.below(name),
                access_attrs: link.access_attrs.clone(),
                requirement,
            });
        }
    }

    /// Adds the checks for an operation that creates or removes the name.
    fn change_names(&mut self, name: &Name, found: Option<TreeFile<T::Id>>) -> Result<(), Stop> {
        let dir = self.here().found.access_attrs.clone();
        match (self.want, found) {
            (Operation::Create, Some(_)) => Err(Stop::Ends(Errno::EEXIST)),
            (Operation::Create, None) => {
                self.require(Requirement::Names);
                Ok(())
            }
            (_, None) => Err(Stop::Ends(Errno::ENOENT)),
            (_, Some(found)) => {
                let path = self.below(name);
                let check = |requirement| Check {
                    path: path.clone(),
                    access_attrs: found.access_attrs.clone(),
                    requirement,
                };
                let requirement = Requirement::Sticky { dir_mode: dir.mode, dir_uid: dir.uid };
                let sticky = dir.mode.has(Mode::STICKY).then(|| check(requirement));
                // If the directory has an NFSv4 ACL, `Remove` contains the kernel's check of the directory.
                // The sticky bit applies there too, even if the file's own ACL grants `DELETE`.
                if !matches!(dir.rules, Rules::Nfs4(Some(_))) {
                    self.require(Requirement::Names);
                }
                self.checks.extend(sticky);
                if let Rules::Nfs4(_) = dir.rules {
                    self.checks.push(check(Requirement::Remove { dir: Box::new(dir) }));
                }
                if self.path.ends_with(b"/") && !found.access_attrs.kind.is_dir() {
                    return Err(Stop::Ends(Errno::ENOTDIR));
                }
                Ok(())
            }
        }
    }

    fn unusable(&self, what: &'static str) -> Stop {
        Stop::QueryError(QueryError::Path { path: self.path.to_vec(), what })
    }
}

/// The components of a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_parse_from_their_display_form() {
        for text in ["r", "rw", "rwx", "x", "stat", "create", "delete", "chmod", "chown", "touch"] {
            assert_eq!(text.parse::<Operation>().unwrap().to_string(), text);
        }
        assert_eq!("xr".parse::<Operation>(), Ok(Operation::Access(Perm::READ | Perm::EXECUTE)));
        for text in ["", "rr", "rwz", "-", "Delete", "rename", "r w"] {
            assert!(text.parse::<Operation>().is_err(), "{text}");
        }
    }
}
