//! Tests of scans: their order, and the boundaries of their pages.

use meta::{Effect, Engine, Garbage, Record, RecordKey, Scan, ScanInclude};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, SliceId, SliceSource};

use super::fixture::*;

/// All records of a scan, read in pages of `limit` rows; `next` returns the scan that starts after a record.
fn in_parts(
    engine: &dyn Engine,
    first: Scan,
    limit: usize,
    next: impl Fn(&Record) -> Option<Scan>,
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut range = first;
    loop {
        let page = scan(engine, &range);
        assert!(page.snapshot.records.len() <= limit);
        records.extend(page.snapshot.records);
        if !page.more {
            return records;
        }
        range = records.last().and_then(&next).expect("a page that is not the last has a row");
    }
}

fn dir(after: Option<Name>, limit: usize, include: ScanInclude) -> Scan {
    Scan::Dir { parent: Ino(2), after, limit, include }
}

pub fn directories_are_scanned_in_order(engine: &dyn Engine) {
    let names: [&[u8]; 10] = [b"\x01", b"A", b"Z", b"a", b"a ", b"aa", b"ab", b"b", b"\xc3\xa4", b"\xff\xff"];
    let mut effects = vec![put(2, DIR)];
    for (at, bytes) in names.iter().enumerate().rev() {
        let ino = Ino(10 + at as u64);
        effects.push(Effect::PutDirent { parent: Ino(2), name: name(bytes), ino, kind: FILE });
    }
    // Add adjacent entries of other directories.
    effects.extend([put_dirent(1, "zz", 1), put_dirent(3, "\u{1}", 1)]);
    apply(engine, effects);
    for limit in [1, 2, 3, 9, 10, 11] {
        let records =
            in_parts(engine, dir(None, limit, ScanInclude::Nothing), limit, |record| match record {
                Record::Dirent(_, name, _) => Some(dir(Some(name.clone()), limit, ScanInclude::Nothing)),
                _ => None,
            });
        let found: Vec<&[u8]> = records
            .iter()
            .map(|record| match record {
                Record::Dirent(Ino(2), name, Some(_)) => name.as_bytes(),
                other => panic!("not an entry of the directory: {other:?}"),
            })
            .collect();
        assert_eq!(found, names);
    }
    // A listing resumes after a name that no longer exists.
    let page = scan(engine, &dir(Some(name("aaa")), 1, ScanInclude::Nothing));
    assert!(
        matches!(&page.snapshot.records[..], [Record::Dirent(_, n, Some(_))] if *n == name("ab"))
            && page.more
    );
}

pub fn directories_are_scanned_with_inodes(engine: &dyn Engine) {
    let acls = [AclId(1), AclId(2)];
    let mut with_acls = inode(11, DIR);
    (with_acls.access_acl, with_acls.default_acl) = (acls[0], acls[1]);
    let mut shares_one = inode(12, FILE);
    shares_one.access_acl = acls[0];
    apply(
        engine,
        vec![
            Effect::PutAcl { id: acls[0], text: "one".into() },
            Effect::PutAcl { id: acls[1], text: "two".into() },
            put(10, FILE),
            Effect::PutInode(with_acls),
            Effect::PutInode(shares_one),
            put_dirent(2, "a", 10),
            put_dirent(2, "b", 11),
            put_dirent(2, "c", 12),
            put_dirent(2, "d", 13),
        ],
    );
    let page = scan(engine, &dir(None, 4, ScanInclude::InodesWithAcls));
    assert!(!page.more, "a limit counts entries, not records");
    let inodes: Vec<_> =
        page.snapshot.records.iter().filter(|record| matches!(record, Record::Inode(..))).cloned().collect();
    let expected = [(10, Some(inode(10, FILE))), (11, Some(with_acls)), (12, Some(shares_one)), (13, None)];
    assert_eq!(inodes, expected.map(|(ino, inode)| Record::Inode(Ino(ino), inode)));
    let entries = page.snapshot.records.iter().filter(|record| matches!(record, Record::Dirent(..)));
    assert_eq!(entries.count(), 4);
    for (id, text) in acls.into_iter().zip(["one", "two"]) {
        assert!(page.snapshot.records.contains(&Record::Acl(id, Some(text.into()))));
    }
    // A later page of the same directory contains its own ACLs.
    let page = scan(engine, &dir(Some(name("b")), 1, ScanInclude::InodesWithAcls));
    assert!(page.more && page.snapshot.records.contains(&Record::Acl(acls[0], Some("one".into()))));
    // Without ACLs, the records come in pairs of dirent and inode.
    let page = scan(engine, &dir(None, 3, ScanInclude::Inodes));
    let inode_of = |record: &Record| matches!(record, Record::Inode(..)).then(|| record.clone());
    assert!(page.more);
    assert_eq!(page.snapshot.records.iter().filter_map(inode_of).collect::<Vec<_>>(), inodes[..3]);
    let (pairs, rest) = page.snapshot.records.as_chunks::<2>();
    let is_pair = |[dirent, inode]: &[Record; 2]| match (dirent, inode) {
        (Record::Dirent(_, _, Some(dirent)), Record::Inode(ino, _)) => dirent.ino == *ino,
        _ => false,
    };
    assert!(rest.is_empty() && pairs.iter().all(is_pair), "{page:?}");
    let page = scan(engine, &dir(Some(name("c")), 3, ScanInclude::Inodes));
    assert!(
        matches!(page.snapshot.records[..], [Record::Dirent(..), Record::Inode(Ino(13), None)]),
        "{page:?}"
    );
}

