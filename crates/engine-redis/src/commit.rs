//! Encodes transactions for the commit script and decodes its reply into outcomes.

use std::collections::{BTreeMap, BTreeSet};

use keyspace::Writer;
use meta::{Effect, Guard, Inode, Invalidation, Outcome, QuotaRule, RecordKey, Seq, Txn};
use types::{Ino, Slice};

use crate::code;
use crate::error::Malformed;
use crate::read;
use crate::request::{Reply, Request};
use crate::rows;

pub(crate) fn request(txns: &[Txn]) -> Request {
    let mut request = Request::default();
    let ids: BTreeSet<u128> = txns.iter().map(|txn| txn.op_id.0).collect();
    let hashes = hashes(txns);
    let term_key = txns.first().and_then(Txn::kept_by).map(|(session, term)| term.key(session));
    request.string(Vec::from_iter(term_key.into_iter().flatten()));
    request.number(removes(txns).into()).number((ids.len() < txns.len()).into()).number(hashes.len());
    for (first, inos) in hashes {
        let changed = inos.iter().filter(|(is_only_read, _)| !is_only_read).count();
        request.id(first).number(changed).string(inos.into_iter().map(|(_, last)| last).collect::<Vec<u8>>());
    }
    for txn in txns {
        request.operation(txn.op_id).nested(|to| {
            to.string(Invalidation::encode(&txn.invalidations())).number(txn.guards.len());
            txn.guards.iter().for_each(|guard| add_guard(to, guard));
            txn.effects.iter().for_each(|effect| add_effect(to, effect));
            to.code(code::TXN_END);
        });
    }
    request
}

/// The inodes that the transactions read or change, grouped by the Redis hash that stores them. The key is
/// the first inode number of the hash. An inode is a pair: whether it is only read, and the last byte of its
/// number. So the inodes that are changed come first.
fn hashes(txns: &[Txn]) -> BTreeMap<u64, BTreeSet<(bool, u8)>> {
    let inode = |guard: &Guard| if let RecordKey::Inode(ino) = guard.key() { Some(ino) } else { None };
    let guarded = txns.iter().flat_map(|txn| &txn.guards).filter_map(inode);
    let replaced = txns.iter().flat_map(|txn| &txn.effects).filter_map(|effect| match effect {
        Effect::PutInode(Inode { ino, .. }) | Effect::DropInode { ino } => Some(*ino),
        _ => None,
    });
    let changed: BTreeSet<Ino> = txns.iter().flat_map(Txn::changed_inodes).collect();
    let mut hashes = BTreeMap::<u64, BTreeSet<_>>::new();
    for ino in guarded.chain(replaced).chain(changed.iter().copied()) {
        hashes.entry(ino.0 & !15).or_default().insert((!changed.contains(&ino), ino.0 as u8));
    }
    hashes
}

pub(crate) fn outcomes(txns: &[Txn], mut answer: Reply) -> Result<Vec<Outcome>, Malformed> {
    let mut changed_inodes = BTreeMap::new();
    for (first, inos) in hashes(txns) {
        for (_, last) in inos.into_iter().filter(|(is_only_read, _)| !is_only_read) {
            let ino = Ino(first & !255 | u64::from(last));
            changed_inodes.insert(ino, answer.stored(|bytes| rows::inode(ino, bytes))?);
        }
    }
    let outcome = |txn: &Txn| {
        let Some(seq) = answer.take::<Option<i64>>()? else {
            let keys: Vec<RecordKey> = txn.guards.iter().map(Guard::key).collect();
            return Ok(Outcome::Conflict(read::snapshot(&keys, &mut answer)?));
        };
        // The script answers a repeated transaction with a negative number. The repetition changed nothing.
        let changed = if seq < 0 { Vec::new() } else { txn.changed_inodes() };
        let inodes = changed.iter().filter_map(|ino| changed_inodes.get(ino).copied().flatten()).collect();
        Ok(Outcome::Committed { seq: Seq(seq.unsigned_abs()), inodes })
    };
    txns.iter().map(outcome).collect()
}

/// True if the transactions change something but add nothing. The script must be able to run them even if the
/// server's memory is full.
fn removes(txns: &[Txn]) -> bool {
    let mut effects = txns.iter().flat_map(|txn| &txn.effects).peekable();
    effects.peek().is_some() && !effects.any(Effect::adds)
}

