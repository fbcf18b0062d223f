//! What a plan sees, and how every look becomes a guard.

use host::Instant;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use acl::nfs4::{self, Projection, Traversers};
use acl::posix::PosixAcl;
use host::RandomState;
use types::{AclId, ChunkIndex, Errno, FileType, Ino, Mode, Name, Slice, XattrName};

use crate::cache::{Acl, Cache, Key, Value};
use crate::lock::Lock;
use crate::record::{Counter, Edge, LockWait, Node, Seq, Usage, Want, XattrBytes, Xattrs};
use crate::txn::Guard;

/// Why a plan came to no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Records are missing; the driver reads them and plans again.
    Missing,
    /// The operation fails by its rules, as long as the guards recorded so far hold.
    Refused(Errno),
    /// What the kernel was told of the parent's access is out of date: it must look again (ESTALE).
    KernelIsStale,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Refused(errno)
    }
}

/// What an operation has read itself.
pub(crate) type Fresh = HashMap<Key, Value, RandomState>;

/// The records as far as they are known, through which a plan looks at the volume.
#[derive(Debug)]
pub struct View<'a> {
    cache: &'a Cache,
    oldest: Option<Instant>,
    fresh: &'a Fresh,
    guards: Vec<Guard>,
    /// The directories whose parent is guarded. There may be many, so they are not searched for among the guards.
    climbed: HashSet<Ino, RandomState>,
    wants: Vec<Want>,
    climbs_from: Option<Ino>,
    looked_at_cache: bool,
    assumed: bool,
}

impl<'a> View<'a> {
    pub(crate) fn new(cache: &'a Cache, oldest: Option<Instant>, fresh: &'a Fresh) -> Self {
        View {
            cache,
            oldest,
            fresh,
            guards: Vec::new(),
            climbed: HashSet::default(),
            climbs_from: None,
            wants: Vec::new(),
            looked_at_cache: false,
            assumed: false,
        }
    }

    /// Says ahead which records will be looked at, so that all missing ones are read together.
    pub fn prefetch(&mut self, wants: impl IntoIterator<Item = Want>) -> Result<(), Stop> {
        for want in wants {
            let known = match &want {
                Want::Node(ino) => self.find(&Key::Node(*ino)).is_some(),
                Want::Entry(parent, name) => match self.find(&Key::Edge(*parent, name.clone())) {
                    Some(Value::Edge(Some(edge))) => self.find(&Key::Node(edge.ino)).is_some(),
                    found => found.is_some(),
                },
                Want::Xattrs(ino) => self.find(&Key::Xattrs(*ino)).is_some(),
                Want::Acl(id) => self.find(&Key::Acl(*id)).is_some(),
                Want::Locks(ino) => self.find(&Key::Locks(*ino)).is_some(),
                Want::Slices(ino, chunk) => self.find(&Key::Slices(*ino, *chunk)).is_some(),
                _ => false,
            };
            if !known {
                self.wants.push(want);
            }
        }
        if self.wants.is_empty() { Ok(()) } else { Err(Stop::Missing) }
    }

    /// An inode and all that access to it depends on.
    pub fn node(&mut self, ino: Ino) -> Result<Option<Node>, Stop> {
        let node = self.peek_node(ino)?;
        self.guard(match node {
            Some(node) => Guard::Access { ino, rev: node.access_rev },
            None => Guard::NodeAbsent { ino },
        });
        Ok(node)
    }

