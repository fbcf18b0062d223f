//! Encodes record keys for the scripts and decodes their answers into a snapshot.

use std::sync::Arc;

use meta::{Inode, Record, RecordKey, Seq, Snapshot, Usage, Xattrs};
use types::{Ino, Slice, XattrName};

use crate::error::Malformed;
use crate::request::{Answer, Request};
use crate::rows;

pub(crate) fn request(wants: &[RecordKey]) -> Request {
    let mut request = Request::default();
    request.number(wants.len());
    let mut add = |want: &str, a: &[u8], b: &[u8]| _ = request.string(want).string(a).string(b);
    let id = |id: u64| id.to_be_bytes();
    for want in wants {
        match want {
            RecordKey::Inode(ino) => add("node", &id(ino.0), b""),
            RecordKey::Entry(parent, name) => add("entry", &id(parent.0), name.as_bytes()),
            RecordKey::Empty(ino) => add("empty", &id(ino.0), b""),
            RecordKey::Xattrs(ino) => add("xattrs", &id(ino.0), b""),
            RecordKey::Symlink(ino) => add("symlink", &id(ino.0), b""),
            RecordKey::Slices(ino, chunk) => add("slices", &id(ino.0), &id(chunk.0)),
            RecordKey::Acl(id) => add("acl", &id.to_bytes(), b""),
            RecordKey::Settings => add("settings", b"", b""),
            RecordKey::Counter(counter) => add("counter", counter.name().as_bytes(), b""),
            RecordKey::Usage => add("usage", b"", b""),
            RecordKey::Locks(ino) => add("locks", &id(ino.0), b""),
            RecordKey::Waits => add("waits", b"", b""),
            RecordKey::Session(session) => add("session", &id(session.0), b""),
        }
    }
    request
}

/// Decodes a sequence number and the answers to all record keys.
pub(crate) fn snapshot(wants: &[RecordKey], answer: &mut Answer) -> Result<Snapshot, Malformed> {
    let seq = Seq(answer.take()?);
    let mut records = Vec::new();
    wants.iter().try_for_each(|want| take(want, answer, &mut records))?;
    Ok(Snapshot { seq, records })
}

fn take(want: &RecordKey, answer: &mut Answer, records: &mut Vec<Record>) -> Result<(), Malformed> {
    records.push(match want {
        RecordKey::Inode(ino) => return take_inode(*ino, answer, records),
        RecordKey::Entry(parent, name) => {
            let dirent = answer.stored(rows::dirent)?;
            records.push(Record::Dirent(*parent, name.clone(), dirent));
            return dirent.map_or(Ok(()), |dirent| take_inode(dirent.ino, answer, records));
        }
        RecordKey::Empty(ino) => Record::Empty(*ino, answer.take::<i64>()? != 0),
        RecordKey::Xattrs(ino) => Record::Xattrs(*ino, Arc::new(xattrs(answer.take()?)?)),
        RecordKey::Symlink(ino) => Record::Symlink(*ino, answer.take()?),
        RecordKey::Slices(ino, chunk) => Record::Slices(*ino, *chunk, slices(answer.take()?)?),
        RecordKey::Acl(id) => Record::Acl(*id, answer.take::<Option<String>>()?.map(Arc::from)),
        RecordKey::Settings => Record::Settings(answer.take()?),
        RecordKey::Counter(counter) => {
            Record::Counter(*counter, answer.take::<Option<_>>()?.map_or(0, u64::from_be_bytes))
        }
        RecordKey::Usage => Record::Usage(Usage { inodes: answer.id()?, blocks: answer.id()? }),
        RecordKey::Locks(ino) => Record::Locks(*ino, answer.stored(rows::locks)?.unwrap_or_default().into()),
        RecordKey::Session(id) => Record::Session(*id, answer.stored(|bytes| rows::session(*id, bytes))?),
        RecordKey::Waits => {
            let found: Vec<Vec<u8>> = answer.take()?;
            let waits = found.iter().map(|bytes| rows::wait(rows::member::<17>(bytes)?.1));
            Record::Waits(waits.collect::<Result<_, _>>()?)
        }
    });
    Ok(())
}

fn take_inode(ino: Ino, answer: &mut Answer, records: &mut Vec<Record>) -> Result<(), Malformed> {
    let inode = answer.stored(|bytes| rows::inode(ino, bytes))?;
    records.push(Record::Inode(ino, inode));
    for id in inode.iter().flat_map(Inode::acls) {
        records.push(Record::Acl(id, answer.take::<Option<String>>()?.map(Arc::from)));
    }
    Ok(())
}

/// Decodes the rows of a chunk. Each row follows the chunk index and the row number, 8 bytes each.
pub(crate) fn slices(found: Vec<Vec<u8>>) -> Result<Arc<[Slice]>, Malformed> {
    let row =
        |bytes: &Vec<u8>| rows::slice(bytes.get(16..).ok_or(Malformed("a row of a file is too short"))?);
    found.iter().map(row).collect()
}

fn xattrs(found: Vec<(Vec<u8>, Arc<[u8]>)>) -> Result<Xattrs, Malformed> {
    let xattr = |(name, value): (Vec<u8>, Arc<[u8]>)| {
        let name = XattrName::new(&name).map_err(|_| Malformed("the name of an xattr is invalid"))?;
        Ok((name, value))
    };
    found.into_iter().map(xattr).collect()
}
