//! Takes a directory that exists. Changes in it are then answered before they are committed
//! (`client/src/held.rs`).

use meta::{Access, Effect, Inode, QuotaTag};
use types::{Errno, Ino};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Makes the session the holder of a directory ([`Inode::holder`]).
///
/// Every plan that reads or changes names in a directory guards the directory's access revision. The take
/// increments this revision. So a change that any client planned before the take is not committed after it.
///
/// The take changes no field that access depends on. So an access check with the old revision is still valid
/// with the new one.
///
/// The root is never taken, because every path begins there.
///
/// # Errors
/// EBUSY if the id of this session cannot be stored as a holder, or a session holds the directory; ENOENT if
/// it does not exist; ENOTDIR if it is not a directory; EPERM if it is the root or counts in a quota, as all
/// directories in the trash do.
#[derive(Clone, Copy, Debug)]
pub struct TakeDirectory(pub Ino);

impl Op for TakeDirectory {
    type Reply = ();
    const NAME: &'static str = "take directory";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let ino = self.0;
        let held = Inode::held_size(ctx.session).ok_or(Errno::EBUSY)?;
        // `View::dir` would stop the plan, and the other session would have to give the directory back.
        if view.known_inode(ino).and_then(|dir| dir.holder()).is_some() {
            return Err(Errno::EBUSY.into());
        }
        let dir = view.dir(ino)?;
        if ino == Ino::ROOT || dir.quota != QuotaTag::NONE {
            return Err(Errno::EPERM.into());
        }
        view.size(ino)?;
        let access = Access::from(&dir);
        Ok(Plan {
            reply: (),
            effects: vec![Effect::SetAccess { ino, access }, Effect::SetSize { ino, size: held }],
        })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::NoQuota
    }
}

#[cfg(test)]
mod tests {
    use meta::{DIR_BYTES, Guard};

    use super::*;
    use crate::known::{Key, OwnReads, Value};
    use crate::read::GetInode;
    use crate::testing::Direct;

    fn plan(dir: Inode) -> Result<(Vec<Guard>, Vec<Effect>), PlanStop> {
        let direct = Direct::new();
        let nothing = OwnReads::default();
        let fresh = OwnReads::from_iter([(Key::Inode(dir.ino), Value::Inode(Some(dir)))]);
        let mut view = View::new(&nothing, None, &fresh);
        let ctx = Ctx { session: types::SessionId(5), ..direct.ctx() };
        view.set_session(ctx.session);
        let planned = TakeDirectory(dir.ino).plan(&mut view, &ctx)?;
        Ok((view.into_guards(), planned.effects))
    }

    #[test]
    fn a_take_increments_the_access_revision_and_fails_if_the_directory_must_not_be_held() {
        let root = Direct::new().run(&GetInode(Ino::ROOT)).unwrap();
        let dir = Inode { ino: Ino(7), ..root };
        let (guards, effects) = plan(dir).unwrap();
        assert!(guards.contains(&Guard::Access { ino: dir.ino, rev: dir.access_rev }), "{guards:?}");
        assert!(guards.contains(&Guard::Size { ino: dir.ino, size: DIR_BYTES }), "{guards:?}");
        let mut taken = dir;
        effects.iter().for_each(|effect| assert!(effect.apply_to(&mut taken)));
        assert_eq!(taken.holder(), Some(types::SessionId(5)));
        assert_eq!(taken.access_rev, dir.access_rev + 1);
        assert_eq!(Inode { size: dir.size, access_rev: dir.access_rev, ..taken }, dir);

        let refused = |dir, errno| assert_eq!(plan(dir), Err(PlanStop::Failed(errno)));
        for holder in [5, 6].map(types::SessionId) {
            refused(Inode { size: Inode::held_size(holder).unwrap(), ..dir }, Errno::EBUSY);
        }
        refused(root, Errno::EPERM);
        let quota = QuotaTag::new(types::QuotaId::TRASH, false);
        refused(Inode { quota, ..dir }, Errno::EPERM);
        refused(Inode { kind: types::FileType::Regular, size: 0, ..dir }, Errno::ENOTDIR);
    }
}
