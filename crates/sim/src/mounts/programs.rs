//! The programs on a mount: they check permissions, change modes, write under a lock, use extended
//! attributes, and use files that they have unlinked.

use std::sync::Arc;
use std::time::Duration;

use acl::credential::Credentials;
use meta::LockKind;
use ops::XattrMode;
use types::{BLOCK_BYTES, Caps, Cred, Errno, Ino, Mode};
use vfs::{AttrChange, Caller, Identity, LockRequest, Locked, MakeKind, MakeRequest, OpenAccess, Vfs};

use crate::cut::Kind;
use crate::mounts::kernel::Memory;
use crate::mounts::scheduler;
use crate::mounts::shared::{CLIENTS, Conditions, FILES, PROGRAMS, Shared};
use crate::mutant::Mutant;
use crate::rng::Rng;
use crate::xattrs::{self, Value};

/// How long a mount in normal operation may use an outdated mode: the lease on the cache, replies in flight,
/// and the last repetition of a notification, plus some time for the network.
pub(super) const OUTDATED: Duration = Duration::from_secs(2);
const ANY: OpenAccess = OpenAccess { read: true, write: true, execute: false, append: false };

pub(super) fn root() -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::root(), &[]);
    Caller::known(Identity { credential, caps: Caps::ALL })
}

/// Creates the files that all programs use.
pub(super) fn make_files(shared: &Shared, vfs: &Vfs) {
    for at in 0..FILES {
        let name = format!("f{at}");
        let (kind, mode) = (MakeKind::Regular, Mode::new(0o600));
        let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), kind, mode, umask: 0 };
        // If the create was in doubt, the file may exist.
        let made = vfs.names.create(&root(), request).map(|attr| (attr.ino, vfs.files.close(attr.ino)).0);
        let found = || vfs.names.lookup(&root(), Ino::ROOT, name.as_bytes()).ok()?.map(|attr| attr.ino);
        if let Some(ino) = made.ok().or_else(found) {
            shared.files().push(ino);
        }
    }
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) shared: Arc<Shared>,
    pub(super) client: usize,
    pub(super) number: u64,
    pub(super) vfs: Arc<Vfs>,
    pub(super) kernel: Arc<Memory>,
}

impl Program {
    pub(super) fn run(&self) {
        let index = self.client as u64 * PROGRAMS + self.number;
        if self.number == 0 {
            self.look_into_own_places();
        }
        for number in 0.. {
            scheduler::set_rng(Rng::of(self.shared.seed, 10 + index, number));
            host::sleep(Duration::from_millis(host::random() % self.shared.conditions.idle_ms));
            let decision = (number * CLIENTS as u64 * PROGRAMS + index) as usize;
            if self.shared.decide_numbered(Kind::Assignment, decision) {
                self.act(number);
            }
        }
    }

    fn act(&self, number: u64) {
        let Conditions { holds_directories, events, .. } = &self.shared.conditions;
        // If mounts are killed, only names in held directories are checked, because a killed mount loses all
        // other data that it had only in its memory.
        if *holds_directories && (!events.kills.is_empty() || host::random().is_multiple_of(2)) {
            return match host::random() % 5 {
                0..2 => self.change_place(number),
                _ => self.look_into_a_place(),
            };
        }
        let ino = {
            let files = self.shared.files();
            files[host::random() as usize % files.len()]
        };
        match host::random() % 100 {
            0..10 => self.kernel.evict(&self.vfs, ino),
            10..16 => self.chmod(ino),
            16..24 => self.write_under_lock(ino),
            24..29 => self.change_xattr(ino),
            29..34 => self.read_xattr(ino),
            34..36 => self.use_unlinked(number),
            36..46 => self.change_place(number),
            46..50 => self.look_into_a_place(),
            _ => self.stat(ino),
        }
    }

    /// Adds a line to the history.
    pub(super) fn say(&self, what: &str) {
        self.shared.trace(&format!("client {} program {}: {what}", self.client, self.number));
    }

