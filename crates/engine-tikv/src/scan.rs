//! Parts of ranges.

use meta::{EngineError, Facts, Page, Scan};

use crate::engine::Shared;

impl Shared {
    /// A part of a range as of one timestamp. A directory is one read, unless it has hard links or ACLs that were not met
    /// before; inodes by number are two, for they lie in their directories.
    pub(crate) fn page(&self, scan: &Scan) -> Result<Page, EngineError> {
        let seq = self.order.read();
        let empty = keyspace::Snapshot::default();
        let (_, first) = keyspace::page(&self.keys, scan, &empty);
        let ((records, more), _) =
            self.read_until(None, first, |source| keyspace::page(&self.keys, scan, source))?;
        Ok(Page { facts: Facts { seq, records }, more })
    }
}
