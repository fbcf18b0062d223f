//! Transactions as the script reads them, and outcomes out of its answer.

use std::collections::{BTreeMap, BTreeSet};

use keyspace::Writer;
use meta::{Effect, Guard, Node, Outcome, Seq, Touched, Txn, Want};
use types::{Ino, Slice};

use crate::error::Malformed;
use crate::read;
use crate::request::{Answer, Request};
use crate::rows;

pub(crate) fn request(txns: &[Txn]) -> Request {
    let mut request = Request::default();
    let ids: BTreeSet<u128> = txns.iter().map(|txn| txn.op_id.0).collect();
    let hashes = hashes(txns);
    let keeper = txns.first().and_then(Txn::kept_by).map(|(session, term)| term.key(session));
    request.string(Vec::from_iter(keeper.into_iter().flatten()));
    request.number(removes(txns).into()).number((ids.len() < txns.len()).into()).number(hashes.len());
    for (first, inos) in hashes {
        let changed = inos.iter().filter(|(is_other, _)| !is_other).count();
        request.id(first).number(changed).string(inos.into_iter().map(|(_, last)| last).collect::<Vec<u8>>());
    }
    for txn in txns {
        request.operation(txn.op_id).nested(|to| {
            to.string(Touched::encode(&txn.touched())).number(txn.guards.len());
            txn.guards.iter().for_each(|guard| add_guard(to, guard));
            add_effects(to, txn);
        });
    }
    request
}

/// The inodes whose nodes transactions look at or change, by the hash in which they are: its first, and of each whether it
/// is none that is changed, and its last byte.
fn hashes(txns: &[Txn]) -> BTreeMap<u64, BTreeSet<(bool, u8)>> {
    let node = |guard: &Guard| if let Want::Node(ino) = guard.want() { Some(ino) } else { None };
    let guarded = txns.iter().flat_map(|txn| &txn.guards).filter_map(node);
    let replaced = txns.iter().flat_map(|txn| &txn.effects).filter_map(|effect| match effect {
        Effect::PutNode(Node { ino, .. }) | Effect::DropNode { ino } => Some(*ino),
        _ => None,
    });
    let changed: BTreeSet<Ino> = txns.iter().flat_map(Txn::changed_nodes).collect();
    let mut hashes = BTreeMap::<u64, BTreeSet<_>>::new();
    for ino in guarded.chain(replaced).chain(changed.iter().copied()) {
        hashes.entry(ino.0 & !15).or_default().insert((!changed.contains(&ino), ino.0 as u8));
    }
    hashes
}

pub(crate) fn outcomes(txns: &[Txn], mut answer: Answer) -> Result<Vec<Outcome>, Malformed> {
    let mut left = BTreeMap::new();
    for (first, inos) in hashes(txns) {
        for (_, last) in inos.into_iter().filter(|(is_other, _)| !is_other) {
            let ino = Ino(first & !255 | u64::from(last));
            left.insert(ino, answer.stored(|bytes| rows::node(ino, bytes))?);
        }
    }
    let outcome = |txn: &Txn| {
        let Some(seq) = answer.take::<Option<i64>>()? else {
            let wants: Vec<Want> = txn.guards.iter().map(Guard::want).collect();
            return Ok(Outcome::Conflict(read::facts(&wants, &mut answer)?));
        };
        // A repetition has a number below zero, and changed nothing.
        let changed = if seq < 0 { Vec::new() } else { txn.changed_nodes() };
        let nodes = changed.iter().filter_map(|ino| left.get(ino).copied().flatten()).collect();
        Ok(Outcome::Committed { seq: Seq(seq.unsigned_abs()), nodes })
    };
    txns.iter().map(outcome).collect()
}

/// Whether something is changed and nothing is added, so that a server whose memory is full should do it all the same.
fn removes(txns: &[Txn]) -> bool {
    let mut effects = txns.iter().flat_map(|txn| &txn.effects).peekable();
    effects.peek().is_some() && !effects.any(Effect::adds)
}

