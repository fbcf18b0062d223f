//! Effects as statements: inodes, names and ACLs, those of one kind by one statement, for all transactions that are applied
//! together. Where that would not come to the same, they are in several layers, each written after the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use meta::{Effect, Node, Txn};
use tables::{Change, Layer, Size, Table, layers, values};
use types::Ino;

use crate::body;
use crate::script::{REPLACED, Script};
use crate::sql::{acl, bytes, fill, is, joined, list, row, statements, text};

/// Where the statements go, and what they need to run.
pub(crate) struct Target<'a> {
    pub(crate) script: &'a mut Script,
    pub(crate) needs: Vec<&'static str>,
    /// New inodes may have numbers of old ones, which they then replace.
    pub(crate) careful: bool,
}

impl Target<'_> {
    pub(crate) fn put(&mut self, sql: impl Into<String>) {
        self.script.step(&self.needs, sql);
    }

    /// Puts what [`statements`] says.
    pub(crate) fn run<T: Display>(&mut self, file: &'static str, values: &[T]) {
        let (_, statements) = file.split_once("\n\n").unwrap_or_default();
        for statement in statements.split_terminator(";\n") {
            match statement.strip_prefix("IF ").and_then(|rest| rest.split_once(" THEN ")) {
                Some((need, sql)) => self.only_if(need).put(fill(sql, values)),
                None => self.put(fill(statement, values)),
            }
        }
    }

    /// What is put there needs something more.
    fn only_if(&mut self, need: &'static str) -> Target<'_> {
        let needs = [&self.needs[..], &[need]].concat();
        Target { script: &mut *self.script, needs, careful: self.careful }
    }
}

/// Writes out all effects of `txns`, and what they do to the volume's usage: that of inodes which are there before or are
/// changed is measured before and after.
pub(crate) fn apply(target: &mut Target<'_>, txns: &[&Txn]) {
    let layers = layers(txns.iter().flat_map(|txn| &txn.effects));
    let puts = || layers.iter().flat_map(|layer| &layer.puts);
    let put: BTreeSet<Ino> = puts().map(|node| node.ino).collect();
    // What is put twice is there the second time.
    target.careful |= put.len() < puts().count();
    let mut measured = if target.careful { put } else { BTreeSet::new() };
    for Layer { drops, changes, .. } in &layers {
        measured.extend(drops);
        measured.extend(changes.iter().filter(|(_, change)| change.size != Size::Kept).map(|(ino, _)| *ino));
    }
    let inos = list(&measured);
    if !measured.is_empty() {
        target.run(statements!("measure"), &[&inos]);
    }
    let new_names = are_new_names(txns);
    layers.iter().for_each(|layer| write(target, layer, new_names));
    let new = || puts().filter(|node| !measured.contains(&node.ino));
    let added = [new().count() as u64, new().map(Node::blocks).sum()].map(|number| number.to_string());
    if !measured.is_empty() {
        target.run(statements!("add_measured"), &[&added[..], &[inos]].concat());
    } else if new().next().is_some() {
        target.run(statements!("add_usage"), &added);
    }
    for effect in txns.iter().flat_map(|txn| &txn.effects) {
        if let Effect::AddUsage { inodes, blocks } = effect {
            target.run(statements!("correct_usage"), &[inodes, blocks]);
        }
    }
}

/// Whether each name that is put is put once, and has to be free.
pub(crate) fn are_new_names(txns: &[&Txn]) -> bool {
    let mut seen = BTreeSet::new();
    txns.iter().all(|txn| {
        let free: Vec<_> = txn.guards.iter().filter_map(tables::free).collect();
        txn.effects.iter().filter_map(tables::named).all(|name| seen.insert(name) && free.contains(&name))
    })
}

fn write(target: &mut Target<'_>, layer: &Layer<'_>, new_names: bool) {
    // By id: whoever puts several ACLs locks them in one order.
    let mut acls = BTreeMap::new();
    let (mut put, mut dropped) = (Vec::new(), Vec::new());
    for effect in &layer.others {
        match effect {
            Effect::PutAcl { id, text } => drop(acls.entry(id.to_bytes()).or_insert(text)),
            Effect::PutEdge { parent, name, ino, kind } => {
                put.push(format!("({parent}, {}, {ino}, {})", bytes(name.as_bytes()), kind.to_dtype()));
            }
            Effect::DropEdge { parent, name } => {
                dropped.push(is(&row!(parent = parent, name = bytes(name.as_bytes())), "="));
            }
            _ => {}
        }
    }
    for (id, storage_form) in acls {
        target.run(statements!("put_acl"), &[bytes(&id), text(storage_form)]);
    }
    if !layer.drops.is_empty() {
        drop_nodes(target, &list(&layer.drops));
    }
    if !layer.puts.is_empty() {
        put_nodes(target, &layer.puts);
    }
    change_nodes(target, &layer.changes);
    layer.others.iter().for_each(|effect| body::write(target, effect));
    if !put.is_empty() {
        let replaced = match new_names {
            true => "",
            false => " ON DUPLICATE KEY UPDATE ino = VALUES(ino), kind = VALUES(kind)",
        };
        target.put(format!("INSERT INTO `@edge` (parent, name, ino, kind) VALUES {}{replaced}", list(put)));
    }
    if !dropped.is_empty() {
        target.put(format!("DELETE FROM `@edge` WHERE {}", joined(dropped, " OR ")));
    }
}

