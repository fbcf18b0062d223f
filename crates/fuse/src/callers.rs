//! The groups and capabilities of a caller, which the request header does not contain, from
//! `/proc/TID/status`.
//!
//! The thread that made a request waits for the reply, so its status still has the values from the time of
//! the request. User and group in the status must be those of the header; otherwise access is denied. They
//! can differ if the thread was killed and its id was reused, or if a kernel thread made the request for a
//! program.
//!
//! A credential is cached for at most one second, by thread, user and group, and only if the thread cannot
//! change its identity except by executing another program: none of its user ids is 0, and it has no
//! capability, because with `CAP_SETGID` it could change its groups. A descriptor of the thread's directory
//! in `/proc` proves that the thread is still the same, because the descriptor never refers to a later thread
//! with the same id. This check takes the same time for a thousand groups as for one. To compare the thread's
//! start time instead, one more file would have to be read for each request.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use acl::credential::{Credential, Credentials};
use acl::idmap::Ids;
use rustix::fs::{AtFlags, Mode, OFlags, open, openat, readlinkat, statat};
use types::{Caps, Cred, Errno};
use vfs::{Identity, IdentitySource};

/// How long a credential is cached.
const LIFETIME: Duration = Duration::from_secs(1);
/// Cached threads per shard, one descriptor each: 256 in all.
const MAX_KNOWN: usize = 16;
const SHARDS: usize = 16;
/// Cached groups of all callers together: 16 MiB.
const MAX_GROUPS: usize = 1 << 20;
/// The size of the first buffer. A status has some 1,500 bytes, and up to eleven more for each group.
const FIRST_BYTES: usize = 8 << 10;
/// Longer than the status of a thread with 65,536 groups (`NGROUPS_MAX`), the maximum.
const MAX_BYTES: usize = 2 << 20;

/// Why a caller's credential cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error("the thread is in another PID namespace, or is not a thread of this machine")]
    Elsewhere,
    #[error("the thread has ended")]
    Exited,
    #[error("cannot read the thread's status: {0}")]
    Unreadable(io::Error),
    #[error("cannot parse the thread's status")]
    Unparsed,
    #[error(
        "the request is from user {asked_uid}, group {asked_gid}, but the thread has user {uid}, group {gid}"
    )]
    Another { asked_uid: u32, asked_gid: u32, uid: u32, gid: u32 },
    #[error("the thread has groups that are not mapped in this user namespace")]
    HiddenGroups,
    #[error("/proc does not show this PID namespace")]
    NoProc,
}

/// Reads and caches the credentials of callers.
#[derive(Debug)]
pub(crate) struct Callers {
    ids: Ids,
    credentials: Credentials,
    known: [RwLock<HashMap<u32, Arc<Known>>>; SHARDS],
    /// `/proc`, if it shows threads by the ids that requests have.
    proc: Option<OwnedFd>,
    /// Device and inode of this process's user namespace.
    user_namespace: Option<(u64, u64)>,
    /// The overflow group id, unless every group is mapped in this user namespace.
    hidden_group: Option<u32>,
    reads: AtomicU64,
    refusals: AtomicU64,
}

/// A thread whose credential is cached.
#[derive(Debug)]
struct Known {
    /// The thread's directory in `/proc`. Lookups in it fail after the thread has ended.
    directory: OwnedFd,
    uid: u32,
    gid: u32,
    credential: Arc<Credential>,
    since: Instant,
}

impl Known {
    fn is_fresh(&self) -> bool {
        self.since.elapsed() < LIFETIME
    }
}