    /// A directory that is to be searched or changed.
    ///
    /// # Errors
    /// ENOENT where it is gone, then ENOTDIR.
    pub fn dir(&mut self, ino: Ino) -> Result<Node, Stop> {
        let node = self.node(ino)?.ok_or(Errno::ENOENT)?;
        if node.kind.is_dir() { Ok(node) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// The inode itself, in the hands of the caller.
    ///
    /// # Errors
    /// ESTALE where it is gone.
    pub fn inode(&mut self, ino: Ino) -> Result<Node, Stop> {
        Ok(self.node(ino)?.ok_or(Errno::ESTALE)?)
    }

    /// An inode's link count.
    pub fn links(&mut self, ino: Ino) -> Result<u32, Stop> {
        let node = self.peek_node(ino)?.ok_or(Errno::ESTALE)?;
        self.guard(Guard::Links { ino, nlink: node.nlink });
        Ok(node.nlink)
    }

    /// How long an inode is, to the byte.
    ///
    /// # Errors
    /// ESTALE where it is gone.
    pub fn size(&mut self, ino: Ino) -> Result<u64, Stop> {
        let node = self.peek_node(ino)?.ok_or(Errno::ESTALE)?;
        self.guard(Guard::Size { ino, size: node.size });
        Ok(node.size)
    }

    /// The directory that holds a directory. Callers walk up to the root: if this record is missing, all that are
    /// missing above it are read before the next plan.
    pub fn parent_of(&mut self, ino: Ino) -> Result<Ino, Stop> {
        let node = self.peek_node(ino).inspect_err(|_| self.climbs_from = Some(ino))?;
        let parent = node.ok_or(Errno::ENOENT)?.parent;
        if self.climbed.insert(ino) {
            self.guards.push(Guard::ParentIs { ino, parent });
        }
        Ok(parent)
    }

    /// What a name refers to.
    pub fn edge(&mut self, parent: Ino, name: &Name) -> Result<Option<Edge>, Stop> {
        match self.look(Key::Edge(parent, name.clone())) {
            Some(Value::Edge(edge)) => {
                self.guard(match edge {
                    Some(edge) => Guard::EdgeIs { parent, name: name.clone(), ino: edge.ino },
                    None => Guard::EdgeAbsent { parent, name: name.clone() },
                });
                Ok(edge)
            }
            _ => self.missing(Want::Entry(parent, name.clone())),
        }
    }

    /// What a name refers to, where most likely it refers to nothing: if unknown, that is assumed and guarded.
    pub fn edge_unlikely(&mut self, parent: Ino, name: &Name) -> Result<Option<Edge>, Stop> {
        if self.find(&Key::Edge(parent, name.clone())).is_some() {
            return self.edge(parent, name);
        }
        self.assumed = true;
        self.guard(Guard::EdgeAbsent { parent, name: name.clone() });
        Ok(None)
    }

    /// Whether a directory is empty; assumed and guarded unless just found otherwise.
    pub fn is_empty(&mut self, ino: Ino) -> bool {
        let empty = !matches!(self.find(&Key::Empty(ino)), Some(Value::Empty(false)));
        if empty {
            self.assumed = true;
            self.guard(Guard::Empty { ino });
        }
        empty
    }

    /// Requires an xattr to be there or not; if it was just found otherwise, that is the answer.
    pub fn require_xattr(&mut self, ino: Ino, name: &XattrName, present: bool) -> bool {
        let holds = match self.look(Key::Xattrs(ino)) {
            Some(Value::Xattrs(xattrs)) => xattrs.contains_key(name) == present,
            _ => {
                self.assumed = true;
                true
            }
        };
        let found = if holds { present } else { !present };
        self.guard(Guard::Xattr { ino, name: name.clone(), present: found });
        holds
    }

    /// All xattrs of an inode. Not guarded: only reads and [`View::require_xattr`] depend on them.
    pub fn xattrs(&mut self, ino: Ino) -> Result<Arc<Xattrs>, Stop> {
        match self.look(Key::Xattrs(ino)) {
            Some(Value::Xattrs(xattrs)) => Ok(xattrs),
            _ => self.missing(Want::Xattrs(ino)),
        }
    }

    /// What the xattrs of an inode take, or less, if anything is known of them.
    pub(crate) fn xattrs_within(&mut self, ino: Ino) -> Option<XattrBytes> {
        match self.look(Key::Xattrs(ino)) {
            Some(Value::Xattrs(xattrs)) => Some(XattrBytes::of(&xattrs)),
            Some(Value::XattrsWithin(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// As [`View::xattrs`], as they were read during this operation: what was in memory before does not serve.
    pub fn xattrs_now(&mut self, ino: Ino) -> Result<Arc<Xattrs>, Stop> {
        match self.find_fresh(&Key::Xattrs(ino)) {
            Some(Value::Xattrs(xattrs)) => Ok(xattrs),
            _ => self.missing(Want::Xattrs(ino)),
        }
    }

    /// The POSIX ACL that `id` stands for; needs no guard, for it never changes. `None` for [`AclId::NONE`].
    ///
    /// # Errors
    /// EIO where it is not stored or corrupt: access is refused rather than decided by the mode.
    pub fn acl(&mut self, id: AclId) -> Result<Option<Arc<PosixAcl>>, Stop> {
        match self.any_acl(id)? {
            Some(Acl::Posix(acl)) => Ok(Some(acl)),
            Some(Acl::Nfs4(_)) => Err(Errno::EIO.into()),
            None => Ok(None),
        }
    }

    /// As [`View::acl`], on a volume of NFSv4 ACLs.
    ///
    /// # Errors
    /// As [`View::acl`].
    pub fn nfs4_acl(&mut self, id: AclId) -> Result<Option<Arc<nfs4::Compiled>>, Stop> {
        match self.any_acl(id)? {
            Some(Acl::Nfs4(acl)) => Ok(Some(acl)),
            Some(Acl::Posix(_)) => Err(Errno::EIO.into()),
            None => Ok(None),
        }
    }

    fn any_acl(&mut self, id: AclId) -> Result<Option<Acl>, Stop> {
        if id.is_none() {
            return Ok(None);
        }
        match self.find(&Key::Acl(id)) {
            Some(Value::Acl(Some(acl))) => Ok(Some(acl)),
            Some(_) => Err(Errno::EIO.into()),
            None => self.missing(Want::Acl(id)),
        }
    }

    /// What stands before the kernel for the NFSv4 ACL of an inode, worked out once for the ACL (or, where there is none,
    /// the mode) and owner and group; `None` where the mode says it all. `traversers` are always the same.
    ///
    /// # Errors
    /// As [`View::acl`].
    pub fn projection(
        &mut self,
        node: &Node,
        traversers: &Traversers,
    ) -> Result<Option<Arc<Projection>>, Stop> {
        let is_dir = node.kind.is_dir();
        let key = match node.access_acl.is_none() {
            true if !is_dir || traversers.is_empty() => return Ok(None),
            true => Key::ModeProjection(node.mode.rwx(), node.uid, node.gid),
            false => Key::Projection(node.access_acl, node.uid, node.gid, is_dir),
        };
        if let Some(Value::Projection(known)) = self.cache.get(&key, None) {
            return Ok(Some(known));
        }
        let acl = self.nfs4_acl(node.access_acl)?;
        let acl = acl.as_deref().map(nfs4::Compiled::acl);
        let projected = nfs4::project_for(acl, node.mode, (node.uid, node.gid), is_dir, traversers);
        let Some(projection) = projected.map(Arc::new) else { return Ok(None) };
        self.cache.put(key, Value::Projection(Arc::clone(&projection)), Seq::default());
        Ok(Some(projection))
    }

    /// Whether this client knows that an ACL is stored, so that it need not be sent again.
    pub fn is_stored(&self, id: AclId) -> bool {
        matches!(self.find(&Key::Acl(id)), Some(Value::Acl(Some(_))))
    }

    /// The access ACL that an ACL to inherit gives to new files of this kind, and their rwx bits, if this client has
    /// worked it out before. `mode` is as [`View::remember_inherited`] was given it.
    pub fn inherited(&self, from: AclId, mode: Mode, kind: FileType) -> Option<(AclId, u32)> {
        match self.cache.get(&Key::Inherited(from, mode.rwx(), kind), None) {
            Some(Value::Inherited(access, rwx)) => Some((access, rwx)),
            _ => None,
        }
    }

    /// Remembers what [`View::inherited`] gives: like the ACLs themselves it can never change.
    pub fn remember_inherited(&self, from: AclId, mode: Mode, kind: FileType, (access, rwx): (AclId, u32)) {
        let key = Key::Inherited(from, mode.rwx(), kind);
        self.cache.put(key, Value::Inherited(access, rwx), Seq::default());
    }

    /// Whether an ACL lets everybody search a directory whose mode does, if this client has worked it out before.
    pub fn anyone_passes(&self, access: AclId) -> Option<bool> {
        match self.cache.get(&Key::Anyone(access), None) {
            Some(Value::Anyone(passes)) => Some(passes),
            _ => None,
        }
    }

    /// Remembers what [`View::anyone_passes`] gives: like the ACL itself it can never change.
    pub fn remember_anyone_passes(&self, access: AclId, passes: bool) {
        self.cache.put(Key::Anyone(access), Value::Anyone(passes), Seq::default());
    }

    pub fn symlink(&mut self, ino: Ino) -> Result<Option<Arc<[u8]>>, Stop> {
        match self.look(Key::Symlink(ino)) {
            Some(Value::Symlink(target)) => Ok(target),
            _ => self.missing(Want::Symlink(ino)),
        }
    }

    pub fn slices(&mut self, ino: Ino, chunk: ChunkIndex) -> Result<Arc<[Slice]>, Stop> {
        match self.look(Key::Slices(ino, chunk)) {
            Some(Value::Slices(rows)) => Ok(rows),
            _ => self.missing(Want::Slices(ino, chunk)),
        }
    }

    /// The rows of a chunk, all of which are to stand when the transaction commits.
    pub fn all_rows(&mut self, ino: Ino, chunk: ChunkIndex) -> Result<Arc<[Slice]>, Stop> {
        let rows = self.slices(ino, chunk)?;
        self.guard(Guard::Rows { ino, chunk, rows: Arc::clone(&rows) });
        Ok(rows)
    }

    /// Requires a chunk's oldest rows to be these; if they were just found to be others, that is the answer.
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

    /// A setting of the volume; `None` where it is not set.
    pub fn setting(&mut self, name: &'static str) -> Result<Option<String>, Stop> {
        match self.look(Key::Settings) {
            Some(Value::Settings(settings)) => {
                let value = settings.get(name).cloned();
                self.guard(Guard::Setting { name, value: value.clone() });
                Ok(value)
            }
            _ => self.missing(Want::Settings),
        }
    }

    /// All locks on an inode, which are to be the same when the transaction commits.
    pub fn locks(&mut self, ino: Ino) -> Result<Arc<[Lock]>, Stop> {
        match self.look(Key::Locks(ino)) {
            Some(Value::Locks(locks)) => {
                self.guard(Guard::Locks { ino, locks: Arc::clone(&locks) });
                Ok(locks)
            }
            _ => self.missing(Want::Locks(ino)),
        }
    }

    /// All that wait for locks. Not guarded: who waits asks again and again.
    pub fn waits(&mut self) -> Result<Arc<[LockWait]>, Stop> {
        match self.look(Key::Waits) {
            Some(Value::Waits(waits)) => Ok(waits),
            _ => self.missing(Want::Waits),
        }
    }

    pub fn counter(&mut self, counter: Counter) -> Result<u64, Stop> {
        match self.look(Key::Counter(counter)) {
            Some(Value::Counter(value)) => {
                self.guard(Guard::Counter { counter, value });
                Ok(value)
            }
            _ => self.missing(Want::Counter(counter)),
        }
    }

    pub fn usage(&mut self) -> Result<Usage, Stop> {
        match self.look(Key::Usage) {
            Some(Value::Usage(usage)) => Ok(usage),
            _ => self.missing(Want::Usage),
        }
    }

    /// Requires the volume to have room below its limits; if it was just found full, that is the answer.
    pub fn has_room(&mut self, max_inodes: u64, max_blocks: u64) -> bool {
        let full = match self.find(&Key::Usage) {
            Some(Value::Usage(usage)) => usage.inodes >= max_inodes || usage.blocks >= max_blocks,
            _ => false,
        };
        if !full {
            self.assumed = true;
            self.guard(Guard::Room { max_inodes, max_blocks });
        }
        !full
    }

    /// Adds a condition that was not looked at.
    pub fn guard(&mut self, guard: Guard) {
        #[cfg(test)]
        STEPS.set(STEPS.get() + self.guards.len() as u64);
        if !self.guards.contains(&guard) {
            self.guards.push(guard);
        }
    }

    pub(crate) fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The directory whose way up to the root the plan lacks.
    pub(crate) fn climbs_from(&self) -> Option<Ino> {
        self.climbs_from
    }

    pub(crate) fn into_wants(self) -> Vec<Want> {
        self.wants
    }

    /// Whether any look was answered by an assumption, which only the engine can confirm.
    pub(crate) fn assumed(&self) -> bool {
        self.assumed
    }

    /// Whether any look was answered by what was known before the operation began.
    pub(crate) fn looked_at_cache(&self) -> bool {
        self.looked_at_cache
    }

    fn peek_node(&mut self, ino: Ino) -> Result<Option<Node>, Stop> {
        match self.look(Key::Node(ino)) {
            Some(Value::Node(node)) => Ok(node),
            _ => self.missing(Want::Node(ino)),
        }
    }

    fn missing<T>(&mut self, want: Want) -> Result<T, Stop> {
        self.wants.push(want);
        Err(Stop::Missing)
    }

    fn look(&mut self, key: Key) -> Option<Value> {
        if let Some(value) = self.find_fresh(&key) {
            return Some(value);
        }
        let value = self.cache.get(&key, self.oldest)?;
        self.looked_at_cache = true;
        Some(value)
    }

    fn find(&self, key: &Key) -> Option<Value> {
        self.find_fresh(key).or_else(|| self.cache.get(key, self.oldest))
    }

    fn find_fresh(&self, key: &Key) -> Option<Value> {
        #[cfg(test)]
        STEPS.set(STEPS.get() + 1);
        self.fresh.get(key).cloned()
    }
}

#[cfg(test)]
thread_local! {
    /// Records and guards that views of this thread have looked at, to be compared between plans of different sizes.
    pub(crate) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
