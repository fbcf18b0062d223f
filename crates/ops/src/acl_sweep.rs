//! Removal of ACLs that no inode refers to. How it is safe while the volume is in use: `acls.rs` in the crate `check`.

use meta::{Effect, Volume};
use types::{AclId, Errno};

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Makes this session the only one that condemns and removes ACLs. An ACL that one tool has condemned must not be
/// condemned again by another between the walk over the inodes and the removal, because it may have been used in
/// between.
#[derive(Clone, Copy, Debug)]
pub struct BeginAclSweep;

impl Op for BeginAclSweep {
    type Reply = ();
    const NAME: &'static str = "begin-acl-sweep";

    fn plan(&self, _: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let effects = vec![Effect::PutSetting { name: Volume::ACL_SWEEP, value: ctx.session.0.to_string() }];
        Ok(Plan { reply: (), effects })
    }
}

/// Condemns ACLs, or drops those that are still condemned.
///
/// # Errors
/// EBUSY: another session has begun since [`BeginAclSweep`].
#[derive(Clone, Copy, Debug)]
pub struct SweepAcls<'a> {
    pub ids: &'a [AclId],
    pub drop: bool,
}

impl Op for SweepAcls<'_> {
    type Reply = ();
    const NAME: &'static str = "sweep-acls";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if view.setting(Volume::ACL_SWEEP)? != Some(ctx.session.0.to_string()) {
            return Err(Errno::EBUSY.into());
        }
        let sweep = |id: &AclId| match self.drop {
            true => Effect::DropAcl { id: *id },
            false => Effect::CondemnAcl { id: *id },
        };
        Ok(Plan { reply: (), effects: self.ids.iter().map(sweep).collect() })
    }
}
