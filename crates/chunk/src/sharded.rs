//! A store whose objects are spread over several buckets (see `shards.rs`).
//!
//! Each object is in the bucket that its key determines. An object that is in another bucket does not exist
//! for readers and listings, so that a listing shows exactly what a read finds.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use bytes::Bytes;
use host::Instant;
use metrics::{WaitTarget, wait_on};
use types::Errno;

use crate::backend::{Backend, Bucket, StoreError};
use crate::parallel::on_each;
use crate::shards::index_of;

/// The store with these buckets. The store with one bucket is that bucket.
pub(crate) fn join(mut shards: Vec<Shard>) -> Box<dyn Backend> {
    match shards.pop() {
        Some(only) if shards.is_empty() => only.store,
        last => Box::new(Sharded { shards: shards.into_iter().chain(last).collect() }),
    }
}

#[derive(Debug)]
struct Sharded {
    shards: Vec<Shard>,
}

/// A bucket whose errors name it.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) address: String,
    pub(crate) store: Box<dyn Backend>,
}

impl Sharded {
    fn of(&self, key: &str) -> &Shard {
        &self.shards[index_of(key, self.shards.len())]
    }

    fn on_each<T: Send>(
        &self,
        request: impl Fn(usize, &dyn Backend) -> Result<T, StoreError> + Sync,
    ) -> Result<Vec<T>, StoreError> {
        on_each(&self.buckets(), request).into_iter().collect()
    }
}

/// Calls `requests`, which may send requests from several threads. Its duration counts as one wait of this
/// thread.
fn wait<T>(call: &'static str, requests: impl FnOnce() -> T) -> T {
    wait_on(WaitTarget::Store(call), || {
        let began = Instant::now();
        (requests(), began.elapsed())
    })
}

impl Backend for Sharded {
    /// All buckets get the same part of new objects, and an object cannot go to another bucket. So the store
    /// is full as soon as one bucket is, and the bucket with the least room determines the sum. Buckets on
    /// one file system share its room.
    fn free_bytes(&self) -> Option<u64> {
        let mut disks: HashMap<u64, (u64, u64)> = HashMap::new();
        for Shard { store, .. } in &self.shards {
            let (_, buckets) = disks.entry(store.device()?).or_insert((store.free_bytes()?, 0));
            *buckets += 1;
        }
        let least = disks.values().map(|(free, buckets)| free / buckets).min()?;
        Some(least.saturating_mul(self.shards.len() as u64))
    }

    fn buckets(&self) -> Vec<Bucket<'_>> {
        self.shards.iter().map(|shard| Bucket { address: &shard.address, store: shard }).collect()
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        self.of(key).put(key, data, trailer)
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        self.of(key).get(key, offset, len)
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        self.of(key).get_whole(key, at_most)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.of(key).delete(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let list = |index, store: &dyn Backend| {
            let mut names = store.list(prefix)?;
            let is_here = |name: &str| index_of(&format!("{prefix}{name}"), self.shards.len()) == index;
            names.retain(|name| name.ends_with('/') || is_here(name));
            Ok(names)
        };
        let listed = wait("list", || self.on_each(list))?;
        // Several buckets can have the same directory.
        let names: BTreeSet<String> = listed.into_iter().flatten().collect();
        Ok(names.into_iter().collect())
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        self.of(key).modified(key)
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.on_each(|_, store| store.prepare()).map(drop)
    }

    fn is_volatile(&self) -> bool {
        self.shards.iter().any(Shard::is_volatile)
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        let mut keys_of = vec![Vec::new(); self.shards.len()];
        for key in keys {
            keys_of[index_of(key, self.shards.len())].push(key.clone());
        }
        // Only buckets that have keys get a request. A request to a single bucket runs on this thread.
        let (buckets, keys): (Vec<_>, Vec<_>) =
            self.buckets().into_iter().zip(keys_of).filter(|(_, keys)| !keys.is_empty()).unzip();
        let sync = |index: usize, store: &dyn Backend| store.sync(&keys[index]);
        wait("sync", || on_each(&buckets, sync).into_iter().collect())
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        wait("sync", || self.on_each(|_, store| store.sync_all())).map(drop)
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), StoreError> {
        self.on_each(|_, store| store.remove_directory(prefix)).map(drop)
    }

    fn remove_root(&self) -> Result<(), StoreError> {
        self.on_each(|_, store| store.remove_root()).map(drop)
    }
}

impl Shard {
    fn named<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        answer.map_err(|error| {
            let (errno, what) = match error {
                StoreError::NotFound => (Errno::ENOENT, "not found".to_owned()),
                StoreError::Other(errno, what) => (errno, what),
            };
            StoreError::Other(errno, format!("bucket {}: {what}", self.address))
        })
    }

    /// As [`Shard::named`], but the error for a missing object stays [`StoreError::NotFound`].
    fn found<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        match answer {
            Err(StoreError::NotFound) => answer,
            answer => self.named(answer),
        }
    }
}

