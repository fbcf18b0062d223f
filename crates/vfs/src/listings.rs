//! Listings: open directories.
//!
//! [`OpenListings`] holds the open directories and the number of names that they keep in memory. Lock order:
//! the table of directories is locked alone; one directory's names are locked before the locks of [`Base`].
//!
//! A listing continues by name, not by an index into the current entries. So a name that exists during the
//! whole listing is listed once, even if other names are created or removed meanwhile. The positions that the
//! caller holds are indices into the names listed so far. An open directory keeps these names until it is
//! rewound. But if all open directories buffer more than [`MAX_BUFFERED`] names, a listing that needs more
//! drops those far behind its caller's position.
//!
//! With access-based enumeration, a listing hides the entries that the caller may not read. Each entry is
//! checked when its name is read; its inode is read in the same request. The check uses the credential that
//! the caller had when it opened the directory. If the names, the inodes and their ACLs are cached, a listing
//! sends no request to the database for any caller: each decision is made in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use acl::credential::Credentials;
use acl::nfs4::{self, Mask};
use client::{Failure, Generation};
use meta::{Dirent, Inode};
use ops::Lookup;
use serde::{Deserialize, Serialize};
use types::{Caps, Cred, Errno, FileType, Ino, Name};

use crate::access_check::Perm;
use crate::attr::Attr;
use crate::base::Base;
use crate::caller::{BY_KERNEL, Caller, Identity};

/// The handle of an open directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirHandle(pub u64);

/// A position in a listing: 0 is the beginning; all others come from [`DirEntry::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirPosition(pub u64);

/// One name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub ino: Ino,
    pub kind: FileType,
    /// The inode's attributes, if they were requested; never those of `.` and `..`, or of a directory that
    /// another mount holds.
    pub attr: Option<Attr>,
    /// The position after this entry.
    pub next: DirPosition,
}

#[derive(Debug)]
pub(crate) struct OpenDir {
    ino: Ino,
    parent: Ino,
    /// The caller that opened it, if listings differ by caller.
    viewer: Option<Identity>,
    names: Mutex<NameWindow>,
}

#[derive(Debug, Default)]
struct NameWindow {
    /// The names that are shown.
    shown: Vec<(Name, Ino, FileType)>,
    /// The last name that was read, shown or not.
    last: Option<Name>,
    began: bool,
    at_end: bool,
    /// All entries read so far, as long as the complete listing can be cached.
    all: Option<(Generation, Vec<(Name, Dirent)>)>,
    /// How many names before those in `shown` were dropped.
    dropped: usize,
    buffered_names: BufferedNames,
}

impl NameWindow {
    /// Starts again at the beginning.
    fn rewind(&mut self) {
        let buffered_names = std::mem::take(&mut self.buffered_names);
        *self = NameWindow { buffered_names, ..NameWindow::default() };
    }

    /// Drops names that the caller has passed, and the entries collected for the cache.
    fn drop_passed(&mut self) {
        let count = self.shown.len().saturating_sub(KEPT_BEHIND);
        self.shown.drain(..count);
        self.shown.shrink_to(2 * KEPT_BEHIND);
        self.dropped += count;
        self.all = None;
    }

    fn buffered(&self) -> usize {
        self.shown.len() + self.all.as_ref().map_or(0, |(_, all)| all.len())
    }
}

/// The number of names that one open directory buffers. `total` is that of all open directories.
#[derive(Debug, Default)]
struct BufferedNames {
    total: Option<Arc<AtomicUsize>>,
    own: usize,
}

impl BufferedNames {
    fn set(&mut self, now: usize) {
        if let Some(total) = &self.total {
            total.fetch_add(now, Ordering::Relaxed);
            total.fetch_sub(self.own, Ordering::Relaxed);
        }
        self.own = now;
    }
}

impl Drop for BufferedNames {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The open directories of a mount, as one process describes them to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ListingState {
    next_dir: u64,
    dirs: Vec<DirState>,
}

/// An open directory. Positions remain valid, because they are indices into the names listed so far.
#[derive(Debug, Serialize, Deserialize)]
struct DirState {
    handle: u64,
    ino: Ino,
    parent: Ino,
    viewer: Option<ViewerState>,
    shown: Vec<(Name, Ino, FileType)>,
    last: Option<Name>,
    began: bool,
    at_end: bool,
    dropped: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ViewerState {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    caps: u64,
}

impl ViewerState {
    fn of(identity: &Identity) -> Self {
        let cred = identity.credential.cred();
        let (uid, gid, groups) = (cred.uid, cred.gid, cred.groups().to_vec());
        ViewerState { uid, gid, groups, caps: identity.caps.bits() }
    }

