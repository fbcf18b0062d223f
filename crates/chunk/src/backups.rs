//! Backups of a volume's metadata, which are stored beside its blocks.
//!
//! ```text
//! backups/<number>/<part>  the parts, from 0 on: each has the form of a packed block (`packed.rs`)
//! backups/<number>.json    the manifest, written last: a backup without it is not complete
//! ```
//!
//! The number is the time at which the backup began, in nanoseconds since 1970. The header of a part names
//! the backup and the part, so a reader notices if another part was put in its place. It also notices a block
//! in place of a part, because the header has the number with a bit that no slice number has. The parts of an
//! encrypted volume are encrypted as its blocks are. The manifest, a JSON object, is not encrypted: together
//! with the volume's secret, it is enough to decrypt the parts if the database is lost.

use std::collections::HashSet;

use bytes::Bytes;
use types::{Errno, SliceId};

use crate::ChunkError;
use crate::backend::StoreError;
use crate::block::BlockName;
use crate::direct::{BACKUPS, list};
use crate::error::{no_memory, store_error};
use crate::format::{BlockFault, PAGE_BYTES};
use crate::packed::{Header, max_object_len, pack};
use crate::store::BlockStore;

/// The length of each part but the last, in bytes.
pub const BACKUP_PART_BYTES: u32 = types::BLOCK_BYTES;

/// At most this many bytes of a manifest are read.
const MAX_MANIFEST_BYTES: usize = 64 << 10;

/// Set in the number of a backup in the headers of its parts, but not in [`BackupId`]. No slice number has
/// this bit, because databases store slice numbers as signed numbers.
const BACKUP_BIT: u64 = 1 << 63;

/// A backup in the store: the time at which it began, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(pub u64);

/// A backup that was found in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBackup {
    pub id: BackupId,
    pub is_complete: bool,
}

impl BackupId {
    fn part(self, part: u32, len: u32) -> BlockName {
        BlockName { id: SliceId(self.0 | BACKUP_BIT), block: part, len }
    }

    fn directory(self) -> String {
        format!("{BACKUPS}{}/", self.0)
    }

    fn part_key(self, part: u32) -> String {
        format!("{}{part}", self.directory())
    }

    fn manifest_key(self) -> String {
        format!("{BACKUPS}{}{MANIFEST}", self.0)
    }
}

const MANIFEST: &str = ".json";

impl BlockStore {
    /// Stores a part of a backup, at most [`BACKUP_PART_BYTES`]. It survives a power failure once this
    /// returns.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if it cannot be encrypted or stored.
    pub fn put_backup_part(&self, backup: BackupId, part: u32, data: &[u8]) -> Result<(), ChunkError> {
        let key = backup.part_key(part);
        let fail = |errno: Errno| store_error("encrypt", &key, StoreError::Other(errno, errno.to_string()));
        let object = pack(backup.part(part, data.len() as u32), data, &self.inner.codec).map_err(fail)?;
        self.put_durably(&key, object.into())
    }

    /// Reads a part of a backup. The part has `len` bytes.
    ///
    /// # Errors
    /// [`ChunkError::Backup`] if the part is missing or damaged, or was encrypted with another key;
    /// [`ChunkError::Store`] if the store fails.
    pub fn backup_part(&self, backup: BackupId, part: u32, len: u32) -> Result<Bytes, ChunkError> {
        let key = backup.part_key(part);
        let damaged = |what: String| ChunkError::Backup { key: key.clone(), what };
        let object = match self.inner.backend.get_whole(&key, max_object_len(len)) {
            Ok(object) => object,
            Err(StoreError::NotFound) => return Err(damaged("it is missing".to_owned())),
            Err(error) => return Err(store_error("read", &key, error)),
        };
        let fault = |fault| match fault {
            BlockFault::NoMemory => no_memory(&key),
            fault => damaged(fault.to_string()),
        };
        let header = Header::parse(&object, backup.part(part, len)).map_err(fault)?;
        if object.len() != header.object_len() {
            return Err(damaged(format!("it has {} of {} bytes", object.len(), header.object_len())));
        }
        let (offset, count) = header.range(0, len.div_ceil(PAGE_BYTES));
        let stored = object.get(offset as usize..offset as usize + count).unwrap_or_default();
        header.unpack(&self.inner.codec, 0, stored).map(Bytes::from).map_err(fault)
    }

    /// Checks that the first `parts` parts of a backup are in the store.
    ///
    /// # Errors
    /// [`ChunkError::Backup`] if one is not; [`ChunkError::Store`] if the store cannot be listed.
    pub fn check_backup_parts(&self, backup: BackupId, parts: u32) -> Result<(), ChunkError> {
        let names: HashSet<String> = list(&*self.inner.backend, &backup.directory())?.into_iter().collect();
        match (0..parts).find(|part| !names.contains(&part.to_string())) {
            None => Ok(()),
            Some(part) => {
                let what = "another mount removed it before the backup was complete: check the clocks of both machines";
                Err(ChunkError::Backup { key: backup.part_key(part), what: what.to_owned() })
            }
        }
    }

    /// Stores the manifest of a backup, which completes it. All its parts must already be stored.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the manifest cannot be stored.
    pub fn finish_backup(&self, backup: BackupId, manifest: String) -> Result<(), ChunkError> {
        self.put_durably(&backup.manifest_key(), manifest.into())
    }

