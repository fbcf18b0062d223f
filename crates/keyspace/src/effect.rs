//! Applies effects.

use bytes::Bytes;
use meta::{CONDEMNED, Effect, Inode, Quota, QuotaKey};
use types::{ChunkIndex, Ino, SessionId, Slice, SliceId, SliceSource, Term};

use crate::keys::Span;
use crate::shards::{session_shards, term_shards};
use crate::source::{Assume, ReadStop};
use crate::state::{DirentState, InodeState, State, StatePart};
use crate::value::{
    Stored, decode_quota, decode_row, decode_u64, encode_bytes, encode_locks, encode_quota, encode_row,
    encode_session, encode_u64, encode_wait,
};

impl State<'_> {
    pub(crate) fn apply(&mut self, effect: &Effect) -> Result<(), ReadStop> {
        match effect {
            Effect::PutInode(inode) => return self.put_inode(inode),
            Effect::DropInode { ino } => return self.drop_inode(*ino, Assume::Nothing),
            Effect::PutDirent { parent, name, ino, kind } => {
                if !self.options.blind {
                    // A transaction that removes the directory conflicts with this one through the
                    // directory's record.
                    self.load(*parent, Assume::Nothing)?;
                }
                self.dirent(*parent, name, Assume::Absent)?;
                self.set_dirent(*parent, name, Some(meta::Dirent { ino: *ino, kind: *kind }));
            }
            Effect::DropDirent { parent, name } => {
                if self.dirent(*parent, name, Assume::Nothing)?.is_some() {
                    self.set_dirent(*parent, name, None);
                }
            }
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::SetTimes { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. }
            | Effect::AddXattrBlocks { ino, .. } => return self.change(*ino, effect),
            Effect::AppendSlice { ino, chunk, slice } => {
                if let Some(stored) = self.dirty(*ino)? {
                    let row = stored.rows;
                    stored.rows += 1;
                    self.put(self.keys.row(*ino, *chunk, row), encode_row(slice));
                }
            }
            Effect::DropSlices { ino, from, to } => return self.drop_rows(*ino, *from, *to),
            Effect::ReplaceRows { ino, chunk, count, rows } => {
                return self.replace_rows(*ino, *chunk, *count, rows);
            }
            Effect::Share { slice, rows } => {
                let extra = self.shared(*slice)?.unwrap_or(0);
                self.set_shared(*slice, Some(extra + u64::from(*rows)));
            }
            Effect::PutXattr { ino, name, value } => {
                if self.exists(*ino)? {
                    self.put(self.keys.xattr(*ino, name), encode_bytes(value));
                }
            }
            Effect::DropXattr { ino, name } => self.delete(self.keys.xattr(*ino, name)),
            Effect::PutAcl { id, text } => {
                let found = self.acl(*id, Assume::Absent)?;
                let kept = found.as_ref().map(|found| found.strip_prefix(CONDEMNED));
                if let Some(text) = kept.unwrap_or(Some(text)) {
                    self.put(self.keys.acl(*id), encode_bytes(text.as_bytes()));
                }
            }
            Effect::CondemnAcl { id } => {
                let found = self.acl(*id, Assume::Nothing)?;
                if let Some(text) = found.filter(|text| !text.starts_with(CONDEMNED)) {
                    self.put(self.keys.acl(*id), encode_bytes(format!("{CONDEMNED}{text}").as_bytes()));
                }
                if !self.options.blind {
                    self.untouched.extend((0..=u8::MAX).map(|number| self.keys.acl_users(number)));
                }
            }
            Effect::DropAcl { id } => {
                let found = self.acl(*id, Assume::Nothing)?;
                if found.is_some_and(|text| text.starts_with(CONDEMNED)) {
                    self.delete(self.keys.acl(*id));
                }
            }
            Effect::PutSymlink { ino, target } => {
                if self.exists(*ino)? {
                    self.put(self.keys.symlink(*ino), encode_bytes(target));
                }
            }
            Effect::PutOrphan { session, ino } => {
                self.put(self.keys.unlinked(*session, *ino), encode_bytes(&[]))
            }
            Effect::DropOrphan { session, ino } => self.delete(self.keys.unlinked(*session, *ino)),
            Effect::PutSession(session) => {
                let fence = self.keys.fence(session.id, Term::NONE);
                if self.options.blind && self.value(&fence, Assume::Absent)?.is_none() {
                    self.put(fence, encode_bytes(&[]));
                }
                self.put(self.keys.session(session.id), encode_session(session));
            }
            Effect::DropSession { session } => {
                self.delete(self.keys.session(*session));
                if !self.options.blind {
                    // An in-flight commit of the session writes one of these heads, and so conflicts.
                    self.untouched.extend(session_shards(*session).map(|shard| self.keys.head(shard)));
                }
                // The results of a session's operations are removed with it, because its client will not
                // retry them.
                let spans = [self.keys.fences(*session), self.keys.log_of(*session)];
                return self.drop_spans(spans);
            }
            Effect::BeginTerm { session, term, ended } => return self.begin_term(*session, *term, ended),
            Effect::PutLocks { ino, locks } if locks.is_empty() => self.delete(self.keys.locks(*ino)),
            Effect::PutLocks { ino, locks } => {
                if self.exists(*ino)? {
                    self.put(self.keys.locks(*ino), encode_locks(locks));
                }
            }
            Effect::PutWait(wait) => self.put(self.keys.wait(wait.lock.owner), encode_wait(wait)),
            Effect::DropWait { owner } => self.delete(self.keys.wait(*owner)),
            Effect::DropGarbage { slice } => self.delete(self.keys.garbage(*slice)),
            Effect::PutSetting { name, value } => {
                self.put(self.keys.setting(name), encode_bytes(value.as_bytes()));
            }
            Effect::SetCounter { counter, value } => {
                self.put(self.keys.counter(*counter), encode_u64(*value));
            }
            Effect::AddUsage { inodes, blocks } => {
                let have = self.usage()?;
                let add = |have: i64, more: i64| have.saturating_add(more).max(0) - have;
                self.inodes += add(have.inodes, *inodes);
                self.blocks += add(have.blocks, *blocks);
            }
            Effect::PutQuota { key, rule } => {
                let quota = self.quota(*key)?.unwrap_or_default();
                self.put(self.keys.quota(*key), encode_quota(&Quota { rule: *rule, ..quota }));
            }
            Effect::DropQuota { key } => self.delete(self.keys.quota(*key)),
            Effect::Charge { key, inodes, blocks } => {
                let mut quota = self.quota(*key)?.unwrap_or_default();
                quota.inodes = quota.inodes.saturating_add(*inodes);
                quota.blocks = quota.blocks.saturating_add(*blocks);
                self.put(self.keys.quota(*key), encode_quota(&quota));
            }
        }
        Ok(())
    }

    /// A quota, with a precondition, so that commits which charge the same quota are serialized.
    pub(crate) fn quota(&mut self, quota: QuotaKey) -> Result<Option<Quota>, ReadStop> {
        let key = self.keys.quota(quota);
        let found = self.value(&key, Assume::Nothing)?;
        Ok(found.map(|found| decode_quota(&key, &found)).transpose()?)
    }

    fn begin_term(&mut self, session: SessionId, term: Term, ended: &[Term]) -> Result<(), ReadStop> {
        let exists = self.session_exists(session);
        if exists == Ok(false) {
            return Ok(());
        }
        let fence = self.keys.fence(session, term);
        if self.value(&fence, Assume::Absent)?.is_none() {
            self.put(fence, encode_bytes(&[]));
        }
        for term in ended {
            if !self.options.blind {
                self.untouched.extend(term_shards(session, *term).map(|shard| self.keys.head(shard)));
            }
            self.delete(self.keys.fence(session, *term));
        }
        let dropped = self.drop_spans(ended.iter().map(|term| self.keys.log_of_term(session, *term)));
        exists.and(dropped)
    }

    /// Drops all these ranges, even after one fails, to collect the queries of all missing values at once.
    fn drop_spans(&mut self, spans: impl IntoIterator<Item = Span>) -> Result<(), ReadStop> {
        let dropped: Vec<_> = spans.into_iter().map(|span| self.drop_span(span)).collect();
        dropped.into_iter().collect()
    }

    fn put_inode(&mut self, inode: &Inode) -> Result<(), ReadStop> {
        self.drop_inode(inode.ino, Assume::Absent)?;
        self.inodes += 1;
        self.blocks += signed(inode.blocks());
        let part = if inode.kind.is_dir() { StatePart::Dirty } else { StatePart::Clean };
        let old = self.load(inode.ino, Assume::Absent)?;
        *old = InodeState {
            stored: Some(Stored { inode: *inode, rows: 0 }),
            base: old.base.take(),
            base_version: old.base_version,
            base_parts: old.base_parts,
            dirty: true,
            links: part,
            mtime: part,
            ctime: part,
        };
        Ok(())
    }

    fn drop_inode(&mut self, ino: Ino, assume: Assume) -> Result<(), ReadStop> {
        let Some(stored) = self.load(ino, assume)?.stored else { return Ok(()) };
        self.inodes -= 1;
        self.blocks -= signed(stored.inode.blocks());
        if stored.rows > 0 {
            self.drop_rows(ino, ChunkIndex(0), ChunkIndex(u64::MAX))?;
        }
        self.drop_span(self.keys.body(ino))?;
        self.delete(self.keys.locks(ino));
        let inode = self.load(ino, assume)?;
        (inode.stored, inode.dirty) = (None, true);
        Ok(())
    }

    fn set_dirent(&mut self, parent: Ino, name: &types::Name, dirent: Option<meta::Dirent>) {
        let state = self.dirents.entry((parent, name.clone()));
        let state = state.or_insert(DirentState { dirent: None, existed: false, dirty: true });
        (state.dirent, state.dirty) = (dirent, true);
    }

    /// Marks the inode's record as changed, and returns it.
    fn dirty(&mut self, ino: Ino) -> Result<Option<&mut Stored>, ReadStop> {
        let inode = self.load(ino, Assume::Nothing)?;
        inode.dirty |= inode.stored.is_some();
        Ok(inode.stored.as_mut())
    }

    /// Changes an inode's fields.
    fn change(&mut self, ino: Ino, effect: &Effect) -> Result<(), ReadStop> {
        let Some(inode) = self.inode(ino)? else { return Ok(()) };
        if inode.kind.is_dir() {
            match effect {
                Effect::AddLinks { .. } => {
                    self.load_links(ino)?;
                    self.change_part(ino, effect);
                    return Ok(());
                }
                Effect::SetTimes { .. } => return self.set_directory_times(ino, effect),
                _ => {}
            }
        }
        let before = signed(inode_blocks(self.inode(ino)?));
        if let Some(stored) = self.dirty(ino)? {
            effect.apply_to(&mut stored.inode);
            let after = signed(stored.inode.blocks());
            self.blocks += after - before;
        }
        Ok(())
    }

    fn change_part(&mut self, ino: Ino, effect: &Effect) {
        if let Some(inode) = self.inode_states.get_mut(&ino)
            && let Some(stored) = &mut inode.stored
        {
            effect.apply_to(&mut stored.inode);
            inode.links = StatePart::Dirty;
        }
    }

    /// Sets the times of a directory. If the store can, the mtime and ctime are set without being read.
    fn set_directory_times(&mut self, ino: Ino, effect: &Effect) -> Result<(), ReadStop> {
        let Effect::SetTimes { atime, mtime, ctime, .. } = *effect else { return Ok(()) };
        if atime.is_some() {
            self.load_links(ino)?;
            self.change_part(ino, &Effect::SetTimes { ino, atime, mtime: None, ctime: None });
        }
        if !self.options.blind {
            self.load_times(ino)?;
        }
        let Some(inode) = self.inode_states.get_mut(&ino) else { return Ok(()) };
        let Some(stored) = &mut inode.stored else { return Ok(()) };
        if let Some(time) = mtime {
            inode.mtime = match inode.mtime {
                StatePart::Unknown | StatePart::Pending(_) => StatePart::Pending(time),
                StatePart::Clean | StatePart::Dirty => {
                    stored.inode.mtime = time;
                    StatePart::Dirty
                }
            };
        }
        if let Some(time) = ctime {
            inode.ctime = match inode.ctime {
                StatePart::Unknown => StatePart::Pending(time),
                StatePart::Pending(before) => StatePart::Pending(time.max(before)),
                StatePart::Clean | StatePart::Dirty => {
                    stored.inode.ctime = time.max(stored.inode.ctime);
                    StatePart::Dirty
                }
            };
        }
        Ok(())
    }

    fn drop_rows(&mut self, ino: Ino, from: ChunkIndex, to: ChunkIndex) -> Result<(), ReadStop> {
        let rows = self.load(ino, Assume::Nothing)?.stored.map_or(0, |stored| stored.rows);
        if rows == 0 {
            return Ok(());
        }
        let span = self.keys.rows(ino, from, to);
        let gone = self.rows_in(ino, &span)?;
        let rows = gone.iter().map(|(key, value)| decode_row(key, value)).collect::<Result<Vec<_>, _>>()?;
        self.query_counts(&rows)?;
        rows.iter().try_for_each(|row| self.release(row))?;
        self.drop_span(span)?;
        if !gone.is_empty()
            && let Some(stored) = self.dirty(ino)?
        {
            stored.rows += 1;
        }
        Ok(())
    }

    fn replace_rows(
        &mut self,
        ino: Ino,
        chunk: ChunkIndex,
        count: u32,
        rows: &[Slice],
    ) -> Result<(), ReadStop> {
        if !self.exists(ino)? {
            return Ok(());
        }
        let rows_of_chunk = self.rows_in(ino, &self.keys.chunk(ino, chunk))?;
        let oldest: Vec<(Vec<u8>, Bytes)> = rows_of_chunk.into_iter().take(count as usize).collect();
        let removed =
            oldest.iter().map(|(key, value)| decode_row(key, value)).collect::<Result<Vec<_>, _>>()?;
        self.query_counts(&removed)?;
        for (index, ((key, _), row)) in oldest.iter().zip(&removed).enumerate() {
            self.release(row)?;
            match rows.get(index) {
                Some(row) => self.put(key.clone(), encode_row(row)),
                None => self.delete(key.clone()),
            }
        }
        if !oldest.is_empty()
            && let Some(stored) = self.dirty(ino)?
        {
            stored.rows += 1;
        }
        Ok(())
    }

    /// Queries how many rows refer to the slices of these rows, so that all counts are read together.
    fn query_counts(&mut self, rows: &[Slice]) -> Result<(), ReadStop> {
        let mut is_missing = false;
        for row in rows {
            let SliceSource::Blocks { id, .. } = row.source else { continue };
            match self.shared(id) {
                Err(ReadStop::Missing) => is_missing = true,
                found => drop(found?),
            }
        }
        if is_missing { Err(ReadStop::Missing) } else { Ok(()) }
    }

    /// Counts one row less for the slice of a removed row. If it was the only row of the slice, the slice
    /// becomes garbage.
    fn release(&mut self, row: &Slice) -> Result<(), ReadStop> {
        let SliceSource::Blocks { id, size, .. } = row.source else { return Ok(()) };
        match self.shared(id)? {
            Some(extra) if extra > 0 => self.set_shared(id, Some(extra - 1)),
            found => {
                if found.is_some() {
                    self.set_shared(id, None);
                }
                self.put(self.keys.garbage(id), encode_u64(size.into()));
            }
        }
        Ok(())
    }

    /// The number of rows, beyond the first, that refer to the slice; `None` if it was never shared. One key
    /// says whether any slice of the volume was ever shared. If none was, no key of a single slice is read.
    fn shared(&mut self, slice: SliceId) -> Result<Option<u64>, ReadStop> {
        let any_shared = self.keys.any_shared();
        if self.value(&any_shared, Assume::Absent)?.is_none() {
            return Ok(None);
        }
        self.decoded(self.keys.shared(slice), Assume::Nothing, decode_u64)
    }

    fn set_shared(&mut self, slice: SliceId, extra: Option<u64>) {
        let key = self.keys.shared(slice);
        match extra {
            Some(extra) => self.put(key, encode_u64(extra)),
            None => self.delete(key),
        }
        self.put(self.keys.any_shared(), encode_bytes(&[]));
    }
}

fn inode_blocks(inode: Option<&Inode>) -> u64 {
    inode.map_or(0, Inode::blocks)
}

/// Converts a number of blocks of an inode, which always fits.
fn signed(blocks: u64) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}