    fn identity(&self, credentials: &Credentials) -> Identity {
        let caps = Caps::from_bits(self.caps);
        let cred = Cred::new(self.uid, self.gid, &self.groups, caps);
        Identity { credential: credentials.intern(&cred, &[]), caps }
    }
}

/// Entries read from the database in one round trip.
const PAGE: usize = 1024;
/// A listing that is longer than this by more than a page is not cached.
const MAX_KEPT: usize = 200_000;
/// The number of names that all open directories may buffer together, of some 100 bytes each. Beyond that, a
/// listing drops the names that its caller has passed.
const MAX_BUFFERED: usize = if cfg!(test) { 6_000 } else { 2_000_000 };
/// If all open directories buffer more names than this, a listing fails with ENOMEM.
const BUFFERED_BOUND: usize = 2 * MAX_BUFFERED;
/// Names behind the caller's position that a listing keeps: the kernel discards entries that do not fit the
/// program's buffer, and requests them again. A reply of 1 MiB holds fewer entries.
const KEPT_BEHIND: usize = if cfg!(test) { 1_000 } else { 44_000 };

/// Open directories.
#[derive(Debug)]
pub struct OpenListings {
    base: Arc<Base>,
    /// Listings show a caller only the entries that it may read, even if the volume does not require that.
    hide_unreadable: bool,
    dirs: RwLock<HashMap<DirHandle, Arc<OpenDir>>>,
    next_dir: AtomicU64,
    /// The number of names that open directories hold in memory.
    listed: Arc<AtomicUsize>,
}

impl OpenListings {
    pub(crate) fn new(base: &Arc<Base>, hide_unreadable: bool) -> Self {
        OpenListings {
            base: Arc::clone(base),
            hide_unreadable,
            dirs: RwLock::default(),
            next_dir: AtomicU64::new(1),
            listed: Arc::default(),
        }
    }

    /// Opens a directory for listing.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist; ENOTDIR if it is not a directory; ESTALE if the kernel checked
    /// outdated permissions and the caller's credential cannot be read; EACCES if the caller may not read the
    /// directory, or if the decision needs a credential that cannot be read; EIO if the ACL is missing or
    /// damaged; those of the database.
    pub fn opendir(&self, caller: &Caller<'_>, ino: Ino) -> Result<DirHandle, Errno> {
        let held = self.base.caches.held_by_kernel();
        let inode = self.base.attributes.inode(ino)?;
        if !inode.kind.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        self.base.check_by_kernel(caller, held, &inode, Perm::READ)?;
        self.base.access.check_nfs4(caller, ino, Mask::LIST_DIRECTORY)?;
        self.base.access.check_posix(caller, &inode, Perm::READ)?;
        let handle = DirHandle(self.next_dir.fetch_add(1, Ordering::Relaxed));
        let viewer = if self.hides_unreadable() { Some(caller.identity()?.clone()) } else { None };
        let buffered_names = BufferedNames { total: Some(Arc::clone(&self.listed)), own: 0 };
        let names = Mutex::new(NameWindow { buffered_names, ..NameWindow::default() });
        let dir = OpenDir { ino, parent: inode.parent, viewer, names };
        host::write(&self.dirs).insert(handle, Arc::new(dir));
        Ok(handle)
    }

    /// Describes the open directories for another process.
    pub(crate) fn describe(&self) -> ListingState {
        let dirs: Vec<_> =
            host::read(&self.dirs).iter().map(|(handle, dir)| (*handle, Arc::clone(dir))).collect();
        let describe = |(DirHandle(handle), dir): (DirHandle, Arc<OpenDir>)| {
            let names = host::lock(&dir.names);
            DirState {
                handle,
                ino: dir.ino,
                parent: dir.parent,
                viewer: dir.viewer.as_ref().map(ViewerState::of),
                shown: names.shown.clone(),
                last: names.last.clone(),
                began: names.began,
                at_end: names.at_end,
                dropped: names.dropped as u64,
            }
        };
        let dirs = dirs.into_iter().map(describe).collect();
        ListingState { next_dir: self.next_dir.load(Ordering::Relaxed), dirs }
    }

