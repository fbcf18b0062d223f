//! Open directories.
//!
//! A listing goes on by name, never by count of what is there now, so a name that is there all the while comes once,
//! whatever is made and removed around it. The positions that the caller holds are indices of the names met so far,
//! which an open directory keeps until it is rewound.
//!
//! Where listings hide what their caller may not read (access-based enumeration), that is decided as names are read, with
//! the inodes that come along, for the caller that opened the directory, as it was then. A directory that is known as a whole
//! costs no request, whatever caller lists it: what is hidden costs a look at its inode and one at a remembered decision.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use acl::nfs4::Mask;
use meta::ops::Lookup;
use meta::{Edge, Failure, Node, Turn};
use types::{Errno, FileType, Ino, Name};

use crate::attr::Attr;
use crate::caller::{Caller, Identity};
use crate::gate::Perm;
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
    /// The caller that opened it, if listings differ by caller.
    viewer: Option<Identity>,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// What is shown.
    met: Vec<(Name, Ino, FileType)>,
    /// The last name that was read, shown or not.
    last: Option<Name>,
    began: bool,
    at_end: bool,
    /// All that was read so far, while it can be kept for others.
    all: Option<(Turn, Vec<(Name, Edge)>)>,
    /// How many names were met before those in `met`, and given back since.
    given_back: usize,
    charge: Charge,
}

impl Names {
    /// Begins anew.
    fn rewind(&mut self) {
        let charge = std::mem::take(&mut self.charge);
        *self = Names { charge, ..Names::default() };
    }

    /// Gives back names that the caller has passed, and what is kept for others.
    fn give_back(&mut self) {
        let count = self.met.len().saturating_sub(KEPT_BEHIND);
        self.met.drain(..count);
        self.met.shrink_to(2 * KEPT_BEHIND);
        self.given_back += count;
        self.all = None;
    }

    fn held(&self) -> usize {
        self.met.len() + self.all.as_ref().map_or(0, |(_, all)| all.len())
    }
}

/// What an open directory counts of the names that all of them hold.
#[derive(Debug, Default)]
struct Charge {
    total: Option<Arc<AtomicUsize>>,
    own: usize,
}

