//! Reads directories from a volume's records or from the kernel.
//!
//! | directory | access check | names and attributes |
//! |---|---|---|
//! | of a volume, by URL | none: access to the database is access to everything | the records, in bulk |
//! | on a mount of a volume whose database can be opened | the kernel opens it, and looks up `.` in it | the records, in bulk |
//! | any other | the kernel opens it | the kernel, one name at a time |
//!
//! On a mount, the kernel opens each directory, so that the kernel decides whether the user may read it. The
//! records are read afterwards, so that listing a file costs no system call.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use acl::identity::DomainTable;
use acl::posix::PosixAcl;
use command::error::{CliError, ErrorAt};
use command::registry;
use inspect::{
    AccessAttrs, DirEntry, Domains, LocalTree, Operation, PathChecks, QueryError, Rules, VolumeTree,
    read_dir_plus,
};
use meta::{AclKind, Engine, EngineError, Inode};
use rustix::fs::{AtFlags, CWD, Dir, Mode as RawMode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::fcntl_dupfd_cloexec;
use types::{Errno, FileType, Ino, Mode, Name, Time};

use crate::target::{Target, show_name, volume_behind};

const DEFAULT_ACL: &str = "system.posix_acl_default";

/// A name and the attributes of its file.
#[derive(Debug)]
pub(super) struct Row {
    /// The name in the directory; for an operand its path.
    pub(super) name: Vec<u8>,
    pub(super) is_operand: bool,
    pub(super) ino: u64,
    pub(super) kind: FileType,
    /// `None` if the directory can be read but not searched, or the file is damaged.
    pub(super) attr: Option<Attr>,
}

#[derive(Debug)]
pub(super) struct Attr {
    pub(super) mode: Mode,
    pub(super) links: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The size in bytes.
    pub(super) size: u64,
    pub(super) rdev: u64,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) access: AclText,
    pub(super) default: AclText,
    pub(super) target: Option<Vec<u8>>,
}

/// An ACL in its short form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AclText {
    None,
    Entries(String),
    Damaged,
}

/// A directory to list.
#[derive(Debug)]
pub(super) enum Directory {
    Records(Ino),
    /// On a mount: the records are read, and the kernel has opened the directory.
    Beside(Ino, OwnedFd),
    Kernel(OwnedFd),
}

/// A file or directory from the command line.
pub(super) enum Operand {
    Directory { lister: Lister, directory: Directory, path: Vec<u8> },
    File { row: Row, path: Vec<u8> },
}

/// How the directories of an operand are read.
#[derive(Debug)]
pub(super) struct Lister {
    volume: Option<Records>,
}

/// The records of a volume.
#[derive(Debug)]
struct Records {
    engine: Arc<dyn Engine>,
    acl: AclKind,
    domains: Domains,
    /// The device number of the mount, if the volume is listed through a mount.
    device: Option<u64>,
}

/// Called for each name; the flag tells whether the name is a subdirectory to descend into.
type Each<'a> = &'a mut dyn FnMut(Row, bool) -> Result<(), CliError>;

impl Operand {
    /// Opens an operand. With `is_link_shown`, a symbolic link itself is shown instead of its target.
    ///
    /// # Errors
    /// The file does not exist, or the user has no access to it.
    pub(super) fn open(target: Target, is_link_shown: bool) -> Result<Operand, CliError> {
        match target {
            Target::Local(path) => Self::open_local(&path, is_link_shown),
            Target::Volume(url, path) => {
                let (database, volume) = url.open_volume()?;
                let engine = database.engine();
                let tree = VolumeTree::new(&*engine, volume.acl);
                let path_checks = PathChecks::find(&tree, &path, Operation::Chmod).at(&url)?;
                let shown = format!("{url}:{}", OsStr::from_bytes(&path).display());
                let (Ok(()), Some(check)) = (path_checks.end, path_checks.target()) else {
                    let errno = path_checks.end.err().unwrap_or(Errno::ENOENT);
                    return Err(CliError::new(format!("cannot access '{shown}': {errno}")));
                };
                let ino = Ino(check.access_attrs.ino);
                let (inode, access_attrs) = tree.inode(ino).at(&url)?;
                let records = Records::new(Arc::clone(&engine), volume.acl, None);
                if inode.kind.is_dir() {
                    let volume = Some(records);
                    return Ok(Operand::Directory {
                        lister: Lister { volume },
                        directory: Directory::Records(ino),
                        path,
                    });
                }
                let access = records.acl_text(Some(&access_attrs.rules)).at(&url)?;
                let attr = Attr::new(&inode, access, AclText::None, None);
                let row = Row {
                    name: path.clone(),
                    is_operand: true,
                    ino: ino.0,
                    kind: inode.kind,
                    attr: Some(attr),
                };
                Ok(Operand::File { row, path })
            }
        }
    }

