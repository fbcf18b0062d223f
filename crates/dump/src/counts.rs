//! Counts the rows of shared slices and the inodes of quotas in the lines of a dump.
//!
//! Both are counted in the lines and not read from the database, because a dump leaves unlinked files out,
//! and because the stored numbers change while the dump is made if the engine cannot read the records as of
//! one moment.

use std::collections::BTreeMap;

use meta::{EngineError, Quota, QuotaKey, Record, Scan, SnapshotReader};
use types::{QuotaId, SliceId};

use crate::line::{InodeLine, Line, MAX_SHARES, QuotaLine};

/// Rows in a page of a scan.
const PAGE: usize = 1024;

/// The counts. They take memory for each shared slice and each quota, not for each file.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The slices that were ever shared, with the number of their rows.
    pub(crate) shared: BTreeMap<SliceId, u64>,
    /// The quotas. A directory quota does not yet include those inside it.
    quotas: BTreeMap<QuotaKey, Quota>,
}

impl Counts {
    /// Reads which slices were ever shared and which quotas exist. All counts are 0.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn read(source: &mut dyn SnapshotReader) -> Result<Counts, EngineError> {
        let mut counts = Counts::default();
        let mut after = SliceId(0);
        loop {
            let page = source.scan(&Scan::Shared { after, limit: PAGE })?;
            let before = after;
            for record in page.snapshot.records {
                if let Record::Shared(slice, _) = record {
                    after = slice;
                    counts.shared.insert(slice, 0);
                }
            }
            if !page.more || after == before {
                break;
            }
        }
        counts.read_rules(source)?;
        Ok(counts)
    }

    /// Reads the rules of all quotas again.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn read_rules(&mut self, source: &mut dyn SnapshotReader) -> Result<(), EngineError> {
        self.quotas.clear();
        let mut after = None;
        loop {
            let page = source.scan(&Scan::Quotas { after, limit: PAGE })?;
            let before = after;
            for record in page.snapshot.records {
                if let Record::Quota(key, Some(quota)) = record {
                    after = Some(key);
                    self.quotas.insert(key, Quota { inodes: 0, blocks: 0, ..quota });
                }
            }
            if !page.more || after == before {
                return Ok(());
            }
        }
    }

    /// Counts a line.
    pub(crate) fn add(&mut self, line: &Line) {
        for slice in line.slices() {
            if let Some(count) = self.shared.get_mut(&slice) {
                *count += 1;
            }
        }
        if let Line::Inode(inode) = line {
            self.add_inode(inode);
        }
    }

    fn add_inode(&mut self, line: &InodeLine) {
        // An invalid inode is not counted: a load rejects its line.
        let Ok(inode) = line.inode() else { return };
        let mut add = |key: QuotaKey| {
            let quota = self.quotas.entry(key).or_default();
            quota.inodes += 1;
            quota.blocks = quota.blocks.saturating_add_unsigned(inode.blocks());
        };
        if inode.quota.directory() != QuotaId(0) {
            add(QuotaKey::Directory(inode.quota.directory()));
        }
        if inode.quota.owners() {
            add(QuotaKey::User(inode.uid));
            add(QuotaKey::Group(inode.gid));
        }
    }

    /// Calls `each` with the lines of all counts.
    pub(crate) fn lines<E>(&self, each: &mut dyn FnMut(Line) -> Result<(), E>) -> Result<(), E> {
        for (slice, count) in &self.shared {
            let mut left = count.saturating_sub(1);
            while left > 0 {
                let rows = left.min(MAX_SHARES.into());
                each(Line::Shared { slice: slice.0, rows })?;
                left -= rows;
            }
        }
        let mut all: BTreeMap<QuotaKey, Quota> = BTreeMap::new();
        for (key, own) in &self.quotas {
            let mut at = Some(*key);
            // The loop has a bound, because damaged records could form a cycle of quotas.
            for _ in 0..=self.quotas.len() {
                let Some(key) = at else { break };
                let rule = self.quotas.get(&key).map(|quota| quota.rule).unwrap_or_default();
                let sum = all.entry(key).or_insert(Quota { rule, ..Quota::default() });
                sum.inodes = sum.inodes.saturating_add(own.inodes);
                sum.blocks = sum.blocks.saturating_add(own.blocks);
                at = (rule.outer != QuotaId(0)).then_some(QuotaKey::Directory(rule.outer));
            }
        }
        all.iter().try_for_each(|(key, quota)| each(Line::Quota(QuotaLine::new(*key, quota))))
    }
}
