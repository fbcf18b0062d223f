//! A volume in memory, for tests.

use std::sync::Arc;
use std::time::Duration;

use acl::credential::Credentials;
use chunk::{BlockStore, DEFAULT_CACHE_BYTES, Faults, StorageConfig, StoreOptions};
use meta::ops::AtimeMode;
use meta::{AclKind, Counting, Engine, Faulty, MemEngine, Meta, Odds, Record, Session, Volume, Want};
use types::{Caps, Cred, Ino, Mode, SessionId, Time};

use crate::{Caller, Identity, MakeRequest, SessionInfo, SessionTimes, Special, Vfs, VfsOptions};

pub(crate) fn root() -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::root(), &[]);
    Caller::known(Identity { credential, caps: Caps::ALL })
}

/// A user in the group of the same number, without capabilities.
pub(crate) fn user(uid: u32) -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::new(uid, uid, &[], Caps::NONE), &[]);
    Caller::known(Identity { credential, caps: Caps::NONE })
}

/// Mounted by nobody else, and what counts its engine's requests.
pub(crate) fn volume(atime: AtimeMode) -> (Vfs, Arc<Counting<MemEngine>>) {
    volume_with_cache(atime, DEFAULT_CACHE_BYTES)
}

/// With a cache of blocks of so many bytes.
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

/// On an engine whose requests can fail; it is armed, and nothing fails until its script says so.
pub(crate) fn unreliable_volume(options: VfsOptions) -> (Vfs, Arc<Faulty<MemEngine>>) {
    let engine = Arc::new(Faulty::new(MemEngine::default(), 1, Odds::default()));
    let vfs = mount_new(engine.clone(), options, DEFAULT_CACHE_BYTES);
    engine.arm(true);
    (vfs, engine)
}

fn mount_new(engine: Arc<dyn Engine>, options: VfsOptions, cache_bytes: u64) -> Vfs {
    format(&*engine);
    let meta = Meta::open(engine, 100_000).unwrap();
    meta.set_alone(true);
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    let store = BlockStore::open(&config, cache_bytes).unwrap();
    Vfs::new(Arc::new(meta), store, options)
}

/// A volume on an engine, to be mounted as often as a test likes.
pub(crate) fn format(engine: &dyn Engine) {
    let volume = Volume {
        name: "v".into(),
        uuid: "u".into(),
        storage: "memory".into(),
        bucket: String::new(),
        compression: "none".into(),
        encryption: String::new(),
        acl: AclKind::Posix,
        policy: Default::default(),
        inline_bytes: 4096,
        capacity_bytes: 0,
        max_inodes: 0,
        abe: false,
        store_marker: false,
        created: Time::now(),
    };
    volume.format(engine).unwrap();
}

/// One of several mounts of a volume. The kernel has looked at its root.
pub(crate) fn mount(engine: Arc<dyn Engine>) -> Arc<Vfs> {
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    let store = BlockStore::open(&config, DEFAULT_CACHE_BYTES).unwrap();
    let options = VfsOptions { atime: AtimeMode::Never, times: NO_WAIT, ..VfsOptions::default() };
    let vfs = Arc::new(Vfs::new(Arc::new(Meta::open(engine, 100_000).unwrap()), store, options));
    vfs.begin(&SessionInfo { host: "h".into(), pid: std::process::id(), mountpoint: "m".into() }).unwrap();
    vfs.getattr(Ino::ROOT).unwrap();
    vfs
}

/// A volume that several mounts share, and what goes wrong with its store.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Counting<MemEngine>>,
    pub(crate) faults: Arc<Faults>,
    store: Arc<BlockStore>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        format(&*engine);
        let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
        let faults = Faults::new(1);
        let options = StoreOptions { faults: Some(Arc::clone(&faults)), ..StoreOptions::default() };
        let store = BlockStore::open_with(&config, options).unwrap();
        Shared { engine, faults, store }
    }

    /// A mount whose session has begun. Calls do not wait for a new one if it is lost.
    pub(crate) fn mount(&self, times: SessionTimes) -> Arc<Vfs> {
        let meta = Meta::open(self.engine.clone(), 100_000).unwrap();
        meta.set_lifetime(Duration::ZERO);
        let options = VfsOptions { atime: AtimeMode::Never, times, ..VfsOptions::default() };
        let vfs = Arc::new(Vfs::new(Arc::new(meta), Arc::clone(&self.store), options));
        vfs.begin(&SessionInfo { host: "h".into(), pid: std::process::id(), mountpoint: "m".into() })
            .unwrap();
        // As the kernel does when it mounts.
        vfs.getattr(Ino::ROOT).unwrap();
        vfs
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Session> {
        match self.engine.read(&[Want::Session(id)]).unwrap().records.pop() {
            Some(Record::Session(_, found)) => found,
            other => panic!("{other:?}"),
        }
    }

    /// Removes the session of a mount, and all that it left.
    pub(crate) fn remove(&self, by: &Vfs, gone: &Vfs) {
        let session = self.session(gone.meta().session()).unwrap();
        assert!(by.meta().remove_session(session.id, session.heartbeat).unwrap());
        by.clean_leftovers().unwrap();
    }
}

pub(crate) const NO_WAIT: SessionTimes = SessionTimes {
    heartbeat: Duration::from_secs(3600),
    valid_for: Duration::from_secs(3600),
    remove_after: Duration::from_secs(3600),
    rejoin: Duration::ZERO,
};

/// Makes a file in the root and opens it.
pub(crate) fn make(vfs: &Vfs, name: &str) -> Ino {
    let (what, mode) = (Special::Regular, Mode::new(0o600));
    let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), what, mode, umask: 0 };
    vfs.create(&root(), request).unwrap().ino
}
