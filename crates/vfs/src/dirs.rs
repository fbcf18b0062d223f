//! Open directories.
//!
//! A listing goes on by name, never by count of what is there now, so a name that is there all the while comes once,
//! whatever is made and removed around it. The positions that the caller holds are indices of the names met so far,
//! which an open directory keeps until it is rewound.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use acl::nfs4::Mask;
use meta::ops::Lookup;
use types::{Errno, FileType, Ino, Name};

use crate::attr::Attr;
use crate::caller::Caller;
use crate::vfs::{BY_KERNEL, Vfs};

/// An open directory's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirHandle(pub u64);

/// A place in a listing: 0 is its beginning, any other one came with the entry before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirPosition(pub u64);

/// One name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub ino: Ino,
    pub kind: FileType,
    /// The inode's attributes, if they were asked for; never those of `.` and `..`.
    pub attr: Option<Attr>,
    /// Where to go on after this entry.
    pub next: DirPosition,
}

#[derive(Debug)]
pub(crate) struct OpenDir {
    ino: Ino,
    parent: Ino,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    met: Vec<(Name, Ino, FileType)>,
    at_end: bool,
}

/// Entries read from the database in one round trip.
const PAGE: usize = 1024;

impl Vfs {
    /// # Errors
    /// ESTALE where the inode is gone, or the kernel decided by outdated rights; ENOTDIR; EACCES by an NFSv4 ACL.
    pub fn opendir(&self, caller: &Caller<'_>, ino: Ino) -> Result<DirHandle, Errno> {
        let node = self.node(ino)?;
        if !node.kind.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        self.admit_by_kernel(&node)?;
        self.admit(caller, ino, Mask::LIST_DIRECTORY)?;
        let handle = DirHandle(self.next_dir.fetch_add(1, Ordering::Relaxed));
        let dir = OpenDir { ino, parent: node.parent, names: Mutex::default() };
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(dir));
        Ok(handle)
    }

    /// Passes entries to `take` from `position` on, until it wants no more (`false`) or the directory ends. With
    /// `attrs` each comes with its attributes, as of now: a name that is gone by now is left out.
    ///
    /// # Errors
    /// EBADF unless open; those of the database.
    pub fn readdir(
        &self,
        handle: DirHandle,
        position: DirPosition,
        attrs: bool,
        take: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let dirs = self.dirs.read().unwrap_or_else(PoisonError::into_inner);
        let dir = Arc::clone(dirs.get(&handle).ok_or(Errno::EBADF)?);
        drop(dirs);
        let mut names = dir.names.lock().unwrap_or_else(PoisonError::into_inner);
        if position.0 == 0 {
            *names = Names::default();
        }
        let dots = [(&b"."[..], dir.ino), (b"..", dir.parent)];
        for at in position.0.. {
            let next = DirPosition(at + 1);
            if let Some(&(name, ino)) = dots.get(at as usize) {
                if !take(DirEntry { name, ino, kind: FileType::Directory, attr: None, next }) {
                    return Ok(());
                }
                continue;
            }
            let index = at as usize - dots.len();
            if index >= names.met.len() && !self.read_page(&dir, &mut names, attrs)? {
                return Ok(());
            }
            // A position beyond what was met is one that no entry came with.
            let Some((name, ino, kind)) = names.met.get(index) else { return Ok(()) };
            let entry = DirEntry { name: name.as_bytes(), ino: *ino, kind: *kind, attr: None, next };
            let entry = match attrs {
                false => entry,
                true => match self.meta.run(&Lookup { parent: dir.ino, name: name.clone() }, &BY_KERNEL)? {
                    Some(node) => {
                        DirEntry { ino: node.ino, kind: node.kind, attr: Some(self.attr_of(&node)), ..entry }
                    }
                    None => continue,
                },
            };
            if !take(entry) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// # Errors
    /// EBADF unless open.
    pub fn closedir(&self, handle: DirHandle) -> Result<(), Errno> {
        let mut dirs = self.dirs.write().unwrap_or_else(PoisonError::into_inner);
        dirs.remove(&handle).map(drop).ok_or(Errno::EBADF)
    }

    /// Reads on after the last name met; `false` at the end.
    fn read_page(&self, dir: &OpenDir, names: &mut Names, nodes: bool) -> Result<bool, Errno> {
        if names.at_end {
            return Ok(false);
        }
        let after = names.met.last().map(|(name, ..)| name.clone());
        let page = self.meta.list(dir.ino, after, PAGE, nodes)?;
        names.at_end = !page.more;
        let had = names.met.len();
        names.met.extend(page.entries.into_iter().map(|(name, edge, _)| (name, edge.ino, edge.kind)));
        Ok(names.met.len() > had)
    }
}
