//! Directories in bulk.

use std::collections::HashMap;
use std::sync::Arc;
use std::vec;

use acl::posix::PosixAcl;
use meta::{AclKind, Beside, Edge, Engine, EngineError, Node, Record, Scan, Want};
use types::{AclId, FileType, Ino, Name};

use crate::subject::Rules;

/// Entries read in one request.
const PAGE: usize = 1024;

/// ACLs remembered from page to page; those of more are parsed again.
const MAX_ACLS: usize = 4096;

/// Reads a directory as a whole: each name with its attributes, its ACLs and, of a symbolic link, where it leads, in the
/// order of names (bytewise).
///
/// A request to the database brings 1,024 entries with all that belongs to them, and one more the targets of the links
/// among them; so a directory of up to 1,024 entries costs one round trip, or two. Each page is of one moment; a
/// name that is there all the while comes exactly once, whatever is made and removed meanwhile.
///
/// Nobody's rights are checked: whoever has the database has all that is in it.
///
/// ```
/// # use std::sync::Arc;
/// # use meta::ops::{AclType, Make, MakeKind, SetAcl};
/// # use meta::{AclKind, Engine, MemEngine, Meta, Volume, Vouch};
/// # use types::{Ino, Mode, Name, Time};
/// # let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
/// # let volume = Volume {
/// #     name: "home".into(), uuid: String::new(), storage: "memory".into(), bucket: String::new(),
/// #     compression: "none".into(), encryption: String::new(), acl: AclKind::Posix, policy: Default::default(),
/// #     inline_bytes: 0, capacity_bytes: 0, max_inodes: 0, abe: false,
/// #     store_marker: false, created: Time::now(),
/// # };
/// # volume.format(&*engine)?;
/// # let meta = Meta::open(engine.clone(), 100)?;
/// # let make = Make {
/// #     parent: Ino::ROOT, name: Name::new(b"report.txt")?, ino: Ino(7), kind: MakeKind::Regular,
/// #     mode: Mode::new(0o640), umask: 0, uid: 1000, gid: 50,
/// # };
/// # let kernel = Vouch::Kernel { told: None };
/// # meta.run(&make, &kernel)?;
/// # let acl = acl::posix::PosixAcl::from_text("u::rw-,u:1001:r--,g::r--,m::r--,o::---")?;
/// # meta.run(&SetAcl { ino: Ino(7), which: AclType::Access, acl: Some(acl), kill_sgid: false }, &kernel)?;
/// // `engine` is any metadata engine, such as an `engine_sqlite::SqliteEngine`.
/// let volume = meta::Volume::load(&*engine)?;
/// for entry in inspect::read_dir_plus(&*engine, volume.acl, Ino::ROOT) {
///     let entry = entry?;
///     let Some(node) = entry.node else { continue };
///     println!("{} {} {}:{} {}", entry.name, node.mode, node.uid, node.gid, node.size);
///     assert_eq!(entry.access.and_then(|rules| rules.acl_text()).as_deref(),
///         Some("u::rw-,u:1001:r--,g::r--,m::r--,o::---"));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_dir_plus(engine: &dyn Engine, acl: AclKind, dir: Ino) -> ReadDirPlus<'_> {
    ReadDirPlus {
        engine,
        acl,
        dir,
        after: None,
        page: Vec::new().into_iter(),
        more: true,
        access: HashMap::new(),
        default: HashMap::new(),
    }
}

/// One name in a directory, and all that hangs on it.
#[derive(Clone, Debug, PartialEq)]
pub struct DirEntry {
    pub name: Name,
    pub edge: Edge,
    /// None where the name leads nowhere, which is damage.
    pub node: Option<Node>,
    /// What access is decided by; none where the ACL, or the inode, is missing or damaged, and all access refused.
    pub access: Option<Rules>,
    /// What is inherited by what is made in it; of directories only.
    pub default: Option<PosixAcl>,
    /// Where it leads; of symbolic links only.
    pub target: Option<Arc<[u8]>>,
}

