//! Fills a formatted, empty volume to measure `limen access audit`: many files in directories of 100, with
//! the given number of distinct ACLs. Consecutive files have different ACLs. The program writes directly to
//! the database, which takes about a minute for a million files.
//!
//!     limen format sqlite:///tmp/audit.db audit
//!     cargo run --release --package cli --example audit-volume -- /tmp/audit.db 1000000 1000

use std::env;
use std::error::Error;
use std::path::Path;

use acl::posix::PosixAcl;
use client::Meta;
use engine_sqlite::{Options, SqliteEngine};
use meta::{Counter, Effect, Engine, Inode, Txn};
use types::{AclId, FileType, Ino, Mode, Name, OpId, Time};

const FILES_IN_DIR: u64 = 100;
const DIRS_IN_DIR: u64 = 100;
/// Directories per commit.
const BATCH: u64 = 50;
/// The first id of the users and groups that the ACLs name.
const FIRST_ID: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: audit-volume DATABASE FILES ACLS";
    let args: Vec<String> = env::args().skip(1).collect();
    let [database, files, acls] = args.as_slice() else { return Err(usage.into()) };
    let (files, acls): (u64, u64) = (files.parse()?, acls.parse()?);
    let engine = std::sync::Arc::new(SqliteEngine::open(Path::new(database), &Options::default())?);
    let meta = Meta::open(engine.clone(), 1)?;
    let dirs = files.div_ceil(FILES_IN_DIR);
    let tops = dirs.div_ceil(DIRS_IN_DIR);
    let first = meta.lease(Counter::Ino, tops + dirs + files)?;
    let acls = (0..acls).map(acl).collect::<Result<Vec<PosixAcl>, _>>()?;
    let put = |acl: &PosixAcl| Effect::PutAcl { id: acl.id(), text: acl.to_storage().into() };
    let mut committed =
        OpIds { engine: &*engine, session: u128::from(meta.session().0) << 64, count: 1 << 40 };
    committed.commit(acls.iter().map(put).collect())?;

    let mut effects = vec![Effect::AddLinks { ino: Ino::ROOT, delta: i32::try_from(tops)? }];
    for top in 0..tops {
        let ino = Ino(first + top);
        let below = DIRS_IN_DIR.min(dirs - top * DIRS_IN_DIR);
        effects.extend(make(Ino::ROOT, &format!("top-{top:04}"), directory(ino, Ino::ROOT, below))?);
    }
    for dir in 0..dirs {
        let (ino, parent) = (Ino(first + tops + dir), Ino(first + dir / DIRS_IN_DIR));
        effects.extend(make(parent, &format!("dir-{dir:06}"), directory(ino, parent, 0))?);
        for file in dir * FILES_IN_DIR..files.min((dir + 1) * FILES_IN_DIR) {
            let acl = acls.get(usize::try_from(file)? % acls.len().max(1));
            let inode = regular(Ino(first + tops + dirs + file), file, acl);
            effects.extend(make(ino, &format!("file-{file:08}.dat"), inode)?);
        }
        if dir % BATCH == BATCH - 1 || dir == dirs - 1 {
            committed.commit(std::mem::take(&mut effects))?;
        }
    }
    engine.sync()?;
    println!("{files} files in {dirs} directories, {} distinct ACLs", acls.len());
    Ok(())
}

struct OpIds<'a> {
    engine: &'a dyn Engine,
    session: u128,
    count: u128,
}

impl OpIds<'_> {
    fn commit(&mut self, effects: Vec<Effect>) -> Result<(), Box<dyn Error>> {
        self.count += 1;
        let op_id = OpId(self.session | self.count);
        self.engine.commit(&[Txn { op_id, guards: Vec::new(), effects }])?;
        Ok(())
    }
}

/// An ACL with 3 to 40 named users and groups.
fn acl(number: u64) -> Result<PosixAcl, acl::posix::AclError> {
    let mut text = "u::rw-,g::r--,m::rw-,o::---".to_owned();
    for entry in 0..3 + number % 38 {
        let (kind, id) =
            (if entry % 3 == 0 { "u" } else { "g" }, FIRST_ID + (number * 7 + entry * 13) % 5000);
        text.push_str(&format!(",{kind}:{id}:{}", if entry % 4 == 0 { "rw-" } else { "r--" }));
    }
    PosixAcl::from_text(&text)
}

fn make(parent: Ino, name: &str, inode: Inode) -> Result<[Effect; 2], Box<dyn Error>> {
    let name = Name::new(name.as_bytes())?;
    Ok([Effect::PutInode(inode), Effect::PutDirent { parent, name, ino: inode.ino, kind: inode.kind }])
}

fn directory(ino: Ino, parent: Ino, below: u64) -> Inode {
    // Every tenth directory is closed to users other than its owner and group.
    let mode = if ino.0.is_multiple_of(10) { 0o750 } else { 0o755 };
    Inode {
        parent,
        nlink: 2 + below as u32,
        size: meta::DIR_BYTES,
        ..inode(ino, FileType::Directory, mode, 0)
    }
}

fn regular(ino: Ino, number: u64, acl: Option<&PosixAcl>) -> Inode {
    let access_acl = acl.map_or(AclId::NONE, PosixAcl::id);
    Inode { access_acl, ..inode(ino, FileType::Regular, 0o660, number % 50) }
}

fn inode(ino: Ino, kind: FileType, mode: u32, owner: u64) -> Inode {
    let now = Time::now();
    Inode {
        uid: (FIRST_ID + owner) as u32,
        gid: FIRST_ID as u32,
        nlink: 1,
        ..Inode::new(ino, kind, Mode::new(mode), now)
    }
}
