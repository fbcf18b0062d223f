//! The view that a plan has of the volume. It turns each lookup into a guard, except lookups of records that
//! never change, and lookups whose docs say that they are not guarded.

mod computed;
mod held;
mod limits;

use host::Instant;
use std::sync::Arc;

use acl::nfs4::{self, Projection, Traversers};
use acl::posix::PosixAcl;
use acl::sid_rules::SidRules;
use host::HashSet;
use meta::{Counter, Dirent, Guard, Inode, Lock, LockWait, RecordKey, Usage, Xattrs, xattr_blocks};
use types::{AclId, ChunkIndex, Errno, Ino, Name, SessionId, Slice, XattrName};

use crate::known::{Acl, Key, KnownRecords, OwnReads, Value};
use crate::trash_names::TRASH_NAME;

/// Why a plan has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStop {
    /// Records are missing; the driver reads them and calls the plan again.
    Missing,
    /// The operation fails by its rules. This answer is certain only if the guards recorded so far hold.
    Failed(Errno),
    /// The access attributes that the kernel has of an inode are out of date. The operation fails with
    /// ESTALE, so that the kernel looks up again.
    KernelIsStale,
    /// Another session holds this directory ([`Inode::holder`]), so the stored records of the directory and
    /// its entries may be out of date. The driver makes that session give the directory back, and calls the
    /// plan again.
    Held(Ino),
}

impl From<Errno> for PlanStop {
    fn from(errno: Errno) -> Self {
        PlanStop::Failed(errno)
    }
}

/// The records known so far, as a plan looks them up.
#[derive(Debug)]
pub struct View<'a> {
    known: &'a dyn KnownRecords,
    oldest: Option<Instant>,
    fresh: &'a OwnReads,
    expected: Vec<RecordKey>,
    /// Whether guards are recorded ([`View::omit_guards`]).
    is_guarded: bool,
    guards: Vec<Guard>,
    /// The directories whose parent is guarded. There may be many, so a set is used instead of a search in
    /// `guards`.
    guarded_parents: HashSet<Ino>,
    missing: Vec<RecordKey>,
    /// Whether the missing records must be of one moment.
    needs_snapshot: bool,
    ancestors_from: Option<Ino>,
    used_known: bool,
    assumed: bool,
    own: SessionId,
    /// Whether the stored records of directories that other sessions hold are used.
    trusts_held: bool,
    /// The last two inodes that were looked up and that no other session holds.
    not_held: [Ino; 2],
    /// Whether no other client can change the volume, so that all records are current.
    is_exclusive: bool,
    /// Whether all records in `fresh` are of one moment.
    is_snapshot: bool,
}

/// Looks up a record. If it is not known, stops the plan ([`PlanStop::Missing`]).
macro_rules! lookup {
    ($view:ident, $kind:ident $($of:tt)?) => {
        match $view.lookup(Key::$kind $($of)?) {
            Some(Value::$kind(found)) => Ok(found),
            _ => $view.missing(RecordKey::$kind $($of)?),
        }
    };
}

impl<'a> View<'a> {
    /// A view of the records in `fresh`, which the operation has read itself, and of the records in `known`,
    /// which are used only if they are not older than `oldest`.
    pub fn new(known: &'a dyn KnownRecords, oldest: Option<Instant>, fresh: &'a OwnReads) -> Self {
        View {
            known,
            oldest,
            fresh,
            expected: Vec::new(),
            is_guarded: true,
            guards: Vec::new(),
            guarded_parents: HashSet::default(),
            ancestors_from: None,
            missing: Vec::new(),
            needs_snapshot: false,
            used_known: false,
            assumed: false,
            own: SessionId(0),
            trusts_held: false,
            not_held: [Ino(0); 2],
            is_exclusive: false,
            is_snapshot: true,
        }
    }

    /// Records no guards, for an operation that never commits.
    pub fn omit_guards(&mut self) {
        self.is_guarded = false;
    }

    /// Tells whether no other client can change the volume, and whether all records in `fresh` are of one
    /// moment. Without this call, other clients can change the volume, and the records in `fresh` are of one
    /// moment.
    pub fn set_consistency(&mut self, is_exclusive: bool, is_snapshot: bool) {
        (self.is_exclusive, self.is_snapshot) = (is_exclusive, is_snapshot);
    }

