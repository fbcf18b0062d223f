//! A rename into a deep directory: how often it is planned, and how many requests it sends.

use std::cell::Cell;
use std::sync::Arc;

use client::Meta;
use meta::{Counting, Effect, Engine, Inode, MemEngine, Txn, Volume};
use ops::{Authority, Ctx, Op, Plan, PlanStop, Rename, RenameFlags, View};
use suite::{Fault, FaultRates, Faulty};
use types::{FileType, Ino, Mode, Name, OpId, Time};

const BESIDE: u64 = 1 << 40;

/// A chain of directories of this depth, the deepest of which has the number `depth + 2`, and another
/// directory in the root.
fn chain(depth: u64) -> Arc<Faulty<Counting<MemEngine>>> {
    let engine = Arc::new(Faulty::new(Counting::new(MemEngine::default()), 1, FaultRates::default()));
    Volume::in_memory("test").format(&*engine).unwrap();
    let dir = |ino: u64, parent: u64| {
        let created = Inode::new(Ino(ino), FileType::Directory, Mode::new(0o755), Time::MIN);
        let inode = Inode { parent: Ino(parent), ..created };
        let kind = FileType::Directory;
        [
            Effect::PutInode(inode),
            Effect::PutDirent { parent: Ino(parent), name: name(ino), ino: Ino(ino), kind },
        ]
    };
    let mut effects: Vec<Effect> = (3..depth + 3).flat_map(|ino| dir(ino, ino - 1)).collect();
    effects.extend(dir(BESIDE, 2));
    engine.commit(&[Txn { op_id: OpId(7), guards: Vec::new(), effects }]).unwrap();
    engine
}

fn name(ino: u64) -> Name {
    Name::new(ino.to_string().as_bytes()).unwrap()
}

/// A rename that counts its plans.
struct Planned(Rename, Cell<u32>);

impl Op for Planned {
    type Reply = <Rename as Op>::Reply;
    const NAME: &'static str = "rename";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        self.1.set(self.1.get() + 1);
        self.0.plan(view, ctx)
    }
}

/// The cost of moving the other directory into the deepest one: the number of plans with a cold cache, with a
/// warm cache, and with a conflict; and the round trips of the first.
fn cost(depth: u64) -> ([u32; 3], u64) {
    let engine = chain(depth);
    let meta = Meta::open(engine.clone(), 1_000_000).unwrap();
    let (root, deepest) = (Ino::ROOT, Ino(depth + 2));
    let plans = |from: Ino, to: Ino| {
        let (flags, whiteout, open) = (RenameFlags::default(), None, None);
        let (name, new_name) = (name(BESIDE), name(BESIDE));
        let rename = Rename { parent: from, name, new_parent: to, new_name, flags, whiteout, open };
        let op = Planned(rename, Cell::new(0));
        meta.run(&op, &Authority::Kernel { revisions: None }).unwrap();
        op.1.get()
    };
    let before = engine.inner().counts();
    let cold = plans(root, deepest);
    let requests = (engine.inner().counts() - before).round_trips();
    plans(deepest, root);
    let warm = plans(root, deepest);
    plans(deepest, root);
    engine.script([Fault::Rival]);
    engine.arm(true);
    let conflict = plans(root, deepest);
    ([cold, warm, conflict], requests)
}

#[test]
fn a_rename_is_planned_equally_often_at_any_depth_of_its_new_parent() {
    let ((few, few_requests), (many, many_requests)) = (cost(100), cost(400));
    assert_eq!(few, many);
    assert_eq!(few[1], 1, "with a warm cache");
    assert!(many_requests - few_requests <= 300, "each directory is read once");
}
