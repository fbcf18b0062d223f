//! Decides access once for each distinct combination of ACL, owner, group and mode.

use std::collections::HashMap;

use acl::evaluate;
use acl::nfs4;
use acl::posix::{self, Perm};
use meta::{AclKind, Inode, Volume};
use types::{AclId, FileType, Mode};

use super::model::{AuditError, AuditView, Rights};
use super::texts::{Texts, Undecided};
use crate::access_attrs::{AccessAttrs, Rules};
use crate::evaluate::{any_execute, beforehand, kernel_forwards_name_changes, nfs4_file, nfs4_target};

/// The maximum number of cached decisions of each thread and view, about 150 bytes each. A full cache is
/// cleared.
const MAX_CLASSES: usize = 1 << 16;

/// The attributes that access depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    acl: AclId,
    uid: u32,
    gid: u32,
    mode: u16,
    is_dir: bool,
    edited: bool,
}

/// The permissions of one caller on a file of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    /// Whether listings that show only what the caller may read show the file.
    listed: bool,
    read: bool,
    write: bool,
    execute: bool,
    /// Permission to add and remove names, which needs write and execute at once.
    names: bool,
    /// Owner and mode after the edit.
    uid: u32,
    mode: Mode,
    own: bool,
    /// Whether the ACL is missing or damaged.
    is_damaged: bool,
    /// Set if NFSv4 rules apply.
    nfs4: Option<Nfs4>,
}

/// The NFSv4 decisions that the removal of a name depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nfs4 {
    decision: nfs4::Decision,
    target: nfs4::Decision,
    /// For a directory with an ACL: whether the kernel forwards the removal of names.
    kernel_forwards_name_changes: bool,
}

/// A file, with the decisions that apply to its entries if it is a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParentAccess {
    /// Whether the directory is reached, and may be searched.
    pub(super) searched: bool,
    decided: Decided,
}

impl ParentAccess {
    /// Whether listings that show only what the caller may read show this file.
    pub(super) fn is_listed(&self) -> bool {
        self.decided.listed
    }

    /// Whether the file's ACL is missing or damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.decided.is_damaged
    }
}

/// The cached decisions of one view.
#[derive(Debug)]
pub(crate) struct Classes<'a> {
    view: &'a AuditView,
    volume: &'a Volume,
    known: HashMap<Class, Decided>,
    pub(super) decisions: u64,
}

impl<'a> Classes<'a> {
    pub(super) fn new(view: &'a AuditView, volume: &'a Volume) -> Self {
        Classes { view, volume, known: HashMap::new(), decisions: 0 }
    }

    /// Whether the view's edit applies to this inode. `inside` tells whether the inode is in a directory
    /// whose whole content is edited.
    pub(super) fn is_edited(&self, inode: &Inode, inside: bool) -> bool {
        // `setfacl -R` and `chmod -R` neither follow nor change the symbolic links in a directory. `chown -R`
        // changes their owner, which is not taken into account.
        inside && inode.kind != FileType::Symlink
            || self.view.edit.as_ref().is_some_and(|(ino, ..)| *ino == inode.ino)
    }

    /// Whether the edit of a directory applies to its whole content.
    pub(super) fn is_recursive(&self) -> bool {
        self.view.edit.as_ref().is_some_and(|(_, recursive, _)| *recursive)
    }

