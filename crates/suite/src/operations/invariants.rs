//! The invariants of a volume between operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meta::{
    AclKind, Dirent, Engine, Inode, Quota, QuotaKey, Record, RecordKey, Scan, ScanInclude, Usage,
    xattr_blocks,
};
use types::{FileType, Ino, QuotaId};

use super::fixture::Client;

/// The rows of a page: few, so that scans have several pages.
const PAGE_ROWS: usize = 50;

/// Panics unless the volume is consistent: the directories form a tree; links, parents, xattr blocks, usage
/// and quotas are exact; every inode has a name or an orphan row; every ACL id has its ACL.
pub(super) fn check(client: &Client) {
    let engine = client.engine();
    let inodes = inodes(engine);
    let orphans = orphans(engine);
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut subdirs: BTreeMap<Ino, u32> = BTreeMap::new();
    for dir in inodes.values().filter(|inode| inode.kind.is_dir()) {
        for (name, dirent) in entries(engine, dir.ino) {
            let Some(inode) = inodes.get(&dirent.ino) else { panic!("{name:?} in {} has no inode", dir.ino) };
            assert_eq!(inode.kind, dirent.kind, "the kind of {name:?} in {}", dir.ino);
            *names.entry(dirent.ino).or_default() += 1;
            if inode.kind.is_dir() {
                assert_eq!(inode.parent, dir.ino, "the parent of {}", inode.ino);
                *subdirs.entry(dir.ino).or_default() += 1;
            }
        }
    }
    for inode in inodes.values() {
        let names = names.get(&inode.ino).copied().unwrap_or(0);
        if inode.kind.is_dir() {
            let is_top = [Ino::ROOT, Ino::TRASH].contains(&inode.ino);
            assert_eq!(names, u32::from(!is_top), "names of directory {}", inode.ino);
            let subdirs = subdirs.get(&inode.ino).copied().unwrap_or(0);
            assert_eq!(inode.nlink, 2 + subdirs, "links of directory {}", inode.ino);
            reaches_root(&inodes, inode.ino);
        } else {
            assert_eq!(inode.nlink, names, "links of {}", inode.ino);
            assert_eq!(inode.parent, Ino(0));
            assert_eq!(names == 0, orphans.contains(&inode.ino), "only orphans have no name: {}", inode.ino);
        }
        let xattrs = engine.read(&[RecordKey::Xattrs(inode.ino)]).unwrap().records;
        let [Record::Xattrs(_, xattrs)] = &xattrs[..] else { panic!("not xattrs: {xattrs:?}") };
        let blocks = xattrs.values().map(|value| xattr_blocks(value.len())).sum::<u16>();
        assert_eq!(inode.xattr_blocks, blocks, "blocks of xattrs of {}", inode.ino);
        for id in inode.acls() {
            let records = engine.read(&[RecordKey::Acl(id)]).unwrap().records;
            let Some(Record::Acl(_, Some(text))) = records.first() else { panic!("ACL {id} is not stored") };
            if client.meta.volume().acl == AclKind::Nfs4 {
                let acl = acl::nfs4::Nfs4Acl::from_storage(text).unwrap();
                assert_eq!(
                    (acl.id(), id),
                    (id, inode.access_acl),
                    "{} has more than its access ACL",
                    inode.ino
                );
                assert!(!acl.is_trivial(inode.kind.is_dir()), "a trivial ACL is stored at {}", inode.ino);
                assert_eq!(acl.mode_bits(), inode.mode.rwx(), "mode and ACL of {}", inode.ino);
                continue;
            }
            let acl = acl::posix::PosixAcl::from_storage(text).unwrap();
            assert_eq!(acl.id(), id);
            if id == inode.access_acl {
                let (mode, minimal) = acl.equiv_mode();
                assert!(!minimal, "a minimal access ACL is stored at {}", inode.ino);
                assert_eq!(mode, inode.mode.rwx(), "mode and ACL of {}", inode.ino);
            }
        }
    }
    for orphan in &orphans {
        assert!(
            inodes.get(orphan).is_some_and(|inode| inode.nlink == 0),
            "orphan {orphan} has links or no inode"
        );
    }
    let blocks = inodes.values().map(Inode::blocks).sum();
    assert_eq!(usage(engine), Usage { inodes: inodes.len() as u64, blocks });
    check_quotas(client, &inodes);
}

