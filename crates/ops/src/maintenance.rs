//! Announces tools that need exclusive use of the volume; see [`Maintenance`].

use meta::{Effect, Maintenance};
use types::Errno;

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Looks up the announced tool, and guards the answer.
///
/// # Errors
/// [`PlanStop::Missing`]: the settings were not read yet.
pub(crate) fn announced(view: &mut View<'_>) -> Result<Option<Maintenance>, PlanStop> {
    let announced = view.setting(Maintenance::SETTING)?.filter(|text| !text.is_empty());
    Ok(announced.as_deref().map(Maintenance::decode))
}

/// Reads the present announcement.
#[derive(Clone, Copy, Debug)]
pub struct GetMaintenance;

impl Op for GetMaintenance {
    type Reply = Option<Maintenance>;
    const NAME: &'static str = "get maintenance";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        announced(view).map(Plan::answer)
    }
}

/// Announces a tool. If another one is announced already, the reply is that one, and nothing is changed.
#[derive(Clone, Debug)]
pub struct BeginMaintenance {
    pub maintenance: Maintenance,
    /// An announcement that is known to be stale, and may be replaced.
    pub replaces: Option<Maintenance>,
}

impl Op for BeginMaintenance {
    type Reply = Option<Maintenance>;
    const NAME: &'static str = "begin maintenance";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let announced = announced(view)?;
        if announced.is_some() && announced != self.replaces {
            return Ok(Plan::answer(announced));
        }
        let value = self.maintenance.encode();
        Ok(Plan { reply: None, effects: vec![Effect::PutSetting { name: Maintenance::SETTING, value }] })
    }
}

/// Makes an announcement final, before the tool does something that is not a commit and cannot be undone.
///
/// # Errors
/// ENOENT: the tool is not announced.
#[derive(Clone, Debug)]
pub struct FinalMaintenance(pub Maintenance);

impl Op for FinalMaintenance {
    type Reply = Maintenance;
    const NAME: &'static str = "final maintenance";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Maintenance>, PlanStop> {
        if announced(view)?.as_ref() != Some(&self.0) {
            return Err(Errno::ENOENT.into());
        }
        let reply = Maintenance { is_final: true, ..self.0.clone() };
        let value = reply.encode();
        Ok(Plan { reply, effects: vec![Effect::PutSetting { name: Maintenance::SETTING, value }] })
    }
}

/// Ends this tool's announcement. The announcement of another tool stays.
///
/// # Errors
/// ENOENT: the tool is not announced.
#[derive(Clone, Debug)]
pub struct EndMaintenance(pub Maintenance);

impl Op for EndMaintenance {
    type Reply = ();
    const NAME: &'static str = "end maintenance";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if announced(view)?.as_ref() != Some(&self.0) {
            return Err(Errno::ENOENT.into());
        }
        Ok(Plan {
            reply: (),
            effects: vec![Effect::PutSetting { name: Maintenance::SETTING, value: String::new() }],
        })
    }
}
