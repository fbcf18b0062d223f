//! A path, and every check that stands on the way to what somebody wants at its end.
//!
//! Which checks there are does not depend on who comes along (the kernel's `link_path_walk` and `path_init`, fs/namei.c),
//! so a route is found once and then judged for as many callers as one likes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use acl::identity::DomainTable;
use acl::posix::Perm;
use types::{Cred, Errno, Mode, Name, NameError};

use crate::Trouble;
use crate::judge::{Verdict, beforehand, judge};
use crate::subject::{Rules, Subject};
use crate::tree::{Found, Tree, is_link};

/// What somebody wants to do with the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// All of these at once, as `access(2)` and `open(2)` ask for them. Nothing of them: as [`Want::Stat`].
    Access(Perm),
    /// To see its attributes.
    Stat,
    /// To make a file of that name, which is not there yet.
    Create,
    /// To take the name away. Whether a directory is empty is not asked.
    Delete,
    /// To change its mode or POSIX ACL.
    Chmod,
    /// To give it to another owner.
    Chown,
    /// To set its times to now.
    Touch,
}

/// What cannot be wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' cannot be wanted: write some of r, w and x, or stat, create, delete, chmod, chown or touch")]
pub struct WantError(String);

const NAMED: [(&str, Want); 6] = [
    ("stat", Want::Stat),
    ("create", Want::Create),
    ("delete", Want::Delete),
    ("chmod", Want::Chmod),
    ("chown", Want::Chown),
    ("touch", Want::Touch),
];

impl FromStr for Want {
    type Err = WantError;

    fn from_str(text: &str) -> Result<Self, WantError> {
        if let Some((_, want)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*want);
        }
        let wrong = || WantError(text.to_owned());
        let perm = text.chars().try_fold(Perm::NONE, |perm, letter| {
            let one = match letter {
                'r' => Perm::READ,
                'w' => Perm::WRITE,
                'x' => Perm::EXECUTE,
                _ => return None,
            };
            (!perm.has(one)).then_some(perm | one)
        });
        perm.filter(|perm| *perm != Perm::NONE).map(Want::Access).ok_or_else(wrong)
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Want::Access(perm) => f.write_str(&perm.to_string().replace('-', "")),
            other => f.write_str(NAMED.iter().find(|(_, want)| want == other).map_or("", |(name, _)| name)),
        }
    }
}

/// What is asked of one file on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// To look up a name in the directory.
    Search,
    /// To follow this link at the end of a path, from a sticky directory that all may write (`may_follow_link`).
    Follow { dir_uid: u32 },
    /// All of these at once.
    Access(Perm),
    /// To add or remove names in the directory.
    Names,
    /// To take this file's name out of a sticky directory (`check_sticky`).
    Sticky { dir_mode: Mode, dir_uid: u32 },
    /// To take this file's name out of that directory, by NFSv4 rules, sticky bit included.
    Remove { dir: Box<Subject> },
    /// To be the owner, or act as if.
    Own,
    /// To give the file away.
    GiveAway,
    /// To set the times to now.
    Touch,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Where the file is, links resolved.
    pub path: Vec<u8>,
    pub subject: Subject,
    pub demand: Demand,
}

impl Check {
    /// Of the ACLs that it may go by.
    fn highest_domain(&self) -> u32 {
        let of_dir = match &self.demand {
            Demand::Remove { dir } => dir.rules.highest_domain(),
            _ => 0,
        };
        of_dir.max(self.subject.rules.highest_domain())
    }
}

/// All checks on the way to a wish, in the order in which the kernel makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub checks: Vec<Check>,
    /// How the way ends for who passes them all: ENOENT, ENOTDIR, EEXIST, ELOOP, ENAMETOOLONG, EBUSY, or well.
    pub end: Result<(), Errno>,
    /// The Windows domains that ACLs on the way name.
    pub domains: Arc<DomainTable>,
}

/// A route judged for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// One for each check made: all, or up to the first that refuses.
    pub verdicts: Vec<Verdict>,
    /// What the system call fails with; none where it is granted.
    pub errno: Option<Errno>,
}

