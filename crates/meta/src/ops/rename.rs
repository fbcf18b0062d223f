//! Rename, with NOREPLACE, EXCHANGE and WHITEOUT.

use types::{AclId, Errno, FileType, Ino, Mode, Name, Time};

use crate::driver::{Ctx, Op, Plan};
use crate::ops::make::require_room;
use crate::ops::remove::{Unlinked, drop_link};
use crate::record::{Node, Want};
use crate::txn::Effect;
use crate::view::{Stop, View};

/// Moves a name. Twin of `vfs_rename` and of the checks of `do_renameat2`.
///
/// What had the new name goes, as by unlink or rmdir, in the same moment; where old and new name are the same inode,
/// nothing happens. A directory does not move into itself.
///
/// # Errors
/// EINVAL for EXCHANGE with NOREPLACE or WHITEOUT; ENOENT where a directory is gone; ENOTDIR; ENOENT without the old name (with
/// EXCHANGE: without either); ESTALE; EEXIST under NOREPLACE; EINVAL where the old name is an ancestor of the new
/// place; ENOTEMPTY where the new name is an ancestor of the old place (with EXCHANGE: EINVAL); EACCES; EPERM by a
/// sticky bit; ENOTDIR for a directory onto something else; EISDIR for the reverse; ENOTEMPTY onto a directory with
/// entries. Under WHITEOUT, ENOSPC at the volume's limit.
#[derive(Debug)]
pub struct Rename {
    pub parent: Ino,
    pub name: Name,
    pub new_parent: Ino,
    pub new_name: Name,
    pub flags: RenameFlags,
    /// Under WHITEOUT, what is left at the old name: a character device 0:0, as overlayfs marks what is deleted.
    pub whiteout: Option<Whiteout>,
    /// The inode the caller takes for open, if it is the one that is replaced.
    pub open: Option<Ino>,
}

/// A whiteout to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whiteout {
    /// A number that no inode had.
    pub ino: Ino,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    pub no_replace: bool,
    pub exchange: bool,
}

/// What a rename met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that moved.
    pub moved: Node,
    /// The inode that moved the other way, under EXCHANGE.
    pub exchanged: Option<Node>,
    /// The inode that lost the new name.
    pub replaced: Option<Unlinked>,
}

impl Op for Rename {
    type Reply = Renamed;
    const NAME: &'static str = "rename";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Renamed>, Stop> {
        if self.flags.exchange && (self.flags.no_replace || self.whiteout.is_some()) {
            return Err(Errno::EINVAL.into());
        }
        view.prefetch([
            Want::Node(self.parent),
            Want::Node(self.new_parent),
            Want::Entry(self.parent, self.name.clone()),
            Want::Entry(self.new_parent, self.new_name.clone()),
        ])?;
        let old_dir = view.dir(self.parent)?;
        let new_dir = view.dir(self.new_parent)?;
        let source = self.find(view, self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let target = self.find(view, self.new_parent, &self.new_name)?;
        match &target {
            Some(_) if self.flags.no_replace => return Err(Errno::EEXIST.into()),
            None if self.flags.exchange => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        self.refuse_cycles(view, &source, target.as_ref())?;
        let mut renamed = Renamed { moved: source, exchanged: None, replaced: None };
        if target.as_ref().is_some_and(|target| target.ino == source.ino) {
            return Ok(Plan::answer(renamed));
        }
        self.admit(view, ctx, [&old_dir, &new_dir], &source, target.as_ref())?;

        let mut effects = Vec::with_capacity(12);
        match target {
            Some(target) if self.flags.exchange => {
                renamed.exchanged = Some(target);
                self.place(&target, self.parent, &self.name, self.new_parent, &mut effects);
                effects.push(super::touch_ctime(target.ino, ctx.now));
            }
            Some(target) => {
                renamed.replaced = Some(self.replace(view, ctx, &source, &target, &mut effects)?);
                self.leave(ctx, &old_dir, &mut effects);
            }
            None => self.leave(ctx, &old_dir, &mut effects),
        }
        if self.whiteout.is_some() {
            require_room(view, ctx)?;
        }
        self.place(&source, self.new_parent, &self.new_name, self.parent, &mut effects);
        effects.push(super::touch_ctime(source.ino, ctx.now));
        effects.push(super::touch_dir(self.parent, ctx.now));
        if self.new_parent != self.parent {
            effects.push(super::touch_dir(self.new_parent, ctx.now));
        }
        Ok(Plan { reply: renamed, effects })
    }
}

impl Rename {
    fn find(&self, view: &mut View<'_>, parent: Ino, name: &Name) -> Result<Option<Node>, Stop> {
        match view.edge(parent, name)? {
            Some(edge) => Ok(Some(view.node(edge.ino)?.ok_or(Errno::EIO)?)),
            None => Ok(None),
        }
    }

