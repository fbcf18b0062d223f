//! Transactions as the script reads them, and outcomes out of its answer.

use meta::{Effect, Guard, Outcome, Seq, Touched, Txn, Want};
use types::{Ino, Slice};

use crate::read;
use crate::request::{Answer, Malformed, Request};
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
        let changed = changed(txn);
        request.array(changed.len());
        for ino in changed {
            request.id(ino.0);
        }
    }
    request
}

pub(crate) fn outcomes(txns: &[Txn], mut answer: Answer) -> Result<Vec<Outcome>, Malformed> {
    txns.iter().map(|txn| outcome(txn, answer.array()?)).collect()
}

fn outcome(txn: &Txn, mut answer: Answer) -> Result<Outcome, Malformed> {
    if answer.number()? == 0 {
        let wants: Vec<Want> = txn.guards.iter().map(Guard::want).collect();
        return Ok(Outcome::Conflict(read::facts(wants.iter(), &mut answer)?));
    }
    let seq = Seq(answer.decimal()?);
    let mut nodes = Vec::new();
    // A repetition is answered without nodes.
    for ino in changed(txn) {
        if answer.is_empty() {
            break;
        }
        if let Some(bytes) = answer.string()? {
            nodes.push(rows::node(ino, &bytes)?);
        }
    }
    Ok(Outcome::Committed { seq, nodes })
}

/// The inodes whose nodes it changes, each once, in order.
fn changed(txn: &Txn) -> Vec<Ino> {
    let mut changed = Vec::new();
    for ino in txn.effects.iter().filter_map(Effect::changed_node) {
        if !changed.contains(&ino) {
            changed.push(ino);
        }
    }
    changed
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

fn add_guard(request: &mut Request, guard: &Guard) {
    match guard {
        Guard::EdgeIs { parent, name, ino } => {
            request.array(4).string("edge").id(parent.0).string(name.as_bytes()).id(ino.0)
        }
        Guard::EdgeAbsent { parent, name } => {
            request.array(3).string("no_edge").id(parent.0).string(name.as_bytes())
        }
        Guard::Access { ino, rev } => request.array(3).string("access").id(ino.0).id(*rev),
        Guard::NodeAbsent { ino } => request.array(2).string("no_node").id(ino.0),
        Guard::Links { ino, nlink } => request.array(3).string("links").id(ino.0).string(nlink.to_be_bytes()),
        Guard::ParentIs { ino, parent } => request.array(3).string("parent").id(ino.0).id(parent.0),
        Guard::Empty { ino } => request.array(2).string("empty").id(ino.0),
        Guard::Xattr { ino, name, present } => {
            request.array(4).string("xattr").id(ino.0).string(name.as_bytes()).number((*present).into())
        }
        Guard::Setting { name, value: Some(value) } => {
            request.array(3).string("setting").string(name).string(value)
        }
        Guard::Setting { name, value: None } => request.array(2).string("no_setting").string(name),
        Guard::Counter { counter, value } => {
            request.array(3).string("counter").string(counter.name()).id(*value)
        }
        Guard::Size { ino, size } => request.array(3).string("size").id(ino.0).id(*size),
        Guard::Locks { ino, locks } => {
            request.array(3).string("locks").id(ino.0).string(rows::put_locks(locks))
        }
        Guard::Rows { ino, chunk, rows } => {
            request.array(4).string("rows").id(ino.0).id(chunk.0);
            add_rows(request, rows)
        }
        Guard::Room { max_inodes, max_blocks } => {
            request.array(3).string("room").id(*max_inodes).id(*max_blocks)
        }
    };
}

fn add_rows<'a>(request: &'a mut Request, rows: &[Slice]) -> &'a mut Request {
    request.array(rows.len());
    for row in rows {
        request.string(rows::put_slice(row));
    }
    request
}

