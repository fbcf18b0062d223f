//! A volume in memory, with short helper functions.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use acl::posix::PosixAcl;
use client::Meta;
use inspect::{Operation, PathAnswer, PathChecks, QueryError, VolumeTree};
use meta::{AclKind, Counter, Counting, Effect, Engine, MemEngine, Txn, Volume};
use ops::{AclType, Authority, Make, MakeKind, SetAcl};
use types::{Caps, Cred, Ino, Mode, Name, OpId};

pub(crate) const ROOT: Ino = Ino::ROOT;

#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) engine: Arc<Counting<MemEngine>>,
    pub(crate) meta: Meta,
    next: AtomicU64,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        let volume = Volume { inline_bytes: 0, ..Volume::in_memory("test") };
        volume.format(&*engine).unwrap();
        let meta = Meta::open(engine.clone(), 1_000_000).unwrap();
        meta.set_exclusive(true);
        let next = AtomicU64::new(meta.lease(Counter::Ino, 10_000_000).unwrap());
        Fixture { engine, meta, next }
    }

    pub(crate) fn dyn_engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(crate) fn make(
        &self,
        parent: Ino,
        name: &str,
        kind: MakeKind,
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Ino {
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        let name = Name::new(name.as_bytes()).unwrap();
        let make = Make { parent, name, ino, kind, mode: Mode::new(mode), umask: 0, uid, gid };
        self.run(&make).ino
    }

    pub(crate) fn dir(&self, parent: Ino, name: &str, mode: u32, owner: (u32, u32)) -> Ino {
        self.make(parent, name, MakeKind::Directory, mode, owner)
    }

    pub(crate) fn file(&self, parent: Ino, name: &str, mode: u32, owner: (u32, u32)) -> Ino {
        self.make(parent, name, MakeKind::Regular, mode, owner)
    }

    pub(crate) fn link(&self, parent: Ino, name: &str, target: &str, owner: (u32, u32)) -> Ino {
        self.make(parent, name, MakeKind::Symlink(target.as_bytes().into()), 0o777, owner)
    }

    pub(crate) fn acl(&self, ino: Ino, text: &str) {
        self.set_acl(ino, AclType::Access, text);
    }

    pub(crate) fn set_acl(&self, ino: Ino, which: AclType, text: &str) {
        let acl = Some(PosixAcl::from_text(text).unwrap());
        self.run(&SetAcl { ino, which, acl, kill_sgid: false });
    }

    pub(crate) fn run<O: ops::Op>(&self, op: &O) -> O::Reply {
        self.meta.run(op, &Authority::Kernel { revisions: None }).unwrap()
    }

    /// Applies effects without guards, to create damage.
    pub(crate) fn apply(&self, effects: Vec<Effect>) {
        let op_id = OpId(u128::from(self.next.fetch_add(1, Ordering::Relaxed)) | 1 << 100);
        self.engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
    }

    pub(crate) fn tree(&self) -> VolumeTree<'_> {
        VolumeTree::new(self.dyn_engine(), AclKind::Posix)
    }

    pub(crate) fn path_checks(&self, path: &str, want: &str) -> Result<PathChecks, QueryError> {
        PathChecks::find(&self.tree(), path.as_bytes(), want.parse::<Operation>().unwrap())
    }

    pub(crate) fn explain(&self, path: &str, want: &str, cred: &Cred) -> PathAnswer {
        self.path_checks(path, want).unwrap().explain(cred)
    }
}

pub(crate) fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    Cred::new(uid, gid, groups, Caps::NONE)
}

/// Pseudo-random numbers that are the same in every run (xorshift64*).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    pub(crate) fn small(&mut self, limit: u32) -> u32 {
        self.below(limit.into()) as u32
    }

    /// A mode that often grants access, and often has the sticky bit.
    pub(crate) fn mode(&mut self) -> u32 {
        let rwx = match self.small(4) {
            0 => 0o777,
            1 => 0o755 & !self.small(0o100),
            _ => self.small(0o1000),
        };
        rwx | if self.small(4) == 0 { Mode::STICKY } else { 0 }
    }

    /// A random ACL with ids below `ids`, as text.
    pub(crate) fn acl(&mut self, ids: u32) -> String {
        let mut text = format!("u::{},g::{},o::{}", self.small(8), self.small(8), self.small(8));
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for _ in 0..self.small(4) {
            let (list, id) = (if self.small(2) == 0 { &mut users } else { &mut groups }, self.small(ids));
            if !list.contains(&id) {
                list.push(id);
            }
        }
        for (letter, list) in [("u", users), ("g", groups)] {
            for id in list {
                text.push_str(&format!(",{letter}:{id}:{}", self.small(8)));
            }
        }
        text.push_str(&format!(",m::{}", self.small(8) | self.small(8)));
        to_letters(&text)
    }
}

/// Converts permissions such as `7` to `rwx`.
fn to_letters(text: &str) -> String {
    let entry = |entry: &str| {
        let (start, bits) = entry.rsplit_once(':').unwrap();
        format!("{start}:{}", acl::posix::Perm::new(bits.parse().unwrap()))
    };
    text.split(',').map(entry).collect::<Vec<_>>().join(",")
}
