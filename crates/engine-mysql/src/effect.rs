//! Effects as statements.
//!
//! Those of one kind become one statement, for all transactions that are applied together: they are collected, and
//! written out in an order that comes to the same as theirs: new inodes, changes of inodes and of what they have,
//! removals; entries beside. Where that would not come to the same, what was collected is written out first.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Access, Effect, Guard, Node, Txn};
use types::{Ino, Name};

use crate::body::{self, release};
use crate::rows::NODE_COLUMNS;
use crate::script::{Count, Script, When};
use crate::sql::{Bytes, Text, acl_id, joined, list};

/// Where the statements go, and when they are to run.
pub(crate) struct Target<'a> {
    pub(crate) script: &'a mut Script,
    pub(crate) when: When,
    /// What the names of tables begin with.
    pub(crate) p: &'a str,
    /// New inodes may have numbers of old ones, which they then replace.
    pub(crate) careful: bool,
}

impl Target<'_> {
    pub(crate) fn put(&mut self, sql: impl Into<String>) {
        self.script.when(self.when, sql);
    }

    pub(crate) fn put_if(&mut self, count: Count, sql: impl Into<String>) {
        self.script.step(self.when, count, sql);
    }
}

/// The bytes of file data that an inode's row stands for, in blocks; what [`Node::blocks`] says.
const BLOCKS: &str = "IF(kind = 8, (size + 4095) DIV 4096, 0)";

/// Writes out all effects of `txns`. What they do to the volume's usage goes to one of its rows, the connection's own as
/// a rule, so that nobody waits for another there.
pub(crate) fn apply(target: &mut Target<'_>, txns: &[&Txn]) {
    let effects = || txns.iter().flat_map(|txn| &txn.effects);
    let mut puts = BTreeSet::new();
    let mut measured = BTreeSet::new();
    for effect in effects() {
        match effect {
            Effect::PutNode(node) if puts.contains(&node.ino) => drop(measured.insert(node.ino)),
            Effect::PutNode(node) => drop(puts.insert(node.ino)),
            Effect::DropNode { ino } | Effect::SetSize { ino, .. } | Effect::Extend { ino, .. } => {
                measured.insert(*ino);
            }
            _ => {}
        }
    }
    let p = target.p;
    let of_measured = format!("FROM `{p}node` WHERE ino IN ({})", list(measured.iter().map(|ino| ino.0)));
    if !measured.is_empty() {
        target.put(format!("SELECT COUNT(*), COALESCE(SUM({BLOCKS}), 0) INTO @i, @b {of_measured}"));
    }
    let mut writer = Writer { new_names: are_new_names(txns), ..Writer::default() };
    let (mut inodes, mut blocks) = (0, 0);
    for effect in effects() {
        if let Effect::PutNode(node) = effect
            && !measured.contains(&node.ino)
        {
            writer.uncounted.insert(node.ino);
            (inodes, blocks) = (inodes + 1, blocks + node.blocks());
        }
        writer.add(target, effect);
    }
    writer.write(target);
    let added = match (inodes, measured.is_empty()) {
        (0, true) => None,
        (_, true) => Some(format!("SET inodes = inodes + {inodes}, blocks = blocks + {blocks}")),
        (_, false) => Some(format!(
            "JOIN (SELECT COUNT(*) AS i, COALESCE(SUM({BLOCKS}), 0) AS b {of_measured}) AS now \
             SET inodes = inodes + now.i - @i + {inodes}, blocks = blocks + now.b - @b + {blocks}"
        )),
    };
    if let Some(added) = added {
        target.put(format!("UPDATE `{p}usage` {added} WHERE {SLOT}"));
    }
    for effect in effects() {
        if let Effect::AddUsage { inodes, blocks } = effect {
            target.put(format!(
                "UPDATE `{p}usage` JOIN (SELECT SUM(inodes) AS i, SUM(blocks) AS b FROM `{p}usage`) AS now \
                 SET inodes = inodes + GREATEST({inodes}, -now.i), blocks = blocks + GREATEST({blocks}, -now.b) \
                 WHERE {SLOT}"
            ));
        }
    }
}

/// The names that a transaction puts.
pub(crate) fn names(txn: &Txn) -> impl Iterator<Item = (Ino, &Name)> {
    txn.effects.iter().filter_map(|effect| match effect {
        Effect::PutEdge { parent, name, .. } => Some((*parent, name)),
        _ => None,
    })
}

