//! Tests of the record cache: what it keeps, and what it rejects.

use meta::Dirent;
use types::{AclId, FileType};

use super::*;

fn dirent(ino: u64) -> Value {
    Value::Dirent(Some(Dirent { ino: Ino(ino), kind: FileType::Regular }))
}

fn ino_at(cache: &Cache, key: &Key) -> Option<Ino> {
    match cache.get(key, None) {
        Some(Value::Dirent(dirent)) => dirent.map(|e| e.ino),
        _ => None,
    }
}

#[test]
fn older_values_never_replace_newer_ones() {
    let cache = Cache::new(1000, AclKind::Posix);
    let key = Key::Dirent(Ino::ROOT, Name::new(b"a").unwrap());
    cache.put(key.clone(), dirent(7), Seq(5));
    cache.put(key.clone(), dirent(6), Seq(4));
    assert_eq!(ino_at(&cache, &key), Some(Ino(7)));
    cache.put(key.clone(), Value::Unknown, Seq(6));
    cache.put(key.clone(), dirent(7), Seq(5));
    assert_eq!(ino_at(&cache, &key), None);
}

#[test]
fn a_record_is_as_old_as_the_start_of_its_request() {
    let cache = Cache::new(1000, AclKind::Posix);
    let began = Instant::now();
    let next = began + std::time::Duration::from_nanos(1);
    let (read, changed) = (Key::Inode(Ino(3)), Key::Inode(Ino(4)));
    cache.absorb(&Snapshot { seq: Seq(9), records: vec![Record::Inode(Ino(3), None)] }, began);
    cache.committed(changed.clone(), Value::Inode(None), Seq(9), cache.commit_times(began, began));
    for key in [read, changed] {
        assert!(cache.get(&key, Some(began)).is_some());
        assert!(cache.get(&key, Some(next)).is_none(), "another client may have changed it since then");
    }
}

#[test]
fn an_evicted_record_bars_older_values_of_itself() {
    let cache = Cache::new(SHARDS, AclKind::Posix);
    let keys: Vec<_> = (0..1000u64).map(|i| Key::Dirent(Ino(i), Name::new(b"a").unwrap())).collect();
    for key in &keys {
        cache.put(key.clone(), dirent(1), Seq(9));
    }
    let evicted: Vec<_> = keys.iter().filter(|key| ino_at(&cache, key).is_none()).collect();
    assert!(evicted.len() >= 1000 - SHARDS, "the cache is bounded");
    for key in evicted {
        cache.put(key.clone(), dirent(2), Seq(8));
        assert_eq!(ino_at(&cache, key), None);
    }
}

#[test]
fn clearing_bars_values_older_than_the_cleared_ones() {
    let cache = Cache::new(1000, AclKind::Posix);
    let key = Key::Inode(Ino(3));
    cache.put(key.clone(), Value::Inode(None), Seq(9));
    cache.clear();
    cache.put(key.clone(), Value::Inode(None), Seq(8));
    assert!(cache.get(&key, None).is_none());
    cache.put(key.clone(), Value::Inode(None), Seq(9));
    assert!(cache.get(&key, None).is_some());
}

#[test]
fn an_invalidation_drops_values_from_reads_whatever_their_seq() {
    let cache = Cache::new(1000, AclKind::Posix);
    let key = Key::Dirent(Ino::ROOT, Name::new(b"a").unwrap());
    let snapshot = |ino| Snapshot {
        seq: Seq(16),
        records: vec![Record::Dirent(
            Ino::ROOT,
            Name::new(b"a").unwrap(),
            Some(Dirent { ino: Ino(ino), kind: FileType::Regular }),
        )],
    };
    let before = Instant::now();
    cache.absorb(&snapshot(6), before);
    cache.invalidate(key.clone(), Seq(15));
    assert_eq!(ino_at(&cache, &key), None, "the read may have missed commit 15");
    cache.absorb(&snapshot(6), before);
    assert_eq!(ino_at(&cache, &key), None, "so may a read that was in flight");
    cache.absorb(&snapshot(7), Instant::now());
    assert_eq!(ino_at(&cache, &key), Some(Ino(7)));
    cache.put(key.clone(), dirent(8), Seq(20));
    cache.invalidate(key.clone(), Seq(19));
    assert_eq!(ino_at(&cache, &key), Some(Ino(8)), "a commit by this client was later");
    let other = Key::Inode(Ino(9));
    cache.invalidate(other.clone(), Seq(21));
    let inode = Snapshot { seq: Seq(21), records: vec![Record::Inode(Ino(9), None)] };
    cache.absorb(&inode, before);
    assert!(cache.get(&other, None).is_none());
    cache.absorb(&inode, Instant::now());
    assert!(cache.get(&other, None).is_some());
}

