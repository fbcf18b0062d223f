//! A volume's table of Windows domains, by which identities in its NFSv4 ACLs show as SIDs.

use std::cell::RefCell;
use std::sync::Arc;

use acl::identity::DomainTable;
use meta::{Engine, EngineError, Record, Want};

/// The table, read when an ACL names a domain that is not known yet.
#[derive(Debug, Default)]
pub struct Domains {
    known: RefCell<Known>,
}

#[derive(Debug, Default)]
struct Known {
    table: Arc<DomainTable>,
    /// The highest index that was asked for; what is beyond the table then is damage, and not asked for again.
    reach: u32,
}

impl Domains {
    /// The table with the domains up to this index, as far as there are so many. One that is damaged is empty: who is asked
    /// about is none of them, so nothing rests on it but how ACLs show.
    ///
    /// # Errors
    /// Those of the database.
    pub fn up_to(&self, reach: u32, engine: &dyn Engine) -> Result<Arc<DomainTable>, EngineError> {
        let mut known = self.known.borrow_mut();
        if known.reach < reach {
            if let Some(Record::Settings(settings)) = engine.read(&[Want::Settings])?.records.first() {
                known.table = Arc::new(meta::ops::domains_in(settings).unwrap_or_default());
            }
            // It only grows, so that what it has now needs no other look either.
            let length = u32::try_from(known.table.domains().len()).unwrap_or(u32::MAX);
            known.reach = reach.max(length);
        }
        Ok(Arc::clone(&known.table))
    }
}
