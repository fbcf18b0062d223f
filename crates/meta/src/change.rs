//! What a transaction changes, as other clients are told of it.

use types::{Ino, Name, SessionId};

use crate::record::Seq;
use crate::txn::{Effect, Txn};

/// A committed transaction as the stream of changes brings it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Reads that begin after the change was delivered are of this [`Seq`] or a later one.
    pub seq: Seq,
    /// Who committed it: the upper half of its operation id.
    pub by: SessionId,
    pub touched: Vec<Touched>,
}

/// A part of the volume that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Touched {
    /// The inode's record: what access depends on, links, times, size; or it is gone.
    Node(Ino),
    /// What a name in a directory refers to.
    Edge(Ino, Name),
    /// The content of a file.
    Data(Ino),
    Xattrs(Ino),
    /// The locks on an inode.
    Locks(Ino),
}

impl Txn {
    /// What other clients must hear of it, each thing once. A new inode is left out: nobody knows its number yet.
    pub fn touched(&self) -> Vec<Touched> {
        let mut touched: Vec<Touched> = Vec::new();
        let mut add = |new: Touched| {
            if !touched.contains(&new) {
                touched.push(new);
            }
        };
        for effect in &self.effects {
            match effect {
                Effect::DropNode { ino } => add(Touched::Node(*ino)),
                Effect::PutEdge { parent, name, .. } | Effect::DropEdge { parent, name } => {
                    add(Touched::Edge(*parent, name.clone()));
                }
                Effect::AppendSlice { ino, .. }
                | Effect::DropSlices { ino, .. }
                | Effect::ReplaceRows { ino, .. } => add(Touched::Data(*ino)),
                Effect::SetSize { ino, .. } | Effect::Extend { ino, .. } => {
                    add(Touched::Node(*ino));
                    add(Touched::Data(*ino));
                }
                Effect::PutXattr { ino, .. } | Effect::DropXattr { ino, .. } => add(Touched::Xattrs(*ino)),
                Effect::PutLocks { ino, .. } => add(Touched::Locks(*ino)),
                changed => changed.changed_node().into_iter().for_each(|ino| add(Touched::Node(ino))),
            }
        }
        touched
    }
}

impl Touched {
    /// The stored form: for each a letter, the inode's number in eight bytes, big end first, and for an edge the
    /// name's length in one byte and the name.
    pub fn encode(touched: &[Touched]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(touched.len() * 16);
        for one in touched {
            let (letter, ino) = match one {
                Touched::Node(ino) => (b'n', ino),
                Touched::Edge(parent, _) => (b'e', parent),
                Touched::Data(ino) => (b'd', ino),
                Touched::Xattrs(ino) => (b'x', ino),
                Touched::Locks(ino) => (b'l', ino),
            };
            bytes.push(letter);
            bytes.extend_from_slice(&ino.0.to_be_bytes());
            if let Touched::Edge(_, name) = one {
                let name = name.as_bytes();
                // A name has at most 255 bytes.
                bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                bytes.extend_from_slice(name);
            }
        }
        bytes
    }

    /// Reads what [`Touched::encode`] wrote; `None` where it is damaged, which is a gap in the stream.
    pub fn decode(mut bytes: &[u8]) -> Option<Vec<Touched>> {
        let mut touched = Vec::new();
        while let Some((letter, rest)) = bytes.split_first() {
            let (ino, rest) = rest.split_first_chunk()?;
            let ino = Ino(u64::from_be_bytes(*ino));
            bytes = rest;
            touched.push(match letter {
                b'n' => Touched::Node(ino),
                b'd' => Touched::Data(ino),
                b'x' => Touched::Xattrs(ino),
                b'l' => Touched::Locks(ino),
                b'e' => {
                    let (length, rest) = rest.split_first()?;
                    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
                    bytes = rest;
                    Touched::Edge(ino, Name::new(name).ok()?)
                }
                _ => return None,
            });
        }
        Some(touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_read_back_and_damage_is_seen() {
        let name = Name::new(&[b'x'; 255]).unwrap();
        let all = vec![
            Touched::Node(Ino(u64::MAX)),
            Touched::Edge(Ino(2), name),
            Touched::Edge(Ino(2), Name::new(b"a").unwrap()),
            Touched::Data(Ino(3)),
            Touched::Xattrs(Ino(4)),
            Touched::Locks(Ino(5)),
        ];
        let bytes = Touched::encode(&all);
        assert_eq!(Touched::decode(&bytes), Some(all));
        assert_eq!(Touched::decode(&[]), Some(Vec::new()));
        for damaged in [&bytes[1..], &bytes[..5], b"z12345678", b"e12345678", b"e12345678\x01/"] {
            assert_eq!(Touched::decode(damaged), None, "{damaged:?}");
        }
    }
}
