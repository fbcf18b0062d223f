//! Scans of ranges of records, in key order.

use std::collections::HashMap;

use meta::{Inode, Page, Record, Scan, ScanInclude, Seq, Snapshot};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, SliceId};

use crate::code;
use crate::error::Malformed;
use crate::read;
use crate::request::{Reply, Request};
use crate::rows;

/// The maximum number of rows (as in [`Scan::limit`]) that one scan returns. It is bounded because the server
/// executes nothing else while a script runs.
const MAX_ROWS: usize = 16_384;

pub(crate) fn request(scan: &Scan) -> Request {
    let id = |id: u64| id.to_be_bytes().to_vec();
    let name = |name: &Option<Name>| name.as_ref().map_or(Vec::new(), |name| name.as_bytes().to_vec());
    let (kind, place, after) = match scan {
        Scan::Dir { parent, after, include, .. } => {
            let kind = match include {
                ScanInclude::Nothing => code::SCAN_DIR,
                ScanInclude::Inodes => code::SCAN_DIR_INODES,
                ScanInclude::InodesWithAcls => code::SCAN_DIR_ACLS,
            };
            (kind, id(parent.0), name(after))
        }
        Scan::Slices { ino, from, .. } => (code::SCAN_SLICES, id(ino.0), id(from.0)),
        Scan::Orphans { after, .. } => (code::SCAN_ORPHANS, rows::orphan(after.0, after.1), Vec::new()),
        Scan::Acls { after, .. } => ("acls", after.to_bytes().to_vec(), Vec::new()),
        Scan::Inodes { after, .. } => (code::SCAN_INODES, id(after.0), Vec::new()),
        Scan::Sessions { after, .. } => ("sessions", id(after.0), Vec::new()),
        Scan::Locks { after, .. } => ("locks", id(after.0), Vec::new()),
        Scan::Garbage { after, .. } => ("garbage", id(after.0), Vec::new()),
        Scan::Shared { after, .. } => ("shared", id(after.0), Vec::new()),
        // Without `after`, the scan starts at the empty key, which comes before all others.
        Scan::Quotas { after, .. } => ("quotas", after.map_or(Vec::new(), rows::put_quota_key), Vec::new()),
    };
    let mut request = Request::default();
    request.number(scan.limit().min(MAX_ROWS)).string(kind).string(place).string(after);
    request
}

pub(crate) fn page(scan: &Scan, mut answer: Reply) -> Result<Page, Malformed> {
    let seq = Seq(answer.take()?);
    let more = answer.take::<i64>()? != 0;
    let mut rows: Reply = answer.take()?;
    let mut acls: HashMap<[u8; 16], Option<String>> = answer.take()?;
    let mut records = Vec::new();
    while !rows.is_empty() {
        match scan {
            Scan::Dir { parent, include, .. } => {
                let (entry, ino) = dirent(*parent, &rows.take::<Vec<u8>>()?)?;
                records.push(entry);
                if *include == ScanInclude::Nothing {
                    continue;
                }
                let inode = rows.stored(|bytes| rows::inode(ino, bytes))?;
                records.push(Record::Inode(ino, inode));
                // The server sends the text of each ACL once. Its record follows the first inode that has the
                // ACL.
                for id in inode.iter().flat_map(Inode::acls) {
                    let text = acls.remove(&id.to_bytes());
                    records.extend(text.map(|text| read::acl(id, text)));
                }
            }
            Scan::Inodes { .. } => {
                let ino = Ino(rows.id()?);
                records.push(Record::Inode(ino, rows.stored(|bytes| rows::inode(ino, bytes))?));
            }
            Scan::Slices { ino, .. } => {
                let mut chunk: Reply = rows.take()?;
                let number = ChunkIndex(chunk.id()?);
                records.push(Record::Slices(*ino, number, read::slices(chunk.rest()?)?));
            }
            _ => records.push(member_of(scan, &rows.take::<Vec<u8>>()?)?),
        }
    }
    Ok(Page { snapshot: Snapshot { seq, records }, more })
}

/// Decodes a row of a scan that [`page`] does not decode itself. The row is a member of the scan's sorted
/// set.
fn member_of(scan: &Scan, bytes: &[u8]) -> Result<Record, Malformed> {
    if let Scan::Acls { .. } = scan {
        let (id, text) = rows::member::<16>(bytes)?;
        let text = str::from_utf8(text).map_err(|_| Malformed("an ACL is not UTF-8"))?;
        return Ok(read::acl(AclId::from_bytes(id), Some(text.to_owned())));
    }
    if let Scan::Orphans { .. } = scan {
        let (session, ino) = bytes.split_at_checked(8).ok_or(Malformed("an orphan is too short"))?;
        return Ok(Record::Orphan(SessionId(rows::number(session)?), Ino(rows::number(ino)?)));
    }
    if let Scan::Quotas { .. } = scan {
        let (key, value) = rows::member::<9>(bytes)?;
        return Ok(Record::Quota(rows::quota_key(&key)?, Some(rows::quota(value)?)));
    }
    let (id, value) = rows::member(bytes)?;
    let id = u64::from_be_bytes(id);
    match scan {
        Scan::Sessions { .. } => rows::session(SessionId(id), value).map(|s| Record::Session(s.id, Some(s))),
        Scan::Locks { .. } => Ok(Record::Locks(Ino(id), rows::locks(value)?.into())),
        Scan::Garbage { .. } => Ok(Record::Garbage(rows::garbage(id, value)?)),
        Scan::Shared { .. } => Ok(Record::Shared(SliceId(id), rows::number(value)?)),
        _ => Err(Malformed("the answer belongs to another scan")),
    }
}

/// Decodes a directory entry: name, NUL, type and inode.
fn dirent(parent: Ino, bytes: &[u8]) -> Result<(Record, Ino), Malformed> {
    let nul = bytes.iter().position(|&byte| byte == 0).ok_or(Malformed("an entry is too short"))?;
    let (name, rest) = bytes.split_at(nul);
    let name = Name::new(name).map_err(|_| Malformed("the name of an entry is invalid"))?;
    let dirent = rows::dirent(rest.get(1..).unwrap_or_default())?;
    Ok((Record::Dirent(parent, name, Some(dirent)), dirent.ino))
}