    fn open_local(path: &Path, is_link_shown: bool) -> Result<Operand, CliError> {
        let bytes = path.as_os_str().as_bytes().to_vec();
        let fail =
            |what: &str, errno: Errno| CliError::new(format!("{what} '{}': {errno}", show_name(&bytes)));
        let io = |error: io::Error| fail("cannot access", Errno::from(&error));
        let mut metadata = fs::symlink_metadata(path).map_err(io)?;
        if metadata.is_symlink() && !is_link_shown {
            // If a link dangles, the link itself is shown.
            metadata = fs::metadata(path).unwrap_or(metadata);
        }
        if metadata.is_dir() {
            let raw = |error: rustix::io::Errno| fail("cannot open directory", from_raw(error));
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = openat(CWD, path, flags, RawMode::empty()).map_err(raw)?;
            let stat = fstat(&fd).map_err(raw)?;
            let lister = Lister { volume: Records::behind(path, stat.st_dev) };
            let directory = lister.directory(fd, &stat);
            return Ok(Operand::Directory { lister, directory, path: bytes });
        }
        let stat = statat(
            CWD,
            path,
            if metadata.is_symlink() { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() },
        );
        let stat = stat.map_err(|error| fail("cannot access", from_raw(error)))?;
        let row = kernel_row(bytes.clone(), &stat, path, || {
            fs::read_link(path).ok().map(|t| t.into_os_string().into_vec())
        });
        Ok(Operand::File { row: Row { is_operand: true, ..row }, path: bytes })
    }
}

impl Records {
    fn new(engine: Arc<dyn Engine>, acl: AclKind, device: Option<u64>) -> Self {
        Records { engine, acl, domains: Domains::default(), device }
    }

    /// The text of an access ACL; `None` stands for a damaged one.
    fn acl_text(&self, rules: Option<&Rules>) -> Result<AclText, EngineError> {
        let Some(rules) = rules else { return Ok(AclText::Damaged) };
        let domains = self.domains.up_to(rules.highest_domain(), &*self.engine)?;
        Ok(AclText::of(rules, &domains))
    }

    /// The records of the volume that is mounted at this device, if this user can open its database.
    fn behind(path: &Path, device: u64) -> Option<Self> {
        registry::by_device(device)?;
        let (database, volume) = volume_behind(path, device)
            .inspect_err(
                |error| tracing::debug!(%error, "reading through the kernel instead of the database"),
            )
            .ok()?;
        Some(Records::new(database.engine(), volume.acl, Some(device)))
    }
}

impl Lister {
    /// A directory that the kernel has opened. It is read from the records if it is on the mount of their
    /// volume, otherwise through the kernel.
    fn directory(&self, fd: OwnedFd, stat: &Stat) -> Directory {
        match &self.volume {
            Some(Records { device: Some(device), .. }) if *device == stat.st_dev => {
                Directory::Beside(Ino(stat.st_ino), fd)
            }
            _ => Directory::Kernel(fd),
        }
    }

