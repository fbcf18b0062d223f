//! The names of a tree, one directory at a time, for walks along a path.

use std::sync::Arc;

use acl::identity::DomainTable;
use acl::sid_rules::SidRules;
use meta::{AclKind, Engine, Inode, Record, RecordKey, Volume};
use ops::TRASH_NAME;
use types::{FileType, Ino, Name};

use crate::QueryError;
use crate::access_attrs::AccessAttrs;
use crate::domains::Domains;

/// A tree of names. It is read with the permissions of this process, not with those of the user whose access
/// is explained.
pub trait Tree {
    /// Identifies a file in the tree.
    type Id: Clone;

    /// The directory where absolute paths begin.
    ///
    /// # Errors
    /// It cannot be read.
    fn root(&self) -> Result<TreeFile<Self::Id>, QueryError>;

    /// The file that `name` in a directory refers to; `None` if there is no such name. Symbolic links are not
    /// followed.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn entry(&self, dir: &Self::Id, name: &Name) -> Result<Option<TreeFile<Self::Id>>, QueryError>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn target(&self, link: &Self::Id) -> Result<Vec<u8>, QueryError>;

    /// The Windows domains in the ACLs of the files found so far, at least up to this index.
    ///
    /// # Errors
    /// They cannot be read.
    fn domains(&self, reach: u32) -> Result<Arc<DomainTable>, QueryError>;

    /// Whether the target of an absolute symbolic link starts at this tree's root.
    fn has_absolute_links(&self) -> bool;

    /// Whether the kernel refuses to follow symbolic links of other users in sticky directories that
    /// everybody may write to (`fs.protected_symlinks`, proc_sys_fs(5)).
    fn protects_links(&self) -> bool;
}

/// A file in a tree.
#[derive(Clone, Debug)]
pub struct TreeFile<I> {
    pub id: I,
    pub access_attrs: AccessAttrs,
}

/// The names of a volume, from its own root.
#[derive(Debug)]
pub struct VolumeTree<'e> {
    engine: &'e dyn Engine,
    acl: AclKind,
    sid_rules: SidRules,
    domains: Domains,
}

impl<'e> VolumeTree<'e> {
    /// The tree of a volume with ACLs of this kind, to look up names: no SID is mapped. [`Self::of`] is for
    /// questions about access.
    pub fn new(engine: &'e dyn Engine, acl: AclKind) -> Self {
        VolumeTree { engine, acl, sid_rules: SidRules::default(), domains: Domains::default() }
    }

    /// The tree of this volume, with its rules for SIDs.
    pub fn of(engine: &'e dyn Engine, volume: &Volume) -> Self {
        VolumeTree { sid_rules: volume.sid_rules.clone(), ..VolumeTree::new(engine, volume.acl) }
    }

    /// Reads an inode, in one request.
    ///
    /// # Errors
    /// The database fails; the inode does not exist, or its ACL is damaged.
    pub fn inode(&self, ino: Ino) -> Result<(Inode, AccessAttrs), QueryError> {
        let records = self.engine.read(&[RecordKey::Inode(ino)])?.records;
        self.inode_in(ino, &records)
    }

    fn inode_in(&self, ino: Ino, records: &[Record]) -> Result<(Inode, AccessAttrs), QueryError> {
        let inode = records.iter().find_map(|record| match record {
            Record::Inode(found, inode) if *found == ino => *inode,
            _ => None,
        });
        let inode = inode
            .ok_or(QueryError::Damaged { ino: ino.0, what: "a name refers to it, but it does not exist" })?;
        Ok((inode, AccessAttrs::of(&inode, self.acl, &self.sid_rules, records)?))
    }
}

impl VolumeTree<'_> {
    /// The trash, which no entry names; `None` if the volume has none.
    fn trash(&self) -> Result<Option<TreeFile<Ino>>, QueryError> {
        let records = self.engine.read(&[RecordKey::Inode(Ino::TRASH)])?.records;
        if !records.iter().any(|record| matches!(record, Record::Inode(_, Some(_)))) {
            return Ok(None);
        }
        let (_, access_attrs) = self.inode_in(Ino::TRASH, &records)?;
        Ok(Some(TreeFile { id: Ino::TRASH, access_attrs }))
    }
}

impl Tree for VolumeTree<'_> {
    type Id = Ino;

    fn root(&self) -> Result<TreeFile<Ino>, QueryError> {
        let (_, access_attrs) = self.inode(Ino::ROOT)?;
        Ok(TreeFile { id: Ino::ROOT, access_attrs })
    }

    fn entry(&self, dir: &Ino, name: &Name) -> Result<Option<TreeFile<Ino>>, QueryError> {
        let records = self.engine.read(&[RecordKey::Dirent(*dir, name.clone())])?.records;
        let Some(ino) = records.iter().find_map(|record| match record {
            Record::Dirent(_, _, dirent) => dirent.map(|dirent| dirent.ino),
            _ => None,
        }) else {
            if *dir == Ino::ROOT && name.as_bytes() == TRASH_NAME {
                return self.trash();
            }
            return Ok(None);
        };
        let (_, access_attrs) = self.inode_in(ino, &records)?;
        Ok(Some(TreeFile { id: ino, access_attrs }))
    }

    fn target(&self, link: &Ino) -> Result<Vec<u8>, QueryError> {
        match self.engine.read(&[RecordKey::Symlink(*link)])?.records.into_iter().next() {
            Some(Record::Symlink(_, Some(target))) => Ok(target.to_vec()),
            _ => Err(QueryError::Damaged { ino: link.0, what: "it is a symbolic link without a target" }),
        }
    }

    fn domains(&self, reach: u32) -> Result<Arc<DomainTable>, QueryError> {
        Ok(self.domains.up_to(reach, self.engine)?)
    }

    fn has_absolute_links(&self) -> bool {
        false
    }

    /// The default of most systems; the system that mounts the volume is not known here.
    fn protects_links(&self) -> bool {
        true
    }
}

/// Whether the inode is a symbolic link.
pub(crate) fn is_link(access_attrs: &AccessAttrs) -> bool {
    access_attrs.kind == FileType::Symlink
}