    /// Opens the directories that another process has described.
    pub(crate) fn restore(&self, state: ListingState) {
        self.next_dir.store(state.next_dir, Ordering::Relaxed);
        let credentials = Credentials::new(MAX_BUFFERED);
        let mut dirs = host::write(&self.dirs);
        for dir in state.dirs {
            let viewer = dir.viewer.as_ref().map(|viewer| viewer.identity(&credentials));
            let mut buffered_names = BufferedNames { total: Some(Arc::clone(&self.listed)), own: 0 };
            buffered_names.set(dir.shown.len());
            let names = NameWindow {
                shown: dir.shown,
                last: dir.last,
                began: dir.began,
                at_end: dir.at_end,
                all: None,
                dropped: dir.dropped as usize,
                buffered_names,
            };
            let open = OpenDir { ino: dir.ino, parent: dir.parent, viewer, names: Mutex::new(names) };
            dirs.insert(DirHandle(dir.handle), Arc::new(open));
        }
    }

    /// Whether listings depend on the caller, so that they must not be shared between callers.
    pub fn hides_unreadable(&self) -> bool {
        self.hide_unreadable || self.base.meta.volume().abe
    }

    /// Passes entries to `take` from `position` on, until `take` returns `false` or the directory ends. With
    /// `attrs`, each entry has the current attributes of its inode, with the exceptions of
    /// [`DirEntry::attr`]. Names that were removed meanwhile are then left out.
    ///
    /// # Errors
    /// EBADF if the directory is not open; EINVAL for a position whose name was dropped because open
    /// directories buffered too many; ENOMEM if they still buffer too many; those of the database.
    pub fn readdir(
        &self,
        handle: DirHandle,
        position: DirPosition,
        attrs: bool,
        take: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let dirs = host::read(&self.dirs);
        let dir = Arc::clone(dirs.get(&handle).ok_or(Errno::EBADF)?);
        drop(dirs);
        let mut names = host::lock(&dir.names);
        if position.0 == 0 {
            names.rewind();
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
            let index = (at as usize - dots.len()).checked_sub(names.dropped).ok_or(Errno::EINVAL)?;
            let mut index = index;
            while index >= names.shown.len() {
                if self.listed.load(Ordering::Relaxed) > MAX_BUFFERED {
                    let before = names.dropped;
                    names.drop_passed();
                    index -= names.dropped - before;
                }
                let more = self.read_more(&dir, &mut names, attrs);
                let buffered = names.buffered();
                names.buffered_names.set(buffered);
                if !more? {
                    return Ok(());
                }
                if self.listed.load(Ordering::Relaxed) > BUFFERED_BOUND {
                    names.rewind();
                    names.buffered_names.set(0);
                    return Err(Errno::ENOMEM);
                }
            }
            // The index is valid here: for a position beyond the last name, the loop has returned.
            let Some((name, ino, kind)) = names.shown.get(index) else { return Ok(()) };
            let entry = DirEntry { name: name.as_bytes(), ino: *ino, kind: *kind, attr: None, next };
            let entry = match attrs {
                false => entry,
                // Another mount holds this directory, and only that mount knows its attributes. A program
                // that needs them calls stat(2).
                true if *kind == FileType::Directory && self.base.meta.is_held_elsewhere(*ino) => entry,
                true => {
                    match self.base.meta.run(&Lookup { parent: dir.ino, name: name.clone() }, &BY_KERNEL)? {
                        Some(inode) => DirEntry {
                            ino: inode.ino,
                            kind: inode.kind,
                            attr: Some(self.base.attributes.attr_of(&inode)),
                            ..entry
                        },
                        None => continue,
                    }
                }
            };
            if !take(entry) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Closes an open directory.
    ///
    /// # Errors
    /// EBADF if the directory is not open.
    pub fn closedir(&self, handle: DirHandle) -> Result<(), Errno> {
        let mut dirs = host::write(&self.dirs);
        dirs.remove(&handle).map(drop).ok_or(Errno::EBADF)
    }

    /// Reads more names; returns `false` at the end of the directory. `true` does not mean that a new name is
    /// shown. An error adds no names, so that the next call continues at the same place.
    fn read_more(&self, dir: &OpenDir, names: &mut NameWindow, inodes: bool) -> Result<bool, Errno> {
        if names.at_end {
            return Ok(false);
        }
        if !names.began {
            let is_cached = self.take_cached(dir, names)?;
            names.began = true;
            if is_cached {
                return Ok(true);
            }
            names.all = self.base.meta.generation(dir.ino).map(|generation| (generation, Vec::new()));
        }
        let page = self.base.meta.list(dir.ino, names.last.clone(), PAGE, inodes || dir.viewer.is_some())?;
        let mut shown = Vec::with_capacity(page.entries.len());
        for (name, dirent, inode) in &page.entries {
            if self.shows(dir, inode.as_ref())? {
                shown.push((name.clone(), dirent.ino, dirent.kind));
            }
        }
        names.shown.extend(shown);
        // A page without entries, after which more may follow, does not say where they begin. The listing
        // then ends here.
        let is_cut = page.more && page.entries.is_empty();
        names.at_end = !page.more || is_cut;
        if is_cut || names.all.as_ref().is_some_and(|(_, all)| all.len() > MAX_KEPT) {
            names.all = None;
        }
        if let Some((last, ..)) = page.entries.last() {
            names.last = Some(last.clone());
        }
        if let Some((_, all)) = &mut names.all {
            all.extend(page.entries.into_iter().map(|(name, dirent, _)| (name, dirent)));
        }
        if names.at_end
            && let Some((generation, all)) = names.all.take()
        {
            self.base.meta.keep_listing(dir.ino, generation, all.into());
        }
        Ok(true)
    }

    /// Takes all names from the cache. Returns false if the listing is not cached as a whole, or if entries
    /// are filtered by access and the inode of one is not cached.
    fn take_cached(&self, dir: &OpenDir, names: &mut NameWindow) -> Result<bool, Errno> {
        let Some(whole) = self.base.meta.known_listing(dir.ino) else { return Ok(false) };
        let mut shown = Vec::new();
        for part in whole.chunks(PAGE) {
            let inos: Vec<Ino> =
                part.iter().filter(|_| dir.viewer.is_some()).map(|(_, dirent)| dirent.ino).collect();
            let inodes = self.base.meta.known_inodes(&inos);
            if inodes.iter().any(Option::is_none) {
                // Reading all inodes again together costs less than reading the missing ones one by one.
                return Ok(false);
            }
            for (at, (name, dirent)) in part.iter().enumerate() {
                if self.shows(dir, inodes.get(at).and_then(Option::as_ref))? {
                    shown.push((name.clone(), dirent.ino, dirent.kind));
                }
            }
        }
        (names.shown, names.at_end) = (shown, true);
        Ok(true)
    }

    /// Whether an entry with this inode is shown. If its ACL is needed and damaged, only callers that override
    /// denied read permission see the entry, so that they can repair the ACL.
    fn shows(&self, dir: &OpenDir, inode: Option<&Inode>) -> Result<bool, Errno> {
        let Some(viewer) = &dir.viewer else { return Ok(true) };
        let Some(inode) = inode else { return Ok(false) };
        match self.base.access.may_read(viewer, inode) {
            Ok(shown) => Ok(shown),
            Err(Failure::Operation(_)) => {
                let overrides = nfs4::overrides(viewer.caps, inode.kind.is_dir(), false);
                Ok(overrides.has(Mask::READ_DATA))
            }
            Err(failure) => Err(failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use acl::credential::Credentials;
    use acl::posix::PosixAcl;
    use meta::{Effect, Txn};
    use ops::{AclType, AtimeMode, SetAcl};
    use suite::{Fault, FaultRates, Faulty};
    use types::{Caps, Cred, Mode, OpId, SessionId, Term};

    use super::*;
    use crate::fixture::{NO_WAIT, format, make, mount, mount_with, root, volume_with};
    use crate::{AttrChange, MakeKind, MakeRequest, Vfs, VfsOptions};

    fn hiding() -> (Vfs, std::sync::Arc<meta::Counting<meta::MemEngine>>) {
        volume_with(VfsOptions { atime: AtimeMode::Never, hide_unreadable: true, ..VfsOptions::default() })
    }

    fn user(uid: u32, gid: u32, groups: &[u32], caps: Caps) -> Caller<'static> {
        let credential = Credentials::new(100_000).intern(&Cred::new(uid, gid, groups, caps), &[]);
        Caller::known(Identity { credential, caps })
    }

    /// The names listed, without `.` and `..`, which are always listed.
    fn list(vfs: &Vfs, caller: &Caller<'_>, attrs: bool) -> Vec<String> {
        let handle = vfs.listings.opendir(caller, Ino::ROOT).unwrap();
        let mut shown = Vec::new();
        let mut take = |entry: DirEntry<'_>| {
            assert_eq!(entry.attr.is_some(), attrs && !entry.name.starts_with(b"."));
            shown.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        };
        vfs.listings.readdir(handle, DirPosition(0), attrs, &mut take).unwrap();
        vfs.listings.closedir(handle).unwrap();
        assert_eq!(shown[..2], [".", ".."]);
        shown.split_off(2)
    }

    fn give(vfs: &Vfs, name: &str, uid: u32, gid: u32, mode: u32) -> Ino {
        let ino = make(vfs, name);
        let mode = Some(Mode::new(mode));
        let change = AttrChange { mode, uid: Some(uid), gid: Some(gid), ..AttrChange::default() };
        vfs.setattr(&root(), ino, change).unwrap();
        ino
    }

    #[test]
    fn a_listing_does_not_recall_the_directories_in_it() {
        let engine = std::sync::Arc::new(meta::MemEngine::default());
        format(&*engine);
        let journals: std::sync::Arc<dyn journal::Journals> = std::sync::Arc::new(journal::Memory::default());
        let options = VfsOptions {
            holds_directories: true,
            journals: Some(journals),
            times: NO_WAIT,
            ..VfsOptions::default()
        };
        let (holder, other) = (mount_with(engine.clone(), options), mount(engine));
        let soon = types::BootInstant::now() + std::time::Duration::from_secs(60);
        for vfs in [&holder, &other] {
            vfs.meta().set_current_until(soon);
        }
        let (kind, mode) = (MakeKind::Directory, Mode::new(0o755));
        let request = MakeRequest { parent: Ino::ROOT, name: b"held", kind, mode, umask: 0 };
        holder.names.make(&root(), request).unwrap();
        make(&other, "file");
        assert_eq!(holder.meta().held_directories(), 1);
        let handle = other.listings.opendir(&root(), Ino::ROOT).unwrap();
        let mut shown = Vec::new();
        let mut take = |entry: DirEntry<'_>| {
            shown.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.attr.is_some()));
            true
        };
        other.listings.readdir(handle, DirPosition(0), true, &mut take).unwrap();
        assert_eq!(shown[2..], [("file".to_owned(), true), ("held".to_owned(), false)]);
        assert_eq!(holder.meta().held_directories(), 1);
    }

