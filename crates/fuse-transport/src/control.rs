//! Handing the requests of a mount over to another process: the pause of the workers, the devices, and the
//! requests that still wait for a reply.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuse_proto::{Opcode, Unique};

use crate::device::Device;
use crate::error::Error;
use crate::gate::Gate;
use crate::reply::Reply;

/// The devices of a mount whose requests come through `/dev/fuse`, and the gate of its workers.
#[derive(Clone, Debug, Default)]
pub struct WorkerControl {
    /// The first one is the device that the file system was created with.
    devices: Arc<Mutex<Vec<Arc<Device>>>>,
    pub(crate) gate: Arc<Gate>,
}

/// A request that waits for its reply, as one process describes it to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The index of the device to which the reply must be written.
    pub device: u32,
    pub unique: u64,
    pub opcode: u32,
}

impl WorkerControl {
    pub(crate) fn new(devices: Vec<Arc<Device>>) -> Self {
        WorkerControl { devices: Arc::new(Mutex::new(devices)), gate: Arc::default() }
    }

    /// Pauses the workers after the requests that they handle, for which this waits at most for `timeout`. `root` is a
    /// descriptor of the file system. Returns whether they are paused; if not, they continue.
    ///
    /// # Errors
    /// [`Error::System`] if a thread cannot be started; the workers continue.
    pub fn pause(&self, root: OwnedFd, timeout: Duration) -> Result<bool, Error> {
        // If no worker is left to read the thread's request, the request waits until the workers continue or
        // another process serves. This does not keep the process from ending.
        let (tick, ticks) = sync_channel::<()>(1);
        let gate = Arc::clone(&self.gate);
        let wake = move || {
            gate.set_waker();
            while ticks.recv().is_ok() {
                let _ = rustix::fs::fstatfs(&root);
            }
        };
        thread::Builder::new()
            .name("limen-wake".into())
            .spawn(wake)
            .map_err(|e| Error::system("start a thread", e))?;
        Ok(self.gate.close(timeout, &|| _ = tick.try_send(())))
    }

    /// Lets paused workers continue.
    pub fn resume(&self) {
        self.gate.open();
    }

    /// The devices, to be sent to another process.
    pub fn devices(&self) -> Vec<OwnedDevice> {
        self.lock().iter().cloned().map(OwnedDevice).collect()
    }

    /// Describes the request of a reply for another process.
    pub fn describe(&self, reply: &Reply) -> Option<Unanswered> {
        let device = self.lock().iter().position(|device| reply.is_to(device))?;
        let (unique, opcode) = (reply.unique().0, reply.opcode().0);
        Some(Unanswered { device: u32::try_from(device).ok()?, unique, opcode })
    }

    /// The reply to a request that another process has read and described; `None` if there is no such device.
    pub fn reply_to(&self, request: Unanswered) -> Option<Reply> {
        let device = self.lock().get(request.device as usize).cloned()?;
        Some(Reply::to(device, Unique(request.unique), Opcode(request.opcode)))
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arc<Device>> {
        self.lock().get(index).cloned()
    }

    pub(crate) fn add(&self, device: &Arc<Device>) {
        self.lock().push(Arc::clone(device));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device of a mount.
#[derive(Clone, Debug)]
pub struct OwnedDevice(Arc<Device>);

impl AsFd for OwnedDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::serve::DevFuse;

    #[test]
    fn only_fuse_devices_are_taken_over() {
        assert!(DevFuse::take_over(Vec::new()).is_err());
        for path in ["/dev/null", "/"] {
            assert!(DevFuse::take_over(vec![File::open(path).unwrap().into()]).is_err(), "{path}");
        }
        let control = WorkerControl::default();
        assert!(control.reply_to(Unanswered { device: 0, unique: 2, opcode: 3 }).is_none());
    }
}
