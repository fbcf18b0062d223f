//! The guards and effects of a run, grouped by kind into arrays: the arguments of the functions on the server.
//!
//! Effects of one kind are applied by one statement, the kinds in the order of [`tables::Layer`], and names last. Where a
//! transaction's own effects mean something else in that order, they are in several layers, each applied after the one
//! before.

use std::collections::{BTreeMap, HashSet};

use meta::{Effect, Guard, Touched, Txn, Usage, Want, ahead_of_room};
use tables::{Change, Line, Locks, Size};
use types::{SessionId, Term, Time};

use crate::columns::{Arg, Rows, acl, locks_text, rows_text};
use crate::read::int;

/// A run as the server is asked for it: type `args` in `functions.sql` says what the columns are. Rows of a transaction
/// begin with its number; those of effects have their layer above its lower 16 bits.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) head: Head,
    txns: Rows<2, 1>,
    /// Each with the term that has to be open: 0 is as long as the session is there.
    sessions: Rows<2, 0>,
    /// Those of the sessions that no other call may look at meanwhile.
    exclusive: Rows<1, 0>,
    locks: Rows<2, 0>,
    pub(crate) guards: Rows<5, 2>,
    puts: Rows<14, 2>,
    changes: Rows<15, 2>,
    names: Rows<4, 1>,
    unnames: Rows<2, 1>,
    drops: Rows<2, 0>,
    rest: Rows<10, 2>,
    to_lock: Locks,
    terms: BTreeMap<SessionId, Term>,
    /// Inodes to be locked, in the server's order, and what the access revisions of some have to be.
    locked: BTreeMap<i64, Option<i64>>,
    /// What becomes of inodes, in the server's order, of each by all transactions together.
    folded: BTreeMap<i64, Change>,
}

/// What all transactions together need.
#[derive(Debug, Default)]
pub(crate) struct Head {
    changing: Vec<i64>,
    pub(crate) layers: i32,
    numbers: bool,
    rare: bool,
    look: bool,
    fresh: bool,
    sized: bool,
    folded: bool,
    room: bool,
    pub(crate) careful: bool,
    pub(crate) trim: bool,
    ahead: [i64; 2],
}

impl Gathered {
    /// `careful` where a run of this one transaction was refused among others.
    pub(crate) fn new(run: &[Txn], careful: bool) -> Self {
        let ahead = ahead_of_room(run);
        let (inodes, blocks) = (bound(ahead.inodes), bound(ahead.blocks));
        let head = Head { layers: 1, careful, fresh: true, ahead: [inodes, blocks], ..Head::default() };
        let mut all = Gathered { head, ..Gathered::default() };
        // Usually one session guards all transactions. Its guard is sent once, because each one costs time.
        let is_common = |guard: &&Guard| {
            matches!(guard, Guard::Session { .. } | Guard::Term { .. })
                && run.iter().all(|txn| txn.guards.contains(guard))
        };
        let first = run.first().map(|txn| &txn.guards[..]).unwrap_or_default();
        let common: Vec<&Guard> = first.iter().filter(is_common).collect();
        common.iter().for_each(|guard| all.guard(0, guard, ahead));
        // The server counts from 1.
        for (t, txn) in (1..).zip(run) {
            for guard in txn.guards.iter().filter(|guard| !common.contains(guard)) {
                all.guard(t, guard, ahead);
            }
            let touched = (!txn.effects.is_empty()).then(|| Touched::encode(&txn.touched()));
            all.txns.push(&[(txn.op_id.0 >> 64) as i64, txn.op_id.0 as i64], &[touched.as_deref()]);
            all.to_lock.add(txn);
            if touched.is_some() {
                all.head.changing.push(t);
                all.look(txn);
                all.effects(t, &txn.effects);
            } else {
                all.head.look = true;
            }
        }
        // Names that may replace others are no test of whether these are free.
        all.head.look |= !all.head.fresh;
        let Locks { sessions, inos, volume, .. } = &all.to_lock;
        all.head.numbers = *volume;
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
        if run.len() > 1 {
            all.head.folded = true;
            std::mem::take(&mut all.folded).iter().for_each(|(ino, change)| all.change(0, *ino, change));
        }
        all
    }

