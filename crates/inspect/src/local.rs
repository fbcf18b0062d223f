//! The names of this machine as its kernel shows them, on all mounted file systems.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use acl::identity::DomainTable;
use acl::nfs4::{self, GrowingTable, Nfs4Acl, Scope};
use acl::posix::PosixAcl;
use types::{Errno, FileType, Mode, Name};

use crate::QueryError;
use crate::access_attrs::{AccessAttrs, Rules};
use crate::tree::{Found, Tree};

const POSIX_ACL: &str = "system.posix_acl_access";
const NFS4_ACL: &str = "system.nfs4_acl";

/// The maximum size of an xattr value, `XATTR_SIZE_MAX`.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// All files that this process can see, from `/` on. Each lookup is a few system calls, with this process's
/// permissions.
#[derive(Debug, Default)]
pub struct LocalTree {
    /// The Windows domains of all ACLs read so far.
    domains: RefCell<Arc<DomainTable>>,
}

impl LocalTree {
    /// The attributes of the file at a path. A symbolic link at its end is not followed.
    ///
    /// # Errors
    /// The file does not exist, or this process may not read its attributes.
    pub fn access_attrs(&self, path: &Path) -> Result<AccessAttrs, QueryError> {
        let metadata = fs::symlink_metadata(path).map_err(|error| system(path, &error))?;
        self.subject_of(path, &metadata)
    }

    /// The Windows domains of all ACLs read so far.
    pub fn domains_met(&self) -> Arc<DomainTable> {
        Arc::clone(&self.domains.borrow())
    }

    fn subject_of(&self, path: &Path, metadata: &Metadata) -> Result<AccessAttrs, QueryError> {
        let kind = FileType::from_ifmt(metadata.mode()).ok_or(QueryError::Path {
            path: path.as_os_str().as_bytes().to_vec(),
            what: "its file type is unknown",
        })?;
        // A symbolic link has no ACL, and its mode is not checked.
        let mode = Mode::new(metadata.mode());
        let is_link = kind == FileType::Symlink;
        let rules = if is_link { Rules::Posix(None) } else { self.rules_of(path, mode, kind)? };
        let (uid, gid) = (metadata.uid(), metadata.gid());
        Ok(AccessAttrs { ino: metadata.ino(), kind, mode, uid, gid, rules })
    }

    /// Reads the rules of a file. If the file has an NFSv4 ACL, that ACL decides; the POSIX ACL that the
    /// mount also shows is not exact.
    fn rules_of(&self, path: &Path, mode: Mode, kind: FileType) -> Result<Rules, QueryError> {
        let query_error = |what| QueryError::Path { path: path.as_os_str().as_bytes().to_vec(), what };
        let damaged =
            || query_error("its ACL is damaged, or names a principal that only the volume's database knows");
        if let Some(value) = xattr(path, NFS4_ACL)? {
            let growing = GrowingTable::new(self.domains_met());
            let acl = Nfs4Acl::from_xattr(&value, Scope::Entries, &growing);
            if growing.is_full() {
                return Err(query_error("the ACLs on its path name too many Windows domains"));
            }
            let acl = acl.map_err(|_| damaged())?;
            self.domains.replace(growing.into_table());
            // For a file without an ACL, the xattr shows the mode as an ACL.
            return Ok(Rules::Nfs4(Some(acl).filter(|acl| *acl != nfs4::from_mode(mode, kind.is_dir()))));
        }
        match xattr(path, POSIX_ACL)? {
            Some(value) => Ok(Rules::Posix(PosixAcl::from_xattr(&value).map_err(|_| damaged())?)),
            None => Ok(Rules::Posix(None)),
        }
    }
}

impl Tree for LocalTree {
    type Place = PathBuf;

    fn root(&self) -> Result<Found<PathBuf>, QueryError> {
        let place = PathBuf::from("/");
        let access_attrs = self.access_attrs(&place)?;
        Ok(Found { place, access_attrs })
    }

    fn entry(&self, dir: &PathBuf, name: &Name) -> Result<Option<Found<PathBuf>>, QueryError> {
        let place = dir.join(OsStr::from_bytes(name.as_bytes()));
        let metadata = match fs::symlink_metadata(&place) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(system(&place, &error)),
        };
        let access_attrs = self.subject_of(&place, &metadata)?;
        Ok(Some(Found { place, access_attrs }))
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