pub fn inodes_are_scanned_in_order(engine: &dyn Engine) {
    let inos = [2, 3, 7, 1 << 32, (1 << 32) + 1, i64::MAX as u64];
    apply(engine, inos.iter().rev().map(|&ino| put(ino, FILE)).collect());
    for limit in [1, 4, 6, 7] {
        let all = in_parts(engine, Scan::Inodes { after: Ino(0), limit }, limit, |record| match record {
            Record::Inode(ino, _) => Some(Scan::Inodes { after: *ino, limit }),
            _ => None,
        });
        assert_eq!(all, inos.map(|ino| Record::Inode(Ino(ino), Some(inode(ino, FILE)))));
    }
}

pub fn orphans_sessions_and_garbage_are_scanned_in_order(engine: &dyn Engine) {
    let mut effects = vec![put(3, FILE)];
    let orphans = [(1, 9), (2, 1), (2, 5), (9, 1)];
    for (at, &(session_id, ino)) in orphans.iter().enumerate().rev() {
        let number = at as u64 + 1;
        effects.push(Effect::PutOrphan { session: SessionId(session_id), ino: Ino(ino) });
        effects.push(Effect::PutSession(session(number)));
        let source = SliceSource::Blocks { id: SliceId(number), offset: 0, size: 1 };
        let slice = Slice { pos: 0, len: 1, source };
        effects.push(Effect::AppendSlice { ino: Ino(3), chunk: ChunkIndex(0), slice });
    }
    effects.push(Effect::DropSlices { ino: Ino(3), from: ChunkIndex(0), to: ChunkIndex(u64::MAX) });
    apply(engine, effects);
    for limit in 1..6 {
        let first = Scan::Orphans { after: (SessionId(0), Ino(0)), limit };
        let all = in_parts(engine, first, limit, |record| match record {
            Record::Orphan(session, ino) => Some(Scan::Orphans { after: (*session, *ino), limit }),
            _ => None,
        });
        assert_eq!(all, orphans.map(|(session, ino)| Record::Orphan(SessionId(session), Ino(ino))));
        let first = Scan::Sessions { after: SessionId(0), limit };
        let all = in_parts(engine, first, limit, |record| match record {
            Record::Session(session, _) => Some(Scan::Sessions { after: *session, limit }),
            _ => None,
        });
        assert_eq!(all, [1, 2, 3, 4].map(found_session));
        let first = Scan::Garbage { after: SliceId(0), limit };
        let all = in_parts(engine, first, limit, |record| match record {
            Record::Garbage(garbage) => Some(Scan::Garbage { after: garbage.slice, limit }),
            _ => None,
        });
        assert_eq!(all, [1, 2, 3, 4].map(|id| Record::Garbage(Garbage { slice: SliceId(id), size: 1 })));
    }
}

