//! The guards and effects of a group, arranged by kind in arrays: the arguments of the server's functions.
//!
//! One statement applies all effects of one kind. The kinds are applied in the order of [`tables::Stage`],
//! names last. If this order would change the meaning of a transaction's effects, they are divided into
//! several stages, which are applied one after another.
//!
//! The number of commits per second depends on the CPU time that a commit costs the server. PL/pgSQL expands
//! every array argument separately, so all arguments are sent as one composite value. In it, an array without
//! rows is NULL, and the numbers of quotas and of new or changed inodes are one matrix each. The client
//! combines the changes that all transactions of a group make to the same inode.

use std::collections::{BTreeMap, BTreeSet};

use host::HashMap;
use meta::Part::{Access, Acl, Quota, Session};
use meta::{
    Effect, Guard, Invalidation, QuotaKey, RecordKey, Txn, Usage, certain_charged_before_quota_guard,
    max_added_before_room_guard, max_charged_before_quota_guard,
};
use tables::{InodeChange, Line, LockSet};
use types::{SessionId, Term, Time};

use crate::code;
use crate::columns::{Arg, Rows, acl, int, locks_text, rows_text};

/// A group as sent to the server. Type `args` in `functions.sql` describes the columns. The first number of a
/// guard or an effect is the number of its transaction; in an effect, the bits above the lower 16 hold the
/// stage.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) head: Head,
    txns: Rows<2, 1>,
    /// Each session, and its term that must be open. Term 0 is open as long as the session exists.
    sessions: Rows<2, 0>,
    /// The sessions whose lock this call must hold exclusively.
    exclusive: Rows<1, 0>,
    /// Quotas to lock, each with the result of [`certain_charged_before_quota_guard`], where -1 stands for
    /// `None`.
    quotas: Rows<4, 0>,
    /// The rows of `locked`.
    locks: Rows<2, 0>,
    pub(crate) guards: Rows<5, 2>,
    puts: Rows<16, 2>,
    changes: Rows<18, 2>,
    dirents: Rows<4, 1>,
    dropped_dirents: Rows<2, 1>,
    drops: Rows<2, 0>,
    rest: Rows<11, 2>,
    to_lock: LockSet,
    /// The term of each session that a guard checks.
    terms: BTreeMap<SessionId, Term>,
    /// The inodes to lock, in the server's order (as signed numbers), with the access revision that each must
    /// have, if any.
    locked: BTreeMap<i64, Option<i64>>,
    /// The combined change of each inode by all transactions, in the server's order.
    combined: BTreeMap<i64, InodeChange>,
}

/// The most that the transactions of a group can add to the usage before the last guard on the room, and to
/// each quota before the last guard on that quota. The bounds of the guards are tightened by it, so that one
/// check before all effects suffices.
struct Ahead<'t> {
    txns: &'t [Txn],
    room: Usage,
    /// The inodes and blocks of each quota, filled in when its first guard is added.
    quotas: HashMap<QuotaKey, (u64, u64)>,
}

/// Flags and bounds for all transactions together.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// The numbers of the transactions that have effects.
    changing: Vec<i64>,
    /// The largest number of stages of a transaction.
    pub(crate) stages: i32,
    /// How to lock the ACLs: not (0), shared (1), exclusively (2).
    acls: i32,
    /// Whether to lock the counters: settings or counters are read or changed, the rule of a quota is
    /// changed, or the usage is corrected.
    numbers: bool,
    /// Whether to check all guards in full, because the faster checks do not cover one of them, or because
    /// inserts found an existing row.
    pub(crate) full: bool,
    /// Whether guards on inodes or names must be checked after the locks are taken, because neither the
    /// locking statement nor the insertion of names checks them.
    recheck: bool,
    /// Whether there is one stage, and each name that is put has a guard [`Guard::DirentAbsent`].
    fresh: bool,
    /// Whether a change may change the blocks that an existing inode uses.
    sized: bool,
    /// Whether `changes` also has the combined changes of all transactions, as those of transaction 0.
    combined: bool,
    /// Whether there is a [`Guard::Room`]: a limit of the volume's inodes and blocks.
    room: bool,
    /// Whether the server takes the lock on the room exclusively. Set if this single transaction is sent
    /// again, because the server refused it at first: other commits could use up the room.
    pub(crate) careful: bool,
    /// Whether to remove old transactions from the log.
    pub(crate) trim: bool,
    /// Whether a charge may create a quota.
    new_quotas: bool,
    /// Inodes and blocks that are subtracted from the bounds of guards on the room
    /// ([`max_added_before_room_guard`]).
    ahead: [i64; 2],
}

