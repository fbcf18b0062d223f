//! A client's handle on a volume: its state, when cached records are current, and how a commit updates the
//! cache.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use acl::cache::DecisionCache;
use acl::identity::DomainTable;
use acl::nfs4::Traversers;
use host::Instant;
use meta::{
    AclKind, Change, Dirent, Effect, Engine, Inode, Invalidation, LOST_FOR, Page, Part, Record, Scan, Seq,
    Snapshot, Txn, Volume,
};
use ops::{Authority, GetDomains, GetInode, Key, TrashDirs, Value};
use types::{BootInstant, Errno, Ino, Name, SessionId};

use crate::activity::{Activity, Events};
use crate::cache::{Cache, DirCounters};
use crate::doubt::REPEAT_FOR;
use crate::failure::Failure;
use crate::fence::Fence;
use crate::held::Held;
use crate::listing::Listings;
use crate::settings::VolumeSettings;
use crate::terms::Terms;

/// A client's handle on a volume's metadata.
#[derive(Debug)]
pub struct Meta {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) cache: Cache,
    pub(crate) listings: Listings,
    pub(crate) held: Held,
    pub(crate) events: Events,
    pub(crate) settings: VolumeSettings,
    pub(crate) fence: Fence,
    pub(crate) terms: Terms,
    embedded: bool,
    exclusive: AtomicBool,
    /// End of the lease during which the change stream keeps cached records current, as
    /// [`BootInstant::nanos`]; 0 if there is no lease.
    current_until: AtomicU64,
    /// Until this time, a change of this client may be committed without the client's knowledge. In
    /// nanoseconds since `born`, by a clock that stops while the machine is suspended, because changes that
    /// are committed during a suspend are delivered only after it.
    pub(crate) in_doubt_until: AtomicU64,
    /// By the same clock: the last query of the change stream began at this time or later.
    query_began: AtomicU64,
    /// By the same clock: all changes that were committed before this time were passed to
    /// [`Meta::apply_remote`].
    delivered_to: AtomicU64,
    born: Instant,
    lifetime_nanos: AtomicU64,
    pub(crate) retry_timeout_millis: AtomicU64,
    pub(crate) repeat_for_millis: AtomicU64,
    pub(crate) decisions: DecisionCache,
    pub(crate) trash: TrashDirs,
    traversers: OnceLock<Traversers>,
    /// The part of the volume's table of domains that this client has read.
    domains: RwLock<Arc<DomainTable>>,
}

/// The authority for the client's own operations: no access check applies.
pub(crate) const BY_KERNEL: Authority<'_> = Authority::Kernel { revisions: None };

/// How long a failed request is retried, unless the mount sets another time. A database needs that long to
/// restart.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long cached records are used without a read while other clients may change them, unless the mount sets
/// another time.
const LIFETIME: Duration = Duration::from_secs(1);
/// How many decisions by NFSv4 ACLs are cached, at 64 bytes each.
const DECISIONS: usize = 1 << 16;