/// The name that has to be free for the guard to hold.
pub(crate) fn free(guard: &Guard) -> Option<(Ino, &Name)> {
    match guard {
        Guard::EdgeAbsent { parent, name } => Some((*parent, name)),
        _ => None,
    }
}

/// Whether each name that is put is put once, and has to be free.
pub(crate) fn are_new_names(txns: &[&Txn]) -> bool {
    let mut seen = BTreeSet::new();
    let is_free = |txn: &Txn, name| txn.guards.iter().any(|guard| free(guard) == Some(name));
    txns.iter().all(|txn| names(txn).all(|name| seen.insert(name) && is_free(txn, name)))
}

/// Rows of table `usage`.
pub(crate) const SLOTS: u32 = 64;
const SLOT: &str = "slot = CONNECTION_ID() % 64";

#[derive(Default)]
struct Writer<'e> {
    batch: Collected<'e>,
    /// Inodes that were put and written out, so that they are there if they are put again.
    put: BTreeSet<Ino>,
    /// New inodes that the usage gets by number, without a look at their rows.
    uncounted: BTreeSet<Ino>,
    /// No name that is put is there.
    new_names: bool,
}

#[derive(Default)]
struct Collected<'e> {
    /// Written first, by id: whoever puts several ACLs locks them in one order.
    acls: BTreeMap<[u8; 16], &'e str>,
    puts: Vec<&'e Node>,
    changes: BTreeMap<Ino, Changed>,
    /// What is done to what inodes have, and to what belongs to none.
    others: Vec<&'e Effect>,
    drops: BTreeSet<Ino>,
    put_edges: Vec<String>,
    drop_edges: Vec<String>,
    /// The inodes that `puts`, `changes` and `others` name, and the entries.
    bodies: BTreeSet<Ino>,
    edges: BTreeSet<(Ino, &'e Name)>,
    /// Some of `others` have to do with who refers to slices.
    slices: bool,
}

/// What becomes of an inode's row.
#[derive(Default)]
struct Changed {
    /// Neighbours of one sign are added up: the bounds make no difference to these.
    links: Vec<i64>,
    atime: Option<i64>,
    mtime: Option<i64>,
    ctime: Option<i64>,
    access: Option<Access>,
    access_revs: u64,
    parent: Option<Ino>,
    size: Size,
}

#[derive(Clone, Copy, Default)]
enum Size {
    #[default]
    Kept,
    AtLeast(u64),
    Set(u64),
}

impl<'e> Writer<'e> {
    fn add(&mut self, target: &mut Target<'_>, effect: &'e Effect) {
        match effect {
            Effect::PutNode(node) => {
                if self.batch.slices {
                    self.write(target);
                }
                if self.batch.bodies.contains(&node.ino) || self.batch.drops.contains(&node.ino) {
                    self.write(target);
                }
                self.batch.bodies.insert(node.ino);
                self.batch.puts.push(node);
            }
            Effect::DropNode { ino } => drop(self.batch.drops.insert(*ino)),
            Effect::PutEdge { parent, name, ino, kind } => {
                self.name(target, *parent, name);
                let name = Bytes(name.as_bytes());
                let edge = format!("({}, {name}, {}, {})", parent.0, ino.0, kind.to_dtype());
                self.batch.put_edges.push(edge);
            }
            Effect::DropEdge { parent, name } => {
                self.name(target, *parent, name);
                let name = Bytes(name.as_bytes());
                self.batch.drop_edges.push(format!("(parent = {} AND name = {name})", parent.0));
            }
            Effect::PutAcl { id, text } => drop(self.batch.acls.entry(id.to_bytes()).or_insert(text)),
            Effect::AddUsage { .. } => {}
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::Touch { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. } => {
                self.body(target, *ino);
                self.batch.changes.entry(*ino).or_default().add(effect);
            }
            Effect::AppendSlice { ino, .. }
            | Effect::PutXattr { ino, .. }
            | Effect::DropXattr { ino, .. }
            | Effect::PutSymlink { ino, .. }
            | Effect::PutLocks { ino, .. } => {
                self.body(target, *ino);
                self.batch.others.push(effect);
            }
            Effect::DropSlices { ino, .. } | Effect::ReplaceRows { ino, .. } => {
                self.body(target, *ino);
                self.slices(target, effect);
            }
            Effect::Share { .. } | Effect::DropGarbage { .. } => self.slices(target, effect),
            _ => self.batch.others.push(effect),
        }
    }

    /// Something is done to an inode or to what it has.
    fn body(&mut self, target: &mut Target<'_>, ino: Ino) {
        if self.batch.drops.contains(&ino) {
            self.write(target);
        }
        self.batch.bodies.insert(ino);
    }

