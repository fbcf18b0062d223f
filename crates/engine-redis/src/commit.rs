//! Transactions as the script reads them, and outcomes out of its answer.

use meta::{Effect, Guard, Outcome, Seq, Touched, Txn, Want};
use types::Slice;

use crate::error::Malformed;
use crate::read;
use crate::request::{Answer, Request};
use crate::rows;

pub(crate) fn request(txns: &[Txn]) -> Request {
    let mut request = Request::default();
    request.array(2).number(removes(txns).into()).array(txns.len());
    for txn in txns {
        request.array(5).string(txn.op_id.0.to_be_bytes()).string(Touched::encode(&txn.touched()));
        request.array(txn.guards.len());
        txn.guards.iter().for_each(|guard| add_guard(&mut request, guard));
        request.array(txn.effects.len());
        txn.effects.iter().for_each(|effect| add_effect(&mut request, effect));
        let changed = txn.changed_nodes();
        request.array(changed.len());
        for ino in changed {
            request.id(ino.0);
        }
    }
    request
}

pub(crate) fn outcomes(txns: &[Txn], mut answer: Answer) -> Result<Vec<Outcome>, Malformed> {
    txns.iter().map(|txn| outcome(txn, answer.take()?)).collect()
}

fn outcome(txn: &Txn, mut answer: Answer) -> Result<Outcome, Malformed> {
    if answer.take::<i64>()? == 0 {
        let wants: Vec<Want> = txn.guards.iter().map(Guard::want).collect();
        return Ok(Outcome::Conflict(read::facts(wants.iter(), &mut answer)?));
    }
    let seq = Seq(answer.take()?);
    let mut nodes = Vec::new();
    for ino in txn.changed_nodes() {
        // A repetition is answered without nodes.
        if !answer.is_empty() {
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

fn add_guard(to: &mut Request, guard: &Guard) {
    match guard {
        Guard::EdgeIs { parent, name, ino } => to.array(4).string("edge").id(parent.0).string(name).id(ino.0),
        Guard::EdgeAbsent { parent, name } => to.array(3).string("no_edge").id(parent.0).string(name),
        Guard::Access { ino, rev } => to.array(3).string("access").id(ino.0).id(*rev),
        Guard::NodeAbsent { ino } => to.array(2).string("no_node").id(ino.0),
        Guard::Links { ino, nlink } => to.array(3).string("links").id(ino.0).string(nlink.to_be_bytes()),
        Guard::ParentIs { ino, parent } => to.array(3).string("parent").id(ino.0).id(parent.0),
        Guard::Empty { ino } => to.array(2).string("empty").id(ino.0),
        Guard::Xattr { ino, name, present } => {
            to.array(4).string("xattr").id(ino.0).string(name).number((*present).into())
        }
        Guard::Setting { name, value: Some(value) } => {
            to.array(3).string("setting").string(name).string(value)
        }
        Guard::Setting { name, value: None } => to.array(2).string("no_setting").string(name),
        Guard::Counter { counter, value } => to.array(3).string("counter").string(counter.name()).id(*value),
        Guard::Size { ino, size } => to.array(3).string("size").id(ino.0).id(*size),
        Guard::Locks { ino, locks } => to.array(3).string("locks").id(ino.0).string(rows::put_locks(locks)),
        Guard::Rows { ino, chunk, rows } => add_rows(to.array(4).string("rows").id(ino.0).id(chunk.0), rows),
        Guard::Room { max_inodes, max_blocks } => to.array(3).string("room").id(*max_inodes).id(*max_blocks),
    };
}

fn add_rows<'a>(to: &'a mut Request, rows: &[Slice]) -> &'a mut Request {
    to.array(rows.len());
    rows.iter().fold(to, |to, row| to.string(rows::put_slice(row)))
}

fn add_effect(to: &mut Request, effect: &Effect) {
    match effect {
        Effect::PutNode(node) => to.array(3).string("put_node").id(node.ino.0).string(rows::put_node(node)),
        Effect::DropNode { ino } => to.array(2).string("drop_node").id(ino.0),
        Effect::PutEdge { parent, name, ino, kind } => {
            to.array(4).string("put_edge").id(parent.0).string(name).string(rows::put_edge(*ino, *kind))
        }
        Effect::DropEdge { parent, name } => to.array(3).string("drop_edge").id(parent.0).string(name),
        Effect::SetAccess { ino, access } => {
            to.array(4).string("access").id(ino.0);
            to.string(rows::access_fields(access.mode, access.uid, access.gid));
            to.string(rows::acls(access.access_acl, access.default_acl))
        }
        Effect::SetParent { ino, parent } => to.array(3).string("parent").id(ino.0).id(parent.0),
        Effect::AddLinks { ino, delta } => to.array(3).string("links").id(ino.0).number((*delta).into()),
        Effect::Touch { ino, atime, mtime, ctime } => {
            to.array(5).string("touch").id(ino.0);
            to.string(rows::time(*atime)).string(rows::time(*mtime)).string(rows::time(*ctime))
        }
        Effect::SetSize { ino, size } => to.array(3).string("size").id(ino.0).id(*size),
        Effect::Extend { ino, size } => to.array(3).string("extend").id(ino.0).id(*size),
        Effect::AppendSlice { ino, chunk, slice } => {
            to.array(4).string("append").id(ino.0).id(chunk.0).string(rows::put_slice(slice))
        }
        Effect::DropSlices { ino, from, to: end } => {
            to.array(4).string("drop_slices").id(ino.0).id(from.0).id(end.0)
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            to.array(5).string("replace").id(ino.0).id(chunk.0).number((*count).into());
            add_rows(to, rows)
        }
        Effect::Share { slice } => to.array(2).string("share").id(slice.0),
        Effect::PutXattr { ino, name, value } => {
            to.array(4).string("put_xattr").id(ino.0).string(name).string(value)
        }
        Effect::DropXattr { ino, name } => to.array(3).string("drop_xattr").id(ino.0).string(name),
        Effect::PutAcl { id, text } => to.array(3).string("put_acl").string(id.to_bytes()).string(&**text),
        Effect::PutSymlink { ino, target } => to.array(3).string("symlink").id(ino.0).string(target),
        Effect::PutOrphan { session, ino } => {
            to.array(2).string("put_orphan").string(rows::orphan(*session, *ino))
        }
        Effect::DropOrphan { session, ino } => {
            to.array(2).string("drop_orphan").string(rows::orphan(*session, *ino))
        }
        Effect::PutSession(session) => {
            to.array(4).string("put").string("sessions").id(session.id.0).string(rows::put_session(session))
        }
        Effect::DropSession { session } => to.array(3).string("drop").string("sessions").id(session.0),
        Effect::PutLocks { ino, locks } if locks.is_empty() => {
            to.array(3).string("drop").string("locks").id(ino.0)
        }
        Effect::PutLocks { ino, locks } => {
            to.array(3).string("put_locks").id(ino.0).string(rows::put_locks(locks))
        }
        Effect::PutWait(wait) => {
            to.array(4).string("put").string("waits");
            to.string(rows::put_owner(wait.lock.owner)).string(rows::put_wait(wait))
        }
        Effect::DropWait { owner } => {
            to.array(3).string("drop").string("waits").string(rows::put_owner(*owner))
        }
        Effect::DropGarbage { slice } => to.array(3).string("drop").string("garbage").id(slice.0),
        Effect::PutSetting { name, value } => {
            to.array(4).string("set").string("settings").string(name).string(value)
        }
        Effect::SetCounter { counter, value } => {
            to.array(4).string("set").string("counters").string(counter.name()).id(*value)
        }
        Effect::AddUsage { inodes, blocks } => {
            // The upper half of each carries the sign.
            to.array(5).string("usage").number(inodes >> 32).number(inodes & 0xffff_ffff);
            to.number(blocks >> 32).number(blocks & 0xffff_ffff)
        }
    };
}
