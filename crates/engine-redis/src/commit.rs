//! Transactions as the script reads them, and outcomes out of its answer.

use meta::{Effect, Guard, Outcome, Seq, Touched, Txn, Want};
use types::Slice;

use crate::error::Malformed;
use crate::read;
use crate::request::{Answer, Request};
use crate::rows;

/// How the answer to a transaction begins. One that repeats an earlier one has another number, and no nodes.
const CONFLICT: i64 = 0;
const COMMITTED: i64 = 1;

pub(crate) fn request(txns: &[Txn]) -> Request {
    let mut request = Request::default();
    request.number(removes(txns).into());
    for txn in txns {
        let changed: Vec<u8> = txn.changed_nodes().iter().flat_map(|ino| id(ino.0)).collect();
        request.operation(txn.op_id).string(&Touched::encode(&txn.touched())).string(&changed);
        request.number(txn.guards.len()).number(txn.effects.len());
        txn.guards.iter().for_each(|guard| add_guard(&mut request, guard));
        txn.effects.iter().for_each(|effect| add_effect(&mut request, effect));
    }
    request
}

pub(crate) fn outcomes(txns: &[Txn], mut answer: Answer) -> Result<Vec<Outcome>, Malformed> {
    txns.iter().map(|txn| outcome(txn, &mut answer)).collect()
}

fn outcome(txn: &Txn, answer: &mut Answer) -> Result<Outcome, Malformed> {
    let how: i64 = answer.take()?;
    if how == CONFLICT {
        let wants: Vec<Want> = txn.guards.iter().map(Guard::want).collect();
        return Ok(Outcome::Conflict(read::facts(wants.iter(), answer)?));
    }
    let seq = Seq(answer.take()?);
    let mut nodes = Vec::new();
    if how == COMMITTED {
        for ino in txn.changed_nodes() {
            nodes.extend(answer.stored(|bytes| rows::node(ino, bytes))?);
        }
    }
    Ok(Outcome::Committed { seq, nodes })
}

/// Whether something is changed and nothing is added, so that a server whose memory is full should do it all the same.
fn removes(txns: &[Txn]) -> bool {
    let adds = |effect: &Effect| {
        matches!(
            effect,
            Effect::PutNode(_)
                | Effect::PutEdge { .. }
                | Effect::AppendSlice { .. }
                | Effect::PutXattr { .. }
                | Effect::PutAcl { .. }
                | Effect::PutSymlink { .. }
                | Effect::PutWait(_)
        )
    };
    let mut effects = txns.iter().flat_map(|txn| &txn.effects).peekable();
    effects.peek().is_some() && !effects.any(adds)
}