    /// Names the records that the plan will look up. When a lookup finds a record missing for the first time,
    /// all of these records that are not known are read in one request.
    pub fn expect<const N: usize>(&mut self, keys: [RecordKey; N]) {
        self.expected.extend(keys);
    }

    /// As [`View::expect`], but stops the plan at once if any of the records is unknown, even one that the
    /// plan would never look up.
    pub fn prefetch(&mut self, keys: impl IntoIterator<Item = RecordKey>) -> Result<(), PlanStop> {
        let missing: Vec<RecordKey> = keys.into_iter().filter(|key| !self.is_known(key)).collect();
        self.missing.extend(missing);
        if self.missing.is_empty() { Ok(()) } else { Err(PlanStop::Missing) }
    }

    /// Whether a record is known. A dirent counts only if its inode is known too, because both are read
    /// together.
    fn is_known(&self, key: &RecordKey) -> bool {
        let is_known = |key: &Key| self.find(key).is_some();
        match key {
            RecordKey::Inode(ino) => is_known(&Key::Inode(*ino)),
            RecordKey::Dirent(parent, name) => match self.find(&Key::Dirent(*parent, name.clone())) {
                Some(Value::Dirent(Some(dirent))) => is_known(&Key::Inode(dirent.ino)),
                found => found.is_some(),
            },
            RecordKey::Xattrs(ino) => is_known(&Key::Xattrs(*ino)),
            RecordKey::Acl(id) => is_known(&Key::Acl(*id)),
            RecordKey::Locks(ino) => is_known(&Key::Locks(*ino)),
            RecordKey::Slices(ino, chunk) => is_known(&Key::Slices(*ino, *chunk)),
            RecordKey::Settings => is_known(&Key::Settings),
            RecordKey::Quota(quota) => self.find_fresh(&Key::Quota(*quota)).is_some(),
            _ => false,
        }
    }

    /// As [`View::prefetch`], for records of inodes that must be of one moment ([`View::set_consistency`]).
    /// Unless this operation has read all `keys`, one request reads them, cached or not, together with
    /// everything that the operation has read before.
    pub fn prefetch_snapshot(&mut self, keys: Vec<RecordKey>) -> Result<(), PlanStop> {
        let is_fresh = |key: &RecordKey| match key {
            RecordKey::Inode(ino) => self.find_fresh(&Key::Inode(*ino)).is_some(),
            RecordKey::Slices(ino, chunk) => self.find_fresh(&Key::Slices(*ino, *chunk)).is_some(),
            RecordKey::Xattrs(ino) => self.find_fresh(&Key::Xattrs(*ino)).is_some(),
            RecordKey::Symlink(ino) => self.find_fresh(&Key::Symlink(*ino)).is_some(),
            _ => false,
        };
        if keys.iter().all(is_fresh) {
            return Ok(());
        }
        let others = self.fresh.keys().filter_map(Key::to_read).filter(|key| !keys.contains(key));
        self.missing = others.chain(keys.iter().cloned()).collect();
        self.needs_snapshot = true;
        Err(PlanStop::Missing)
    }

    /// Looks up an inode, and guards all its fields that access depends on.
    pub fn find_inode(&mut self, ino: Ino) -> Result<Option<Inode>, PlanStop> {
        let inode = self.peek_inode(ino)?;
        self.guard(match inode {
            Some(inode) => Guard::Access { ino, rev: inode.access_rev },
            None => Guard::InodeAbsent { ino },
        });
        Ok(inode)
    }

    /// An inode, if it is known and exists. Not guarded.
    pub fn known_inode(&self, ino: Ino) -> Option<Inode> {
        match self.find(&Key::Inode(ino)) {
            Some(Value::Inode(inode)) => inode,
            _ => None,
        }
    }

    /// A directory that is to be searched or changed.
    ///
    /// # Errors
    /// ENOENT if the inode does not exist, ENOTDIR if it is not a directory.
    pub fn dir(&mut self, ino: Ino) -> Result<Inode, PlanStop> {
        let inode = self.find_inode(ino)?.ok_or(Errno::ENOENT)?;
        if inode.kind.is_dir() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// An inode that the caller holds a reference to.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    pub fn inode(&mut self, ino: Ino) -> Result<Inode, PlanStop> {
        Ok(self.find_inode(ino)?.ok_or(Errno::ESTALE)?)
    }

