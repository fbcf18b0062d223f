//! The guards and effects of a run, grouped by kind into arrays: the arguments of the functions on the server.
//!
//! Effects of one kind are applied by one statement, the kinds in the order of [`tables::Layer`], and names last. Where a
//! transaction's own effects mean something else in that order, they are in several layers, each applied after the one
//! before.

use std::collections::{HashMap, HashSet};

use meta::{Effect, Guard, Node, Touched, Txn, Usage, ahead_of_room};
use tables::Size;
use tokio_postgres::types::ToSql;
use types::{AclId, Ino, Slice, Time};

use crate::columns::{lock_numbers, locks_text, rows_text, source};
use crate::read::int;

macro_rules! arguments {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        impl $name {
            pub(crate) fn push_to<'a>(&'a self, args: &mut Vec<&'a (dyn ToSql + Sync)>) {
                $(args.push(&self.$field);)*
            }
        }
    };
}

type Number = Vec<Option<i64>>;
type Bytes = Vec<Option<Vec<u8>>>;

arguments! {
    /// The transactions, and what is locked for them.
    Head {
        session: Vec<i64>, op: Vec<i64>, touched: Bytes, changing: Vec<i64>, layers: i32, lock: Vec<i64>, rev: Number,
        numbers: bool, rare: bool, look: bool, fresh: bool, merged: bool, room: bool, careful: bool, trim: bool,
        ahead_inodes: i64, ahead_blocks: i64,
    }
}
/// Rows, each column of which is an argument.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident of $row:ident { $($field:ident: $type:ty,)* }) => {
        arguments! { $(#[$doc])* $name { $($field: Vec<$type>,)* } }

        #[derive(Debug, Default)]
        struct $row { $($field: $type,)* }

        impl Extend<$row> for $name {
            fn extend<I: IntoIterator<Item = $row>>(&mut self, rows: I) {
                for row in rows {
                    $(self.$field.push(row.$field);)*
                }
            }
        }
    };
}

columns! {
    /// A guard's kind divided by ten is the want that decides it; its arguments begin as the want's.
    Guards of GuardRow {
        t: i64, what: i16, a: Option<i64>, b: Option<i64>, c: Option<i64>, x: Option<Vec<u8>>, y: Option<Vec<u8>>,
    }
}
columns! {
    Puts of Put {
        t: i64, ino: i64, kind: i16, mode: i16, uid: i64, gid: i64, rdev: i64, nlink: i64, size: i64, atime: i64,
        mtime: i64, ctime: i64, parent: i64, rev: i64, acl: Option<Vec<u8>>, default_acl: Option<Vec<u8>>,
    }
}
columns! {
    /// What becomes of an inode: links are added, but not below `least`; the size is cut to `high`, then at least `low`.
    Changes of Change {
        t: i64, ino: i64, links: i64, least: i64, low: i64, high: i64, atime: Option<i64>, mtime: Option<i64>,
        ctime: Option<i64>, parent: Option<i64>, mode: Option<i16>, uid: Option<i64>, gid: Option<i64>, rev: i64,
        acl: Option<Vec<u8>>, default_acl: Option<Vec<u8>>,
    }
}
columns! {
    Names of Naming { t: i64, parent: i64, name: Vec<u8>, ino: i64, kind: i16, }
}
columns! {
    Unnames of Unnaming { t: i64, parent: i64, name: Vec<u8>, }
}
columns! {
    Drops of Dropping { t: i64, ino: i64, }
}
columns! {
    /// The rarer effects; see function `rest`.
    Rest of RestRow {
        t: i64, what: i16, a: Option<i64>, b: Option<i64>, c: Option<i64>, d: Option<i64>, e: Option<i64>,
        f: Option<i64>, g: Option<i64>, h: Option<i64>, x: Option<Vec<u8>>, y: Option<Vec<u8>>,
    }
}

/// A run as the server is asked for it.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) head: Head,
    pub(crate) guards: Guards,
    puts: Puts,
    changes: Changes,
    names: Names,
    unnames: Unnames,
    drops: Drops,
    rest: Rest,
    /// What the access revisions of inodes have to be.
    revs: HashMap<Ino, u64>,
}

/// Guards on inodes and entries are below this kind.
const FIRST_RARE: i16 = 30;
/// The kind of [`Guard::Room`].
const ROOM: i16 = 100;
/// What stands in for a size that nothing bounds.
const ANY_SIZE: i64 = i64::MAX;

