//! The block store on a real S3 server. `tests/s3/run.sh` starts one and sets `LIMEN_TEST_S3` to a bucket of
//! it, and `LIMEN_TEST_S3_DIR` to the directory in which the server stores the bucket. `LIMEN_TEST_S3=later`
//! means that another step runs these tests.
#![cfg(feature = "s3")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, fs};

use bytes::Bytes;
use chunk::{
    BlockStore, ChunkError, Cipher, Compression, EncryptionSettings, PAGE_BYTES, Secret, StorageConfig,
    StoreOptions, object_key,
};
use types::{BLOCK_BYTES, Errno, SliceId};

use support::destroy;

const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: usize = PAGE_BYTES as usize;
/// The status that stores send to a client with too many requests.
const BUSY: &str = "503 Slow Down";

/// The bucket with a prefix for this test alone, and the directory of its objects.
fn bucket(prefix: &str) -> Option<(String, PathBuf)> {
    if env::var("LIMEN_TEST_S3").as_deref() == Ok("later") {
        skip::later("tests/s3/run.sh");
        return None;
    }
    let (Ok(bucket), Ok(dir)) = (env::var("LIMEN_TEST_S3"), env::var("LIMEN_TEST_S3_DIR")) else {
        skip::missing("an S3 server; run tests/s3/run.sh");
        return None;
    };
    Some((format!("{bucket}/{prefix}/"), PathBuf::from(dir).join(prefix)))
}

fn open(bucket: &str, options: StoreOptions) -> Arc<BlockStore> {
    BlockStore::open_with(&StorageConfig { storage: "s3".into(), bucket: bucket.into() }, options).unwrap()
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 4093) as u8).collect::<Vec<u8>>().into()
}

fn read(store: &BlockStore, id: u64, size: usize, offset: usize, len: usize) -> Result<Vec<u8>, ChunkError> {
    let mut buf = vec![0; len];
    store.read(SliceId(id), size as u32, offset as u32, &mut buf).map(|()| buf)
}

#[test]
fn slices_read_back_with_every_setting() {
    let Some((bucket, _)) = bucket("round-trip") else { return };
    let data = pattern(2 * BLOCK + 100_000);
    let secret = Secret::key_from_text(&"7e".repeat(32)).unwrap();
    let settings = EncryptionSettings::new(Cipher::XChaCha20Poly1305, &secret).unwrap().0;
    for (id, compression, sealed) in
        [(1, Compression::None, false), (2, Compression::Lz4, false), (3, Compression::Zstd, true)]
    {
        let options = || StoreOptions {
            compression,
            encryption: sealed.then(|| settings.unlock(&secret).unwrap()),
            ..StoreOptions::default()
        };
        let store = open(&bucket, options());
        store.check().unwrap();
        store.put_slice(SliceId(id), &data).unwrap();
        store.make_durable(&[SliceId(id)]).unwrap();
        let store = open(&bucket, options());
        for (offset, len) in
            [(PAGE * 3 + 1, 4096), (BLOCK - 5, 10), (2 * BLOCK + 99_990, 10), (0, data.len())]
        {
            assert_eq!(read(&store, id, data.len(), offset, len).unwrap(), data[offset..offset + len]);
        }
        store.delete_slice(SliceId(id), data.len() as u32).unwrap();
        store.delete_slice(SliceId(id), data.len() as u32).unwrap();
        let missing = read(&store, id, data.len(), 0, 1).unwrap_err();
        assert!(matches!(missing, ChunkError::Missing { .. }), "{missing}");
    }
    // A whole block takes one request; a page takes one, plus one for the trailer.
    let store = open(&bucket, StoreOptions::default());
    store.put_slice(SliceId(4), &data.slice(..BLOCK)).unwrap();
    read(&store, 4, BLOCK, PAGE * 9, 100).unwrap();
    assert_eq!(store.requests().gets, 2);
    read(&store, 4, BLOCK, 0, BLOCK).unwrap();
    assert_eq!(store.requests().gets, 3);
    destroy(&store, &mut |_| {}).unwrap();
}

