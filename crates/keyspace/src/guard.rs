//! Checks guards.

use meta::{CONDEMNED, Guard, Inode, xattr_blocks};
use types::{AclId, Ino, SessionId, Term, Time};

use crate::keys::Span;
use crate::shards::{acl_users, term_shard};
use crate::source::{Assume, ReadStop};
use crate::state::State;
use crate::value::{Amount, decode_bytes, decode_locks, decode_row, decode_session, decode_text, decode_u64};

impl State<'_> {
    /// Whether the guard holds. If the guard requires that a key is absent, and the source does not know the
    /// key, the key is assumed to be absent; a precondition checks this.
    pub(crate) fn holds(&mut self, guard: &Guard) -> Result<bool, ReadStop> {
        Ok(match guard {
            Guard::DirentIs { parent, name, ino } => {
                self.dirent(*parent, name, Assume::Nothing)?.is_some_and(|dirent| dirent.ino == *ino)
            }
            Guard::DirentAbsent { parent, name } => self.dirent(*parent, name, Assume::Absent)?.is_none(),
            Guard::Access { ino, rev } => self.inode_is(*ino, |inode| inode.access_rev == *rev)?,
            Guard::ParentIs { ino, parent } => self.inode_is(*ino, |inode| inode.parent == *parent)?,
            Guard::Size { ino, size } => self.inode_is(*ino, |inode| inode.size == *size)?,
            Guard::InodeAbsent { ino } => self.load(*ino, Assume::Absent)?.stored.is_none(),
            Guard::Links { ino, nlink } => {
                self.load(*ino, Assume::Nothing)?;
                self.load_links(*ino)?;
                self.inode_is(*ino, |inode| inode.nlink == *nlink)?
            }
            Guard::Empty { ino } => self.is_empty(*ino)?,
            Guard::Xattr { ino, name, blocks } => {
                let assume = if *blocks > 0 { Assume::Nothing } else { Assume::Absent };
                let found = self.decoded(self.keys.xattr(*ino, name), assume, decode_bytes)?;
                found.map_or(0, |value| xattr_blocks(value.len())) == *blocks
            }
            Guard::XattrBlocks { ino, least, most } => {
                self.inode_is(*ino, |inode| (*least..=*most).contains(&inode.xattr_blocks))?
            }
            Guard::Setting { name, value } => {
                let assume = if value.is_some() { Assume::Nothing } else { Assume::Absent };
                self.decoded(self.keys.setting(name), assume, decode_text)? == *value
            }
            Guard::Counter { counter, value } => {
                let assume = if *value == 0 { Assume::Absent } else { Assume::Nothing };
                self.decoded(self.keys.counter(*counter), assume, decode_u64)?.unwrap_or(0) == *value
            }
            Guard::Locks { ino, locks } => {
                let exists = self.exists(*ino)?;
                let assume = if locks.is_empty() { Assume::Absent } else { Assume::Nothing };
                let found = self.decoded(self.keys.locks(*ino), assume, decode_locks)?.unwrap_or_default();
                exists && found[..] == locks[..]
            }
            Guard::Rows { ino, chunk, rows } => {
                // A precondition on the inode's record suffices, because each change of the rows also changes
                // the record.
                if self.load(*ino, Assume::Nothing)?.stored.is_none_or(|stored| stored.rows == 0) {
                    return Ok(rows.is_empty());
                }
                let mut found = Vec::new();
                for (key, value) in
                    self.rows_in(*ino, &self.keys.chunk(*ino, *chunk))?.into_iter().take(rows.len())
                {
                    found.push(decode_row(&key, &value)?);
                }
                found[..] == rows[..]
            }
            Guard::Room { max_inodes, max_blocks } => {
                self.has_room(Amount::limit(*max_inodes, *max_blocks))?
            }
            Guard::Quota { key, outer, inodes, blocks } => match self.quota(*key)? {
                Some(quota) => {
                    outer.is_none_or(|outer| quota.rule.outer == outer) && quota.fits(*inodes, *blocks)
                }
                None => outer.is_none(),
            },
            Guard::Session { session, heartbeat: Some(heartbeat) } => {
                self.has_heartbeat(*session, *heartbeat)?
            }
            Guard::Session { session, heartbeat: None } => self.session_exists(*session)?,
            Guard::Term { session, term } => self.is_open(*session, *term)?,
            Guard::Acl { id } => {
                self.acl(*id, Assume::Nothing)?.is_some_and(|text| !text.starts_with(CONDEMNED))
            }
        })
    }

    /// The text of an ACL as stored, for a transaction that refers to the ACL. Such transactions must not
    /// conflict with each other. Therefore, on a store where two preconditions on the same key conflict, each
    /// of them has a precondition on one of 256 keys, chosen by its shard (compare [`State::is_open`]). A
    /// transaction that condemns an ACL has preconditions on all 256 keys. If thousands of commits a second
    /// refer to ACLs, every attempt to condemn one may conflict; then `limen gc` fails, and the unused ACLs
    /// stay.
    pub(crate) fn acl(&mut self, id: AclId, assume: Assume) -> Result<Option<String>, ReadStop> {
        if !self.options.blind {
            self.untouched.insert(self.keys.acl_users(acl_users(self.options.shard)));
        }
        self.decoded(self.keys.acl(id), assume, decode_text)
    }

    fn has_heartbeat(&mut self, session: SessionId, heartbeat: Time) -> Result<bool, ReadStop> {
        let decode = |key: &[u8], value: &[u8]| decode_session(session, key, value);
        let found = self.decoded(self.keys.session(session), Assume::Nothing, decode)?;
        Ok(found.is_some_and(|session| session.heartbeat == heartbeat))
    }

    /// Whether the session exists.
    pub(crate) fn session_exists(&mut self, session: SessionId) -> Result<bool, ReadStop> {
        let blind = self.options.blind;
        let key = if blind { self.keys.fence(session, Term::NONE) } else { self.keys.session(session) };
        Ok(self.value(&key, Assume::Nothing)?.is_some())
    }

    /// Whether the term is open. Every commit of a mount checks this, and these commits must conflict neither
    /// with each other nor with heartbeats. So on a store that compares versions, the precondition is on the
    /// fence, which neither commits nor heartbeats write. On other stores, two preconditions on the same key
    /// conflict. There, the precondition is on the head of one shard of the term, which no other commit uses
    /// at the same time; the end of the term and the removal of the session have preconditions on the heads
    /// of all shards.
    fn is_open(&mut self, session: SessionId, term: Term) -> Result<bool, ReadStop> {
        let key = self.keys.fence(session, term);
        if self.options.blind {
            return Ok(self.value(&key, Assume::Nothing)?.is_some());
        }
        self.untouched.insert(self.keys.head(term_shard(session, term, self.options.shard)));
        match self.values.get(&key) {
            Some(value) => Ok(value.is_some()),
            None => Ok(self.lookup.key(&key, Assume::Nothing)?.is_some()),
        }
    }

    fn inode_is(&mut self, ino: Ino, is: impl FnOnce(&Inode) -> bool) -> Result<bool, ReadStop> {
        Ok(self.inode(ino)?.is_some_and(is))
    }

    /// Whether the directory has no entry. If the source does not know the range, it is assumed to be empty,
    /// provided that the store can check this.
    fn is_empty(&mut self, ino: Ino) -> Result<bool, ReadStop> {
        if !self.options.blind {
            // On a store without preconditions on ranges, a transaction that adds an entry conflicts with
            // this one through the directory's record.
            self.load(ino, Assume::Nothing)?;
        }
        let mut here = self.dirents.iter().filter(|((parent, _), _)| *parent == ino).map(|(_, state)| state);
        if here.any(|state| state.dirent.is_some()) {
            return Ok(false);
        }
        let span = Span { limit: 1, ..self.keys.dirents(ino) };
        let occupied = match self.lookup.span(&span) {
            Ok(found) => !found.is_empty(),
            Err(_) if self.options.blind => false,
            Err(stop) => return Err(stop),
        };
        let dropped = self.dirents.iter().any(|((parent, _), state)| *parent == ino && state.existed);
        if dropped {
            // This batch drops entries of the directory. Only a read after its commit shows whether other
            // entries are left.
            return Err(ReadStop::Flush);
        }
        if !occupied {
            self.empty.insert(span);
        }
        Ok(!occupied)
    }
}
