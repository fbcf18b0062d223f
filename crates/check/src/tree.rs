//! Inodes, and the names that refer to them.

use std::collections::HashMap;
use std::sync::Arc;

use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use meta::{AclKind, Dirent, Engine, EngineError, Inode, Record, RecordKey, xattr_blocks};
use ops::domains_in;
use types::{AclId, FileType, Ino, Name};

use super::scope::is_top;
use super::totals::{Run, Totals};
use super::{Problem, walk};

/// The largest number of checked ACLs that are remembered.
const ACLS: usize = 1 << 16;

/// The largest number of [`Strays`] that a window keeps. Others are only counted; the check after a repair
/// finds them.
const STRAYS: usize = 10_000;

/// The stored values of an inode, and the names counted for it.
#[derive(Debug)]
struct Seen {
    ino: Ino,
    parent: Ino,
    nlink: u32,
    names: u32,
    subdirs: u32,
    kind: FileType,
    orphan: bool,
    /// For a directory: whether its name was found in its recorded parent.
    placed: bool,
}

/// The inodes with numbers above `after` up to `last`.
#[derive(Debug)]
struct Window {
    after: Ino,
    last: Ino,
    seen: Vec<Seen>,
}

/// Entries that name a directory, except the first such entry in its recorded parent.
#[derive(Debug, Default)]
struct Strays {
    kept: Vec<(Ino, Name, Ino)>,
    /// The number of others.
    unlisted: u64,
}

type Report<'a> = &'a mut dyn FnMut(Problem);

pub(super) fn check(run: &mut Run<'_>) -> Result<(), EngineError> {
    let engine = run.engine;
    let mut acls = Acls::new(engine, run.report)?;
    let mut after = Ino(0);
    loop {
        let first = after == Ino(0);
        let mut window = Window { after, last: Ino(u64::MAX), seen: Vec::new() };
        walk::inode_pages(engine, after, |inodes| {
            check_inodes(engine, inodes, &mut acls, run.report)?;
            let Totals { usage, quotas, checked, .. } = &mut run.totals;
            for inode in inodes {
                usage.inodes += 1;
                usage.blocks = usage.blocks.wrapping_add(inode.blocks());
                quotas.add(inode);
                window.seen.push(Seen::new(inode));
            }
            checked.inodes += inodes.len() as u64;
            (run.progress)("inodes", checked.inodes);
            let full = window.seen.len() >= run.window;
            window.last = inodes.last().filter(|_| full).map_or(window.last, |inode| inode.ino);
            Ok(!full)
        })?;
        let last = window.seen.iter().rev().find(|seen| seen.ino < Ino::TRASH);
        last.into_iter().for_each(|seen| run.totals.note_ino(seen.ino));
        if first && window.seen.iter().all(|seen| seen.ino != Ino::ROOT || !seen.kind.is_dir()) {
            (run.report)(Problem::NoRoot);
        }
        window.count_names(run, first)?;
        window.count_orphans(run, first)?;
        window.evaluate(run.report);
        if window.last == Ino(u64::MAX) {
            return Ok(());
        }
        after = window.last;
    }
}

impl Seen {
    fn new(inode: &Inode) -> Self {
        Seen {
            ino: inode.ino,
            parent: inode.parent,
            nlink: inode.nlink,
            names: 0,
            subdirs: 0,
            kind: inode.kind,
            orphan: false,
            // The root and the trash have no name, so any name of them is one too many.
            placed: is_top(inode.ino),
        }
    }
}

impl Window {
    fn holds(&self, ino: Ino) -> bool {
        self.after < ino && ino <= self.last
    }

    fn find(&mut self, ino: Ino) -> Option<&mut Seen> {
        let at = self.seen.binary_search_by_key(&ino, |seen| seen.ino).ok()?;
        self.seen.get_mut(at)
    }

    fn count_names(&mut self, run: &mut Run<'_>, first: bool) -> Result<(), EngineError> {
        // An entry without an inode does not affect the check of the counter: the entry is damaged, and its
        // repair removes it.
        let Run { engine, totals, report, progress, .. } = run;
        let mut strays = Strays::default();
        let mut walked = 0;
        walk::all_entries(*engine, |dir, name, dirent| {
            self.count_name(dir, name, dirent, &mut strays, *report);
            walked += 1;
            if walked % walk::PAGE as u64 == 0 {
                progress("names", walked);
            }
            true
        })?;
        if first {
            totals.checked.entries = walked;
        }
        totals.checked.unlisted += strays.unlisted;
        for (dir, name, ino) in strays.kept {
            let Some(seen) = self.find(ino) else { continue };
            if seen.placed {
                report(Problem::SecondName { dir, name, ino });
            } else {
                seen.placed = true;
                report(Problem::Parent { ino, stored: seen.parent, actual: dir });
            }
        }
        Ok(())
    }

