//! Automatic backups of the metadata: decides which client makes the next one; see [`LastBackup`].

use std::time::Duration;

use meta::{Effect, LastBackup};
use types::Time;

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Claims the next automatic backup if it is due. If several clients try at the same time, only one gets it, because
/// the claim is guarded by the previous one.
#[derive(Clone, Copy, Debug)]
pub struct ClaimBackup;

/// The reply to [`ClaimBackup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupClaim {
    /// This client makes the backup, which begins at this time.
    Claimed(Time),
    /// No backup is due before this time; `None` if automatic backups are off.
    NotBefore(Option<Time>),
}

impl Op for ClaimBackup {
    type Reply = BackupClaim;
    const NAME: &'static str = "claim backup";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<BackupClaim>, PlanStop> {
        if ctx.volume.backup_secs == 0 {
            return Ok(Plan::answer(BackupClaim::NotBefore(None)));
        }
        let last = view.setting(LastBackup::SETTING)?.as_deref().and_then(LastBackup::decode);
        // The first backup is due one interval after the volume was created.
        let last = last.unwrap_or(LastBackup { began: ctx.volume.created, took_secs: None });
        let due = last.next_due(Duration::from_secs(ctx.volume.backup_secs), ctx.now);
        if ctx.now < due {
            return Ok(Plan::answer(BackupClaim::NotBefore(Some(due))));
        }
        let value = LastBackup { began: ctx.now, took_secs: None }.encode();
        let effects = vec![Effect::PutSetting { name: LastBackup::SETTING, value }];
        Ok(Plan { reply: BackupClaim::Claimed(ctx.now), effects })
    }
}

/// Notes that a claimed backup is complete. Does nothing if a later one was claimed meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct FinishBackup {
    pub began: Time,
    pub took_secs: u64,
}

impl Op for FinishBackup {
    type Reply = ();
    const NAME: &'static str = "finish backup";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let FinishBackup { began, took_secs } = *self;
        let last = view.setting(LastBackup::SETTING)?.as_deref().and_then(LastBackup::decode);
        if last != Some(LastBackup { began, took_secs: None }) {
            return Ok(Plan::answer(()));
        }
        let value = LastBackup { began, took_secs: Some(took_secs) }.encode();
        Ok(Plan { reply: (), effects: vec![Effect::PutSetting { name: LastBackup::SETTING, value }] })
    }
}
