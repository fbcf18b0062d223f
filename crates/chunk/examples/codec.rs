//! Measures what compression and encryption cost and save: `cargo run --release --package chunk --example
//! codec FILE...`.
//!
//! With each setting, it stores the files' bytes in memory, one slice per block, and reads them back. All of
//! this runs on one thread.

use std::time::Instant;

use bytes::Bytes;
use chunk::{BlockStore, Cipher, Compression, EncryptionSettings, Secret, StorageConfig, StoreOptions};
use types::{BLOCK_BYTES, SliceId};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut data = Vec::new();
    for path in std::env::args().skip(1) {
        data.extend(std::fs::read(path)?);
    }
    let data = Bytes::from(data);
    println!("{:8} {:20} {:>12} {:>12} {:>14}", "", "", "write MB/s", "read MB/s", "4 KiB read us");
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        for cipher in [None, Some(Cipher::Aes256Gcm), Some(Cipher::XChaCha20Poly1305)] {
            measure(&data, compression, cipher)?;
        }
    }
    Ok(())
}

fn measure(data: &Bytes, compression: Compression, cipher: Option<Cipher>) -> Result<(), Failure> {
    let secret = Secret::key_from_text(&"00".repeat(32))?;
    let encryption = match cipher {
        Some(cipher) => Some(EncryptionSettings::new(cipher, &secret)?.1),
        None => None,
    };
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    let store = BlockStore::open_with(
        &config,
        StoreOptions { cache_bytes: 0, create: true, compression, encryption, ..Default::default() },
    )?;
    let megabytes = data.len() as f64 / 1e6;
    let started = Instant::now();
    let blocks: Vec<Bytes> = data.chunks(BLOCK_BYTES as usize).map(|block| data.slice_ref(block)).collect();
    for (id, block) in blocks.iter().enumerate() {
        store.put_slice(SliceId(id as u64), block)?;
    }
    let written = started.elapsed().as_secs_f64();
    let mut buf = vec![0; BLOCK_BYTES as usize];
    let started = Instant::now();
    for (id, block) in blocks.iter().enumerate() {
        store.read(SliceId(id as u64), block.len() as u32, 0, &mut buf[..block.len()])?;
    }
    let read = started.elapsed().as_secs_f64();
    let (started, rounds) = (Instant::now(), 500);
    for round in 0..rounds {
        // No read starts at the beginning of the block or where the previous read ended, so each read fetches
        // single pages and not the whole block.
        let offset = 70_000 + round * 2_654_435 % (BLOCK_BYTES - 100_000);
        store.read(SliceId(0), BLOCK_BYTES.min(blocks[0].len() as u32), offset, &mut buf[..4096])?;
    }
    let small = started.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
    let (compression, cipher) = (compression.name(), cipher.map_or("", Cipher::name));
    println!(
        "{compression:8} {cipher:20} {:12.0} {:12.0} {small:14.1}",
        megabytes / written,
        megabytes / read
    );
    Ok(())
}