impl Backend for Shard {
    fn free_bytes(&self) -> Option<u64> {
        self.store.free_bytes()
    }

    fn device(&self) -> Option<u64> {
        self.store.device()
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        self.named(self.store.put(key, data, trailer))
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        self.found(self.store.get(key, offset, len))
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        self.found(self.store.get_whole(key, at_most))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.named(self.store.delete(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.named(self.store.list(prefix))
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        self.named(self.store.modified(key))
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.named(self.store.prepare())
    }

    fn is_volatile(&self) -> bool {
        self.store.is_volatile()
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        self.named(self.store.sync(keys))
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.named(self.store.sync_all())
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), StoreError> {
        self.named(self.store.remove_directory(prefix))
    }

    fn remove_root(&self) -> Result<(), StoreError> {
        self.named(self.store.remove_root())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use tempfile::TempDir;
    use types::SliceId;

    use super::*;
    use crate::kinds::FILE;
    use crate::services::StorageConfig;
    use crate::store::{BlockStore, StoreOptions};
    use crate::walk::StoredBlock;
    use crate::{ChunkError, bucket_of, object_key};

    /// The settings of a store with three directories as its buckets, and the paths of these directories.
    fn buckets(dir: &TempDir) -> (StorageConfig, Vec<PathBuf>) {
        let bucket = format!("shards:{}/d{{0..2}}", dir.path().display());
        let config = StorageConfig { storage: FILE.to_owned(), bucket };
        let paths = config.buckets().unwrap().into_iter().map(PathBuf::from).collect();
        (config, paths)
    }

    fn created(config: &StorageConfig) -> Arc<BlockStore> {
        BlockStore::open(config, 0).unwrap()
    }

    fn opened(config: &StorageConfig) -> Result<Arc<BlockStore>, ChunkError> {
        BlockStore::open_with(config, StoreOptions { cache_bytes: 0, ..StoreOptions::default() })
    }

    fn blocks(store: &BlockStore) -> Vec<StoredBlock> {
        let mut found = Vec::new();
        let mut visit = |block| {
            found.push(block);
            Ok(())
        };
        store.for_each_block(&mut visit).unwrap();
        found.sort_by_key(|block| block.id);
        found
    }

    fn put(store: &BlockStore, id: u64) -> String {
        store.put_slice(SliceId(id), &Bytes::from(id.to_le_bytes().to_vec())).unwrap();
        object_key(SliceId(id), 0, 8)
    }

    fn get(store: &BlockStore, id: u64) -> Result<u64, ChunkError> {
        let mut bytes = [0; 8];
        store.read(SliceId(id), 8, 0, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    }

    /// The path of an object that is in the right bucket, and its path in the next bucket.
    fn right_and_wrong(paths: &[PathBuf], key: &str) -> [PathBuf; 2] {
        let right = index_of(key, paths.len());
        [right, right + 1].map(|at| paths[at % paths.len()].join(key))
    }

    fn misplace(paths: &[PathBuf], key: &str) -> PathBuf {
        let [right, wrong] = right_and_wrong(paths, key);
        fs::create_dir_all(wrong.parent().unwrap()).unwrap();
        fs::rename(right, &wrong).unwrap();
        wrong
    }

    #[test]
    fn objects_are_stored_read_and_listed_where_their_keys_say() {
        let dir = TempDir::new().unwrap();
        let (config, paths) = buckets(&dir);
        let store = created(&config);
        store.check().unwrap();
        let texts: Vec<String> = config.buckets().unwrap();
        let ids = || (1..=60).chain(5_000_000..5_000_003);
        for id in ids() {
            let key = put(&store, id);
            assert!(Path::new(bucket_of(&texts, &key).unwrap()).join(&key).is_file(), "{key}");
        }
        for path in &paths {
            assert!(fs::read_dir(path.join("chunks/0/0")).unwrap().count() > 5, "{}", path.display());
        }
        store.make_durable(&ids().map(SliceId).collect::<Vec<_>>()).unwrap();
        store.make_durable(&[SliceId(99)]).unwrap();
        let lists = store.meters().list.times.count();
        let listed = blocks(&store);
        assert!(listed.iter().map(|block| block.id.0).eq(ids()), "{listed:?}");
        // The directories are chunks, and two below it, each with one below it, in three buckets.
        assert_eq!(store.meters().list.times.count() - lists, 5 * 3);
        assert!(listed.iter().all(|block| store.modified(block).unwrap().is_some()));
        let other = opened(&config).unwrap();
        assert!(ids().all(|id| get(&other, id).unwrap() == id));
        other.delete_slice(SliceId(7), 8).unwrap();
        assert!(matches!(get(&other, 7), Err(ChunkError::Missing { .. })));
        assert_eq!(blocks(&store).len(), 62);
    }

    /// Otherwise, a comparison of two stores would find an object that no read finds.
    #[test]
    fn object_in_another_bucket_is_neither_read_nor_listed_but_removed_with_the_volume() {
        let dir = TempDir::new().unwrap();
        let (config, paths) = buckets(&dir);
        let store = created(&config);
        let wrong = misplace(&paths, &put(&store, 1));
        assert!(matches!(get(&store, 1), Err(ChunkError::Missing { .. })));
        assert_eq!(blocks(&store), []);
        // Because of this object, the store does not count as empty, so no volume can be created there.
        assert!(!store.direct().is_empty().unwrap());
        put(&store, 2);
        store.remove_blocks::<ChunkError>(&mut |_| Ok(())).unwrap();
        assert!(!wrong.exists() && store.direct().is_empty().unwrap());
        store.put_markers(&|index, count| format!("{index} of {count}")).unwrap();
        assert_eq!(fs::read_to_string(paths[2].join("limen-volume")).unwrap(), "2 of 3");
        let markers = store.direct().markers().unwrap();
        let texts = ["0 of 3", "1 of 3", "2 of 3"].map(|text| Some(text.as_bytes().to_vec()));
        assert!(markers.iter().map(|marker| &marker.text).eq(&texts), "{markers:?}");
        assert!(markers.iter().map(|marker| Path::new(&marker.address)).eq(&paths), "{markers:?}");
        store.remove_markers().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn errors_name_the_bucket() {
        let dir = TempDir::new().unwrap();
        let (config, paths) = buckets(&dir);
        let store = created(&config);
        let key = put(&store, 1);
        let bad = &paths[index_of(&key, 3)];
        fs::rename(bad, dir.path().join("kept")).unwrap();
        let named = |error: ChunkError| {
            assert!(error.to_string().contains(&format!("bucket {}: ", bad.display())), "{error}");
        };
        named(store.put_slice(SliceId(1), &Bytes::from_static(b"8 bytes.")).unwrap_err());
        named(store.check().unwrap_err());
        assert!(matches!(get(&store, 1), Err(ChunkError::Missing { .. })));
        fs::write(bad, "").unwrap();
        named(get(&store, 1).unwrap_err());
        named(store.for_each_block(&mut |_| Ok(())).unwrap_err());
        let error = opened(&config).unwrap_err().to_string();
        assert!(error.contains(bad.to_str().unwrap()) && error.contains("not a directory"), "{error}");
    }

    #[test]
    fn buckets_at_the_same_place_are_refused() {
        let dir = TempDir::new().unwrap();
        let (config, paths) = buckets(&dir);
        created(&config);
        fs::remove_dir_all(&paths[1]).unwrap();
        std::os::unix::fs::symlink("d2", &paths[1]).unwrap();
        let error = opened(&config).unwrap().check().unwrap_err().to_string();
        let [_, one, two] = [0, 1, 2].map(|at| paths[at].display());
        assert_eq!(error, format!("the buckets {one} and {two} are the same place"));
        assert!(paths.iter().all(|path| fs::read_dir(path.join("tmp")).unwrap().count() == 0));
    }

    #[derive(Debug)]
    struct Disk {
        device: u64,
        free: u64,
    }

    impl Backend for Disk {
        fn free_bytes(&self) -> Option<u64> {
            Some(self.free)
        }

        fn device(&self) -> Option<u64> {
            Some(self.device)
        }

        fn put(&self, _: &str, _: Bytes, _: Vec<u8>) -> Result<(), StoreError> {
            unreachable!()
        }

        fn get(&self, _: &str, _: u64, _: usize) -> Result<Bytes, StoreError> {
            unreachable!()
        }

        fn get_whole(&self, _: &str, _: usize) -> Result<Bytes, StoreError> {
            unreachable!()
        }

        fn delete(&self, _: &str) -> Result<(), StoreError> {
            unreachable!()
        }

        fn list(&self, _: &str) -> Result<Vec<String>, StoreError> {
            unreachable!()
        }

        fn modified(&self, _: &str) -> Result<Option<SystemTime>, StoreError> {
            unreachable!()
        }
    }

    #[test]
    fn bucket_with_the_least_room_limits_the_free_space() {
        let free = |disks: &[(u64, u64)]| {
            let disk = |(device, free): &(u64, u64)| Shard {
                address: String::new(),
                store: Box::new(Disk { device: *device, free: *free }),
            };
            join(disks.iter().map(disk).collect()).free_bytes()
        };
        assert_eq!(free(&[(1, 100)]), Some(100));
        assert_eq!(free(&[(1, 100), (2, 30), (3, 500)]), Some(90));
        assert_eq!(free(&[(1, 90), (1, 90), (1, 90)]), Some(90), "one file system");
        assert_eq!(free(&[(1, 100), (1, 100), (2, 40)]), Some(120));
    }
}
