//! What the cache keeps, and what it keeps out.

use super::*;

fn edge(ino: u64) -> Value {
    Value::Edge(Some(Edge { ino: Ino(ino), kind: types::FileType::Regular }))
}

fn ino_at(cache: &Cache, key: &Key) -> Option<Ino> {
    match cache.get(key, None) {
        Some(Value::Edge(edge)) => edge.map(|e| e.ino),
        _ => None,
    }
}

#[test]
fn older_facts_never_replace_newer_ones() {
    let cache = Cache::new(1000, AclKind::Posix);
    let key = Key::Edge(Ino::ROOT, Name::new(b"a").unwrap());
    cache.put(key.clone(), edge(7), Seq(5));
    cache.put(key.clone(), edge(6), Seq(4));
    assert_eq!(ino_at(&cache, &key), Some(Ino(7)));
    cache.put(key.clone(), Value::Unknown, Seq(6));
    cache.put(key.clone(), edge(7), Seq(5));
    assert_eq!(ino_at(&cache, &key), None);
}

#[test]
fn an_evicted_record_bars_facts_older_than_itself() {
    let cache = Cache::new(SHARDS, AclKind::Posix);
    let keys: Vec<_> = (0..1000u64).map(|i| Key::Edge(Ino(i), Name::new(b"a").unwrap())).collect();
    for key in &keys {
        cache.put(key.clone(), edge(1), Seq(9));
    }
    let gone: Vec<_> = keys.iter().filter(|key| ino_at(&cache, key).is_none()).collect();
    assert!(gone.len() >= 1000 - SHARDS, "the cache is bounded");
    for key in gone {
        cache.put(key.clone(), edge(2), Seq(8));
        assert_eq!(ino_at(&cache, key), None);
    }
}

#[test]
fn clearing_bars_what_was_read_before() {
    let cache = Cache::new(1000, AclKind::Posix);
    let key = Key::Node(Ino(3));
    cache.put(key.clone(), Value::Node(None), Seq(9));
    cache.clear();
    cache.put(key.clone(), Value::Node(None), Seq(8));
    assert!(cache.get(&key, None).is_none());
    cache.put(key.clone(), Value::Node(None), Seq(9));
    assert!(cache.get(&key, None).is_some());
}

#[test]
fn word_of_a_change_ends_what_was_read_whatever_its_label() {
    let cache = Cache::new(1000, AclKind::Posix);
    let key = Key::Edge(Ino::ROOT, Name::new(b"a").unwrap());
    let facts = |ino| Facts {
        seq: Seq(16),
        records: vec![Record::Edge(
            Ino::ROOT,
            Name::new(b"a").unwrap(),
            Some(Edge { ino: Ino(ino), kind: types::FileType::Regular }),
        )],
    };
    let before = Instant::now();
    cache.absorb(&facts(6), before);
    cache.outdate(key.clone(), Seq(15));
    assert_eq!(ino_at(&cache, &key), None, "the read may have missed commit 15");
    cache.absorb(&facts(6), before);
    assert_eq!(ino_at(&cache, &key), None, "so may one that was under way");
    cache.absorb(&facts(7), Instant::now());
    assert_eq!(ino_at(&cache, &key), Some(Ino(7)));
    cache.put(key.clone(), edge(8), Seq(20));
    cache.outdate(key.clone(), Seq(19));
    assert_eq!(ino_at(&cache, &key), Some(Ino(8)), "an own commit was later");
    let other = Key::Node(Ino(9));
    cache.outdate(other.clone(), Seq(21));
    let node = Facts { seq: Seq(21), records: vec![Record::Node(Ino(9), None)] };
    cache.absorb(&node, before);
    assert!(cache.get(&other, None).is_none());
    cache.absorb(&node, Instant::now());
    assert!(cache.get(&other, None).is_some());
}

fn name(i: u64) -> Name {
    Name::new(format!("{i:03}").as_bytes()).unwrap()
}

fn edge_key(i: u64) -> Key {
    Key::Edge(Ino::ROOT, name(i))
}

fn is_absent(cache: &Cache, i: u64) -> bool {
    matches!(cache.get(&edge_key(i), None), Some(Value::Edge(None)))
}

