//! Wants as the scripts read them, and facts out of their answers.

use std::sync::Arc;

use meta::{Facts, Node, Record, Seq, Usage, Want, Xattrs};
use types::{Ino, Slice, XattrName};

use crate::error::Malformed;
use crate::request::{Answer, Request};
use crate::rows;

pub(crate) fn request(wants: &[Want]) -> Request {
    let mut request = Request::default();
    request.number(wants.len());
    let mut add = |want: &str, a: &[u8], b: &[u8]| _ = request.string(want).string(a).string(b);
    let id = |id: u64| id.to_be_bytes();
    for want in wants {
        match want {
            Want::Node(ino) => add("node", &id(ino.0), b""),
            Want::Entry(parent, name) => add("entry", &id(parent.0), name.as_bytes()),
            Want::Empty(ino) => add("empty", &id(ino.0), b""),
            Want::Xattrs(ino) => add("xattrs", &id(ino.0), b""),
            Want::Symlink(ino) => add("symlink", &id(ino.0), b""),
            Want::Slices(ino, chunk) => add("slices", &id(ino.0), &id(chunk.0)),
            Want::Acl(id) => add("acl", &id.to_bytes(), b""),
            Want::Settings => add("settings", b"", b""),
            Want::Counter(counter) => add("counter", counter.name().as_bytes(), b""),
            Want::Usage => add("usage", b"", b""),
            Want::Locks(ino) => add("locks", &id(ino.0), b""),
            Want::Waits => add("waits", b"", b""),
            Want::Session(session) => add("session", &id(session.0), b""),
        }
    }
    request
}

/// Takes a seq and the answers to all wants off an answer.
pub(crate) fn facts(wants: &[Want], answer: &mut Answer) -> Result<Facts, Malformed> {
    let seq = Seq(answer.take()?);
    let mut records = Vec::new();
    wants.iter().try_for_each(|want| take(want, answer, &mut records))?;
    Ok(Facts { seq, records })
}

fn take(want: &Want, answer: &mut Answer, records: &mut Vec<Record>) -> Result<(), Malformed> {
    records.push(match want {
        Want::Node(ino) => return take_node(*ino, answer, records),
        Want::Entry(parent, name) => {
            let edge = answer.stored(rows::edge)?;
            records.push(Record::Edge(*parent, name.clone(), edge));
            return edge.map_or(Ok(()), |edge| take_node(edge.ino, answer, records));
        }
        Want::Empty(ino) => Record::Empty(*ino, answer.take::<i64>()? != 0),
        Want::Xattrs(ino) => Record::Xattrs(*ino, Arc::new(xattrs(answer.take()?)?)),
        Want::Symlink(ino) => Record::Symlink(*ino, answer.take()?),
        Want::Slices(ino, chunk) => Record::Slices(*ino, *chunk, slices(answer.take()?)?),
        Want::Acl(id) => Record::Acl(*id, answer.take::<Option<String>>()?.map(Arc::from)),
        Want::Settings => Record::Settings(answer.take()?),
        Want::Counter(counter) => {
            Record::Counter(*counter, answer.take::<Option<_>>()?.map_or(0, u64::from_be_bytes))
        }
        Want::Usage => Record::Usage(Usage { inodes: answer.id()?, blocks: answer.id()? }),
        Want::Locks(ino) => Record::Locks(*ino, answer.stored(rows::locks)?.unwrap_or_default().into()),
        Want::Session(id) => Record::Session(*id, answer.stored(|bytes| rows::session(*id, bytes))?),
        Want::Waits => {
            let found: Vec<Vec<u8>> = answer.take()?;
            let waits = found.iter().map(|bytes| rows::wait(rows::member::<17>(bytes)?.1));
            Record::Waits(waits.collect::<Result<_, _>>()?)
        }
    });
    Ok(())
}

fn take_node(ino: Ino, answer: &mut Answer, records: &mut Vec<Record>) -> Result<(), Malformed> {
    let node = answer.stored(|bytes| rows::node(ino, bytes))?;
    records.push(Record::Node(ino, node));
    for id in node.iter().flat_map(Node::acls) {
        records.push(Record::Acl(id, answer.take::<Option<String>>()?.map(Arc::from)));
    }
    Ok(())
}

/// The rows of a chunk, each behind the chunk's and its own number.
pub(crate) fn slices(found: Vec<Vec<u8>>) -> Result<Arc<[Slice]>, Malformed> {
    let row =
        |bytes: &Vec<u8>| rows::slice(bytes.get(16..).ok_or(Malformed("a row of a file is too short"))?);
    found.iter().map(row).collect()
}

fn xattrs(found: Vec<(Vec<u8>, Arc<[u8]>)>) -> Result<Xattrs, Malformed> {
    let xattr = |(name, value): (Vec<u8>, Arc<[u8]>)| {
        let name = XattrName::new(&name).map_err(|_| Malformed("an xattr's name is none"))?;
        Ok((name, value))
    };
    found.into_iter().map(xattr).collect()
}