    /// Walks from each place up to the root: a directory on the way must not be what moves there. Every step is
    /// guarded, so no other rename can close a cycle meanwhile. Twin of `lock_rename`'s ancestor search.
    fn refuse_cycles(&self, view: &mut View<'_>, source: &Node, target: Option<&Node>) -> Result<(), Stop> {
        if self.parent == self.new_parent {
            return Ok(());
        }
        if source.kind.is_dir() && is_ancestor(view, source.ino, self.new_parent)? {
            return Err(Errno::EINVAL.into());
        }
        match target {
            Some(target) if target.kind.is_dir() && is_ancestor(view, target.ino, self.parent)? => {
                Err(if self.flags.exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into())
            }
            _ => Ok(()),
        }
    }

    /// Twin of `may_delete`, `may_create`, and of `vfs_rename`'s own check that a directory which changes its parent,
    /// and so its `..`, may be written.
    fn admit(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        [old_dir, new_dir]: [&Node; 2],
        source: &Node,
        target: Option<&Node>,
    ) -> Result<(), Stop> {
        ctx.admit_removal(view, old_dir, source)?;
        match target {
            Some(target) => ctx.admit_removal(view, new_dir, target)?,
            None => ctx.admit_new(view, new_dir, source.kind)?,
        }
        if ctx.asks_nfs4() {
            // To replace a name is to remove one and to add one.
            if target.is_some() {
                ctx.admit_new(view, new_dir, source.kind)?;
            }
            if let Some(target) = target.filter(|_| self.flags.exchange) {
                ctx.admit_new(view, old_dir, target.kind)?;
            }
        }
        if self.parent != self.new_parent {
            let exchanged = target.filter(|_| self.flags.exchange);
            for moved in [Some(source), exchanged].into_iter().flatten().filter(|n| n.kind.is_dir()) {
                ctx.admit_move(view, moved)?;
            }
        }
        Ok(())
    }

    /// Lets go of what has the new name.
    fn replace(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        source: &Node,
        target: &Node,
        effects: &mut Vec<Effect>,
    ) -> Result<Unlinked, Stop> {
        match (source.kind.is_dir(), target.kind.is_dir()) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (false, false) => drop_link(view, ctx, target, self.open, effects),
            (true, true) => {
                if !view.is_empty(target.ino) {
                    return Err(Errno::ENOTEMPTY.into());
                }
                effects.push(Effect::DropNode { ino: target.ino });
                effects.push(Effect::AddLinks { ino: self.new_parent, delta: -1 });
                Ok(Unlinked { node: *target, fate: super::remove::Fate::Gone })
            }
        }
    }

    /// What becomes of the old name: it goes, or a whiteout takes it.
    fn leave(&self, ctx: &Ctx<'_>, old_dir: &Node, effects: &mut Vec<Effect>) {
        let (parent, name) = (self.parent, self.name.clone());
        match self.whiteout {
            None => effects.push(Effect::DropEdge { parent, name }),
            Some(whiteout) => {
                let node = whiteout.node(old_dir, ctx.now);
                effects.push(Effect::PutNode(node));
                effects.push(Effect::PutEdge { parent, name, ino: node.ino, kind: node.kind });
            }
        }
    }

    /// Puts a node under its new name; a directory takes its `..` link along.
    fn place(&self, node: &Node, parent: Ino, name: &Name, from: Ino, effects: &mut Vec<Effect>) {
        effects.push(Effect::PutEdge { parent, name: name.clone(), ino: node.ino, kind: node.kind });
        if node.kind.is_dir() && parent != from {
            effects.push(Effect::SetParent { ino: node.ino, parent });
            effects.push(Effect::AddLinks { ino: from, delta: -1 });
            effects.push(Effect::AddLinks { ino: parent, delta: 1 });
        }
    }
}

impl Whiteout {
    fn node(&self, dir: &Node, now: Time) -> Node {
        Node {
            ino: self.ino,
            kind: FileType::CharDevice,
            mode: Mode::default(),
            uid: self.uid,
            gid: if dir.mode.has(Mode::SGID) { dir.gid } else { self.gid },
            rdev: 0,
            nlink: 1,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            access_acl: AclId::NONE,
            default_acl: AclId::NONE,
            parent: Ino(0),
            access_rev: 1,
        }
    }
}

