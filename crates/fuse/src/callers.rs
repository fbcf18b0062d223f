//! Who calls, beyond what a request's header says: groups and capabilities, from `/proc/TID/status`.
//!
//! The thread that made a request waits for its answer, so what is read of it is what held when it asked. It has to be
//! the user and group of the header, or else the answer is no: a thread that was killed may have left its number to
//! another one, and what kernel threads do for others is not written there.
//!
//! What was read is remembered for a second at most, under the thread, its user and its group, and of those only who
//! cannot make themselves somebody else meanwhile: not where any of a thread's users is 0, and not where it may use a
//! capability, of which `CAP_SETGID` is one. That the thread is still the same is known by a descriptor of its
//! directory in `/proc`, which stands for this thread and never for a later one of the same number. To look at that
//! takes as long for a thousand groups as for one.

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
use vfs::{Identify, Identity};

/// How long what was read of a thread serves.
const LIFETIME: Duration = Duration::from_secs(1);
/// Threads remembered in each of the shards, a descriptor each: 256 in all.
const MAX_KNOWN: usize = 16;
const SHARDS: usize = 16;
/// Groups remembered of all callers together: 16 MiB.
const MAX_GROUPS: usize = 1 << 20;
/// A status is some 1,500 bytes and up to eleven for each group.
const FIRST_BYTES: usize = 8 << 10;
/// Longer than that of a thread with 65,536 groups (`NGROUPS_MAX`), the most that there may be.
const MAX_BYTES: usize = 2 << 20;

/// Why a caller is not known.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error("it is in another PID namespace, or is none of this machine's threads")]
    Elsewhere,
    #[error("it is gone")]
    Gone,
    #[error("its status cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("its status is not understood")]
    Unparsed,
    #[error(
        "the request is for user {asked_uid}, group {asked_gid}, and the thread is user {uid}, group {gid}"
    )]
    Another { asked_uid: u32, asked_gid: u32, uid: u32, gid: u32 },
    #[error("it is in groups that this user namespace does not show")]
    HiddenGroups,
    #[error("/proc does not show this PID namespace")]
    NoProc,
}

/// Finds out who callers are.
#[derive(Debug)]
pub(crate) struct Callers {
    ids: Ids,
    credentials: Credentials,
    known: [RwLock<HashMap<u32, Arc<Known>>>; SHARDS],
    /// `/proc`, if it shows the threads by the numbers that requests have.
    proc: Option<OwnedFd>,
    /// Device and inode of this process's user namespace.
    user_namespace: Option<(u64, u64)>,
    /// The group that stands for those of other user namespaces, if there are any.
    hidden_group: Option<u32>,
    reads: AtomicU64,
    refusals: AtomicU64,
}

/// A thread of which all is known for a while.
#[derive(Debug)]
struct Known {
    /// Of its directory in `/proc`; nothing is found in it once the thread is gone.
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
    /// `ids` say whom the volume takes callers for.
    pub(crate) fn new(ids: Ids) -> Self {
        let proc = open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        // In a procfs of another PID namespace this process has another number.
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

    /// Capabilities are those of a thread's own user namespace. In another one than this mount's they bear on some files
    /// only (`capable_wrt_inode_uidgid`); here they count for nothing then.
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

impl Identify for Callers {
    fn identify(&self, uid: u32, gid: u32, pid: u32) -> Result<Identity, Errno> {
        self.find(uid, gid, pid).map_err(|reason| {
            // Whoever can cause one can cause millions.
            let count = self.refusals.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_power_of_two() {
                tracing::warn!(uid, gid, thread = pid, %reason, count, "a caller is not known, and is refused");
            }
            Errno::EACCES
        })
    }
}

/// What a status says of who the thread is.
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
    /// `proc_pid_status(5)`. A thread's name comes first and may be anything, but line breaks in it are escaped.
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

    /// Whether the thread can only become somebody else by starting another program.
    fn is_settled(&self) -> bool {
        !self.uids.contains(&0) && self.permitted == 0 && self.effective == 0
    }
}

/// The whole status. The kernel writes it at the first read, and serves the following ones from that.
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
        rustix::io::Errno::NOENT | rustix::io::Errno::SRCH => Unknown::Gone,
        error => Unknown::Unreadable(error.into()),
    }
}