impl Callers {
    /// `ids` is the mapping of ids to those of the volume.
    pub(crate) fn new(ids: Ids) -> Self {
        let proc = open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        // In a procfs of another PID namespace, this process has another id.
        let own = std::process::id().to_string();
        let proc = proc.filter(|proc| {
            readlinkat(proc, "self", Vec::new()).is_ok_and(|link| link.as_bytes() == own.as_bytes())
        });
        let user_namespace = proc.as_ref().and_then(|proc| namespace(proc, "self/ns/user"));
        let hidden_group = if knows_every_group() { None } else { Some(overflow_group()) };
        Callers {
            ids,
            credentials: Credentials::new(MAX_GROUPS),
            known: std::array::from_fn(|_| RwLock::default()),
            proc,
            user_namespace,
            hidden_group,
            reads: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    fn find(&self, uid: u32, gid: u32, tid: u32) -> Result<Identity, Unknown> {
        if tid == 0 {
            return Err(Unknown::Elsewhere);
        }
        let known = self.shard(tid).read().unwrap_or_else(PoisonError::into_inner).get(&tid).cloned();
        if let Some(known) = known.filter(|known| known.uid == uid && known.gid == gid && known.is_fresh())
            && statat(&known.directory, "status", AtFlags::empty()).is_ok()
        {
            return Ok(Identity { credential: Arc::clone(&known.credential), caps: Caps::NONE });
        }
        let since = Instant::now();
        let proc = self.proc.as_ref().ok_or(Unknown::NoProc)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(proc, tid.to_string(), flags, Mode::empty()).map_err(unreadable)?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let status = Status::parse(&read_status(&directory)?).ok_or(Unknown::Unparsed)?;
        let (fs_uid, fs_gid) = (status.uids[3], status.gids[3]);
        if (fs_uid, fs_gid) != (uid, gid) {
            return Err(Unknown::Another { asked_uid: uid, asked_gid: gid, uid: fs_uid, gid: fs_gid });
        }
        if self.hidden_group.is_some_and(|hidden| status.groups.contains(&hidden)) {
            return Err(Unknown::HiddenGroups);
        }
        let caps = self.caps_here(&directory, &status);
        let cred = self.ids.cred(&Cred::new(uid, gid, &status.groups, caps));
        let credential = self.credentials.intern(&cred, &[]);
        if status.is_settled() {
            let credential = Arc::clone(&credential);
            self.remember(tid, Known { directory, uid, gid, credential, since });
        }
        Ok(Identity { credential, caps: cred.caps })
    }

    /// The thread's capabilities, if it is in the user namespace of this mount. Those of another namespace
    /// apply to some files only (`capable_wrt_inode_uidgid`), and count as none here.
    fn caps_here(&self, directory: &OwnedFd, status: &Status) -> Caps {
        let is_here = status.effective != 0
            && self.user_namespace.is_some()
            && namespace(directory, "ns/user") == self.user_namespace;
        if is_here { Caps::from_bits(status.effective) } else { Caps::NONE }
    }

    fn remember(&self, tid: u32, known: Known) {
        let mut shard = self.shard(tid).write().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= MAX_KNOWN && !shard.contains_key(&tid) {
            shard.retain(|_, known| known.is_fresh());
            let oldest = shard.iter().min_by_key(|(_, known)| known.since).map(|(tid, _)| *tid);
            if let Some(oldest) = oldest.filter(|_| shard.len() >= MAX_KNOWN) {
                shard.remove(&oldest);
            }
        }
        shard.insert(tid, Arc::new(known));
    }

    fn shard(&self, tid: u32) -> &RwLock<HashMap<u32, Arc<Known>>> {
        &self.known[tid as usize % SHARDS]
    }
}

impl IdentitySource for Callers {
    fn identify(&self, uid: u32, gid: u32, pid: u32) -> Result<Identity, Errno> {
        self.find(uid, gid, pid).map_err(|reason| {
            // A program could cause millions of these messages: log at powers of two only.
            let count = self.refusals.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_power_of_two() {
                tracing::warn!(uid, gid, thread = pid, %reason, count, "cannot identify a caller; access is denied");
            }
            Errno::EACCES
        })
    }
}

/// The identity of a thread, from its status.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// Real, effective, saved and file-system ids.
    uids: [u32; 4],
    gids: [u32; 4],
    groups: Vec<u32>,
    permitted: u64,
    effective: u64,
}

impl Status {
    /// Parses `proc_pid_status(5)`. The thread's name comes first and may contain anything, but line breaks
    /// in it are escaped.
    fn parse(text: &[u8]) -> Option<Self> {
        let mut lines =
            text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
        let mut field = |name: &str| {
            let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
            std::str::from_utf8(value).ok()
        };
        let numbers = |text: &str| -> Option<Vec<u32>> {
            text.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
        };
        let mask = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
        Some(Status {
            uids: numbers(field("Uid")?)?.try_into().ok()?,
            gids: numbers(field("Gid")?)?.try_into().ok()?,
            groups: numbers(field("Groups")?)?,
            permitted: mask(field("CapPrm")?)?,
            effective: mask(field("CapEff")?)?,
        })
    }

