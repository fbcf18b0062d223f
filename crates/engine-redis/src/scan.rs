//! Ranges of records, in order.

use std::collections::HashMap;

use meta::{Beside, Facts, Node, Page, Record, Scan, Seq};
use types::{AclId, Ino, Name, SessionId, SliceId};

use crate::error::Malformed;
use crate::read;
use crate::request::{Answer, Request};
use crate::rows;

/// The most rows that one scan brings, for a server that runs a script does nothing else.
const MOST_ROWS: usize = 16_384;

pub(crate) fn request(scan: &Scan) -> Request {
    let id = |id: u64| id.to_be_bytes().to_vec();
    let name = |name: &Option<Name>| name.as_ref().map_or(Vec::new(), |name| name.as_bytes().to_vec());
    let (kind, limit, place, after) = match scan {
        Scan::Dir { parent, after, limit, beside } => {
            let kind = match beside {
                Beside::Nothing => "entries",
                Beside::Nodes => "inodes",
                Beside::NodesWithAcls => "directory",
            };
            (kind, limit, id(parent.0), name(after))
        }
        Scan::Slices { ino, from, limit } => ("slices", limit, id(ino.0), id(from.0)),
        Scan::Orphans { after, limit } => ("orphans", limit, rows::orphan(after.0, after.1), Vec::new()),
        Scan::Acls { after, limit } => ("acls", limit, after.to_bytes().to_vec(), Vec::new()),
        Scan::Nodes { after, limit } => ("nodes", limit, id(after.0), Vec::new()),
        Scan::Sessions { after, limit } => ("sessions", limit, id(after.0), Vec::new()),
        Scan::Locks { after, limit } => ("locks", limit, id(after.0), Vec::new()),
        Scan::Garbage { after, limit } => ("garbage", limit, id(after.0), Vec::new()),
        Scan::Shared { after, limit } => ("shared", limit, id(after.0), Vec::new()),
    };
    let mut request = Request::default();
    request.array(4).string(kind).number((*limit).min(MOST_ROWS) as i64).string(place).string(after);
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
                for id in node.iter().flat_map(Node::acls) {
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
