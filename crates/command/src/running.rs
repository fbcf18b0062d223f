//! Limits how many requests of one kind a mount serves at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A request that is being served. It is counted until it is dropped, even after a panic.
#[derive(Debug)]
pub(crate) struct Running(&'static AtomicUsize);

impl Running {
    /// Counts a request in `running`; `None` if `most` are being served already.
    pub(crate) fn begin(running: &'static AtomicUsize, most: usize) -> Option<Running> {
        let counted = Running(running);
        (running.fetch_add(1, Ordering::AcqRel) < most).then_some(counted)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use chunk::{BlockStore, StorageConfig, StoreOptions};
    use client::Meta;
    use meta::{Engine, EngineError, MemEngine, Outcome, Page, RecordKey, Scan, Snapshot, Txn, Volume};
    use vfs::{Vfs, VfsOptions};

    use crate::file_requests::{self, FileRequest};
    use crate::{clone, quotas};

    const WORKS: u8 = 0;
    const PANICS: u8 = 1;
    const BLOCKS: u8 = 2;
    /// The longest wait for an answer.
    const LONG: Duration = Duration::from_secs(20);

    /// An engine whose requests succeed, panic, or do not return, depending on `state`.
    #[derive(Debug, Default)]
    struct Broken {
        inner: MemEngine,
        state: AtomicU8,
    }

    impl Broken {
        fn check(&self) {
            let began = Instant::now();
            while self.state.load(Ordering::Relaxed) == BLOCKS && began.elapsed() < LONG {
                thread::sleep(Duration::from_millis(1));
            }
            assert_ne!(self.state.load(Ordering::Relaxed), PANICS, "on purpose");
        }
    }

    impl Engine for Broken {
        meta::pass_on! { (.inner) sync wipe }

        fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
            self.check();
            self.inner.read(keys)
        }

        fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
            self.check();
            self.inner.scan(scan)
        }

        fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
            self.check();
            self.inner.commit(txns)
        }
    }

    fn mount() -> (Arc<Broken>, Arc<Vfs>) {
        let engine = Arc::new(Broken::default());
        Volume::in_memory("vol").format(&*engine).unwrap();
        let config = StorageConfig { storage: chunk::MEMORY.into(), bucket: String::new() };
        let store = BlockStore::open_with(&config, StoreOptions::default()).unwrap();
        let meta = Arc::new(Meta::open(engine.clone(), 100).unwrap());
        (engine, Arc::new(Vfs::new(meta, store, VfsOptions::default())))
    }

    type Client = BufReader<UnixStream>;

    fn connect(start: impl FnOnce(UnixStream)) -> Client {
        let (client, stream) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        start(stream);
        BufReader::new(client)
    }

    /// The last line of an answer; empty if the mount has closed the connection without one.
    fn last_line(mut client: Client) -> String {
        let (mut last, began) = (String::new(), Instant::now());
        loop {
            assert!(began.elapsed() < LONG, "the answer does not end: {last:?}");
            let mut line = String::new();
            match client.read_line(&mut line) {
                Ok(1..) => last = line,
                Ok(0) => return last,
                Err(error) => panic!("the mount does not answer: {error}, after {last:?}"),
            }
        }
    }

    // The three tests use different counters, which belong to the process.

    #[test]
    fn copies_end_after_a_panic_and_are_refused_with_a_reason() {
        let (engine, vfs) = mount();
        let start = || connect(|stream| clone::start(stream, "2 2 1 61", &vfs).unwrap());
        engine.state.store(PANICS, Ordering::Relaxed);
        for _ in 0..10 {
            let line = last_line(start());
            assert!(line.contains("panicked"), "{line:?}");
        }
        // The last thread ends after its client has read the answer.
        thread::sleep(Duration::from_millis(200));
        engine.state.store(BLOCKS, Ordering::Relaxed);
        let mut busy: Vec<Client> = (0..8).map(|_| start()).collect();
        for client in &mut busy {
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            assert!(line.contains("clone"), "{line:?}");
        }
        let line = last_line(start());
        assert!(line.contains("8 copies"), "{line:?}");
        engine.state.store(WORKS, Ordering::Relaxed);
        busy.into_iter().for_each(|client| drop(last_line(client)));
    }

    #[test]
    fn requests_for_files_are_refused_with_a_reason() {
        let (_, vfs) = mount();
        let start = || connect(|stream| file_requests::start(stream, FileRequest::Cached, &vfs).unwrap());
        let mut clients: Vec<Client> = (0..64).map(|_| start()).collect();
        for client in &mut clients {
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            assert!(line.contains("ready"), "{line:?}");
        }
        let line = last_line(start());
        assert!(line.contains("64 connections"), "{line:?}");
    }

    #[test]
    fn panics_do_not_use_up_the_changes_of_quotas() {
        let (engine, vfs) = mount();
        engine.state.store(PANICS, Ordering::Relaxed);
        for _ in 0..10 {
            let change = r#"{"set": "user", "number": 7, "max_inodes": 5}"#;
            let line = last_line(connect(|stream| quotas::start(stream, change, &vfs).unwrap()));
            assert!(!line.contains("too many"), "{line:?}");
        }
    }
}