fn name(i: u64) -> Name {
    Name::new(format!("{i:03}").as_bytes()).unwrap()
}

fn dirent_key(i: u64) -> Key {
    Key::Dirent(Ino::ROOT, name(i))
}

fn is_absent(cache: &Cache, i: u64) -> bool {
    matches!(cache.get(&dirent_key(i), None), Some(Value::Dirent(None)))
}

#[test]
fn an_unknown_name_is_absent_only_in_the_listed_part_of_a_directory() {
    let cache = Cache::new(1000, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    cache.put(dirent_key(4), dirent(7), Seq(5));
    assert!(!is_absent(&cache, 2));
    cache.listed(Ino::ROOT, None, Some(&name(4)), before, Seq(5));
    assert!(is_absent(&cache, 2) && !is_absent(&cache, 4) && !is_absent(&cache, 6));
    assert!(
        cache.get(&dirent_key(2), Some(Instant::now())).is_none(),
        "others may have created it meanwhile"
    );
    // The mark says that the directory is completely cached up to entry 4. A page that begins later does not
    // move it, a page that begins there does, and a page that ends earlier does not move it back.
    cache.listed(Ino::ROOT, Some(&name(5)), None, before, Seq(5));
    assert!(!is_absent(&cache, 6));
    cache.listed(Ino::ROOT, Some(&name(4)), None, before, Seq(5));
    cache.listed(Ino::ROOT, None, Some(&name(1)), before, Seq(6));
    assert!(is_absent(&cache, 6) && !is_absent(&cache, 4));
    cache.clear();
    assert!(!is_absent(&cache, 6));
}

#[test]
fn a_directory_that_lost_an_entry_is_not_known_completely() {
    let cache = Cache::new(SHARDS * 4, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    cache.put(dirent_key(1), dirent(7), Seq(5));
    let mut others = 0;
    loop {
        // The mark may be evicted as well. It is put again with the counters from before the entry was put.
        cache.listed(Ino::ROOT, None, None, before, Seq(9));
        if cache.losses(Ino::ROOT) > before.losses {
            break;
        }
        assert!(is_absent(&cache, 2) && !is_absent(&cache, 1));
        cache.put(Key::Inode(Ino(100 + others)), Value::Inode(None), Seq(9));
        others += 1;
        assert!(others < 100_000, "the entry was never evicted");
    }
    assert!(!is_absent(&cache, 1) && !is_absent(&cache, 2));
    // An entry that the cache rejects is lost as well: here the entry comes late, and its `Seq` is below the
    // floor, which is at least the `Seq` of everything that was evicted.
    let before = cache.before(Ino::ROOT);
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    assert!(is_absent(&cache, 2));
    cache.put(dirent_key(1), dirent(7), Seq(4));
    assert!(!is_absent(&cache, 1) && !is_absent(&cache, 2));
}

#[test]
fn an_entry_lost_between_a_read_and_its_mark_invalidates_the_mark() {
    let cache = Cache::new(SHARDS, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    for i in 0..300 {
        cache.put(dirent_key(i), dirent(7), Seq(5));
    }
    cache.listed(Ino::ROOT, None, None, before, Seq(5));
    assert!((0..300).all(|i| !is_absent(&cache, i)));
}

#[test]
fn a_name_invalidated_while_its_directory_is_read_prevents_the_mark() {
    let cache = Cache::new(1000, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    // The read sees the directory as it was before entry 3 was created. Its answer arrives after the
    // invalidation of that entry.
    cache.invalidate(dirent_key(3), Seq(9));
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    assert!(!is_absent(&cache, 3) && !is_absent(&cache, 4));
    // A later read has seen the entry. A name that is invalidated from then on is stored as unknown, and all
    // other names are known.
    let began = Instant::now();
    let before = cache.before(Ino::ROOT);
    let record = Record::Dirent(Ino::ROOT, name(3), Some(Dirent { ino: Ino(7), kind: FileType::Regular }));
    cache.absorb(&Snapshot { seq: Seq(9), records: vec![record] }, began);
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    cache.invalidate(dirent_key(5), Seq(10));
    assert!(!is_absent(&cache, 3) && is_absent(&cache, 4) && !is_absent(&cache, 5));
}

#[test]
fn a_read_sent_before_a_clear_is_not_cached() {
    let cache = Cache::new(1000, AclKind::Posix);
    let (key, acl) = (Key::Inode(Ino(3)), Key::Anyone(AclId(1)));
    let began = Instant::now();
    let before = cache.before(Ino::ROOT);
    cache.clear();
    // Changes from before the clear may not have been delivered.
    cache.absorb(&Snapshot { seq: Seq(9), records: vec![Record::Inode(Ino(3), None)] }, began);
    cache.committed(key.clone(), Value::Inode(None), Seq(9), cache.commit_times(began, began));
    assert!(cache.get(&key, None).is_none());
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    assert!(!is_absent(&cache, 1));
    cache.committed(acl.clone(), Value::Anyone(true), Seq(0), cache.commit_times(began, began));
    assert!(cache.get(&acl, None).is_some(), "what never changes is not barred");
    cache.committed(
        key.clone(),
        Value::Inode(None),
        Seq(9),
        cache.commit_times(Instant::now(), Instant::now()),
    );
    cache.listed(Ino::ROOT, None, None, cache.before(Ino::ROOT), Seq(9));
    assert!(cache.get(&key, None).is_some() && is_absent(&cache, 1));
}

#[test]
fn an_own_commit_sent_before_a_clear_invalidates_later_reads() {
    let absent = |seq| Snapshot {
        seq: Seq(seq),
        records: vec![Record::Dirent(Ino::ROOT, Name::new(b"a").unwrap(), None)],
    };
    let key = Key::Dirent(Ino::ROOT, Name::new(b"a").unwrap());
    for is_read_before in [true, false] {
        let cache = Cache::new(1000, AclKind::Posix);
        let began = Instant::now();
        cache.clear();
        let asked = Instant::now();
        if is_read_before {
            cache.absorb(&absent(8), asked);
        }
        cache.committed(key.clone(), dirent(7), Seq(9), cache.commit_times(began, began));
        if !is_read_before {
            cache.absorb(&absent(8), asked);
        }
        assert!(
            cache.get(&key, None).is_none(),
            "the name exists since commit 9, and its change is not delivered again"
        );
        cache.absorb(&absent(10), Instant::now());
        assert!(cache.get(&key, None).is_some());
    }
}

/// A commit of this client can be answered long after the directory was taken: its value is as old as its
/// start.
#[test]
fn names_that_are_dropped_are_neither_known_nor_absent_until_they_are_read_again() {
    let cache = Cache::new(1000, AclKind::Posix);
    let (dir, began) = (Ino(5), Instant::now());
    let key = |name: &[u8]| Key::Dirent(dir, Name::new(name).unwrap());
    let before = cache.before(dir);
    cache.put(key(b"there"), dirent(7), Seq(5));
    cache.put(key(b"gone"), Value::Dirent(None), Seq(5));
    cache.listed(dir, None, None, before, Seq(5));
    let all = [b"there".as_slice(), b"gone", b"never"];
    assert!(all.iter().all(|name| cache.get(&key(name), None).is_some()));
    cache.put(Key::Dirent(Ino(6), Name::new(b"other").unwrap()), dirent(8), Seq(5));

    let before = cache.before(dir);
    cache.drop_names(dir);
    assert!(all.iter().all(|name| cache.get(&key(name), None).is_none()));
    assert!(cache.get(&Key::Dirent(Ino(6), Name::new(b"other").unwrap()), None).is_some());
    let late =
        Snapshot { seq: Seq(9), records: vec![Record::Dirent(dir, Name::new(b"there").unwrap(), None)] };
    cache.absorb(&late, began);
    cache.committed(key(b"gone"), dirent(9), Seq(9), cache.commit_times(began, Instant::now()));
    cache.listed(dir, None, None, before, Seq(9));
    assert!(all.iter().all(|name| cache.get(&key(name), None).is_none()), "from before the drop");

    std::thread::sleep(std::time::Duration::from_millis(1));
    cache.absorb(&late, Instant::now());
    assert!(matches!(cache.get(&key(b"there"), None), Some(Value::Dirent(None))));
}
