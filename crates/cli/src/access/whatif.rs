//! `--what-if`: a change that is only thought of.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

use inspect::{Change, Edit, Route, Subject, VolumeTree, Want, parse_change};
use types::{Cred, Ino};

use crate::fault::Fault;
use crate::target::Target;
use crate::users::{Person, Users};

/// The change, as it was typed and as it is understood.
#[derive(Clone, Debug)]
pub(super) struct WhatIf {
    pub(super) text: String,
    change: Change,
}

impl WhatIf {
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str, users: &Users) -> Result<Self, Fault> {
        let change = parse_change(text, users).map_err(|error| Fault::usage(error).at(text))?;
        Ok(WhatIf { text: text.to_owned(), change })
    }

    /// Whose groups it changes.
    pub(super) fn user(&self) -> Option<&str> {
        match &self.change {
            Change::Join { user, .. } | Change::Leave { user, .. } => Some(user),
            Change::Edit { .. } => None,
        }
    }

    /// What somebody is after it, in groups.
    ///
    /// # Errors
    /// There is no such user; the primary group cannot be left.
    pub(super) fn cred(&self, person: &Person, users: &Users) -> Result<Cred, Fault> {
        let Some(user) = self.user() else { return Ok(person.cred.clone()) };
        let changed = if user == person.name { person.cred.uid } else { users.uid(user)? };
        let Cred { uid, gid, caps, .. } = person.cred;
        if changed != uid {
            return Ok(person.cred.clone());
        }
        let mut groups = person.cred.groups().to_vec();
        match self.change {
            Change::Join { group, .. } => groups.push(group),
            Change::Leave { group, .. } if group == gid => {
                return Err(Fault::usage("this is the user's primary group, which cannot be left")
                    .at(users.group(group)));
            }
            Change::Leave { group, .. } => groups.retain(|known| *known != group),
            Change::Edit { .. } => {}
        }
        Ok(Cred::new(uid, gid, &groups, caps))
    }

    /// The inode that it edits in a volume, whether with all below it, and how. Its path is one of the volume's where
    /// that is looked at by its URL, and else one on this machine.
    ///
    /// # Errors
    /// The path leads nowhere, or to another file system.
    pub(super) fn edit(
        &self,
        tree: &VolumeTree<'_>,
        device: Option<u64>,
    ) -> Result<Option<(Ino, bool, Edit)>, Fault> {
        let Change::Edit { path, recursive, edit } = &self.change else { return Ok(None) };
        let ino = match (Target::parse(OsStr::new(path))?, device) {
            (Target::Local(path), Some(device)) => {
                let metadata = fs::metadata(&path).map_err(|error| Fault::new(error).at(path.display()))?;
                if metadata.dev() != device {
                    return Err(Fault::usage("this is on another file system than what is audited")
                        .at(path.display()));
                }
                Ino(metadata.ino())
            }
            (Target::Local(_), None) => inode_at(tree, path.as_bytes())?,
            (Target::Volume(_, path), None) => inode_at(tree, &path)?,
            (Target::Volume(..), Some(_)) => {
                return Err(Fault::usage("name it by its path on this machine, as what is audited").at(path));
            }
        };
        Ok(Some((ino, *recursive, edit.clone())))
    }

    /// A route after it, if it edits any file on the way.
    ///
    /// # Errors
    /// The path leads nowhere; the edit cannot be made.
    pub(super) fn route(&self, route: &Route, target: &Target) -> Result<Route, Fault> {
        let Change::Edit { path, recursive, edit } = &self.change else { return Ok(route.clone()) };
        let edited = match (Target::parse(OsStr::new(path))?, target) {
            (Target::Local(_), Target::Volume(url, _)) => {
                Target::Volume(url.clone(), path.clone().into_bytes())
            }
            (edited, _) => edited,
        };
        let place = super::explain::find(&edited, Want::Chmod)?;
        let (Ok(()), Some(last)) = (place.end, place.target()) else {
            return Err(Fault::new("there is no such file").at(edited.show()));
        };
        let is_meant = |path: &[u8]| {
            let below = path.strip_prefix(&last.path[..]);
            below.is_some_and(|below| {
                below.is_empty() || *recursive && (below.starts_with(b"/") || last.path.ends_with(b"/"))
            })
        };
        let mut after = route.clone();
        for check in after.checks.iter_mut().filter(|check| is_meant(&check.path)) {
            check.subject = apply(edit, &check.subject).map_err(|fault| fault.at(&self.text))?;
        }
        Ok(after)
    }
}

fn apply(edit: &Edit, subject: &Subject) -> Result<Subject, Fault> {
    edit.apply(subject).map_err(Fault::usage)
}

/// The inode at a path of a volume.
///
/// # Errors
/// There is none.
pub(super) fn inode_at(tree: &VolumeTree<'_>, path: &[u8]) -> Result<Ino, Fault> {
    let route = Route::find(tree, path, Want::Chmod).map_err(super::trouble)?;
    let place = || String::from_utf8_lossy(path).into_owned();
    match (route.end, route.target()) {
        (Ok(()), Some(check)) => Ok(Ino(check.subject.ino)),
        (Err(errno), _) => Err(Fault::new(errno).at(place())),
        (Ok(()), None) => Err(Fault::new("it cannot be found").at(place())),
    }
}