#[test]
fn damage_is_an_error_only_for_its_range() {
    let Some((bucket, dir)) = bucket("damage") else { return };
    let data = pattern(4 * BLOCK);
    open(&bucket, StoreOptions::default()).put_slice(SliceId(9), &data).unwrap();
    let path = |block| dir.join(object_key(SliceId(9), block, BLOCK_BYTES));
    let mut bytes = fs::read(path(0)).unwrap();
    bytes[PAGE * 5 + 77] ^= 0x10;
    fs::write(path(0), bytes).unwrap();
    fs::remove_file(path(1)).unwrap();
    fs::OpenOptions::new().write(true).open(path(2)).unwrap().set_len(1_000_000).unwrap();
    let store = open(&bucket, StoreOptions::default());
    let read = |offset, len| read(&store, 9, data.len(), offset, len);
    assert_eq!(read(0, PAGE * 5).unwrap(), data[..PAGE * 5]);
    assert_eq!(read(3 * BLOCK, BLOCK).unwrap(), data[3 * BLOCK..]);
    let corrupt = read(PAGE * 5, 10).unwrap_err();
    assert!(matches!(corrupt, ChunkError::Corrupt { block: 0, .. }), "{corrupt}");
    let missing = read(BLOCK, BLOCK).unwrap_err();
    assert!(matches!(missing, ChunkError::Missing { block: 1, .. }), "{missing}");
    for (offset, len) in [(2 * BLOCK, BLOCK), (2 * BLOCK + PAGE, 10)] {
        let short = read(offset, len).unwrap_err();
        assert!(matches!(short, ChunkError::Short { block: 2, .. }), "{short}");
    }
}

#[test]
fn listings_of_several_pages_are_complete() {
    let Some((bucket, dir)) = bucket("listing") else { return };
    let store = open(&bucket, StoreOptions::default());
    let count = 1100;
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let store = &store;
            scope.spawn(move || {
                // All objects are below one prefix of a thousand slice numbers, and some slices have two
                // objects.
                for id in (worker..count).step_by(4) {
                    store.put_slice(SliceId(id % 990), &pattern(10 + id as usize / 990)).unwrap();
                }
            });
        }
    });
    let mut seen = 0;
    store
        .for_each_block(&mut |_| {
            seen += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, count);
    let mut removed = 0;
    destroy(&store, &mut |count| removed = count).unwrap();
    assert_eq!(removed, count);
    store.for_each_block(&mut |block| panic!("{block:?}")).unwrap();
    // The server may keep the directories.
    assert_eq!(fs::read_dir(dir.join("chunks/0/0")).map_or(0, Iterator::count), 0);
}

#[test]
fn an_absent_bucket_and_an_unreachable_server_are_errors() {
    if bucket("absent").is_none() {
        return;
    }
    // The server of these tests creates a missing bucket at the first write; others do not.
    let (absent, count) = moody("404 Not Found", usize::MAX);
    let error = open(&absent, StoreOptions::default()).check().unwrap_err();
    assert_eq!(count.load(Relaxed), 1, "the request must not be retried");
    assert!(matches!(error, ChunkError::Store { action: "write", .. }), "{error}");
    let started = Instant::now();
    let error = open("http://127.0.0.1:9/b", StoreOptions::default()).check().unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

/// A server that replies to the first `times` requests with `refusal` and to all others with 200, and counts
/// them.
fn moody(refusal: &'static str, times: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/b", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut reader = BufReader::new(connection.unwrap());
            let (mut line, mut body) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(len) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    body = len.trim().parse().unwrap();
                }
                line.clear();
            }
            reader.read_exact(&mut vec![0; body]).unwrap();
            let answer = if counted.fetch_add(1, Relaxed) < times { refusal } else { "200 OK" };
            let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, count)
}

#[test]
fn requests_to_a_busy_store_are_retried_a_bounded_number_of_times() {
    if bucket("busy").is_none() {
        return;
    }
    let put = |bucket: &str| open(bucket, StoreOptions::default()).put_slice(SliceId(1), &pattern(100_000));
    let (bucket, count) = moody(BUSY, 3);
    put(&bucket).unwrap();
    assert_eq!(count.load(Relaxed), 4);
    let (bucket, count) = moody(BUSY, usize::MAX);
    let started = Instant::now();
    let error = put(&bucket).unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
    // There are five attempts to store the block, and five to remove it, because it may have been stored.
    assert_eq!(count.load(Relaxed), 10);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

/// Credentials belong to a process, so each kind gets its own process.
#[test]
fn credentials_come_from_the_environment_or_a_profile() {
    if bucket("credentials").is_none() {
        return;
    }
    let run = |vars: &[(&str, &str)]| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "slices_read_back_with_every_setting"]);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        let output = command.envs(vars.iter().copied()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (works, output) = run(&[("AWS_PROFILE", "limen-profile")]);
    assert!(works, "{output}");
    let (works, output) = run(&[("AWS_ACCESS_KEY_ID", "limen"), ("AWS_SECRET_ACCESS_KEY", "wrong")]);
    assert!(!works && output.contains("check AWS_SECRET_ACCESS_KEY"), "{output}");
    assert!(!output.contains("wrong"), "{output}");
}
