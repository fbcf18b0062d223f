//! The limenfs mount that a benchmark measures, and its statistics.

use command::fault::Fault;
use command::output;
use command::registry::{self, Entry};
use command::statistics::Statistics;

/// Queries the statistics of the mount that the scratch directory is on, if it is a limenfs mount.
#[derive(Debug)]
pub(crate) struct Probe(Option<Entry>);

impl Probe {
    /// Finds the mount with this device number.
    pub(crate) fn find(device: u64) -> Self {
        let entry = registry::by_device(device);
        let Some(entry) = entry else { return Probe(None) };
        match Statistics::query(&entry) {
            Ok(_) => Probe(Some(entry)),
            Err(fault) => {
                output::note(fault);
                Probe(None)
            }
        }
    }

    /// The mount, if it is a limenfs mount that serves statistics.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.0.as_ref()
    }

    /// The statistics of the mount.
    ///
    /// # Errors
    /// The mount answered when it was found, but no longer answers.
    pub(crate) fn ask(&self) -> Result<Option<Statistics>, Fault> {
        self.0.as_ref().map(Statistics::query).transpose()
    }
}
