//! Whether guards hold.

use meta::{Guard, Node};
use types::{Ino, SessionId, Term, Time};

use crate::keys::Span;
use crate::lanes::term_lane;
use crate::source::{Presume, Stop};
use crate::state::State;
use crate::value::{Amount, decode_locks, decode_row, decode_session, decode_text, decode_u64};

impl State<'_> {
    /// Whether the guard holds. An absence that it asks for is presumed where nothing is known.
    pub(crate) fn holds(&mut self, guard: &Guard) -> Result<bool, Stop> {
        Ok(match guard {
            Guard::EdgeIs { parent, name, ino } => {
                self.edge(*parent, name, Presume::Nothing)?.is_some_and(|edge| edge.ino == *ino)
            }
            Guard::EdgeAbsent { parent, name } => self.edge(*parent, name, Presume::Absent)?.is_none(),
            Guard::Access { ino, rev } => self.node_is(*ino, |node| node.access_rev == *rev)?,
            Guard::ParentIs { ino, parent } => self.node_is(*ino, |node| node.parent == *parent)?,
            Guard::Size { ino, size } => self.node_is(*ino, |node| node.size == *size)?,
            Guard::NodeAbsent { ino } => self.load(*ino, Presume::Absent)?.stored.is_none(),
            Guard::Links { ino, nlink } => {
                self.load(*ino, Presume::Nothing)?;
                self.load_links(*ino)?;
                self.node_is(*ino, |node| node.nlink == *nlink)?
            }
            Guard::Empty { ino } => self.is_empty(*ino)?,
            Guard::Xattr { ino, name, present } => {
                let presume = if *present { Presume::Nothing } else { Presume::Absent };
                self.value(&self.keys.xattr(*ino, name), presume)?.is_some() == *present
            }
            Guard::Setting { name, value } => {
                let presume = if value.is_some() { Presume::Nothing } else { Presume::Absent };
                let key = self.keys.setting(name);
                let found = self.value(&key, presume)?;
                found.map(|found| decode_text(&key, &found)).transpose()? == *value
            }
            Guard::Counter { counter, value } => {
                let presume = if *value == 0 { Presume::Absent } else { Presume::Nothing };
                let key = self.keys.counter(*counter);
                let found = self.value(&key, presume)?;
                found.map_or(Ok(0), |found| decode_u64(&key, &found))? == *value
            }
            Guard::Locks { ino, locks } => {
                let exists = self.exists(*ino)?;
                let presume = if locks.is_empty() { Presume::Absent } else { Presume::Nothing };
                let key = self.keys.locks(*ino);
                let found = self.value(&key, presume)?;
                let found = found.map_or(Ok(Vec::new()), |found| decode_locks(&key, &found))?;
                exists && found[..] == locks[..]
            }
            Guard::Rows { ino, chunk, rows } => {
                // The inode is what is claimed: it changes with its rows.
                if self.load(*ino, Presume::Nothing)?.stored.is_none_or(|stored| stored.rows == 0) {
                    return Ok(rows.is_empty());
                }
                let span = Span {
                    end: self.keys.row(*ino, *chunk, u64::MAX),
                    ..self.keys.rows(*ino, *chunk, *chunk)
                };
                let mut found = Vec::new();
                for (key, value) in self.values_in(&span)?.into_iter().take(rows.len()) {
                    found.push(decode_row(&key, &value)?);
                }
                found[..] == rows[..]
            }
            Guard::Room { max_inodes, max_blocks } => {
                self.has_room(Amount::limit(*max_inodes, *max_blocks))?
            }
            Guard::Session { session, heartbeat: Some(heartbeat) } => self.beat(*session, *heartbeat)?,
            Guard::Session { session, heartbeat: None } => self.session_exists(*session)?,
            Guard::Term { session, term } => self.is_open(*session, *term)?,
        })
    }

    fn beat(&mut self, session: SessionId, heartbeat: Time) -> Result<bool, Stop> {
        let key = self.keys.session(session);
        let Some(value) = self.value(&key, Presume::Nothing)? else { return Ok(false) };
        Ok(decode_session(session, &key, &value)?.heartbeat == heartbeat)
    }

    /// Whether the session's record is there.
    pub(crate) fn session_exists(&mut self, session: SessionId) -> Result<bool, Stop> {
        let blind = self.options.blind;
        let key = if blind { self.keys.fence(session, Term::NONE) } else { self.keys.session(session) };
        Ok(self.value(&key, Presume::Nothing)?.is_some())
    }

    /// Whether the term is open. Every commit of a mount asks this, and commits must meet neither each other nor the
    /// heartbeat: so nothing is claimed that one of them writes. A store that compares versions compares the fence. On
    /// another store, a commit claims one lane of the term, which no other commit uses at the same time, and the term's end
    /// and the session's removal claim all of them.
    fn is_open(&mut self, session: SessionId, term: Term) -> Result<bool, Stop> {
        let key = self.keys.fence(session, term);
        if self.options.blind {
            return Ok(self.value(&key, Presume::Nothing)?.is_some());
        }
        self.untouched.insert(self.keys.head(term_lane(session, term, self.options.lane)));
        match self.values.get(&key) {
            Some(value) => Ok(value.is_some()),
            None => Ok(self.look.key(&key, Presume::Nothing)?.is_some()),
        }
    }

    fn node_is(&mut self, ino: Ino, is: impl FnOnce(&Node) -> bool) -> Result<bool, Stop> {
        Ok(self.node(ino)?.is_some_and(is))
    }

    /// Whether no entry lies in the directory; that it is empty in the store is presumed where nothing is known.
    fn is_empty(&mut self, ino: Ino) -> Result<bool, Stop> {
        if !self.options.blind {
            // A store without claims on ranges excludes a new entry by the directory itself.
            self.load(ino, Presume::Nothing)?;
        }
        let mut here = self.edges.iter().filter(|((parent, _), _)| *parent == ino).map(|(_, state)| state);
        if here.any(|state| state.edge.is_some()) {
            return Ok(false);
        }
        let span = Span { limit: 1, ..self.keys.entries(ino) };
        let occupied = match self.look.span(&span) {
            Ok(found) => !found.is_empty(),
            Err(_) if self.options.blind => false,
            Err(stop) => return Err(stop),
        };
        let dropped = self.edges.iter().any(|((parent, _), state)| *parent == ino && state.existed);
        if dropped {
            // Only the store can tell whether what was dropped in this batch was all there was.
            return Err(Stop::Flush);
        }
        if !occupied {
            self.empty.insert(span);
        }
        Ok(!occupied)
    }
}
