use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meta::{
    Change, Changes, Counter, Effect, Engine, EngineError, Inode, Invalidation, MemEngine, Outcome, Page,
    Quota, QuotaKey, QuotaRule, QuotaState, QuotaTag, Record, RecordKey, Scan, Seq, Settings, Snapshot,
    SnapshotReader, Txn, Volume,
};
use types::{
    AclId, CHUNK_BYTES, ChunkIndex, FileType, Ino, Mode, Name, OpId, QuotaId, SessionId, Slice, SliceId,
    SliceSource, Time, XattrName,
};

use super::*;
use crate::line::MAX_SHARES;

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

fn commit(engine: &dyn Engine, effects: Vec<Effect>) {
    static OPS: AtomicU64 = AtomicU64::new(1);
    let op_id = OpId((77 << 64) + u128::from(OPS.fetch_add(1, Ordering::Relaxed)));
    let done = engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
    assert!(matches!(done[..], [Outcome::Committed { .. }]), "{done:?}");
}

fn inode(ino: u64, kind: FileType) -> Inode {
    Inode { parent: Ino(2), ..Inode::new(Ino(ino), kind, Mode::new(0o4750), Time::from_nanos(-5)) }
}

fn blocks(id: u64) -> Slice {
    Slice { pos: 7, len: 100, source: SliceSource::Blocks { id: SliceId(id), offset: 3, size: 200 } }
}

fn tag(directory: u64, owners: bool) -> QuotaTag {
    QuotaTag::new(QuotaId(directory), owners)
}

/// A volume with each kind of record. Some kinds have more records than fit into a page or a transaction.
fn sample() -> Arc<dyn Engine> {
    let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
    Volume::in_memory("sample").format(&*engine).unwrap();
    let entry = |parent, bytes: &[u8], ino, kind| Effect::PutDirent {
        parent: Ino(parent),
        name: name(bytes),
        ino: Ino(ino),
        kind,
    };
    let file = |ino, size| Inode { size, nlink: 1, ..inode(ino, FileType::Regular) };
    let acl = AclId(u128::MAX - 5);
    let mut effects = vec![
        Effect::PutAcl { id: acl, text: "an ACL".into() },
        Effect::PutInode(Inode { default_acl: acl, access_rev: 9, ..inode(3, FileType::Directory) }),
        entry(2, b"d", 3, FileType::Directory),
        Effect::PutInode(Inode { nlink: 2, xattr_blocks: 2, quota: tag(5, true), ..file(4, 50) }),
        entry(3, b"not \xff UTF-8", 4, FileType::Regular),
        entry(3, b"base64:QUJD", 4, FileType::Regular),
        Effect::PutXattr {
            ino: Ino(4),
            name: XattrName::new(b"user.\xfe").unwrap(),
            value: vec![0; 5000].into(),
        },
        Effect::PutInode(Inode { size: 6, ..inode(5, FileType::Symlink) }),
        Effect::PutSymlink { ino: Ino(5), target: b"a\n\"b\"\\"[..].into() },
        entry(2, b"l", 5, FileType::Symlink),
        Effect::PutInode(Inode { rdev: 77, ..inode(6, FileType::BlockDevice) }),
        entry(2, b"b", 6, FileType::BlockDevice),
        // This file is sparse, and so large that its rows are read by a scan.
        Effect::PutInode(file(7, CHUNK_BYTES * 1000)),
        entry(2, b"sparse", 7, FileType::Regular),
    ];
    let append = |ino, chunk, slice| Effect::AppendSlice { ino: Ino(ino), chunk: ChunkIndex(chunk), slice };
    effects.push(append(4, 0, Slice { pos: 0, len: 3, source: SliceSource::Inline(b"\xff12"[..].into()) }));
    effects.push(append(4, 0, Slice { pos: 1, len: 1, source: SliceSource::Hole }));
    effects.extend([1, 500, 999].map(|chunk| append(7, chunk, blocks(chunk))));
    // This file has one slice with many rows, whose order matters.
    for row in 0..=u64::from(MAX_SHARES) * 2 {
        effects.push(append(7, 2, Slice { pos: row as u32, ..blocks(40) }));
        effects.extend((row > 0).then_some(Effect::Share { slice: SliceId(40), rows: 1 }));
    }
    // An unlinked file that is open shares a slice with a linked one.
    effects.push(Effect::PutInode(Inode { nlink: 0, quota: tag(8, true), ..file(8, 9) }));
    effects.extend([append(8, 0, blocks(41)), append(4, 0, blocks(41))]);
    effects.push(Effect::Share { slice: SliceId(41), rows: 1 });
    for ino in 100..2000 {
        effects.push(Effect::PutInode(Inode { quota: tag(8, false), ..file(ino, 0) }));
        effects.push(entry(3, format!("file {ino}").as_bytes(), ino, FileType::Regular));
    }
    effects.extend(
        [(Counter::Ino, 2000), (Counter::Slice, 1000), (Counter::Session, 5)]
            .map(|(counter, value)| Effect::SetCounter { counter, value }),
    );
    effects.push(Effect::PutSetting { name: "maintenance", value: String::new() });
    effects.push(Effect::PutSetting { name: Quota::NEXT_SETTING, value: "9".to_owned() });
    for (key, rule) in rules() {
        effects.push(Effect::PutQuota { key, rule });
        // A dump computes usage from the inodes, so the usage that is stored here does not matter.
        effects.push(Effect::Charge { key, inodes: 77, blocks: -5 });
    }
    commit(&*engine, effects);
    engine
}

/// The quotas of the sample, one inside another.
fn rules() -> [(QuotaKey, QuotaRule); 3] {
    let outer = QuotaRule { root: Ino::ROOT, max_inodes: 9000, soft_blocks: 7, ..QuotaRule::default() };
    let state = QuotaState::Building;
    let inner = QuotaRule { root: Ino(3), outer: QuotaId(5), state, ..QuotaRule::default() };
    let user = QuotaRule { max_blocks: 3, soft_inodes: 2, ..QuotaRule::default() };
    [
        (QuotaKey::Directory(QuotaId(5)), outer),
        (QuotaKey::Directory(QuotaId(8)), inner),
        (QuotaKey::User(0), user),
    ]
}