    /// Something is done to slices, which drops of inodes do as well.
    fn slices(&mut self, target: &mut Target<'_>, effect: &'e Effect) {
        if !self.batch.drops.is_empty() {
            self.write(target);
        }
        self.batch.slices = true;
        self.batch.others.push(effect);
    }

    /// Something is done to an entry.
    fn name(&mut self, target: &mut Target<'_>, parent: Ino, name: &'e Name) {
        if self.batch.edges.contains(&(parent, name)) {
            self.write(target);
        }
        self.batch.edges.insert((parent, name));
    }

    /// Writes out what was collected.
    fn write(&mut self, target: &mut Target<'_>) {
        let p = target.p;
        let batch = std::mem::take(&mut self.batch);
        for (id, text) in batch.acls {
            // One that is there is not even locked, so that those who use the same ACL do not wait for each other.
            let id = Bytes(&id);
            target.put(format!(
                "INSERT IGNORE INTO `{p}acl` (id, text) SELECT {id}, {} FROM DUAL \
                 WHERE NOT EXISTS(SELECT 1 FROM `{p}acl` WHERE id = {id})",
                Text(text)
            ));
        }
        self.put_nodes(target, &batch.puts);
        change_nodes(target, batch.changes);
        batch.others.iter().for_each(|effect| body::write(target, effect));
        if !batch.drops.is_empty() {
            drop_nodes(target, None, &list(batch.drops.iter().map(|ino| ino.0)));
        }
        if !batch.put_edges.is_empty() {
            let replaced = if self.new_names {
                ""
            } else {
                "ON DUPLICATE KEY UPDATE ino = VALUES(ino), kind = VALUES(kind)"
            };
            target.put(format!(
                "INSERT INTO `{p}edge` (parent, name, ino, kind) VALUES {} {replaced}",
                list(batch.put_edges)
            ));
        }
        if !batch.drop_edges.is_empty() {
            target.put(format!("DELETE FROM `{p}edge` WHERE {}", joined(batch.drop_edges, " OR ")));
        }
    }

    fn put_nodes(&mut self, target: &mut Target<'_>, nodes: &[&Node]) {
        if nodes.is_empty() {
            return;
        }
        let p = target.p;
        let replaced = list(nodes.iter().map(|node| node.ino.0));
        let uncounted = nodes.iter().map(|node| node.ino).filter(|ino| self.uncounted.contains(ino));
        let uncounted = list(uncounted.map(|ino| ino.0));
        if target.careful && !uncounted.is_empty() {
            target.put_if(
                Count::Replaced,
                format!(
                    "UPDATE `{p}usage` JOIN (SELECT COUNT(*) AS i, COALESCE(SUM({BLOCKS}), 0) AS b FROM `{p}node` \
                     WHERE ino IN ({uncounted})) AS old SET inodes = inodes - old.i, blocks = blocks - old.b WHERE {SLOT}"
                ),
            );
        }
        let again = nodes.iter().any(|node| self.put.contains(&node.ino));
        if again {
            drop_nodes(target, None, &replaced);
        } else if target.careful {
            drop_nodes(target, Some(Count::Replaced), &replaced);
        }
        self.put.extend(nodes.iter().map(|node| node.ino));
        let rows = nodes.iter().map(|node| {
            format!(
                "({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})",
                node.ino.0,
                node.kind.to_dtype(),
                node.mode.bits(),
                node.uid,
                node.gid,
                node.rdev,
                node.nlink,
                node.size,
                node.atime.nanos(),
                node.mtime.nanos(),
                node.ctime.nanos(),
                node.parent.0,
                node.access_rev,
                acl_id(node.access_acl),
                acl_id(node.default_acl)
            )
        });
        target.put(format!("INSERT INTO `{p}node` ({NODE_COLUMNS}) VALUES {}", list(rows)));
    }
}

