//! The files of this machine as its kernel shows them, on all mounted file systems.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use acl::identity::{DomainTable, Id};
use acl::nfs4::{self, GrowingTable, Nfs4Acl, Scope};
use acl::posix::PosixAcl;
use acl::sid_rules::SidRules;
use types::{Errno, FileType, Mode, Name};

use crate::QueryError;
use crate::access_attrs::{AccessAttrs, Nfs4Rules, Rules};
use crate::tree::{Tree, TreeFile};

const POSIX_ACL: &str = "system.posix_acl_access";
const NFS4_ACL: &str = "system.nfs4_acl";

/// The maximum size of an xattr value, `XATTR_SIZE_MAX`.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// All files that this process can see, from `/` on. Each lookup is a few system calls, with this process's
/// permissions.
#[derive(Debug, Default)]
pub struct LocalTree<'m> {
    /// The Windows domains of all ACLs read so far.
    domains: RefCell<Arc<DomainTable>>,
    mounted: Option<&'m dyn MountedRules>,
    /// The rules of each mount, by device number.
    rules: RefCell<HashMap<u64, Volume>>,
}

/// The rules of a mounted volume, with the table of domains to which their indexes refer.
type Volume = Arc<(DomainTable, SidRules)>;

/// Finds the rules that map SIDs on the volumes that are mounted on this machine.
pub trait MountedRules: fmt::Debug {
    /// The rules of the volume that is mounted with this device number, and the volume's table of domains.
    /// The rules are empty if this is not a limenfs volume.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    fn of(&self, device: u64) -> Result<(DomainTable, SidRules), String>;

    /// The number of a user or group of this machine; `None` if there is none with this name.
    fn number_of(&self, name: &str, is_group: bool) -> Option<u32>;
}

/// The principals of an ACL as a mount shows them. A mount with `-o acl_domain` shows them as `name@domain`.
struct Shown<'a> {
    growing: &'a GrowingTable,
    mounted: Option<&'a dyn MountedRules>,
}

impl nfs4::Principals for Shown<'_> {
    fn id_of(&self, name: &str, is_group: bool) -> Option<Id> {
        let known = self.growing.id_of(name, is_group);
        known.or_else(|| {
            let (name, _domain) = name.rsplit_once('@')?;
            Id::system(self.mounted?.number_of(name, is_group)?)
        })
    }

    fn name_of(&self, id: Id, is_group: bool) -> Option<String> {
        self.growing.name_of(id, is_group)
    }
}

impl<'m> LocalTree<'m> {
    /// A tree in which SIDs are mapped by the rules of their volumes. [`Self::default`] maps none.
    pub fn new(mounted: &'m dyn MountedRules) -> Self {
        LocalTree { mounted: Some(mounted), ..LocalTree::default() }
    }

    /// The attributes of the file at a path. A symbolic link at its end is not followed.
    ///
    /// # Errors
    /// The file does not exist, or this process may not read its attributes.
    pub fn access_attrs(&self, path: &Path) -> Result<AccessAttrs, QueryError> {
        let metadata = fs::symlink_metadata(path).map_err(|error| system(path, &error))?;
        self.attrs_of(path, &metadata)
    }

    /// The Windows domains of all ACLs read so far.
    pub fn domains_met(&self) -> Arc<DomainTable> {
        Arc::clone(&self.domains.borrow())
    }

    fn attrs_of(&self, path: &Path, metadata: &Metadata) -> Result<AccessAttrs, QueryError> {
        let kind = FileType::from_ifmt(metadata.mode()).ok_or(QueryError::Path {
            path: path.as_os_str().as_bytes().to_vec(),
            what: "its file type is unknown",
        })?;
        // A symbolic link has no ACL, and its mode is not checked.
        let mode = Mode::new(metadata.mode());
        let is_link = kind == FileType::Symlink;
        let rules =
            if is_link { Rules::Posix(None) } else { self.rules_of(path, mode, kind, metadata.dev())? };
        let (uid, gid) = (metadata.uid(), metadata.gid());
        Ok(AccessAttrs { ino: metadata.ino(), kind, mode, uid, gid, rules })
    }