    #[test]
    fn open_listings_hold_a_bounded_number_of_names_and_stay_complete() {
        let (vfs, _) = volume_with(VfsOptions { atime: AtimeMode::Never, ..VfsOptions::default() });
        let names: Vec<String> = (0..5000).map(|n| format!("{n:04}")).collect();
        names.iter().for_each(|name| {
            make(&vfs, name);
        });
        vfs.caches.invalidate_all();
        let buffered = || vfs.listings.listed.load(Ordering::Relaxed);
        let read = |handle, from: u64, most: usize| -> Result<(Vec<String>, u64), Errno> {
            let (mut shown, mut next) = (Vec::new(), from);
            vfs.listings.readdir(handle, DirPosition(from), false, &mut |entry| {
                if shown.len() == most {
                    return false;
                }
                next = entry.next.0;
                shown.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })?;
            Ok((shown, next))
        };
        let open = || vfs.listings.opendir(&root(), Ino::ROOT).unwrap();
        let (first, mut handles) = (open(), Vec::new());
        assert_eq!(read(first, 0, 3).unwrap().1, 3);
        while buffered() <= MAX_BUFFERED {
            handles.push(open());
            read(handles[handles.len() - 1], 0, 4000).unwrap();
        }
        // Read in small steps, each starting a little before the end of the previous one, as the kernel does.
        let (mut all, mut at) = (Vec::new(), 2);
        loop {
            let (shown, next) = read(first, at, 700).unwrap();
            if shown.is_empty() {
                break;
            }
            let kept = if next > at + 10 && shown.len() == 700 { 690 } else { shown.len() };
            all.extend_from_slice(&shown[..kept]);
            at += kept as u64;
        }
        assert_eq!(all, names);
        assert_eq!(read(first, 5, 1), Err(Errno::EINVAL));
        assert_eq!(read(first, 0, 5000).unwrap().0[2..], names[..4998]);
        // At the bound, a listing that needs more names fails; closing others makes room.
        let refused = loop {
            handles.push(open());
            match read(handles[handles.len() - 1], 0, 900) {
                Ok(_) => assert!(handles.len() < 100 && buffered() <= BUFFERED_BOUND),
                Err(errno) => break errno,
            }
        };
        assert_eq!(refused, Errno::ENOMEM);
        handles.into_iter().for_each(|handle| vfs.listings.closedir(handle).unwrap());
        vfs.listings.closedir(first).unwrap();
        assert_eq!(buffered(), 0);
        let last = open();
        assert_eq!(read(last, 2, 5000).unwrap().0, names);
    }