/// Which namespace a link of `/proc` stands for; `None` where this process may not know.
fn namespace(directory: impl AsFd, link: &str) -> Option<(u64, u64)> {
    let stat = statat(directory, link, AtFlags::empty()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Whether every group has a number in the user namespace of this process, `user_namespaces(7)`.
pub fn knows_every_group() -> bool {
    maps_all(&std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default())
}

/// Whether a map of a user namespace, `user_namespaces(7)`, leaves out no id.
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
    fn a_status_says_who_it_is() {
        let status = Status::parse(STATUS.as_bytes()).unwrap();
        let (permitted, effective) = (2, 0x1ff_ffff_ffff);
        let expected =
            Status { uids: [5, 6, 7, 8], gids: [1, 2, 3, 4], groups: vec![10, 20, 30], permitted, effective };
        assert_eq!(status, expected);
        let none = STATUS.replace("10 20 30 ", "");
        assert_eq!(Status::parse(none.as_bytes()).unwrap().groups, [0; 0]);
    }

    #[test]
    fn what_is_no_whole_status_says_nothing() {
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
    fn only_who_can_become_nobody_else_is_settled() {
        let settled = |uids, permitted, effective| {
            Status { uids, gids: [0; 4], groups: Vec::new(), permitted, effective }.is_settled()
        };
        assert!(settled([1; 4], 0, 0));
        assert!(!settled([1, 1, 0, 1], 0, 0) && !settled([1; 4], 1 << 6, 0) && !settled([1; 4], 0, 1));
    }

    #[test]
    fn maps_of_user_namespaces() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("0 1000 1\n") && !maps_all("") && !maps_all("0 0 4294967295\n1 1 1\n"));
    }

    fn reads(callers: &Callers) -> u64 {
        callers.reads.swap(0, Ordering::Relaxed)
    }

    /// Runs `ask` with the number of a thread that has become that user, and waits.
    fn beside<T>(uid: u32, gid: u32, groups: &[u32], ask: impl FnOnce(u32) -> T) -> T {
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                set_thread_groups(&groups).unwrap();
                set_thread_res_gid(gid, gid, gid).unwrap();
                set_thread_res_uid(uid, uid, uid).unwrap();
                tell.send(gettid().as_raw_nonzero().get() as u32).unwrap();
                let _ = released.recv();
            });
            let outcome = ask(told.recv().unwrap());
            drop(release);
            outcome
        })
    }

    #[test]
    fn a_user_is_read_once_a_second_and_root_each_time() {
        if !skip::is_root() {
            return;
        }
        let callers = Callers::new(Ids::default());
        let own = gettid().as_raw_nonzero().get() as u32;
        for _ in 0..100 {
            let identity = callers.identify(0, 0, own).unwrap();
            assert!(identity.caps.has(Caps::DAC_OVERRIDE));
        }
        assert_eq!(reads(&callers), 100, "it may be another user the next moment");

        let many: Vec<u32> = (100_000..165_536).collect();
        beside(1234, 77, &many, |tid| {
            let begun = Instant::now();
            let first = callers.identify(1234, 77, tid).unwrap();
            assert_eq!(first.credential.cred().groups(), many, "as many groups as there can be");
            assert!(first.credential.cred().in_group(77) && !first.caps.has(Caps::DAC_READ_SEARCH));
            for _ in 0..1000 {
                let again = callers.identify(1234, 77, tid).unwrap();
                assert_eq!(again.credential.id(), first.credential.id());
            }
            // One, unless this machine is slow.
            assert!(reads(&callers) <= 1 + begun.elapsed().as_secs(), "once a second");
            // Neither another user nor another group is let in by that number.
            for (uid, gid) in [(1235, 77), (1234, 78), (0, 77)] {
                assert_eq!(callers.identify(uid, gid, tid).map(drop), Err(Errno::EACCES));
            }
        });
    }

    #[test]
    fn who_is_gone_or_elsewhere_is_refused() {
        let callers = Callers::new(Ids::default());
        assert!(matches!(callers.find(1, 1, 0), Err(Unknown::Elsewhere)));
        if !skip::is_root() {
            return;
        }
        let tid = beside(1234, 77, &[5], |tid| {
            callers.find(1234, 77, tid).unwrap();
            tid
        });
        // A thread that was waited for is still about to end.
        let until = Instant::now() + LIFETIME * 60;
        while std::path::Path::new(&format!("/proc/{tid}")).exists() && Instant::now() < until {
            std::thread::yield_now();
        }
        // As if it had been read this moment, so that it is not time that ends it.
        let known = Arc::into_inner(callers.shard(tid).write().unwrap().remove(&tid).unwrap()).unwrap();
        callers.remember(tid, Known { since: Instant::now(), ..known });
        assert!(matches!(callers.find(1234, 77, tid), Err(Unknown::Gone)));
        assert!(matches!(callers.find(1, 1, u32::MAX), Err(Unknown::Gone | Unknown::Unreadable(_))));
        let nowhere = Callers { proc: None, ..Callers::new(Ids::default()) };
        let own = gettid().as_raw_nonzero().get() as u32;
        assert!(matches!(nowhere.find(0, 0, own), Err(Unknown::NoProc)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
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