/// Guards and effects begin with a word of four letters.
fn add_guard(to: &mut Request, guard: &Guard) {
    match guard {
        Guard::EdgeIs { parent, name, ino } => to.fixed(b"edge").id(parent.0).string(name).id(ino.0),
        Guard::EdgeAbsent { parent, name } => to.fixed(b"free").id(parent.0).string(name),
        Guard::Access { ino, rev } => to.fixed(b"arev").id(ino.0).id(*rev),
        Guard::NodeAbsent { ino } => to.fixed(b"none").id(ino.0),
        Guard::Links { ino, nlink } => add_same(to, *ino, rows::LINKS, &nlink.to_be_bytes()),
        Guard::ParentIs { ino, parent } => add_same(to, *ino, rows::PARENT, &parent.0.to_be_bytes()),
        Guard::Empty { ino } => to.fixed(b"void").id(ino.0),
        Guard::Xattr { ino, name, present } => {
            to.fixed(b"attr").id(ino.0).string(name).number((*present).into())
        }
        Guard::Setting { name, value: Some(value) } => to.fixed(b"sett").string(name).string(value),
        Guard::Setting { name, value: None } => to.fixed(b"nset").string(name),
        Guard::Counter { counter, value } => to.fixed(b"cntr").string(counter.name()).id(*value),
        Guard::Size { ino, size } => add_same(to, *ino, rows::SIZE, &size.to_be_bytes()),
        Guard::Locks { ino, locks } => to.fixed(b"lock").id(ino.0).string(rows::put_locks(locks)),
        Guard::Rows { ino, chunk, rows } => add_rows(to.fixed(b"rows").id(ino.0).id(chunk.0), rows),
        Guard::Room { max_inodes, max_blocks } => to.fixed(b"room").id(*max_inodes).id(*max_blocks),
        Guard::Session { session, heartbeat: None } => to.fixed(b"live").id(session.0),
        Guard::Session { session, heartbeat: Some(heartbeat) } => {
            to.fixed(b"beat").id(session.0).fixed(&heartbeat.nanos().to_be_bytes())
        }
        Guard::Term { session, term } => to.fixed(b"term").fixed(&term.key(*session)),
    };
}

/// The node holds these bytes there.
fn add_same<'a>(to: &'a mut Request, ino: Ino, place: u8, bytes: &[u8]) -> &'a mut Request {
    to.fixed(b"same").id(ino.0).fixed(&[place]).string(bytes)
}

fn add_rows<'a>(to: &'a mut Request, rows: &[Slice]) -> &'a mut Request {
    to.nested(|to| rows.iter().for_each(|row| _ = to.string(rows::put_slice(row))))
}

/// What a create does is one effect: an inode, by the name that was found free last, and the directory's times.
fn add_effects(to: &mut Request, txn: &Txn) {
    let free = txn.guards.iter().rfind(|guard| matches!(guard, Guard::EdgeAbsent { .. }));
    let mut left = &txn.effects[..];
    while let [effect, others @ ..] = left {
        left = others;
        if let Some(Guard::EdgeAbsent { parent, name }) = free
            && let (Effect::PutNode(node), [_, Effect::Touch { ctime: time, .. }, rest @ ..]) =
                (effect, others)
            && let (parent, ino, kind, time) = (*parent, node.ino, node.kind, *time)
            && others.starts_with(&[
                Effect::PutEdge { parent, name: name.clone(), ino, kind },
                Effect::Touch { ino: parent, atime: None, mtime: time, ctime: time },
            ])
            && time.is_some()
            && node.blocks() == 0
        {
            let (edge, time) = (rows::put_edge(ino, kind), rows::time(time));
            to.fixed(b"made").fixed(&edge).string(rows::put_node(node)).fixed(&time);
            left = rest;
        } else {
            add_effect(to, effect);
        }
    }
    to.fixed(b"done");
}