#[test]
fn quotas_are_loaded_with_the_usage_of_their_inodes() {
    let target = empty();
    load_into(&*target, &written(&sample(), Form::Framed)).unwrap();
    let found = target.scan(&Scan::Quotas { after: None, limit: 10 }).unwrap().snapshot.records;
    let [outer, inner, user] = rules();
    let quota = |(key, rule), inodes, blocks| Record::Quota(key, Some(Quota { inodes, blocks, rule }));
    // The unlinked file, which is in the sample too, is not in the dump.
    let expected = [
        quota(outer, 1901, 3),
        quota(inner, 1900, 0),
        quota(user, 1, 3),
        quota((QuotaKey::Group(0), QuotaRule::default()), 1, 3),
    ];
    assert_eq!(found, expected);
    let tags = [(4, 5, true), (100, 8, false), (7, 0, false)];
    for (ino, directory, owners) in tags {
        let found = target.read(&[RecordKey::Inode(Ino(ino))]).unwrap().records;
        let [Record::Inode(_, Some(inode))] = &found[..] else { panic!("{found:?}") };
        assert_eq!(inode.quota, QuotaTag::new(QuotaId(directory), owners));
    }
    let setting = settings(&*target).get(Quota::NEXT_SETTING).cloned();
    assert_eq!(setting.as_deref(), Some("9"));
}

fn written(engine: &Arc<dyn Engine>, form: Form) -> Vec<u8> {
    let head = FirstLine { version: VERSION, id: "an-id".into(), created: 1 };
    let mut writer = Writer::new(Vec::new(), form, head).unwrap();
    dump::<DumpError>(&mut Live(Arc::clone(engine)), true, &mut |line| writer.put(&line)).unwrap();
    writer.finish().unwrap().0
}

fn reader(bytes: &[u8]) -> Result<Reader, DumpError> {
    Reader::open(Box::new(Cursor::new(bytes.to_vec())))
}

fn checked(bytes: &[u8]) -> Result<CheckedDump, DumpError> {
    check(reader(bytes)?, &mut |_| {})
}

fn load_into(engine: &dyn Engine, bytes: &[u8]) -> Result<(), DumpError> {
    load(engine, &checked(bytes)?, reader(bytes)?, "random", &mut |_| {})
}

fn settings(engine: &dyn Engine) -> Settings {
    match engine.read(&[RecordKey::Settings]).unwrap().records.pop() {
        Some(meta::Record::Settings(settings)) => Settings::clone(&settings),
        other => panic!("{other:?}"),
    }
}

fn empty() -> Arc<dyn Engine> {
    Arc::new(MemEngine::default())
}

#[test]
fn loaded_volume_has_all_records_and_its_own_mark() {
    let source = sample();
    let json = written(&source, Form::Json);
    for form in [Form::Framed, Form::Json] {
        let bytes = written(&source, form);
        let target = empty();
        load_into(&*target, &bytes).unwrap();
        assert_eq!(String::from_utf8(written(&target, Form::Json)), String::from_utf8(json.clone()));
        let (whole, mut live) = (checked(&bytes).unwrap(), Live(Arc::clone(&target)));
        compare(&whole, &mut reader(&bytes).unwrap(), &mut live, &mut |_| {}).unwrap();
        let volume = Volume::load(&*target).unwrap();
        assert!(checked(&bytes).unwrap().is_loaded_as(&volume), "{volume:?}");
        assert!(
            volume.is_same_volume(&Volume { loaded: volume.loaded.clone(), ..Volume::in_memory("sample") })
        );
        assert_eq!(settings(&*target)[Volume::LOADING], "");
    }
    assert!(written(&source, Form::Framed).len() * 4 < json.len());
}

#[test]
fn an_unfinished_copy_is_left_out() {
    let source = sample();
    let before = written(&source, Form::Json);
    let entry =
        |parent, ino, kind| Effect::PutDirent { parent: Ino(parent), name: name(b"x"), ino: Ino(ino), kind };
    let copy = vec![
        // The file has a lower number than the directories above it.
        Effect::PutInode(Inode { nlink: 1, parent: Ino(0), ..inode(900_001, FileType::Regular) }),
        Effect::PutInode(Inode { nlink: 0, ..inode(900_003, FileType::Directory) }),
        Effect::PutOrphan { session: types::SessionId(1), ino: Ino(900_003) },
        Effect::PutInode(Inode { parent: Ino(900_003), ..inode(900_002, FileType::Directory) }),
        entry(900_003, 900_002, FileType::Directory),
        entry(900_002, 900_001, FileType::Regular),
    ];
    let txn = Txn { op_id: types::OpId(1 << 100), guards: Vec::new(), effects: copy };
    source.commit(&[txn]).unwrap();
    let ends = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        // The first line has the id of the dump, and the last one a checksum.
        text.lines().skip(1).filter(|line| !line.contains("\"end\"")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ends(&written(&source, Form::Json)), ends(&before));
}

/// The engine has no snapshots, and a directory is copied during the dump.
#[test]
fn copy_during_a_live_dump_is_in_it_or_fails_it() {
    let dir = |ino, nlink, parent| Inode { nlink, parent: Ino(parent), ..inode(ino, FileType::Directory) };
    let entry = |parent: u64, text: &[u8], ino, kind| Effect::PutDirent {
        parent: Ino(parent),
        name: name(text),
        ino: Ino(ino),
        kind,
    };
    let orphan = (types::SessionId(1), Ino(900_001));
    let begin = || {
        vec![
            Effect::PutInode(dir(900_001, 0, Ino::ROOT.0)),
            Effect::PutOrphan { session: orphan.0, ino: orphan.1 },
            Effect::PutInode(inode(900_002, FileType::Regular)),
            entry(900_001, b"x", 900_002, FileType::Regular),
        ]
    };
    let end = || {
        vec![
            entry(Ino::ROOT.0, b"copy", 900_001, FileType::Directory),
            Effect::AddLinks { ino: orphan.1, delta: 2 },
            Effect::DropOrphan { session: orphan.0, ino: orphan.1 },
        ]
    };
    // The operations that were committed before the dump and during it, and whether the dump succeeds.
    for (before, during, succeeds) in [
        (vec![begin()], vec![end()], false),
        (vec![], vec![begin()], false),
        (vec![], vec![begin(), end()], true),
    ] {
        let engine = sample();
        let commit = |all: Vec<Vec<Effect>>| {
            for effects in all {
                let op_id = types::OpId(u128::from(effects.len() as u64) << 100);
                engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
            }
        };
        commit(before);
        let mut waiting = Some(during);
        let mut progress = |_| {
            commit(waiting.take().unwrap_or_default());
            Ok(())
        };
        let head = FirstLine { version: VERSION, id: "an-id".into(), created: 1 };
        let mut writer = Writer::new(Vec::new(), Form::Json, head).unwrap();
        let spool = tempfile::tempfile().unwrap();
        let live: Arc<dyn Engine> = engine.clone();
        match dump_live(&live, spool, &mut progress, &mut |line| writer.put(&line)) {
            Ok(()) => {
                assert!(succeeds);
                let live = String::from_utf8(writer.finish().unwrap().0).unwrap();
                let expected = String::from_utf8(written(&engine, Form::Json)).unwrap();
                assert!(live.lines().eq(expected.lines()) && live.contains("900002"), "{live}");
            }
            Err(error) => assert!(!succeeds && matches!(error, DumpError::Copying), "{error}"),
        }
    }
}