impl Gathered {
    /// `careful` where a run of this one transaction was refused among others.
    pub(crate) fn new(run: &[Txn], careful: bool) -> Self {
        let ahead = ahead_of_room(run);
        let (ahead_inodes, ahead_blocks) = (bound(ahead.inodes), bound(ahead.blocks));
        let head = Head { layers: 1, careful, fresh: true, ahead_inodes, ahead_blocks, ..Head::default() };
        let mut all = Gathered { head, ..Gathered::default() };
        for (index, txn) in run.iter().enumerate() {
            // The server counts from 1.
            let t = index as i64 + 1;
            for guard in &txn.guards {
                all.guard(t, guard, ahead);
            }
            all.head.session.push((txn.op_id.0 >> 64) as i64);
            all.head.op.push(txn.op_id.0 as i64);
            let changes = !txn.effects.is_empty();
            all.head.touched.push(changes.then(|| Touched::encode(&txn.touched())));
            if changes {
                all.head.changing.push(t);
                all.effects(t, txn);
            } else {
                all.head.look = true;
            }
        }
        // Names that may replace others are no test of whether these are free.
        all.head.look |= !all.head.fresh;
        all.head.lock.sort_unstable();
        all.head.lock.dedup();
        all.head.rev =
            all.head.lock.iter().map(|ino| all.revs.get(&Ino(*ino as u64)).copied().map(int)).collect();
        all.head.rare |= all.guards.what.iter().any(|what| *what >= FIRST_RARE && *what != ROOM);
        all.head.room = all.guards.what.contains(&ROOM);
        let mut seen = HashSet::new();
        all.head.merged |= !all.changes.ino.iter().all(|ino| seen.insert(*ino));
        all
    }

    pub(crate) fn args(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut args = Vec::with_capacity(70);
        self.head.push_to(&mut args);
        self.guards.push_to(&mut args);
        self.puts.push_to(&mut args);
        self.changes.push_to(&mut args);
        self.names.push_to(&mut args);
        self.unnames.push_to(&mut args);
        self.drops.push_to(&mut args);
        self.rest.push_to(&mut args);
        args
    }

    fn guard(&mut self, t: i64, guard: &Guard, ahead: Usage) {
        let one = |n: u64| Some(int(n));
        let text = |text: &str| Some(text.as_bytes().to_vec());
        let (what, a, b, c, x, y) = match guard {
            Guard::Access { ino, rev } => (10, one(ino.0), one(*rev), None, None, None),
            Guard::NodeAbsent { ino } => (11, one(ino.0), None, None, None, None),
            Guard::Links { ino, nlink } => (12, one(ino.0), one((*nlink).into()), None, None, None),
            Guard::ParentIs { ino, parent } => (13, one(ino.0), one(parent.0), None, None, None),
            Guard::Size { ino, size } => (14, one(ino.0), one(*size), None, None, None),
            Guard::EdgeIs { parent, name, ino } => {
                (20, one(parent.0), one(ino.0), None, Some(name.as_bytes().to_vec()), None)
            }
            Guard::EdgeAbsent { parent, name } => {
                (21, one(parent.0), None, None, Some(name.as_bytes().to_vec()), None)
            }
            Guard::Empty { ino } => (30, one(ino.0), None, None, None, None),
            Guard::Xattr { ino, name, present } => {
                (if *present { 40 } else { 41 }, one(ino.0), None, None, Some(name.as_bytes().to_vec()), None)
            }
            Guard::Rows { ino, chunk, rows } => {
                (60, one(ino.0), one(chunk.0), one(rows.len() as u64), None, text(&rows_text(rows)))
            }
            Guard::Setting { name, value } => {
                (80, None, None, None, text(name), value.as_deref().and_then(text))
            }
            Guard::Counter { counter, value } => (90, None, one(*value), None, text(counter.name()), None),
            Guard::Room { max_inodes, max_blocks } => {
                let inodes = max_inodes.saturating_sub(ahead.inodes);
                let blocks = max_blocks.saturating_sub(ahead.blocks);
                (ROOM, Some(bound(inodes)), Some(bound(blocks)), None, None, None)
            }
            Guard::Locks { ino, locks } => (110, one(ino.0), None, None, None, text(&locks_text(locks))),
        };
        self.guards.extend([GuardRow { t, what, a, b, c, x, y }]);
    }