    /// An inode's link count, guarded.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    pub fn links(&mut self, ino: Ino) -> Result<u32, PlanStop> {
        let inode = self.peek_inode(ino)?.ok_or(Errno::ESTALE)?;
        self.guard(Guard::Links { ino, nlink: inode.nlink });
        Ok(inode.nlink)
    }

    /// The exact size of an inode in bytes, guarded.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    pub fn size(&mut self, ino: Ino) -> Result<u64, PlanStop> {
        let inode = self.peek_inode(ino)?.ok_or(Errno::ESTALE)?;
        self.guard(Guard::Size { ino, size: inode.size });
        Ok(inode.size)
    }

    /// The parent of a directory, guarded. Callers walk up to the root. So if this record is missing, the
    /// driver reads all missing directories above it before it calls the plan again.
    pub fn parent_of(&mut self, ino: Ino) -> Result<Ino, PlanStop> {
        let inode = self.peek_inode(ino).inspect_err(|_| self.ancestors_from = Some(ino))?;
        let parent = inode.ok_or(Errno::ENOENT)?.parent;
        if self.guarded_parents.insert(ino) {
            self.guards.push(Guard::ParentIs { ino, parent });
        }
        Ok(parent)
    }

    /// The directory entry of a name, guarded.
    ///
    /// In the root, the name of the trash refers to [`Ino::TRASH`] if that inode exists, although no such
    /// entry is stored.
    pub fn dirent(&mut self, parent: Ino, name: &Name) -> Result<Option<Dirent>, PlanStop> {
        if let Some(dirent) = self.trash(parent, name)? {
            return Ok(Some(dirent));
        }
        self.require_not_held(parent, name)?;
        match self.known_dirent(parent, name) {
            Some(dirent) => Ok(dirent),
            None => self.missing(RecordKey::Dirent(parent, name.clone())),
        }
    }

    /// As [`View::dirent`], for a name that most likely does not exist. If the entry is unknown, it is
    /// assumed to be absent, and a guard checks that.
    pub fn dirent_unlikely(&mut self, parent: Ino, name: &Name) -> Result<Option<Dirent>, PlanStop> {
        if let Some(dirent) = self.trash(parent, name)? {
            return Ok(Some(dirent));
        }
        self.require_not_held(parent, name)?;
        if let Some(dirent) = self.known_dirent(parent, name) {
            return Ok(dirent);
        }
        self.assumed = true;
        self.guard(Guard::DirentAbsent { parent, name: name.clone() });
        Ok(None)
    }

    /// The size of an xattr in blocks, 0 if it does not exist. If the size is unknown, `likely` is assumed. A
    /// guard checks the returned size in any case.
    pub fn xattr_blocks(&mut self, inode: &Inode, name: &XattrName, likely: u16) -> u16 {
        let ino = inode.ino;
        let found = self.lookup(Key::Xattrs(ino));
        self.assumed |= !matches!(found, Some(Value::Xattrs(_)));
        let blocks = match found {
            Some(Value::Xattrs(xattrs)) => xattrs.get(name).map_or(0, |value| xattr_blocks(value.len())),
            _ if inode.xattr_blocks == 0 => 0,
            Some(Value::XattrSizes(sizes)) => sizes.get(name).copied().unwrap_or(likely),
            _ => likely,
        };
        self.guard(Guard::Xattr { ino, name: name.clone(), blocks });
        blocks
    }

    /// Whether the xattrs of an inode take at most `most` blocks. It is assumed that they do, unless this
    /// operation has read that they take more. A guard checks either answer.
    pub fn xattrs_fit(&mut self, ino: Ino, most: u16) -> bool {
        if let Some(Value::Inode(Some(inode))) = self.find_fresh(&Key::Inode(ino))
            && inode.xattr_blocks > most
        {
            self.guard(Guard::XattrBlocks { ino, least: most + 1, most: u16::MAX });
            return false;
        }
        self.assumed |= self.find_fresh(&Key::Inode(ino)).is_none();
        self.guard(Guard::XattrBlocks { ino, least: 0, most });
        true
    }

    /// All xattrs of an inode. Not guarded, because only reads and copies as of an earlier moment
    /// ([`BeginClone`](crate::BeginClone)) depend on them.
    pub fn xattrs(&mut self, ino: Ino) -> Result<Arc<Xattrs>, PlanStop> {
        lookup!(self, Xattrs(ino))
    }

    /// The POSIX ACL with this id; `None` for [`AclId::NONE`]. It needs no guard, because the ACL under an id
    /// never changes, and is kept as long as an inode refers to it.
    ///
    /// # Errors
    /// EIO if the ACL is missing or corrupt. Access is then denied; the mode does not decide.
    pub fn acl(&mut self, id: AclId) -> Result<Option<Arc<PosixAcl>>, PlanStop> {
        match self.any_acl(id)? {
            Some(Acl::Posix(acl)) => Ok(Some(acl)),
            Some(Acl::Nfs4(_)) => Err(Errno::EIO.into()),
            None => Ok(None),
        }
    }

    /// As [`View::acl`], on a volume with NFSv4 ACLs.
    ///
    /// # Errors
    /// EIO if the ACL is missing or corrupt.
    pub fn nfs4_acl(&mut self, id: AclId) -> Result<Option<Arc<nfs4::Compiled>>, PlanStop> {
        match self.any_acl(id)? {
            Some(Acl::Nfs4(acl)) => Ok(Some(acl)),
            Some(Acl::Posix(_)) => Err(Errno::EIO.into()),
            None => Ok(None),
        }
    }

    /// The NFSv4 ACL that decides access: as [`View::nfs4_acl`], but the SIDs that `sid_rules` map are
    /// replaced by users and groups. It is computed once for each ACL and version of the rules.
    ///
    /// # Errors
    /// EIO if the ACL is missing or corrupt.
    pub fn deciding_acl(
        &mut self,
        id: AclId,
        sid_rules: &SidRules,
    ) -> Result<Option<Arc<nfs4::Compiled>>, PlanStop> {
        let Some(stored) = self.nfs4_acl(id)? else { return Ok(None) };
        if sid_rules.is_empty() || !stored.names_sids() {
            return Ok(Some(stored));
        }
        let key = Key::Mapped(id, sid_rules.version());
        if let Some(Value::Acl(Some(Acl::Nfs4(known)))) = self.known.get(&key, None) {
            return Ok(Some(known));
        }
        let mapped = stored.acl().mapped(sid_rules);
        let deciding = mapped.map_or(stored, |mapped| Arc::new(nfs4::Compiled::new(mapped.acl)));
        self.known.put(key, Value::Acl(Some(Acl::Nfs4(Arc::clone(&deciding)))));
        Ok(Some(deciding))
    }

    /// The ACL with this id, of either kind; `None` for [`AclId::NONE`].
    ///
    /// # Errors
    /// EIO if the ACL is missing or corrupt.
    pub(crate) fn any_acl(&mut self, id: AclId) -> Result<Option<Acl>, PlanStop> {
        if id.is_none() {
            return Ok(None);
        }
        match self.find(&Key::Acl(id)) {
            Some(Value::Acl(Some(acl))) => Ok(Some(acl)),
            Some(_) => {
                tracing::error!(acl = %id, "an ACL is missing or corrupt; access that depends on it is denied");
                Err(Errno::EIO.into())
            }
            None => self.missing(RecordKey::Acl(id)),
        }
    }

    /// The POSIX ACL that the kernel is shown in place of an inode's NFSv4 ACL. It is computed once for each
    /// combination of ACL (or mode, if there is no ACL), owner and group. `None` if the mode alone is exact.
    /// `traversers` must be the same in all calls.
    ///
    /// # Errors
    /// As [`View::acl`].
    pub fn projection(
        &mut self,
        inode: &Inode,
        traversers: &Traversers,
        sid_rules: &SidRules,
    ) -> Result<Option<Arc<Projection>>, PlanStop> {
        let is_dir = inode.kind.is_dir();
        let key = match inode.access_acl.is_none() {
            true if !is_dir || traversers.is_empty() => return Ok(None),
            true => Key::ModeProjection(inode.mode.rwx(), inode.uid, inode.gid),
            false => Key::Projection(inode.access_acl, sid_rules.version(), inode.uid, inode.gid, is_dir),
        };
        if let Some(Value::Projection(known)) = self.known.get(&key, None) {
            return Ok(Some(known));
        }
        let acl = self.deciding_acl(inode.access_acl, sid_rules)?;
        let acl = acl.as_deref().map(nfs4::Compiled::acl);
        let projected = nfs4::project_for(acl, inode.mode, (inode.uid, inode.gid), is_dir, traversers);
        let Some(projection) = projected.map(Arc::new) else { return Ok(None) };
        self.known.put(key, Value::Projection(Arc::clone(&projection)));
        Ok(Some(projection))
    }

    /// Whether this client knows that the ACL was stored, so that a transaction need not store it again: a
    /// guard ([`Guard::Acl`]) checks that the ACL is still stored. `false` if this operation has read the ACL
    /// itself, because then such a guard may have failed.
    pub fn is_stored(&self, id: AclId) -> bool {
        let known = || self.known.get(&Key::Acl(id), None);
        self.find_fresh(&Key::Acl(id)).is_none() && matches!(known(), Some(Value::Acl(Some(_))))
    }

    /// The target of a symbolic link. Not guarded, because it never changes.
    pub fn symlink(&mut self, ino: Ino) -> Result<Option<Arc<[u8]>>, PlanStop> {
        lookup!(self, Symlink(ino))
    }

    /// All rows of a chunk. Not guarded; see [`View::all_rows`].
    pub fn slices(&mut self, ino: Ino, chunk: ChunkIndex) -> Result<Arc<[Slice]>, PlanStop> {
        lookup!(self, Slices(ino, chunk))
    }

    /// An inode and the rows of one of its chunks, as this operation has read both together. Not guarded,
    /// because only reads depend on them.
    pub fn fresh_chunk(
        &mut self,
        ino: Ino,
        chunk: ChunkIndex,
    ) -> Result<(Option<Inode>, Arc<[Slice]>), PlanStop> {
        match (self.find_fresh(&Key::Inode(ino)), self.find_fresh(&Key::Slices(ino, chunk))) {
            (Some(Value::Inode(inode)), Some(Value::Slices(rows))) => Ok((inode, rows)),
            _ => {
                self.missing.extend([RecordKey::Inode(ino), RecordKey::Slices(ino, chunk)]);
                Err(PlanStop::Missing)
            }
        }
    }

    /// All rows of a chunk, guarded: they must still be there when the transaction commits.
    pub fn all_rows(&mut self, ino: Ino, chunk: ChunkIndex) -> Result<Arc<[Slice]>, PlanStop> {
        let rows = self.slices(ino, chunk)?;
        self.guard(Guard::Rows { ino, chunk, rows: Arc::clone(&rows) });
        Ok(rows)
    }

    /// Requires that the oldest rows of a chunk are `rows`. Returns `false` if the chunk is known to have
    /// others; otherwise adds a guard that checks it.
    pub fn rows_begin_with(&mut self, ino: Ino, chunk: ChunkIndex, rows: &Arc<[Slice]>) -> bool {
        let holds = match self.find(&Key::Slices(ino, chunk)) {
            Some(Value::Slices(found)) => found.starts_with(rows),
            _ => true,
        };
        if holds {
            self.guard(Guard::Rows { ino, chunk, rows: Arc::clone(rows) });
        }
        holds
    }

    /// A setting of the volume, guarded; `None` if it is not set.
    pub fn setting(&mut self, name: &'static str) -> Result<Option<String>, PlanStop> {
        let value = lookup!(self, Settings)?.get(name).cloned();
        self.guard(Guard::Setting { name, value: value.clone() });
        Ok(value)
    }

    /// All locks on an inode, guarded: they must be unchanged when the transaction commits.
    pub fn locks(&mut self, ino: Ino) -> Result<Arc<[Lock]>, PlanStop> {
        let locks = lookup!(self, Locks(ino))?;
        self.guard(Guard::Locks { ino, locks: Arc::clone(&locks) });
        Ok(locks)
    }

    /// All waits for locks. Not guarded, because a waiting caller runs its operation again and again.
    pub fn waits(&mut self) -> Result<Arc<[LockWait]>, PlanStop> {
        lookup!(self, Waits)
    }

    pub fn counter(&mut self, counter: Counter) -> Result<u64, PlanStop> {
        let value = lookup!(self, Counter(counter))?;
        self.guard(Guard::Counter { counter, value });
        Ok(value)
    }

    /// The usage of the volume. Not guarded; see [`View::has_room`].
    pub fn usage(&mut self) -> Result<Usage, PlanStop> {
        lookup!(self, Usage)
    }

    /// Adds a guard, unless the same guard was added before.
    pub fn guard(&mut self, guard: Guard) {
        #[cfg(test)]
        STEPS.set(STEPS.get() + self.guards.len() as u64);
        if self.is_guarded && !self.guards.contains(&guard) {
            if self.guards.is_empty() {
                // This is enough for most operations.
                self.guards.reserve(8);
            }
            self.guards.push(guard);
        }
    }

    /// As [`View::guard`], for a guard that the plan adds only once. It is not compared with the others,
    /// because there may be many.
    pub fn guard_once(&mut self, guard: Guard) {
        if self.is_guarded {
            self.guards.push(guard);
        }
    }

    /// The guards of everything that the plan has looked up.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The directory from which the path up to the root is missing, after [`PlanStop::Missing`].
    pub fn ancestors_from(&self) -> Option<Ino> {
        self.ancestors_from
    }

    /// Whether the missing records are those of [`View::prefetch_snapshot`].
    pub fn needs_snapshot(&self) -> bool {
        self.needs_snapshot
    }

    /// The records that the plan is missing, after [`PlanStop::Missing`].
    pub fn into_missing(self) -> Vec<RecordKey> {
        self.missing
    }

    /// Whether any lookup was answered by an assumption, which only the engine can confirm.
    pub fn assumed(&self) -> bool {
        self.assumed
    }

    /// Whether any lookup was answered by a record that the operation has not read itself.
    pub fn used_known(&self) -> bool {
        self.used_known
    }

    /// The entry of a name, or its absence, if either is known. Guarded.
    fn known_dirent(&mut self, parent: Ino, name: &Name) -> Option<Option<Dirent>> {
        let Some(Value::Dirent(dirent)) = self.lookup(Key::Dirent(parent, name.clone())) else { return None };
        if self.is_guarded {
            self.guard(match dirent {
                Some(dirent) => Guard::DirentIs { parent, name: name.clone(), ino: dirent.ino },
                None => Guard::DirentAbsent { parent, name: name.clone() },
            });
        }
        Some(dirent)
    }

    /// The trash, if this is its name and the volume has one. Either answer is guarded.
    fn trash(&mut self, parent: Ino, name: &Name) -> Result<Option<Dirent>, PlanStop> {
        if parent != Ino::ROOT || name.as_bytes() != TRASH_NAME {
            return Ok(None);
        }
        let root = self.find_inode(Ino::TRASH)?;
        Ok(root.map(|root| Dirent { ino: root.ino, kind: root.kind }))
    }

    fn missing<T>(&mut self, key: RecordKey) -> Result<T, PlanStop> {
        let expected = std::mem::take(&mut self.expected);
        let missing = expected.into_iter().filter(|key| !self.is_known(key)).collect::<Vec<_>>();
        match missing.is_empty() {
            true => self.missing.push(key),
            false => self.missing.extend(missing),
        }
        Err(PlanStop::Missing)
    }

    fn lookup(&mut self, key: Key) -> Option<Value> {
        let (value, is_fresh) = self.find_with_origin(&key)?;
        self.used_known |= !is_fresh;
        Some(value)
    }

    /// The record, and whether the operation has read it itself.
    fn find_with_origin(&self, key: &Key) -> Option<(Value, bool)> {
        let fresh = self.find_fresh(key).map(|value| (value, true));
        fresh.or_else(|| Some((self.known.get(key, self.oldest)?, false)))
    }

    fn find(&self, key: &Key) -> Option<Value> {
        Some(self.find_with_origin(key)?.0)
    }

    fn find_fresh(&self, key: &Key) -> Option<Value> {
        #[cfg(test)]
        STEPS.set(STEPS.get() + 1);
        self.fresh.get(key).cloned()
    }
}

#[cfg(test)]
thread_local! {
    /// The number of records and guards that views on this thread have examined. Tests compare it between
    /// plans of different sizes.
    pub(crate) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
