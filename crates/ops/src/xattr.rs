//! Extended attributes, except ACLs.

use std::sync::Arc;

use meta::{Effect, Inode, xattr_blocks};
use types::{Errno, Ino, XattrName};

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// The longest value in bytes (`XATTR_SIZE_MAX`, limits.h).
const MAX_VALUE_BYTES: usize = 65_536;

/// Whether the attribute may exist already (`Set`), must not exist (`Create`) or must exist (`Replace`); see
/// `setxattr(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Set,
    Create,
    Replace,
}

/// Sets an xattr. Equivalent to `vfs_setxattr`.
///
/// # Errors
/// - E2BIG: the value is longer than 64 KiB.
/// - ESTALE: the inode does not exist.
/// - EPERM: the name is outside `user.`, and the caller lacks `CAP_SYS_ADMIN`.
/// - ESTALE: the name is in `user.`, and the kernel checked with outdated attributes.
/// - EPERM: the name is in `user.`, and the inode is a sticky directory that the caller does not own.
/// - EACCES: the name is in `user.`, and the caller has no write permission.
/// - EEXIST: under [`XattrMode::Create`], the attribute exists.
/// - ENODATA: under [`XattrMode::Replace`], the attribute does not exist.
/// - ENOSPC: the inode's attributes would exceed [`Inode::MAX_XATTR_BLOCKS`], or the volume's limit.
#[derive(Debug)]
pub struct SetXattr {
    pub ino: Ino,
    pub name: XattrName,
    pub value: Arc<[u8]>,
    pub mode: XattrMode,
}

impl Op for SetXattr {
    type Reply = ();
    const NAME: &'static str = "setxattr";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if self.value.len() > MAX_VALUE_BYTES {
            return Err(Errno::E2BIG.into());
        }
        let inode = view.inode(self.ino)?;
        ctx.check_xattr(view, &inode, &self.name)?;
        let likely = if self.mode == XattrMode::Replace { 1 } else { 0 };
        let old = view.xattr_blocks(&inode, &self.name, likely);
        match self.mode {
            XattrMode::Create if old > 0 => return Err(Errno::EEXIST.into()),
            XattrMode::Replace if old == 0 => return Err(Errno::ENODATA.into()),
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
        }
        let new = xattr_blocks(self.value.len());
        let grown = new.saturating_sub(old);
        if grown > 0 {
            if !view.xattrs_fit(self.ino, Inode::MAX_XATTR_BLOCKS.saturating_sub(grown)) {
                return Err(Errno::ENOSPC.into());
            }
            super::room::make_room(view, ctx, grown.into())?;
        }
        let mut effects =
            vec![Effect::PutXattr { ino: self.ino, name: self.name.clone(), value: self.value.clone() }];
        if new != old {
            let delta = i32::from(new) - i32::from(old);
            effects.push(Effect::AddXattrBlocks { ino: self.ino, delta });
        }
        effects.push(super::set_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// Removes an xattr. Equivalent to `vfs_removexattr`.
///
/// # Errors
/// ESTALE, EPERM, EACCES: as [`SetXattr`]. ENODATA if the attribute does not exist.
#[derive(Debug)]
pub struct RemoveXattr {
    pub ino: Ino,
    pub name: XattrName,
}

impl Op for RemoveXattr {
    type Reply = ();
    const NAME: &'static str = "removexattr";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let inode = view.inode(self.ino)?;
        ctx.check_xattr(view, &inode, &self.name)?;
        let mut effects = remove(view, &inode, &self.name, 1);
        if effects.is_empty() {
            return Err(Errno::ENODATA.into());
        }
        effects.push(super::set_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// The effects that remove an xattr; none if it does not exist. [`View::xattr_blocks`] explains `likely`.
pub(super) fn remove(view: &mut View<'_>, inode: &Inode, name: &XattrName, likely: u16) -> Vec<Effect> {
    let ino = inode.ino;
    match view.xattr_blocks(inode, name, likely) {
        0 => Vec::new(),
        old => vec![
            Effect::DropXattr { ino, name: name.clone() },
            Effect::AddXattrBlocks { ino, delta: -i32::from(old) },
        ],
    }
}

#[cfg(test)]
mod tests {
    use meta::Guard;

    use super::*;
    use crate::known::{Key, OwnReads, Value};
    use crate::read::GetInode;
    use crate::testing::Direct;

    /// If another client makes room before the refusal is confirmed, a guard must fail.
    #[test]
    fn an_error_because_of_missing_room_is_guarded() {
        let direct = Direct::new();
        let (ino, most) = (Ino::ROOT, Inode::MAX_XATTR_BLOCKS);
        let full = Inode { xattr_blocks: most, ..direct.run(&GetInode(ino)).unwrap() };
        let name = XattrName::new(b"user.a").unwrap();
        let set = SetXattr { ino, name, value: vec![1].into(), mode: XattrMode::Set };
        let nothing = OwnReads::default();
        let fresh = OwnReads::from_iter([(Key::Inode(ino), Value::Inode(Some(full)))]);
        let mut view = View::new(&nothing, None, &fresh);
        assert_eq!(set.plan(&mut view, &direct.ctx()).unwrap_err(), PlanStop::Failed(Errno::ENOSPC));
        let guards = view.into_guards();
        assert!(guards.contains(&Guard::XattrBlocks { ino, least: most, most: u16::MAX }), "{guards:?}");
    }
}