#[test]
fn records_of_unlinked_files_are_left_out_and_not_counted() {
    let text = String::from_utf8(written(&sample(), Form::Json)).unwrap();
    let mut shared: BTreeMap<u64, u64> = BTreeMap::new();
    for line in text.lines().map(|line| serde_json::from_str(line).unwrap()) {
        match line {
            Line::Shared { slice, rows } => *shared.entry(slice).or_default() += rows,
            Line::Rows { ino, .. } => assert_ne!(ino, 8),
            Line::Inode(inode) => assert_ne!(inode.ino, 8),
            _ => {}
        }
    }
    assert_eq!(shared, BTreeMap::from([(40, u64::from(MAX_SHARES) * 2)]));
}

/// The most effects that [`Failing`] accepts in a transaction.
const FEW: usize = 100;

/// Rejects large transactions, and fails every second commit of others, alternately before and after it is
/// done.
#[derive(Debug)]
struct Failing(Arc<dyn Engine>, AtomicU64);

impl Engine for Failing {
    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let failed = || Err(EngineError::indeterminate("lost"));
        if txns.iter().any(|txn| txn.effects.len() > FEW) {
            return Err(EngineError::permanent("too many effects"));
        }
        match self.1.fetch_add(1, Ordering::Relaxed) % 4 {
            1 => failed(),
            3 => {
                self.0.commit(txns)?;
                failed()
            }
            _ => self.0.commit(txns),
        }
    }

    meta::pass_on! { (.0) read scan sync wipe }
}

#[test]
fn interrupted_load_goes_on_and_stores_each_record_once() {
    let source = sample();
    let bytes = written(&source, Form::Framed);
    let target = empty();
    let failing = Failing(Arc::clone(&target), AtomicU64::new(0));
    let mut attempts = 0;
    let checked = checked(&bytes).unwrap();
    while let Err(error) = load_into(&failing, &bytes) {
        // The last commit was done, but its answer was lost.
        if Volume::load(&*target).is_ok_and(|volume| checked.is_loaded_as(&volume)) {
            break;
        }
        assert!(matches!(error, DumpError::Engine(_)), "{error}");
        attempts += 1;
        assert!(attempts < 100);
        assert!(matches!(Volume::load(&*target), Err(meta::VolumeError::Loading)));
    }
    assert!(attempts > 2, "{attempts}");
    assert_eq!(written(&target, Form::Json), written(&source, Form::Json));
    let shared = target.scan(&Scan::Shared { after: SliceId(0), limit: 10 }).unwrap().snapshot.records;
    assert_eq!(shared, [meta::Record::Shared(SliceId(40), u64::from(MAX_SHARES) * 2)]);
    let garbage = target.scan(&Scan::Garbage { after: SliceId(0), limit: 10 }).unwrap().snapshot.records;
    assert_eq!(garbage, []);
}

#[test]
fn interrupted_load_takes_no_other_dump_and_no_format() {
    let bytes = written(&sample(), Form::Framed);
    let target = empty();
    let failing = Failing(Arc::clone(&target), AtomicU64::new(0));
    load_into(&failing, &bytes).unwrap_err();
    let before = settings(&*target);
    let head = FirstLine { version: VERSION, id: "other".into(), created: 1 };
    let mut writer = Writer::new(Vec::new(), Form::Framed, head).unwrap();
    dump::<DumpError>(&mut Live(sample()), true, &mut |line| writer.put(&line)).unwrap();
    let (other, _) = writer.finish().unwrap();
    assert!(matches!(load_into(&*target, &other), Err(DumpError::OtherDump)));
    let format = Volume::in_memory("other").format(&*target);
    assert!(matches!(format, Err(meta::VolumeError::Loading)), "{format:?}");
    assert_eq!(settings(&*target), before);
}

/// An engine on which wipe fails.
#[derive(Debug)]
struct Unwiped(Arc<dyn Engine>);

impl Engine for Unwiped {
    fn wipe(&self) -> Result<(), EngineError> {
        Err(EngineError::transient("lost"))
    }

    meta::pass_on! { (.0) read commit scan sync }
}

#[test]
fn a_load_does_not_go_on_after_its_removal_began() {
    let bytes = written(&sample(), Form::Framed);
    let target = empty();
    assert!(matches!(discard(&*target), Err(DumpError::NotLoading)));
    load_into(&Failing(Arc::clone(&target), AtomicU64::new(0)), &bytes).unwrap_err();
    for _ in 0..2 {
        assert!(matches!(discard(&Unwiped(Arc::clone(&target))), Err(DumpError::Engine(_))));
        let again = load_into(&*target, &bytes);
        assert!(matches!(again, Err(DumpError::Discarded)), "{again:?}");
        assert!(matches!(Volume::load(&*target), Err(meta::VolumeError::Loading)));
    }
    discard(&*target).unwrap();
    load_into(&*target, &bytes).unwrap();
    assert!(matches!(discard(&*target), Err(DumpError::NotLoading)));
}

