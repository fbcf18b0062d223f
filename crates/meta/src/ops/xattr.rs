//! Extended attributes but ACLs.

use std::sync::Arc;

use types::{Errno, Ino, XattrName};

use crate::driver::{Ctx, Op, Plan};
use crate::record::{Want, XattrBytes};
use crate::txn::Effect;
use crate::view::{Stop, View};

/// The longest value in bytes (`XATTR_SIZE_MAX`, limits.h).
const MAX_VALUE_BYTES: usize = 65_536;

/// The bytes that the names of an inode may take together, each with its NUL: what `listxattr(2)` can return
/// (`XATTR_LIST_MAX`, limits.h).
const MAX_NAMES_BYTES: usize = 65_536;

/// The bytes that names and values of an inode may take together: 16 values of the greatest length. All of them are read at
/// once, and several servers bound an answer or a request to a few MiB.
const MAX_TOTAL_BYTES: usize = 1 << 20;

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
/// [`XattrMode::Replace`]; ENOSPC if the inode's xattrs would take more than 64 KiB of names, or more than 1 MiB, and more
/// than before. Calls at the same moment do not see each other: each may add one value beyond the bound.
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
        view.prefetch([Want::Node(self.ino), Want::Xattrs(self.ino)])?;
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
        // What is known may be too much: what is replaced counts twice there.
        let known = view.xattrs_within(self.ino).map(|known| known.with(&self.name, self.value.len()));
        if !known.is_some_and(fits) {
            let xattrs = view.xattrs_now(self.ino)?;
            let old = xattrs.get(&self.name).map_or(0, |value| value.len());
            let is_new = !xattrs.contains_key(&self.name);
            let mut bytes = XattrBytes::of(&xattrs);
            bytes.values = bytes.values - old + self.value.len();
            if is_new {
                bytes = XattrBytes { values: bytes.values, ..bytes.with(&self.name, 0) };
            }
            // What is there beyond the bounds may be replaced by something shorter.
            if !fits(bytes) && (is_new || self.value.len() > old) {
                return Err(Errno::ENOSPC.into());
            }
        }
        let effects = vec![
            Effect::PutXattr { ino: self.ino, name: self.name.clone(), value: self.value.clone() },
            super::touch_ctime(self.ino, ctx.now),
        ];
        Ok(Plan { reply: (), effects })
    }
}

fn fits(bytes: XattrBytes) -> bool {
    bytes.names <= MAX_NAMES_BYTES && bytes.names + bytes.values <= MAX_TOTAL_BYTES
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