#[test]
fn a_name_is_absent_from_what_was_listed_and_from_nothing_else() {
    let cache = Cache::new(1000, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    cache.put(edge_key(4), edge(7), Seq(5));
    assert!(!is_absent(&cache, 2));
    cache.listed(Ino::ROOT, None, Some(&name(4)), before, Seq(5));
    assert!(is_absent(&cache, 2) && !is_absent(&cache, 4) && !is_absent(&cache, 6));
    assert!(cache.get(&edge_key(2), Some(Instant::now())).is_none(), "others may have made it meanwhile");
    // A page that does not join on adds nothing; one that joins does, and one that covers less takes nothing away.
    cache.listed(Ino::ROOT, Some(&name(5)), None, before, Seq(5));
    assert!(!is_absent(&cache, 6));
    cache.listed(Ino::ROOT, Some(&name(4)), None, before, Seq(5));
    cache.listed(Ino::ROOT, None, Some(&name(1)), before, Seq(6));
    assert!(is_absent(&cache, 6) && !is_absent(&cache, 4));
    cache.clear();
    assert!(!is_absent(&cache, 6));
}

#[test]
fn a_directory_that_lost_an_entry_is_not_known_as_a_whole() {
    let cache = Cache::new(SHARDS * 4, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    cache.put(edge_key(1), edge(7), Seq(5));
    let mut others = 0;
    loop {
        // The mark may be evicted as well; it is made again as it was, by what was counted before the entry was put.
        cache.listed(Ino::ROOT, None, None, before, Seq(9));
        if cache.losses(Ino::ROOT) > before.losses {
            break;
        }
        assert!(is_absent(&cache, 2) && !is_absent(&cache, 1));
        cache.put(Key::Node(Ino(100 + others)), Value::Node(None), Seq(9));
        others += 1;
        assert!(others < 100_000, "the entry was never evicted");
    }
    assert!(!is_absent(&cache, 1) && !is_absent(&cache, 2));
    // What the floor keeps out is lost as well: here the entry comes late, and is older than what was evicted.
    let before = cache.before(Ino::ROOT);
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    assert!(is_absent(&cache, 2));
    cache.put(edge_key(1), edge(7), Seq(4));
    assert!(!is_absent(&cache, 1) && !is_absent(&cache, 2));
}

#[test]
fn an_entry_lost_between_a_reading_and_its_mark_leaves_no_whole_directory() {
    let cache = Cache::new(SHARDS, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    for i in 0..300 {
        cache.put(edge_key(i), edge(7), Seq(5));
    }
    cache.listed(Ino::ROOT, None, None, before, Seq(5));
    assert!((0..300).all(|i| !is_absent(&cache, i)));
}

#[test]
fn a_name_heard_of_while_its_directory_is_read_leaves_no_whole_directory() {
    let cache = Cache::new(1000, AclKind::Posix);
    let before = cache.before(Ino::ROOT);
    // The reading is of a moment before 3 was made, and its answer comes after the word of that.
    cache.outdate(edge_key(3), Seq(9));
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    assert!(!is_absent(&cache, 3) && !is_absent(&cache, 4));
    // A later one has seen it; what is heard of from then on stands there as unknown, and of the others all is known.
    let began = Instant::now();
    let before = cache.before(Ino::ROOT);
    let record = Record::Edge(Ino::ROOT, name(3), Some(Edge { ino: Ino(7), kind: FileType::Regular }));
    cache.absorb(&Facts { seq: Seq(9), records: vec![record] }, began);
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    cache.outdate(edge_key(5), Seq(10));
    assert!(!is_absent(&cache, 3) && is_absent(&cache, 4) && !is_absent(&cache, 5));
}

#[test]
fn what_was_asked_for_before_all_was_forgotten_is_not_remembered() {
    let cache = Cache::new(1000, AclKind::Posix);
    let (key, acl) = (Key::Node(Ino(3)), Key::Anyone(AclId(1)));
    let began = Instant::now();
    let before = cache.before(Ino::ROOT);
    cache.clear();
    // Whatever happened before that may not have been heard of.
    cache.absorb(&Facts { seq: Seq(9), records: vec![Record::Node(Ino(3), None)] }, began);
    cache.committed(key.clone(), Value::Node(None), Seq(9), began);
    assert!(cache.get(&key, None).is_none());
    cache.listed(Ino::ROOT, None, None, before, Seq(9));
    assert!(!is_absent(&cache, 1));
    cache.committed(acl.clone(), Value::Anyone(true), Seq(0), began);
    assert!(cache.get(&acl, None).is_some(), "what never changes is no matter");
    cache.committed(key.clone(), Value::Node(None), Seq(9), Instant::now());
    cache.listed(Ino::ROOT, None, None, cache.before(Ino::ROOT), Seq(9));
    assert!(cache.get(&key, None).is_some() && is_absent(&cache, 1));
}

#[test]
fn an_own_commit_that_began_before_all_was_forgotten_outdates_what_was_read_since() {
    let absent =
        |seq| Facts { seq: Seq(seq), records: vec![Record::Edge(Ino::ROOT, Name::new(b"a").unwrap(), None)] };
    let key = Key::Edge(Ino::ROOT, Name::new(b"a").unwrap());
    for is_read_before in [true, false] {
        let cache = Cache::new(1000, AclKind::Posix);
        let began = Instant::now();
        cache.clear();
        let asked = Instant::now();
        if is_read_before {
            cache.absorb(&absent(8), asked);
        }
        cache.committed(key.clone(), edge(7), Seq(9), began);
        if !is_read_before {
            cache.absorb(&absent(8), asked);
        }
        assert!(cache.get(&key, None).is_none(), "the name is there since 9, and nobody says so again");
        cache.absorb(&absent(10), Instant::now());
        assert!(cache.get(&key, None).is_some());
    }
}