/// The inodes go, with all they have.
fn drop_nodes(target: &mut Target<'_>, inos: &str) {
    target.run(statements!("release"), &[format!("c.ino IN ({inos})")]);
    target.run(statements!("drop_nodes"), &[inos]);
}

fn put_nodes(target: &mut Target<'_>, nodes: &[Node]) {
    if target.careful {
        let inos = list(nodes.iter().map(|node| node.ino));
        target.put(format!("SELECT COUNT(*) INTO @x FROM `@node` WHERE ino IN ({inos})"));
        drop_nodes(&mut target.only_if(REPLACED), &inos);
    }
    let rows = nodes.iter().map(|node| {
        let acls = [node.access_acl, node.default_acl].map(acl);
        format!("({}, {})", list(values::node(node)), list(acls))
    });
    target.put(format!("INSERT INTO `@node` ({}) VALUES {}", list(Table::NODE.columns()), list(rows)));
}

/// Inodes to which the same things happen, as directories get other times, are changed by one statement.
fn change_nodes(target: &mut Target<'_>, changes: &BTreeMap<Ino, Change>) {
    let mut groups: BTreeMap<Vec<String>, Vec<(Ino, Vec<String>)>> = BTreeMap::new();
    for (ino, change) in changes {
        let (assigned, values) = assignments(change).into_iter().unzip();
        groups.entry(assigned).or_default().push((*ino, values));
    }
    // What changes nothing may be there.
    groups.remove(&Vec::new());
    for (assigned, group) in &groups {
        let case = |at: usize| {
            joined(group.iter().map(|(ino, values)| format!("WHEN {ino} THEN {}", values[at])), " ")
        };
        let value = |at: usize| match &group[..] {
            [(_, values)] => values[at].clone(),
            _ => format!("CASE ino {} END", case(at)),
        };
        let set = list(assigned.iter().enumerate().map(|(at, assignment)| fill(assignment, &[value(at)])));
        target.put(match &group[..] {
            [(ino, _)] => format!("UPDATE `@node` SET {set} WHERE ino = {ino}"),
            _ => {
                let inos = list(group.iter().map(|(ino, _)| ino));
                format!("UPDATE `@node` FORCE INDEX (PRIMARY) SET {set} WHERE ino IN ({inos})")
            }
        });
    }
}

/// Assignments, each with the value that `?1` stands for.
fn assignments(change: &Change) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut set = |assignment: &str, value: String| all.push((assignment.to_owned(), value));
    let Change { links, least_links, .. } = change;
    if (*links, *least_links) != (0, 0) {
        let bounded = format!("LEAST(GREATEST(CAST(nlink AS SIGNED) + ?1, {least_links}), {})", u32::MAX);
        set(&format!("nlink = {bounded}"), links.to_string());
    }
    let ctime = "ctime = GREATEST(ctime, ?1)";
    for (assignment, time) in
        [("atime = ?1", change.atime), ("mtime = ?1", change.mtime), (ctime, change.ctime)]
    {
        time.into_iter().for_each(|time| set(assignment, time.nanos().to_string()));
    }
    if let Some(access) = &change.access {
        set("mode = ?1", access.mode.bits().to_string());
        set("uid = ?1", access.uid.to_string());
        set("gid = ?1", access.gid.to_string());
        set("access_acl = ?1", acl(access.access_acl));
        set("default_acl = ?1", acl(access.default_acl));
        set("access_rev = access_rev + ?1", change.access_revs.to_string());
    }
    change.parent.into_iter().for_each(|parent| set("parent = ?1", parent.to_string()));
    match change.size {
        Size::Kept => {}
        Size::AtLeast(size) => set("size = GREATEST(size, ?1)", size.to_string()),
        Size::Set(size) => set("size = ?1", size.to_string()),
    }
    all
}
