//! Inodes one by one, and the names that lead to them.

use std::collections::HashMap;
use std::sync::Arc;

use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use types::{AclId, FileType, Ino, Name};

use super::{Problem, Totals, walk};
use crate::engine::{Engine, EngineError};
use crate::ops::domains_in;
use crate::record::{Edge, Node, Record, Want};
use crate::volume::AclKind;

/// ACLs that were found to be right are remembered, up to so many.
const ACLS: usize = 1 << 16;

/// Names of directories elsewhere than these say; a window with more is looked at again after a repair.
const STRAYS: usize = 10_000;

/// What is known of an inode, and counted of the names that lead to it.
#[derive(Debug)]
struct Seen {
    ino: Ino,
    parent: Ino,
    nlink: u32,
    names: u32,
    subdirs: u32,
    kind: FileType,
    orphan: bool,
    /// Of a directory: whether its name was met where it says it lies.
    placed: bool,
}

/// The inodes after `after` up to `last`, all of them.
#[derive(Debug)]
struct Window {
    after: Ino,
    last: Ino,
    seen: Vec<Seen>,
}

type Stray = (Ino, Name, Ino);
type Report<'a> = &'a mut dyn FnMut(Problem);
type Progress<'a> = &'a mut dyn FnMut(&'static str, u64);

pub(super) fn check(
    engine: &dyn Engine,
    size: usize,
    totals: &mut Totals,
    report: Report<'_>,
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let mut acls = Acls::new(engine, report)?;
    let mut after = Ino(0);
    loop {
        let first = after == Ino(0);
        let mut window = Window { after, last: Ino(u64::MAX), seen: Vec::new() };
        walk::node_pages(engine, after, |nodes| {
            check_nodes(engine, nodes, &mut acls, report)?;
            for node in nodes {
                totals.usage.inodes += 1;
                totals.usage.blocks = totals.usage.blocks.wrapping_add(node.blocks());
                window.seen.push(Seen::new(node));
            }
            totals.checked.inodes += nodes.len() as u64;
            progress("inodes", totals.checked.inodes);
            let full = window.seen.len() >= size;
            window.last = nodes.last().filter(|_| full).map_or(window.last, |node| node.ino);
            Ok(!full)
        })?;
        totals.last_ino = totals.last_ino.max(window.seen.last().map_or(Ino(0), |seen| seen.ino));
        if first && window.seen.iter().all(|seen| seen.ino != Ino::ROOT || !seen.kind.is_dir()) {
            report(Problem::NoRoot);
        }
        window.count_names(engine, first, totals, report, progress)?;
        window.count_orphans(engine, first, totals, report)?;
        window.judge(report);
        if window.last == Ino(u64::MAX) {
            return Ok(());
        }
        after = window.last;
    }
}

impl Seen {
    fn new(node: &Node) -> Self {
        Seen {
            ino: node.ino,
            parent: node.parent,
            nlink: node.nlink,
            names: 0,
            subdirs: 0,
            kind: node.kind,
            orphan: false,
            // The root has no name, so that any is one too many.
            placed: node.ino == Ino::ROOT,
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

    fn count_names(
        &mut self,
        engine: &dyn Engine,
        first: bool,
        totals: &mut Totals,
        report: Report<'_>,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let mut strays: Vec<Stray> = Vec::new();
        let mut walked = 0;
        walk::all_entries(engine, |dir, name, edge| {
            self.count_name(dir, name, edge, &mut strays, report);
            totals.last_ino = totals.last_ino.max(edge.ino);
            walked += 1;
            if walked % walk::PAGE as u64 == 0 {
                progress("names", walked);
            }
            true
        })?;
        if first {
            totals.checked.entries = walked;
        }
        for (dir, name, ino) in strays {
            let Some(seen) = self.find(ino) else { continue };
            if seen.placed {
                report(Problem::SecondName { dir, name, ino });
            } else {
                seen.placed = true;
                report(Problem::Parent { ino, says: seen.parent, is: dir });
            }
        }
        Ok(())
    }

    fn count_name(&mut self, dir: Ino, name: &Name, edge: Edge, strays: &mut Vec<Stray>, report: Report<'_>) {
        let ino = edge.ino;
        if edge.kind.is_dir()
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
        if seen.kind != edge.kind {
            let (says, is) = (edge.kind, seen.kind);
            report(Problem::EntryKind { dir, name: name.clone(), ino, says, is });
        }
        if !seen.kind.is_dir() {
            return;
        }
        if seen.parent == dir && !seen.placed {
            seen.placed = true;
        } else if strays.len() < STRAYS {
            strays.push((dir, name.clone(), ino));
        }
    }

    fn count_orphans(
        &mut self,
        engine: &dyn Engine,
        first: bool,
        totals: &mut Totals,
        report: Report<'_>,
    ) -> Result<(), EngineError> {
        walk::orphans(engine, |session, ino| {
            if first {
                totals.last_ino = totals.last_ino.max(ino);
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

    fn judge(&self, report: Report<'_>) {
        for seen in &self.seen {
            let &Seen { ino, kind, nlink, names, subdirs, .. } = seen;
            let root = ino == Ino::ROOT;
            if root && seen.parent != ino {
                report(Problem::Parent { ino, says: seen.parent, is: ino });
            }
            if names == 0 && !root && !seen.orphan {
                report(Problem::Lost { ino, kind });
                if !kind.is_dir() {
                    continue;
                }
            }
            let is = if kind.is_dir() { 2 + subdirs } else { names };
            if nlink != is {
                report(Problem::Links { ino, says: nlink, is });
            }
        }
    }
}

/// ACLs that were read, by id, or what is wrong with them.
#[derive(Debug)]
struct Acls {
    /// They are NFSv4 ACLs.
    nfs4: bool,
    /// How many Windows domains the volume knows; where that is damaged, none is missed.
    domains: Option<u32>,
    found: HashMap<AclId, Result<Whole, Fault>>,
}

/// What an ACL has to agree with.
#[derive(Clone, Copy, Debug)]
struct Whole {
    id: AclId,
    /// The permission bits that it stands for.
    rwx: u32,
    /// The highest number of a domain that it names.
    domain: u32,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Missing,
    Damaged,
}

impl Acls {
    fn new(engine: &dyn Engine, report: Report<'_>) -> Result<Self, EngineError> {
        let settings = match engine.read(&[Want::Settings])?.records.first() {
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

    fn read(&mut self, engine: &dyn Engine, nodes: &[Node]) -> Result<(), EngineError> {
        if self.found.len() > ACLS {
            self.found.clear();
        }
        let ids = nodes.iter().flat_map(Node::acls);
        let mut wants: Vec<AclId> = ids.filter(|id| !self.found.contains_key(id)).collect();
        wants.sort_unstable();
        wants.dedup();
        if wants.is_empty() {
            return Ok(());
        }
        let wants: Vec<Want> = wants.into_iter().map(Want::Acl).collect();
        for record in engine.read(&wants)?.records {
            let Record::Acl(id, text) = record else { continue };
            let found = match text.map(|text| self.parse(&text)) {
                None => Err(Fault::Missing),
                Some(Some(whole)) if whole.id == id => Ok(whole),
                Some(_) => Err(Fault::Damaged),
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

/// What an inode says of itself.
fn check_nodes(
    engine: &dyn Engine,
    nodes: &[Node],
    acls: &mut Acls,
    report: Report<'_>,
) -> Result<(), EngineError> {
    acls.read(engine, nodes)?;
    for node in nodes {
        let ino = node.ino;
        for id in node.acls() {
            match acls.found.get(&id) {
                Some(Ok(Whole { rwx, domain, .. })) => {
                    if id == node.access_acl && *rwx != node.mode.rwx() {
                        report(Problem::AclMode { ino, says: node.mode.rwx(), is: *rwx });
                    }
                    if let Some(is) = acls.domains
                        && is < *domain
                    {
                        report(Problem::AclDomain { ino, id, says: *domain, is });
                    }
                }
                Some(Err(Fault::Damaged)) => report(Problem::AclDamaged { ino, id }),
                Some(Err(Fault::Missing)) | None => report(Problem::AclMissing { ino, id }),
            }
        }
    }
    let links: Vec<&Node> = nodes.iter().filter(|node| node.kind == FileType::Symlink).collect();
    if links.is_empty() {
        return Ok(());
    }
    let wants: Vec<Want> = links.iter().map(|node| Want::Symlink(node.ino)).collect();
    for (node, record) in links.into_iter().zip(engine.read(&wants)?.records) {
        let (ino, says) = (node.ino, node.size);
        match record {
            Record::Symlink(_, Some(target)) if target.len() as u64 != says => {
                report(Problem::TargetLength { ino, says, is: target.len() as u64 });
            }
            Record::Symlink(_, None) => report(Problem::NoTarget { ino }),
            _ => {}
        }
    }
    Ok(())
}
