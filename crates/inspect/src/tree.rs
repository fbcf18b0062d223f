//! Names, one directory after the other: what a walk along a path needs.

use std::sync::Arc;

use acl::identity::DomainTable;
use meta::{AclKind, Engine, Node, Record, Want};
use types::{FileType, Ino, Name};

use crate::Trouble;
use crate::domains::Domains;
use crate::subject::Subject;

/// A tree of names that paths lead through. It is looked at with the rights of whoever asks, not of whom is asked about.
pub trait Tree {
    /// What it knows a file by.
    type Place: Clone;

    /// Where absolute paths begin.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn root(&self) -> Result<Found<Self::Place>, Trouble>;

    /// What `name` in a directory refers to; `None` where it is free. Symbolic links are not followed.
    ///
    /// # Errors
    /// It cannot be looked at, or is damaged.
    fn entry(&self, dir: &Self::Place, name: &Name) -> Result<Option<Found<Self::Place>>, Trouble>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// It cannot be looked at, or is damaged.
    fn target(&self, link: &Self::Place) -> Result<Vec<u8>, Trouble>;

    /// The Windows domains that ACLs of files found so far name, up to this index at least.
    ///
    /// # Errors
    /// They cannot be looked at.
    fn domains(&self, reach: u32) -> Result<Arc<DomainTable>, Trouble>;

    /// Whether a symbolic link to an absolute path leads to this tree's root.
    fn has_absolute_links(&self) -> bool;

    /// Whether the kernel, when it opens a file, follows a link that somebody put into a sticky directory that all may
    /// write (`fs.protected_symlinks`, proc_sys_fs(5)).
    fn protects_links(&self) -> bool;
}

/// A file in a tree.
#[derive(Clone, Debug)]
pub struct Found<P> {
    pub place: P,
    pub subject: Subject,
}

/// The names of a volume, from its own root.
#[derive(Debug)]
pub struct VolumeTree<'e> {
    engine: &'e dyn Engine,
    acl: AclKind,
    domains: Domains,
}

impl<'e> VolumeTree<'e> {
    /// Of a volume with ACLs of this kind.
    pub fn new(engine: &'e dyn Engine, acl: AclKind) -> Self {
        VolumeTree { engine, acl, domains: Domains::default() }
    }

    /// An inode; one request.
    ///
    /// # Errors
    /// The database fails; the inode is not there, or its ACL is damaged.
    pub fn inode(&self, ino: Ino) -> Result<(Node, Subject), Trouble> {
        let records = self.engine.read(&[Want::Node(ino)])?.records;
        self.node_in(ino, &records)
    }

    fn node_in(&self, ino: Ino, records: &[Record]) -> Result<(Node, Subject), Trouble> {
        let node = records.iter().find_map(|record| match record {
            Record::Node(found, node) if *found == ino => *node,
            _ => None,
        });
        let node =
            node.ok_or(Trouble::Damaged { ino: ino.0, what: "a name leads to it, and it is not there" })?;
        Ok((node, Subject::of(&node, self.acl, records)?))
    }
}

impl Tree for VolumeTree<'_> {
    type Place = Ino;

    fn root(&self) -> Result<Found<Ino>, Trouble> {
        let (_, subject) = self.inode(Ino::ROOT)?;
        Ok(Found { place: Ino::ROOT, subject })
    }

    fn entry(&self, dir: &Ino, name: &Name) -> Result<Option<Found<Ino>>, Trouble> {
        let records = self.engine.read(&[Want::Entry(*dir, name.clone())])?.records;
        let Some(ino) = records.iter().find_map(|record| match record {
            Record::Edge(_, _, edge) => edge.map(|edge| edge.ino),
            _ => None,
        }) else {
            return Ok(None);
        };
        let (_, subject) = self.node_in(ino, &records)?;
        Ok(Some(Found { place: ino, subject }))
    }

    fn target(&self, link: &Ino) -> Result<Vec<u8>, Trouble> {
        match self.engine.read(&[Want::Symlink(*link)])?.records.into_iter().next() {
            Some(Record::Symlink(_, Some(target))) => Ok(target.to_vec()),
            _ => Err(Trouble::Damaged { ino: link.0, what: "a symbolic link without a target" }),
        }
    }

    fn domains(&self, reach: u32) -> Result<Arc<DomainTable>, Trouble> {
        Ok(self.domains.up_to(reach, self.engine)?)
    }

    fn has_absolute_links(&self) -> bool {
        false
    }

    /// As most machines have it; which one mounts is not known here.
    fn protects_links(&self) -> bool {
        true
    }
}

/// Whether the kernel resolves something further when it comes to this.
pub(crate) fn is_link(subject: &Subject) -> bool {
    subject.kind == FileType::Symlink
}
