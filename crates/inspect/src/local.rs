//! The names of this machine as its kernel knows them, whatever is mounted where.

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

use crate::Trouble;
use crate::subject::{Rules, Subject};
use crate::tree::{Found, Tree};

const POSIX_ACL: &str = "system.posix_acl_access";
const NFS4_ACL: &str = "system.nfs4_acl";

/// What an xattr may hold, `XATTR_SIZE_MAX`.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// All that this process can see, from `/` on. Each look is a few system calls, and needs the right to make them.
#[derive(Debug, Default)]
pub struct LocalTree {
    /// Windows domains, numbered as they are met.
    domains: RefCell<Arc<DomainTable>>,
}

impl LocalTree {
    /// A file by its path, which is not followed where it is a symbolic link.
    ///
    /// # Errors
    /// It is not there, or this process may not look at it.
    pub fn subject(&self, path: &Path) -> Result<Subject, Trouble> {
        let metadata = fs::symlink_metadata(path).map_err(|error| system(path, &error))?;
        self.subject_of(path, &metadata)
    }

    /// The Windows domains that ACLs met so far name.
    pub fn domains_met(&self) -> Arc<DomainTable> {
        Arc::clone(&self.domains.borrow())
    }

    fn subject_of(&self, path: &Path, metadata: &Metadata) -> Result<Subject, Trouble> {
        let kind = FileType::from_ifmt(metadata.mode()).ok_or(Trouble::Path {
            path: path.as_os_str().as_bytes().to_vec(),
            what: "it is of no known type",
        })?;
        // A symbolic link has no ACL, and is never asked for rights.
        let mode = Mode::new(metadata.mode());
        let is_link = kind == FileType::Symlink;
        let rules = if is_link { Rules::Posix(None) } else { self.rules_of(path, mode, kind)? };
        let (uid, gid) = (metadata.uid(), metadata.gid());
        Ok(Subject { ino: metadata.ino(), kind, mode, uid, gid, rules })
    }

    /// A file that has an NFSv4 ACL is judged by it; the POSIX ACL that it shows beside is not exact. Nobody who is asked
    /// about is of any Windows domain.
    fn rules_of(&self, path: &Path, mode: Mode, kind: FileType) -> Result<Rules, Trouble> {
        let trouble = |what| Trouble::Path { path: path.as_os_str().as_bytes().to_vec(), what };
        let damaged =
            || trouble("its ACL is damaged, or names somebody whom only the volume's database knows");
        if let Some(value) = xattr(path, NFS4_ACL)? {
            let growing = GrowingTable::new(self.domains_met());
            let acl = Nfs4Acl::from_xattr(&value, Scope::Entries, &growing);
            if growing.is_full() {
                return Err(trouble("it and the directories above it name too many Windows domains"));
            }
            let acl = acl.map_err(|_| damaged())?;
            self.domains.replace(growing.into_table());
            // Of a file without an ACL the mode is shown as one.
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

    fn root(&self) -> Result<Found<PathBuf>, Trouble> {
        let place = PathBuf::from("/");
        let subject = self.subject(&place)?;
        Ok(Found { place, subject })
    }

    fn entry(&self, dir: &PathBuf, name: &Name) -> Result<Option<Found<PathBuf>>, Trouble> {
        let place = dir.join(OsStr::from_bytes(name.as_bytes()));
        let metadata = match fs::symlink_metadata(&place) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(system(&place, &error)),
        };
        let subject = self.subject_of(&place, &metadata)?;
        Ok(Some(Found { place, subject }))
    }

    fn target(&self, link: &PathBuf) -> Result<Vec<u8>, Trouble> {
        let target = fs::read_link(link).map_err(|error| system(link, &error))?;
        Ok(target.into_os_string().into_vec())
    }

    fn domains(&self, _: u32) -> Result<Arc<DomainTable>, Trouble> {
        Ok(self.domains_met())
    }

    fn has_absolute_links(&self) -> bool {
        true
    }

    fn protects_links(&self) -> bool {
        fs::read_to_string("/proc/sys/fs/protected_symlinks").is_ok_and(|text| text.trim() == "1")
    }
}

/// The value, or `None` where there is none or the file system has none of these.
fn xattr(path: &Path, name: &str) -> Result<Option<Vec<u8>>, Trouble> {
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

fn system(path: &Path, error: &io::Error) -> Trouble {
    Trouble::System { path: path.as_os_str().as_bytes().to_vec(), errno: Errno::from(error) }
}