    /// Reports a finding, unless the client was paused, or its machine suspended, a short time ago.
    pub(super) fn find(&self, what: &str) {
        let Program { client, shared, .. } = self;
        if !shared.has_stood_still(*client, OUTDATED * 2) {
            shared.world().find(format!("{:?}: client {client} {what}", shared.clocks.now()));
        }
    }

    fn stat(&self, ino: Ino) {
        // A kernel thread that has got a reply may wait for a processor before it applies the reply.
        let delay = || match host::random().is_multiple_of(2) {
            true => Duration::from_micros(host::random() % 150_000),
            false => self.shared.delay(),
        };
        let Some(mode) = self.kernel.mode(&self.vfs, ino, delay) else { return };
        let since = self.shared.clocks.now().saturating_sub(OUTDATED);
        if !self.shared.was_mode(ino, mode, since) {
            self.find(&format!("still uses the mode 0o{mode:o} of {ino}"));
        }
    }

    fn chmod(&self, ino: Ino) {
        let mode = Mode::new(self.shared.next_mode());
        let change = AttrChange { mode: Some(mode), ..AttrChange::default() };
        let reply = self.vfs.caches.begin_reply();
        let changed = self.vfs.setattr(&root(), ino, change);
        let lifetime = reply.lifetimes().attributes;
        drop(reply);
        self.say(&format!("chmod {ino} to {mode:?}: {:?}", changed.as_ref().map(|_| ())));
        match changed {
            Ok(attr) => self.kernel.set(ino, attr.mode.bits(), lifetime),
            // The change may have happened, so the kernel must send GETATTR.
            Err(_) => self.kernel.evict(&self.vfs, ino),
        }
    }