    fn count_name(&mut self, dir: Ino, name: &Name, dirent: Dirent, strays: &mut Strays, report: Report<'_>) {
        let ino = dirent.ino;
        if dirent.kind.is_dir()
            && let Some(dir) = self.find(dir)
        {
            dir.subdirs += 1;
        }
        if !self.holds(ino) {
            return;
        }
        let Some(seen) = self.find(ino) else {
            return report(Problem::EntryWithoutInode { dir, name: name.clone(), ino });
        };
        seen.names += 1;
        if seen.kind != dirent.kind {
            let (stored, actual) = (dirent.kind, seen.kind);
            report(Problem::EntryKind { dir, name: name.clone(), ino, stored, actual });
        }
        if !seen.kind.is_dir() {
            return;
        }
        if seen.parent == dir && !seen.placed {
            seen.placed = true;
        } else if strays.kept.len() < STRAYS {
            strays.kept.push((dir, name.clone(), ino));
        } else {
            strays.unlisted += 1;
        }
    }

    fn count_orphans(&mut self, run: &mut Run<'_>, first: bool) -> Result<(), EngineError> {
        let Run { engine, totals, report, .. } = run;
        walk::orphans(*engine, |session, ino| {
            if first {
                totals.note_ino(ino);
                totals.last_session = totals.last_session.max(session);
            }
            if !self.holds(ino) {
                return;
            }
            match self.find(ino) {
                Some(seen) if seen.nlink == 0 => seen.orphan = true,
                _ => report(Problem::StaleOrphan { session, ino }),
            }
        })
    }

    fn evaluate(&self, report: Report<'_>) {
        for seen in &self.seen {
            let &Seen { ino, kind, nlink, names, subdirs, .. } = seen;
            if is_top(ino) && seen.parent != Ino::ROOT {
                report(Problem::Parent { ino, stored: seen.parent, actual: Ino::ROOT });
            }
            if names == 0 && !is_top(ino) && !seen.orphan {
                report(Problem::Lost { ino, kind });
                if !kind.is_dir() {
                    continue;
                }
            }
            // The root of an unfinished copy is a directory without a name and without links.
            if seen.orphan && kind.is_dir() && names == 0 {
                continue;
            }
            let actual = if kind.is_dir() { 2 + subdirs } else { names };
            if nlink != actual {
                report(Problem::Links { ino, stored: nlink, actual });
            }
        }
    }
}

/// The ACLs that were read, by id, or what is wrong with them.
#[derive(Debug)]
pub(super) struct Acls {
    /// Whether the volume has NFSv4 ACLs.
    nfs4: bool,
    /// The number of Windows domains in the volume's table; `None` if the table is damaged. In that case, no
    /// ACL is reported for its domains.
    domains: Option<u32>,
    found: HashMap<AclId, Result<Whole, AclFault>>,
}

/// The properties of an ACL that other records must agree with.
#[derive(Clone, Copy, Debug)]
struct Whole {
    id: AclId,
    /// The permission bits that the ACL implies.
    rwx: u32,
    /// The highest domain number that the ACL refers to.
    domain: u32,
}

#[derive(Clone, Copy, Debug)]
enum AclFault {
    Missing,
    Damaged,
}

impl Acls {
    pub(super) fn new(engine: &dyn Engine, report: Report<'_>) -> Result<Self, EngineError> {
        let settings = match engine.read(&[RecordKey::Settings])?.records.first() {
            Some(Record::Settings(settings)) => Arc::clone(settings),
            _ => Arc::default(),
        };
        let nfs4 = settings.get("acl").is_some_and(|kind| kind == AclKind::Nfs4.name());
        let table = domains_in(&settings);
        if nfs4 && table.is_none() {
            report(Problem::Domains);
        }
        let domains = table.map(|table| u32::try_from(table.domains().len()).unwrap_or(u32::MAX));
        Ok(Acls { nfs4, domains, found: HashMap::new() })
    }

