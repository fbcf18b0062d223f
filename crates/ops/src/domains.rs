//! The volume's table of Windows domains, to which the SIDs in its NFSv4 ACLs belong.
//!
//! The table is one setting, because every engine stores settings and one read returns the whole table. An
//! addition is guarded by the whole previous value, so concurrent additions are serialized. Entries are
//! never removed, so the meaning of an index never changes, and a known part of the table stays valid.

use std::sync::Arc;

use acl::identity::{DomainTable, Id};
use acl::nfs4::Nfs4Acl;
use meta::{Effect, Settings};
use types::Errno;

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

pub(super) const SETTING: &str = "domains";

/// The table that gives the domains in a new ACL their numbers. Before the ACL is stored, these numbers are
/// replaced by those of the volume's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbering {
    pub table: Arc<DomainTable>,
    /// The first `known` domains of `table` are known to have the same numbers in the volume's table. The
    /// other domains may have other numbers there, or none.
    pub known: usize,
}

/// Reads the table of domains.
///
/// # Errors
/// EIO if the table is damaged.
#[derive(Debug)]
pub struct GetDomains;

impl Op for GetDomains {
    type Reply = DomainTable;
    const NAME: &'static str = "getdomains";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<DomainTable>, PlanStop> {
        Ok(Plan::answer(stored(view)?))
    }
}

pub(super) fn stored(view: &mut View<'_>) -> Result<DomainTable, PlanStop> {
    let text = view.setting(SETTING)?;
    Ok(parse(text.as_deref()).ok_or(Errno::EIO)?)
}

/// Decodes the table in these settings of a volume; `None` if the table is damaged.
pub fn domains_in(settings: &Settings) -> Option<DomainTable> {
    parse(settings.get(SETTING).map(String::as_str))
}

fn parse(text: Option<&str>) -> Option<DomainTable> {
    text.map_or_else(|| Some(DomainTable::default()), DomainTable::from_storage)
}

/// Replaces the numbers of the domains in an ACL by those of the volume's table. Domains that are new to the
/// volume are appended to the table. If all domains of the ACL are known, the table is not read and the
/// function cannot fail.
///
/// # Errors
/// EIO if the table is damaged; ENOSPC if it is full.
pub(super) fn renumber(
    view: &mut View<'_>,
    acl: &Nfs4Acl,
    by: &Numbering,
    effects: &mut Vec<Effect>,
) -> Result<Nfs4Acl, PlanStop> {
    if acl.highest_domain() as usize <= by.known {
        return Ok(acl.clone());
    }
    let mut table = stored(view)?;
    let before = table.domains().len();
    let (settled, left_out) = acl.renumbered(|id, _| match id.to_system() {
        Some(_) => Some(id),
        None => Id::new(table.append(by.table.get(id.domain())?.clone())?, id.rid()),
    });
    if left_out > 0 {
        return Err(Errno::ENOSPC.into());
    }
    if table.domains().len() > before {
        effects.push(Effect::PutSetting { name: SETTING, value: table.to_storage() });
    }
    Ok(settled)
}

/// Reserves the free numbers up to `reach`. Existing ACLs may refer to these numbers, so a domain that got
/// one of them later would also get the permissions that these ACLs grant. The reserved numbers go to domains
/// of the null authority (`S-1-0`, [MS-DTYP] 2.4.1.1), which have no members. Does nothing if no such number
/// is free.
///
/// # Errors
/// EIO if the table is damaged; ENOSPC if the table has no room for all of them.
pub fn reserve_domains(view: &mut View<'_>, reach: u32, effects: &mut Vec<Effect>) -> Result<(), PlanStop> {
    let mut table = stored(view)?;
    let before = table.domains().len();
    let mut numbers = 0..=u32::MAX;
    while table.domains().len() < reach as usize {
        // If the domain is in the table already, `append` adds nothing, and the loop tries the next domain.
        let domain = numbers.next().and_then(|number| format!("S-1-0-{number}").parse().ok());
        table.append(domain.ok_or(Errno::EIO)?).ok_or(Errno::ENOSPC)?;
    }
    if table.domains().len() > before {
        effects.push(Effect::PutSetting { name: SETTING, value: table.to_storage() });
    }
    Ok(())
}