    /// The manifest of a backup; `None` if the backup is not complete, or does not exist.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store fails.
    pub fn backup_manifest(&self, backup: BackupId) -> Result<Option<Bytes>, ChunkError> {
        let key = backup.manifest_key();
        match self.inner.backend.get_whole(&key, MAX_MANIFEST_BYTES) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(store_error("read", &key, error)),
        }
    }

    /// All backups in the store, the newest first.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot be listed.
    pub fn backups(&self) -> Result<Vec<StoredBackup>, ChunkError> {
        let names = list(&*self.inner.backend, BACKUPS)?;
        let ids = |suffix: &str| -> Vec<BackupId> {
            let numbers = names.iter().filter_map(|name| name.strip_suffix(suffix)?.parse().ok());
            numbers.map(BackupId).collect()
        };
        let complete = ids(MANIFEST);
        let mut all = [ids("/"), complete.clone()].concat();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        Ok(all.into_iter().map(|id| StoredBackup { id, is_complete: complete.contains(&id) }).collect())
    }

    /// Removes a backup: first its manifest, then its parts. If this fails, the backup may be incomplete. The
    /// call may be repeated.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if a request to the store fails.
    pub fn remove_backup(&self, backup: BackupId) -> Result<(), ChunkError> {
        let backend = &*self.inner.backend;
        self.inner.delete_object(backend, &backup.manifest_key())?;
        let directory = backup.directory();
        for name in list(backend, &directory)? {
            self.inner.delete_object(backend, &format!("{directory}{name}"))?;
        }
        backend.remove_directory(&directory).map_err(|error| store_error("remove", &directory, error))
    }

    fn put_durably(&self, key: &str, data: Bytes) -> Result<(), ChunkError> {
        let backend = &self.inner.backend;
        let put = backend.put(key, data, Vec::new()).and_then(|()| backend.sync(&[key.to_owned()]));
        put.map_err(|error| store_error("write", key, error))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Cipher, EncryptionSettings, FILE, Secret, StorageConfig, StoreOptions};

    fn store(dir: &std::path::Path, key: Option<char>) -> std::sync::Arc<BlockStore> {
        let config = StorageConfig { storage: FILE.into(), bucket: dir.to_str().unwrap().into() };
        let encryption = key.map(|digit| {
            let secret = Secret::key_from_text(&digit.to_string().repeat(64)).unwrap();
            EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap().1
        });
        BlockStore::open_with(&config, StoreOptions { create: true, encryption, ..StoreOptions::default() })
            .unwrap()
    }

    #[test]
    fn backups_are_listed_read_and_removed() {
        for key in [None, Some('7')] {
            let dir = tempfile::tempdir().unwrap();
            let store = store(dir.path(), key);
            let data = b"secret name ".repeat(20_000);
            for id in [5, 9, 7].map(BackupId) {
                store.put_backup_part(id, 0, &data).unwrap();
                store.put_backup_part(id, 1, b"end").unwrap();
            }
            store.finish_backup(BackupId(7), "{}".to_owned()).unwrap();
            let found = store.backups().unwrap();
            let seen: Vec<_> = found.iter().map(|found| (found.id.0, found.is_complete)).collect();
            assert_eq!(seen, [(9, false), (7, true), (5, false)]);
            assert_eq!(store.backup_part(BackupId(7), 0, data.len() as u32).unwrap(), data);
            assert_eq!(store.backup_part(BackupId(7), 1, 3).unwrap(), &b"end"[..]);
            assert_eq!(store.backup_manifest(BackupId(7)).unwrap().unwrap(), &b"{}"[..]);
            assert_eq!(store.backup_manifest(BackupId(9)).unwrap(), None);
            let stored = fs::read(dir.path().join("backups/7/0")).unwrap();
            assert_eq!(stored.windows(6).any(|bytes| bytes == b"secret"), key.is_none());
            // The parts of backups are not listed as blocks of the volume.
            store.for_each_block(&mut |block| panic!("{block:?}")).unwrap();
            assert!(!store.direct().is_empty().unwrap());
            store.remove_backup(BackupId(7)).unwrap();
            assert_eq!(store.backups().unwrap().len(), 2);
            assert!(!dir.path().join("backups/7").exists());
            store.remove_blocks::<ChunkError>(&mut |_| Ok(())).unwrap();
            assert!(store.direct().is_empty().unwrap() && !dir.path().join("backups").exists());
        }
    }

    #[test]
    fn parts_that_are_changed_exchanged_or_of_another_key_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = store(dir.path(), Some('7'));
        for (id, part) in [(1, 0), (1, 1), (2, 0)] {
            first.put_backup_part(BackupId(id), part, &[part as u8; 70_000]).unwrap();
        }
        let refused = |store: &BlockStore, says: &str| {
            let error = store.backup_part(BackupId(1), 0, 70_000).unwrap_err();
            assert!(matches!(error, ChunkError::Backup { .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        };
        refused(&store(dir.path(), None), "its encryption is aes-256-gcm, the volume's is none");
        refused(&store(dir.path(), Some('8')), "not encrypted for this position");
        let at = dir.path().join("backups/1/0");
        let whole = fs::read(&at).unwrap();
        for other in ["backups/1/1", "backups/2/0"] {
            fs::copy(dir.path().join(other), &at).unwrap();
            refused(&first, "it is block");
        }
        for change in [0, 50, 70_000] {
            let mut changed = whole.clone();
            changed[change] ^= 1;
            fs::write(&at, &changed).unwrap();
            refused(&first, "");
        }
        fs::write(&at, &whole[..whole.len() - 1]).unwrap();
        refused(&first, "it has");
        fs::remove_file(&at).unwrap();
        refused(&first, "it is missing");
        fs::write(&at, &whole).unwrap();
        first.backup_part(BackupId(1), 0, 70_000).unwrap();
    }
}