impl Meta {
    /// `cache_records` bounds the number of records in memory, at about 250 bytes each; a larger record
    /// counts as several.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        volume: Volume,
        session: SessionId,
        cache_records: usize,
    ) -> Self {
        Meta {
            embedded: engine.is_embedded(),
            engine,
            cache: Cache::new(cache_records, volume.acl),
            listings: Listings::default(),
            held: Held::default(),
            events: Events::default(),
            decisions: DecisionCache::new(if volume.acl == AclKind::Nfs4 { DECISIONS } else { 0 }),
            trash: TrashDirs::default(),
            traversers: OnceLock::new(),
            domains: RwLock::default(),
            settings: VolumeSettings::new(volume),
            fence: Fence::new(session),
            terms: Terms::new(session),
            exclusive: AtomicBool::new(false),
            current_until: AtomicU64::new(0),
            in_doubt_until: AtomicU64::new(0),
            query_began: AtomicU64::new(0),
            delivered_to: AtomicU64::new(0),
            born: Instant::now(),
            retry_timeout_millis: AtomicU64::new(RETRY_TIMEOUT.as_millis() as u64),
            repeat_for_millis: AtomicU64::new(REPEAT_FOR.as_millis() as u64),
            lifetime_nanos: AtomicU64::new(LIFETIME.as_nanos() as u64),
        }
    }

    /// The work of this client since it was opened.
    pub fn activity(&self) -> Activity {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [cache_hits, cache_misses] = self.cache.lookups();
        Activity {
            conflicts: load(&self.events.conflicts),
            retries: load(&self.events.retries),
            failures: load(&self.events.failures),
            cache_hits,
            cache_misses,
            cache_bytes: self.cache.bytes(),
            listing_bytes: self.listings.bytes(),
            held_directories: self.held.directories() as u64,
            queued_changes: host::lock(&self.held.state).queue.len() as u64,
        }
    }

    /// The settings in force.
    pub fn volume(&self) -> &Volume {
        self.settings.current()
    }

    /// The directories of the trash that this client knows.
    pub fn trash(&self) -> &TrashDirs {
        &self.trash
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Lets these users and groups search every directory of a volume with NFSv4 ACLs, for as long as the
    /// volume is open here. Only the first call has an effect.
    pub fn set_traversers(&self, traversers: Traversers) {
        let _ = self.traversers.set(traversers);
        // Drop cached results that were computed without the traversers.
        self.invalidate_all();
    }

    /// The users and groups that may search every directory; empty unless set.
    pub fn traversers(&self) -> &Traversers {
        static NOBODY: LazyLock<Traversers> = LazyLock::new(Traversers::default);
        self.traversers.get().unwrap_or(&NOBODY)
    }

    /// The volume's table of domains. The result contains index `reach` if the volume's table does. Entries
    /// never change, so the table is read again only for an index that this client has not read.
    ///
    /// # Errors
    /// [`Failure::Operation`] with EIO if the table is damaged; [`Failure::Engine`].
    pub fn domains(&self, reach: u32) -> Result<Arc<DomainTable>, Failure> {
        let known = Arc::clone(&self.domains.read().unwrap_or_else(PoisonError::into_inner));
        if known.domains().len() >= reach as usize {
            return Ok(known);
        }
        let found = Arc::new(self.run(&GetDomains, &BY_KERNEL)?);
        let mut known = self.domains.write().unwrap_or_else(PoisonError::into_inner);
        if known.domains().len() < found.domains().len() {
            *known = Arc::clone(&found);
        }
        Ok(found)
    }

    /// Whether the database is a file of this machine ([`Engine::is_embedded`]). Then only a client that has
    /// the volume exclusively holds directories, and others use the records that it has committed, without a
    /// recall.
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded
    }

    /// Declares whether this client has the volume exclusively. If so, no other client can change it, and
    /// cached records are always current.
    pub fn set_exclusive(&self, exclusive: bool) {
        self.exclusive.store(exclusive, Ordering::Release);
        self.invalidate_all();
    }

    /// How long a read-only operation may be answered from the cache while other clients may change the
    /// volume; zero means never.
    pub fn lifetime(&self) -> Duration {
        Duration::from_nanos(self.lifetime_nanos.load(Ordering::Acquire))
    }

    pub fn set_lifetime(&self, lifetime: Duration) {
        let nanos = u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX);
        self.lifetime_nanos.store(nanos, Ordering::Release);
    }

    pub fn is_exclusive(&self) -> bool {
        self.exclusive.load(Ordering::Acquire)
    }

    /// Whether cached records are current, except for changes that are committed but not yet delivered to
    /// this client.
    pub fn is_current(&self) -> bool {
        if self.is_exclusive() {
            return true;
        }
        let now = BootInstant::now();
        now.nanos() < self.current_until.load(Ordering::Acquire) && self.fence.is_valid(now)
    }

    /// The names of inodes, each with its directory, as far as they are cached or held. They may be outdated.
    /// With a full cache, this takes some milliseconds.
    pub fn cached_names(&self, inos: &BTreeSet<Ino>) -> BTreeMap<Ino, (Ino, Name)> {
        let mut names = self.cache.names_of(inos);
        self.add_held_names(inos, &mut names);
        names
    }

    /// Whether an operation of this client that failed may still be committed: it was given up in doubt, and
    /// its term has not ended.
    pub fn is_in_doubt(&self) -> bool {
        self.terms.are_doubtful()
    }

    /// The time left of the lease on cached records; zero without a lease.
    pub fn lease_left(&self) -> Duration {
        let until = self.current_until.load(Ordering::Acquire);
        Duration::from_nanos(until.saturating_sub(BootInstant::now().nanos()))
    }

    /// Renews the lease on cached records until `until`. The caller must have called [`Meta::apply_remote`]
    /// with every change that was committed before its last query of the change stream began. The time of the
    /// lease includes suspends, because other clients go on during a suspend of this machine.
    pub fn set_current_until(&self, until: BootInstant) {
        let query_began = self.query_began.swap(self.nanos_of(Instant::now()), Ordering::AcqRel);
        self.delivered_to.store(query_began, Ordering::Release);
        self.current_until.store(until.nanos(), Ordering::Release);
    }

    /// Invalidates everything in memory, because changes by others may have been missed.
    pub fn set_outdated(&self) {
        self.current_until.store(0, Ordering::Release);
        self.invalidate_all();
    }

    fn invalidate_all(&self) {
        self.cache.clear();
        self.listings.clear();
    }

    /// Whether the cache may lack this change. It may lack any change by another client. After an
    /// indeterminate operation, it may also lack this client's own changes, until every change that the
    /// operation may have caused was delivered. The end of that time (`in_doubt_until`) is compared with
    /// `delivered_to` and not with the present time, because changes are delivered late if this process was
    /// stopped.
    pub fn cache_may_lack(&self, change: &Change) -> bool {
        change.by != self.session()
            || self.terms.are_doubtful()
            || self.delivered_to.load(Ordering::Acquire) < self.in_doubt_until.load(Ordering::Acquire)
    }

    /// Applies a remote change: invalidates the records that it changed, unless the cache reflects it
    /// already.
    pub fn apply_remote(&self, change: &Change) {
        if change.by != self.session() {
            self.held.candidates.disturb(&change.invalidations);
        }
        if self.cache_may_lack(change) {
            change.invalidations.iter().filter_map(|part| self.changed(part)).for_each(|key| {
                self.cache.invalidate(key, change.seq);
            });
        }
    }

    /// Invalidates the record of an inode, because others may have changed it. The answers of reads that
    /// began earlier are not cached.
    pub fn invalidate(&self, ino: Ino) {
        self.cache.invalidate_any_seq(Key::Inode(ino));
    }

    /// Invalidates the records that a transaction changes, because it may have been committed or may still
    /// be.
    pub(crate) fn invalidate_in_doubt(&self, txn: &Txn) {
        let until = self.nanos_of(Instant::now() + LOST_FOR);
        self.in_doubt_until.fetch_max(until, Ordering::AcqRel);
        self.invalidate_txn(txn);
    }

    /// Invalidates the records that a transaction changes.
    pub(crate) fn invalidate_txn(&self, txn: &Txn) {
        let invalidations = txn.invalidations();
        invalidations
            .iter()
            .filter_map(|part| self.changed(part))
            .for_each(|key| self.cache.invalidate_any_seq(key));
    }

    /// The key of the cache entry for a changed part of the volume. If the part is a dirent, also invalidates
    /// the listing of its directory.
    fn changed(&self, part: &Invalidation) -> Option<Key> {
        match part {
            Invalidation::Inode(ino) => Some(Key::Inode(*ino)),
            Invalidation::Dirent(parent, name) => {
                self.listings.changed(*parent);
                Some(Key::Dirent(*parent, name.clone()))
            }
            Invalidation::Xattrs(ino) => Some(Key::Xattrs(*ino)),
            Invalidation::Names(dir, _) => {
                self.drop_names(*dir);
                None
            }
            // These are not cached.
            Invalidation::Data(_) | Invalidation::Locks(_) => None,
        }
    }

    /// Drops all cached names of a directory, and its listing.
    pub(crate) fn drop_names(&self, dir: Ino) {
        self.cache.drop_names(dir);
        self.listings.changed(dir);
    }

    pub(crate) fn nanos_of(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Runs `read`, which reads ACLs of an inode by their ids. A cached inode may have lost its ACL since it
    /// was read, and `limen gc` may have removed that ACL. So if an ACL is missing, reads the inode again,
    /// and runs `read` once more if it has other ACLs now.
    ///
    /// # Errors
    /// Those of `read` and [`GetInode`].
    pub fn read_acl_of<T>(
        &self,
        inode: &Inode,
        read: impl Fn(&Inode) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = read(inode);
        if !matches!(done, Err(Failure::Operation(Errno::EIO))) {
            return done;
        }
        self.cache.invalidate_any_seq(Key::Inode(inode.ino));
        let now = self.run(&GetInode(inode.ino), &BY_KERNEL)?;
        if now.acls().eq(inode.acls()) { done } else { read(&now) }
    }

    /// Reads one page of a range; see [`Engine::scan`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn scan(&self, scan: &Scan) -> Result<Page, Failure> {
        self.before_scan(scan)?;
        self.retry(|| self.engine.scan(scan))
    }

    /// Commits everything that was answered, and returns when it survives a loss of power.
    ///
    /// # Errors
    /// Those of the database.
    pub fn sync(&self) -> Result<(), Failure> {
        self.settle_held()?;
        self.retry(|| self.engine.sync())
    }

    /// The directory that a transaction is about to create, and the cache's counters for it. After the
    /// commit, the directory can be marked as known completely, because it is empty.
    pub(crate) fn new_directory(&self, txn: &Txn) -> Option<(Ino, DirCounters)> {
        txn.effects.iter().find_map(|effect| match effect {
            Effect::PutInode(inode) if inode.kind.is_dir() => Some((inode.ino, self.cache.before(inode.ino))),
            _ => None,
        })
    }

    /// Invalidates the listings that a transaction changes, and puts its effects into the cache. The commit
    /// was sent at `began`.
    pub(crate) fn remember(&self, txn: &Txn, seq: Seq, inodes: &[Inode], began: Instant) {
        for effect in &txn.effects {
            if let Part::Dirent(parent, _) = effect.footprint().part {
                self.listings.changed(parent);
            }
        }
        let times = self.cache.commit_times(began, Instant::now());
        let put = |key, value| self.cache.committed(key, value, seq, times);
        for effect in &txn.effects {
            match effect {
                Effect::PutInode(inode) => {
                    put(Key::Xattrs(inode.ino), Value::Xattrs(Arc::default()));
                    put(Key::Inode(inode.ino), Value::Inode(Some(*inode)));
                }
                Effect::DropInode { ino } => put(Key::Inode(*ino), Value::Inode(None)),
                Effect::PutDirent { parent, name, ino, kind } => {
                    let dirent = Dirent { ino: *ino, kind: *kind };
                    put(Key::Dirent(*parent, name.clone()), Value::Dirent(Some(dirent)));
                }
                Effect::DropDirent { parent, name } => {
                    put(Key::Dirent(*parent, name.clone()), Value::Dirent(None));
                }
                Effect::PutXattr { ino, name, value } => {
                    put(Key::Xattrs(*ino), self.cache.xattrs_after(*ino, name, Some(value)));
                }
                Effect::DropXattr { ino, name } => {
                    put(Key::Xattrs(*ino), self.cache.xattrs_after(*ino, name, None));
                }
                Effect::PutSymlink { ino, target } => {
                    put(Key::Symlink(*ino), Value::Symlink(Some(target.clone())));
                }
                Effect::PutAcl { id, text } => {
                    let snapshot = Snapshot { seq, records: vec![Record::Acl(*id, Some(text.clone()))] };
                    self.cache.absorb(&snapshot, Instant::now());
                }
                // The outcome has the records of the changed inodes, unless the transaction was a retry, or a
                // later transaction of the same call removed the inode.
                changed => {
                    let ino = changed.changed_inode();
                    if let Some(ino) = ino.filter(|ino| inodes.iter().all(|inode| inode.ino != *ino)) {
                        put(Key::Inode(ino), Value::Unknown);
                    }
                }
            }
        }
        for inode in inodes {
            put(Key::Inode(inode.ino), Value::Inode(Some(*inode)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::MemEngine;

    /// A change can be delivered long after `in_doubt_until`, because the process may have been stopped.
    #[test]
    fn own_change_in_doubt_counts_as_new_until_the_stream_has_passed_it() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let meta = Meta::open(engine, 1000).unwrap();
        let own =
            Change { seq: Seq(1), by: meta.session(), invalidations: vec![Invalidation::Inode(Ino::ROOT)] };
        let renew_lease = || meta.set_current_until(BootInstant::now());
        assert!(!meta.cache_may_lack(&own), "nothing was in doubt");
        renew_lease();
        meta.in_doubt_until.store(meta.nanos_of(Instant::now()) + 1, Ordering::Release);
        while meta.nanos_of(Instant::now()) <= meta.in_doubt_until.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        assert!(meta.cache_may_lack(&own));
        renew_lease();
        assert!(meta.cache_may_lack(&own), "the query that was answered may be older than the change");
        renew_lease();
        assert!(!meta.cache_may_lack(&own));
    }
}
