//! Compression and encryption through the block store: the objects that a volume's settings produce, and
//! those that they accept.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use chunk::{
    BlockFault, BlockStore, ChunkError, Cipher, Compression, EncryptionSettings, PAGE_BYTES, Secret,
    StorageConfig, StoreOptions, object_key,
};
use tempfile::TempDir;
use types::{BLOCK_BYTES, Errno, SliceId};

const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: usize = PAGE_BYTES as usize;

fn key(byte: &str) -> Secret {
    Secret::key_from_text(&byte.repeat(32)).unwrap()
}

fn options(compression: Compression, settings: Option<&EncryptionSettings>) -> StoreOptions {
    let encryption = settings.map(|settings| settings.unlock(&key("11")).unwrap());
    StoreOptions { compression, encryption, ..StoreOptions::default() }
}

fn open(dir: &Path, options: StoreOptions) -> Arc<BlockStore> {
    let bucket = dir.to_str().unwrap().to_owned();
    let options = StoreOptions { create: true, ..options };
    BlockStore::open_with(&StorageConfig { storage: "file".into(), bucket }, options).unwrap()
}

fn settings(cipher: Cipher) -> EncryptionSettings {
    EncryptionSettings::new(cipher, &key("11")).unwrap().0
}

/// Data that compresses to about half its size.
fn text(len: usize) -> Bytes {
    let word = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 7) as u8;
    (0..len).map(|i| if i % 4 < 2 { word(i) } else { b'x' }).collect::<Vec<u8>>().into()
}

fn read(store: &BlockStore, id: u64, size: usize, offset: usize, len: usize) -> Result<Vec<u8>, ChunkError> {
    let mut buf = vec![0; len];
    store.read(SliceId(id), size as u32, offset as u32, &mut buf).map(|()| buf)
}

fn object(dir: &Path, id: u64, block: u32, len: u32) -> PathBuf {
    dir.join(object_key(SliceId(id), block, len))
}

#[test]
fn every_setting_reads_back_and_small_reads_fetch_single_pages() {
    let data = text(BLOCK + 3 * PAGE + 17);
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        for cipher in [None, Some(Cipher::Aes256Gcm), Some(Cipher::XChaCha20Poly1305)] {
            let (dir, settings) = (TempDir::new().unwrap(), cipher.map(settings));
            let options = || options(compression, settings.as_ref());
            open(dir.path(), options()).put_slice(SliceId(1), &data).unwrap();
            let store = open(dir.path(), options());
            let check = |offset: usize, len: usize| {
                let got = read(&store, 1, data.len(), offset, len).unwrap();
                assert_eq!(got, data[offset..offset + len], "{compression} {cipher:?} {offset} {len}");
                store.requests().gets
            };
            // One request for the header or trailer, one for each range of pages, then whole blocks.
            assert_eq!(check(PAGE * 3 + 5, 4096), 2);
            assert_eq!(check(PAGE * 9 - 100, 4096), 3);
            assert_eq!(check(BLOCK - 4096, 4096), 4);
            assert_eq!(check(0, data.len()), 6);
            let stored = fs::metadata(object(dir.path(), 1, 0, BLOCK_BYTES)).unwrap().len();
            assert_eq!(stored < u64::from(BLOCK_BYTES), compression != Compression::None, "{stored}");
        }
    }
}

#[test]
fn blocks_outlive_a_change_of_the_compression() {
    let (dir, data) = (TempDir::new().unwrap(), text(BLOCK));
    let all = [Compression::None, Compression::Lz4, Compression::Zstd];
    for (id, compression) in all.into_iter().enumerate() {
        open(dir.path(), options(compression, None)).put_slice(SliceId(id as u64), &data).unwrap();
    }
    for compression in all {
        let store = open(dir.path(), options(compression, None));
        for id in 0..3 {
            assert_eq!(read(&store, id, BLOCK, PAGE * 5 + 1, 100).unwrap(), data[PAGE * 5 + 1..][..100]);
            assert_eq!(read(&store, id, BLOCK, 0, BLOCK).unwrap(), data);
            store.verify_block(SliceId(id), BLOCK_BYTES, 0).unwrap();
        }
    }
}

