//! Scans of ranges of records.

use meta::{EngineError, Page, Scan, Snapshot};

use crate::read::read_seq;
use crate::shared::Shared;

impl Shared {
    /// One page of a range, as of one revision. A page of a directory takes one read, plus another if it
    /// contains hard links or ACLs that are not cached. Inodes by number take two reads, because inodes are
    /// stored in their directories.
    pub(crate) fn page(&self, scan: &Scan) -> Result<Page, EngineError> {
        let empty = keyspace::ReadSet::default();
        let (_, first) = keyspace::page(&self.keys, scan, &empty);
        let ((records, more), revision) =
            self.read_until(first, |source| keyspace::page(&self.keys, scan, source))?;
        Ok(Page { snapshot: Snapshot { seq: read_seq(revision), records }, more })
    }
}