/// Every guard and effect starts with its code.
fn add_guard(to: &mut Request, guard: &Guard) {
    match guard {
        Guard::DirentIs { parent, name, ino } => {
            to.code(code::GUARD_DIRENT_IS).id(parent.0).string(name).id(ino.0)
        }
        Guard::DirentAbsent { parent, name } => to.code(code::GUARD_DIRENT_ABSENT).id(parent.0).string(name),
        Guard::Access { ino, rev } => to.code(code::GUARD_ACCESS).id(ino.0).id(*rev),
        Guard::InodeAbsent { ino } => to.code(code::GUARD_INODE_ABSENT).id(ino.0),
        Guard::Links { ino, nlink } => add_inode_bytes(to, *ino, rows::LINKS, &nlink.to_be_bytes()),
        Guard::ParentIs { ino, parent } => add_inode_bytes(to, *ino, rows::PARENT, &parent.0.to_be_bytes()),
        Guard::Empty { ino } => to.code(code::GUARD_EMPTY).id(ino.0),
        Guard::Xattr { ino, name, blocks } => {
            to.code(code::GUARD_XATTR).id(ino.0).string(name).number((*blocks).into())
        }
        Guard::XattrBlocks { ino, least, most } => {
            to.code(code::GUARD_XATTR_BLOCKS).id(ino.0).number((*least).into()).number((*most).into())
        }
        Guard::Setting { name, value: Some(value) } => {
            to.code(code::GUARD_SETTING).string(name).string(value)
        }
        Guard::Setting { name, value: None } => to.code(code::GUARD_NO_SETTING).string(name),
        Guard::Counter { counter, value } => to.code(code::GUARD_COUNTER).string(counter.name()).id(*value),
        Guard::Size { ino, size } => add_inode_bytes(to, *ino, rows::SIZE, &size.to_be_bytes()),
        Guard::Locks { ino, locks } => to.code(code::GUARD_LOCKS).id(ino.0).string(rows::put_locks(locks)),
        Guard::Rows { ino, chunk, rows } => add_rows(to.code(code::GUARD_ROWS).id(ino.0).id(chunk.0), rows),
        Guard::Room { max_inodes, max_blocks } => to.code(code::GUARD_ROOM).id(*max_inodes).id(*max_blocks),
        Guard::Quota { key, outer, inodes, blocks } => to
            .code(code::GUARD_QUOTA)
            .fixed(&rows::put_quota_key(*key))
            .string(outer.map_or(Vec::new(), |outer| outer.0.to_be_bytes().to_vec()))
            .id(*inodes)
            .id(*blocks),
        Guard::Session { session, heartbeat: None } => to.code(code::GUARD_SESSION).id(session.0),
        Guard::Session { session, heartbeat: Some(heartbeat) } => {
            to.code(code::GUARD_HEARTBEAT).id(session.0).fixed(&heartbeat.nanos().to_be_bytes())
        }
        Guard::Term { session, term } => to.code(code::GUARD_TERM).fixed(&term.key(*session)),
        Guard::Acl { id } => to.code(code::GUARD_ACL).fixed(&id.to_bytes()),
    };
}

/// Adds a guard that the stored inode has `bytes` at offset `at`, counted from 1.
fn add_inode_bytes<'a>(to: &'a mut Request, ino: Ino, at: u8, bytes: &[u8]) -> &'a mut Request {
    to.code(code::GUARD_INODE_BYTES).id(ino.0).fixed(&[at]).string(bytes)
}

fn add_rows<'a>(to: &'a mut Request, rows: &[Slice]) -> &'a mut Request {
    to.nested(|to| rows.iter().for_each(|row| _ = to.string(rows::put_slice(row))))
}

