//! Distinct combinations of ACL, owner, group and mode, each decided once.

use std::collections::HashMap;

use acl::evaluate;
use acl::nfs4;
use acl::posix::{self, Perm};
use meta::{AclKind, Node};
use types::{AclId, FileType, Mode};

use super::texts::Texts;
use super::{AuditError, Rights, View};
use crate::judge::{any_execute, beforehand, lets_try_names, nfs4_node, nfs4_target};
use crate::subject::{Rules, Subject};

/// Decisions remembered by each thread for each view, some 150 bytes each; when there are more, they are made anew.
const MAX_CLASSES: usize = 1 << 16;

/// What rights depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    acl: AclId,
    uid: u32,
    gid: u32,
    mode: u16,
    is_dir: bool,
    edited: bool,
}

/// What one caller may do with a file of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    read: bool,
    write: bool,
    execute: bool,
    /// To add and remove names, which asks for two rights at once.
    names: bool,
    /// Who owns it after the edit, and with which mode.
    uid: u32,
    mode: Mode,
    own: bool,
    /// Where NFSv4 rules hold.
    nfs4: Option<Nfs4>,
}

/// What the removal of names depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nfs4 {
    decision: nfs4::Decision,
    target: nfs4::Decision,
    /// Of a directory with an ACL: the kernel leaves removal to the volume.
    lets_try_names: bool,
}

/// A directory as far as what is in it depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Above {
    /// It is reached, and may be searched.
    pub(super) searched: bool,
    decided: Decided,
}

/// The decisions of one view, made so far.
#[derive(Debug)]
pub(crate) struct Classes<'a> {
    view: &'a View,
    acl: AclKind,
    /// `None` where the ACL is damaged.
    known: HashMap<Class, Option<Decided>>,
    pub(super) decisions: u64,
}

impl<'a> Classes<'a> {
    pub(super) fn new(view: &'a View, acl: AclKind) -> Self {
        Classes { view, acl, known: HashMap::new(), decisions: 0 }
    }

    /// Whether the view's edit is of this inode, which lies in a directory that `inside` says is edited with all below.
    pub(super) fn is_edited(&self, node: &Node, inside: bool) -> bool {
        // A recursive change does not follow links, nor touch them.
        inside && node.kind != FileType::Symlink
            || self.view.edit.as_ref().is_some_and(|(ino, ..)| *ino == node.ino)
    }

    /// Whether all that is below an edited directory is edited too.
    pub(super) fn is_recursive(&self) -> bool {
        self.view.edit.as_ref().is_some_and(|(_, recursive, _)| *recursive)
    }

    /// `None` where the ACL is missing or damaged, and all is refused. `ahead` is as [`Texts::get`] takes it.
    pub(super) fn decide<'n>(
        &mut self,
        node: &Node,
        edited: bool,
        texts: &mut Texts<'_>,
        ahead: impl Iterator<Item = &'n Node>,
    ) -> Result<Option<Decided>, AuditError> {
        let class = Class {
            acl: node.access_acl,
            uid: node.uid,
            gid: node.gid,
            mode: node.mode.bits() as u16,
            is_dir: node.kind.is_dir(),
            edited,
        };
        if let Some(known) = self.known.get(&class) {
            return Ok(*known);
        }
        if self.known.len() >= MAX_CLASSES {
            self.known.clear();
        }
        self.decisions += 1;
        let text = if node.access_acl.is_none() { None } else { texts.get(node.access_acl, ahead)? };
        let decided = self.work_out(node, edited, text.as_deref())?;
        self.known.insert(class, decided);
        Ok(decided)
    }

    fn work_out(&self, node: &Node, edited: bool, text: Option<&str>) -> Result<Option<Decided>, AuditError> {
        let id = node.access_acl;
        let rules = match text {
            _ if id.is_none() => Some(Rules::plain(self.acl)),
            Some(text) => Rules::read(self.acl, id, text),
            None => None,
        };
        let Some(rules) = rules else { return Ok(None) };
        let mut subject = Subject::with(node, rules);
        if edited && let Some((_, _, edit)) = &self.view.edit {
            subject = edit.apply(&subject)?;
        }
        let cred = &self.view.cred;
        let Subject { uid, gid, mode, .. } = subject;
        let is_dir = subject.kind.is_dir();
        let own = evaluate::owner(cred.uid, cred.caps, uid).is_ok();
        Ok(Some(match &subject.rules {
            Rules::Posix(acl) => {
                let node = posix::Node { uid, gid, mode, is_dir, acl: acl.as_ref() };
                let may = |want| posix::permits(cred, want, &node).is_ok();
                Decided {
                    read: may(Perm::READ),
                    write: may(Perm::WRITE),
                    execute: may(Perm::EXECUTE),
                    names: may(Perm::WRITE | Perm::EXECUTE),
                    uid,
                    mode,
                    own,
                    nfs4: None,
                }
            }
            Rules::Nfs4(acl) => {
                let decision = nfs4::decide(cred, &[], &nfs4_node(&subject, acl.as_ref()));
                let any_execute = any_execute(&subject, acl.as_ref());
                let granted = decision.granted | nfs4::overrides(cred.caps, is_dir, any_execute);
                let names = nfs4::Mask::WRITE_DATA | nfs4::Mask::EXECUTE;
                let before = beforehand(&subject);
                Decided {
                    read: granted.has(nfs4::Mask::READ_DATA | before),
                    write: granted.has(nfs4::Mask::WRITE_DATA | before),
                    execute: granted.has(nfs4::Mask::EXECUTE),
                    names: granted.has(names),
                    uid,
                    mode,
                    own,
                    nfs4: Some(Nfs4 {
                        decision,
                        target: nfs4_target(cred, &subject, acl.as_ref()),
                        lets_try_names: acl.is_some() && is_dir && lets_try_names(cred, &subject),
                    }),
                }
            }
        }))
    }

    /// What may be done with a name, given what its directory and its file are decided to be.
    pub(super) fn rights(&self, kind: FileType, above: Option<&Above>, decided: &Decided) -> Rights {
        let cred = &self.view.cred;
        let delete = above.is_some_and(|Above { decided: dir, .. }| {
            let is_free = evaluate::sticky(cred.uid, cred.caps, dir.mode, dir.uid, decided.uid).is_ok();
            let may = match (dir.nfs4, decided.nfs4) {
                (Some(parent), Some(file)) => {
                    let removal = nfs4::Removal {
                        parent: parent.decision,
                        target: file.target,
                        parent_mode: dir.mode,
                        parent_uid: dir.uid,
                        target_uid: decided.uid,
                    };
                    (parent.lets_try_names || dir.names)
                        && nfs4::may_remove(cred.uid, cred.caps, &removal).is_ok()
                }
                _ => dir.names,
            };
            may && is_free
        });
        let Decided { read, write, execute, own, .. } = *decided;
        if kind == FileType::Symlink {
            return Rights { delete, own, ..Rights::default() };
        }
        Rights { read, write, execute, delete, own }
    }

    pub(super) fn above(&self, reached: bool, decided: Decided) -> Above {
        Above { searched: reached && decided.execute, decided }
    }
}
