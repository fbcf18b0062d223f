//! The programs on a mount: they check permissions, change modes, and write under a lock.

use std::sync::Arc;
use std::time::Duration;

use acl::credential::Credentials;
use meta::LockKind;
use types::{Caps, Cred, Ino, Mode, Time};
use vfs::{AttrChange, Caller, Identity, LockRequest, Locked, MakeRequest, OpenFor, Special, Vfs};

use crate::mounts::kernel::Memory;
use crate::mounts::shared::{FILES, Shared};

/// How long a mount in normal operation may use an outdated mode: the lease on the cache, replies in flight,
/// and the last repetition of a notification, plus some time for the network.
const OUTDATED: Duration = Duration::from_secs(2);
const ANY: OpenFor = OpenFor { read: true, write: true, execute: false, append: false };

fn root() -> Caller<'static> {
    let credential = Credentials::new(1000).intern(&Cred::root(), &[]);
    Caller::known(Identity { credential, caps: Caps::ALL })
}

/// Creates the files that all programs use.
pub(super) fn make_files(shared: &Shared, vfs: &Vfs) {
    for at in 0..FILES {
        let name = format!("f{at}");
        let (what, mode) = (Special::Regular, Mode::new(0o600));
        let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), what, mode, umask: 0 };
        // If the create was in doubt, the file may exist.
        let made = vfs.create(&root(), request).map(|attr| (attr.ino, vfs.close(attr.ino)).0);
        let found = || vfs.lookup(&root(), Ino::ROOT, name.as_bytes()).ok()?.attr.map(|attr| attr.ino);
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
        loop {
            host::sleep(Duration::from_millis(host::random() % self.shared.weather.idle_ms));
            let ino = {
                let files = self.shared.files();
                files[host::random() as usize % files.len()]
            };
            match host::random() % 100 {
                0..10 => self.kernel.evict(&self.vfs, ino),
                10..16 => self.chmod(ino),
                16..26 => self.write_under_lock(ino),
                _ => self.look(ino),
            }
        }
    }

    fn look(&self, ino: Ino) {
        // A kernel thread with a reply may wait for a processor before it applies the reply.
        let delay = || match host::random().is_multiple_of(2) {
            true => Duration::from_micros(host::random() % 150_000),
            false => self.shared.delay(),
        };
        let Some(mode) = self.kernel.mode(&self.vfs, ino, delay) else { return };
        let (now, client) = (self.shared.clocks.now(), self.client);
        if !self.shared.was_mode(ino, mode, now.saturating_sub(OUTDATED))
            && !self.shared.has_stood_still(client, OUTDATED * 2)
        {
            let was = format!("{now:?}: client {client} still uses the mode 0o{mode:o} of {ino}");
            self.shared.world().find(was);
        }
    }

    fn chmod(&self, ino: Ino) {
        let change = AttrChange { mode: Some(Mode::new(self.shared.next_mode())), ..AttrChange::default() };
        let reply = self.vfs.begin_reply();
        let changed = self.vfs.setattr(&root(), ino, change);
        let lifetime = reply.lifetimes().attributes;
        drop(reply);
        match changed {
            Ok(attr) => self.kernel.set(ino, attr.mode.bits(), lifetime),
            // It may have happened, so the kernel must send GETATTR.
            Err(_) => self.kernel.evict(&self.vfs, ino),
        }
    }

    /// All writes take this lock, so two clients never write to a file at the same time, whatever their
    /// results.
    fn write_under_lock(&self, ino: Ino) {
        let handle = (self.client as u64 + 1) * 100 + self.number;
        let lock = LockRequest {
            kind: LockKind::Flock,
            owner: handle,
            exclusive: true,
            start: 0,
            end: u64::MAX,
            pid: 1,
        };
        if self.vfs.open(&root(), ino, ANY).is_err() {
            return;
        }
        if self.vfs.take_lock(ino, handle, lock, false) == Ok(Locked::Granted) {
            let bytes = Time::now().nanos().to_le_bytes();
            let written = self.vfs.write(ino, 0, &bytes);
            host::sleep(Duration::from_millis(host::random() % 500));
            // If data could not be stored, a later flush stores it, or it is lost for good. The lock is kept
            // until then.
            let mut tries = 0;
            while written.is_ok() && self.vfs.flush(ino).is_err() && tries < 20 {
                host::sleep(Duration::from_secs(1));
                tries += 1;
            }
            let _ = self.vfs.unlock(ino, lock);
        }
        let _ = self.vfs.unlock_handle(ino, handle, Some(handle));
        let _ = self.vfs.close(ino);
    }
}
