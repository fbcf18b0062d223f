//! Effects as statements: inodes, names and ACLs, those of one kind by one statement, for all transactions that are applied
//! together. Where that would not come to the same, they are in several layers, each written after the one before.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Effect, Node, Txn};
use tables::{Change, Layer, Line, Size, joined, layers, list, put, removed, values};
use types::{Ino, Term};

use crate::script::{REPLACED, Script};
use crate::sql::{Row, bytes, is, literals, of_session, ops, or_null, row, statements};

/// Writes out all effects of `txns`, and what they do to the volume's usage: that of inodes which are there before or are
/// changed is measured before and after. With `careful` new inodes may have numbers of old ones, which they then replace,
/// and names may be there, whatever was looked at.
pub(crate) fn apply(script: &mut Script, txns: &[&Txn], mut careful: bool) {
    let layers = layers(txns.iter().flat_map(|txn| &txn.effects));
    let puts = || layers.iter().flat_map(|layer| &layer.puts);
    let put: BTreeSet<Ino> = puts().map(|node| node.ino).collect();
    let new_names = !careful && txns.iter().all(|txn| tables::puts_free_names(txn));
    // What is put twice is there the second time.
    careful |= put.len() < puts().count();
    let mut measured = if careful { put } else { BTreeSet::new() };
    for Layer { drops, changes, .. } in &layers {
        measured.extend(drops);
        measured.extend(changes.iter().filter(|(_, change)| change.size != Size::Kept).map(|(ino, _)| *ino));
    }
    let inos = list(&measured);
    if !measured.is_empty() {
        script.run(statements!("measure"), &[&inos]);
    }
    layers.iter().for_each(|layer| write(script, layer, careful, new_names));
    let new = || puts().filter(|node| !measured.contains(&node.ino));
    let added = [new().count() as u64, new().map(Node::blocks).sum()].map(|number| number.to_string());
    if !measured.is_empty() {
        script.run(statements!("add_measured"), &[&added[..], &[inos]].concat());
    } else if new().next().is_some() {
        script.run(statements!("add_usage"), &added);
    }
    for effect in txns.iter().flat_map(|txn| &txn.effects) {
        if let Effect::AddUsage { inodes, blocks } = effect {
            script.run(statements!("correct_usage"), &[inodes, blocks]);
        }
    }
}

fn write(script: &mut Script, layer: &Layer<'_>, careful: bool, new_names: bool) {
    if !layer.drops.is_empty() {
        drop_nodes(script, &list(&layer.drops));
    }
    if !layer.puts.is_empty() {
        put_nodes(script, &layer.puts, careful);
    }
    change_nodes(script, &layer.changes);
    let (mut acls, mut names, mut gone) = (BTreeSet::new(), Vec::new(), Vec::new());
    for effect in &layer.others {
        match effect {
            Effect::PutAcl { .. } => acls.extend(put(effect).iter().map(literals)),
            Effect::PutEdge { .. } => names.extend(put(effect)),
            Effect::DropEdge { .. } => gone.extend(removed(effect).map(|key| is(&row(&key), "="))),
            _ => other(script, effect),
        }
    }
    // By id: whoever puts several locks them in one order.
    acls.iter().for_each(|acl| script.run(statements!("put_acl"), acl));
    if !names.is_empty() {
        let replaced =
            if new_names { "" } else { " ON DUPLICATE KEY UPDATE ino = VALUES(ino), kind = VALUES(kind)" };
        script.put(insert(&names) + replaced);
    }
    if !gone.is_empty() {
        script.put(format!("DELETE FROM `@edge` WHERE {}", joined(gone, " OR ")));
    }
}

/// The inodes go, with all they have.
fn drop_nodes(script: &mut Script, inos: &str) {
    script.run(statements!("release"), &[format!("c.ino IN ({inos})")]);
    script.run(statements!("drop_nodes"), &[inos]);
}

fn put_nodes(script: &mut Script, nodes: &[Node], careful: bool) {
    if careful {
        let inos = list(nodes.iter().map(|node| node.ino));
        script.put(format!("SELECT COUNT(*) INTO @x FROM `@node` WHERE ino IN ({inos})"));
        script.only_if(REPLACED, |script| drop_nodes(script, &inos));
    }
    script.put(insert(&nodes.iter().map(Line::node).collect::<Vec<_>>()));
}