    fn read(&mut self, engine: &dyn Engine, inodes: &[Inode]) -> Result<(), EngineError> {
        if self.found.len() > ACLS {
            self.found.clear();
        }
        let ids = inodes.iter().flat_map(Inode::acls);
        let mut unread: Vec<AclId> = ids.filter(|id| !self.found.contains_key(id)).collect();
        unread.sort_unstable();
        unread.dedup();
        if unread.is_empty() {
            return Ok(());
        }
        let keys: Vec<RecordKey> = unread.into_iter().map(RecordKey::Acl).collect();
        for record in engine.read(&keys)?.records {
            let Record::Acl(id, text) = record else { continue };
            let found = match text.map(|text| self.parse(&text)) {
                None => Err(AclFault::Missing),
                Some(Some(whole)) if whole.id == id => Ok(whole),
                Some(_) => Err(AclFault::Damaged),
            };
            self.found.insert(id, found);
        }
        Ok(())
    }

    fn parse(&self, text: &str) -> Option<Whole> {
        if self.nfs4 {
            let acl = Nfs4Acl::from_storage(text).ok()?;
            Some(Whole { id: acl.id(), rwx: acl.mode_bits(), domain: acl.highest_domain() })
        } else {
            let acl = PosixAcl::from_storage(text).ok()?;
            Some(Whole { id: acl.id(), rwx: acl.equiv_mode().0, domain: 0 })
        }
    }
}

/// Checks the records of each inode other than its names: its ACLs, the size of its extended attributes and,
/// for a symbolic link, its target.
pub(super) fn check_inodes(
    engine: &dyn Engine,
    inodes: &[Inode],
    acls: &mut Acls,
    report: Report<'_>,
) -> Result<(), EngineError> {
    acls.read(engine, inodes)?;
    for inode in inodes {
        let ino = inode.ino;
        for id in inode.acls() {
            match acls.found.get(&id) {
                Some(Ok(Whole { rwx, domain, .. })) => {
                    if id == inode.access_acl && *rwx != inode.mode.rwx() {
                        report(Problem::AclMode { ino, stored: inode.mode.rwx(), actual: *rwx });
                    }
                    if let Some(actual) = acls.domains
                        && actual < *domain
                    {
                        report(Problem::AclDomain { ino, id, stored: *domain, actual });
                    }
                }
                Some(Err(AclFault::Damaged)) => report(Problem::AclDamaged { ino, id }),
                Some(Err(AclFault::Missing)) | None => report(Problem::AclMissing { ino, id }),
            }
        }
    }
    check_xattrs(engine, inodes, report)?;
    let links: Vec<&Inode> = inodes.iter().filter(|inode| inode.kind == FileType::Symlink).collect();
    if links.is_empty() {
        return Ok(());
    }
    let keys: Vec<RecordKey> = links.iter().map(|inode| RecordKey::Symlink(inode.ino)).collect();
    for (inode, record) in links.into_iter().zip(engine.read(&keys)?.records) {
        let (ino, stored) = (inode.ino, inode.size);
        match record {
            Record::Symlink(_, Some(target)) if target.len() as u64 != stored => {
                report(Problem::TargetLength { ino, stored, actual: target.len() as u64 });
            }
            Record::Symlink(_, None) => report(Problem::NoTarget { ino }),
            _ => {}
        }
    }
    Ok(())
}

/// A request for extended attributes takes no more inodes once their recorded sizes reach this number of
/// blocks.
const XATTR_BLOCKS: usize = 1024;

/// Checks the recorded size of the extended attributes of each inode.
fn check_xattrs(engine: &dyn Engine, mut inodes: &[Inode], report: Report<'_>) -> Result<(), EngineError> {
    while !inodes.is_empty() {
        let mut blocks = 0;
        let more = inodes.iter().take_while(|inode| {
            let fits = blocks < XATTR_BLOCKS;
            blocks += usize::from(inode.xattr_blocks);
            fits
        });
        let (some, rest) = inodes.split_at(more.count());
        inodes = rest;
        let keys: Vec<RecordKey> = some.iter().map(|inode| RecordKey::Xattrs(inode.ino)).collect();
        for (inode, record) in some.iter().zip(engine.read(&keys)?.records) {
            let Record::Xattrs(ino, xattrs) = record else { continue };
            let actual = xattrs.values().map(|value| u64::from(xattr_blocks(value.len()))).sum();
            if actual != u64::from(inode.xattr_blocks) {
                report(Problem::XattrBlocks { ino, stored: inode.xattr_blocks, actual });
            }
        }
    }
    Ok(())
}
