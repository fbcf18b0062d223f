//! A store that injects faults, for tests.
//!
//! [`Faulty`] is a wrapper around a store, so the store itself has no code for faults. The faults are drawn
//! from a seed: the same calls in the same order fail in the same way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use types::Errno;

use crate::backend::{Backend, StoreError};

/// The kinds of calls to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCall {
    Put,
    Get,
    Delete,
    List,
    Sync,
}

/// The faults that can be injected into a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this errno and has no effect.
    Fail(Errno),
    /// The call takes effect, but fails with this errno.
    DoneThenFail(Errno),
    /// The call takes this much longer.
    Slow(Duration),
    /// The result lacks its end: bytes of an object, or names of a list.
    Short,
    /// One bit of the result is flipped. For a list, the same as [`Fault::Short`].
    Flip,
    /// An existing object is reported as absent.
    Absent,
}

/// The faults to inject, and how often. Shared with the store, so that a test can change them at any time.
#[derive(Debug)]
pub struct Faults(Mutex<State>);

#[derive(Debug)]
struct State {
    rules: Vec<(StoreCall, Fault, u32)>,
    random: u64,
    injected: u64,
}

impl Faults {
    /// Creates an empty set of faults.
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Faults(Mutex::new(State { rules: Vec::new(), random: seed, injected: 0 })))
    }

    /// From now on, injects `fault` into `per_mille` of a thousand calls of this kind, unless an earlier rule
    /// injects a fault into the call.
    pub fn add(&self, call: StoreCall, fault: Fault, per_mille: u32) {
        self.lock().rules.push((call, fault, per_mille));
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.lock().rules.clear();
    }

    /// The number of faults injected so far.
    pub fn injected(&self) -> u64 {
        self.lock().injected
    }

    fn draw(&self, call: StoreCall) -> Option<Fault> {
        let mut state = self.lock();
        let mut drawn = None;
        for index in 0..state.rules.len() {
            let (kind, fault, per_mille) = state.rules[index];
            if kind == call && state.next(1000) < u64::from(per_mille) {
                drawn = Some(fault);
                break;
            }
        }
        state.injected += u64::from(drawn.is_some());
        drawn
    }

    fn number(&self, below: usize) -> usize {
        self.lock().next(below as u64) as usize
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A number below `below`, by SplitMix64; 0 if `below` is 0.
    fn next(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)).checked_rem(below).unwrap_or(0)
    }
}

#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Box<dyn Backend>,
    faults: Arc<Faults>,
}

impl Faulty {
    pub(crate) fn new(inner: Box<dyn Backend>, faults: Arc<Faults>) -> Self {
        Faulty { inner, faults }
    }

    /// Runs the call, and injects a fault before or after it. A fault that changes the result is returned for
    /// the caller to apply.
    fn call<T>(
        &self,
        call: StoreCall,
        make: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<(T, Option<Fault>), StoreError> {
        let failed = |errno| StoreError::Other(errno, "injected fault".to_owned());
        match self.faults.draw(call) {
            Some(Fault::Fail(errno)) => Err(failed(errno)),
            Some(Fault::Absent) => Err(StoreError::NotFound),
            Some(Fault::DoneThenFail(errno)) => make().and(Err(failed(errno))),
            Some(Fault::Slow(time)) => {
                host::sleep(time);
                make().map(|answer| (answer, None))
            }
            spoil => make().map(|answer| (answer, spoil)),
        }
    }

    fn spoil(&self, (bytes, fault): (Bytes, Option<Fault>)) -> Bytes {
        match fault {
            Some(Fault::Short) => bytes.slice(..self.faults.number(bytes.len())),
            Some(Fault::Flip) if !bytes.is_empty() => {
                let mut bytes = bytes.to_vec();
                let at = self.faults.number(bytes.len());
                bytes[at] ^= 1 << self.faults.number(8);
                bytes.into()
            }
            _ => bytes,
        }
    }
}

impl Backend for Faulty {
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn device(&self) -> Option<u64> {
        self.inner.device()
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        self.call(StoreCall::Put, || self.inner.put(key, data, trailer)).map(|_| ())
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        self.call(StoreCall::Get, || self.inner.get(key, offset, len)).map(|answer| self.spoil(answer))
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        self.call(StoreCall::Get, || self.inner.get_whole(key, at_most)).map(|answer| self.spoil(answer))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.call(StoreCall::Delete, || self.inner.delete(key)).map(|_| ())
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        match self.call(StoreCall::List, || self.inner.list(prefix)) {
            Ok((mut names, Some(_))) => {
                names.truncate(self.faults.number(names.len()));
                Ok(names)
            }
            Ok((names, None)) => Ok(names),
            Err(StoreError::NotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        self.call(StoreCall::Get, || self.inner.modified(key)).map(|(modified, _)| modified)
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare()
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        self.call(StoreCall::Sync, || self.inner.sync(keys)).map(|_| ())
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.call(StoreCall::Sync, || self.inner.sync_all()).map(|_| ())
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), StoreError> {
        self.inner.remove_directory(prefix)
    }

    fn remove_root(&self) -> Result<(), StoreError> {
        self.inner.remove_root()
    }
}
