//! A volume's table of Windows domains, for showing identities in NFSv4 ACLs as SIDs.

use std::cell::RefCell;
use std::sync::Arc;

use acl::identity::DomainTable;
use meta::{Engine, EngineError, Record, RecordKey};

/// The table. It is read again when an ACL names a domain that it lacks.
#[derive(Debug, Default)]
pub struct Domains {
    known: RefCell<Known>,
}

#[derive(Debug, Default)]
struct Known {
    table: Arc<DomainTable>,
    /// The highest index requested or present. An index above the table's length is damage; the table is not
    /// read again for it.
    reach: u32,
}

impl Domains {
    /// The table with the domains up to this index, if they exist. A damaged table counts as empty: the user
    /// whose access is explained is in no domain, so the table affects only how ACLs are shown.
    ///
    /// # Errors
    /// The errors of the database.
    pub fn up_to(&self, reach: u32, engine: &dyn Engine) -> Result<Arc<DomainTable>, EngineError> {
        let mut known = self.known.borrow_mut();
        if known.reach < reach {
            if let Some(Record::Settings(settings)) = engine.read(&[RecordKey::Settings])?.records.first() {
                known.table = Arc::new(ops::domains_in(settings).unwrap_or_default());
            }
            // The table only grows, so indexes that it has now need no further read.
            let length = u32::try_from(known.table.domains().len()).unwrap_or(u32::MAX);
            known.reach = reach.max(length);
        }
        Ok(Arc::clone(&known.table))
    }
}