/// As many symbolic links as a path may lead through (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;
/// The longest path, its NUL included (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;

impl Route {
    /// Follows `path` from the root of `tree`.
    ///
    /// # Errors
    /// [`Trouble`]: the tree cannot be looked at, is damaged on the way, or the question makes no sense.
    pub fn find<T: Tree>(tree: &T, path: &[u8], want: Want) -> Result<Route, Trouble> {
        let root = tree.root()?;
        let mut walk =
            Walk { tree, path, want, above: vec![Here::new(b"/".to_vec(), root)], checks: Vec::new() };
        let end = match walk.run() {
            Ok(()) => Ok(()),
            Err(Stop::Ends(errno)) => Err(errno),
            Err(Stop::Trouble(trouble)) => return Err(trouble),
        };
        let reach = walk.checks.iter().map(Check::highest_domain).max().unwrap_or(0);
        Ok(Route { domains: tree.domains(reach)?, checks: walk.checks, end })
    }

    /// Whether the caller may, and what decides it at each step.
    pub fn explain(&self, cred: &Cred) -> Answer {
        let mut verdicts = Vec::with_capacity(self.checks.len());
        for check in &self.checks {
            let verdict = judge(cred, check);
            let errno = verdict.errno;
            verdicts.push(verdict);
            if errno.is_some() {
                return Answer { verdicts, errno };
            }
        }
        Answer { verdicts, errno: self.end.err() }
    }

    /// The last thing that is looked at, which the wish is about.
    pub fn target(&self) -> Option<&Check> {
        self.checks.last()
    }
}

/// Where a walk stands.
struct Here<P> {
    path: Vec<u8>,
    found: Found<P>,
}

impl<P> Here<P> {
    fn new(path: Vec<u8>, found: Found<P>) -> Self {
        Here { path, found }
    }
}

enum Stop {
    /// Whoever comes so far.
    Ends(Errno),
    Trouble(Trouble),
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Stop::Trouble(trouble)
    }
}