#[test]
fn a_dump_that_is_replaced_during_its_load_is_refused() {
    let bytes = written(&sample(), Form::Framed);
    let checked = checked(&bytes).unwrap();
    let id = reader(&bytes).unwrap().head().id.clone();
    for (id, starts) in [(id, true), ("other".to_owned(), false)] {
        let small = empty();
        Volume::in_memory("small").format(&*small).unwrap();
        let mut writer =
            Writer::new(Vec::new(), Form::Framed, FirstLine { version: VERSION, id, created: 1 }).unwrap();
        dump::<DumpError>(&mut Live(small), true, &mut |line| writer.put(&line)).unwrap();
        let (other, _) = writer.finish().unwrap();
        let target = empty();
        let done = load(&*target, &checked, reader(&other).unwrap(), "random", &mut |_| {});
        let error = done.unwrap_err().to_string();
        assert!(error.contains("replaced"), "{error}");
        let loaded = Volume::load(&*target);
        assert_eq!(matches!(loaded, Err(meta::VolumeError::Loading)), starts, "{loaded:?}");
        assert!(loaded.is_err());
        // Records of the other dump may be stored, so the right dump must not continue there.
        assert_eq!(matches!(load_into(&*target, &bytes), Err(DumpError::Discarded)), starts);
    }
}

#[test]
fn load_onto_a_volume_changes_nothing() {
    let bytes = written(&sample(), Form::Framed);
    let target = sample();
    let before = written(&target, Form::Json);
    assert!(matches!(load_into(&*target, &bytes), Err(DumpError::NotEmpty)));
    assert_eq!((written(&target, Form::Json), settings(&*target)), (before, settings(&*sample())));
}

/// After the first commit of a load, runs another load of the same dump to its end.
#[derive(Debug)]
struct Raced(Arc<dyn Engine>, Vec<u8>, AtomicU64);

impl Engine for Raced {
    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        if self.2.fetch_add(1, Ordering::Relaxed) == 1 {
            load_into(&*self.0, &self.1).unwrap();
        }
        self.0.commit(txns)
    }

    meta::pass_on! { (.0) read scan sync wipe }
}

#[test]
fn two_loads_at_the_same_time_do_not_mix() {
    let source = sample();
    let bytes = written(&source, Form::Framed);
    let target = empty();
    let raced = Raced(Arc::clone(&target), bytes.clone(), AtomicU64::new(0));
    assert!(matches!(load_into(&raced, &bytes), Err(DumpError::OtherProcess)));
    assert_eq!(written(&target, Form::Json), written(&source, Form::Json));
}

#[test]
fn dump_that_is_cut_off_or_changed_anywhere_is_refused() {
    let small: Arc<dyn Engine> = empty();
    Volume::in_memory("small").format(&*small).unwrap();
    for form in [Form::Framed, Form::Json] {
        let whole = written(&small, form);
        checked(&whole).unwrap();
        for end in 0..whole.len() {
            assert!(checked(&whole[..end]).is_err(), "{form:?} of {end} bytes");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(checked(&changed).is_err(), "{form:?} changed at {at}");
        }
        assert!(checked(&[&whole[..], b"x"].concat()).is_err());
        assert!(checked(&[&whole[..], &whole[..]].concat()).is_err());
    }
    let json = String::from_utf8(written(&small, Form::Json)).unwrap();
    let mut lines: Vec<&str> = json.lines().collect();
    lines.swap(3, 4);
    assert!(checked(format!("{}\n", lines.join("\n")).as_bytes()).is_err());
}

#[test]
fn frames_in_another_order_are_refused() {
    let mut writer =
        Writer::new(Vec::new(), Form::Framed, FirstLine { version: VERSION, id: "i".into(), created: 1 })
            .unwrap();
    let noise = |seed: u64| (0..20_000).map(|at| char::from(b'a' + ((at * at + seed) % 23) as u8)).collect();
    for seed in 0..200 {
        let value = noise(seed);
        writer.put(&Line::Setting { name: format!("s{seed}"), value }).unwrap();
    }
    let bytes = writer.finish().unwrap().0;
    let mut frames = Vec::new();
    let mut at = MAGIC.len() + 4;
    while at < bytes.len() {
        let end = at + 12 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        frames.push(&bytes[at..end]);
        at = end;
    }
    assert!(frames.len() > 3);
    let error = |frames: &[&[u8]]| {
        let mut dump = reader(&[&bytes[..MAGIC.len() + 4], &frames.concat()].concat()).unwrap();
        loop {
            match dump.next() {
                Ok(Some(_)) => {}
                other => return other.map_err(|error| error.to_string()),
            }
        }
    };
    assert_eq!(error(&frames), Ok(None));
    frames.swap(1, 2);
    assert!(error(&frames).unwrap_err().contains("the checksum of a frame is wrong"));
    frames.swap(1, 2);
    frames.remove(1);
    assert!(error(&frames).unwrap_err().contains("the checksum of a frame is wrong"));
}

#[test]
fn newer_and_unknown_dumps_are_refused() {
    let newer = b"{\"dump\":{\"version\":3,\"id\":\"x\",\"created\":1,\"new\":1}}\n";
    assert!(matches!(checked(newer), Err(DumpError::Newer { found: 3 })));
    assert!(matches!(checked(b"limendmp\x03\0\0\0"), Err(DumpError::Newer { found: 3 })));
    for other in [&b""[..], b"{}\n", b"SQLite format 3\0 and more", b"{\"inode\":1}\n", b"{\n"] {
        let error = checked(other).unwrap_err();
        assert!(matches!(error, DumpError::NotADump | DumpError::CutOff { .. }), "{error}");
    }
}

/// Checks a small dump after `change` has edited its lines. Its last line has correct counts and checksum.
fn changed(change: impl FnOnce(&mut Vec<String>)) -> Result<CheckedDump, DumpError> {
    let engine = empty();
    Volume::in_memory("small").format(&*engine).unwrap();
    let text = String::from_utf8(written(&engine, Form::Json)).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.pop();
    change(&mut lines);
    let body = lines.join("\n") + "\n";
    let inodes = lines.iter().filter(|line| line.starts_with("{\"inode\"")).count() as u64;
    let tail = LastLine { lines: lines.len() as u64, inodes, checksum: crc32c::crc32c(body.as_bytes()) };
    let end = serde_json::to_string(&Line::End(tail)).unwrap();
    checked(format!("{body}{end}\n").as_bytes())
}