    /// Decides the access to an inode. `ahead` as in [`Texts::get`].
    ///
    /// # Errors
    /// Those of [`Texts::get`]; the edit cannot be applied.
    pub(super) fn decide<'n>(
        &mut self,
        inode: &Inode,
        edited: bool,
        texts: &mut Texts<'_>,
        ahead: impl Iterator<Item = &'n Inode>,
    ) -> Result<Decided, Undecided> {
        let class = Class {
            acl: inode.access_acl,
            uid: inode.uid,
            gid: inode.gid,
            mode: inode.mode.bits() as u16,
            is_dir: inode.kind.is_dir(),
            edited,
        };
        if let Some(known) = self.known.get(&class) {
            return Ok(*known);
        }
        if self.known.len() >= MAX_CLASSES {
            self.known.clear();
        }
        let text = texts.get(inode, ahead)?;
        self.decisions += 1;
        let decided = self.evaluate(inode, edited, text.as_deref())?;
        self.known.insert(class, decided);
        Ok(decided)
    }

    fn evaluate(&self, inode: &Inode, edited: bool, text: Option<&str>) -> Result<Decided, AuditError> {
        let id = inode.access_acl;
        let rules = match text {
            _ if id.is_none() => Some(Rules::plain(self.volume.acl)),
            Some(text) => Rules::read(self.volume.acl, id, text, &self.volume.sid_rules),
            None => None,
        };
        let Some(rules) = rules else { return Ok(self.evaluate_damaged(inode)) };
        let mut access_attrs = AccessAttrs::with(inode, rules);
        if edited && let Some((_, _, edit)) = &self.view.edit {
            access_attrs = edit.apply(&access_attrs)?;
        }
        let cred = &self.view.cred;
        let AccessAttrs { uid, gid, mode, .. } = access_attrs;
        let is_dir = access_attrs.kind.is_dir();
        let own = evaluate::owner(cred.uid, cred.caps, uid).is_ok();
        Ok(match &access_attrs.rules {
            Rules::Posix(acl) => {
                let inode = posix::FileAttrs { uid, gid, mode, is_dir, acl: acl.as_ref() };
                let may = |want| posix::permits(cred, want, &inode).is_ok();
                Decided {
                    listed: may(Perm::READ),
                    read: may(Perm::READ),
                    write: may(Perm::WRITE),
                    execute: may(Perm::EXECUTE),
                    names: may(Perm::WRITE | Perm::EXECUTE),
                    uid,
                    mode,
                    own,
                    is_damaged: false,
                    nfs4: None,
                }
            }
            Rules::Nfs4(acl) => {
                let decision = nfs4::decide(cred, &[], &nfs4_file(&access_attrs, acl.as_ref()));
                let any_execute = any_execute(&access_attrs, acl.as_ref());
                let granted = decision.granted | nfs4::overrides(cred.caps, is_dir, any_execute);
                let names = nfs4::Mask::WRITE_DATA | nfs4::Mask::EXECUTE;
                let before = beforehand(&access_attrs);
                Decided {
                    listed: granted.has(nfs4::Mask::READ_DATA),
                    read: granted.has(nfs4::Mask::READ_DATA | before),
                    write: granted.has(nfs4::Mask::WRITE_DATA | before),
                    execute: granted.has(nfs4::Mask::EXECUTE),
                    names: granted.has(names),
                    uid,
                    mode,
                    own,
                    is_damaged: false,
                    nfs4: Some(Nfs4 {
                        decision,
                        target: nfs4_target(cred, &access_attrs, acl.as_ref()),
                        kernel_forwards_name_changes: acl.is_some()
                            && is_dir
                            && kernel_forwards_name_changes(cred, &access_attrs),
                    }),
                }
            }
        })
    }

    /// The access to an inode whose ACL is missing or damaged: a check that needs the ACL fails with EIO. The
    /// view's edit is not applied, because its result may depend on the ACL.
    fn evaluate_damaged(&self, inode: &Inode) -> Decided {
        let cred = &self.view.cred;
        let Inode { uid, gid, mode, kind, .. } = *inode;
        let is_dir = kind.is_dir();
        let (listed, granted, nfs4) = match self.volume.acl {
            // The kernel reads the ACL neither for the owner nor if the group bits are clear
            // (`acl_permission_check`). If it cannot read the ACL, capabilities do not help
            // (`generic_permission`).
            AclKind::Off | AclKind::Posix => {
                let needs_acl = cred.uid != uid && mode.rwx() & 0o070 != 0;
                let file = posix::FileAttrs { uid, gid, mode, is_dir, acl: None };
                let may = |want| !needs_acl && posix::permits(cred, want, &file).is_ok();
                let all = [Perm::READ, Perm::WRITE, Perm::EXECUTE, Perm::WRITE | Perm::EXECUTE];
                (may(Perm::READ), all.map(may), None)
            }
            // The kernel sees a mode without permissions, so nobody may execute the file.
            AclKind::Nfs4 => {
                let granted = nfs4::overrides(cred.caps, is_dir, false);
                let (read, write, execute) =
                    (nfs4::Mask::READ_DATA, nfs4::Mask::WRITE_DATA, nfs4::Mask::EXECUTE);
                let before = if is_dir { nfs4::Mask::SEARCH } else { nfs4::Mask::NONE };
                let nfs4 = Nfs4 {
                    decision: nfs4::Decision::default(),
                    target: nfs4::Decision::default(),
                    kernel_forwards_name_changes: false,
                };
                let all = [read | before, write | before, execute, write | execute];
                (false, all.map(|want| granted.has(want)), Some(nfs4))
            }
        };
        // Callers that override denied read permission see the name, so that they can repair the ACL.
        let listed = listed || nfs4::overrides(cred.caps, is_dir, false).has(nfs4::Mask::READ_DATA);
        let [read, write, execute, names] = granted;
        let own = evaluate::owner(cred.uid, cred.caps, uid).is_ok();
        Decided { listed, read, write, execute, names, uid, mode, own, is_damaged: true, nfs4 }
    }

    /// The permissions on a name, from the decisions on its directory and its file.
    pub(super) fn rights(&self, kind: FileType, above: Option<&ParentAccess>, decided: &Decided) -> Rights {
        let cred = &self.view.cred;
        let delete = above.is_some_and(|ParentAccess { decided: dir, .. }| {
            let is_free = evaluate::sticky(cred.uid, cred.caps, dir.mode, dir.uid, decided.uid).is_ok();
            let may = match (dir.nfs4, decided.nfs4) {
                (Some(parent), Some(file)) => {
                    // If one of the ACLs cannot be read, only capabilities permit the removal.
                    let (by_parent, by_file) = match dir.is_damaged || decided.is_damaged {
                        true => Default::default(),
                        false => (parent.decision, file.target),
                    };
                    let removal = nfs4::Removal {
                        parent: by_parent,
                        target: by_file,
                        parent_mode: dir.mode,
                        parent_uid: dir.uid,
                        target_uid: decided.uid,
                    };
                    (parent.kernel_forwards_name_changes || dir.names)
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

    pub(super) fn above(&self, reached: bool, decided: Decided) -> ParentAccess {
        ParentAccess { searched: reached && decided.execute, decided }
    }
}
