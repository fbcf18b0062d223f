//! Mounts with the mount API of Linux 5.2 (`fsopen(2)`, `open_tree(2)`, `move_mount(2)`).
//!
//! The kernel creates the FUSE root inode before INIT, and never caches its ACL, so path walks through it
//! would send GETXATTR each time. Therefore the volume's root is a child of the FUSE root, and only that
//! child is mounted: path walks then never pass the FUSE root. The whole file system is detached from the
//! directory tree until the child is mounted, so a server that ends before that leaves nothing behind.
//! (Before Linux 6.15, it must be attached for a moment.)

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::device::Device;
use crate::error::Error;
use crate::fusermount;
use crate::mountpoint;
use crate::options::{MountOptions, UnmountMode};
use crate::serve::DevFuse;

/// The place at which the server must present the volume's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootPlacement {
    /// As the result of LOOKUP of this name in the FUSE root.
    Child(String),
    /// As the FUSE root, [`fuse_proto::NodeId::ROOT`].
    Direct,
}

/// A mounted file system. When dropped, it is unmounted lazily if it is still mounted.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    placement: RootPlacement,
    /// The whole file system, until its root is mounted.
    detached: Option<OwnedFd>,
    /// Major and minor of `st_dev`, to distinguish this mount from a later one on the same mount point.
    dev: (u32, u32),
}

impl Mount {
    /// Creates the file system. With CAP_SYS_ADMIN it is not visible before [`Mount::attach`]. Without
    /// CAP_SYS_ADMIN, fusermount3 mounts it at `mountpoint` at once, and programs that access it wait until
    /// it is served; the placement is [`RootPlacement::Direct`].
    ///
    /// # Errors
    /// For the mount point: [`Error::Missing`], [`Error::Dead`], [`Error::AlreadyMounted`],
    /// [`Error::NotADirectory`], [`Error::NotEmpty`]; then [`Error::NoDevice`], [`Error::NoFusermount`],
    /// [`Error::Fusermount`], [`Error::System`].
    pub fn prepare(mountpoint: &Path, options: &MountOptions) -> Result<(Mount, DevFuse), Error> {
        let path = mountpoint::check(mountpoint, options.allow_nonempty)?;
        let (mount, device) = match Device::open() {
            Ok(device) => match fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC) {
                Ok(context) => (Mount::detached(path, options, &context, &device)?, device),
                Err(Errno::PERM) => Mount::by_helper(path, options)?,
                Err(e) => return Err(Error::system("create a FUSE file system", e)),
            },
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Mount::by_helper(path, options)?,
            Err(e) => return Err(Error::NoDevice(e)),
        };
        Ok((mount, DevFuse::new(device)))
    }

    /// The file system that another process has mounted at `path`; `dev` is [`Mount::device`] there.
    pub fn take_over(path: &Path, dev: (u32, u32), placement: RootPlacement) -> Mount {
        Mount { path: path.to_owned(), placement, detached: None, dev }
    }

    /// Major and minor of `st_dev`.
    pub fn device(&self) -> (u32, u32) {
        self.dev
    }

    pub fn placement(&self) -> &RootPlacement {
        &self.placement
    }

    /// The mount point, absolute and without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        &self.path
    }

    /// Attaches the volume's root to the mount point. For a child the kernel sends LOOKUP, so requests must
    /// already be served; this call fails if they no longer are. Does nothing if the root is already mounted.
    ///
    /// # Errors
    /// [`Error::System`] if the root cannot be attached.
    pub fn attach(&mut self) -> Result<(), Error> {
        let Some(root) = &self.detached else { return Ok(()) };
        let shown = match &self.placement {
            RootPlacement::Direct => None,
            RootPlacement::Child(name) => Some(self.clone_child(root, name)?),
        };
        self.show(shown.as_ref().unwrap_or(root))?;
        self.detached = None;
        Ok(())
    }

    /// Sets the kernel's readahead. By default it is the value of INIT, but at most 128 KiB
    /// (`process_init_reply` in `fs/fuse/inode.c`). Call this after the reply to INIT, that is, after
    /// [`Mount::attach`].
    ///
    /// # Errors
    /// ENOENT if `/sys` is not mounted; EACCES if this process is not root.
    pub fn set_read_ahead(&self, bytes: u32) -> std::io::Result<()> {
        let (major, minor) = self.dev;
        let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        std::fs::write(file, (bytes / 1024).to_string())
    }

    /// Unmounts; does nothing if it is no longer mounted.
    ///
    /// # Errors
    /// [`Error::Busy`] if a process uses the file system, unless `mode` is [`UnmountMode::Lazy`];
    /// [`Error::System`] if the kernel does not unmount for another reason.
    pub fn unmount(&mut self, mode: UnmountMode) -> Result<(), Error> {
        self.detached = None;
        if !self.is_mounted()? {
            return Ok(());
        }
        match mountpoint::unmount_at(&self.path, mode) {
            // Another process has unmounted it meanwhile.
            Err(Error::NotMounted(_)) => Ok(()),
            unmounted => unmounted,
        }
    }

    fn detached(
        path: PathBuf,
        options: &MountOptions,
        context: &OwnedFd,
        device: &Device,
    ) -> Result<Self, Error> {
        let root = make(options, context, device)
            .map_err(|e| Error::system(format!("create a FUSE file system{}", messages(context)), e))?;
        let placement = match &options.child {
            Some(name) => RootPlacement::Child(name.clone()),
            None => RootPlacement::Direct,
        };
        // Send no request, because none is served yet.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&root, "", flags, StatxFlags::TYPE)
            .map_err(|e| Error::system("stat the new file system", e))?;
        Ok(Mount { path, placement, detached: Some(root), dev: (stat.stx_dev_major, stat.stx_dev_minor) })
    }

    fn by_helper(path: PathBuf, options: &MountOptions) -> Result<(Self, Device), Error> {
        let device = fusermount::mount(&path, options)?;
        let info = mountpoint::info(&path)?.ok_or_else(|| Error::NotMounted(path.clone()))?;
        let mount = Mount { path, placement: RootPlacement::Direct, detached: None, dev: info.dev };
        Ok((mount, device))
    }

    /// A new mount, not attached yet, that shows only the child.
    fn clone_child(&self, root: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        match open_tree(root, name, CLONE_TREE) {
            Err(Errno::INVAL) => self.clone_attached_child(root, name),
            tree => tree.map_err(|e| Error::system("open the volume's root", e)),
        }
    }

    /// Kernels before 6.15 clone only mounts that are attached. So this attaches the whole file system, which
    /// is visible for a moment.
    fn clone_attached_child(&self, root: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        self.show(root)?;
        let tree = open_tree(CWD, self.path.join(name), CLONE_TREE);
        mountpoint::unmount_at(&self.path, UnmountMode::Lazy)?;
        tree.map_err(|e| Error::system("open the volume's root", e))
    }

    fn show(&self, tree: &OwnedFd) -> Result<(), Error> {
        move_mount(tree, "", CWD, &self.path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|e| Error::at("mount at", &self.path, e))
    }

    fn is_mounted(&self) -> Result<bool, Error> {
        Ok(mountpoint::info(&self.path)?.is_some_and(|info| info.is_limen() && info.dev == self.dev))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(UnmountMode::Lazy) {
            tracing::error!(%error, "cannot unmount; the mount remains");
        }
    }
}