    /// Reads the rules of a file. If the file has an NFSv4 ACL, that ACL decides; the POSIX ACL that the
    /// mount also shows is not exact.
    fn rules_of(&self, path: &Path, mode: Mode, kind: FileType, device: u64) -> Result<Rules, QueryError> {
        let query_error = |what| QueryError::Path { path: path.as_os_str().as_bytes().to_vec(), what };
        let damaged =
            || query_error("its ACL is damaged, or names a user or group that this machine does not know");
        if let Some(value) = xattr(path, NFS4_ACL)? {
            let growing = GrowingTable::new(self.domains_met());
            let acl = Nfs4Acl::from_xattr(
                &value,
                Scope::Entries,
                &Shown { growing: &growing, mounted: self.mounted },
            );
            if growing.is_full() {
                return Err(query_error("the ACLs on its path name too many Windows domains"));
            }
            let acl = acl.map_err(|_| damaged())?;
            self.domains.replace(growing.into_table());
            // For a file without an ACL, the xattr shows the mode as an ACL.
            let acl = Some(acl).filter(|acl| *acl != nfs4::from_mode(mode, kind.is_dir()));
            return Ok(Rules::Nfs4(acl.map(|acl| self.with_sid_rules(path, acl, device)).transpose()?));
        }
        match xattr(path, POSIX_ACL)? {
            Some(value) => Ok(Rules::Posix(PosixAcl::from_xattr(&value).map_err(|_| damaged())?)),
            None => Ok(Rules::Posix(None)),
        }
    }

    fn with_sid_rules(&self, path: &Path, acl: Nfs4Acl, device: u64) -> Result<Nfs4Rules, QueryError> {
        let Some(mounted) = self.mounted.filter(|_| acl.highest_domain() > 0) else {
            return Ok(Nfs4Rules::new(acl, &SidRules::default()));
        };
        let known = self.rules.borrow().get(&device).cloned();
        let volume = match known {
            Some(known) => known,
            None => {
                let path = || path.as_os_str().as_bytes().to_vec();
                let found = mounted.of(device).map_err(|why| QueryError::SidRules { path: path(), why })?;
                let found = Arc::new(found);
                self.rules.borrow_mut().insert(device, Arc::clone(&found));
                found
            }
        };
        // This tree numbers domains in the order in which it meets them, so the indexes in the rules are
        // converted.
        let (table, rules) = &*volume;
        let domains = self.domains_met();
        Ok(Nfs4Rules::new(acl, &rules.renumbered(|index| domains.find(table.get(index)?))))
    }
}

impl Tree for LocalTree<'_> {
    type Id = PathBuf;

    fn root(&self) -> Result<TreeFile<PathBuf>, QueryError> {
        let path = PathBuf::from("/");
        let access_attrs = self.access_attrs(&path)?;
        Ok(TreeFile { id: path, access_attrs })
    }

    fn entry(&self, dir: &PathBuf, name: &Name) -> Result<Option<TreeFile<PathBuf>>, QueryError> {
        let path = dir.join(OsStr::from_bytes(name.as_bytes()));
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(system(&path, &error)),
        };
        let access_attrs = self.attrs_of(&path, &metadata)?;
        Ok(Some(TreeFile { id: path, access_attrs }))
    }

    fn target(&self, link: &PathBuf) -> Result<Vec<u8>, QueryError> {
        let target = fs::read_link(link).map_err(|error| system(link, &error))?;
        Ok(target.into_os_string().into_vec())
    }

    fn domains(&self, _: u32) -> Result<Arc<DomainTable>, QueryError> {
        Ok(self.domains_met())
    }

    fn has_absolute_links(&self) -> bool {
        true
    }

    fn protects_links(&self) -> bool {
        fs::read_to_string("/proc/sys/fs/protected_symlinks").is_ok_and(|text| text.trim() == "1")
    }
}

/// The value of the xattr; `None` if the file lacks it or the file system does not support it.
fn xattr(path: &Path, name: &str) -> Result<Option<Vec<u8>>, QueryError> {
    let mut value = vec![0; XATTR_BYTES_MAX];
    match rustix::fs::lgetxattr(path, name, value.as_mut_slice()) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(system(path, &error.into())),
    }
}

fn system(path: &Path, error: &io::Error) -> QueryError {
    QueryError::System { path: path.as_os_str().as_bytes().to_vec(), errno: Errno::from(error) }
}
