//! Helpers for tests on a mount: a mounted volume, users, errnos, request counts, random numbers.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use types::{Caps, Cred};

use crate::common::Place;

pub(crate) const NOBODY: u32 = 65_534;

/// A mounted volume. Dropping it unmounts the volume.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) place: Place,
}

impl Mounted {
    /// Returns `None`, and reports a skip, if the test cannot run: mounting requires root.
    pub(crate) fn new(format_options: &[&str]) -> Option<Self> {
        Self::with(format_options, |_| {})
    }

    /// `prepare` changes the place before the volume is created.
    pub(crate) fn with(format_options: &[&str], prepare: impl FnOnce(&Place)) -> Option<Self> {
        if !skip::is_root() {
            return None;
        }
        let place = Place::new();
        prepare(&place);
        // Other users need access to the mount point.
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(place.path(""), open).unwrap();
        place.format(format_options).ok();
        place.mount(&[]).ok();
        Some(Mounted { place })
    }

    /// Mounts again, with other options.
    pub(crate) fn remount_with(&self, mount_options: &[&str]) {
        self.place.umount(&[]).ok();
        self.place.mount(mount_options).ok();
    }

    /// Returns when the mount has committed everything that it has answered, for a test that reads the database.
    pub(crate) fn commit_answered(&self) {
        rustix::fs::statvfs(self.at("")).unwrap();
    }

    /// A path on the volume.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    pub(crate) fn remount(&self) {
        self.place.umount(&[]).ok();
        self.place.mount(&[]).ok();
    }

    /// Kills the server (SIGKILL) and mounts again.
    pub(crate) fn kill_and_remount(&self) {
        kill_process(Pid::from_raw(self.place.server() as i32).unwrap(), Signal::KILL).unwrap();
        self.place.mount(&[]).ok();
    }

    /// Lookups so far: those that skipped the check of search permission, and those that made it.
    pub(crate) fn searches(&self) -> [u64; 2] {
        let said = self.place.statistics();
        ["skipped", "checked"].map(|kind| said["searches"][kind].as_u64().unwrap())
    }

    /// The number of inodes, including the root.
    pub(crate) fn inodes(&self) -> u64 {
        self.place.status()["usage"]["inodes"].as_u64().unwrap()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.place.status()["usage"]["bytes"].as_u64().unwrap()
    }

    /// Unmounts and returns the counts of FUSE requests of this mount.
    pub(crate) fn counts_at_unmount(&self) -> Counts {
        self.place.umount(&[]).ok();
        Counts::last_of(&self.place.log())
    }
}

/// FUSE requests by name, from the log line at the end of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) BTreeMap<String, i64>);

impl Counts {
    fn last_of(log: &str) -> Self {
        let line = log.lines().rfind(|line| line.contains("unmounted")).unwrap_or_else(|| panic!("{log}"));
        let list = line.split_once("requests=").unwrap_or_else(|| panic!("{line}")).1;
        let pairs = list.split(", ").map(|pair| pair.trim().split_once(' ').unwrap());
        Counts(pairs.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect())
    }

    pub(crate) fn of(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> i64 {
        self.0.values().sum()
    }

    /// The difference to `before`.
    pub(crate) fn since(&self, before: &Counts) -> Counts {
        let names = self.0.keys().chain(before.0.keys());
        let more = names.map(|name| (name.clone(), self.of(name) - before.of(name)));
        Counts(more.filter(|(_, count)| *count != 0).collect())
    }
}

/// Runs `work` as a user without supplementary groups and without capabilities, in a thread of its own.
pub(crate) fn as_user<T: Send>(uid: u32, gid: u32, work: impl FnOnce() -> T + Send) -> T {
    as_member(uid, gid, &[], work)
}

/// As [`as_user`], but the user is also a member of these supplementary groups.
pub(crate) fn as_member<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let body = || {
        let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        let left = rustix::thread::capabilities(None).unwrap();
        assert_eq!(left.effective, CapabilitySet::empty());
        work()
    };
    let outcome = thread::scope(|scope| scope.spawn(body).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `work` with these credentials, in a thread of its own. User 0 keeps all capabilities.
pub(crate) fn as_cred<T: Send>(cred: &Cred, work: impl FnOnce() -> T + Send) -> T {
    let body = || {
        let groups: Vec<Gid> = cred.groups().iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(cred.uid), Gid::from_raw(cred.gid));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    };
    let outcome = thread::scope(|scope| scope.spawn(body).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Random credentials with a few groups, all IDs from `ids`; in one of ten cases root, with all capabilities.
pub(crate) fn random_cred(random: &mut Random, ids: Range<u32>) -> Cred {
    let mut id = || ids.start + random.below(u64::from(ids.end - ids.start)) as u32;
    let (uid, gid, all) = (id(), id(), [id(), id(), id()]);
    let groups = &all[..random.below(4) as usize];
    let uid = if random.below(10) == 0 { 0 } else { uid };
    let caps = if uid == 0 { Caps::ALL } else { Caps::NONE };
    Cred::new(uid, gid, groups, caps)
}

/// User and group of the file at this path.
pub(crate) fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

/// The result that `access explain` predicts for a call.
pub(crate) fn errno(answer: &inspect::PathAnswer) -> Result<(), Errno> {
    answer.errno.map_or(Ok(()), |errno| Err(Errno::from_raw_os_error(errno.raw())))
}

/// Panics unless `result` is this error.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug, E: Into<io::Error>>(result: Result<T, E>, errno: Errno) {
    match result {
        Ok(value) => panic!("got {value:?}, expected {errno:?}"),
        Err(error) => {
            let error = error.into();
            assert_eq!(Errno::from_io_error(&error), Some(errno), "{error}");
        }
    }
}

/// A reproducible pseudorandom generator.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Takes the seed from the environment variable `variable`, or chooses one; prints it in either case.
    pub(crate) fn seeded(variable: &str) -> Self {
        let seed = env::var(variable).ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(process::id()) << 20 | 0x5eed);
        eprintln!("{variable}={seed}");
        Random(seed)
    }

    /// A number below `limit` (xorshift64*).
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut seed = self.below(u64::MAX);
        (0..len)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 56) as u8
            })
            .collect()
    }
}