/// The entries of a directory, read as they are asked for; see [`read_dir_plus`].
#[derive(Debug)]
pub struct ReadDirPlus<'e> {
    engine: &'e dyn Engine,
    acl: AclKind,
    dir: Ino,
    after: Option<Name>,
    page: vec::IntoIter<DirEntry>,
    more: bool,
    /// By id, so that entries which share an ACL share its value.
    access: HashMap<AclId, Option<Rules>>,
    default: HashMap<AclId, Option<PosixAcl>>,
}

impl Iterator for ReadDirPlus<'_> {
    type Item = Result<DirEntry, EngineError>;

    /// After an error it ends.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            if !self.more {
                return None;
            }
            match self.read_page() {
                Ok(page) => self.page = page.into_iter(),
                Err(error) => {
                    self.more = false;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl ReadDirPlus<'_> {
    /// Goes on after that name instead of beginning with the first one.
    #[must_use]
    pub fn from_after(self, name: Option<Name>) -> Self {
        ReadDirPlus { after: name, ..self }
    }

    fn read_page(&mut self) -> Result<Vec<DirEntry>, EngineError> {
        let after = self.after.take();
        let page = self.engine.scan(&Scan::Dir {
            parent: self.dir,
            after,
            limit: PAGE,
            beside: Beside::NodesWithAcls,
        })?;
        if self.access.len() + self.default.len() > MAX_ACLS {
            self.access.clear();
            self.default.clear();
        }
        let mut texts: HashMap<AclId, Arc<str>> = HashMap::new();
        let mut entries: Vec<DirEntry> = Vec::new();
        for record in page.facts.records {
            match record {
                Record::Edge(_, name, Some(edge)) => entries.push(DirEntry {
                    name,
                    edge,
                    node: None,
                    access: None,
                    default: None,
                    target: None,
                }),
                Record::Node(ino, node) => {
                    if let Some(last) = entries.last_mut().filter(|last| last.edge.ino == ino) {
                        last.node = node;
                    }
                }
                Record::Acl(id, Some(text)) => {
                    texts.insert(id, text);
                }
                _ => {}
            }
        }
        self.more = page.more && !entries.is_empty();
        self.after = entries.last().map(|last| last.name.clone());
        for entry in &mut entries {
            let Some(node) = &entry.node else { continue };
            entry.access = self.access_of(node.access_acl, &texts);
            entry.default = self.default_of(node.default_acl, &texts);
        }
        self.read_targets(&mut entries)?;
        Ok(entries)
    }

    fn access_of(&mut self, id: AclId, texts: &HashMap<AclId, Arc<str>>) -> Option<Rules> {
        if id.is_none() {
            return Some(Rules::plain(self.acl));
        }
        let acl = self.acl;
        let read = || texts.get(&id).and_then(|text| Rules::read(acl, id, text));
        self.access.entry(id).or_insert_with(read).clone()
    }

    fn default_of(&mut self, id: AclId, texts: &HashMap<AclId, Arc<str>>) -> Option<PosixAcl> {
        if id.is_none() {
            return None;
        }
        let read = || texts.get(&id).and_then(|text| PosixAcl::from_storage(text).ok());
        self.default.entry(id).or_insert_with(read).clone()
    }

    /// The targets of all links of a page, in one request.
    fn read_targets(&self, entries: &mut [DirEntry]) -> Result<(), EngineError> {
        let mut links: Vec<&mut DirEntry> =
            entries.iter_mut().filter(|entry| entry.edge.kind == FileType::Symlink).collect();
        if links.is_empty() {
            return Ok(());
        }
        let wants: Vec<Want> = links.iter().map(|link| Want::Symlink(link.edge.ino)).collect();
        for (link, record) in links.iter_mut().zip(self.engine.read(&wants)?.records) {
            if let Record::Symlink(_, target) = record {
                link.target = target;
            }
        }
        Ok(())
    }
}