/// Every quota counts exactly the inodes with its tag.
fn check_quotas(client: &Client, inodes: &BTreeMap<Ino, Inode>) {
    let quotas: BTreeMap<QuotaKey, Quota> = client.meta.quotas().unwrap().into_iter().collect();
    let mut expected: BTreeMap<QuotaKey, (i64, i64)> = BTreeMap::new();
    for inode in inodes.values() {
        let mut keys = Vec::new();
        let mut at = inode.quota.directory();
        while at != QuotaId(0) {
            keys.push(QuotaKey::Directory(at));
            let Some(quota) = quotas.get(&QuotaKey::Directory(at)) else { panic!("{inode:?} has no quota") };
            at = quota.rule.outer;
        }
        if inode.quota.owners() {
            keys.extend([QuotaKey::User(inode.uid), QuotaKey::Group(inode.gid)]);
        }
        for key in keys {
            let used = expected.entry(key).or_default();
            *used = (used.0 + 1, used.1 + inode.blocks() as i64);
        }
    }
    for (key, quota) in &quotas {
        let expected = expected.remove(key).unwrap_or_default();
        assert_eq!((quota.inodes, quota.blocks), expected, "the usage of {key:?}");
    }
    assert_eq!(expected, BTreeMap::new(), "quotas that do not exist");
}

/// All inodes.
pub(super) fn inodes(engine: &Arc<dyn Engine>) -> BTreeMap<Ino, Inode> {
    let mut inodes = BTreeMap::new();
    loop {
        let after = inodes.keys().next_back().copied().unwrap_or(Ino(0));
        let page = engine.scan(&Scan::Inodes { after, limit: PAGE_ROWS }).unwrap();
        for record in page.snapshot.records {
            match record {
                Record::Inode(ino, Some(inode)) => assert_eq!(inodes.insert(ino, inode), None),
                Record::Acl(..) => {}
                other => panic!("not an inode: {other:?}"),
            }
        }
        if !page.more {
            return inodes;
        }
    }
}

fn orphans(engine: &Arc<dyn Engine>) -> BTreeSet<Ino> {
    let after = (types::SessionId(0), Ino(0));
    let page = engine.scan(&Scan::Orphans { after, limit: 10_000 }).unwrap();
    let inos = page.snapshot.records.iter().filter_map(|record| match record {
        Record::Orphan(_, ino) => Some(*ino),
        _ => None,
    });
    inos.collect()
}

fn entries(engine: &Arc<dyn Engine>, dir: Ino) -> BTreeMap<types::Name, Dirent> {
    let mut entries = BTreeMap::new();
    loop {
        let after = entries.keys().next_back().cloned();
        let scan = Scan::Dir { parent: dir, after, limit: PAGE_ROWS, include: ScanInclude::Nothing };
        let page = engine.scan(&scan).unwrap();
        for record in page.snapshot.records {
            if let Record::Dirent(_, name, Some(dirent)) = record {
                assert_eq!(entries.insert(name, dirent), None);
            }
        }
        if !page.more {
            return entries;
        }
    }
}

fn usage(engine: &Arc<dyn Engine>) -> Usage {
    match engine.read(&[RecordKey::Usage]).unwrap().records[..] {
        [Record::Usage(usage)] => usage,
        ref other => panic!("not the usage: {other:?}"),
    }
}

fn reaches_root(inodes: &BTreeMap<Ino, Inode>, dir: Ino) {
    let mut at = dir;
    for _ in 0..=inodes.len() {
        if at == Ino::ROOT {
            return;
        }
        at = inodes
            .get(&at)
            .map(|inode| inode.parent)
            .unwrap_or_else(|| panic!("an ancestor of {dir} does not exist"));
        assert_eq!(inodes.get(&at).map(|inode| inode.kind), Some(FileType::Directory));
    }
    panic!("{dir} is in a cycle");
}