impl Gathered {
    /// Arranges the guards and effects of `txns`; see [`Head`] for `careful`.
    pub(crate) fn new(txns: &[Txn], careful: bool) -> Self {
        let ahead = max_added_before_room_guard(txns);
        let (inodes, blocks) = (bound(ahead.inodes), bound(ahead.blocks));
        let head = Head { stages: 1, careful, fresh: true, ahead: [inodes, blocks], ..Head::default() };
        let mut all = Gathered { head, ..Gathered::default() };
        // Usually one session and the same quotas guard all transactions. Such a guard is sent once, because
        // each guard costs the server time.
        let is_common = |guard: &&Guard| {
            matches!(guard.part(), Session(_) | Quota(_) | Acl(_))
                && txns.iter().all(|txn| txn.guards.contains(guard))
        };
        let common: Vec<&Guard> = txns.iter().take(1).flat_map(|txn| &txn.guards).filter(is_common).collect();
        let mut ahead = Ahead { txns, room: ahead, quotas: HashMap::default() };
        common.iter().for_each(|guard| all.guard(0, guard, &mut ahead));
        // SQL arrays are indexed from 1.
        for (t, txn) in (1..).zip(txns) {
            for guard in txn.guards.iter().filter(|guard| !common.contains(guard)) {
                all.guard(t, guard, &mut ahead);
            }
            let invalidations = (!txn.effects.is_empty()).then(|| Invalidation::encode(&txn.invalidations()));
            all.txns.push(&[(txn.op_id.0 >> 64) as i64, txn.op_id.0 as i64], &[invalidations.as_deref()]);
            all.to_lock.add(txn);
            if invalidations.is_some() {
                all.head.changing.push(t);
                all.plan_checks(txn);
                all.effects(t, &txn.effects);
            } else {
                all.head.recheck = true;
                // A transaction without effects locks no quotas and ACLs. If a call locks none, the server
                // checks the guards on them only in the full check.
                all.head.full |= txn.guards.iter().any(|guard| matches!(guard.part(), Quota(_) | Acl(_)));
            }
        }
        // With several stages, the insert may replace dirents, so it does not detect an existing one. Then
        // `DirentAbsent` must be checked before.
        all.head.fresh &= all.head.stages == 1;
        all.head.recheck |= !all.head.fresh;
        let LockSet { sessions, inos, volume, acls, quotas, uncertain_quotas, .. } = &all.to_lock;
        all.head.numbers = *volume;
        all.head.acls = acls.map_or(0, |is_exclusive| 1 + i32::from(is_exclusive));
        all.head.new_quotas = !uncertain_quotas.is_empty();
        for key in quotas {
            let (kind, number) = key.to_numbers();
            let [inodes, blocks] = certain_charged_before_quota_guard(ahead.txns, *key)
                .map_or([-1; 2], |ahead| ahead.map(bound));
            all.quotas.push(&[kind.into(), int(number), inodes, blocks], &[]);
        }
        for (session, is_exclusive) in sessions {
            let term = all.terms.get(session).copied().unwrap_or_default();
            all.sessions.push(&[int(session.0), term.0.into()], &[]);
            is_exclusive.then(|| all.exclusive.push(&[int(session.0)], &[]));
        }
        for ino in inos {
            all.locked.entry(int(ino.0)).or_default();
        }
        for (ino, rev) in &all.locked {
            all.locks.push(&[Some(*ino), *rev], &[]);
        }
        if txns.len() > 1 {
            all.head.combined = true;
            std::mem::take(&mut all.combined).iter().for_each(|(ino, change)| all.change(0, *ino, change));
        }
        all
    }

