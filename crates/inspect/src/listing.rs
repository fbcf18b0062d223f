//! Reads whole directories in bulk.

use std::collections::HashMap;
use std::sync::Arc;
use std::vec;

use acl::posix::PosixAcl;
use acl::sid_rules::SidRules;
use meta::{AclKind, Dirent, Engine, EngineError, Inode, Record, RecordKey, Scan, ScanInclude};
use types::{AclId, FileType, Ino, Name};

use crate::access_attrs::Rules;

/// The number of entries read in one request.
const PAGE: usize = 1024;

/// The maximum number of parsed ACLs kept between pages. A full cache is cleared.
const MAX_ACLS: usize = 4096;

/// Reads a whole directory: each name with its attributes, its ACLs and, for a symbolic link, its target, in
/// the order of names (bytewise).
///
/// A request to the database reads 1,024 entries with their inodes and ACLs, and one more request reads the
/// targets of the links among them. So a directory of up to 1,024 entries costs one or two round trips. Each
/// page is a snapshot. A name that exists all the time is returned exactly once, whatever is created and
/// removed meanwhile.
///
/// Access is not checked, because a caller with access to the database can read everything in it.
///
/// ```
/// # use std::sync::Arc;
/// # use client::Meta;
/// # use meta::{AclKind, Engine, MemEngine, Volume};
/// # use ops::{AclType, Authority, Make, MakeKind, SetAcl};
/// # use types::{Ino, Mode, Name, Time};
/// # let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
/// # let volume = Volume::in_memory("home");
/// # volume.format(&*engine)?;
/// # let meta = Meta::open(engine.clone(), 100)?;
/// # let make = Make {
/// #     parent: Ino::ROOT, name: Name::new(b"report.txt")?, ino: Ino(7), kind: MakeKind::Regular,
/// #     mode: Mode::new(0o640), umask: 0, uid: 1000, gid: 50,
/// # };
/// # let kernel = Authority::Kernel { revisions: None };
/// # meta.run(&make, &kernel)?;
/// # let acl = acl::posix::PosixAcl::from_text("u::rw-,u:1001:r--,g::r--,m::r--,o::---")?;
/// # meta.run(&SetAcl { ino: Ino(7), which: AclType::Access, acl: Some(acl), kill_sgid: false }, &kernel)?;
/// // `engine` is any metadata engine, such as an `engine_sqlite::SqliteEngine`.
/// let volume = meta::Volume::load(&*engine)?;
/// for entry in inspect::read_dir_plus(&*engine, volume.acl, Ino::ROOT) {
///     let entry = entry?;
///     let Some(inode) = entry.inode else { continue };
///     println!("{} {} {}:{} {}", entry.name, inode.mode, inode.uid, inode.gid, inode.size);
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

/// One name in a directory, with its inode, ACLs and target.
#[derive(Clone, Debug, PartialEq)]
pub struct DirEntry {
    pub name: Name,
    pub dirent: Dirent,
    /// `None` if the name refers to a missing inode, which is damage.
    pub inode: Option<Inode>,
    /// The rules that decide access; `None` if the inode or its ACL is missing or damaged.
    pub access: Option<Rules>,
    /// The default ACL; for directories only. `None` if there is none, or if it is missing or damaged.
    pub default: Option<PosixAcl>,
    /// The target; for symbolic links only.
    pub target: Option<Arc<[u8]>>,
}

/// The entries of a directory, read on demand; see [`read_dir_plus`].
#[derive(Debug)]
pub struct ReadDirPlus<'e> {
    engine: &'e dyn Engine,
    acl: AclKind,
    dir: Ino,
    after: Option<Name>,
    page: vec::IntoIter<DirEntry>,
    more: bool,
    /// A cache of the parsed ACLs, by id.
    access: HashMap<AclId, Option<Rules>>,
    default: HashMap<AclId, Option<PosixAcl>>,
}

impl Iterator for ReadDirPlus<'_> {
    type Item = Result<DirEntry, EngineError>;

    /// Returns `None` after an error.
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
    /// Starts after this name instead of at the first name.
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
            include: ScanInclude::InodesWithAcls,
        })?;
        if self.access.len() + self.default.len() > MAX_ACLS {
            self.access.clear();
            self.default.clear();
        }
        let mut texts: HashMap<AclId, Arc<str>> = HashMap::new();
        let mut entries: Vec<DirEntry> = Vec::new();
        for record in page.snapshot.records {
            match record {
                Record::Dirent(_, name, Some(dirent)) => entries.push(DirEntry {
                    name,
                    dirent,
                    inode: None,
                    access: None,
                    default: None,
                    target: None,
                }),
                Record::Inode(ino, inode) => {
                    if let Some(last) = entries.last_mut().filter(|last| last.dirent.ino == ino) {
                        last.inode = inode;
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
            let Some(inode) = &entry.inode else { continue };
            entry.access = self.access_of(inode.access_acl, &texts);
            entry.default = self.default_of(inode.default_acl, &texts);
        }
        self.read_targets(&mut entries)?;
        Ok(entries)
    }

    fn access_of(&mut self, id: AclId, texts: &HashMap<AclId, Arc<str>>) -> Option<Rules> {
        if id.is_none() {
            return Some(Rules::plain(self.acl));
        }
        let acl = self.acl;
        // A listing shows ACLs as they are stored, and decides no access.
        let read = || texts.get(&id).and_then(|text| Rules::read(acl, id, text, &SidRules::default()));
        self.access.entry(id).or_insert_with(read).clone()
    }

    fn default_of(&mut self, id: AclId, texts: &HashMap<AclId, Arc<str>>) -> Option<PosixAcl> {
        if id.is_none() {
            return None;
        }
        let parse = |text: &Arc<str>| PosixAcl::from_storage(text).ok().filter(|acl| acl.id() == id);
        let read = || texts.get(&id).and_then(parse);
        self.default.entry(id).or_insert_with(read).clone()
    }

    /// Reads the targets of all links of a page in one request.
    fn read_targets(&self, entries: &mut [DirEntry]) -> Result<(), EngineError> {
        let mut links: Vec<&mut DirEntry> =
            entries.iter_mut().filter(|entry| entry.dirent.kind == FileType::Symlink).collect();
        if links.is_empty() {
            return Ok(());
        }
        let keys: Vec<RecordKey> = links.iter().map(|link| RecordKey::Symlink(link.dirent.ino)).collect();
        for (link, record) in links.iter_mut().zip(self.engine.read(&keys)?.records) {
            if let Record::Symlink(_, target) = record {
                link.target = target;
            }
        }
        Ok(())
    }
}
