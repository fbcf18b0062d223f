//! `limen access audit --what-if`: a hypothetical change of an ACL, a mode, an owner or a user's groups.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

use command::error::{CliError, ErrorAt};
use inspect::{Edit, Operation, PathChecks, PlannedChange, VolumeTree, parse_change};
use types::{Cred, Ino};

use crate::target::Target;
use crate::url::MetaUrl;
use crate::users::{Person, Users};

/// The change, as text and parsed.
#[derive(Clone, Debug)]
pub(crate) struct WhatIf {
    pub(crate) text: String,
    change: PlannedChange,
    /// The uid of the user whose groups the change affects.
    pub(super) uid: Option<u32>,
}

impl WhatIf {
    /// Parses a change.
    ///
    /// # Errors
    /// The text is not a supported change; the user that it names does not exist.
    pub(crate) fn parse(text: &str, users: &Users) -> Result<Self, CliError> {
        let change = parse_change(text, users).usage().at(text)?;
        let mut what_if = WhatIf { text: text.to_owned(), change, uid: None };
        what_if.uid = what_if.user().map(|user| users.uid(user)).transpose()?;
        Ok(what_if)
    }

    /// The user whose groups the change affects.
    pub(super) fn user(&self) -> Option<&str> {
        match &self.change {
            PlannedChange::Join { user, .. } | PlannedChange::Leave { user, .. } => Some(user),
            PlannedChange::Edit { .. } => None,
        }
    }

    /// The credential of `person` after the change.
    ///
    /// # Errors
    /// The change removes a user from its primary group.
    pub(crate) fn cred(&self, person: &Person, users: &Users) -> Result<Cred, CliError> {
        let Cred { uid, gid, caps, .. } = person.cred;
        if self.uid != Some(uid) {
            return Ok(person.cred.clone());
        }
        let mut groups = person.cred.groups().to_vec();
        match self.change {
            PlannedChange::Join { group, .. } => groups.push(group),
            PlannedChange::Leave { group, .. } if group == gid => {
                return Err(
                    CliError::usage("a user cannot be removed from its primary group").at(users.group(group))
                );
            }
            PlannedChange::Leave { group, .. } => groups.retain(|known| *known != group),
            PlannedChange::Edit { .. } => {}
        }
        Ok(Cred::new(uid, gid, &groups, caps))
    }

    /// The inode that the change edits in a volume, whether the edit is recursive, and the edit. If the
    /// volume is audited by URL, the path of the change starts at the volume's root; otherwise it is a path
    /// on this machine.
    ///
    /// # Errors
    /// The path does not exist; it is on another file system; its URL names another volume than `audited`.
    pub(super) fn edit(
        &self,
        tree: &VolumeTree<'_>,
        device: Option<u64>,
        audited: Option<&MetaUrl>,
    ) -> Result<Option<(Ino, bool, Edit)>, CliError> {
        let PlannedChange::Edit { path, recursive, edit } = &self.change else { return Ok(None) };
        let ino = match (Target::parse(OsStr::new(path))?, device) {
            (Target::Local(path), Some(device)) => {
                let metadata = fs::metadata(&path).at(path.display())?;
                if metadata.dev() != device {
                    return Err(CliError::usage("the change is not on the file system that is audited")
                        .at(path.display()));
                }
                Ino(metadata.ino())
            }
            (Target::Local(_), None) => inode_at(tree, path.as_bytes())?,
            (Target::Volume(url, path), None) => {
                require_same(&url, audited)?;
                inode_at(tree, &path)?
            }
            (Target::Volume(..), Some(_)) => {
                return Err(CliError::usage("the change names a metadata URL, but the audit names a path")
                    .at(path)
                    .advise("name the file by its path on this machine"));
            }
        };
        Ok(Some((ino, *recursive, edit.clone())))
    }

    /// The edit of a file, and whether it is recursive; `None` if the change is about the groups of a user.
    pub(crate) fn planned(&self) -> Option<(bool, &Edit)> {
        match &self.change {
            PlannedChange::Edit { recursive, edit, .. } => Some((*recursive, edit)),
            _ => None,
        }
    }

    /// The checks on the path to a file after the change. They are the same as before if the change edits no
    /// file on the path.
    ///
    /// # Errors
    /// The path of the change does not exist, or is in another volume; the edit cannot be applied.
    pub(super) fn path_checks(
        &self,
        path_checks: &PathChecks,
        target: &Target,
    ) -> Result<PathChecks, CliError> {
        let PlannedChange::Edit { path, .. } = &self.change else { return Ok(path_checks.clone()) };
        let edited = match (Target::parse(OsStr::new(path))?, target) {
            (Target::Local(_), Target::Volume(url, _)) => {
                Target::Volume(url.clone(), path.clone().into_bytes())
            }
            (Target::Volume(url, path), Target::Volume(audited, _)) => {
                require_same(&url, Some(audited))?;
                Target::Volume(url, path)
            }
            (edited, _) => edited,
        };
        let place = super::explain::find(&edited, Operation::Chmod)?;
        let (Ok(()), Some(last)) = (place.end, place.target()) else {
            return Err(CliError::new("there is no such file").at(edited.show()));
        };
        self.checks_after(path_checks, &last.path)
    }

    /// The checks on the path to a file after the change of the file at `edited`, a path without symbolic
    /// links.
    ///
    /// # Errors
    /// The edit cannot be applied.
    pub(crate) fn checks_after(
        &self,
        path_checks: &PathChecks,
        edited: &[u8],
    ) -> Result<PathChecks, CliError> {
        let Some((recursive, edit)) = self.planned() else { return Ok(path_checks.clone()) };
        let is_meant = |path: &[u8]| {
            let below = path.strip_prefix(edited);
            below.is_some_and(|below| {
                below.is_empty() || recursive && (below.starts_with(b"/") || edited.ends_with(b"/"))
            })
        };
        let mut after = path_checks.clone();
        for check in after.checks.iter_mut().filter(|check| is_meant(&check.path)) {
            check.access_attrs = edit.apply(&check.access_attrs).usage().at(&self.text)?;
        }
        Ok(after)
    }
}

/// Fails if a change names another volume than the one that is audited.
fn require_same(url: &MetaUrl, audited: Option<&MetaUrl>) -> Result<(), CliError> {
    match audited.is_some_and(|audited| url.to_string() == audited.to_string()) {
        true => Ok(()),
        false => Err(CliError::usage("the change is not in the volume that is audited")
            .at(url)
            .advise("write the same META-URL, or only the path in the volume")),
    }
}

/// The inode at a path of a volume.
///
/// # Errors
/// No file has this path, or the path cannot be read.
pub(super) fn inode_at(tree: &VolumeTree<'_>, path: &[u8]) -> Result<Ino, CliError> {
    let path_checks = PathChecks::find(tree, path, Operation::Chmod)?;
    let place = || String::from_utf8_lossy(path).into_owned();
    match (path_checks.end, path_checks.target()) {
        (Ok(()), Some(check)) => Ok(Ino(check.access_attrs.ino)),
        (Err(errno), _) => Err(CliError::new(errno).at(place())),
        (Ok(()), None) => Err(CliError::new("cannot find the file").at(place())),
    }
}