    /// Sets or removes an extended attribute.
    fn change_xattr(&self, ino: Ino) {
        let name = xattrs::name((host::random() % 3) as u8);
        let value = Value::draw(&mut Rng::new(host::random()));
        let mode = match host::random() % 4 {
            0 => XattrMode::Create,
            1 => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        let is_removal = host::random().is_multiple_of(3);
        let changed = match is_removal {
            true => self.vfs.xattrs.removexattr(&root(), ino, name.as_bytes()),
            false => self.vfs.xattrs.setxattr(&root(), ino, name.as_bytes(), &value.bytes(), mode, false),
        };
        let what = if is_removal { "no value".to_owned() } else { format!("{value:?} ({mode:?})") };
        self.say(&format!("sets the xattr {name:?} of {ino} to {what}: {changed:?}"));
        let is_too_long = !is_removal && value.len > xattrs::MAX_BYTES;
        if changed.is_ok() && is_too_long {
            self.find("has set an xattr that is too long");
        }
    }

    /// Reads an extended attribute, and lists the names of all. The mount may answer both from its cache.
    fn read_xattr(&self, ino: Ino) {
        let since = self.shared.clocks.now().saturating_sub(OUTDATED);
        let name = xattrs::name((host::random() % 3) as u8);
        let name = name.as_bytes();
        let value = match self.vfs.xattrs.getxattr(&root(), ino, name) {
            Ok(value) => Some(Value::of(&value)),
            Err(Errno::ENODATA) => None,
            Err(_) => return,
        };
        if !self.shared.was_xattr(ino, name, since, |was| was == value) {
            self.find(&format!("still reads {value:?} as the xattr {} of {ino}", name.escape_ascii()));
        }
        let since = self.shared.clocks.now().saturating_sub(OUTDATED);
        let Ok(listed) = self.vfs.xattrs.listxattr(&root(), ino) else { return };
        let is_listed = listed.split(|byte| *byte == 0).any(|listed| listed == name);
        if !self.shared.was_xattr(ino, name, since, |was| was.is_some() == is_listed) {
            self.find(&format!("lists the xattr {} of {ino}: {is_listed}", name.escape_ascii()));
        }
    }

    /// A file without a name remains usable while it is open, and while its mount's session lives.
    fn use_unlinked(&self, number: u64) {
        let before = self.vfs.session_loss();
        let name = format!("u{}.{}.{number}", self.client, self.number);
        let (kind, mode) = (MakeKind::Regular, Mode::new(0o600));
        let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), kind, mode, umask: 0 };
        let Ok(attr) = self.vfs.names.create(&root(), request) else { return };
        let ino = attr.ino;
        let unlinked = self.vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes());
        self.say(&format!("has unlinked {ino}, which is open: {unlinked:?}"));
        let bytes = some_bytes();
        let written = self.vfs.files.write(ino, 0, &bytes).is_ok() && self.vfs.files.flush(ino).is_ok();
        host::sleep(Duration::from_millis(host::random() % 4000));
        let read = self.vfs.files.read(ino, 0, bytes.len() as u32).map(|read| read == bytes);
        let attr = self.vfs.attributes.getattr_for(&root(), ino, true);
        let _ = self.vfs.files.close(ino);
        if self.vfs.session_loss() != before {
            return;
        }
        let has_ended = matches!(attr, Err(Errno::ESTALE | Errno::ENOENT));
        if has_ended || written && read == Ok(false) {
            self.find(&format!("reads its own bytes from {ino}, which it has open: {read:?}, {attr:?}"));
        }
    }

    /// All writes to a file take its lock, so two clients never write to it at the same time, whether the
    /// writes succeed or fail.
    fn write_under_lock(&self, ino: Ino) {
        let handle = (self.client as u64 + 1) * 100 + self.number;
        let kind = if ino.0.is_multiple_of(2) { LockKind::Flock } else { LockKind::Posix };
        let lock = LockRequest { kind, owner: handle, exclusive: true, start: 0, end: u64::MAX, pid: 1 };
        if self.vfs.files.open(&root(), ino, ANY).is_err() {
            return;
        }
        let before = self.vfs.session_loss();
        if self.vfs.locks.take_lock(ino, handle, lock, false) == Ok(Locked::Granted) {
            self.vfs.locks.when_current(ino, || {});
            self.say(&format!("holds a lock on {ino}"));
            let bytes = some_bytes();
            if host::random().is_multiple_of(4) {
                let change = AttrChange { size_bytes: Some(0), ..AttrChange::default() };
                let _ = self.vfs.setattr(&root(), ino, change);
            }
            let written = self.vfs.files.write(ino, 0, &bytes);
            host::sleep(Duration::from_millis(host::random() % 500));
            // If a flush fails, a later one stores the data, or the data is lost for good. So the lock is
            // kept for up to 20 more flushes.
            let mut tries = 0;
            while written.is_ok() && self.vfs.files.flush(ino).is_err() && tries < 20 {
                host::sleep(Duration::from_secs(1));
                tries += 1;
                if self.shared.mutant == Some(Mutant::KeepsLocks) && self.vfs.session_loss() != before {
                    self.go_on_without_lock(ino, &bytes);
                    break;
                }
            }
            let _ = self.vfs.locks.unlock(ino, lock);
            self.say(&format!("has released its lock on {ino}, {tries} failures"));
        }
        if kind == LockKind::Posix {
            let _ = self.vfs.locks.unlock_process(ino, handle);
        }
        let _ = self.vfs.locks.unlock_handle(ino, handle, Some(handle).filter(|_| kind == LockKind::Flock));
        let _ = self.vfs.files.close(ino);
    }

    /// The fault of [`Mutant::KeepsLocks`]: the mount lost the lock with its session, but the file is written
    /// as if the mount still held the lock.
    fn go_on_without_lock(&self, ino: Ino, bytes: &[u8]) {
        for _ in 0..60 {
            let _ = self.vfs.files.close(ino);
            if self.vfs.files.open(&root(), ino, ANY).is_err() {
                return;
            }
            let stored = self.vfs.files.write(ino, 0, bytes).and_then(|_| self.vfs.files.flush(ino));
            self.say(&format!("writes to {ino} without a lock: {stored:?}"));
            host::sleep(Duration::from_millis(500));
        }
    }
}

/// Bytes that are stored in the row itself, in one block, or in two blocks.
fn some_bytes() -> Vec<u8> {
    let stamp = host::random().to_le_bytes();
    let count = match host::random() % 200 {
        0 => BLOCK_BYTES as usize / stamp.len() + 700,
        1..100 => 700,
        _ => 1,
    };
    stamp.repeat(count)
}
