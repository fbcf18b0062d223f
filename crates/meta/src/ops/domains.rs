//! The volume's table of Windows domains, to which the SIDs in its NFSv4 ACLs belong.
//!
//! It is one setting: whoever adds to it is guarded by all that stood there, so that two who add at the same time do so one
//! after the other. Nothing is ever taken out, so an index keeps its meaning, and who knows a part of the table knows it for
//! good.

use std::sync::Arc;

use acl::identity::{DomainTable, Id};
use acl::nfs4::Nfs4Acl;
use types::Errno;

use crate::driver::{Ctx, Op, Plan};
use crate::record::Settings;
use crate::txn::Effect;
use crate::view::{Stop, View};

const SETTING: &str = "domains";

/// What the identities of domains in an ACL are numbered by that is to be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbering {
    pub table: Arc<DomainTable>,
    /// So many domains at its beginning are those of the volume's table. The volume may have numbered the rest otherwise, or
    /// not at all.
    pub known: usize,
}

/// Reads the table.
///
/// # Errors
/// EIO where it is damaged.
#[derive(Debug)]
pub struct GetDomains;

impl Op for GetDomains {
    type Reply = DomainTable;
    const NAME: &'static str = "getdomains";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<DomainTable>, Stop> {
        Ok(Plan::answer(stored(view)?))
    }
}

fn stored(view: &mut View<'_>) -> Result<DomainTable, Stop> {
    let text = view.setting(SETTING)?;
    Ok(parse(text.as_deref()).ok_or(Errno::EIO)?)
}

/// The table that is among these settings of a volume; none where it is damaged.
pub fn domains_in(settings: &Settings) -> Option<DomainTable> {
    parse(settings.get(SETTING).map(String::as_str))
}

fn parse(text: Option<&str>) -> Option<DomainTable> {
    text.map_or_else(|| Some(DomainTable::default()), DomainTable::from_storage)
}

/// The ACL with its identities as the volume numbers them; domains that are new to the volume join its table.
///
/// # Errors
/// EIO where the table is damaged; ENOSPC where it is full. Neither for an ACL whose domains are all known.
pub(super) fn settle(
    view: &mut View<'_>,
    acl: &Nfs4Acl,
    by: &Numbering,
    effects: &mut Vec<Effect>,
) -> Result<Nfs4Acl, Stop> {
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

/// Takes the numbers up to `reach` that are free, so that no domain to come is given one that ACLs name already, and with it
/// what these grant. They go to domains of the null authority (`S-1-0`, [MS-DTYP] 2.4.1.1), in which nobody is. Nothing is
/// done where none is free.
///
/// # Errors
/// EIO where the table is damaged; ENOSPC where it has no room for so many.
pub(crate) fn reserve(view: &mut View<'_>, reach: u32, effects: &mut Vec<Effect>) -> Result<(), Stop> {
    let mut table = stored(view)?;
    let before = table.domains().len();
    let mut numbers = 0..=u32::MAX;
    while table.domains().len() < reach as usize {
        // One that is there already takes no number, and the next one is tried.
        let domain = numbers.next().and_then(|number| format!("S-1-0-{number}").parse().ok());
        table.append(domain.ok_or(Errno::EIO)?).ok_or(Errno::ENOSPC)?;
    }
    if table.domains().len() > before {
        effects.push(Effect::PutSetting { name: SETTING, value: table.to_storage() });
    }
    Ok(())
}
