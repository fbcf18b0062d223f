//! Automatic backups of the metadata: decides which client makes the next one; see [`LastBackup`].

use std::time::Duration;

use meta::{Effect, LastBackup};
use types::Time;

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Claims the next automatic backup if it is due. If several clients try at the same time, only one gets it,
/// because the claim is guarded by the previous one.
///
/// The clocks of two machines may differ by more than the time between backups. If each compared the time of
/// the last claim with its own clock, both would claim in turns, without a pause. So a client uses the time
/// of day only for the first claim that it sees. For any later claim, the age is how long this client has
/// known it.
#[derive(Clone, Copy, Debug)]
pub struct ClaimBackup {
    /// The last backup at the previous call; `None` at the first call.
    pub known: Option<KnownBackup>,
}

/// A backup that a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownBackup {
    /// When it began, by the clock of the machine that made it.
    pub began: Time,
    /// The time since then, as far as this client knows.
    pub age: Duration,
}

/// The reply to [`ClaimBackup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupClaim {
    /// This client makes the backup, which begins at this time.
    Claimed(Time),
    /// The next backup is due after `left`.
    NotYet { last: KnownBackup, left: Duration },
    /// Automatic backups are off.
    Off,
}

impl Op for ClaimBackup {
    type Reply = BackupClaim;
    const NAME: &'static str = "claim backup";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<BackupClaim>, PlanStop> {
        if ctx.volume.backup_secs == 0 {
            return Ok(Plan::answer(BackupClaim::Off));
        }
        let last = view.setting(LastBackup::SETTING)?.as_deref().and_then(LastBackup::decode);
        // The first backup is due one interval after the volume was created.
        let last = last.unwrap_or(LastBackup::begun(ctx.volume.created));
        let pause = last.pause(Duration::from_secs(ctx.volume.backup_secs));
        let age = match self.known {
            Some(known) if known.began == last.began => known.age,
            Some(_) => Duration::ZERO,
            None => last.age(ctx.now, pause),
        };
        if age < pause {
            let last = KnownBackup { began: last.began, age };
            return Ok(Plan::answer(BackupClaim::NotYet { last, left: pause.saturating_sub(age) }));
        }
        let value = LastBackup::begun(ctx.now).encode();
        let effects = vec![Effect::PutSetting { name: LastBackup::SETTING, value }];
        Ok(Plan { reply: BackupClaim::Claimed(ctx.now), effects })
    }
}

/// Records that a claimed backup is still being made, so that no other client claims the next one meanwhile.
/// Returns whether the claim still holds.
#[derive(Clone, Copy, Debug)]
pub struct RenewBackup {
    pub began: Time,
    /// The time since the claim, in seconds.
    pub ran_secs: u64,
}

impl Op for RenewBackup {
    type Reply = bool;
    const NAME: &'static str = "renew backup";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<bool>, PlanStop> {
        let RenewBackup { began, ran_secs } = *self;
        if !is_claimed(view, began)? {
            return Ok(Plan::answer(false));
        }
        let value = LastBackup { ran_secs, ..LastBackup::begun(began) }.encode();
        Ok(Plan { reply: true, effects: vec![Effect::PutSetting { name: LastBackup::SETTING, value }] })
    }
}

/// Whether the last backup is the one that was claimed at `began`, and is not complete.
fn is_claimed(view: &mut View<'_>, began: Time) -> Result<bool, PlanStop> {
    let last = view.setting(LastBackup::SETTING)?.as_deref().and_then(LastBackup::decode);
    Ok(last.is_some_and(|last| last.began == began && last.took_secs.is_none()))
}

/// Records that a claimed backup is complete. Does nothing if a later backup was claimed meanwhile.
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
        if !is_claimed(view, began)? {
            return Ok(Plan::answer(()));
        }
        let value = LastBackup { took_secs: Some(took_secs), ..LastBackup::begun(began) }.encode();
        Ok(Plan { reply: (), effects: vec![Effect::PutSetting { name: LastBackup::SETTING, value }] })
    }
}

#[cfg(test)]
mod tests {
    use meta::{Engine, Txn};
    use types::OpId;

    use super::*;
    use crate::testing::Direct;

    #[test]
    fn a_claim_does_not_depend_on_the_clocks_of_other_machines() {
        let direct = Direct::new();
        let claim = |known| direct.run(&ClaimBackup { known }).unwrap();
        let known = |began, secs| Some(KnownBackup { began, age: Duration::from_secs(secs) });
        let BackupClaim::Claimed(own) = claim(None) else { panic!("none was made since the year 2023") };
        assert!(
            matches!(claim(known(own, 3599)), BackupClaim::NotYet { left, .. } if left == Duration::from_secs(1))
        );
        // Another machine, whose clock is far ahead or far behind, has made the next one.
        for (number, secs) in (0..).zip([1_000_000, -1_000_000]) {
            let other = Time::new(own.sec() + secs, 0);
            let value = LastBackup { took_secs: Some(1), ..LastBackup::begun(other) }.encode();
            let effects = vec![Effect::PutSetting { name: LastBackup::SETTING, value }];
            let op_id = OpId((1 << 90) + number);
            direct.engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
            let hour = Duration::from_secs(3600);
            let new =
                BackupClaim::NotYet { last: KnownBackup { began: other, age: Duration::ZERO }, left: hour };
            assert_eq!(claim(known(own, 9_000)), new, "{secs}");
            assert!(matches!(claim(known(other, 3599)), BackupClaim::NotYet { .. }), "{secs}");
        }
        let behind = Time::new(own.sec() - 1_000_000, 0);
        assert!(matches!(claim(known(behind, 3600)), BackupClaim::Claimed(_)));
    }

    #[test]
    fn a_backup_that_takes_longer_than_the_interval_is_not_claimed_again() {
        let direct = Direct::new();
        let claim = |known| direct.run(&ClaimBackup { known }).unwrap();
        let age = |secs| Duration::from_secs(secs);
        let BackupClaim::Claimed(began) = claim(None) else { panic!("none was made since the year 2023") };
        assert!(direct.run(&RenewBackup { began, ran_secs: 100_000 }).unwrap());
        let known = |secs| Some(KnownBackup { began, age: age(secs) });
        assert!(matches!(claim(known(100_100)), BackupClaim::NotYet { left, .. } if left == age(3_500)));
        direct.run(&FinishBackup { began, took_secs: 0 }).unwrap();
        // The claim of a mount that has ended is due one interval after its last renewal.
        let BackupClaim::Claimed(next) = claim(known(100_100)) else { panic!("it is complete") };
        assert!(direct.run(&RenewBackup { began: next, ran_secs: 5000 }).unwrap());
        let known = Some(KnownBackup { began: next, age: age(8600) });
        assert!(matches!(claim(known), BackupClaim::Claimed(_)));
        assert!(!direct.run(&RenewBackup { began: next, ran_secs: 9000 }).unwrap());
    }
}
