//! Parts of ranges.

use meta::{EngineError, Facts, Page, Scan};

use crate::engine::Shared;
use crate::read::read_seq;

impl Shared {
    /// A part of a range as of one revision. A directory is one read, unless it has hard links or ACLs that were not met
    /// before; inodes by number are two, for they lie in their directories.
    pub(crate) fn page(&self, scan: &Scan) -> Result<Page, EngineError> {
        let empty = keyspace::Snapshot::default();
        let (_, first) = keyspace::page(&self.keys, scan, &empty);
        let ((records, more), revision) =
            self.read_until(first, |source| keyspace::page(&self.keys, scan, source))?;
        Ok(Page { facts: Facts { seq: read_seq(revision), records }, more })
    }
}