fn add_effect(to: &mut Request, effect: &Effect) {
    match effect {
        Effect::PutNode(node) => to.fixed(b"node").id(node.ino.0).string(rows::put_node(node)),
        Effect::DropNode { ino } => to.fixed(b"gone").id(ino.0),
        Effect::PutEdge { parent, name, ino, kind } => {
            to.fixed(b"edge").id(parent.0).string(name).string(rows::put_edge(*ino, *kind))
        }
        Effect::DropEdge { parent, name } => to.fixed(b"free").id(parent.0).string(name),
        Effect::SetAccess { ino, access } => {
            to.fixed(b"perm").id(ino.0).string(rows::access_fields(access.mode, access.uid, access.gid));
            to.string(rows::acls(access.access_acl, access.default_acl))
        }
        Effect::SetParent { ino, parent } => to.fixed(b"home").id(ino.0).id(parent.0),
        Effect::AddLinks { ino, delta } => to.fixed(b"link").id(ino.0).fixed(&delta.to_be_bytes()),
        Effect::Touch { ino, atime: None, mtime: Some(time), ctime } if *ctime == Some(*time) => {
            to.fixed(b"both").id(ino.0).fixed(&rows::time(*ctime))
        }
        Effect::Touch { ino, atime, mtime, ctime } => {
            to.fixed(b"time").id(ino.0);
            to.string(rows::time(*atime)).string(rows::time(*mtime)).string(rows::time(*ctime))
        }
        Effect::SetSize { ino, size } => to.fixed(b"size").id(ino.0).id(*size),
        Effect::Extend { ino, size } => to.fixed(b"grow").id(ino.0).id(*size),
        Effect::AppendSlice { ino, chunk, slice } => {
            to.fixed(b"data").id(ino.0).id(chunk.0).string(rows::put_slice(slice))
        }
        Effect::DropSlices { ino, from, to: end } => to.fixed(b"trim").id(ino.0).id(from.0).id(end.0),
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            add_rows(to.fixed(b"swap").id(ino.0).id(chunk.0).fixed(&count.to_be_bytes()), rows)
        }
        Effect::Share { slice } => to.fixed(b"refs").id(slice.0),
        Effect::PutXattr { ino, name, value } => to.fixed(b"attr").id(ino.0).string(name).string(value),
        Effect::DropXattr { ino, name } => to.fixed(b"noat").id(ino.0).string(name),
        Effect::PutAcl { id, text } => to.fixed(b"acls").fixed(&id.to_bytes()).string(&**text),
        Effect::PutSymlink { ino, target } => to.fixed(b"path").id(ino.0).string(target),
        Effect::PutOrphan { session, ino } => to.fixed(b"orph").fixed(&rows::orphan(*session, *ino)),
        Effect::DropOrphan { session, ino } => to.fixed(b"heir").fixed(&rows::orphan(*session, *ino)),
        Effect::PutSession(session) => {
            to.fixed(b"keep").string("sessions").string(session.id.0.to_be_bytes());
            to.string(Writer::default().session(session).into_vec())
        }
        Effect::DropSession { session } => add_drop(to, "sessions", &session.0.to_be_bytes()),
        Effect::BeginTerm { session, term, ended } => {
            to.fixed(b"term").fixed(&term.key(*session));
            to.string(ended.iter().flat_map(|term| term.0.to_be_bytes()).collect::<Vec<_>>())
        }
        Effect::PutLocks { ino, locks } if locks.is_empty() => add_drop(to, "locks", &ino.0.to_be_bytes()),
        Effect::PutLocks { ino, locks } => to.fixed(b"lock").id(ino.0).string(rows::put_locks(locks)),
        Effect::PutWait(wait) => {
            to.fixed(b"keep").string("waits").string(rows::put_owner(wait.lock.owner));
            to.string(Writer::default().u64(wait.ino.0).lock(&wait.lock).into_vec())
        }
        Effect::DropWait { owner } => add_drop(to, "waits", &rows::put_owner(*owner)),
        Effect::DropGarbage { slice } => add_drop(to, "garbage", &slice.0.to_be_bytes()),
        Effect::PutSetting { name, value } => to.fixed(b"sets").string("settings").string(name).string(value),
        Effect::SetCounter { counter, value } => {
            to.fixed(b"sets").string("counters").string(counter.name()).string(value.to_be_bytes())
        }
        Effect::AddUsage { inodes, blocks } => {
            to.fixed(b"used").fixed(&inodes.to_be_bytes()).fixed(&blocks.to_be_bytes())
        }
    };
}

/// The key is taken out of a map.
fn add_drop<'a>(to: &'a mut Request, map: &str, key: &[u8]) -> &'a mut Request {
    to.fixed(b"drop").string(map).string(key)
}
