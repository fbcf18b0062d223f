use std::sync::Arc;

use chunk::{
    BackupId, BlockStore, Cipher, EncryptionSettings, Fault, Faults, Secret, StorageConfig, StoreCall,
    StoreOptions,
};
use dump::{CheckedDump, DumpError};
use meta::{Effect, Engine, Inode, MemEngine, Txn, Volume};
use types::{Errno, FileType, Ino, Mode, Name, OpId, Time};

use crate::{Manifest, create, open, remove_old};

fn store(options: StoreOptions) -> Arc<BlockStore> {
    let config = StorageConfig { storage: chunk::MEMORY.into(), bucket: String::new() };
    BlockStore::open_with(&config, options).unwrap()
}

/// A volume with this many files, with names that cannot be compressed well.
fn volume(files: u64) -> (Arc<dyn Engine>, Volume) {
    let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
    let volume = Volume::in_memory("vol");
    volume.format(&*engine).unwrap();
    let mut effects = Vec::new();
    for ino in (10..10 + files).map(Ino) {
        let inode = Inode::new(ino, FileType::Regular, Mode::new(0o644), Time::from_nanos(7));
        effects.push(Effect::PutInode(Inode { nlink: 1, parent: Ino::ROOT, ..inode }));
        let mut seed = ino.0;
        let name: String = (0..200)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'!' + (seed >> 58) as u8).to_string().replace('/', "x")
            })
            .collect();
        let name = Name::new(format!("{name}{ino}").as_bytes()).unwrap();
        effects.push(Effect::PutDirent { parent: Ino::ROOT, name, ino, kind: FileType::Regular });
    }
    engine.commit(&[Txn { op_id: OpId(1 << 90), guards: Vec::new(), effects }]).unwrap();
    (engine, volume)
}

fn check(store: &Arc<BlockStore>, backup: BackupId, manifest: &Manifest) -> Result<CheckedDump, DumpError> {
    dump::check(open(store, backup, manifest)?, &mut |_| {})
}

#[test]
fn a_backup_of_many_parts_is_restored() {
    let (engine, volume) = volume(60_000);
    let secret = Secret::key_from_text(&"ab".repeat(32)).unwrap();
    let (settings, encryption) = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap();
    let volume = Volume { encryption: settings.to_string(), ..volume };
    let store = store(StoreOptions { encryption: Some(encryption), ..StoreOptions::default() });
    let (backup, manifest) = create(&engine, &volume, &store, &|| Ok(()), &mut |_| Ok(())).unwrap();
    assert!(manifest.bytes > 2 * u64::from(chunk::BACKUP_PART_BYTES), "{manifest:?}");
    assert_eq!(Manifest::read(&store, backup).unwrap().as_ref(), Some(&manifest));
    assert_eq!((manifest.inodes, &manifest.encryption), (60_001, &volume.encryption));
    let checked = check(&store, backup, &manifest).unwrap();
    let target = MemEngine::default();
    dump::load(&target, &checked, open(&store, backup, &manifest).unwrap(), "x", &mut |_| {}).unwrap();
    let mut live = dump::Live(Arc::new(target));
    dump::compare(&checked, &mut open(&store, backup, &manifest).unwrap(), &mut live, &mut |_| {}).unwrap();
    // If the parts are longer than the manifest says, nothing is restored.
    let short = Manifest { bytes: manifest.bytes - 1, ..manifest };
    assert!(check(&store, backup, &short).is_err());
}