    #[test]
    fn filtered_listing_shows_only_readable_entries() {
        let (vfs, _) = hiding();
        give(&vfs, "all", 1, 1, 0o604);
        give(&vfs, "group", 1, 50, 0o640);
        give(&vfs, "mine", 7, 1, 0o400);
        give(&vfs, "mine-but-unreadable", 7, 1, 0o200);
        give(&vfs, "searchable", 1, 1, 0o711);
        let by_acl = give(&vfs, "by-acl", 1, 1, 0o600);
        let acl = PosixAcl::from_storage("u::rw-,u:7:r--,g::---,g:60:r--,m::r--,o::---").unwrap();
        vfs.commits
            .change(&SetAcl { ino: by_acl, which: AclType::Access, acl: Some(acl), kill_sgid: false })
            .unwrap();
        for attrs in [false, true] {
            let shown = |caller: &Caller<'_>| list(&vfs, caller, attrs);
            assert_eq!(shown(&user(7, 7, &[], Caps::NONE)), ["all", "by-acl", "mine"]);
            assert_eq!(shown(&user(8, 8, &[50], Caps::NONE)), ["all", "group"]);
            let many: Vec<u32> = (40..440).collect();
            assert_eq!(shown(&user(8, 8, &many, Caps::NONE)), ["all", "by-acl", "group"]);
            assert_eq!(shown(&user(8, 8, &[], Caps::DAC_READ_SEARCH)).len(), 6);
            assert_eq!(shown(&root()).len(), 6);
            // The group class takes precedence over "other", even if it grants less.
            assert_eq!(shown(&user(8, 1, &[], Caps::NONE)), [""; 0]);
        }
    }