    /// Whether the thread can change its identity only by executing another program.
    fn is_settled(&self) -> bool {
        !self.uids.contains(&0) && self.permitted == 0 && self.effective == 0
    }
}

/// The whole status. The kernel generates it at the first read, and serves the following reads from that.
fn read_status(directory: &OwnedFd) -> Result<Vec<u8>, Unknown> {
    let status = openat(directory, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let status = status.map_err(unreadable)?;
    let mut text = vec![0; FIRST_BYTES];
    let mut len = 0;
    loop {
        let space = text.get_mut(len..).unwrap_or_default();
        let wanted = space.len();
        match rustix::io::read(&status, space) {
            Ok(count) => {
                len += count;
                if count < wanted {
                    text.truncate(len);
                    return Ok(text);
                }
            }
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(unreadable(error)),
        }
        if text.len() >= MAX_BYTES {
            return Err(Unknown::Unparsed);
        }
        text.resize(text.len() * 4, 0);
    }
}

fn unreadable(error: rustix::io::Errno) -> Unknown {
    match error {
        rustix::io::Errno::NOENT | rustix::io::Errno::SRCH => Unknown::Exited,
        error => Unknown::Unreadable(error.into()),
    }
}

/// The namespace that a link of `/proc` refers to, as device and inode; `None` if this process may not read
/// the link.
fn namespace(directory: impl AsFd, link: &str) -> Option<(u64, u64)> {
    let stat = statat(directory, link, AtFlags::empty()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Whether every group is mapped in the user namespace of this process, `user_namespaces(7)`.
pub fn knows_every_group() -> bool {
    maps_all(&std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default())
}

/// Whether a map of a user namespace, `user_namespaces(7)`, includes all ids.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

fn overflow_group() -> u32 {
    const USUAL: u32 = 65_534;
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowgid").unwrap_or_default();
    text.trim().parse().unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::fs::{Gid, Uid};
    use rustix::thread::{gettid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

    use super::*;

    const STATUS: &str = "Name:\ta\\nUid:\t0\t0\t0\t0\nUmask:\t0022\nTgid:\t7\nUid:\t5\t6\t7\t8\nGid:\t1\t2\t3\t4\n\
                          FDSize:\t64\nGroups:\t10 20 30 \nNStgid:\t7\nCapInh:\t0000000000000000\n\
                          CapPrm:\t0000000000000002\nCapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n";

    #[test]
    fn status_is_parsed() {
        let status = Status::parse(STATUS.as_bytes()).unwrap();
        let (permitted, effective) = (2, 0x1ff_ffff_ffff);
        let expected =
            Status { uids: [5, 6, 7, 8], gids: [1, 2, 3, 4], groups: vec![10, 20, 30], permitted, effective };
        assert_eq!(status, expected);
        let none = STATUS.replace("10 20 30 ", "");
        assert_eq!(Status::parse(none.as_bytes()).unwrap().groups, [0; 0]);
    }

    #[test]
    fn truncated_or_malformed_status_is_rejected() {
        for end in 0..STATUS.find("CapBnd").unwrap() {
            assert_eq!(Status::parse(&STATUS.as_bytes()[..end]), None, "{end}");
        }
        for (from, to) in
            [("5\t6", "5\t-6"), ("\t8\n", "\n"), ("10 ", "4294967296 "), ("ffff\nCapB", "g\nCapB")]
        {
            assert!(STATUS.contains(from));
            assert_eq!(Status::parse(STATUS.replace(from, to).as_bytes()), None, "{from:?}");
        }
    }

    #[test]
    fn identity_is_settled_without_root_ids_and_capabilities() {
        let settled = |uids, permitted, effective| {
            Status { uids, gids: [0; 4], groups: Vec::new(), permitted, effective }.is_settled()
        };
        assert!(settled([1; 4], 0, 0));
        assert!(!settled([1, 1, 0, 1], 0, 0) && !settled([1; 4], 1 << 6, 0) && !settled([1; 4], 0, 1));
    }

    #[test]
    fn user_namespace_map_is_complete_or_not() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("0 1000 1\n") && !maps_all("") && !maps_all("0 0 4294967295\n1 1 1\n"));
    }

    fn reads(callers: &Callers) -> u64 {
        callers.reads.swap(0, Ordering::Relaxed)
    }

    /// Runs `ask` with the id of a thread that has this identity, while the thread waits.
    fn with_thread<T>(uid: u32, gid: u32, groups: &[u32], ask: impl FnOnce(u32) -> T) -> T {
        let (send_tid, tids) = channel();
        let (release, released) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                set_thread_groups(&groups).unwrap();
                set_thread_res_gid(gid, gid, gid).unwrap();
                set_thread_res_uid(uid, uid, uid).unwrap();
                send_tid.send(gettid().as_raw_nonzero().get() as u32).unwrap();
                let _ = released.recv();
            });
            let outcome = ask(tids.recv().unwrap());
            drop(release);
            outcome
        })
    }

    #[test]
    fn credential_is_read_once_per_second_but_each_time_for_root() {
        if !skip::is_root() {
            return;
        }
        let callers = Callers::new(Ids::default());
        let own = gettid().as_raw_nonzero().get() as u32;
        for _ in 0..100 {
            let identity = callers.identify(0, 0, own).unwrap();
            assert!(identity.caps.has(Caps::DAC_OVERRIDE));
        }
        assert_eq!(reads(&callers), 100, "root can change its identity at any time");

        let many: Vec<u32> = (100_000..165_536).collect();
        with_thread(1234, 77, &many, |tid| {
            let begun = Instant::now();
            let first = callers.identify(1234, 77, tid).unwrap();
            assert_eq!(first.credential.cred().groups(), many, "the maximum number of groups");
            assert!(first.credential.cred().in_group(77) && !first.caps.has(Caps::DAC_READ_SEARCH));
            for _ in 0..1000 {
                let again = callers.identify(1234, 77, tid).unwrap();
                assert_eq!(again.credential.id(), first.credential.id());
            }
            // One read, unless this machine is slow.
            assert!(reads(&callers) <= 1 + begun.elapsed().as_secs(), "one read per second");
            // The thread id is not accepted for another user or group.
            for (uid, gid) in [(1235, 77), (1234, 78), (0, 77)] {
                assert_eq!(callers.identify(uid, gid, tid).map(drop), Err(Errno::EACCES));
            }
        });
    }

    #[test]
    fn ended_and_foreign_threads_are_rejected() {
        let callers = Callers::new(Ids::default());
        assert!(matches!(callers.find(1, 1, 0), Err(Unknown::Elsewhere)));
        if !skip::is_root() {
            return;
        }
        let tid = with_thread(1234, 77, &[5], |tid| {
            callers.find(1234, 77, tid).unwrap();
            tid
        });
        // The thread may still exist for a moment after it was joined.
        let until = Instant::now() + LIFETIME * 60;
        while std::path::Path::new(&format!("/proc/{tid}")).exists() && Instant::now() < until {
            std::thread::yield_now();
        }
        // Renew the cached entry, so that it is not rejected because of its age.
        let known = Arc::into_inner(callers.shard(tid).write().unwrap().remove(&tid).unwrap()).unwrap();
        callers.remember(tid, Known { since: Instant::now(), ..known });
        assert!(matches!(callers.find(1234, 77, tid), Err(Unknown::Exited)));
        assert!(matches!(callers.find(1, 1, u32::MAX), Err(Unknown::Exited | Unknown::Unreadable(_))));
        let nowhere = Callers { proc: None, ..Callers::new(Ids::default()) };
        let own = gettid().as_raw_nonzero().get() as u32;
        assert!(matches!(nowhere.find(0, 0, own), Err(Unknown::NoProc)));
    }

    #[test]
    fn cached_threads_are_bounded() {
        let callers = Callers::new(Ids::default());
        let credential = callers.credentials.intern(&Cred::new(5, 5, &[], Caps::NONE), &[]);
        let directory = || open("/proc/self", OFlags::PATH, Mode::empty()).unwrap();
        for tid in (1..200).map(|n| n * SHARDS as u32) {
            let credential = Arc::clone(&credential);
            let known = Known { directory: directory(), uid: 5, gid: 5, credential, since: Instant::now() };
            callers.remember(tid, known);
            let shard = callers.shard(tid).read().unwrap();
            assert!(shard.len() <= MAX_KNOWN && shard.contains_key(&tid));
        }
    }
}