pub fn shared_slices_and_acls_are_scanned_in_order(engine: &dyn Engine) {
    let acls = [AclId(1), AclId(255), AclId(256), AclId(1 << 64), AclId(u128::MAX)];
    let slices = [(1, 1), (2, 3), (300, 1), (1 << 40, 70_000)];
    let mut effects = Vec::new();
    for id in acls.into_iter().rev() {
        effects.push(Effect::PutAcl { id, text: id.to_string().into() });
    }
    for (id, rows) in slices.into_iter().rev() {
        effects.push(Effect::Share { slice: SliceId(id), rows });
    }
    apply(engine, effects);
    for limit in 1..6 {
        let all = in_parts(engine, Scan::Acls { after: AclId(0), limit }, limit, |record| match record {
            Record::Acl(after, _) => Some(Scan::Acls { after: *after, limit }),
            _ => None,
        });
        assert_eq!(all, acls.map(|id| Record::Acl(id, Some(id.to_string().into()))));
        let first = Scan::Shared { after: SliceId(0), limit };
        let all = in_parts(engine, first, limit, |record| match record {
            Record::Shared(after, _) => Some(Scan::Shared { after: *after, limit }),
            _ => None,
        });
        assert_eq!(all, slices.map(|(id, rows)| Record::Shared(SliceId(id), rows.into())));
    }
}

pub fn scans_obey_their_limit(engine: &dyn Engine) {
    let nothing = scan(engine, &Scan::Inodes { after: Ino(0), limit: 10 });
    assert!(nothing.snapshot.records.is_empty() && !nothing.more);
    apply(engine, vec![put(3, FILE), put_dirent(2, "a", 3)]);
    for range in [Scan::Inodes { after: Ino(0), limit: 0 }, dir(None, 0, ScanInclude::InodesWithAcls)] {
        let page = scan(engine, &range);
        assert!(page.snapshot.records.is_empty() && page.more, "{range:?}");
    }
    for limit in [1, usize::MAX] {
        assert!(!scan(engine, &Scan::Inodes { after: Ino(0), limit }).more);
        assert!(!scan(engine, &dir(None, limit, ScanInclude::Nothing)).more);
    }
    for after in [Ino(3), Ino(u64::MAX)] {
        assert!(scan(engine, &Scan::Inodes { after, limit: 5 }).snapshot.records.is_empty());
    }
}

pub fn snapshot_records_stay_as_they_were(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put_dirent(2, "a", 3), put(3, FILE)]);
    let keys = [RecordKey::Dirent(Ino(2), name("a")), RecordKey::Inode(Ino(4)), RecordKey::Settings];
    let scans = [Scan::Inodes { after: Ino(0), limit: 10 }, dir(None, 10, ScanInclude::InodesWithAcls)];
    let Some(mut snapshot) = engine.open_snapshot().expect("opening a snapshot succeeds") else { return };
    let read = engine.read(&keys).expect("a read succeeds").records;
    let pages = scans.clone().map(|range| scan(engine, &range).snapshot.records);
    let drop_name = Effect::DropDirent { parent: Ino(2), name: name("a") };
    let set = Effect::PutSetting { name: "name", value: "new".to_owned() };
    apply(
        engine,
        vec![drop_name, Effect::DropInode { ino: Ino(3) }, put(4, FILE), put_dirent(2, "b", 4), set],
    );
    assert_eq!(snapshot.read(&keys).expect("a read of the snapshot succeeds").records, read);
    for (range, page) in scans.iter().zip(pages) {
        assert_eq!(snapshot.scan(range).expect("a scan of the snapshot succeeds").snapshot.records, page);
    }
    let mut now = engine.open_snapshot().expect("opening a snapshot succeeds").expect("it did before");
    assert_eq!(
        now.read(&keys).expect("a read of the snapshot succeeds").records,
        engine.read(&keys).expect("a read succeeds").records
    );
}