    #[test]
    fn cached_listing_is_filtered_without_a_request_and_is_current() {
        let (vfs, engine) = hiding();
        let names: Vec<String> = (0..3000).map(|n| format!("{n:04}")).collect();
        for (n, name) in names.iter().enumerate() {
            give(&vfs, name, 1, if n % 10 == 0 { 50 } else { 51 }, 0o640);
        }
        let (few, many) = (
            user(8, 8, &[50], Caps::NONE),
            user(8, 8, &[&[50], &*(60..460).collect::<Vec<_>>()].concat(), Caps::NONE),
        );
        let of_few: Vec<&String> = names.iter().step_by(10).collect();
        vfs.meta().set_exclusive(true);
        let before = engine.counts();
        assert_eq!(list(&vfs, &few, false).iter().collect::<Vec<_>>(), of_few);
        let cold = engine.counts() - before;
        assert_eq!((cold.round_trips(), cold.scans), (4, 3), "the directory itself and three pages");
        let before = engine.counts();
        for caller in [&few, &many, &root()] {
            assert_eq!(list(&vfs, caller, false).len(), if caller.uid == 0 { 3000 } else { 300 });
            assert_eq!(list(&vfs, caller, true).len(), if caller.uid == 0 { 3000 } else { 300 });
        }
        assert_eq!((engine.counts() - before).round_trips(), 0);
        let misses = vfs.access.decisions_missed();
        list(&vfs, &many, true);
        assert_eq!(vfs.access.decisions_missed(), misses, "each decision was cached");
        // A change of permissions, a new name and a removed name show at once.
        let first = vfs.names.lookup(&root(), Ino::ROOT, b"0000").unwrap().unwrap().ino;
        vfs.setattr(&root(), first, AttrChange { mode: Some(Mode::new(0o600)), ..Default::default() })
            .unwrap();
        give(&vfs, "0000-new", 1, 50, 0o640);
        vfs.names.unlink(&root(), Ino::ROOT, b"0010").unwrap();
        let shown = list(&vfs, &many, false);
        assert_eq!(shown[..3], ["0000-new", "0020", "0030"]);
        assert_eq!(shown.len(), 299);
    }

