//! A volume in memory, for tests.

use std::sync::Arc;
use std::time::Duration;

use acl::credential::Credentials;
use chunk::{BlockStore, DEFAULT_CACHE_BYTES, Faults, StorageConfig, StoreOptions, WritebackOptions};
use client::Meta;
use meta::{Counting, Engine, MemEngine, Record, RecordKey, Session, Volume};
use ops::AtimeMode;
use suite::{FaultRates, Faulty};
use tempfile::TempDir;
use types::{Caps, Cred, Ino, Mode, SessionId};

use crate::{Caller, Identity, MakeKind, MakeRequest, SessionInfo, SessionTimes, Vfs, VfsOptions};

pub(crate) fn root() -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::root(), &[]);
    Caller::known(Identity { credential, caps: Caps::ALL })
}

/// A user in the group of the same number, without capabilities.
pub(crate) fn user(uid: u32) -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::new(uid, uid, &[], Caps::NONE), &[]);
    Caller::known(Identity { credential, caps: Caps::NONE })
}

/// A volume with one mount, and the engine that counts its requests.
pub(crate) fn volume(atime: AtimeMode) -> (Vfs, Arc<Counting<MemEngine>>) {
    volume_with_cache(atime, DEFAULT_CACHE_BYTES)
}

/// As [`volume`], with a block cache of this size.
pub(crate) fn volume_with_cache(atime: AtimeMode, cache_bytes: u64) -> (Vfs, Arc<Counting<MemEngine>>) {
    make_volume(VfsOptions { atime, ..VfsOptions::default() }, cache_bytes)
}

pub(crate) fn volume_with(options: VfsOptions) -> (Vfs, Arc<Counting<MemEngine>>) {
    make_volume(options, DEFAULT_CACHE_BYTES)
}

fn make_volume(options: VfsOptions, cache_bytes: u64) -> (Vfs, Arc<Counting<MemEngine>>) {
    let engine = Arc::new(Counting::new(MemEngine::default()));
    (mount_new(engine.clone(), options, cache_bytes), engine)
}

/// A volume on an engine whose requests can fail. The engine is armed, and nothing fails until its script
/// says so.
pub(crate) fn unreliable_volume(options: VfsOptions) -> (Vfs, Arc<Faulty<MemEngine>>) {
    let engine = Arc::new(Faulty::new(MemEngine::default(), 1, FaultRates::default()));
    let vfs = mount_new(engine.clone(), options, DEFAULT_CACHE_BYTES);
    engine.arm(true);
    (vfs, engine)
}

fn mount_new(engine: Arc<dyn Engine>, options: VfsOptions, cache_bytes: u64) -> Vfs {
    format(&*engine);
    let meta = Meta::open(engine, 100_000).unwrap();
    meta.set_exclusive(true);
    let store = BlockStore::open(&in_memory(), cache_bytes).unwrap();
    Vfs::new(Arc::new(meta), store, options)
}

/// A volume that one mount has exclusively, with objects in a directory, and the faults of its store.
pub(crate) fn volume_on_files() -> (Vfs, Arc<Faults>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let (vfs, faults) = volume_in(&directory, StoreOptions::default());
    (vfs, faults, directory)
}

/// As [`volume_on_files`], with write-back. The second directory is that of the staged blocks.
pub(crate) fn volume_with_writeback() -> (Vfs, Arc<Faults>, [TempDir; 2]) {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let writeback = WritebackOptions {
        directory: directories[1].path().to_owned(),
        volume: "v".to_owned(),
        max_bytes: 1 << 30,
        min_free_bytes: 0,
    };
    let options = StoreOptions { writeback: Some(writeback), ..StoreOptions::default() };
    let (vfs, faults) = volume_in(&directories[0], options);
    vfs.base.store.begin_uploads(None).unwrap();
    (vfs, faults, directories)
}