    pub(crate) fn args(&self) -> Vec<Arg<'_>> {
        let head = &self.head;
        let mut args: Vec<Arg<'_>> = vec![&head.changing, &head.layers];
        let flags =
            [&head.numbers, &head.rare, &head.look, &head.fresh, &head.sized, &head.folded, &head.room];
        args.extend(flags.map(|flag| flag as Arg<'_>));
        args.extend([&head.careful, &head.trim].map(|flag| flag as Arg<'_>));
        args.extend(head.ahead.iter().map(|number| number as Arg<'_>));
        let rows = self.txns.args().chain(self.sessions.args()).chain(self.exclusive.args());
        let rows = rows.chain(self.locks.args()).chain(self.guards.args());
        let rows = rows.chain(self.puts.matrix(1)).chain(self.changes.matrix(2)).chain(self.names.args());
        args.extend(rows.chain(self.unnames.args()).chain(self.drops.args()).chain(self.rest.args()));
        args
    }

    /// A guard's kind divided by ten is the want that decides it; its arguments begin as the want's.
    fn guard(&mut self, t: i64, guard: &Guard, ahead: Usage) {
        let want = guard.want();
        self.head.rare |= !matches!(want, Want::Node(_) | Want::Entry(..) | Want::Usage | Want::Session(_));
        let guards = &mut self.guards;
        match guard {
            Guard::Access { ino, rev } => guards.push(&[t, 10, int(ino.0), int(*rev)], &[]),
            Guard::NodeAbsent { ino } => guards.push(&[t, 11, int(ino.0)], &[]),
            Guard::Links { ino, nlink } => guards.push(&[t, 12, int(ino.0), int(*nlink)], &[]),
            Guard::ParentIs { ino, parent } => guards.push(&[t, 13, int(ino.0), int(parent.0)], &[]),
            Guard::Size { ino, size } => guards.push(&[t, 14, int(ino.0), int(*size)], &[]),
            Guard::EdgeIs { parent, name, ino } => {
                guards.push(&[t, 20, int(parent.0), int(ino.0)], &[Some(name.as_bytes())]);
            }
            Guard::EdgeAbsent { parent, name } => {
                guards.push(&[t, 21, int(parent.0)], &[Some(name.as_bytes())]);
            }
            Guard::Empty { ino } => guards.push(&[t, 30, int(ino.0)], &[]),
            Guard::Xattr { ino, name, present } => {
                let kind = if *present { 40 } else { 41 };
                guards.push(&[t, kind, int(ino.0)], &[Some(name.as_bytes())]);
            }
            Guard::Rows { ino, chunk, rows } => {
                let numbers = [t, 60, int(ino.0), int(chunk.0), rows.len() as i64];
                guards.push(&numbers, &[Some(rows_text(rows).as_bytes())]);
            }
            Guard::Setting { name, value } => {
                let value = value.as_deref().map(str::as_bytes);
                guards.push(&[t, 80], &[Some(name.as_bytes()), value]);
            }
            Guard::Counter { counter, value } => {
                guards.push(&[t, 90, int(*value)], &[Some(counter.name().as_bytes())]);
            }
            Guard::Room { max_inodes, max_blocks } => {
                self.head.room = true;
                let inodes = bound(max_inodes.saturating_sub(ahead.inodes));
                let blocks = bound(max_blocks.saturating_sub(ahead.blocks));
                guards.push(&[t, 100, inodes, blocks], &[]);
            }
            Guard::Locks { ino, locks } => {
                guards.push(&[t, 110, int(ino.0)], &[Some(locks_text(locks).as_bytes())]);
            }
            Guard::Session { session, heartbeat } => {
                guards.push(&[Some(t), Some(130), Some(int(session.0)), heartbeat.map(Time::nanos)], &[]);
                // That a session is there is found out with the locks.
                self.head.rare |= heartbeat.is_some();
            }
            Guard::Term { session, term } => {
                guards.push(&[t, 131, int(session.0), term.0.into()], &[]);
                self.head.rare |= self.terms.insert(*session, *term).is_some_and(|other| other != *term);
            }
        }
    }

    /// What has to be looked at for a transaction, under its locks.
    fn look(&mut self, txn: &Txn) {
        // A name that has to be free is, if the server can insert it.
        let free: HashSet<_> = txn.guards.iter().filter_map(tables::free).collect();
        let named: HashSet<_> = txn.effects.iter().filter_map(tables::named).collect();
        let head = &mut self.head;
        head.fresh &= named.is_subset(&free);
        head.look |= !free.is_subset(&named);
        for guard in &txn.guards {
            if let Guard::Access { ino, rev } = guard {
                let locked = self.locked.entry(int(ino.0)).or_default();
                // Of two that differ one does not hold.
                head.rare |= locked.replace(int(*rev)).is_some_and(|other| other != int(*rev));
            }
            head.look |= !matches!(
                guard,
                Guard::Access { .. } | Guard::EdgeAbsent { .. } | Guard::Session { .. } | Guard::Term { .. }
            );
        }
    }

    fn effects(&mut self, t: i64, effects: &[Effect]) {
        for (number, layer) in (0..).zip(tables::layers(effects)) {
            self.head.layers = self.head.layers.max(number + 1);
            let t = i64::from(number) << 16 | t;
            for ino in &layer.drops {
                self.drops.push(&[t, int(ino.0)], &[]);
            }
            for node in &layer.puts {
                self.puts.line(&[t], &Line::node(node));
            }
            // In the server's order, by which it finds the place of each.
            let changes = layer.changes.into_iter().map(|(ino, change)| (int(ino.0), change));
            for (ino, change) in changes.collect::<BTreeMap<_, _>>() {
                self.head.sized |= change.size != Size::Kept;
                self.change(t, ino, &change);
                self.folded.entry(ino).or_default().follow(&change);
            }
            layer.others.iter().for_each(|effect| self.other(t, effect));
        }
    }

    /// Links are added, but not below the least; the size is cut to the higher bound, then at least the lower one.
    fn change(&mut self, t: i64, ino: i64, change: &Change) {
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
        // The bit of the mode stands for all of the access.
        let which = (0..5).zip(given).map(|(bit, number)| i64::from(number.is_some()) << bit).sum();
        let first = [t, ino, change.links, change.least_links, bound(low), bound(high), which];
        let given = given.map(Option::unwrap_or_default);
        let numbers = [&first[..], &given, &[int(change.access_revs)]].concat();
        let acls = access.map(|access| [acl(access.access_acl), acl(access.default_acl)]);
        let [access_acl, default_acl] = acls.unwrap_or_default();
        self.changes.push(&numbers, &[access_acl.as_deref(), default_acl.as_deref()]);
    }

    /// An effect on an entry, or one of the rarer ones: see function `rest`.
    fn other(&mut self, t: i64, effect: &Effect) {
        let rest = &mut self.rest;
        match effect {
            Effect::PutEdge { .. } => tables::put(effect).iter().for_each(|line| self.names.line(&[t], line)),
            Effect::DropEdge { .. } => {
                tables::removed(effect).iter().for_each(|key| self.unnames.line(&[t], key));
            }
            Effect::DropSlices { ino, from, to } => {
                // No chunk lies beyond i64::MAX.
                rest.push(&[t, 1, int(ino.0), bound(from.0), bound(to.0)], &[]);
            }
            Effect::ReplaceRows { ino, chunk, count, .. } => {
                rest.push(&[t, 2, int(ino.0), int(chunk.0), int(*count)], &[]);
                tables::put(effect).iter().for_each(|line| rest.line(&[t, 3], line));
            }
            Effect::AddUsage { inodes, blocks } => rest.push(&[t, 10, *inodes, *blocks], &[]),
            Effect::PutSession(session) => {
                for line in tables::put(effect) {
                    rest.line(&[t, 13], &line);
                    let others = line.strings.iter().skip(2).map(Option::as_deref);
                    rest.push(&[t, 213, int(session.id.0)], &others.collect::<Vec<_>>());
                }
            }
            Effect::BeginTerm { session, term, ended } => {
                rest.push(&[t, 17, int(session.0), term.0.into()], &[]);
                ended.iter().for_each(|term| rest.push(&[t, 117, int(session.0), term.0.into()], &[]));
                // Commits of these terms come before, or find them ended.
                *self.to_lock.sessions.entry(*session).or_default() |= !ended.is_empty();
            }
            Effect::Share { slice } => rest.push(&[t, 16, int(slice.0)], &[]),
            _ => {
                if let Some(key) = tables::removed(effect) {
                    rest.line(&[t, 100 + i64::from(key.table.fact)], &key);
                }
                for line in tables::put(effect) {
                    rest.line(&[t, line.table.fact.into()], &line);
                }
            }
        }
    }
}

/// Nothing that is stored lies beyond.
fn bound(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