impl Charge {
    fn set(&mut self, now: usize) {
        if let Some(total) = &self.total {
            total.fetch_add(now, Ordering::Relaxed);
            total.fetch_sub(self.own, Ordering::Relaxed);
        }
        self.own = now;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Entries read from the database in one round trip.
const PAGE: usize = 1024;
/// A listing longer than this is not kept for others.
const MAX_KEPT: usize = 200_000;
/// Names that all open directories hold together, some 100 bytes each. Beyond that a listing that goes on gives back names
/// that its caller has passed.
const MAX_HELD: usize = if cfg!(test) { 6_000 } else { 2_000_000 };
/// Beyond this it fails with ENOMEM.
const HELD_BOUND: usize = 2 * MAX_HELD;
/// So many it keeps, because the kernel throws away what a program had no room for, and asks for that again. A reply of 1 MiB
/// holds fewer entries.
const KEPT_BEHIND: usize = if cfg!(test) { 1_000 } else { 44_000 };

impl Vfs {
    /// # Errors
    /// ESTALE where the inode is gone, or the kernel decided by outdated rights; ENOTDIR; EACCES, also for a caller whose
    /// identity cannot be found out, where that matters.
    pub fn opendir(&self, caller: &Caller<'_>, ino: Ino) -> Result<DirHandle, Errno> {
        let node = self.node(ino)?;
        if !node.kind.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        self.admit_by_kernel(caller, &node, Perm::READ)?;
        self.admit(caller, ino, Mask::LIST_DIRECTORY)?;
        self.admit_posix(caller, &node, Perm::READ)?;
        let handle = DirHandle(self.next_dir.fetch_add(1, Ordering::Relaxed));
        let viewer = if self.hides_unreadable() { Some(caller.identity()?.clone()) } else { None };
        let charge = Charge { total: Some(Arc::clone(&self.listed)), own: 0 };
        let names = Mutex::new(Names { charge, ..Names::default() });
        let dir = OpenDir { ino, parent: node.parent, viewer, names };
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(dir));
        Ok(handle)
    }

    /// Whether a listing is for its caller alone, so that nobody else must be shown it.
    pub fn hides_unreadable(&self) -> bool {
        self.hide_unreadable || self.meta.volume().abe
    }

    /// Passes entries to `take` from `position` on, until it wants no more (`false`) or the directory ends. With
    /// `attrs` each comes with its attributes, as of now: a name that is gone by now is left out.
    ///
    /// # Errors
    /// EBADF unless open; ENOMEM if open directories hold too many names; EINVAL for a position whose name was given back for
    /// that; those of the database.
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
            let index = (at as usize - dots.len()).checked_sub(names.given_back).ok_or(Errno::EINVAL)?;
            let mut index = index;
            while index >= names.met.len() {
                if self.listed.load(Ordering::Relaxed) > MAX_HELD {
                    let before = names.given_back;
                    names.give_back();
                    index -= names.given_back - before;
                }
                let more = self.read_on(&dir, &mut names, attrs);
                let held = names.held();
                names.charge.set(held);
                if !more? {
                    return Ok(());
                }
                if self.listed.load(Ordering::Relaxed) > HELD_BOUND {
                    names.rewind();
                    names.charge.set(0);
                    return Err(Errno::ENOMEM);
                }
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

    /// Reads some more names, of which none need be shown; `false` at the end.
    fn read_on(&self, dir: &OpenDir, names: &mut Names, nodes: bool) -> Result<bool, Errno> {
        if names.at_end {
            return Ok(false);
        }
        if !names.began {
            names.began = true;
            if self.take_known(dir, names)? {
                return Ok(true);
            }
            names.all = self.meta.turn(dir.ino).map(|turn| (turn, Vec::new()));
        }
        let page = self.meta.list(dir.ino, names.last.clone(), PAGE, nodes || dir.viewer.is_some())?;
        // A page that ends early without an entry says nothing of how far it got.
        let is_cut = page.more && page.entries.is_empty();
        names.at_end = !page.more || is_cut;
        if is_cut || names.all.as_ref().is_some_and(|(_, all)| all.len() > MAX_KEPT) {
            names.all = None;
        }
        if let Some((last, ..)) = page.entries.last() {
            names.last = Some(last.clone());
        }
        for (name, edge, node) in page.entries {
            if self.shows(dir, node.as_ref())? {
                names.met.push((name.clone(), edge.ino, edge.kind));
            }
            if let Some((_, all)) = &mut names.all {
                all.push((name, edge));
            }
        }
        if names.at_end
            && let Some((turn, all)) = names.all.take()
        {
            self.meta.keep_listing(dir.ino, turn, all.into());
        }
        Ok(true)
    }

    /// Takes all names from memory, if they are known, and of all whose inodes matter these too.
    fn take_known(&self, dir: &OpenDir, names: &mut Names) -> Result<bool, Errno> {
        let Some(whole) = self.meta.known_listing(dir.ino) else { return Ok(false) };
        for part in whole.chunks(PAGE) {
            let inos: Vec<Ino> =
                part.iter().filter(|_| dir.viewer.is_some()).map(|(_, edge)| edge.ino).collect();
            let nodes = self.meta.known_nodes(&inos);
            if nodes.iter().any(Option::is_none) {
                // Read again together they cost less than one by one.
                names.met.clear();
                return Ok(false);
            }
            for (at, (name, edge)) in part.iter().enumerate() {
                if self.shows(dir, nodes.get(at).and_then(Option::as_ref))? {
                    names.met.push((name.clone(), edge.ino, edge.kind));
                }
            }
        }
        names.at_end = true;
        Ok(true)
    }

    /// Whether an entry with this inode is shown. What is damaged can be read by nobody.
    fn shows(&self, dir: &OpenDir, node: Option<&Node>) -> Result<bool, Errno> {
        let Some(viewer) = &dir.viewer else { return Ok(true) };
        let Some(node) = node else { return Ok(false) };
        match self.may_read(viewer, node) {
            Ok(shown) => Ok(shown),
            Err(Failure::Refused(_)) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use acl::credential::Credentials;
    use acl::posix::PosixAcl;
    use meta::ops::{AclType, AtimeMode, SetAcl};
    use types::{Caps, Cred, Mode};

    use super::*;
    use crate::fixture::{make, root, volume_with};
    use crate::{AttrChange, VfsOptions};

    fn hiding() -> (Vfs, std::sync::Arc<meta::Counting<meta::MemEngine>>) {
        volume_with(VfsOptions { atime: AtimeMode::Never, hide_unreadable: true, ..VfsOptions::default() })
    }

    fn user(uid: u32, gid: u32, groups: &[u32], caps: Caps) -> Caller<'static> {
        let credential = Credentials::new(100_000).intern(&Cred::new(uid, gid, groups, caps), &[]);
        Caller::known(Identity { credential, caps })
    }

    /// The names shown, but for `.` and `..`, which always are.
    fn list(vfs: &Vfs, caller: &Caller<'_>, attrs: bool) -> Vec<String> {
        let handle = vfs.opendir(caller, Ino::ROOT).unwrap();
        let mut shown = Vec::new();
        let mut take = |entry: DirEntry<'_>| {
            assert_eq!(entry.attr.is_some(), attrs && !entry.name.starts_with(b"."));
            shown.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        };
        vfs.readdir(handle, DirPosition(0), attrs, &mut take).unwrap();
        vfs.closedir(handle).unwrap();
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
    fn open_listings_hold_a_bounded_number_of_names_and_are_whole_even_so() {
        let (vfs, _) = volume_with(VfsOptions { atime: AtimeMode::Never, ..VfsOptions::default() });
        let names: Vec<String> = (0..5000).map(|n| format!("{n:04}")).collect();
        names.iter().for_each(|name| {
            make(&vfs, name);
        });
        vfs.forget_everything();
        let held = || vfs.listed.load(Ordering::Relaxed);
        let read = |handle, from: u64, most: usize| -> Result<(Vec<String>, u64), Errno> {
            let (mut shown, mut next) = (Vec::new(), from);
            vfs.readdir(handle, DirPosition(from), false, &mut |entry| {
                if shown.len() == most {
                    return false;
                }
                next = entry.next.0;
                shown.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })?;
            Ok((shown, next))
        };
        let open = || vfs.opendir(&root(), Ino::ROOT).unwrap();
        let (first, mut handles) = (open(), Vec::new());
        assert_eq!(read(first, 0, 3).unwrap().1, 3);
        while held() <= MAX_HELD {
            handles.push(open());
            read(handles[handles.len() - 1], 0, 4000).unwrap();
        }
        // It goes on in small steps, each from a little before where the last one ended, as the kernel does.
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
        // With very many, one that needs more is refused; what is closed makes room.
        let refused = loop {
            handles.push(open());
            match read(handles[handles.len() - 1], 0, 900) {
                Ok(_) => assert!(handles.len() < 100 && held() <= HELD_BOUND),
                Err(errno) => break errno,
            }
        };
        assert_eq!(refused, Errno::ENOMEM);
        handles.into_iter().for_each(|handle| vfs.closedir(handle).unwrap());
        vfs.closedir(first).unwrap();
        assert_eq!(held(), 0);
        let last = open();
        assert_eq!(read(last, 2, 5000).unwrap().0, names);
    }

    #[test]
    fn a_listing_shows_what_its_caller_may_read() {
        let (vfs, _) = hiding();
        give(&vfs, "all", 1, 1, 0o604);
        give(&vfs, "group", 1, 50, 0o640);
        give(&vfs, "mine", 7, 1, 0o400);
        give(&vfs, "mine-but-unreadable", 7, 1, 0o200);
        give(&vfs, "searchable", 1, 1, 0o711);
        let by_acl = give(&vfs, "by-acl", 1, 1, 0o600);
        let acl = PosixAcl::from_storage("u::rw-,u:7:r--,g::---,g:60:r--,m::r--,o::---").unwrap();
        vfs.change(&SetAcl { ino: by_acl, which: AclType::Access, acl: Some(acl), kill_sgid: false })
            .unwrap();
        for attrs in [false, true] {
            let shown = |caller: &Caller<'_>| list(&vfs, caller, attrs);
            assert_eq!(shown(&user(7, 7, &[], Caps::NONE)), ["all", "by-acl", "mine"]);
            assert_eq!(shown(&user(8, 8, &[50], Caps::NONE)), ["all", "group"]);
            let many: Vec<u32> = (40..440).collect();
            assert_eq!(shown(&user(8, 8, &many, Caps::NONE)), ["all", "by-acl", "group"]);
            assert_eq!(shown(&user(8, 8, &[], Caps::DAC_READ_SEARCH)).len(), 6);
            assert_eq!(shown(&root()).len(), 6);
            // The group of a file takes precedence over others, also where it may less.
            assert_eq!(shown(&user(8, 1, &[], Caps::NONE)), [""; 0]);
        }
    }

    #[test]
    fn what_is_known_is_filtered_without_a_request_and_up_to_date() {
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
        vfs.meta.set_alone(true);
        let before = engine.counts();
        assert_eq!(list(&vfs, &few, false).iter().collect::<Vec<_>>(), of_few);
        let cold = engine.counts() - before;
        assert_eq!((cold.round_trips(), cold.scans), (4, 3), "the directory itself, and three pages");
        let before = engine.counts();
        for caller in [&few, &many, &root()] {
            assert_eq!(list(&vfs, caller, false).len(), if caller.uid == 0 { 3000 } else { 300 });
            assert_eq!(list(&vfs, caller, true).len(), if caller.uid == 0 { 3000 } else { 300 });
        }
        assert_eq!((engine.counts() - before).round_trips(), 0);
        let misses = vfs.gate.decisions_missed();
        list(&vfs, &many, true);
        assert_eq!(vfs.gate.decisions_missed(), misses, "each decision was remembered");
        // A change of a right, a new name and one that goes are seen at once.
        let first = vfs.lookup(&root(), Ino::ROOT, b"0000").unwrap().attr.unwrap().ino;
        vfs.setattr(&root(), first, AttrChange { mode: Some(Mode::new(0o600)), ..Default::default() })
            .unwrap();
        give(&vfs, "0000-new", 1, 50, 0o640);
        vfs.unlink(&root(), Ino::ROOT, b"0010").unwrap();
        let shown = list(&vfs, &many, false);
        assert_eq!(shown[..3], ["0000-new", "0020", "0030"]);
        assert_eq!(shown.len(), 299);
    }

    #[test]
    fn a_listing_that_is_read_in_parts_shows_each_name_once() {
        let (vfs, _) = hiding();
        for n in 0..2100 {
            give(&vfs, &format!("{n:04}"), 1, if n % 3 == 0 { 50 } else { 51 }, 0o640);
        }
        vfs.meta.set_alone(true);
        for _ in 0..2 {
            let caller = user(8, 8, &[50], Caps::NONE);
            let handle = vfs.opendir(&caller, Ino::ROOT).unwrap();
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
                vfs.readdir(handle, from, false, &mut take).unwrap();
                if taken == 0 {
                    break;
                }
            }
            vfs.closedir(handle).unwrap();
            assert_eq!(shown.len(), 702);
            assert!(shown.get(2..).unwrap().is_sorted());
        }
    }
}
