//! The journals of the simulated machines. Some mutants lose entries.

use std::io;

use journal::{Abandoned, Journals, Memory, Storage};
use types::SessionId;

use crate::mutant::Mutant;

/// The first byte of an entry that records how transactions were sent: the number of the entry's variant, as
/// `postcard` encodes it. It follows the length and the checksum of the frame.
const SENT: Option<&u8> = Some(&2);
const FRAME_BYTES: usize = 8;

/// The journals of a machine.
#[derive(Debug)]
pub(super) struct MachineJournals {
    pub(super) memory: Memory,
    pub(super) mutant: Option<Mutant>,
}

/// A journal that does not store the entries which begin with [`SENT`].
#[derive(Debug)]
struct Forgetful(Box<dyn Storage>);

impl Journals for MachineJournals {
    fn create(&self, volume: &str, session: SessionId) -> io::Result<Box<dyn Storage>> {
        let storage = self.memory.create(volume, session)?;
        Ok(match self.mutant {
            Some(Mutant::ForgetsSent) => Box::new(Forgetful(storage)),
            _ => storage,
        })
    }

    fn abandoned(&self, volume: &str) -> io::Result<Vec<io::Result<Abandoned>>> {
        let mut found = self.memory.abandoned(volume)?;
        if self.mutant == Some(Mutant::NotReplayed) {
            found.iter_mut().flatten().for_each(|journal| cut_back(&mut journal.bytes));
        }
        Ok(found)
    }
}

/// Leaves only the first frame, which is the header, so the journal has no transactions.
fn cut_back(bytes: &mut Vec<u8>) {
    if let Some(len) = bytes.first_chunk().map(|len| u32::from_le_bytes(*len)) {
        bytes.truncate(FRAME_BYTES + len as usize);
    }
}

impl Storage for Forgetful {
    fn place(&self) -> String {
        self.0.place()
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.0.reserve(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.get(FRAME_BYTES) == SENT { Ok(()) } else { self.0.append(bytes) }
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.replace(bytes)
    }

    fn remove(&mut self) -> io::Result<()> {
        self.0.remove()
    }

    fn set_aside(&mut self, suffix: &str) -> io::Result<String> {
        self.0.set_aside(suffix)
    }
}
