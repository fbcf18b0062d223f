//! The options of mounting and unmounting.

/// The options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// The source in `mount(8)` and mountinfo.
    pub volume: String,
    /// The name of the volume's root in the FUSE root; `None` to mount the FUSE root itself.
    pub child: Option<String>,
    /// Whether the kernel checks permissions.
    pub default_permissions: bool,
    /// Whether users other than the mounting user have access.
    pub allow_other: bool,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    /// Whether the mount has the flag `strictatime`: `mount(8)` then does not show `relatime`. The flag has
    /// no other effect, because the kernel leaves access times of FUSE inodes to the server.
    pub strictatime: bool,
    /// Whether to mount over a directory that has entries.
    pub allow_nonempty: bool,
}

impl MountOptions {
    /// Options of which only `default_permissions` is set.
    pub fn new(volume: impl Into<String>) -> Self {
        MountOptions { volume: volume.into(), default_permissions: true, ..MountOptions::default() }
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnmountMode {
    /// Unmounts only if no process uses the file system.
    #[default]
    Clean,
    /// Detaches the mount now; the file system ends with its last user.
    Lazy,
    /// Aborts requests in flight, then unmounts as [`UnmountMode::Clean`]. Through fusermount3, nothing is
    /// aborted.
    Force,
}