    #[test]
    fn filtered_listing_that_failed_continues_without_gap_or_repetition() {
        for is_cached in [false, true] {
            let engine: Arc<dyn meta::Engine> = Arc::new(meta::MemEngine::default());
            format(&*engine);
            let other = mount(Arc::clone(&engine));
            give(&other, "a", 1, 1, 0o604);
            let by_acl = give(&other, "b", 1, 1, 0o600);
            give(&other, "c", 1, 1, 0o604);
            let acl = PosixAcl::from_storage("u::rw-,u:7:r--,g::---,m::r--,o::---").unwrap();
            let set = SetAcl { ino: by_acl, which: AclType::Access, acl: Some(acl), kill_sgid: false };
            other.commits.change(&set).unwrap();
            // If an ACL is missing, the inode is read again, because it may have another ACL now.
            let id = other.attributes.inode(by_acl).unwrap().access_acl;
            let effects = vec![Effect::CondemnAcl { id }, Effect::DropAcl { id }];
            let op_id = OpId::new(SessionId(u64::MAX), Term::NONE, 0);
            engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
            let faulty = Arc::new(Faulty::new(engine, 1, FaultRates::default()));
            let options = VfsOptions { hide_unreadable: true, times: NO_WAIT, ..VfsOptions::default() };
            let vfs = mount_with(faulty.clone(), options);
            vfs.meta().set_retry_timeout(std::time::Duration::ZERO);
            vfs.meta().set_exclusive(true);
            if is_cached {
                assert_eq!(list(&vfs, &root(), false), ["a", "b", "c"]);
            }
            let handle = vfs.listings.opendir(&user(7, 7, &[], Caps::NONE), Ino::ROOT).unwrap();
            let mut shown = Vec::new();
            let mut read = |from| {
                vfs.listings.readdir(handle, DirPosition(from), false, &mut |entry| {
                    shown.push(String::from_utf8(entry.name.to_vec()).unwrap());
                    true
                })
            };
            faulty.arm(true);
            // The listing is read, if it is not cached, but then a request fails.
            faulty.script(if is_cached { vec![Fault::Before] } else { vec![Fault::None, Fault::Before] });
            assert_eq!(read(0), Err(Errno::EIO), "{is_cached}");
            faulty.arm(false);
            read(2).unwrap();
            // An entry with a damaged ACL is hidden from this caller.
            assert_eq!(shown, [".", "..", "a", "c"], "{is_cached}");
        }
    }

    #[test]
    fn filtered_listing_read_in_parts_shows_each_name_once() {
        let (vfs, _) = hiding();
        for n in 0..2100 {
            give(&vfs, &format!("{n:04}"), 1, if n % 3 == 0 { 50 } else { 51 }, 0o640);
        }
        vfs.meta().set_exclusive(true);
        for _ in 0..2 {
            let caller = user(8, 8, &[50], Caps::NONE);
            let handle = vfs.listings.opendir(&caller, Ino::ROOT).unwrap();
            let (mut shown, mut at) = (Vec::new(), DirPosition(0));
            loop {
                let mut taken = 0;
                let from = at;
                let mut take = |entry: DirEntry<'_>| {
                    taken += 1;
                    if taken <= 100 {
                        shown.push(entry.name.to_vec());
                        at = entry.next;
                    }
                    taken <= 100
                };
                vfs.listings.readdir(handle, from, false, &mut take).unwrap();
                if taken == 0 {
                    break;
                }
            }
            vfs.listings.closedir(handle).unwrap();
            assert_eq!(shown.len(), 702);
            assert!(shown.get(2..).unwrap().is_sorted());
        }
    }
}
