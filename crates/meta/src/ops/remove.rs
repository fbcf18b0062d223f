//! Names that go: unlink and rmdir; and inodes that go when the last who has them open lets go.

use types::{Errno, Ino, Name, SessionId};

use crate::driver::{Ctx, Op, Plan};
use crate::record::{Node, Want};
use crate::txn::Effect;
use crate::view::{Stop, View};

/// Removes a name that refers to no directory. Twin of `vfs_unlink`.
///
/// With its last name the inode goes too, unless `open`: then it stays, as an orphan of this session, until
/// [`Reap`]ed.
///
/// # Errors
/// ENOENT where the directory is gone; ENOTDIR; ENOENT; ESTALE; EACCES; EPERM by the sticky bit; EISDIR.
#[derive(Debug)]
pub struct Unlink {
    pub parent: Ino,
    pub name: Name,
    /// The inode the caller takes for open, if it is the one that loses its name.
    pub open: Option<Ino>,
}

/// What became of the inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// As it stood before.
    pub node: Node,
    pub fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has other names.
    Linked,
    /// It has no name, but is open.
    Orphan,
    Gone,
}

impl Op for Unlink {
    type Reply = Unlinked;
    const NAME: &'static str = "unlink";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Unlinked>, Stop> {
        view.prefetch([Want::Node(self.parent), Want::Entry(self.parent, self.name.clone())])?;
        let dir = view.dir(self.parent)?;
        let edge = view.edge(self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let node = view.node(edge.ino)?.ok_or(Errno::EIO)?;
        ctx.admit_removal(view, &dir, &node)?;
        if node.kind.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let mut effects = vec![Effect::DropEdge { parent: self.parent, name: self.name.clone() }];
        let unlinked = drop_link(view, ctx, &node, self.open, &mut effects)?;
        effects.push(super::touch_dir(self.parent, ctx.now));
        Ok(Plan { reply: unlinked, effects })
    }
}

/// What an inode that is no directory goes through when one of its names goes.
pub(super) fn drop_link(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    node: &Node,
    open: Option<Ino>,
    effects: &mut Vec<Effect>,
) -> Result<Unlinked, Stop> {
    let ino = node.ino;
    let fate = match (view.links(ino)?, open) {
        (2.., _) => Fate::Linked,
        (_, Some(open)) if open == ino => Fate::Orphan,
        _ => Fate::Gone,
    };
    match fate {
        Fate::Gone => effects.push(Effect::DropNode { ino }),
        Fate::Linked | Fate::Orphan => {
            effects.push(Effect::AddLinks { ino, delta: -1 });
            effects.push(super::touch_ctime(ino, ctx.now));
        }
    }
    if fate == Fate::Orphan {
        effects.push(Effect::PutOrphan { session: ctx.session, ino });
    }
    Ok(Unlinked { node: *node, fate })
}

/// Removes an empty directory. Twin of `vfs_rmdir`.
///
/// # Errors
/// ENOENT where the parent is gone; ENOTDIR; ENOENT; ESTALE; EACCES; EPERM by the sticky bit; ENOTDIR where the name
/// refers to something else; ENOTEMPTY.
#[derive(Debug)]
pub struct Rmdir {
    pub parent: Ino,
    pub name: Name,
}

impl Op for Rmdir {
    /// The directory as it stood before.
    type Reply = Node;
    const NAME: &'static str = "rmdir";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Node>, Stop> {
        view.prefetch([Want::Node(self.parent), Want::Entry(self.parent, self.name.clone())])?;
        let dir = view.dir(self.parent)?;
        let edge = view.edge(self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let node = view.node(edge.ino)?.ok_or(Errno::EIO)?;
        ctx.admit_removal(view, &dir, &node)?;
        if !node.kind.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if !view.is_empty(node.ino) {
            return Err(Errno::ENOTEMPTY.into());
        }
        let effects = vec![
            Effect::DropEdge { parent: self.parent, name: self.name.clone() },
            Effect::DropNode { ino: node.ino },
            Effect::AddLinks { ino: self.parent, delta: -1 },
            super::touch_dir(self.parent, ctx.now),
        ];
        Ok(Plan { reply: node, effects })
    }
}

/// Removes an orphan for good: an inode without a name that `session` had open.
#[derive(Debug)]
pub struct Reap {
    pub session: SessionId,
    pub ino: Ino,
}

impl Op for Reap {
    type Reply = ();
    const NAME: &'static str = "reap";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        let mut effects = Vec::with_capacity(2);
        self.reap(view, &mut effects)?;
        Ok(Plan { reply: (), effects })
    }
}

impl Reap {
    fn reap(&self, view: &mut View<'_>, effects: &mut Vec<Effect>) -> Result<(), Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        effects.push(Effect::DropOrphan { session: self.session, ino: self.ino });
        if view.node(self.ino)?.is_some() && view.links(self.ino)? == 0 {
            effects.push(Effect::DropNode { ino: self.ino });
        }
        Ok(())
    }
}

/// As [`Reap`], of several orphans in one commit.
#[derive(Debug)]
pub struct ReapAll<'a>(pub &'a [Reap]);

impl Op for ReapAll<'_> {
    type Reply = ();
    const NAME: &'static str = "reap all";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch(self.0.iter().map(|reap| Want::Node(reap.ino)))?;
        let mut effects = Vec::with_capacity(2 * self.0.len());
        self.0.iter().try_for_each(|reap| reap.reap(view, &mut effects))?;
        Ok(Plan { reply: (), effects })
    }
}