/// Inserts rows of one table that have all its columns.
fn insert(lines: &[Line<'_>]) -> String {
    let [table, columns, _] = lines.first().map(parts).unwrap_or_default();
    let rows = list(lines.iter().map(|line| format!("({})", list(literals(line)))));
    format!("INSERT INTO {table} ({columns}) VALUES {rows}")
}

/// The table, the columns, and what stands in these.
fn parts(line: &Line<'_>) -> [String; 3] {
    [format!("`@{}`", line.table.name), list(line.columns()), list(literals(line))]
}

/// Inodes to which the same things happen, as directories get other times, are changed by one statement.
fn change_nodes(script: &mut Script, changes: &BTreeMap<Ino, Change>) {
    let mut groups: BTreeMap<Vec<&str>, Vec<(Ino, Row)>> = BTreeMap::new();
    for (ino, change) in changes {
        let row = assignments(change);
        groups.entry(row.iter().map(|(column, _)| *column).collect()).or_default().push((*ino, row));
    }
    // What changes nothing may be there.
    groups.remove(&Vec::new());
    for (columns, group) in groups {
        let when = |(ino, row): &(Ino, Row), at: usize| format!("WHEN {ino} THEN {}", row[at].1);
        let value = |at: usize| match &group[..] {
            [(_, row)] => row[at].1.clone(),
            _ => format!("CASE ino {} END", joined(group.iter().map(|one| when(one, at)), " ")),
        };
        let set = list(columns.iter().enumerate().map(|(at, column)| format!("{column} = {}", value(at))));
        let inos = list(group.iter().map(|(ino, _)| ino));
        // A server takes longer for what it need not be told.
        script.put(match &group[..] {
            [_] => format!("UPDATE `@node` SET {set} WHERE ino = {inos}"),
            _ => format!("UPDATE `@node` FORCE INDEX (PRIMARY) SET {set} WHERE ino IN ({inos})"),
        });
    }
}

/// The columns that change, and what they become.
fn assignments(change: &Change) -> Row {
    let mut row = Row::new();
    let mut set = |column, value: String| row.push((column, value));
    let Change { links, least_links, access_revs, .. } = change;
    if (*links, *least_links) != (0, 0) {
        let bounded = format!("GREATEST(CAST(nlink AS SIGNED) + {links}, {least_links})");
        set("nlink", format!("LEAST({bounded}, {})", u32::MAX));
    }
    for (column, time) in [("atime", change.atime), ("mtime", change.mtime)] {
        time.into_iter().for_each(|time| set(column, time.nanos().to_string()));
    }
    change.ctime.into_iter().for_each(|time| set("ctime", format!("GREATEST(ctime, {})", time.nanos())));
    if let Some(access) = &change.access {
        let numbers = [("mode", access.mode.bits()), ("uid", access.uid), ("gid", access.gid)];
        numbers.into_iter().for_each(|(column, number)| set(column, number.to_string()));
        for (column, id) in [("access_acl", access.access_acl), ("default_acl", access.default_acl)] {
            set(column, or_null(values::acl(id).map(|id| bytes(&id))));
        }
        set("access_rev", format!("access_rev + {access_revs}"));
    }
    change.parent.into_iter().for_each(|parent| set("parent", parent.to_string()));
    match change.size {
        Size::Kept => {}
        Size::AtLeast(size) => set("size", format!("GREATEST(size, {size})")),
        Size::Set(size) => set("size", size.to_string()),
    }
    row
}

/// An effect that is not taken together with others: on what an inode has, or on what belongs to none.
fn other(script: &mut Script, effect: &Effect) {
    let with = |line: Line<'_>, more: [String; 2]| [&parts(&line)[1..], &more[..]].concat();
    match effect {
        Effect::AppendSlice { ino, chunk, .. } => {
            for line in put(effect) {
                script.run(statements!("append_row"), &with(line, [ino.0, chunk.0].map(|n| n.to_string())));
            }
        }
        Effect::DropSlices { ino, from, to } => {
            let gone = format!("c.ino = {ino} AND c.chunk >= {from} AND c.chunk < {to}");
            script.run(statements!("release"), &[gone]);
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            script.run(statements!("oldest_rows"), &[ino.0, chunk.0, u64::from(*count)]);
            let gone = format!("c.ino = {ino} AND c.chunk = {chunk} AND c.seq <= @l");
            script.run(statements!("release"), &[gone]);
            for (place, line) in (1..).zip(put(effect)) {
                let places = [rows.len(), place].map(|place| place.to_string());
                script.run(statements!("put_oldest_row"), &with(line, places));
            }
        }
        Effect::Share { slice } => script.run(statements!("share"), &[slice]),
        _ => {
            // Commits lock this row and renewals change the other: see guard.rs. It is locked first.
            match effect {
                Effect::PutSession(session) => {
                    let row = ops(session.id, Term::NONE);
                    script.put(format!("INSERT IGNORE INTO `@fence` (ops) VALUES ({row})"));
                }
                Effect::DropSession { session } => {
                    script.put(format!("DELETE FROM `@fence` WHERE {}", of_session(*session)));
                }
                Effect::BeginTerm { session, term, ended } => {
                    let keys = [Term::NONE, *term].map(|term| ops(*session, term));
                    script.run(statements!("begin_term"), &keys);
                    for term in &ended[..] {
                        // A commit of it that is under way comes before.
                        script.put(format!("DELETE FROM `@fence` WHERE ops = {}", ops(*session, *term)));
                    }
                }
                _ => {}
            }
            if let Some(key) = removed(effect) {
                script.put(format!("DELETE FROM `@{}` WHERE {}", key.table.name, is(&row(&key), "=")));
            }
            for line in put(effect) {
                let [table, columns, values] = parts(&line);
                // What an inode has goes with it, and so does not come without it.
                let values = match tables::holder(effect) {
                    Some(ino) => format!("SELECT {values} FROM `@node` WHERE ino = {ino}"),
                    None => format!("VALUES ({values})"),
                };
                script.put(format!("REPLACE INTO {table} ({columns}) {values}"));
            }
        }
    }
}