    /// The effects of transaction `t`, and what has to be locked for it.
    fn effects(&mut self, t: i64, txn: &Txn) {
        let made: HashSet<Ino> = txn.effects.iter().filter_map(tables::made).collect();
        // A name that has to be free is, if the server can insert it.
        let free: HashSet<_> = txn.guards.iter().filter_map(tables::free).collect();
        let named: HashSet<_> = txn.effects.iter().filter_map(tables::named).collect();
        self.head.fresh &= named.is_subset(&free);
        self.head.look |= !free.is_subset(&named);
        for guard in &txn.guards {
            match guard {
                Guard::Access { ino, rev } => {
                    // Of two that differ one does not hold.
                    self.head.rare |= self.revs.insert(*ino, *rev).is_some_and(|other| other != *rev);
                }
                Guard::EdgeAbsent { .. } => {}
                _ => self.head.look = true,
            }
            match tables::inode(&guard.want()) {
                Some(ino) => self.head.lock.push(int(ino.0)),
                None => self.head.numbers |= !matches!(guard, Guard::Room { .. }),
            }
        }
        for effect in &txn.effects {
            self.head.numbers |= matches!(effect, Effect::PutSetting { .. } | Effect::SetCounter { .. });
            let held = tables::holder(effect).filter(|ino| !made.contains(ino));
            self.head.lock.extend(held.map(|ino| int(ino.0)));
        }
        for (number, layer) in (0..).zip(tables::layers(&txn.effects)) {
            self.head.layers = self.head.layers.max(number + 1);
            let t = i64::from(number) << 16 | t;
            self.drops.extend(layer.drops.iter().map(|ino| Dropping { t, ino: int(ino.0) }));
            self.puts.extend(layer.puts.iter().map(|node| Put::new(t, node)));
            self.head.merged |= layer.changes.values().any(|change| change.size != Size::Kept);
            self.changes.extend(layer.changes.iter().map(|(ino, change)| Change::new(t, *ino, change)));
            layer.others.iter().for_each(|effect| self.other(t, effect));
        }
    }

    fn other(&mut self, t: i64, effect: &Effect) {
        let name = |name: &[u8]| Some(name.to_vec());
        match effect {
            Effect::PutEdge { parent, name, ino, kind } => {
                let (name, kind) = (name.as_bytes().to_vec(), kind.to_dtype() as i16);
                self.names.extend([Naming { t, parent: int(parent.0), name, ino: int(ino.0), kind }]);
            }
            Effect::DropEdge { parent, name } => {
                let name = name.as_bytes().to_vec();
                self.unnames.extend([Unnaming { t, parent: int(parent.0), name }]);
            }
            Effect::DropSlices { ino, from, to } => {
                // No chunk lies beyond i64::MAX.
                self.rest.push(t, 1, &[int(ino.0), bound(from.0), bound(to.0)], None, None);
            }
            Effect::ReplaceRows { ino, chunk, count, rows } => {
                self.rest.push(t, 2, &[int(ino.0), int(chunk.0), (*count).into()], None, None);
                for row in rows.iter() {
                    self.rest.slice(t, 3, int(ino.0), int(chunk.0), row);
                }
            }
            Effect::AppendSlice { ino, chunk, slice } => {
                self.rest.slice(t, 4, int(ino.0), int(chunk.0), slice)
            }
            Effect::Share { slice } => self.rest.push(t, 5, &[int(slice.0)], None, None),
            Effect::DropGarbage { slice } => self.rest.push(t, 6, &[int(slice.0)], None, None),
            Effect::PutXattr { ino, name: key, value } => {
                self.rest.push(t, 7, &[int(ino.0)], name(key.as_bytes()), name(value));
            }
            Effect::DropXattr { ino, name: key } => {
                self.rest.push(t, 8, &[int(ino.0)], name(key.as_bytes()), None);
            }
            Effect::PutSymlink { ino, target } => self.rest.push(t, 9, &[int(ino.0)], name(target), None),
            Effect::PutLocks { ino, locks } => {
                self.rest.push(t, 10, &[int(ino.0)], None, None);
                for lock in locks.iter() {
                    self.rest.push(t, 11, &lock_numbers(*ino, lock), None, None);
                }
            }
            Effect::PutWait(wait) => self.rest.push(t, 12, &lock_numbers(wait.ino, &wait.lock), None, None),
            Effect::DropWait { owner } => {
                let numbers = [0, 0, 0, int(owner.session.0), int(owner.owner), owner.kind.number().into()];
                self.rest.push(t, 13, &numbers, None, None);
            }
            Effect::PutAcl { id, text } => {
                self.rest.push(t, 14, &[], name(&id.to_bytes()), name(text.as_bytes()));
            }
            Effect::PutOrphan { session, ino } => {
                self.rest.push(t, 15, &[int(session.0), int(ino.0)], None, None);
            }
            Effect::DropOrphan { session, ino } => {
                self.rest.push(t, 16, &[int(session.0), int(ino.0)], None, None);
            }
            Effect::PutSession(s) => {
                let numbers = [int(s.id.0), s.pid.into(), s.since.nanos(), s.heartbeat.nanos()];
                self.rest.push(t, 17, &numbers, name(s.host.as_bytes()), name(s.mountpoint.as_bytes()));
            }
            Effect::DropSession { session } => self.rest.push(t, 18, &[int(session.0)], None, None),
            Effect::PutSetting { name: key, value } => {
                self.rest.push(t, 19, &[], name(key.as_bytes()), name(value.as_bytes()));
            }
            Effect::SetCounter { counter, value } => {
                self.rest.push(t, 20, &[int(*value)], name(counter.name().as_bytes()), None);
            }
            Effect::AddUsage { inodes, blocks } => {
                self.rest.push(t, 21, &[*inodes, *blocks], None, None);
            }
            // All that is left is on rows of inodes.
            _ => {}
        }
    }
}

