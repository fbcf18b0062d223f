//! Journals in memory, for tests.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use types::SessionId;

use crate::{Abandoned, Journals, Storage};

/// Journals of a machine whose processes end when they drop their [`Storage`].
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Machine>);

#[derive(Debug, Default)]
struct Machine {
    files: Mutex<BTreeMap<(String, SessionId), File>>,
    is_full: AtomicBool,
    is_broken: AtomicBool,
    keeps_all: AtomicBool,
    aside: Mutex<Vec<(SessionId, Vec<u8>)>>,
}

#[derive(Debug)]
struct File {
    bytes: Vec<u8>,
    process: Weak<()>,
}

#[derive(Debug)]
struct Journal {
    machine: Arc<Machine>,
    key: (String, SessionId),
    /// Exists as long as the process.
    _process: Arc<()>,
}

impl Memory {
    /// Sets whether reservations fail from now on.
    pub fn set_full(&self, is_full: bool) {
        self.0.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Sets whether appends fail from now on.
    pub fn set_broken(&self, is_broken: bool) {
        self.0.is_broken.store(is_broken, Ordering::Relaxed);
    }

    /// Sets whether removals fail from now on.
    pub fn set_keeps_all(&self, keeps_all: bool) {
        self.0.keeps_all.store(keeps_all, Ordering::Relaxed);
    }

    /// Replaces the bytes of the journal of a session.
    pub fn set_bytes(&self, of: SessionId, bytes: &[u8]) {
        let mut files = host::lock(&self.0.files);
        let found = files.iter_mut().filter(|((_, session), _)| *session == of);
        found.for_each(|(_, file)| file.bytes = bytes.to_owned());
    }

    /// The journals and their bytes.
    pub fn all(&self) -> Vec<(SessionId, Vec<u8>)> {
        host::lock(&self.0.files).iter().map(|((_, session), file)| (*session, file.bytes.clone())).collect()
    }
}

impl Memory {
    /// The journals that were set aside, and their bytes.
    pub fn aside(&self) -> Vec<(SessionId, Vec<u8>)> {
        host::lock(&self.0.aside).clone()
    }

    fn open(&self, key: (String, SessionId)) -> (Box<dyn Storage>, Weak<()>) {
        let process = Arc::new(());
        let weak = Arc::downgrade(&process);
        (Box::new(Journal { machine: Arc::clone(&self.0), key, _process: process }), weak)
    }
}

impl Journals for Memory {
    fn create(&self, volume: &str, session: SessionId) -> io::Result<Box<dyn Storage>> {
        let key = (volume.to_owned(), session);
        let (storage, process) = self.open(key.clone());
        host::lock(&self.0.files).insert(key, File { bytes: Vec::new(), process });
        Ok(storage)
    }

    fn abandoned(&self, volume: &str) -> io::Result<Vec<io::Result<Abandoned>>> {
        let mut files = host::lock(&self.0.files);
        let abandoned =
            files.iter_mut().filter(|((of, _), file)| of == volume && file.process.strong_count() == 0);
        Ok(abandoned
            .map(|(key, file)| {
                let (storage, process) = self.open(key.clone());
                file.process = process;
                Ok(Abandoned { session: key.1, bytes: file.bytes.clone(), storage })
            })
            .collect())
    }
}

impl Journal {
    fn change(&self, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut files = host::lock(&self.machine.files);
        files.get_mut(&self.key).map(|file| change(&mut file.bytes)).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Storage for Journal {
    fn place(&self) -> String {
        format!("{}-{}", self.key.0, self.key.1)
    }

    fn reserve(&mut self, _: u64) -> io::Result<()> {
        match self.machine.is_full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.machine.is_broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("broken"));
        }
        self.change(|file| file.extend(bytes))
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.change(|file| file.truncate(len as usize))
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.change(|file| *file = bytes.to_owned())
    }

    fn remove(&mut self) -> io::Result<()> {
        if self.machine.keeps_all.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        host::lock(&self.machine.files).remove(&self.key);
        Ok(())
    }

    fn set_aside(&mut self, suffix: &str) -> io::Result<String> {
        let file = host::lock(&self.machine.files).remove(&self.key);
        host::lock(&self.machine.aside).extend(file.map(|file| (self.key.1, file.bytes)));
        Ok(format!("{}.{suffix}", self.place()))
    }
}
