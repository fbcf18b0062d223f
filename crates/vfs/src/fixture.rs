//! A volume in memory, for tests.

use std::sync::Arc;

use acl::credential::Credentials;
use chunk::{BlockStore, DEFAULT_CACHE_BYTES, StorageConfig};
use meta::ops::AtimeMode;
use meta::{AclKind, Counting, MemEngine, Meta, Volume};
use types::{Caps, Cred, Ino, Mode, Time};

use crate::{Caller, Identity, MakeRequest, Special, Vfs, VfsOptions};

pub(crate) fn root() -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::root(), &[]);
    Caller::known(Identity { credential, caps: Caps::ALL })
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
        created: Time::now(),
    };
    volume.format(&*engine).unwrap();
    let meta = Meta::open(engine.clone(), 100_000).unwrap();
    meta.set_alone(true);
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    let store = BlockStore::open(&config, cache_bytes).unwrap();
    (Vfs::new(Arc::new(meta), store, options), engine)
}

/// Makes a file in the root and opens it.
pub(crate) fn make(vfs: &Vfs, name: &str) -> Ino {
    let (what, mode) = (Special::Regular, Mode::new(0o600));
    let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), what, mode, umask: 0 };
    vfs.create(&root(), request).unwrap().ino
}