struct Walk<'a, T: Tree> {
    tree: &'a T,
    path: &'a [u8],
    want: Want,
    /// From the root to where the walk is, never empty.
    above: Vec<Here<T::Place>>,
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
        let by_name = matches!(self.want, Want::Create | Want::Delete);
        let must_be_dir = self.path.ends_with(b"/");
        // The next component is the last of these.
        let mut left: Vec<Vec<u8>> = components(self.path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            let is_last = left.is_empty();
            self.search()?;
            match &name[..] {
                b"." | b".." if is_last && by_name => return Err(self.makes_no_sense()),
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
                _ => self.makes_no_sense(),
            })?;
            let place = &self.here().found.place;
            let found = self.tree.entry(place, &name)?;
            if is_last && by_name {
                return self.change_names(&name, found);
            }
            let found = found.ok_or(Stop::Ends(Errno::ENOENT))?;
            if !is_link(&found.subject) {
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
            let target = self.tree.target(&found.place)?;
            if target.starts_with(b"/") {
                if !self.tree.has_absolute_links() {
                    return Err(Trouble::LeadsOut { path: self.below(&name), target }.into());
                }
                self.above.truncate(1);
            }
            left.extend(components(&target));
        }
        if by_name {
            // The root, which no name leads to.
            return Err(Stop::Ends(if self.want == Want::Create { Errno::EEXIST } else { Errno::EBUSY }));
        }
        if must_be_dir && !self.here().found.subject.kind.is_dir() {
            return Err(Stop::Ends(Errno::ENOTDIR));
        }
        match self.want {
            Want::Access(perm) => self.demand(Demand::Access(perm)),
            Want::Chmod => self.demand(Demand::Own),
            Want::Chown => self.demand(Demand::GiveAway),
            Want::Touch => self.demand(Demand::Touch),
            Want::Stat if !beforehand(&self.here().found.subject).is_none() => self.demand(Demand::Search),
            Want::Stat | Want::Create | Want::Delete => {}
        }
        Ok(())
    }

    fn here(&self) -> &Here<T::Place> {
        // It begins with the root, which is never popped.
        &self.above[self.above.len() - 1]
    }

    fn below(&self, name: &Name) -> Vec<u8> {
        join(&self.here().path, name.as_bytes())
    }

    fn demand(&mut self, demand: Demand) {
        let Here { path, found } = self.here();
        self.checks.push(Check { path: path.clone(), subject: found.subject.clone(), demand });
    }

    /// The directory that the walk is at has to be searched, which the kernel checks at each component anew; once shown
    /// is enough.
    fn search(&mut self) -> Result<(), Stop> {
        let here = self.here();
        if !here.found.subject.kind.is_dir() {
            return Err(Stop::Ends(Errno::ENOTDIR));
        }
        let known = self.checks.iter().any(|check| check.demand == Demand::Search && check.path == here.path);
        if !known {
            self.demand(Demand::Search);
        }
        Ok(())
    }

    /// A link at the end of a path.
    fn follow(&mut self, name: &Name, link: &Found<T::Place>) {
        let dir = &self.here().found.subject;
        if dir.mode.has(Mode::STICKY | 0o002) && self.tree.protects_links() {
            let demand = Demand::Follow { dir_uid: dir.uid };
            self.checks.push(Check { path: self.below(name), subject: link.subject.clone(), demand });
        }
    }

    /// The name is to be made or taken away.
    fn change_names(&mut self, name: &Name, found: Option<Found<T::Place>>) -> Result<(), Stop> {
        let dir = self.here().found.subject.clone();
        match (self.want, found) {
            (Want::Create, Some(_)) => Err(Stop::Ends(Errno::EEXIST)),
            (Want::Create, None) => {
                self.demand(Demand::Names);
                Ok(())
            }
            (_, None) => Err(Stop::Ends(Errno::ENOENT)),
            (_, Some(found)) => {
                let path = self.below(name);
                let check = |demand| Check { path: path.clone(), subject: found.subject.clone(), demand };
                let demand = Demand::Sticky { dir_mode: dir.mode, dir_uid: dir.uid };
                let sticky = dir.mode.has(Mode::STICKY).then(|| check(demand));
                // The kernel goes by what it is shown, which for a directory with an NFSv4 ACL is never too little; a
                // sticky bit holds there too, against a file's own `DELETE` as well.
                if !matches!(dir.rules, Rules::Nfs4(Some(_))) {
                    self.demand(Demand::Names);
                }
                self.checks.extend(sticky);
                if let Rules::Nfs4(_) = dir.rules {
                    self.checks.push(check(Demand::Remove { dir: Box::new(dir) }));
                }
                if self.path.ends_with(b"/") && !found.subject.kind.is_dir() {
                    return Err(Stop::Ends(Errno::ENOTDIR));
                }
                Ok(())
            }
        }
    }

    fn makes_no_sense(&self) -> Stop {
        Stop::Trouble(Trouble::Path { path: self.path.to_vec(), what: "name it by its own name" })
    }
}

/// The names in a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The path of a name in a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}

/// A path for people: control characters are escaped, what is no UTF-8 is replaced.
pub(crate) fn show(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_as_they_are_shown() {
        for text in ["r", "rw", "rwx", "x", "stat", "create", "delete", "chmod", "chown", "touch"] {
            assert_eq!(text.parse::<Want>().unwrap().to_string(), text);
        }
        assert_eq!("xr".parse::<Want>(), Ok(Want::Access(Perm::READ | Perm::EXECUTE)));
        for text in ["", "rr", "rwz", "-", "Delete", "rename", "r w"] {
            assert!(text.parse::<Want>().is_err(), "{text}");
        }
    }

    #[test]
    fn paths_are_shown_without_control_characters() {
        assert_eq!(show(b"/a b/\x1b[31m\n/\xc3\xa4"), "/a b/\\u{1b}[31m\\n/\u{e4}");
    }
}