fn volume_in(directory: &TempDir, options: StoreOptions) -> (Vfs, Arc<Faults>) {
    let faults = Faults::new(1);
    let bucket = directory.path().to_str().unwrap().to_owned();
    let options = StoreOptions { create: true, faults: Some(Arc::clone(&faults)), ..options };
    let config = StorageConfig { storage: chunk::FILE.to_owned(), bucket };
    let store = BlockStore::open_with(&config, options).unwrap();
    let engine = Arc::new(MemEngine::default());
    format(&*engine);
    let meta = Meta::open(engine, 1000).unwrap();
    meta.set_exclusive(true);
    (Vfs::new(Arc::new(meta), store, VfsOptions::default()), faults)
}

/// Creates a volume on an engine; a test can mount it several times.
pub(crate) fn format(engine: &dyn Engine) {
    Volume::in_memory("v").format(engine).unwrap();
}

/// Adds a mount of a volume.
pub(crate) fn mount(engine: Arc<dyn Engine>) -> Arc<Vfs> {
    mount_with(engine, VfsOptions { times: NO_WAIT, ..VfsOptions::default() })
}

pub(crate) fn mount_with(engine: Arc<dyn Engine>, options: VfsOptions) -> Arc<Vfs> {
    let store = BlockStore::open(&in_memory(), DEFAULT_CACHE_BYTES).unwrap();
    begin(Meta::open(engine, 100_000).unwrap(), store, options)
}

/// A mount whose session has begun, and whose root was read, as the kernel does when it mounts.
fn begin(meta: Meta, store: Arc<BlockStore>, options: VfsOptions) -> Arc<Vfs> {
    let vfs = Arc::new(Vfs::new(Arc::new(meta), store, options));
    let info = SessionInfo { host: "h".into(), pid: std::process::id(), mountpoint: "m".into() };
    vfs.lifecycle.begin(info).unwrap();
    vfs.attributes.getattr(Ino::ROOT).unwrap();
    vfs
}

fn in_memory() -> StorageConfig {
    StorageConfig { storage: "memory".into(), bucket: String::new() }
}

/// A volume that several mounts share, and the faults of its store.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Counting<MemEngine>>,
    pub(crate) faults: Arc<Faults>,
    store: Arc<BlockStore>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        format(&*engine);
        let faults = Faults::new(1);
        let options = StoreOptions { faults: Some(Arc::clone(&faults)), ..StoreOptions::default() };
        let store = BlockStore::open_with(&in_memory(), options).unwrap();
        Shared { engine, faults, store }
    }

    /// A mount whose session has begun.
    pub(crate) fn mount(&self, times: SessionTimes) -> Arc<Vfs> {
        let meta = Meta::open(self.engine.clone(), 100_000).unwrap();
        meta.set_lifetime(Duration::ZERO);
        begin(meta, Arc::clone(&self.store), VfsOptions { times, ..VfsOptions::default() })
    }

    /// A process that can take a mount over: it has no session.
    pub(crate) fn next_process(&self) -> Arc<Vfs> {
        let meta = Meta::open(self.engine.clone(), 100_000).unwrap();
        let options = VfsOptions { times: NO_WAIT, ..VfsOptions::default() };
        Arc::new(Vfs::new(Arc::new(meta), Arc::clone(&self.store), options))
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Session> {
        match self.engine.read(&[RecordKey::Session(id)]).unwrap().records.pop() {
            Some(Record::Session(_, found)) => found,
            other => panic!("{other:?}"),
        }
    }

    /// Removes the session of a mount, and all state of that session.
    pub(crate) fn remove(&self, by: &Vfs, gone: &Vfs) {
        let session = self.session(gone.meta().session()).unwrap();
        assert!(by.meta().remove_session(session.id, session.heartbeat).unwrap());
        by.lifecycle.cleanup.clean_leftovers(true).unwrap();
    }
}

pub(crate) const NO_WAIT: SessionTimes = SessionTimes {
    heartbeat: Duration::from_secs(3600),
    valid_for: Duration::from_secs(3600),
    remove_after: Duration::from_secs(3600),
    rejoin: Duration::ZERO,
};

/// Creates a file in the root directory and opens it.
pub(crate) fn make(vfs: &Vfs, name: &str) -> Ino {
    let (kind, mode) = (MakeKind::Regular, Mode::new(0o600));
    let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), kind, mode, umask: 0 };
    let attr = vfs.names.create(&root(), request).unwrap();
    vfs.caches.looked_up(&attr);
    attr.ino
}