fn add_effect(request: &mut Request, effect: &Effect) {
    let time = |time: &Option<types::Time>| time.map_or(Vec::new(), |time| rows::time(time).to_vec());
    match effect {
        Effect::PutNode(node) => {
            request.array(3).string("put_node").id(node.ino.0).string(rows::put_node(node))
        }
        Effect::DropNode { ino } => request.array(2).string("drop_node").id(ino.0),
        Effect::PutEdge { parent, name, ino, kind } => {
            request.array(4).string("put_edge").id(parent.0).string(name.as_bytes());
            request.string(rows::put_edge(*ino, *kind))
        }
        Effect::DropEdge { parent, name } => {
            request.array(3).string("drop_edge").id(parent.0).string(name.as_bytes())
        }
        Effect::SetAccess { ino, access } => {
            request.array(4).string("access").id(ino.0);
            request.string(rows::access_fields(access.mode, access.uid, access.gid));
            request.string(rows::acls(access.access_acl, access.default_acl))
        }
        Effect::SetParent { ino, parent } => request.array(3).string("parent").id(ino.0).id(parent.0),
        Effect::AddLinks { ino, delta } => request.array(3).string("links").id(ino.0).number((*delta).into()),
        Effect::Touch { ino, atime, mtime, ctime } => {
            request.array(5).string("touch").id(ino.0);
            request.string(time(atime)).string(time(mtime)).string(time(ctime))
        }
        Effect::SetSize { ino, size } => request.array(3).string("size").id(ino.0).id(*size),
        Effect::Extend { ino, size } => request.array(3).string("extend").id(ino.0).id(*size),
        Effect::AppendSlice { ino, chunk, slice } => {
            request.array(4).string("append").id(ino.0).id(chunk.0).string(rows::put_slice(slice))
        }
        Effect::DropSlices { ino, from, to } => {
            request.array(4).string("drop_slices").id(ino.0).id(from.0).id(to.0)
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            request.array(5).string("replace").id(ino.0).id(chunk.0).number((*count).into());
            add_rows(request, rows)
        }
        Effect::Share { slice } => request.array(2).string("share").id(slice.0),
        Effect::PutXattr { ino, name, value } => {
            request.array(4).string("put_xattr").id(ino.0).string(name.as_bytes()).string(value)
        }
        Effect::DropXattr { ino, name } => {
            request.array(3).string("drop_xattr").id(ino.0).string(name.as_bytes())
        }
        Effect::PutAcl { id, text } => {
            request.array(3).string("put_acl").string(id.to_bytes()).string(text.as_bytes())
        }
        Effect::PutSymlink { ino, target } => request.array(3).string("symlink").id(ino.0).string(target),
        Effect::PutOrphan { session, ino } => {
            let orphan = [session.0.to_be_bytes(), ino.0.to_be_bytes()].concat();
            request.array(2).string("put_orphan").string(orphan)
        }
        Effect::DropOrphan { session, ino } => {
            let orphan = [session.0.to_be_bytes(), ino.0.to_be_bytes()].concat();
            request.array(2).string("drop_orphan").string(orphan)
        }
        Effect::PutSession(session) => {
            request.array(4).string("put").string("sessions").id(session.id.0);
            request.string(rows::put_session(session))
        }
        Effect::DropSession { session } => request.array(3).string("drop").string("sessions").id(session.0),
        Effect::PutLocks { ino, locks } if locks.is_empty() => {
            request.array(3).string("drop").string("locks").id(ino.0)
        }
        Effect::PutLocks { ino, locks } => {
            request.array(3).string("put_locks").id(ino.0).string(rows::put_locks(locks))
        }
        Effect::PutWait(wait) => {
            request.array(4).string("put").string("waits").string(rows::put_owner(wait.lock.owner));
            request.string(rows::put_wait(wait))
        }
        Effect::DropWait { owner } => {
            request.array(3).string("drop").string("waits").string(rows::put_owner(*owner))
        }
        Effect::DropGarbage { slice } => request.array(3).string("drop").string("garbage").id(slice.0),
        Effect::PutSetting { name, value } => {
            request.array(4).string("set").string("settings").string(name).string(value)
        }
        Effect::SetCounter { counter, value } => {
            request.array(4).string("set").string("counters").string(counter.name()).id(*value)
        }
        Effect::AddUsage { inodes, blocks } => {
            request.array(5).string("usage");
            for delta in [*inodes, *blocks] {
                // The upper half carries the sign.
                request.number(delta >> 32).number(delta & 0xffff_ffff);
            }
            request
        }
    };
}
