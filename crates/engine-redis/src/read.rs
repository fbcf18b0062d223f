//! Encodes record keys for the scripts and decodes their answers into a snapshot.

use std::sync::Arc;

use meta::{CONDEMNED, Inode, Record, RecordKey, Seq, Snapshot, Usage, Xattrs};
use types::{AclId, Ino, Slice, XattrName};

use crate::code;
use crate::error::Malformed;
use crate::request::{Reply, Request};
use crate::rows;

pub(crate) fn request(keys: &[RecordKey]) -> Request {
    let mut request = Request::default();
    request.number(keys.len());
    let mut add = |kind: &str, a: &[u8], b: &[u8]| _ = request.string(kind).string(a).string(b);
    let id = |id: u64| id.to_be_bytes();
    for key in keys {
        match key {
            RecordKey::Inode(ino) => add(code::RECORD_INODE, &id(ino.0), b""),
            RecordKey::Dirent(parent, name) => add(code::RECORD_DIRENT, &id(parent.0), name.as_bytes()),
            RecordKey::Empty(ino) => add(code::RECORD_EMPTY, &id(ino.0), b""),
            RecordKey::Xattrs(ino) => add(code::RECORD_XATTRS, &id(ino.0), b""),
            RecordKey::Symlink(ino) => add(code::RECORD_SYMLINK, &id(ino.0), b""),
            RecordKey::Slices(ino, chunk) => add(code::RECORD_SLICES, &id(ino.0), &id(chunk.0)),
            RecordKey::Acl(id) => add(code::RECORD_ACL, &id.to_bytes(), b""),
            RecordKey::Settings => add(code::RECORD_SETTINGS, b"", b""),
            RecordKey::Counter(counter) => add(code::RECORD_COUNTER, counter.name().as_bytes(), b""),
            RecordKey::Usage => add(code::RECORD_USAGE, b"", b""),
            RecordKey::Locks(ino) => add(code::RECORD_LOCKS, &id(ino.0), b""),
            RecordKey::Waits => add(code::RECORD_WAITS, b"", b""),
            RecordKey::Session(session) => add(code::RECORD_SESSION, &id(session.0), b""),
            RecordKey::Quota(quota) => add(code::RECORD_QUOTA, &rows::put_quota_key(*quota), b""),
        }
    }
    request
}

/// Decodes a sequence number and the answers to all record keys.
pub(crate) fn snapshot(keys: &[RecordKey], answer: &mut Reply) -> Result<Snapshot, Malformed> {
    let seq = Seq(answer.take()?);
    let mut records = Vec::new();
    keys.iter().try_for_each(|key| take(key, answer, &mut records))?;
    Ok(Snapshot { seq, records })
}

fn take(key: &RecordKey, answer: &mut Reply, records: &mut Vec<Record>) -> Result<(), Malformed> {
    records.push(match key {
        RecordKey::Inode(ino) => return take_inode(*ino, answer, records),
        RecordKey::Dirent(parent, name) => {
            let dirent = answer.stored(rows::dirent)?;
            records.push(Record::Dirent(*parent, name.clone(), dirent));
            return dirent.map_or(Ok(()), |dirent| take_inode(dirent.ino, answer, records));
        }
        RecordKey::Empty(ino) => Record::Empty(*ino, answer.take::<i64>()? != 0),
        RecordKey::Xattrs(ino) => Record::Xattrs(*ino, Arc::new(xattrs(answer.take()?)?)),
        RecordKey::Symlink(ino) => Record::Symlink(*ino, answer.take()?),
        RecordKey::Slices(ino, chunk) => Record::Slices(*ino, *chunk, slices(answer.take()?)?),
        RecordKey::Acl(id) => acl(*id, answer.take()?),
        RecordKey::Settings => Record::Settings(answer.take()?),
        RecordKey::Counter(counter) => {
            Record::Counter(*counter, answer.take::<Option<_>>()?.map_or(0, u64::from_be_bytes))
        }
        RecordKey::Usage => Record::Usage(Usage { inodes: answer.id()?, blocks: answer.id()? }),
        RecordKey::Locks(ino) => Record::Locks(*ino, answer.stored(rows::locks)?.unwrap_or_default().into()),
        RecordKey::Session(id) => Record::Session(*id, answer.stored(|bytes| rows::session(*id, bytes))?),
        RecordKey::Quota(quota) => Record::Quota(*quota, answer.stored(rows::quota)?),
        RecordKey::Waits => {
            let found: Vec<Vec<u8>> = answer.take()?;
            let waits = found.iter().map(|bytes| rows::wait(rows::member::<17>(bytes)?.1));
            Record::Waits(waits.collect::<Result<_, _>>()?)
        }
    });
    Ok(())
}

fn take_inode(ino: Ino, answer: &mut Reply, records: &mut Vec<Record>) -> Result<(), Malformed> {
    let inode = answer.stored(|bytes| rows::inode(ino, bytes))?;
    records.push(Record::Inode(ino, inode));
    for id in inode.iter().flat_map(Inode::acls) {
        records.push(acl(id, answer.take()?));
    }
    Ok(())
}

/// An ACL, without the mark that precedes the text of a condemned ACL.
pub(crate) fn acl(id: AclId, text: Option<String>) -> Record {
    Record::Acl(id, text.map(|text| text.strip_prefix(CONDEMNED).unwrap_or(&text).into()))
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
