//! Changes of the rules that map SIDs to uids and gids.

use acl::identity::{Domain, DomainTable};
use acl::sid_rules::{IdRange, SidRule, SidRuleError, SidRules, check_domain};
use meta::{AclKind, Effect, Volume};
use types::Errno;

use crate::domains;
use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Why the rules were left as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SidRulesRefusal {
    #[error(transparent)]
    Rule(#[from] SidRuleError),
    #[error("the range overlaps with {1}, to which domain {0} is mapped")]
    IdsOverlap(Domain, IdRange),
    #[error("the volume's table of domains is full")]
    TableFull,
    #[error("there is no such rule")]
    Absent,
}

/// Maps RIDs of a domain from `first_rid` on to a range of uids and gids. The domain is added to the volume's
/// table. A client that has the volume open applies the rule when it reads the settings again.
///
/// The reply is a refusal, and nothing is changed, if the rule is invalid or contradicts another one.
///
/// # Errors
/// EOPNOTSUPP if the volume does not have NFSv4 ACLs; EIO if the rules or the table of domains are damaged.
#[derive(Clone, Debug)]
pub struct AddSidRule {
    pub domain: Domain,
    pub first_rid: u32,
    pub ids: IdRange,
}

impl Op for AddSidRule {
    type Reply = Result<(), SidRulesRefusal>;
    const NAME: &'static str = "addsidrule";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let (mut table, rules) = stored(view, ctx)?;
        if let Err(refusal) = check_domain(&self.domain) {
            return Ok(Plan::answer(Err(refusal.into())));
        }
        let before = table.domains().len();
        let Some(domain) = table.append(self.domain.clone()) else {
            return Ok(Plan::answer(Err(SidRulesRefusal::TableFull)));
        };
        let changed = match rules.with(SidRule { domain, first_rid: self.first_rid, ids: self.ids }) {
            Ok(changed) => changed,
            Err(SidRuleError::IdsOverlap(ids)) => {
                let other = rules.rules().iter().find(|rule| rule.ids == ids);
                let other = other.and_then(|rule| table.get(rule.domain)).cloned().ok_or(Errno::EIO)?;
                return Ok(Plan::answer(Err(SidRulesRefusal::IdsOverlap(other, ids))));
            }
            Err(refusal) => return Ok(Plan::answer(Err(refusal.into()))),
        };
        let mut plan = replace(&rules, &changed);
        if table.domains().len() > before {
            plan.effects.push(Effect::PutSetting { name: domains::SETTING, value: table.to_storage() });
        }
        Ok(plan)
    }
}

/// Removes the rules of a domain, or the one of them that begins at `first_rid`. The domain stays in the
/// table.
///
/// The reply is [`SidRulesRefusal::Absent`] if there is no such rule.
///
/// # Errors
/// As [`AddSidRule`].
#[derive(Clone, Debug)]
pub struct RemoveSidRules {
    pub domain: Domain,
    pub first_rid: Option<u32>,
}

impl Op for RemoveSidRules {
    type Reply = Result<(), SidRulesRefusal>;
    const NAME: &'static str = "removesidrules";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let (table, rules) = stored(view, ctx)?;
        let changed = table.find(&self.domain).and_then(|domain| rules.without(domain, self.first_rid));
        Ok(match changed {
            Some(changed) => replace(&rules, &changed),
            None => Plan::answer(Err(SidRulesRefusal::Absent)),
        })
    }
}

/// The table of domains and the rules, as they are stored.
fn stored(view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<(DomainTable, SidRules), PlanStop> {
    if ctx.volume.acl != AclKind::Nfs4 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let table = domains::stored(view)?;
    let text = view.setting(Volume::SID_RULES)?.unwrap_or_default();
    let rules = SidRules::from_storage(&text).ok_or(Errno::EIO)?;
    // A rule must not refer to a free number: a domain that got this number later would be mapped by the
    // rule.
    let is_complete = rules.rules().iter().all(|rule| table.get(rule.domain).is_some());
    if is_complete { Ok((table, rules)) } else { Err(Errno::EIO.into()) }
}

fn replace(before: &SidRules, after: &SidRules) -> Plan<Result<(), SidRulesRefusal>> {
    let effect = || Effect::PutSetting { name: Volume::SID_RULES, value: after.to_storage() };
    Plan { reply: Ok(()), effects: (before != after).then(effect).into_iter().collect() }
}
