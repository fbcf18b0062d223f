//! Extended attributes but ACLs.

use std::sync::Arc;

use types::{Errno, Ino, XattrName};

use crate::driver::{Ctx, Op, Plan};
use crate::record::Want;
use crate::txn::Effect;
use crate::view::{Stop, View};

/// The longest value in bytes (`XATTR_SIZE_MAX`, limits.h).
const MAX_VALUE_BYTES: usize = 65_536;

/// Whether the attribute may, must not or must be there before, `setxattr(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Set,
    Create,
    Replace,
}

/// Sets an xattr. Twin of `vfs_setxattr`.
///
/// # Errors
/// E2BIG beyond 64 KiB; ESTALE where the inode is gone; EPERM, EACCES; EEXIST under [`XattrMode::Create`]; ENODATA under
/// [`XattrMode::Replace`].
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

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        if self.value.len() > MAX_VALUE_BYTES {
            return Err(Errno::E2BIG.into());
        }
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        ctx.admit_xattr(view, &node, &self.name)?;
        match self.mode {
            XattrMode::Set => {}
            XattrMode::Create if !view.require_xattr(self.ino, &self.name, false) => {
                return Err(Errno::EEXIST.into());
            }
            XattrMode::Replace if !view.require_xattr(self.ino, &self.name, true) => {
                return Err(Errno::ENODATA.into());
            }
            XattrMode::Create | XattrMode::Replace => {}
        }
        let effects = vec![
            Effect::PutXattr { ino: self.ino, name: self.name.clone(), value: self.value.clone() },
            super::touch_ctime(self.ino, ctx.now),
        ];
        Ok(Plan { reply: (), effects })
    }
}

/// Removes an xattr. Twin of `vfs_removexattr`.
///
/// # Errors
/// ESTALE where the inode is gone; EPERM, EACCES; ENODATA.
#[derive(Debug)]
pub struct RemoveXattr {
    pub ino: Ino,
    pub name: XattrName,
}

impl Op for RemoveXattr {
    type Reply = ();
    const NAME: &'static str = "removexattr";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        ctx.admit_xattr(view, &node, &self.name)?;
        if !view.require_xattr(self.ino, &self.name, true) {
            return Err(Errno::ENODATA.into());
        }
        let effects = vec![
            Effect::DropXattr { ino: self.ino, name: self.name.clone() },
            super::touch_ctime(self.ino, ctx.now),
        ];
        Ok(Plan { reply: (), effects })
    }
}