/// Checks a small dump with one more line before its end.
fn with_line(line: &str) -> Result<CheckedDump, DumpError> {
    changed(|lines| lines.push(line.to_owned()))
}

#[test]
fn records_that_no_engine_can_store_are_refused() {
    with_line("{\"shared\":{\"slice\":1,\"rows\":1}}").unwrap();
    with_line("{\"quota\":{\"of\":\"user\",\"id\":4294967295,\"inodes\":1,\"blocks\":-1,\"state\":2}}")
        .unwrap();
    let row = "{\"pos\":0,\"len\":1},";
    let many_rows =
        format!("{{\"rows\":{{\"ino\":2,\"chunk\":0,\"rows\":[{}]}}}}", row.repeat(17).trim_end_matches(','));
    let long = "x".repeat(70_000);
    let long_xattr = format!("{{\"xattr\":{{\"ino\":2,\"name\":\"user.a\",\"value\":\"{long}\"}}}}");
    let long_data = format!(
        "{{\"rows\":{{\"ino\":2,\"chunk\":0,\"rows\":[{{\"pos\":0,\"len\":70000,\"data\":\"{long}\"}}]}}}}"
    );
    let long_target = format!("{{\"symlink\":{{\"ino\":2,\"target\":\"{}\"}}}}", &long[..4096]);
    for (wrong, says) in [
        ("{\"shared\":{\"slice\":1,\"rows\":17}}", "too many rows"),
        ("{\"shared\":{\"slice\":18446744073709551615,\"rows\":1}}", "too large"),
        ("{\"shared\":{\"slice\":1,\"rows\":1,\"new\":0}}", "unknown field"),
        ("{\"quota\":{}}", "missing field"),
        ("{\"quota\":{\"of\":\"user\",\"id\":4294967296,\"inodes\":1,\"blocks\":1}}", "no user or group"),
        (
            "{\"quota\":{\"of\":\"directory\",\"id\":4611686018427387904,\"inodes\":1,\"blocks\":1}}",
            "too large",
        ),
        (
            "{\"quota\":{\"of\":\"directory\",\"id\":1,\"inodes\":1,\"blocks\":1,\"state\":3}}",
            "unknown state",
        ),
        ("{\"quota\":{\"of\":\"project\",\"id\":1,\"inodes\":1,\"blocks\":1}}", "unknown variant"),
        ("{\"counter\":{\"name\":\"next_thing\",\"next\":1}}", "unknown counter"),
        ("{\"entry\":{\"dir\":2,\"name\":\"a/b\",\"ino\":3,\"kind\":\"regular\"}}", ""),
        ("{\"entry\":{\"dir\":2,\"name\":\"base64:?\",\"ino\":3,\"kind\":\"regular\"}}", "Invalid"),
        ("{\"entry\":{\"dir\":2,\"name\":\"a\",\"ino\":3,\"kind\":\"door\"}}", "unknown variant"),
        ("{\"xattr\":{\"ino\":2,\"name\":\"\",\"value\":\"x\"}}", ""),
        ("{\"acl\":{\"id\":\"12\",\"text\":\"x\"}}", "not the id of an ACL"),
        ("{\"rows\":{\"ino\":2,\"chunk\":0,\"rows\":[{\"pos\":0,\"len\":2,\"data\":\"x\"}]}}", "malformed"),
        ("{\"rows\":{\"ino\":2,\"chunk\":0,\"rows\":[{\"pos\":67108864,\"len\":1}]}}", "exceeds its chunk"),
        ("{\"dump\":{\"version\":1,\"id\":\"x\",\"created\":1}}", "two first lines"),
        (&many_rows, "more than 16 rows"),
        (&long_xattr, "longer than 65536 bytes"),
        (&long_data, "longer than 65536 bytes"),
        (&long_target, "longer than 4095 bytes"),
    ] {
        let error = with_line(wrong).expect_err(wrong).to_string();
        assert!(error.contains("the dump is damaged") && error.contains(says), "{wrong}: {error}");
    }
    let newer = changed(|lines| {
        lines.iter_mut().for_each(|line| {
            *line = line.replace("\"format_version\",\"value\":\"1\"", "\"format_version\",\"value\":\"99\"");
        })
    });
    assert!(newer.unwrap_err().to_string().contains("newer limen"));
}

