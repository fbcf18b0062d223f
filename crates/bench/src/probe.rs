//! The limenfs mount that a benchmark measures, and its statistics.

use command::error::CliError;
use command::output;
use command::registry::{self, Entry};
use command::statistics::Statistics;

/// Queries the statistics of the mount that the scratch directory is on, if it is a limenfs mount.
#[derive(Debug)]
pub(crate) struct Probe {
    entry: Option<Entry>,
    transport: Option<&'static str>,
}

impl Probe {
    /// Finds the mount with this device number.
    pub(crate) fn find(device: u64) -> Self {
        let entry = registry::by_device(device);
        let Some(entry) = entry else { return Probe { entry, transport: None } };
        match Statistics::query(&entry) {
            Ok(found) => Probe { entry: Some(entry), transport: found.transport() },
            Err(error) => {
                output::note(error);
                Probe { entry: None, transport: None }
            }
        }
    }

    /// The mount, if it is a limenfs mount that serves statistics.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// The transport of the mount's requests, by its name in `-o transport`.
    pub(crate) fn transport(&self) -> Option<&'static str> {
        self.transport
    }

    /// The statistics of the mount.
    ///
    /// # Errors
    /// The mount answered when it was found, but no longer answers.
    pub(crate) fn ask(&self) -> Result<Option<Statistics>, CliError> {
        self.entry.as_ref().map(Statistics::query).transpose()
    }
}
