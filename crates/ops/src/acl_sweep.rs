//! Removal of ACLs that no inode refers to. `acls.rs` in the crate `check` explains why that is safe while
//! the volume is in use.

use meta::{Effect, Volume};
use types::{AclId, Errno, SessionId};

use crate::acl::text_of;
use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Makes this session the only one that condemns and removes ACLs, and begins a step of its work.
///
/// Each request is guarded by its step, because from the start of the second walk over the inodes until the
/// removal, neither another tool nor a late request of an earlier step may condemn an ACL again. An inode
/// that the walk has passed may have begun to refer to the ACL, which ended the condemnation. An ACL that is
/// then condemned again would be removed although it is in use.
///
/// # Errors
/// EBUSY: another session has begun since the step before. Step 0 takes the work over from any other session.
#[derive(Clone, Copy, Debug)]
pub struct BeginAclSweep {
    pub step: u32,
}

impl Op for BeginAclSweep {
    type Reply = ();
    const NAME: &'static str = "begin-acl-sweep";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if let Some(before) = self.step.checked_sub(1) {
            require_step(view, ctx.session, before)?;
        }
        let value = value(ctx.session, self.step);
        Ok(Plan { reply: (), effects: vec![Effect::PutSetting { name: Volume::ACL_SWEEP, value }] })
    }
}

fn value(session: SessionId, step: u32) -> String {
    format!("{} {step}", session.0)
}

fn require_step(view: &mut View<'_>, session: SessionId, step: u32) -> Result<(), PlanStop> {
    match view.setting(Volume::ACL_SWEEP)? == Some(value(session, step)) {
        true => Ok(()),
        false => Err(Errno::EBUSY.into()),
    }
}

/// The change that a part of a step makes to ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclSweep {
    Condemn,
    /// Removes the ACLs that are still condemned.
    Drop,
    /// Ends the condemnation of ACLs that are in use.
    Keep,
}

/// Does a part of a step of [`BeginAclSweep`].
///
/// # Errors
/// EBUSY: another step or another session has begun.
#[derive(Clone, Copy, Debug)]
pub struct SweepAcls<'a> {
    pub ids: &'a [AclId],
    pub step: u32,
    pub sweep: AclSweep,
}

impl Op for SweepAcls<'_> {
    type Reply = ();
    const NAME: &'static str = "sweep-acls";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        require_step(view, ctx.session, self.step)?;
        let mut effects = Vec::with_capacity(self.ids.len());
        for &id in self.ids {
            match self.sweep {
                AclSweep::Condemn => effects.push(Effect::CondemnAcl { id }),
                AclSweep::Drop => effects.push(Effect::DropAcl { id }),
                AclSweep::Keep => match view.any_acl(id) {
                    Ok(acl) => {
                        effects.extend(acl.map(|acl| Effect::PutAcl { id, text: text_of(&acl).into() }));
                    }
                    // The ACL is corrupt, or another tool has removed it.
                    Err(PlanStop::Failed(Errno::EIO)) => {}
                    Err(stop) => return Err(stop),
                },
            }
        }
        Ok(Plan { reply: (), effects })
    }
}
