//! The manifest of a backup, which the store holds and which can be read without the backup's key.

use std::io;

use chunk::{BackupId, BlockStore};
use dump::DumpError;
use meta::Volume;
use serde::{Deserialize, Serialize};

/// The manifest of a complete backup, which is stored as a JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the dump's format.
    pub(crate) version: u32,
    /// The UUID of the volume.
    pub volume: String,
    /// The name of the volume.
    pub name: String,
    pub inodes: u64,
    /// The length of the dump in bytes.
    pub bytes: u64,
    /// [`Volume::encryption`].
    pub encryption: String,
    /// [`Volume::loaded`] in the database that the backup was made from. Older manifests lack this field.
    #[serde(default)]
    pub loaded: String,
}

impl Manifest {
    pub(crate) fn new(volume: &Volume, inodes: u64, bytes: u64) -> Manifest {
        let Volume { uuid, name, encryption, loaded, .. } = volume.clone();
        Manifest { version: dump::VERSION, volume: uuid, name, inodes, bytes, encryption, loaded }
    }

    pub(crate) fn encode(&self) -> Result<String, DumpError> {
        Ok(serde_json::to_string(self).map_err(io::Error::from)? + "\n")
    }

    /// Reads the manifest of a backup; `None` if the backup is not complete.
    ///
    /// # Errors
    /// The store fails; the manifest is damaged, or of a newer version of limen.
    pub fn read(store: &BlockStore, backup: BackupId) -> Result<Option<Manifest>, DumpError> {
        let Some(text) = store.backup_manifest(backup).map_err(io::Error::other)? else { return Ok(None) };
        let damaged = |error: serde_json::Error| DumpError::DamagedManifest {
            backup: backup.0,
            what: error.to_string(),
        };
        // A newer version may have other fields.
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(damaged)?;
        let version = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if version > dump::VERSION.into() {
            return Err(DumpError::Newer { found: u32::try_from(version).unwrap_or(u32::MAX) });
        }
        serde_json::from_value(value).map(Some).map_err(damaged)
    }
}
