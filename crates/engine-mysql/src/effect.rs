//! Effects as statements. One statement applies all effects of one kind on inodes, names or ACLs, for all
//! transactions that are applied together. If that would change the result, the effects are divided into
//! several stages, which are written one after another.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Effect, Inode, QuotaKey, Txn};
use tables::{InodeChange, Line, Size, Stage, Sum, joined, list, put, removed, stages, values};
use types::{Ino, Term};

use crate::script::{REPLACED, Script};
use crate::sql::{
    ColumnLiterals, bytes, each_literal, is, literals, of_session, ops, or_null, row, statements,
};

/// Writes all effects of `txns`, and the change of the volume's usage. The usage of existing inodes that are
/// dropped, replaced or resized is measured before and after. If `careful`, new inodes may have the numbers
/// of existing ones, which they then replace, and names may exist although a guard found them absent, because
/// an earlier effect has put them.
pub(crate) fn apply(script: &mut Script, txns: &[&Txn], mut careful: bool) {
    let stages = stages(txns.iter().flat_map(|txn| &txn.effects));
    let puts = || stages.iter().flat_map(|stage| &stage.puts);
    let put: BTreeSet<Ino> = puts().map(|inode| inode.ino).collect();
    let new_names = !careful && txns.iter().all(|txn| tables::puts_free_names(txn));
    // An inode that is put twice exists the second time.
    careful |= put.len() < puts().count();
    let mut measured = if careful { put } else { BTreeSet::new() };
    for Stage { drops, changes, .. } in &stages {
        measured.extend(drops);
        measured.extend(changes.iter().filter(|(_, change)| change.moves_usage()).map(|(ino, _)| *ino));
    }
    let inos = list(&measured);
    if !measured.is_empty() {
        script.run(statements!("measure"), &[&inos]);
    }
    stages.iter().for_each(|stage| write(script, stage, careful, new_names));
    let new = || puts().filter(|inode| !measured.contains(&inode.ino));
    let added = [new().count() as u64, new().map(Inode::blocks).sum()].map(|number| number.to_string());
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

fn write(script: &mut Script, stage: &Stage<'_>, careful: bool, new_names: bool) {
    if !stage.drops.is_empty() {
        drop_inodes(script, &list(&stage.drops));
    }
    if !stage.puts.is_empty() {
        put_inodes(script, &stage.puts, careful);
    }
    change_inodes(script, &stage.changes);
    let (mut acls, mut names, mut dropped) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut charges: BTreeMap<QuotaKey, [i64; 2]> = BTreeMap::new();
    for effect in &stage.others {
        match effect {
            Effect::PutAcl { .. } => acls.extend(put(effect).iter().map(each_literal)),
            Effect::PutDirent { .. } => names.extend(put(effect)),
            Effect::DropDirent { .. } => dropped.extend(removed(effect).map(|key| is(&row(&key), "="))),
            Effect::Charge { key, inodes, blocks } => {
                let sums = charges.entry(*key).or_default();
                *sums = [sums[0].saturating_add(*inodes), sums[1].saturating_add(*blocks)];
            }
            _ => other(script, effect),
        }
    }
    if !charges.is_empty() {
        let rows = charges
            .iter()
            .map(|(key, [inodes, blocks])| format!("({}, {inodes}, {blocks})", literals(&Line::quota(*key))));
        script.run(statements!("charge"), &[list(rows)]);
    }
    // Store the ACLs in the order of their ids, so that all commits lock ACLs in the same order.
    acls.iter().for_each(|acl| script.run(statements!("put_acl"), acl));
    if !names.is_empty() {
        let replaced =
            if new_names { "" } else { " ON DUPLICATE KEY UPDATE ino = VALUES(ino), kind = VALUES(kind)" };
        script.put(insert(&names) + replaced);
    }
    if !dropped.is_empty() {
        script.put(format!("DELETE FROM `@edge` WHERE {}", joined(dropped, " OR ")));
    }
}

/// Deletes inodes with everything that belongs to them.
fn drop_inodes(script: &mut Script, inos: &str) {
    script.run(statements!("release"), &[format!("c.ino IN ({inos})")]);
    script.run(statements!("drop_inodes"), &[inos]);
}

fn put_inodes(script: &mut Script, inodes: &[Inode], careful: bool) {
    if careful {
        let inos = list(inodes.iter().map(|inode| inode.ino));
        script.put(format!("SELECT COUNT(*) INTO @replaced FROM `@node` WHERE ino IN ({inos})"));
        script.only_if(REPLACED, |script| drop_inodes(script, &inos));
    }
    script.put(insert(&inodes.iter().map(Line::inode).collect::<Vec<_>>()));
}

/// The statement that inserts rows into one table. All rows have values for the same columns.
fn insert(lines: &[Line<'_>]) -> String {
    let [table, columns, _] = lines.first().map(parts).unwrap_or_default();
    let rows = list(lines.iter().map(|line| format!("({})", literals(line))));
    format!("INSERT INTO {table} ({columns}) VALUES {rows}")
}

/// The table, the columns, and their values.
fn parts(line: &Line<'_>) -> [String; 3] {
    [format!("`@{}`", line.table.name), list(line.columns()), literals(line)]
}

/// Applies changes to inodes. One statement changes all inodes that change in the same columns, such as the
/// times of directories.
fn change_inodes(script: &mut Script, changes: &BTreeMap<Ino, InodeChange>) {
    let mut groups: BTreeMap<Vec<&str>, Vec<(Ino, ColumnLiterals)>> = BTreeMap::new();
    for (ino, change) in changes {
        let row = assignments(change);
        groups.entry(row.iter().map(|(column, _)| *column).collect()).or_default().push((*ino, row));
    }
    // The combined change of an inode may set no column.
    groups.remove(&Vec::new());
    for (columns, group) in groups {
        let when = |(ino, row): &(Ino, ColumnLiterals), at: usize| format!("WHEN {ino} THEN {}", row[at].1);
        let value = |at: usize| match &group[..] {
            [(_, row)] => row[at].1.clone(),
            _ => format!("CASE ino {} END", joined(group.iter().map(|one| when(one, at)), " ")),
        };
        let set = list(columns.iter().enumerate().map(|(at, column)| format!("{column} = {}", value(at))));
        let inos = list(group.iter().map(|(ino, _)| ino));
        // The shorter statement is faster on the server.
        script.put(match &group[..] {
            [_] => format!("UPDATE `@node` SET {set} WHERE ino = {inos}"),
            _ => format!("UPDATE `@node` FORCE INDEX (PRIMARY) SET {set} WHERE ino IN ({inos})"),
        });
    }
}

/// The columns that change, with their new values.
fn assignments(change: &InodeChange) -> ColumnLiterals {
    let mut row = ColumnLiterals::new();
    let mut set = |column, value: String| row.push((column, value));
    let sums = [("nlink", change.links, u32::MAX), ("xattr_blocks", change.xattr_blocks, u16::MAX.into())];
    for (column, Sum { added, least }, most) in sums.into_iter().filter(|(_, sum, _)| *sum != Sum::default())
    {
        set(column, format!("LEAST(GREATEST(CAST({column} AS SIGNED) + {added}, {least}), {most})"));
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
        set("quota", access.quota.to_number().to_string());
        set("access_rev", format!("access_rev + {}", change.access_revs));
    }
    change.parent.into_iter().for_each(|parent| set("parent", parent.to_string()));
    match change.size {
        Size::Kept => {}
        Size::AtLeast(size) => set("size", format!("GREATEST(size, {size})")),
        Size::Set(size) => set("size", size.to_string()),
    }
    row
}

/// Writes an effect that is not combined with others: on the data of an inode, or on a record that belongs to
/// no inode.
fn other(script: &mut Script, effect: &Effect) {
    let with = |line: Line<'_>, more: [String; 2]| [&parts(&line)[1..], &more[..]].concat();
    match effect {
        Effect::AppendSlice { ino, chunk, .. } => {
            for line in put(effect) {
                script.run(statements!("append_row"), &with(line, [ino.0, chunk.0].map(|n| n.to_string())));
            }
        }
        Effect::DropSlices { ino, from, to } => {
            let dropped = format!("c.ino = {ino} AND c.chunk >= {from} AND c.chunk < {to}");
            script.run(statements!("release"), &[dropped]);
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            script.run(statements!("oldest_rows"), &[ino.0, chunk.0, u64::from(*count)]);
            let dropped = format!("c.ino = {ino} AND c.chunk = {chunk} AND c.seq <= @oldest_seq");
            script.run(statements!("release"), &[dropped]);
            for (place, line) in (1..).zip(put(effect)) {
                let places = [rows.len(), place].map(|place| place.to_string());
                script.run(statements!("put_oldest_row"), &with(line, places));
            }
        }
        Effect::PutQuota { key, rule } => {
            let line = Line::rule(*key, rule);
            let set = list(line.columns().skip(2).map(|column| format!("{column} = VALUES({column})")));
            script.put(format!("{} ON DUPLICATE KEY UPDATE {set}", insert(&[line])));
        }
        Effect::Share { slice, rows } => script.run(statements!("share"), &[slice.0, (*rows).into()]),
        Effect::CondemnAcl { id } => script.run(statements!("condemn_acl"), &[bytes(&id.to_bytes())]),
        Effect::DropAcl { id } => script.run(statements!("drop_acl"), &[bytes(&id.to_bytes())]),
        _ => {
            // The rows of `fence` are changed before the row of `session`. Commits lock the former, and
            // renewals change the latter: see guard.rs.
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
                        // Waits until in-flight commits in this term have ended.
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
                // Rows that belong to an inode are removed with it, so they are added only if the inode
                // exists.
                let values = match tables::holder(effect) {
                    Some(ino) => format!("SELECT {values} FROM `@node` WHERE ino = {ino}"),
                    None => format!("VALUES ({values})"),
                };
                script.put(format!("REPLACE INTO {table} ({columns}) {values}"));
            }
        }
    }
}