    /// Opens a subdirectory. Mount points are followed, symbolic links are not.
    pub(super) fn open_below(
        &self,
        dir: &Directory,
        name: &Name,
    ) -> Result<Result<Directory, Errno>, CliError> {
        let fd = match dir {
            Directory::Records(dir) => {
                let Some(Records { engine, acl, .. }) = &self.volume else { return Ok(Err(Errno::ENOENT)) };
                let found = inspect::Tree::entry(&VolumeTree::new(&**engine, *acl), dir, name);
                return match found {
                    Ok(Some(found)) if found.access_attrs.kind.is_dir() => {
                        Ok(Ok(Directory::Records(found.id)))
                    }
                    Ok(Some(_)) => Ok(Err(Errno::ENOTDIR)),
                    Ok(None) => Ok(Err(Errno::ENOENT)),
                    Err(QueryError::Engine(error)) => Err(error.into()),
                    Err(_) => Ok(Err(Errno::EIO)),
                };
            }
            Directory::Beside(_, fd) | Directory::Kernel(fd) => fd,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(fd, OsStr::from_bytes(name.as_bytes()), flags, RawMode::empty());
        let placed = opened.and_then(|fd| fstat(&fd).map(|stat| self.directory(fd, &stat)));
        Ok(placed.map_err(from_raw))
    }

    /// Passes all names after `after` to `each`, sorted by their bytes. The inner error is the kernel's.
    pub(super) fn list(
        &self,
        directory: &Directory,
        after: Option<Name>,
        each: Each<'_>,
    ) -> Result<Result<(), Errno>, CliError> {
        let (dir, may_see) = match directory {
            Directory::Records(dir) => (*dir, true),
            // Looking up `.` needs search permission.
            Directory::Beside(dir, fd) => (*dir, statat(fd, ".", AtFlags::empty()).is_ok()),
            Directory::Kernel(fd) => return list_by_kernel(fd, after, each),
        };
        let Some(records) = &self.volume else { return Ok(Err(Errno::EIO)) };
        for entry in read_dir_plus(&*records.engine, records.acl, dir).from_after(after) {
            let entry = entry?;
            let access = records.acl_text(entry.access.as_ref())?;
            // A subdirectory whose record names another parent is damaged, and could lead into a cycle.
            let is_below = entry.inode.is_some_and(|inode| inode.kind.is_dir() && inode.parent == dir);
            each(Row::new(entry, access, may_see), is_below)?;
        }
        Ok(Ok(()))
    }

    /// The names of at most `limit` subdirectories after `after`, and the last of them if more may follow.
    pub(super) fn directories(
        &self,
        directory: &Directory,
        after: Name,
        limit: usize,
        hides: bool,
    ) -> Result<(VecDeque<Name>, Option<Name>), CliError> {
        let mut names = VecDeque::new();
        let mut rest = None;
        let listed = self.list(directory, Some(after), &mut |row, is_below| {
            if is_below && rest.is_none() && !(hides && row.name.starts_with(b".")) {
                if names.len() < limit {
                    names.push_back(Name::new(&row.name)?);
                } else {
                    rest = names.back().cloned();
                }
            }
            Ok(())
        })?;
        // A directory that can no longer be read was reported before, or was removed.
        Ok(if listed.is_ok() { (names, rest) } else { Default::default() })
    }
}

impl Row {
    fn new(entry: DirEntry, access: AclText, may_see: bool) -> Self {
        let DirEntry { name, dirent, inode, default, target, .. } = entry;
        let attr = inode.filter(|_| may_see).map(|inode| {
            let default = match default {
                Some(acl) => AclText::Entries(acl.to_string()),
                None if inode.default_acl.is_none() => AclText::None,
                None => AclText::Damaged,
            };
            Attr::new(&inode, access, default, target.map(|target| target.to_vec()))
        });
        Row { name: name.as_bytes().to_vec(), is_operand: false, ino: dirent.ino.0, kind: dirent.kind, attr }
    }
}

impl Attr {
    fn new(inode: &Inode, access: AclText, default: AclText, target: Option<Vec<u8>>) -> Self {
        Attr {
            mode: inode.mode,
            links: inode.nlink.into(),
            uid: inode.uid,
            gid: inode.gid,
            size: inode.shown_size(),
            rdev: inode.rdev.into(),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            access,
            default,
            target,
        }
    }
}

impl AclText {
    fn of(rules: &Rules, domains: &DomainTable) -> Self {
        rules.acl_text_by_sid(domains).map_or(AclText::None, AclText::Entries)
    }
}

/// Lists a directory through the kernel. All its names are held in memory, to be sorted.
fn list_by_kernel(fd: &OwnedFd, after: Option<Name>, each: Each<'_>) -> Result<Result<(), Errno>, CliError> {
    let mut names: Vec<(CString, u64)> = Vec::new();
    let read = || -> Result<Vec<(CString, u64)>, rustix::io::Errno> {
        // Use a duplicate, because opening the directory again needs search permission. Duplicates share the
        // position, so rewind.
        let mut dir = Dir::new(fcntl_dupfd_cloexec(fd, 0)?)?;
        dir.rewind();
        for entry in dir {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push((entry.file_name().to_owned(), entry.ino()));
            }
        }
        Ok(names)
    };
    let mut names = match read() {
        Ok(names) => names,
        Err(error) => return Ok(Err(from_raw(error))),
    };
    names.sort_unstable();
    for (name, ino) in names {
        let bytes = name.to_bytes();
        if after.as_ref().is_some_and(|after| bytes <= after.as_bytes()) {
            continue;
        }
        let row = match statat(fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let path = Path::new("/proc/self/fd")
                    .join(fd.as_raw_fd().to_string())
                    .join(OsStr::from_bytes(bytes));
                let target = || readlinkat(fd, &name, Vec::new()).ok().map(CString::into_bytes);
                kernel_row(bytes.to_vec(), &stat, &path, target)
            }
            // The file was removed meanwhile.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(_) => {
                let kind = FileType::Regular;
                Row { name: bytes.to_vec(), is_operand: false, ino, kind, attr: None }
            }
        };
        let is_below = row.kind.is_dir();
        each(row, is_below)?;
    }
    Ok(Ok(()))
}

