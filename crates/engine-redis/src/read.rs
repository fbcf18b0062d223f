//! Wants as the scripts read them, and facts out of their answers.

use std::sync::Arc;

use meta::{Facts, Node, Record, Seq, Settings, Usage, Want, Xattrs};
use types::{Ino, Slice, XattrName};

use crate::error::Malformed;
use crate::request::{Answer, Request};
use crate::rows;

pub(crate) fn request(wants: &[Want]) -> Request {
    let mut request = Request::default();
    request.array(wants.len());
    for want in wants {
        match want {
            Want::Node(ino) => request.array(2).string("node").id(ino.0),
            Want::Entry(parent, name) => request.array(3).string("entry").id(parent.0).string(name),
            Want::Empty(ino) => request.array(2).string("empty").id(ino.0),
            Want::Xattrs(ino) => request.array(2).string("xattrs").id(ino.0),
            Want::Symlink(ino) => request.array(2).string("symlink").id(ino.0),
            Want::Slices(ino, chunk) => request.array(3).string("slices").id(ino.0).id(chunk.0),
            Want::Acl(id) => request.array(2).string("acl").string(id.to_bytes()),
            Want::Settings => request.array(1).string("settings"),
            Want::Counter(counter) => request.array(2).string("counter").string(counter.name()),
            Want::Usage => request.array(1).string("usage"),
            Want::Locks(ino) => request.array(2).string("locks").id(ino.0),
            Want::Waits => request.array(1).string("waits"),
        };
    }
    request
}

/// Takes a seq and the answers to all wants off an answer.
pub(crate) fn facts<'a>(
    wants: impl Iterator<Item = &'a Want>,
    answer: &mut Answer,
) -> Result<Facts, Malformed> {
    let seq = Seq(answer.decimal()?);
    let mut records = Vec::new();
    for want in wants {
        take(want, answer, &mut records)?;
    }
    Ok(Facts { seq, records })
}

fn take(want: &Want, answer: &mut Answer, records: &mut Vec<Record>) -> Result<(), Malformed> {
    match want {
        Want::Node(ino) => take_node(*ino, answer, records)?,
        Want::Entry(parent, name) => {
            let edge = answer.string()?.map(|bytes| rows::edge(&bytes)).transpose()?;
            records.push(Record::Edge(*parent, name.clone(), edge));
            if let Some(edge) = edge {
                take_node(edge.ino, answer, records)?;
            }
        }
        Want::Empty(ino) => records.push(Record::Empty(*ino, answer.number()? != 0)),
        Want::Xattrs(ino) => records.push(Record::Xattrs(*ino, Arc::new(xattrs(answer.array()?)?))),
        Want::Symlink(ino) => records.push(Record::Symlink(*ino, answer.string()?.map(Arc::from))),
        Want::Slices(ino, chunk) => {
            records.push(Record::Slices(*ino, *chunk, slices(answer.array()?)?.into()));
        }
        Want::Acl(id) => records.push(Record::Acl(*id, acl(answer.string()?)?)),
        Want::Settings => records.push(Record::Settings(Arc::new(settings(answer.array()?)?))),
        Want::Counter(counter) => {
            let value = answer.string()?.map(|bytes| rows::number(&bytes)).transpose()?;
            records.push(Record::Counter(*counter, value.unwrap_or(0)));
        }
        Want::Usage => {
            let (inodes, blocks) = (rows::number(&answer.present()?)?, rows::number(&answer.present()?)?);
            records.push(Record::Usage(Usage { inodes, blocks }));
        }
        Want::Locks(ino) => {
            let locks = answer.string()?.map(|bytes| rows::locks(&bytes)).transpose()?;
            records.push(Record::Locks(*ino, locks.unwrap_or_default().into()));
        }
        Want::Waits => {
            let waits = answer.array()?.strings().map(|bytes| {
                let bytes = bytes?;
                rows::wait(rows::member::<17>(&bytes)?.1)
            });
            records.push(Record::Waits(waits.collect::<Result<Vec<_>, _>>()?.into()));
        }
    }
    Ok(())
}

fn take_node(ino: Ino, answer: &mut Answer, records: &mut Vec<Record>) -> Result<(), Malformed> {
    let node = answer.string()?.map(|bytes| rows::node(ino, &bytes)).transpose()?;
    records.push(Record::Node(ino, node));
    for id in node.iter().flat_map(Node::acls) {
        records.push(Record::Acl(id, acl(answer.string()?)?));
    }
    Ok(())
}

pub(crate) fn acl(text: Option<Vec<u8>>) -> Result<Option<Arc<str>>, Malformed> {
    let text = text.map(String::from_utf8).transpose().map_err(|_| Malformed("an ACL is not UTF-8"))?;
    Ok(text.map(Arc::from))
}

/// The rows of a chunk, each behind the chunk's and its own number.
pub(crate) fn slices(answer: Answer) -> Result<Vec<Slice>, Malformed> {
    let rows = answer.strings().map(|bytes| {
        let bytes = bytes?;
        rows::slice(bytes.get(16..).ok_or(Malformed("a row of a file is too short"))?)
    });
    rows.collect()
}

fn xattrs(answer: Answer) -> Result<Xattrs, Malformed> {
    let xattr = |pair: Result<(Vec<u8>, Vec<u8>), Malformed>| {
        let (name, value) = pair?;
        let name = XattrName::new(&name).map_err(|_| Malformed("an xattr's name is none"))?;
        Ok((name, value.into()))
    };
    answer.pairs().map(xattr).collect()
}

fn settings(answer: Answer) -> Result<Settings, Malformed> {
    let text = |bytes| String::from_utf8(bytes).map_err(|_| Malformed("a setting is not UTF-8"));
    answer.pairs().map(|pair| pair.and_then(|(name, value)| Ok((text(name)?, text(value)?)))).collect()
}