    pub(crate) fn args(&self) -> Vec<Arg<'_>> {
        let head = &self.head;
        let mut args: Vec<Arg<'_>> = vec![&head.changing, &head.stages, &head.acls];
        let Head { numbers, full, recheck, fresh, sized, combined, room, careful, trim, new_quotas, .. } =
            head;
        let flags = [numbers, full, recheck, fresh, sized, combined, room, careful, trim, new_quotas];
        args.extend(flags.map(|flag| flag as Arg<'_>));
        args.extend(head.ahead.iter().map(|number| number as Arg<'_>));
        let rows = self.txns.args().chain(self.sessions.args()).chain(self.exclusive.args());
        let rows = rows.chain(self.quotas.matrix(0)).chain(self.locks.args()).chain(self.guards.args());
        let rows = rows.chain(self.puts.matrix(1)).chain(self.changes.matrix(2)).chain(self.dirents.args());
        args.extend(rows.chain(self.dropped_dirents.args()).chain(self.drops.args()).chain(self.rest.args()));
        args
    }

    /// Adds a guard of transaction `t`. Its values begin with those of the record key that decides it.
    fn guard(&mut self, t: i64, guard: &Guard, ahead: &mut Ahead<'_>) {
        use RecordKey::{Counter, Empty, Locks, Settings, Slices};
        let key = guard.key();
        self.head.full |= matches!(key, Empty(_) | Settings | Counter(_) | Slices(..) | Locks(_));
        let mut line = tables::row_key(&key);
        // Adds a number to the line of a guard, and returns the guard's code.
        let mut and = |number: u64, what: i64| {
            line.numbers.push(Some(number.into()));
            what
        };
        let what = match guard {
            Guard::Access { rev, .. } => and(*rev, code::GUARD_ACCESS),
            Guard::InodeAbsent { .. } => code::GUARD_INODE_ABSENT,
            Guard::Links { nlink, .. } => and((*nlink).into(), code::GUARD_LINKS),
            Guard::ParentIs { parent, .. } => and(parent.0, code::GUARD_PARENT_IS),
            Guard::Size { size, .. } => and(*size, code::GUARD_SIZE),
            Guard::XattrBlocks { least, most, .. } => {
                and((*most).into(), code::GUARD_XATTR_BLOCKS);
                and((*least).into(), code::GUARD_XATTR_BLOCKS)
            }
            Guard::Quota { key: quota, outer, inodes, blocks } => {
                let charged = || max_charged_before_quota_guard(ahead.txns, *quota);
                let ahead = ahead.quotas.entry(*quota).or_insert_with(charged);
                // A transaction that adds nothing passes even if the quota is exceeded.
                for (what, more, ahead) in [
                    (code::GUARD_QUOTA_INODES, *inodes, ahead.0),
                    (code::GUARD_QUOTA_BLOCKS, *blocks, ahead.1),
                ] {
                    if more > 0 {
                        line.numbers.push(Some(bound(more.saturating_add(ahead)).into()));
                        self.guards.line(&[t, what], &line);
                        line.numbers.pop();
                    }
                }
                line.numbers.push(outer.map(|id| id.0.into()));
                code::GUARD_QUOTA
            }
            Guard::DirentIs { ino, .. } => and(ino.0, code::GUARD_DIRENT_IS),
            Guard::DirentAbsent { .. } => code::GUARD_DIRENT_ABSENT,
            Guard::Empty { .. } => code::GUARD_EMPTY,
            Guard::Xattr { name, blocks, .. } => {
                line.strings.push(Some(name.as_bytes().into()));
                and((*blocks).into(), code::GUARD_XATTR)
            }
            Guard::Rows { rows, .. } => {
                line.strings.push(Some(rows_text(rows).into_bytes().into()));
                and(rows.len() as u64, code::GUARD_ROWS)
            }
            Guard::Acl { .. } => code::GUARD_ACL,
            Guard::Setting { name, value } => {
                let value = value.as_deref().map(|value| value.as_bytes().into());
                line.strings.extend([Some(name.as_bytes().into()), value]);
                code::GUARD_SETTING
            }
            Guard::Counter { value, .. } => and(*value, code::GUARD_COUNTER),
            Guard::Room { max_inodes, max_blocks } => {
                self.head.room = true;
                and(max_inodes.saturating_sub(ahead.room.inodes).min(i64::MAX as u64), code::GUARD_ROOM);
                and(max_blocks.saturating_sub(ahead.room.blocks).min(i64::MAX as u64), code::GUARD_ROOM)
            }
            Guard::Locks { locks, .. } => {
                line.strings.push(Some(locks_text(locks).into_bytes().into()));
                code::GUARD_LOCKS
            }
            Guard::Session { heartbeat, .. } => {
                // The session's existence is checked together with the locks.
                self.head.full |= heartbeat.is_some();
                line.numbers.push(heartbeat.map(|heartbeat| heartbeat.nanos().into()));
                code::GUARD_SESSION
            }
            Guard::Term { session, term } => {
                self.head.full |= self.terms.insert(*session, *term).is_some_and(|other| other != *term);
                and(term.0.into(), code::GUARD_TERM)
            }
        };
        self.guards.line(&[t, what], &line);
    }

    /// Decides what must be checked for a transaction after its locks are taken.
    fn plan_checks(&mut self, txn: &Txn) {
        // If the server can insert a name, the name was free; no other check is needed.
        let free: BTreeSet<_> = txn.guards.iter().filter_map(tables::free).collect();
        let named: BTreeSet<_> = txn.effects.iter().filter_map(tables::named).collect();
        self.head.fresh &= named.is_subset(&free);
        self.head.recheck |= !free.is_subset(&named);
        for guard in &txn.guards {
            if let Guard::Access { ino, rev } = guard {
                let locked = self.locked.entry(int(ino.0)).or_default();
                // If two guards require different revisions, one of them fails.
                self.head.full |= locked.replace(int(*rev)).is_some_and(|other| other != int(*rev));
            }
            self.head.recheck |= !matches!(guard, Guard::DirentAbsent { .. })
                && !matches!(guard.part(), Access(_) | Session(_) | Quota(_) | Acl(_));
        }
    }

    fn effects(&mut self, t: i64, effects: &[Effect]) {
        for (number, stage) in (0..).zip(tables::stages(effects)) {
            self.head.stages = self.head.stages.max(number + 1);
            let t = i64::from(number) << 16 | t;
            stage.drops.iter().for_each(|ino| self.drops.push(&[t, int(ino.0)], &[]));
            stage.puts.iter().for_each(|inode| self.puts.line(&[t], &Line::inode(inode)));
            // Send the inodes in the server's order, because the server finds the position of each inode by
            // binary search.
            let changes = stage.changes.into_iter().map(|(ino, change)| (int(ino.0), change));
            for (ino, change) in changes.collect::<BTreeMap<_, _>>() {
                self.head.sized |= change.moves_usage();
                self.change(t, ino, &change);
                self.combined.entry(ino).or_default().follow(&change);
            }
            stage.others.iter().for_each(|effect| self.other(t, effect));
        }
    }

    /// Adds the change of an inode. The link count and the number of xattr blocks change by `added`, but not
    /// below `least`. The size is first cut to the upper bound, then raised to the lower bound.
    fn change(&mut self, t: i64, ino: i64, change: &InodeChange) {
        let (low, high) = change.size.bounds();
        let access = change.access;
        let given = [
            change.atime.map(Time::nanos),
            change.mtime.map(Time::nanos),
            change.ctime.map(Time::nanos),
            change.parent.map(|parent| int(parent.0)),
            access.map(|access| int(access.mode.bits())),
            access.map(|access| int(access.uid)),
            access.map(|access| int(access.gid)),
        ];
        // SETS_ACCESS is the bit of the mode. It also covers uid, gid, quota tag and ACLs, which are set
        // together with the mode, so the last two values of `given` have no bit.
        let bits =
            [code::SETS_ATIME, code::SETS_MTIME, code::SETS_CTIME, code::SETS_PARENT, code::SETS_ACCESS];
        let which = bits.iter().zip(given).filter(|(_, number)| number.is_some()).map(|(bit, _)| bit).sum();
        let (links, xattrs) = (change.links, change.xattr_blocks);
        let first = [t, ino, links.added, links.least, bound(low), bound(high), which];
        let given = given.map(Option::unwrap_or_default);
        let tag = access.map_or(0, |access| int(access.quota.to_number()));
        let last = [int(change.access_revs), xattrs.added, xattrs.least, tag];
        let numbers = [&first[..], &given, &last].concat();
        let acls = access.map(|access| [acl(access.access_acl), acl(access.default_acl)]);
        let [access_acl, default_acl] = acls.unwrap_or_default();
        self.changes.push(&numbers, &[access_acl.as_deref(), default_acl.as_deref()]);
    }

    /// Adds an effect on a dirent, or one of the rarer effects, which function `rest` applies.
    fn other(&mut self, t: i64, effect: &Effect) {
        let rest = &mut self.rest;
        match effect {
            Effect::PutDirent { .. } => {
                tables::put(effect).iter().for_each(|line| self.dirents.line(&[t], line))
            }
            Effect::DropDirent { .. } => {
                tables::removed(effect).iter().for_each(|key| self.dropped_dirents.line(&[t], key));
            }
            Effect::DropSlices { ino, from, to } => {
                // No chunk lies beyond i64::MAX.
                rest.push(&[t, code::EFFECT_DROP_SLICES, int(ino.0), bound(from.0), bound(to.0)], &[]);
            }
            Effect::ReplaceRows { ino, chunk, count, .. } => {
                rest.push(&[t, code::EFFECT_REPLACE_ROWS, int(ino.0), int(chunk.0), int(*count)], &[]);
                tables::put(effect).iter().for_each(|line| rest.line(&[t, code::EFFECT_REPLACING_ROW], line));
            }
            Effect::AddUsage { inodes, blocks } => {
                rest.push(&[t, code::EFFECT_ADD_USAGE, *inodes, *blocks], &[])
            }
            Effect::PutSession(session) => {
                for line in tables::put(effect) {
                    rest.line(&[t, code::EFFECT_PUT_SESSION], &line);
                    let others: Vec<_> = line.strings.iter().skip(2).map(Option::as_deref).collect();
                    rest.push(&[t, code::EFFECT_SESSION_TEXTS, int(session.id.0)], &others);
                }
            }
            Effect::BeginTerm { session, term, ended } => {
                rest.push(&[t, code::EFFECT_BEGIN_TERM, int(session.0), term.0.into()], &[]);
                ended.iter().for_each(|term| {
                    rest.push(&[t, code::EFFECT_END_TERM, int(session.0), term.0.into()], &[])
                });
                // Commits in these terms either come before this change or find the terms ended.
                *self.to_lock.sessions.entry(*session).or_default() |= !ended.is_empty();
            }
            Effect::PutQuota { key, rule } => {
                rest.line(&[t, code::EFFECT_PUT_QUOTA], &Line::rule(*key, rule));
            }
            Effect::Charge { key, inodes, blocks } => {
                let (kind, number) = key.to_numbers();
                rest.push(&[t, code::EFFECT_CHARGE, kind.into(), int(number), *inodes, *blocks], &[]);
            }
            Effect::CondemnAcl { id } => rest.line(&[t, code::EFFECT_CONDEMN_ACL], &Line::acl(*id, None)),
            Effect::Share { slice, rows } => {
                rest.push(&[t, code::EFFECT_SHARE, int(slice.0), int(*rows)], &[])
            }
            _ => {
                if let Some(key) = tables::removed(effect) {
                    rest.line(&[t, code::REMOVED + i64::from(key.table.kind)], &key);
                }
                for line in tables::put(effect) {
                    rest.line(&[t, line.table.kind.into()], &line);
                }
            }
        }
    }
}

/// Clamps a bound of a size, a count or a chunk index to `i64::MAX`, which no stored value exceeds.
fn bound(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