impl Put {
    fn new(t: i64, node: &Node) -> Self {
        Put {
            t,
            ino: int(node.ino.0),
            kind: node.kind.to_dtype() as i16,
            mode: node.mode.bits() as i16,
            uid: node.uid.into(),
            gid: node.gid.into(),
            rdev: node.rdev.into(),
            nlink: node.nlink.into(),
            size: int(node.size),
            atime: node.atime.nanos(),
            mtime: node.mtime.nanos(),
            ctime: node.ctime.nanos(),
            parent: int(node.parent.0),
            rev: int(node.access_rev),
            acl: acl(node.access_acl),
            default_acl: acl(node.default_acl),
        }
    }
}

impl Change {
    fn new(t: i64, ino: Ino, change: &tables::Change) -> Self {
        let (low, high) = match change.size {
            Size::Kept => (0, ANY_SIZE),
            Size::AtLeast(least) => (int(least), ANY_SIZE),
            Size::Set(size) => (int(size), int(size)),
        };
        let access = change.access;
        Change {
            t,
            ino: int(ino.0),
            links: change.links,
            least: change.least_links,
            low,
            high,
            atime: change.atime.map(Time::nanos),
            mtime: change.mtime.map(Time::nanos),
            ctime: change.ctime.map(Time::nanos),
            parent: change.parent.map(|parent| int(parent.0)),
            mode: access.map(|access| access.mode.bits() as i16),
            uid: access.map(|access| access.uid.into()),
            gid: access.map(|access| access.gid.into()),
            rev: int(change.access_revs),
            acl: access.and_then(|access| acl(access.access_acl)),
            default_acl: access.and_then(|access| acl(access.default_acl)),
        }
    }
}

impl Rest {
    fn push(&mut self, t: i64, what: i16, numbers: &[i64], x: Option<Vec<u8>>, y: Option<Vec<u8>>) {
        let numbers: Vec<Option<i64>> = numbers.iter().copied().map(Some).collect();
        self.row(t, what, &numbers, x, y);
    }

    fn row(&mut self, t: i64, what: i16, numbers: &[Option<i64>], x: Option<Vec<u8>>, y: Option<Vec<u8>>) {
        let n = |at: usize| numbers.get(at).copied().flatten();
        let [a, b, c, d, e, f, g, h] = [0, 1, 2, 3, 4, 5, 6, 7].map(n);
        self.extend([RestRow { t, what, a, b, c, d, e, f, g, h, x, y }]);
    }

    fn slice(&mut self, t: i64, what: i16, ino: i64, chunk: i64, slice: &Slice) {
        let (id, offset, size, data) = source(&slice.source);
        let numbers = [ino, chunk, slice.pos.into(), slice.len.into()].map(Some);
        self.row(t, what, &[&numbers[..], &[id, offset, size]].concat(), data.map(<[u8]>::to_vec), None);
    }
}

fn acl(id: AclId) -> Option<Vec<u8>> {
    (!id.is_none()).then(|| id.to_bytes().to_vec())
}

/// Nothing that is stored lies beyond.
fn bound(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
