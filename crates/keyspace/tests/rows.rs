//! Transactions that read the rows of a file, while other threads of the same client change the file.

mod support;

use std::sync::Arc;

use meta::{Effect, Guard, Record, Scan, Txn};
use support::{Client, Step, Store, file, store, txn};
use types::{ChunkIndex, FileType, Ino, Name, Slice, SliceId, SliceSource};

const FILE: Ino = Ino(10);
const DIR: Ino = Ino(2);
const CHUNK: ChunkIndex = ChunkIndex(0);

fn row(slice: u64) -> Slice {
    Slice { pos: 0, len: 1, source: SliceSource::Blocks { id: SliceId(slice), offset: 0, size: 1 } }
}

fn append(slice: u64) -> Effect {
    Effect::AppendSlice { ino: FILE, chunk: CHUNK, slice: row(slice) }
}

fn replace(old: &[u64], new: u64) -> (Vec<Guard>, Vec<Effect>) {
    let rows: Arc<[Slice]> = old.iter().map(|slice| row(*slice)).collect();
    let effect =
        Effect::ReplaceRows { ino: FILE, chunk: CHUNK, count: old.len() as u32, rows: [row(new)].into() };
    (vec![Guard::Rows { ino: FILE, chunk: CHUNK, rows }], vec![effect])
}

fn put_name(name: &str) -> Effect {
    let name = Name::new(name.as_bytes()).unwrap();
    Effect::PutDirent { parent: DIR, name, ino: FILE, kind: FileType::Regular }
}

/// A client reads the rows of a file with the slices 1 and 2, to commit `txn`. Just before the read, another
/// client renames the file; just after it, another thread of the same client commits `change` and caches the
/// new record.
fn change_after_read(txn: &Txn, change: &Txn) -> (Store, Step) {
    let mut store = store();
    let [mut client, mut thread, mut other] = [1, 2, 3].map(Client::new);
    let effects = vec![file(FILE.0), put_name("a"), append(1), append(2)];
    assert_eq!(other.commit(&mut store, &support::txn(1, Vec::new(), effects)), Step::Done);
    // The client caches the location of the file.
    let touch = support::txn(2, Vec::new(), vec![Effect::Extend { ino: FILE, size: 6000 }]);
    assert_eq!(client.commit(&mut store, &touch), Step::Done);
    let drop_name = Effect::DropDirent { parent: DIR, name: Name::new(b"a").unwrap() };
    let guard = Guard::Size { ino: FILE, size: 6000 };
    let rename = support::txn(3, vec![guard], vec![drop_name, put_name("b")]);
    assert_eq!(other.commit(&mut store, &rename), Step::Done);
    assert_eq!(client.step(&mut store, txn), Step::Read);
    std::mem::swap(&mut client.key_cache, &mut thread.key_cache);
    assert_eq!(thread.commit(&mut store, change), Step::Done);
    std::mem::swap(&mut client.key_cache, &mut thread.key_cache);
    let step = client.commit(&mut store, txn);
    (store, step)
}

fn garbage(store: &Store) -> Vec<u64> {
    let records = store.scan(&Scan::Garbage { after: SliceId(0), limit: 100 });
    let slice = |record: &Record| match record {
        Record::Garbage(garbage) => garbage.slice.0,
        other => panic!("{other:?}"),
    };
    records.iter().map(slice).collect()
}

fn rows(store: &Store) -> Vec<Slice> {
    match &store.scan(&Scan::Slices { ino: FILE, from: CHUNK, limit: 100 })[..] {
        [] => Vec::new(),
        [Record::Slices(FILE, CHUNK, rows)] => rows.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn row_appended_after_the_read_is_released_with_the_others() {
    let drop_slices = Effect::DropSlices { ino: FILE, from: CHUNK, to: ChunkIndex(u64::MAX) };
    for drop in [drop_slices, Effect::DropInode { ino: FILE }, file(FILE.0)] {
        let change = txn(5, Vec::new(), vec![append(3)]);
        let (store, step) = change_after_read(&txn(4, Vec::new(), vec![drop.clone()]), &change);
        assert_eq!(step, Step::Done);
        assert_eq!((garbage(&store), rows(&store)), (vec![1, 2, 3], Vec::new()), "{drop:?}");
    }
}

#[test]
fn rows_replaced_after_the_read_are_not_replaced_again() {
    let ((guards, effects), (other_guards, other_effects)) = (replace(&[1, 2], 3), replace(&[1, 2], 4));
    let (store, step) = change_after_read(&txn(4, guards, effects), &txn(5, other_guards, other_effects));
    assert_eq!(step, Step::Refused);
    assert_eq!((garbage(&store), rows(&store)), (vec![1, 2], vec![row(4)]));
}

#[test]
fn compaction_does_not_restore_rows_that_were_truncated_after_the_read() {
    let (guards, effects) = replace(&[1, 2], 3);
    let truncation = Effect::DropSlices { ino: FILE, from: CHUNK, to: ChunkIndex(u64::MAX) };
    let (store, step) =
        change_after_read(&txn(4, guards, effects), &txn(5, Vec::new(), vec![truncation, append(4)]));
    assert_eq!(step, Step::Refused);
    assert_eq!((garbage(&store), rows(&store)), (vec![1, 2], vec![row(4)]));
}
