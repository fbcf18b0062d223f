//! Pages of ranges.

use meta::{EngineError, Page, Scan, Snapshot};

use crate::shared::Shared;

impl Shared {
    /// Reads a page of a range as of one timestamp. A directory needs one read, unless it has hard links or
    /// ACLs that are not cached. Inodes by number need two, because they are stored in their directories.
    pub(crate) fn page(&self, scan: &Scan) -> Result<Page, EngineError> {
        let seq = self.order.read();
        let empty = keyspace::ReadSet::default();
        let (_, first) = keyspace::page(&self.keys, scan, &empty);
        let ((records, more), _) =
            self.read_until(None, first, |source| keyspace::page(&self.keys, scan, source))?;
        Ok(Page { snapshot: Snapshot { seq, records }, more })
    }
}