#[test]
fn lines_that_occur_twice_or_out_of_order_are_refused() {
    let file = |ino: u64| {
        let inode = Inode {
            parent: Ino(2),
            ..Inode::new(Ino(ino), FileType::Regular, Mode::new(0o644), Time::from_nanos(1))
        };
        serde_json::to_string(&Line::Inode(Box::new((&inode).into()))).unwrap()
    };
    let entry = |dir: u64, name: &str| {
        format!("{{\"entry\":{{\"dir\":{dir},\"name\":\"{name}\",\"ino\":9,\"kind\":\"regular\"}}}}")
    };
    let xattr = |ino: u64, name: &str| {
        format!("{{\"xattr\":{{\"ino\":{ino},\"name\":\"user.{name}\",\"value\":\"x\"}}}}")
    };
    let rows = |ino: u64, chunk: u64| {
        format!("{{\"rows\":{{\"ino\":{ino},\"chunk\":{chunk},\"rows\":[{{\"pos\":0,\"len\":1}}]}}}}")
    };
    let target = |ino: u64| format!("{{\"symlink\":{{\"ino\":{ino},\"target\":\"x\"}}}}");
    let acl = |id: u64| format!("{{\"acl\":{{\"id\":\"{id:032x}\",\"text\":\"x\"}}}}");
    let shared = |slice: u64| format!("{{\"shared\":{{\"slice\":{slice},\"rows\":1}}}}");
    let quota = |of: &str, id: u64| {
        format!("{{\"quota\":{{\"of\":\"{of}\",\"id\":{id},\"inodes\":1,\"blocks\":1}}}}")
    };
    let setting = "{\"setting\":{\"name\":\"zzz\",\"value\":\"x\"}}".to_owned();
    let with = |more: &[String]| changed(|lines| lines.extend(more.iter().cloned()));
    let good = [
        entry(2, "a"),
        entry(2, "b"),
        file(9),
        xattr(9, "a"),
        xattr(9, "b"),
        rows(9, 0),
        rows(9, 0),
        rows(9, 7),
        file(10),
        shared(3),
        shared(3),
        shared(4),
        quota("directory", 9),
        quota("user", 1),
        quota("group", 0),
    ];
    with(&good).unwrap();
    for (more, says) in [
        (vec![entry(2, "a"), entry(2, "a")], "entry \"a\" of directory 2 occurs twice"),
        (vec![entry(2, "b"), entry(2, "a")], "is not in order"),
        (vec![file(9), file(9)], "inode 9 occurs twice"),
        (vec![file(9), file(8)], "inode 8 is not in order"),
        (vec![file(9), xattr(9, "a"), xattr(9, "a")], "occurs twice"),
        (vec![file(9), rows(9, 1), rows(9, 0)], "chunk 0 of inode 9 is not in order"),
        (vec![file(9), rows(9, 0), xattr(9, "a")], "is not in order"),
        (vec![file(9), xattr(10, "a")], "follows inode 9"),
        (vec![file(9), entry(2, "a")], "is not in order"),
        (vec![file(9), entry(9, "a")], "cannot belong to an inode of type"),
        (vec![file(9), target(9)], "cannot belong to an inode of type"),
        (vec![rows(2, 0)], "cannot belong to an inode of type"),
        (vec![acl(1)], "is not in order"),
        (vec![setting.clone()], "is not in order"),
        (vec![shared(3), shared(2)], "is not in order"),
        (vec![shared(3), file(9)], "is not in order"),
        (vec![quota("user", 1), quota("user", 1)], "occurs twice"),
        (vec![quota("user", 1), quota("directory", 2)], "is not in order"),
        (vec![quota("user", 1), shared(9)], "is not in order"),
        (vec![file(1 << 62)], "too large"),
        (vec![file(9).replace("\"nlink\":1", "\"nlink\":0")], "inode 9 has no link"),
    ] {
        let error = with(&more).expect_err(says).to_string();
        assert!(error.contains(says), "{more:?}: {error}");
    }
}

#[test]
fn dump_without_a_root_or_with_wrong_counters_is_refused() {
    let position = |lines: &[String], part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
    let replaced = |from: &'static str, to: &'static str| {
        changed(|lines| {
            let at = position(lines, from);
            lines[at] = lines[at].replace(from, to);
        })
    };
    let without = |part: &'static str| changed(|lines| _ = lines.remove(position(lines, part)));
    let counter = "\"name\":\"next_slice\",\"next\":1";
    for (done, says) in [
        (without("{\"inode\""), "no root directory"),
        (replaced("\"ino\":2,", "\"ino\":3,"), "no root directory: its first inode is 3"),
        (replaced("\"kind\":\"directory\"", "\"kind\":\"regular\""), "no root directory"),
        (replaced("\"parent\":2", "\"parent\":5"), "no root directory"),
        (without("next_ino"), "no counter 'next_ino'"),
        (without("next_session"), "no counter 'next_session'"),
        (replaced(counter, "\"name\":\"next_slice\",\"next\":0"), "counter 'next_slice' cannot be 0"),
        (
            replaced(counter, "\"name\":\"next_slice\",\"next\":4611686018427387905"),
            "counter 'next_slice' cannot be",
        ),
        (replaced("next_slice", "next_ino"), "counter 'next_ino' occurs twice"),
        (replaced("\"name\":\"uuid\"", "\"name\":\"storage\""), "setting 'storage' is not in order"),
        (without("\"name\":\"uuid\""), "setting 'uuid' is missing"),
    ] {
        let error = done.expect_err(says).to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[test]
fn counters_that_are_too_low_are_raised() {
    let source = empty();
    Volume::in_memory("low").format(&*source).unwrap();
    commit(
        &*source,
        vec![
            Effect::PutInode(Inode { size: 100, ..inode(77, FileType::Regular) }),
            Effect::AppendSlice { ino: Ino(77), chunk: ChunkIndex(0), slice: blocks(55) },
        ],
    );
    let target = empty();
    let bytes = written(&source, Form::Framed);
    load_into(&*target, &bytes).unwrap();
    let next = target.read(&Counter::ALL.map(RecordKey::Counter)).unwrap().records;
    let expected = [(Counter::Ino, 78), (Counter::Slice, 56), (Counter::Session, 1)];
    assert_eq!(next, expected.map(|(counter, next)| Record::Counter(counter, next)));
    let mut live = Live(target);
    compare(&checked(&bytes).unwrap(), &mut reader(&bytes).unwrap(), &mut live, &mut |_| {}).unwrap();
}

#[test]
fn first_line_is_bounded() {
    let head = |id: &str, more: &str| {
        format!("{{\"dump\":{{\"version\":2,\"id\":\"{id}\",\"created\":1{more}}}}}\n")
    };
    reader(head(&"x".repeat(64), "").as_bytes()).unwrap();
    for id in ["", "a b", "a\\n", "\u{e9}", &"x".repeat(65)] {
        let error = reader(head(id, "").as_bytes()).unwrap_err();
        assert!(error.to_string().contains("its id is malformed"), "{id}: {error}");
    }
    let long = format!(",\"new\":[{}0]", "0,".repeat(3000));
    assert!(matches!(reader(head("x", &long).as_bytes()), Err(DumpError::NotADump)));
    assert!(matches!(reader(head("x", ",\"new\":0").as_bytes()), Err(DumpError::Damaged { .. })));
}

#[test]
fn differences_between_volume_and_dump_are_found() {
    let bytes = written(&sample(), Form::Framed);
    let compare = |effects: Vec<Effect>| {
        let target = empty();
        load_into(&*target, &bytes).unwrap();
        commit(&*target, effects);
        let mut live = Live(target);
        compare(
            &checked(&bytes).unwrap(),
            &mut reader(&bytes).unwrap(),
            &mut live as &mut dyn SnapshotReader,
            &mut |_| {},
        )
    };
    compare(vec![Effect::SetCounter { counter: Counter::Ino, value: 2500 }]).unwrap();
    let drop_name = Effect::DropDirent { parent: Ino(3), name: name(b"file 250") };
    let extra = Effect::PutInode(inode(9000, FileType::Fifo));
    let less = Effect::SetCounter { counter: Counter::Ino, value: 3 };
    let size = Effect::SetSize { ino: Ino(4), size: 51 };
    for effect in [drop_name, extra, less, size] {
        let error = compare(vec![effect.clone()]).unwrap_err();
        assert!(matches!(error, DumpError::Differs(_)), "{effect:?}: {error}");
    }
}

/// Changes the volume before and after each read of a dump, at most `left` times.
#[derive(Debug)]
struct Busy {
    inner: Arc<dyn Engine>,
    left: AtomicU64,
    next: Mutex<u64>,
}

impl Busy {
    fn change(&self) {
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            return;
        }
        let mut next = self.next.lock().unwrap();
        *next += 1;
        let (count, ino) = (*next, Ino(5000 + *next));
        let file = format!("new {count}");
        let mut effects = vec![
            Effect::PutInode(Inode { nlink: 1, size: count % 3, ..inode(ino.0, FileType::Regular) }),
            Effect::PutDirent { parent: Ino(3), name: name(file.as_bytes()), ino, kind: FileType::Regular },
            Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice: blocks(5000 + count) },
            Effect::SetSize { ino: Ino(100 + count % 300), size: count },
            Effect::SetCounter { counter: Counter::Ino, value: ino.0 + 1 },
            Effect::PutSetting { name: "capacity_bytes", value: count.to_string() },
        ];
        if count % 4 == 0 {
            let rule = QuotaRule { max_inodes: count, ..QuotaRule::default() };
            effects.push(Effect::PutQuota { key: QuotaKey::User(count as u32 % 3), rule });
            effects.push(Effect::PutSetting { name: Quota::NEXT_SETTING, value: count.to_string() });
        }
        // Change records that the dump scans first, that it scans last, and that belong to a large file.
        let old = match count % 5 {
            0 => Effect::SetTimes { ino: Ino(3), atime: None, mtime: Some(Time::from_nanos(9)), ctime: None },
            1 => Effect::AppendSlice { ino: Ino(7), chunk: ChunkIndex(count), slice: blocks(40) },
            // Only one ACL is stored, because an ACL that nothing uses any more may be left out.
            2 => Effect::PutAcl { id: AclId(12), text: "new".into() },
            3 => Effect::PutXattr {
                ino: Ino(2),
                name: XattrName::new(b"user.new").unwrap(),
                value: vec![1].into(),
            },
            _ => Effect::DropInode { ino: Ino(399 - count % 250) },
        };
        match old {
            Effect::AppendSlice { .. } => effects.push(Effect::Share { slice: SliceId(40), rows: 1 }),
            Effect::PutXattr { .. } if count < 5 => {
                effects.push(Effect::AddXattrBlocks { ino: Ino(2), delta: 1 })
            }
            Effect::PutAcl { id, .. } => {
                let access =
                    meta::Access { access_acl: id, ..meta::Access::from(&inode(4, FileType::Regular)) };
                effects.push(Effect::SetAccess { ino: Ino(4), access });
            }
            Effect::DropInode { ino } => {
                let name = name(format!("file {ino}").as_bytes());
                effects.push(Effect::DropDirent { parent: Ino(3), name });
            }
            _ => {}
        }
        effects.push(old);
        // Rename a new file into another directory.
        if count > 3 {
            let (from, to) = (format!("new {}", count - 3), format!("moved {}", count - 3));
            let ino = Ino(5000 + count - 3);
            effects.push(Effect::DropDirent { parent: Ino(3), name: name(from.as_bytes()) });
            effects.push(Effect::PutDirent {
                parent: Ino(2),
                name: name(to.as_bytes()),
                ino,
                kind: FileType::Regular,
            });
        }
        commit(&*self.inner, effects);
    }
}

