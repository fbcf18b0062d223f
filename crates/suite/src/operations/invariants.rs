//! What holds of every volume between operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meta::{AclKind, Beside, Edge, Engine, Node, Record, Scan, Usage, Want};
use types::{FileType, Ino};

use super::fixture::Client;

/// Rows a scan gives at once: few, so that the suite pages.
const PAGE_ROWS: usize = 50;

/// Panics unless the volume is whole: a tree whose links, parents and usage are exact, every inode with a name or an
/// orphan's row, every ACL id with its ACL.
pub(super) fn check(client: &Client) {
    let engine = client.engine();
    let nodes = nodes(engine);
    let orphans = orphans(engine);
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut subdirs: BTreeMap<Ino, u32> = BTreeMap::new();
    for dir in nodes.values().filter(|node| node.kind.is_dir()) {
        for (name, edge) in entries(engine, dir.ino) {
            let Some(node) = nodes.get(&edge.ino) else { panic!("{name:?} in {} has no inode", dir.ino) };
            assert_eq!(node.kind, edge.kind, "the kind of {name:?} in {}", dir.ino);
            *names.entry(edge.ino).or_default() += 1;
            if node.kind.is_dir() {
                assert_eq!(node.parent, dir.ino, "the parent of {}", node.ino);
                *subdirs.entry(dir.ino).or_default() += 1;
            }
        }
    }
    for node in nodes.values() {
        let names = names.get(&node.ino).copied().unwrap_or(0);
        if node.kind.is_dir() {
            assert_eq!(names, u32::from(node.ino != Ino::ROOT), "names of directory {}", node.ino);
            let subdirs = subdirs.get(&node.ino).copied().unwrap_or(0);
            assert_eq!(node.nlink, 2 + subdirs, "links of directory {}", node.ino);
            reaches_root(&nodes, node.ino);
        } else {
            assert_eq!(node.nlink, names, "links of {}", node.ino);
            assert_eq!(node.parent, Ino(0));
            assert_eq!(names == 0, orphans.contains(&node.ino), "only orphans have no name: {}", node.ino);
        }
        for id in node.acls() {
            let records = engine.read(&[Want::Acl(id)]).unwrap().records;
            let Some(Record::Acl(_, Some(text))) = records.first() else { panic!("ACL {id} is not stored") };
            if client.meta.volume().acl == AclKind::Nfs4 {
                let acl = acl::nfs4::Nfs4Acl::from_storage(text).unwrap();
                assert_eq!((acl.id(), id), (id, node.access_acl), "{} inherits by its only ACL", node.ino);
                assert!(!acl.is_trivial(node.kind.is_dir()), "a trivial ACL is stored at {}", node.ino);
                assert_eq!(acl.mode_bits(), node.mode.rwx(), "mode and ACL of {}", node.ino);
                continue;
            }
            let acl = acl::posix::PosixAcl::from_storage(text).unwrap();
            assert_eq!(acl.id(), id);
            if id == node.access_acl {
                let (mode, minimal) = acl.equiv_mode();
                assert!(!minimal, "a minimal access ACL is stored at {}", node.ino);
                assert_eq!(mode, node.mode.rwx(), "mode and ACL of {}", node.ino);
            }
        }
    }
    for orphan in &orphans {
        assert!(nodes.get(orphan).is_some_and(|node| node.nlink == 0), "orphan {orphan} is none");
    }
    let blocks = nodes.values().map(Node::blocks).sum();
    assert_eq!(usage(engine), Usage { inodes: nodes.len() as u64, blocks });
}

/// All inodes.
pub(super) fn nodes(engine: &Arc<dyn Engine>) -> BTreeMap<Ino, Node> {
    let mut nodes = BTreeMap::new();
    loop {
        let after = nodes.keys().next_back().copied().unwrap_or(Ino(0));
        let page = engine.scan(&Scan::Nodes { after, limit: PAGE_ROWS }).unwrap();
        for record in page.facts.records {
            match record {
                Record::Node(ino, Some(node)) => assert_eq!(nodes.insert(ino, node), None),
                Record::Acl(..) => {}
                other => panic!("not an inode: {other:?}"),
            }
        }
        if !page.more {
            return nodes;
        }
    }
}

fn orphans(engine: &Arc<dyn Engine>) -> BTreeSet<Ino> {
    let after = (types::SessionId(0), Ino(0));
    let page = engine.scan(&Scan::Orphans { after, limit: 10_000 }).unwrap();
    let inos = page.facts.records.iter().filter_map(|record| match record {
        Record::Orphan(_, ino) => Some(*ino),
        _ => None,
    });
    inos.collect()
}

fn entries(engine: &Arc<dyn Engine>, dir: Ino) -> BTreeMap<types::Name, Edge> {
    let mut entries = BTreeMap::new();
    loop {
        let after = entries.keys().next_back().cloned();
        let scan = Scan::Dir { parent: dir, after, limit: PAGE_ROWS, beside: Beside::Nothing };
        let page = engine.scan(&scan).unwrap();
        for record in page.facts.records {
            if let Record::Edge(_, name, Some(edge)) = record {
                assert_eq!(entries.insert(name, edge), None);
            }
        }
        if !page.more {
            return entries;
        }
    }
}

fn usage(engine: &Arc<dyn Engine>) -> Usage {
    match engine.read(&[Want::Usage]).unwrap().records[..] {
        [Record::Usage(usage)] => usage,
        ref other => panic!("not the usage: {other:?}"),
    }
}

fn reaches_root(nodes: &BTreeMap<Ino, Node>, dir: Ino) {
    let mut at = dir;
    for _ in 0..=nodes.len() {
        if at == Ino::ROOT {
            return;
        }
        at = nodes.get(&at).map(|node| node.parent).unwrap_or_else(|| panic!("{dir} hangs in the air"));
        assert_eq!(nodes.get(&at).map(|node| node.kind), Some(FileType::Directory));
    }
    panic!("{dir} lies in a circle");
}