fn add_effect(to: &mut Request, effect: &Effect) {
    match effect {
        Effect::PutInode(inode) => {
            to.code(code::EFFECT_PUT_INODE).id(inode.ino.0).string(rows::put_inode(inode)).id(inode.blocks())
        }
        Effect::DropInode { ino } => to.code(code::EFFECT_DROP_INODE).id(ino.0),
        Effect::PutDirent { parent, name, ino, kind } => {
            to.code(code::EFFECT_PUT_DIRENT).id(parent.0).string(name).string(rows::put_dirent(*ino, *kind))
        }
        Effect::DropDirent { parent, name } => to.code(code::EFFECT_DROP_DIRENT).id(parent.0).string(name),
        Effect::SetAccess { ino, access } => {
            to.code(code::EFFECT_SET_ACCESS).id(ino.0).string(rows::access_fields(
                access.mode,
                access.uid,
                access.gid,
            ));
            to.string(rows::acls(access.access_acl, access.default_acl)).string(rows::tag(access.quota))
        }
        Effect::SetParent { ino, parent } => to.code(code::EFFECT_SET_PARENT).id(ino.0).id(parent.0),
        Effect::AddLinks { ino, delta } => {
            to.code(code::EFFECT_ADD_LINKS).id(ino.0).fixed(&delta.to_be_bytes())
        }
        Effect::SetTimes { ino, atime: None, mtime: Some(time), ctime } if *ctime == Some(*time) => {
            to.code(code::EFFECT_SET_MTIME_CTIME).id(ino.0).fixed(&rows::time(*ctime))
        }
        Effect::SetTimes { ino, atime, mtime, ctime } => {
            to.code(code::EFFECT_SET_TIMES).id(ino.0);
            to.string(rows::time(*atime)).string(rows::time(*mtime)).string(rows::time(*ctime))
        }
        Effect::SetSize { ino, size } => to.code(code::EFFECT_SET_SIZE).id(ino.0).id(*size),
        Effect::Extend { ino, size } => to.code(code::EFFECT_EXTEND).id(ino.0).id(*size),
        Effect::AddXattrBlocks { ino, delta } => {
            to.code(code::EFFECT_ADD_XATTR_BLOCKS).id(ino.0).fixed(&delta.to_be_bytes())
        }
        Effect::AppendSlice { ino, chunk, slice } => {
            to.code(code::EFFECT_APPEND_SLICE).id(ino.0).id(chunk.0).string(rows::put_slice(slice))
        }
        Effect::DropSlices { ino, from, to: end } => {
            to.code(code::EFFECT_DROP_SLICES).id(ino.0).id(from.0).id(end.0)
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => add_rows(
            to.code(code::EFFECT_REPLACE_ROWS).id(ino.0).id(chunk.0).fixed(&count.to_be_bytes()),
            rows,
        ),
        Effect::Share { slice, rows } => to.code(code::EFFECT_SHARE).id(slice.0).number(*rows as usize),
        Effect::PutXattr { ino, name, value } => {
            to.code(code::EFFECT_PUT_XATTR).id(ino.0).string(name).string(value)
        }
        Effect::DropXattr { ino, name } => to.code(code::EFFECT_DROP_XATTR).id(ino.0).string(name),
        Effect::PutAcl { id, text } => to.code(code::EFFECT_PUT_ACL).fixed(&id.to_bytes()).string(&**text),
        Effect::CondemnAcl { id } => to.code(code::EFFECT_CONDEMN_ACL).fixed(&id.to_bytes()),
        Effect::DropAcl { id } => to.code(code::EFFECT_DROP_ACL).fixed(&id.to_bytes()),
        Effect::PutSymlink { ino, target } => to.code(code::EFFECT_PUT_SYMLINK).id(ino.0).string(target),
        Effect::PutOrphan { session, ino } => {
            to.code(code::EFFECT_PUT_ORPHAN).fixed(&rows::orphan(*session, *ino))
        }
        Effect::DropOrphan { session, ino } => {
            to.code(code::EFFECT_DROP_ORPHAN).fixed(&rows::orphan(*session, *ino))
        }
        Effect::PutSession(session) => {
            to.code(code::EFFECT_PUT_MEMBER).string("sessions").string(session.id.0.to_be_bytes());
            to.string(Writer::default().session(session).into_vec())
        }
        Effect::DropSession { session } => add_drop(to, "sessions", &session.0.to_be_bytes()),
        Effect::BeginTerm { session, term, ended } => {
            to.code(code::EFFECT_BEGIN_TERM).fixed(&term.key(*session));
            to.string(ended.iter().flat_map(|term| term.0.to_be_bytes()).collect::<Vec<_>>())
        }
        Effect::PutLocks { ino, locks } if locks.is_empty() => add_drop(to, "locks", &ino.0.to_be_bytes()),
        Effect::PutLocks { ino, locks } => {
            to.code(code::EFFECT_PUT_LOCKS).id(ino.0).string(rows::put_locks(locks))
        }
        Effect::PutWait(wait) => {
            to.code(code::EFFECT_PUT_MEMBER).string("waits").string(rows::put_owner(wait.lock.owner));
            to.string(Writer::default().u64(wait.ino.0).lock(&wait.lock).into_vec())
        }
        Effect::DropWait { owner } => add_drop(to, "waits", &rows::put_owner(*owner)),
        Effect::DropGarbage { slice } => add_drop(to, "garbage", &slice.0.to_be_bytes()),
        Effect::PutSetting { name, value } => {
            to.code(code::EFFECT_PUT_FIELD).string("settings").string(name).string(value)
        }
        Effect::SetCounter { counter, value } => to
            .code(code::EFFECT_PUT_FIELD)
            .string("counters")
            .string(counter.name())
            .string(value.to_be_bytes()),
        Effect::AddUsage { inodes, blocks } => {
            to.code(code::EFFECT_ADD_USAGE).fixed(&inodes.to_be_bytes()).fixed(&blocks.to_be_bytes())
        }
        Effect::PutQuota { key, rule } => {
            to.code(code::EFFECT_PUT_QUOTA).fixed(&rows::put_quota_key(*key)).string(rows::put_rule(rule))
        }
        Effect::DropQuota { key } => add_drop(to, "quotas", &rows::put_quota_key(*key)),
        Effect::Charge { key, inodes, blocks } => {
            to.code(code::EFFECT_CHARGE).fixed(&rows::put_quota_key(*key));
            to.fixed(&inodes.to_be_bytes()).fixed(&blocks.to_be_bytes());
            to.string(rows::put_rule(&QuotaRule::default()))
        }
    };
}

/// Encodes the removal of `key` from `map`.
fn add_drop<'a>(to: &'a mut Request, map: &str, key: &[u8]) -> &'a mut Request {
    to.code(code::EFFECT_DROP_MEMBER).string(map).string(key)
}