impl Engine for Busy {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.change();
        let read = self.inner.read(keys);
        self.change();
        read
    }

    meta::pass_on! { (.inner) commit sync wipe watch }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.change();
        self.inner.scan(scan)
    }
}

fn written_live(busy: impl Engine + 'static) -> Result<Vec<u8>, DumpError> {
    let head = FirstLine { version: VERSION, id: "an-id".into(), created: 1 };
    let mut writer = Writer::new(Vec::new(), Form::Json, head).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(busy);
    let spool = tempfile::tempfile().unwrap();
    dump_live(&engine, spool, &mut |_| Ok(()), &mut |line| writer.put(&line))?;
    Ok(writer.finish().unwrap().0)
}

#[test]
fn dump_of_a_changing_volume_shows_one_moment() {
    for changes in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
        let inner = sample();
        let busy = Busy { inner: Arc::clone(&inner), left: AtomicU64::new(changes), next: Mutex::new(0) };
        let live = String::from_utf8(written_live(busy).unwrap()).unwrap();
        let expected = String::from_utf8(written(&inner, Form::Json)).unwrap();
        for (line, (live, expected)) in live.lines().zip(expected.lines()).enumerate() {
            assert_eq!(live, expected, "line {line} after {changes} changes");
        }
        assert_eq!(live.len(), expected.len());
    }
}

#[test]
fn dump_of_a_volume_that_changes_without_pause_fails() {
    let busy = Busy { inner: sample(), left: AtomicU64::new(u64::MAX), next: Mutex::new(1_000_000) };
    let error = written_live(busy).unwrap_err();
    assert!(matches!(error, DumpError::TooFast), "{error}");
}

/// A volume that never rests, on an engine that shows a moment for a short time. It drops the first moment
/// after `answers` requests.
#[derive(Debug)]
struct BusyWithMoments {
    busy: Busy,
    moments: Arc<Mutex<Vec<Moment>>>,
    answers: u64,
}

#[derive(Clone, Debug)]
struct Moment {
    records: Arc<dyn Engine>,
    /// The number of requests that are still answered.
    left: u64,
}

impl Moment {
    fn check(&mut self) -> Result<(), EngineError> {
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| EngineError::transient("the moment was dropped"))?;
        Ok(())
    }
}

impl SnapshotReader for Moment {
    fn read(&mut self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.check()?;
        self.records.read(keys)
    }