#[test]
fn an_encrypted_volume_accepts_only_its_own_objects() {
    let (dir, data) = (TempDir::new().unwrap(), text(3 * PAGE));
    let settings = settings(Cipher::Aes256Gcm);
    let plain = || open(dir.path(), options(Compression::None, None));
    let sealed = || open(dir.path(), options(Compression::None, Some(&settings)));
    plain().put_slice(SliceId(1), &data).unwrap();
    open(dir.path(), options(Compression::Zstd, None)).put_slice(SliceId(2), &data).unwrap();
    sealed().put_slice(SliceId(3), &data).unwrap();
    let refused = |store: &BlockStore, id| {
        for (offset, len) in [(0, 10), (PAGE + 1, 10), (0, data.len())] {
            let error = read(store, id, data.len(), offset, len).unwrap_err();
            assert!(matches!(error, ChunkError::Corrupt { .. } | ChunkError::Short { .. }), "{error}");
            assert_eq!(error.errno(), Errno::EIO);
        }
    };
    refused(&sealed(), 1);
    refused(&sealed(), 2);
    refused(&plain(), 3);
    let stored = fs::read(object(dir.path(), 3, 0, data.len() as u32)).unwrap();
    assert!(!stored.windows(16).any(|window| window == &data[100..116]));
    assert_eq!(read(&sealed(), 3, data.len(), 0, data.len()).unwrap(), data);

    // A wrong key is detected before any block is read.
    assert!(matches!(settings.unlock(&key("12")), Err(ChunkError::WrongKey)));
    // If the settings are replaced, so that the key check passes, the data is still unreadable.
    let other = EncryptionSettings::new(Cipher::Aes256Gcm, &key("12")).unwrap().1;
    let other = StoreOptions { encryption: Some(other), ..StoreOptions::default() };
    refused(&open(dir.path(), other), 3);
}

#[test]
fn objects_moved_to_another_key_are_refused() {
    let (dir, data) = (TempDir::new().unwrap(), text(2 * BLOCK));
    let settings = settings(Cipher::XChaCha20Poly1305);
    for (base, setting) in
        [(10, options(Compression::Lz4, None)), (20, options(Compression::Lz4, Some(&settings)))]
    {
        open(dir.path(), setting.clone()).put_slice(SliceId(base), &data).unwrap();
        open(dir.path(), setting.clone()).put_slice(SliceId(base + 1), &data).unwrap();
        fs::rename(object(dir.path(), base, 1, BLOCK_BYTES), object(dir.path(), base + 1, 0, BLOCK_BYTES))
            .unwrap();
        let store = open(dir.path(), setting);
        let error = read(&store, base + 1, data.len(), 0, 10).unwrap_err();
        let is_other = |fault: &BlockFault| *fault == BlockFault::Other(SliceId(base), 1);
        assert!(matches!(&error, ChunkError::Corrupt { fault, .. } if is_other(fault)), "{error}");
        assert_eq!(read(&store, base + 1, data.len(), BLOCK, BLOCK).unwrap(), data[BLOCK..]);
    }
}

#[test]
fn damage_to_a_packed_block_affects_only_its_pages() {
    let (dir, data) = (TempDir::new().unwrap(), text(BLOCK));
    let settings = settings(Cipher::Aes256Gcm);
    for (id, setting) in
        [(1, options(Compression::Zstd, None)), (2, options(Compression::Zstd, Some(&settings)))]
    {
        open(dir.path(), setting.clone()).put_slice(SliceId(id), &data).unwrap();
        let path = object(dir.path(), id, 0, BLOCK_BYTES);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let store = open(dir.path(), setting);
        let bad: Vec<usize> =
            (0..BLOCK / PAGE).filter(|page| read(&store, id, BLOCK, page * PAGE + 10, 10).is_err()).collect();
        assert!(bad.len() == 2 && (20..44).contains(&bad[0]) && bad[1] == BLOCK / PAGE - 1, "{bad:?}");
        assert_eq!(read(&store, id, BLOCK, 0, 15 * PAGE).unwrap(), data[..15 * PAGE]);
        assert!(store.verify_block(SliceId(id), BLOCK_BYTES, 0).is_err());
        assert!(matches!(store.verify_block(SliceId(id), BLOCK_BYTES, 1), Err(ChunkError::Row { .. })));
        let last = read(&store, id, BLOCK, BLOCK - 10, 10).unwrap_err();
        assert!(matches!(last, ChunkError::Short { .. }), "{last}");
    }
}

#[test]
fn a_file_whose_data_is_an_object_reads_back() {
    let (dir, data) = (TempDir::new().unwrap(), text(PAGE));
    let store = open(dir.path(), options(Compression::Zstd, None));
    store.put_slice(SliceId(1), &data).unwrap();
    let copied: Bytes = fs::read(object(dir.path(), 1, 0, data.len() as u32)).unwrap().into();
    for (id, compression) in [(2, Compression::None), (3, Compression::Zstd)] {
        let store = || open(dir.path(), options(compression, None));
        store().put_slice(SliceId(id), &copied).unwrap();
        assert_eq!(read(&store(), id, copied.len(), 0, copied.len()).unwrap(), copied);
    }
}