#[test]
fn a_backup_that_fails_or_is_stopped_leaves_nothing() {
    let (engine, volume) = volume(60_000);
    let faults = Faults::new(1);
    let store = store(StoreOptions { faults: Some(Arc::clone(&faults)), ..StoreOptions::default() });
    let stopped = create(&engine, &volume, &store, &|| Ok(()), &mut |inodes| match inodes {
        50_000 => Err(DumpError::Stopped),
        _ => Ok(()),
    });
    assert!(matches!(stopped, Err(DumpError::Stopped)));
    assert_eq!(store.backups().unwrap(), []);
    faults.add(StoreCall::Put, Fault::Fail(Errno::ENOSPC), 1000);
    create(&engine, &volume, &store, &|| Ok(()), &mut |_| Ok(())).unwrap_err();
    faults.clear();
    assert_eq!(store.backups().unwrap(), []);
    let (made, _) = create(&engine, &volume, &store, &|| Ok(()), &mut |_| Ok(())).unwrap();
    assert_eq!((store.backups().unwrap().len(), remove_old(&store, made).unwrap()), (1, 0));
}

#[test]
fn manifests_that_are_newer_or_damaged_are_refused() {
    let (store, backup) = (store(StoreOptions::default()), BackupId(5));
    assert_eq!(Manifest::read(&store, backup).unwrap(), None);
    for damaged in ["", "{}", "[]", "{\"version\":1}"] {
        store.finish_backup(backup, damaged.to_owned()).unwrap();
        assert!(
            matches!(Manifest::read(&store, backup), Err(DumpError::DamagedManifest { .. })),
            "{damaged}"
        );
    }
    store.finish_backup(backup, "{\"version\":9,\"new\":0}".to_owned()).unwrap();
    assert!(matches!(Manifest::read(&store, backup), Err(DumpError::Newer { found: 9 })));
}

#[test]
fn a_backup_that_loses_a_part_or_the_store_is_not_completed() {
    let (engine, volume) = volume(60_000);
    let store = store(StoreOptions::default());
    let kept = create(&engine, &volume, &store, &|| Ok(()), &mut |_| Ok(())).unwrap().0;
    let backups = || store.backups().unwrap();
    // Another mount, whose clock is a week ahead, considers the backup abandoned after all its parts were
    // stored.
    let thinned = create(&engine, &volume, &store, &|| Ok(()), &mut |inodes| {
        let newest = if inodes == 60_001 { backups()[0].id } else { kept };
        if newest != kept {
            let later = BackupId(newest.0 + 7 * 86_400 * 1_000_000_000);
            assert_eq!(remove_old(&store, later).unwrap(), 1);
        }
        Ok(())
    });
    let error = thinned.unwrap_err().to_string();
    assert!(error.contains("another mount removed it") && error.contains("backups/"), "{error}");
    assert_eq!(backups().iter().map(|backup| backup.id).collect::<Vec<_>>(), [kept]);
    // The check fails before the first part is written, or before the backup is finished.
    for times in 0..2 {
        let left = std::sync::atomic::AtomicI32::new(times);
        let check = || match left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) {
            1.. => Ok(()),
            _ => Err("the store belongs to another database".to_owned()),
        };
        let mut read = 0;
        let error = create(&engine, &volume, &store, &check, &mut |inodes| {
            read = inodes;
            Ok(())
        });
        assert!(error.unwrap_err().to_string().contains("another database"));
        assert_eq!((read > 0, backups().len()), (times > 0, 1));
    }
}

#[test]
fn manifests_name_the_database() {
    let (engine, volume) = volume(1);
    let volume = Volume { loaded: "random id".to_owned(), ..volume };
    let store = store(StoreOptions::default());
    let (backup, manifest) = create(&engine, &volume, &store, &|| Ok(()), &mut |_| Ok(())).unwrap();
    assert_eq!(
        (&manifest.loaded[..], Manifest::read(&store, backup).unwrap()),
        ("random id", Some(manifest.clone()))
    );
    // Manifests of earlier versions lack the field `loaded`.
    let old = manifest.encode().unwrap().replace(",\"loaded\":\"random id\"", "");
    store.finish_backup(BackupId(5), old).unwrap();
    assert_eq!(
        Manifest::read(&store, BackupId(5)).unwrap(),
        Some(Manifest { loaded: String::new(), ..manifest })
    );
}