    fn scan(&mut self, scan: &Scan) -> Result<Page, EngineError> {
        self.check()?;
        self.records.scan(scan)
    }

    fn is_lasting(&self) -> bool {
        false
    }
}

impl Engine for BusyWithMoments {
    meta::pass_on! { (.busy) read commit scan sync wipe watch }

    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        let records = empty();
        load_into(&*records, &written(&self.busy.inner, Form::Framed)).unwrap();
        // So many changes that one request cannot read all changed records.
        (0..40).for_each(|_| self.busy.change());
        let mut moments = self.moments.lock().unwrap();
        let moment = Moment { records, left: if moments.is_empty() { self.answers } else { u64::MAX } };
        moments.push(moment.clone());
        Ok(Some(Box::new(moment)))
    }
}

#[test]
fn dump_of_a_volume_that_never_rests_is_of_a_moment_that_the_engine_shows() {
    for answers in 0..6 {
        let busy = Busy { inner: sample(), left: AtomicU64::new(u64::MAX), next: Mutex::new(0) };
        let moments = Arc::default();
        let engine = BusyWithMoments { busy, moments: Arc::clone(&moments), answers };
        let live = String::from_utf8(written_live(engine).unwrap()).unwrap();
        let moments = moments.lock().unwrap();
        assert!(moments.len() == 2 || answers >= 2, "the first moment was dropped too early");
        let expected = String::from_utf8(written(&moments.last().unwrap().records, Form::Json)).unwrap();
        assert!(live.lines().eq(expected.lines()), "after {answers} answers");
    }
}

/// A stream that returns one more change with each answer.
#[derive(Debug)]
struct Endless;

impl Changes for Endless {
    fn next(&mut self, _wait: Duration) -> Result<Vec<Change>, EngineError> {
        let invalidations = vec![Invalidation::Inode(Ino::ROOT)];
        Ok(vec![Change { seq: Seq(1), by: SessionId(1), invalidations }])
    }
}

#[derive(Debug)]
struct NeverEmpty(Arc<dyn Engine>);

impl Engine for NeverEmpty {
    meta::pass_on! { (.0) read commit scan sync wipe }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(Some(Box::new(Endless)))
    }
}

/// On etcd, a busy volume has changes in every answer.
#[test]
fn dump_beside_a_stream_that_is_never_empty_ends() {
    let engine: Arc<dyn Engine> = Arc::new(NeverEmpty(sample()));
    let spool = tempfile::tempfile().unwrap();
    dump_live(&engine, spool, &mut |_| Ok(()), &mut |_| Ok(())).unwrap();
}

/// Appends a row to file 7, which has 1000 chunks, before and after each read of a dump, without limit. If
/// `grows` is true, the file also becomes longer by a chunk.
#[derive(Debug)]
struct BusyFile {
    inner: Arc<dyn Engine>,
    count: AtomicU64,
    chunks: u64,
    grows: bool,
}

impl BusyFile {
    fn change(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let chunks = if self.grows { self.chunks + count } else { self.chunks };
        commit(
            &*self.inner,
            vec![
                Effect::AppendSlice {
                    ino: Ino(7),
                    chunk: ChunkIndex(count * 37 % chunks),
                    slice: Slice { pos: 0, len: count as u32, source: SliceSource::Hole },
                },
                Effect::SetSize { ino: Ino(7), size: chunks * CHUNK_BYTES },
                Effect::SetTimes {
                    ino: Ino(7),
                    atime: None,
                    mtime: Some(Time::from_nanos(count as i64)),
                    ctime: None,
                },
            ],
        );
    }
}

impl Engine for BusyFile {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.change();
        let read = self.inner.read(keys);
        self.change();
        read
    }

    meta::pass_on! { (.inner) commit sync wipe watch }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.change();
        self.inner.scan(scan)
    }
}

fn dump_of_busy_file(chunks: u64, grows: bool) -> Result<String, DumpError> {
    let inner = sample();
    commit(&*inner, vec![Effect::SetSize { ino: Ino(7), size: chunks * CHUNK_BYTES }]);
    let engine: Arc<dyn Engine> = Arc::new(BusyFile { inner, count: AtomicU64::new(0), chunks, grows });
    let head = FirstLine { version: VERSION, id: "an-id".into(), created: 1 };
    let mut writer = Writer::new(Vec::new(), Form::Json, head).unwrap();
    let spool = tempfile::tempfile().unwrap();
    dump_live(&engine, spool, &mut |_| Ok(()), &mut |line| writer.put(&line))?;
    Ok(String::from_utf8(writer.finish().unwrap().0).unwrap())
}

#[test]
fn dump_of_a_large_busy_file_shows_one_moment() {
    for grows in [false, true] {
        let dump = dump_of_busy_file(1000, grows).unwrap();
        checked(dump.as_bytes()).unwrap();
        let of_file = |line: &serde_json::Value, kind: &str| line[kind]["ino"] == 7;
        let lines: Vec<serde_json::Value> =
            dump.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let inode = lines.iter().find(|line| of_file(line, "inode")).unwrap();
        let moment = inode["inode"]["mtime"].as_u64().unwrap();
        let size = 1000 + if grows { moment } else { 0 };
        assert_eq!(inode["inode"]["size"], size * CHUNK_BYTES);
        // The dump has the rows of every change up to that moment, and of no later one.
        let rows = lines
            .iter()
            .filter(|line| of_file(line, "rows"))
            .flat_map(|line| line["rows"]["rows"].as_array().unwrap());
        let mut holes: Vec<u64> =
            rows.filter(|row| row.get("slice").is_none()).map(|row| row["len"].as_u64().unwrap()).collect();
        holes.sort_unstable();
        assert!(moment > 10);
        assert_eq!(holes, (1..=moment).collect::<Vec<_>>());
    }
}

#[test]
fn a_busy_file_that_is_too_large_is_named() {
    let error = dump_of_busy_file(5000, false).unwrap_err();
    assert!(matches!(error, DumpError::BusyFile { ino: 7 }), "{error}");
}

#[test]
fn other_users_cannot_read_the_scratch_file() {
    use std::os::unix::fs::MetadataExt;

    let metadata = scratch().unwrap().metadata().unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.nlink()), (0o600, 0));
}
