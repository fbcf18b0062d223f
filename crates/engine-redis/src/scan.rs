//! Ranges of records, in order.

use std::collections::HashMap;

use meta::{Beside, Facts, Page, Record, Scan, Seq};
use types::{AclId, Ino, Name, SessionId, SliceId};

use crate::read;
use crate::request::{Answer, Malformed, Request};
use crate::rows;

/// The most rows that one scan brings, for a server that runs a script does nothing else.
const MOST_ROWS: usize = 16_384;

pub(crate) fn request(scan: &Scan) -> Request {
    let mut request = Request::default();
    let mut head = |kind: &str, limit: usize| {
        request.array(4).string(kind).number(limit.min(MOST_ROWS) as i64);
    };
    match scan {
        Scan::Dir { parent, after, limit, beside } => {
            let kind = match beside {
                Beside::Nothing => "entries",
                Beside::Nodes => "inodes",
                Beside::NodesWithAcls => "directory",
            };
            head(kind, *limit);
            request.id(parent.0).string(after.as_ref().map_or(&[][..], Name::as_bytes));
            return request;
        }
        Scan::Slices { ino, from, limit } => {
            head("slices", *limit);
            request.id(ino.0).id(from.0);
            return request;
        }
        Scan::Orphans { after: (session, ino), limit } => {
            head("orphans", *limit);
            request.string([session.0.to_be_bytes(), ino.0.to_be_bytes()].concat());
        }
        Scan::Acls { after, limit } => {
            head("acls", *limit);
            request.string(after.to_bytes());
        }
        Scan::Nodes { after: Ino(after), limit } => {
            head("nodes", *limit);
            request.id(*after);
        }
        Scan::Sessions { after: SessionId(after), limit } => {
            head("sessions", *limit);
            request.id(*after);
        }
        Scan::Locks { after: Ino(after), limit } => {
            head("locks", *limit);
            request.id(*after);
        }
        Scan::Garbage { after: SliceId(after), limit } => {
            head("garbage", *limit);
            request.id(*after);
        }
        Scan::Shared { after: SliceId(after), limit } => {
            head("shared", *limit);
            request.id(*after);
        }
    }
    request.string("");
    request
}

pub(crate) fn page(scan: &Scan, mut answer: Answer) -> Result<Page, Malformed> {
    let seq = Seq(answer.decimal()?);
    let more = answer.number()? != 0;
    let (mut rows, mut acls) = (answer.array()?, answer.array()?);
    let mut records = Vec::new();
    match scan {
        Scan::Dir { parent, beside: Beside::Nothing, .. } => {
            for entry in rows.strings() {
                records.push(edge(*parent, &entry?)?.0);
            }
        }
        Scan::Dir { parent, .. } => {
            let mut texts = HashMap::new();
            while !acls.is_empty() {
                let id = id_of(&acls.present()?)?;
                texts.insert(id, read::acl(acls.string()?)?);
            }
            while !rows.is_empty() {
                let (entry, ino) = edge(*parent, &rows.present()?)?;
                let node = rows.string()?.map(|bytes| rows::node(ino, &bytes)).transpose()?;
                records.extend([entry, Record::Node(ino, node)]);
                // An ACL that several nodes carry comes with the first of them.
                for id in node.iter().flat_map(read::acl_ids) {
                    records.extend(texts.remove(&id).map(|text| Record::Acl(id, text)));
                }
            }
        }
        Scan::Nodes { .. } => {
            while !rows.is_empty() {
                let ino = Ino(rows::number(&rows.present()?)?);
                records.push(Record::Node(ino, Some(rows::node(ino, &rows.present()?)?)));
            }
        }
        Scan::Slices { ino, .. } => {
            while !rows.is_empty() {
                let mut chunk = rows.array()?;
                let number = rows::number(&chunk.present()?)?;
                records.push(Record::Slices(*ino, types::ChunkIndex(number), read::slices(chunk)?.into()));
            }
        }
        _ => {
            for member in rows.strings() {
                records.push(member_of(scan, &member?)?);
            }
        }
    }
    Ok(Page { facts: Facts { seq, records }, more })
}

/// A row of a scan whose rows are members of one sorted set.
fn member_of(scan: &Scan, bytes: &[u8]) -> Result<Record, Malformed> {
    if let Scan::Acls { .. } = scan {
        let (id, text) = rows::member::<16>(bytes)?;
        return Ok(Record::Acl(AclId::from_bytes(id), read::acl(Some(text.to_vec()))?));
    }
    if let Scan::Orphans { .. } = scan {
        let (session, ino) = bytes.split_at_checked(8).ok_or(Malformed("an orphan is too short"))?;
        return Ok(Record::Orphan(SessionId(rows::number(session)?), Ino(rows::number(ino)?)));
    }
    let (id, value) = rows::member::<8>(bytes)?;
    let id = u64::from_be_bytes(id);
    match scan {
        Scan::Sessions { .. } => Ok(Record::Session(rows::session(id, value)?)),
        Scan::Locks { .. } => Ok(Record::Locks(Ino(id), rows::locks(value)?.into())),
        Scan::Garbage { .. } => Ok(Record::Garbage(rows::garbage(id, value)?)),
        Scan::Shared { .. } => Ok(Record::Shared(SliceId(id), rows::number(value)?)),
        _ => Err(Malformed("the answer is to another scan")),
    }
}

/// An entry: its name, NUL, type and inode.
fn edge(parent: Ino, bytes: &[u8]) -> Result<(Record, Ino), Malformed> {
    let nul = bytes.iter().position(|&byte| byte == 0).ok_or(Malformed("an entry is too short"))?;
    let (name, rest) = bytes.split_at(nul);
    let name = Name::new(name).map_err(|_| Malformed("an entry's name is none"))?;
    let edge = rows::edge(rest.get(1..).unwrap_or_default())?;
    Ok((Record::Edge(parent, name, Some(edge)), edge.ino))
}

fn id_of(bytes: &[u8]) -> Result<AclId, Malformed> {
    bytes.try_into().map(AclId::from_bytes).map_err(|_| Malformed("an ACL's id is not of 16 bytes"))
}
