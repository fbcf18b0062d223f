//! SIDs in the wire forms. Unknown domains are added to a table during parsing.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::identity::{DomainTable, Id, Sid};

use super::Principals;

/// A table of domains that accepts SIDs of any domain as names of principals: a domain that is not in the
/// table is appended to it. Samba's SIDs for users and groups of a Unix system (`S-1-22-1-uid`,
/// `S-1-22-2-gid`) are uids and gids.
#[derive(Debug, Default)]
pub struct GrowingTable {
    table: RefCell<Arc<DomainTable>>,
    is_full: Cell<bool>,
}

impl GrowingTable {
    pub fn new(known: Arc<DomainTable>) -> Self {
        GrowingTable { table: RefCell::new(known), is_full: Cell::new(false) }
    }

    /// The table, including the domains that were added.
    pub fn into_table(self) -> Arc<DomainTable> {
        self.table.into_inner()
    }

    /// Whether the table had no room for some domain.
    pub fn is_full(&self) -> bool {
        self.is_full.get()
    }
}

impl Principals for GrowingTable {
    fn id_of(&self, name: &str, is_group: bool) -> Option<Id> {
        let sid: Sid = name.parse().ok()?;
        if let Some((of_group, id)) = sid.to_unix() {
            return Id::system(id).filter(|_| of_group == is_group);
        }
        let mut table = self.table.borrow_mut();
        let known = table.find(&sid.domain);
        let index = known.or_else(|| Arc::make_mut(&mut table).append(sid.domain));
        self.is_full.set(self.is_full.get() || index.is_none());
        Id::new(index?, sid.rid)
    }

    fn name_of(&self, id: Id, is_group: bool) -> Option<String> {
        Principals::name_of(&**self.table.borrow(), id, is_group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_domains_are_appended() {
        let known = Arc::new(DomainTable::from_storage("S-1-5-32").unwrap());
        let growing = GrowingTable::new(Arc::clone(&known));
        let id = |name: &str, is_group| growing.id_of(name, is_group).map(|id| id.to_string());
        assert_eq!(id("S-1-5-32-544", true).as_deref(), Some("1-544"));
        assert_eq!(id("S-1-5-21-1-2-3-1105", false).as_deref(), Some("2-1105"));
        assert_eq!(id("s-1-5-021-1-2-3-7", true).as_deref(), Some("2-7"));
        assert_eq!(id("S-1-22-1-1000", false).as_deref(), Some("1000"));
        assert_eq!(id("S-1-22-2-50", true).as_deref(), Some("50"));
        for (name, is_group) in
            [("S-1-22-1-1000", true), ("S-1-22-2-50", false), ("S-1-5", false), ("ann", false)]
        {
            assert_eq!(growing.id_of(name, is_group), None, "{name}");
        }
        assert_eq!(growing.id_of("S-1-22-1-4294967295", false), None);
        assert_eq!(growing.name_of("2-1105".parse().unwrap(), false).as_deref(), Some("S-1-5-21-1-2-3-1105"));
        assert_eq!(growing.name_of("3-1".parse().unwrap(), false), None);
        assert!(!growing.is_full());
        assert_eq!(known.domains().len(), 1, "the original table is unchanged");
        assert_eq!(growing.into_table().to_storage(), "S-1-5-32 S-1-5-21-1-2-3");
    }

    #[test]
    fn full_table_is_reported() {
        let mut table = DomainTable::default();
        for n in 0.. {
            let text = format!("S-1-5-21-4294967295-4294967295-{n}");
            if table.append(text.parse().unwrap()).is_none() {
                break;
            }
        }
        let growing = GrowingTable::new(Arc::new(table));
        assert!(growing.id_of("S-1-5-21-4294967295-4294967295-0-5", false).is_some());
        assert!(!growing.is_full());
        assert_eq!(growing.id_of("S-1-5-21-7-7-7777777777-5", false), None, "not a SID");
        assert!(!growing.is_full());
        assert_eq!(growing.id_of("S-1-5-21-1111111111-1111111111-1111111111-5", false), None);
        assert!(growing.is_full());
    }
}