/// The row of a file, read through the kernel.
fn kernel_row(name: Vec<u8>, stat: &Stat, path: &Path, target: impl FnOnce() -> Option<Vec<u8>>) -> Row {
    let kind = FileType::from_ifmt(stat.st_mode).unwrap_or(FileType::Regular);
    let is_link = kind == FileType::Symlink;
    // The ACL is formatted at once, so the numbers that this tree gives to domains need not be stable.
    let tree = LocalTree::default();
    let access = match tree.access_attrs(path) {
        _ if is_link => AclText::None,
        Ok(AccessAttrs { rules, .. }) => AclText::of(&rules, &tree.domains_met()),
        Err(_) => AclText::Damaged,
    };
    let time = |seconds, nanos: u64| Time::new(seconds, nanos as u32);
    let attr = Attr {
        mode: Mode::new(stat.st_mode),
        links: stat.st_nlink,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size.unsigned_abs(),
        rdev: stat.st_rdev,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        access,
        default: if kind.is_dir() { default_acl(path) } else { AclText::None },
        target: if is_link { target() } else { None },
    };
    Row { name, is_operand: false, ino: stat.st_ino, kind, attr: Some(attr) }
}

fn default_acl(path: &Path) -> AclText {
    let mut value = vec![0; 64 << 10];
    match rustix::fs::lgetxattr(path, DEFAULT_ACL, value.as_mut_slice()) {
        Ok(length) => match PosixAcl::from_xattr(value.get(..length).unwrap_or_default()) {
            Ok(acl) => acl.map_or(AclText::None, |acl| AclText::Entries(acl.to_string())),
            Err(_) => AclText::Damaged,
        },
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => AclText::None,
        Err(_) => AclText::Damaged,
    }
}

fn from_raw(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