/// Those that only get other times, as directories do and what is renamed, are changed by one statement for all that get
/// times of the same kinds.
fn change_nodes(target: &mut Target<'_>, changes: BTreeMap<Ino, Changed>) {
    let p = target.p;
    let mut touched: BTreeMap<[bool; 3], Vec<(Ino, Changed)>> = BTreeMap::new();
    for (ino, changed) in changes {
        if changed.is_of_times() {
            touched.entry(changed.times().map(|time| time.is_some())).or_default().push((ino, changed));
        } else {
            target.put(format!("UPDATE `{p}node` SET {} WHERE ino = {}", changed.assignments(), ino.0));
        }
    }
    for same in touched.into_values() {
        if let [(ino, changed)] = &same[..] {
            target.put(format!("UPDATE `{p}node` SET {} WHERE ino = {}", changed.assignments(), ino.0));
            continue;
        }
        let inos = list(same.iter().map(|(ino, _)| ino.0));
        let each = |time: usize| {
            let times = same.iter().filter_map(|(ino, changed)| {
                let time = changed.times().get(time).copied().flatten()?;
                Some(format!("WHEN {} THEN {time}", ino.0))
            });
            let times = joined(times, " ");
            (!times.is_empty()).then(|| format!("CASE ino {times} END"))
        };
        let assignments = [
            each(0).map(|times| format!("atime = {times}")),
            each(1).map(|times| format!("mtime = {times}")),
            each(2).map(|times| format!("ctime = GREATEST(ctime, {times})")),
        ];
        let assignments = list(assignments.into_iter().flatten());
        target.put(format!("UPDATE `{p}node` FORCE INDEX (PRIMARY) SET {assignments} WHERE ino IN ({inos})"));
    }
}

/// The inodes go, with all they have; if `gate`, only where that is not 0.
fn drop_nodes(target: &mut Target<'_>, gate: Option<Count>, inos: &str) {
    let p = target.p;
    release(target, gate, &format!("c.ino IN ({inos})"));
    for table in ["xattr", "symlink", "lock", "node"] {
        target.put_if(gate.unwrap_or(Count::Any), format!("DELETE FROM `{p}{table}` WHERE ino IN ({inos})"));
    }
}

impl Changed {
    fn add(&mut self, effect: &Effect) {
        match effect {
            Effect::SetAccess { access, .. } => {
                self.access = Some(*access);
                self.access_revs += 1;
            }
            Effect::SetParent { parent, .. } => self.parent = Some(*parent),
            Effect::AddLinks { delta, .. } => {
                let delta = i64::from(*delta);
                match self.links.last_mut() {
                    Some(last) if (*last < 0) == (delta < 0) => *last += delta,
                    _ => self.links.push(delta),
                }
            }
            Effect::Touch { atime, mtime, ctime, .. } => {
                self.atime = atime.map(|time| time.nanos()).or(self.atime);
                self.mtime = mtime.map(|time| time.nanos()).or(self.mtime);
                self.ctime = ctime.map(|time| time.nanos()).max(self.ctime);
            }
            Effect::SetSize { size, .. } => self.size = Size::Set(*size),
            Effect::Extend { size, .. } => {
                self.size = match self.size {
                    Size::Kept => Size::AtLeast(*size),
                    Size::AtLeast(least) => Size::AtLeast(least.max(*size)),
                    Size::Set(set) => Size::Set(set.max(*size)),
                }
            }
            _ => {}
        }
    }

    fn times(&self) -> [Option<i64>; 3] {
        [self.atime, self.mtime, self.ctime]
    }

    /// Whether it gets other times and nothing else.
    fn is_of_times(&self) -> bool {
        let others = !self.links.is_empty() || self.access.is_some() || self.parent.is_some();
        !others && matches!(self.size, Size::Kept) && self.times().iter().any(Option::is_some)
    }

    /// One column after the other: each assignment sees those before it.
    fn assignments(&self) -> String {
        let mut all = Vec::new();
        for delta in &self.links {
            all.push(format!("nlink = LEAST(GREATEST(CAST(nlink AS SIGNED) + {delta}, 0), {})", u32::MAX));
        }
        if let Some(time) = self.atime {
            all.push(format!("atime = {time}"));
        }
        if let Some(time) = self.mtime {
            all.push(format!("mtime = {time}"));
        }
        if let Some(time) = self.ctime {
            all.push(format!("ctime = GREATEST(ctime, {time})"));
        }
        if let Some(access) = &self.access {
            all.push(format!(
                "mode = {}, uid = {}, gid = {}, access_acl = {}, default_acl = {}, access_rev = access_rev + {}",
                access.mode.bits(),
                access.uid,
                access.gid,
                acl_id(access.access_acl),
                acl_id(access.default_acl),
                self.access_revs
            ));
        }
        if let Some(parent) = self.parent {
            all.push(format!("parent = {}", parent.0));
        }
        match self.size {
            Size::Kept => {}
            Size::AtLeast(size) => all.push(format!("size = GREATEST(size, {size})")),
            Size::Set(size) => all.push(format!("size = {size}")),
        }
        if all.is_empty() {
            // A touch of nothing.
            all.push("ino = ino".to_owned());
        }
        list(all)
    }
}