/// Whether `ino` is `dir` or lies on the way from `dir` to the root.
///
/// Parents in memory may be of several moments and then form a circle. It is found as Brent does (BIT 20, 1980): by
/// a mark that is moved up at steps 1, 2, 4, 8, and so on. The guards on the way then fail and bring what holds; where
/// they do not, the volume is damaged. See the test `stale_parents_form_no_circle`.
///
/// # Errors
/// EIO for a circle.
fn is_ancestor(view: &mut View<'_>, ino: Ino, dir: Ino) -> Result<bool, Stop> {
    let (mut at, mut mark, mut steps) = (dir, dir, 0_u64);
    while at != ino {
        if at == Ino::ROOT {
            return Ok(false);
        }
        at = view.parent_of(at)?;
        if at == mark {
            return Err(Errno::EIO.into());
        }
        steps += 1;
        if steps.is_power_of_two() {
            mark = at;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::OpId;

    use super::*;
    use crate::driver::{Meta, Vouch};
    use crate::engine::Engine;
    use crate::mem::MemEngine;
    use crate::txn::Txn;
    use crate::view::STEPS;
    use crate::volume::{AclKind, Volume};
    use crate::wrap::{Counting, Fault, Faulty, Odds};

    type Tested = Arc<Faulty<Counting<MemEngine>>>;

    /// A chain of directories of this depth, whose deepest has the number `depth + 2`, and a directory beside it.
    fn chain(depth: u64) -> Tested {
        let engine = Arc::new(Faulty::new(Counting::new(MemEngine::default()), 1, Odds::default()));
        let volume = Volume {
            name: "v".into(),
            uuid: "u".into(),
            storage: "memory".into(),
            bucket: String::new(),
            store_marker: false,
            acl: AclKind::Posix,
            policy: Default::default(),
            compression: "none".into(),
            encryption: String::new(),
            inline_bytes: 4096,
            capacity_bytes: 0,
            max_inodes: 0,
            abe: false,
            created: Time::now(),
        };
        volume.format(&*engine).unwrap();
        let dir = |ino: u64, parent: u64| {
            let node = Whiteout { ino: Ino(ino), uid: 0, gid: 0 };
            let beside = Node {
                kind: FileType::Directory,
                mode: Mode::new(0o755),
                nlink: 2,
                parent: Ino(parent),
                ..node.node(&ROOT_LIKE, Time::now())
            };
            let name = Name::new(ino.to_string().as_bytes()).unwrap();
            let edge =
                Effect::PutEdge { parent: Ino(parent), name, ino: Ino(ino), kind: FileType::Directory };
            [Effect::PutNode(beside), edge]
        };
        let mut effects: Vec<Effect> = (3..depth + 3).flat_map(|ino| dir(ino, ino - 1)).collect();
        effects.extend(dir(BESIDE, 2));
        engine.commit(&[Txn { op_id: OpId(7), guards: Vec::new(), effects }]).unwrap();
        engine
    }

    const BESIDE: u64 = 1 << 40;
    const ROOT_LIKE: Node = Node {
        ino: Ino::ROOT,
        kind: FileType::Directory,
        mode: Mode::new(0o755),
        uid: 0,
        gid: 0,
        rdev: 0,
        nlink: 2,
        size: 0,
        atime: Time::MIN,
        mtime: Time::MIN,
        ctime: Time::MIN,
        access_acl: AclId::NONE,
        default_acl: AclId::NONE,
        parent: Ino::ROOT,
        access_rev: 1,
    };

    /// What it costs to move the directory beside the chain into the deepest one: looks with nothing in memory, with all in
    /// memory, and after a conflict; and the requests of the first.
    fn cost(depth: u64) -> ([u64; 3], u64) {
        let engine = chain(depth);
        let meta = Meta::open(engine.clone(), 1_000_000).unwrap();
        let name = Name::new(BESIDE.to_string().as_bytes()).unwrap();
        let (root, deepest) = (Ino::ROOT, Ino(depth + 2));
        let steps = |from: Ino, to: Ino| {
            let (flags, whiteout, open) = (RenameFlags::default(), None, None);
            let (name, new_name) = (name.clone(), name.clone());
            let op = Rename { parent: from, name, new_parent: to, new_name, flags, whiteout, open };
            STEPS.set(0);
            meta.run(&op, &Vouch::Kernel { told: None }).unwrap();
            STEPS.get()
        };
        let before = engine.inner().counts();
        let cold = steps(root, deepest);
        let requests = (engine.inner().counts() - before).round_trips();
        steps(deepest, root);
        let warm = steps(root, deepest);
        steps(deepest, root);
        engine.script([Fault::Rival]);
        engine.arm(true);
        let conflict = steps(root, deepest);
        ([cold, warm, conflict], requests)
    }

    #[test]
    fn a_rename_costs_as_much_as_its_place_is_deep() {
        let ((few, few_requests), (many, many_requests)) = (cost(100), cost(400));
        for (few, many) in few.into_iter().zip(many) {
            assert!(many <= 5 * few, "{many} looks at four times the depth of {few}");
        }
        assert!(many_requests - few_requests <= 300, "each directory is read once");
    }
}
