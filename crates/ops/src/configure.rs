//! Changes the settings of a volume.

use acl::nfs4::{AclInherit, AclMode};
use meta::{AclKind, Effect, Volume};
use types::Errno;

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// The settings that can be changed after the volume was created; `None` leaves a setting unchanged. Mounts
/// read the settings periodically, and apply a change within about ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configure {
    /// The limit for the total size of regular files and extended attributes in bytes, each counted in whole
    /// 4 KiB blocks, holes included; 0 = no limit. Existing data beyond it remains.
    pub capacity_bytes: Option<u64>,
    /// The limit for the number of inodes; 0 = no limit. Existing inodes beyond it remain.
    pub max_inodes: Option<u64>,
    /// Files of up to this many bytes are stored in the metadata, from their next write on.
    pub inline_bytes: Option<u32>,
    /// The policy by which chmod changes NFSv4 ACLs from now on.
    pub aclmode: Option<AclMode>,
    /// The policy by which new files inherit NFSv4 ACLs from now on.
    pub aclinherit: Option<AclInherit>,
    /// Access-based enumeration: whether listings on every mount show a caller only the entries that it may
    /// read.
    pub abe: Option<bool>,
    /// Whether every mount commits each change before it replies to the caller.
    pub sync_metadata: Option<bool>,
    /// The time between two automatic backups of the metadata, in seconds; 0 = no automatic backups.
    pub backup_secs: Option<u64>,
    /// How long removed files are kept in the trash, in days; 0 = they are deleted at once. If the value is
    /// more than 0 and the volume has no trash yet, the trash is created. The operation then fails with
    /// EEXIST if the root directory has an entry with the name of the trash.
    pub trash_days: Option<u64>,
    /// Whether the object store must hold the volume's marker.
    pub store_marker: Option<bool>,
    /// Turns POSIX ACLs on for a volume without ACLs. They cannot be turned off again, because files would
    /// then lose the denials of their ACLs.
    ///
    /// The operation fails with EINVAL if the volume has NFSv4 ACLs.
    pub posix_acls: bool,
}

impl Op for Configure {
    type Reply = ();
    const NAME: &'static str = "configure";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let asked = [
            ("capacity_bytes", number(self.capacity_bytes)),
            ("max_inodes", number(self.max_inodes)),
            ("inline_bytes", number(self.inline_bytes.map(u64::from))),
            ("backup_secs", number(self.backup_secs)),
            (Volume::TRASH_DAYS, number(self.trash_days)),
            ("abe", self.abe.map(|abe| on_off(abe).to_owned())),
            (Volume::SYNC_METADATA, self.sync_metadata.map(|sync| on_off(sync).to_owned())),
            ("store_marker", self.store_marker.map(|marked| on_off(marked).to_owned())),
            ("aclmode", self.aclmode.map(|policy| policy.name().to_owned())),
            ("aclinherit", self.aclinherit.map(|policy| policy.name().to_owned())),
        ];
        let mut effects = Vec::new();
        if self.posix_acls {
            let (off, posix) = (AclKind::Off.name(), AclKind::Posix.name());
            match view.setting("acl")? {
                Some(kind) if kind == posix => {}
                Some(kind) if kind == off => {
                    effects.push(Effect::PutSetting { name: "acl", value: posix.to_owned() });
                }
                _ => return Err(Errno::EINVAL.into()),
            }
        }
        if self.trash_days.is_some_and(|days| days > 0) {
            crate::trash::found(view, ctx, &mut effects)?;
        }
        for (name, value) in asked {
            let Some(value) = value else { continue };
            if view.setting(name)?.as_ref() != Some(&value) {
                effects.push(Effect::PutSetting { name, value });
            }
        }
        Ok(Plan { reply: (), effects })
    }
}

/// Changes where the volume's objects are. A mount uses the store with which it was started until it ends. If
/// the new store has a copy of the objects, such a mount can no longer begin a session.
///
/// # Errors
/// EAGAIN if the objects are not at `from`: another command has changed that meanwhile.
#[derive(Clone, Debug)]
pub struct MoveStore {
    /// The kind of the present store, and its bucket.
    pub from: (String, String),
    pub to: (String, String),
    /// Whether the objects at `to` are a copy. If not, they are the objects at `from` under another address.
    pub is_copy: bool,
}

impl Op for MoveStore {
    type Reply = ();
    const NAME: &'static str = "move store";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let (storage, bucket) = &self.from;
        if view.setting("storage")?.as_ref() != Some(storage)
            || view.setting("bucket")?.as_ref() != Some(bucket)
        {
            return Err(Errno::EAGAIN.into());
        }
        let set = |name, value: &String| Effect::PutSetting { name, value: value.clone() };
        let mut effects = vec![set("storage", &self.to.0), set("bucket", &self.to.1)];
        if self.is_copy {
            let moves = moves(view)?.checked_add(1).ok_or(Errno::EIO)?;
            effects.push(set(Volume::MOVES, &moves.to_string()));
        }
        Ok(Plan { reply: (), effects })
    }
}

/// The number of times that the volume has moved to a copy of its objects.
pub(crate) fn moves(view: &mut View<'_>) -> Result<u64, PlanStop> {
    match view.setting(Volume::MOVES)? {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| Errno::EIO.into()),
    }
}

/// The stored form of a flag.
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
