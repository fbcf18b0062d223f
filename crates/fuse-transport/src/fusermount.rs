//! `fusermount3(1)`: mounts without privileges, through a set-uid helper that passes the open device back.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::device::Device;
use crate::error::Error;
use crate::fd_passing::receive_fds;
use crate::options::{MountOptions, UnmountMode};

const PROGRAM: &str = "fusermount3";

/// Mounts at `path`. The mount is visible at once, and the device's first request is INIT.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<Device, Error> {
    let system = |e: Errno| Error::system("make a socket for fusermount3", e);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(system)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(system)?;
    let output = run(Command::new(PROGRAM)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .arg("-o")
        .arg(option_list(options))
        .arg("--")
        .arg(path));
    // Close this process's copy before the read, which would otherwise wait forever if the helper sent
    // nothing.
    drop(theirs);
    let output = output?;
    if !output.status.success() {
        return Err(failed(&output));
    }
    let received =
        receive_fds(&ours, 1).map_err(|e| Error::system("receive the device from fusermount3", e))?;
    let fd = received.into_iter().next();
    fd.map(Device::from).ok_or_else(|| Error::Fusermount("it did not send a device".into()))
}

pub(crate) fn unmount(path: &Path, mode: UnmountMode) -> Result<(), Error> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if mode == UnmountMode::Lazy {
        command.arg("-z");
    }
    let output = run(command.arg("--").arg(path))?;
    match output.status.success() {
        true => Ok(()),
        false if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(Error::Busy(path.into())),
        false => Err(failed(&output)),
    }
}

fn run(command: &mut Command) -> Result<Output, Error> {
    // The message is parsed, so it must not be translated.
    command.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(Error::NoFusermount)
}

fn failed(output: &Output) -> Error {
    Error::Fusermount(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn option_list(options: &MountOptions) -> OsString {
    let escaped = options.volume.replace('\\', r"\\").replace(',', r"\,");
    let mut list = format!("fsname={escaped},subtype={}", crate::SUBTYPE);
    let flags = [
        (options.default_permissions, "default_permissions"),
        (options.allow_other, "allow_other"),
        (options.read_only, "ro"),
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
    ];
    for (_, flag) in flags.iter().filter(|(set, _)| *set) {
        list.push(',');
        list.push_str(flag);
    }
    list.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_escaped() {
        let options = MountOptions { nosuid: true, nodev: true, ..MountOptions::new(r"a,b\c") };
        let list = option_list(&options);
        assert_eq!(list, r"fsname=a\,b\\c,subtype=limen,default_permissions,nosuid,nodev");
    }
}