const CLONE_TREE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// `S_IFDIR`, in octal as the parameter requires.
const ROOT_MODE: &str = "40000";

fn make(options: &MountOptions, context: &OwnedFd, device: &Device) -> rustix::io::Result<OwnedFd> {
    let set = |key: &str, value: &str| fsconfig_set_string(context, key, value);
    set("source", &options.volume)?;
    set("subtype", crate::SUBTYPE)?;
    set("fd", &device.as_fd().as_raw_fd().to_string())?;
    set("rootmode", ROOT_MODE)?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    if options.default_permissions {
        fsconfig_set_flag(context, "default_permissions")?;
    }
    if options.allow_other {
        fsconfig_set_flag(context, "allow_other")?;
    }
    if options.read_only {
        fsconfig_set_flag(context, "ro")?;
    }
    fsconfig_create(context)?;
    let attributes = [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (options.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (options.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (options.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (options.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (options.strictatime, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    ];
    let attributes = attributes.iter().filter(|(set, _)| *set).map(|(_, flag)| *flag).collect();
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// The number of messages that the kernel keeps (`struct fc_log`).
const MAX_MESSAGES: usize = 8;

/// The kernel's messages about a failure, one per read: "e fuse: Unknown parameter".
fn messages(context: &OwnedFd) -> String {
    let mut all = String::new();
    let mut buffer = [0; 256];
    for _ in 0..MAX_MESSAGES {
        let Ok(len @ 1..) = rustix::io::read(context, &mut buffer) else { break };
        all.push_str(if all.is_empty() { " (" } else { "; " });
        all.push_str(String::from_utf8_lossy(&buffer[..len]).trim());
    }
    if !all.is_empty() {
        all.push(')');
    }
    all
}