fn id(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

fn add_guard(to: &mut Request, guard: &Guard) {
    match guard {
        Guard::EdgeIs { parent, name, ino } => to.item("edge", [&id(parent.0), name.as_bytes(), &id(ino.0)]),
        Guard::EdgeAbsent { parent, name } => to.item("no_edge", [&id(parent.0), name.as_bytes()]),
        Guard::Access { ino, rev } => to.item("access", [&id(ino.0), &id(*rev)]),
        Guard::NodeAbsent { ino } => to.item("no_node", [&id(ino.0)]),
        Guard::Links { ino, nlink } => to.item("links", [&id(ino.0), &nlink.to_be_bytes()]),
        Guard::ParentIs { ino, parent } => to.item("parent", [&id(ino.0), &id(parent.0)]),
        Guard::Empty { ino } => to.item("empty", [&id(ino.0)]),
        Guard::Xattr { ino, name, present } => {
            to.item("xattr", [&id(ino.0), name.as_bytes(), if *present { b"1" } else { b"0" }])
        }
        Guard::Setting { name, value: Some(value) } => {
            to.item("setting", [name.as_bytes(), value.as_bytes()])
        }
        Guard::Setting { name, value: None } => to.item("no_setting", [name.as_bytes()]),
        Guard::Counter { counter, value } => to.item("counter", [counter.name().as_bytes(), &id(*value)]),
        Guard::Size { ino, size } => to.item("size", [&id(ino.0), &id(*size)]),
        Guard::Locks { ino, locks } => to.item("locks", [&id(ino.0), &rows::put_locks(locks)]),
        Guard::Rows { ino, chunk, rows } => to.item("rows", [&id(ino.0), &id(chunk.0), &joined(rows)]),
        Guard::Room { max_inodes, max_blocks } => to.item("room", [&id(*max_inodes), &id(*max_blocks)]),
    };
}

fn joined(rows: &[Slice]) -> Vec<u8> {
    Request::joined(rows.iter().map(rows::put_slice))
}

fn add_effect(to: &mut Request, effect: &Effect) {
    match effect {
        Effect::PutNode(node) => to.item("put_node", [&id(node.ino.0), &rows::put_node(node)]),
        Effect::DropNode { ino } => to.item("drop_node", [&id(ino.0)]),
        Effect::PutEdge { parent, name, ino, kind } => {
            to.item("put_edge", [&id(parent.0), name.as_bytes(), &rows::put_edge(*ino, *kind)])
        }
        Effect::DropEdge { parent, name } => to.item("drop_edge", [&id(parent.0), name.as_bytes()]),
        Effect::SetAccess { ino, access } => {
            let fields = rows::access_fields(access.mode, access.uid, access.gid);
            to.item("access", [&id(ino.0), &fields, &rows::acls(access.access_acl, access.default_acl)])
        }
        Effect::SetParent { ino, parent } => to.item("parent", [&id(ino.0), &id(parent.0)]),
        Effect::AddLinks { ino, delta } => to.item("links", [&id(ino.0), delta.to_string().as_bytes()]),
        Effect::Touch { ino, atime, mtime, ctime } => {
            to.item("touch", [&id(ino.0), &rows::time(*atime), &rows::time(*mtime), &rows::time(*ctime)])
        }
        Effect::SetSize { ino, size } => to.item("size", [&id(ino.0), &id(*size)]),
        Effect::Extend { ino, size } => to.item("extend", [&id(ino.0), &id(*size)]),
        Effect::AppendSlice { ino, chunk, slice } => {
            to.item("append", [&id(ino.0), &id(chunk.0), &rows::put_slice(slice)])
        }
        Effect::DropSlices { ino, from, to: end } => {
            to.item("drop_slices", [&id(ino.0), &id(from.0), &id(end.0)])
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            to.item("replace", [&id(ino.0), &id(chunk.0), count.to_string().as_bytes(), &joined(rows)])
        }
        Effect::Share { slice } => to.item("share", [&id(slice.0)]),
        Effect::PutXattr { ino, name, value } => {
            to.item("put_xattr", [&id(ino.0), name.as_bytes(), &value[..]])
        }
        Effect::DropXattr { ino, name } => to.item("drop_xattr", [&id(ino.0), name.as_bytes()]),
        Effect::PutAcl { id, text } => to.item("put_acl", [&id.to_bytes(), text.as_bytes()]),
        Effect::PutSymlink { ino, target } => to.item("symlink", [&id(ino.0), target]),
        Effect::PutOrphan { session, ino } => to.item("put_orphan", [&rows::orphan(*session, *ino)]),
        Effect::DropOrphan { session, ino } => to.item("drop_orphan", [&rows::orphan(*session, *ino)]),
        Effect::PutSession(session) => {
            to.item("put", [b"sessions", &id(session.id.0), &rows::put_session(session)])
        }
        Effect::DropSession { session } => to.item("drop", [b"sessions", &id(session.0)]),
        Effect::PutLocks { ino, locks } if locks.is_empty() => to.item("drop", [b"locks", &id(ino.0)]),
        Effect::PutLocks { ino, locks } => to.item("put_locks", [&id(ino.0), &rows::put_locks(locks)]),
        Effect::PutWait(wait) => {
            to.item("put", [b"waits", &rows::put_owner(wait.lock.owner), &rows::put_wait(wait)])
        }
        Effect::DropWait { owner } => to.item("drop", [b"waits", &rows::put_owner(*owner)]),
        Effect::DropGarbage { slice } => to.item("drop", [b"garbage", &id(slice.0)]),
        Effect::PutSetting { name, value } => {
            to.item("set", [b"settings", name.as_bytes(), value.as_bytes()])
        }
        Effect::SetCounter { counter, value } => {
            to.item("set", [b"counters", counter.name().as_bytes(), &id(*value)])
        }
        Effect::AddUsage { inodes, blocks } => {
            to.item("usage", [&inodes.to_be_bytes(), &blocks.to_be_bytes()])
        }
    };
}
