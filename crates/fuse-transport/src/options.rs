//! How to mount and unmount.

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The source in `mount(8)` and mountinfo.
    pub volume: String,
    /// The name of the volume's root in the FUSE root; `None` to mount the FUSE root itself.
    pub child: Option<String>,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Users other than the mounting user have access.
    pub allow_other: bool,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    /// Only shown in `mount(8)`: the kernel leaves access times of FUSE inodes to the server.
    pub strictatime: bool,
    /// The longest READ.
    pub max_read_bytes: Option<u32>,
    /// Mount over a directory that has entries.
    pub allow_nonempty: bool,
}

impl MountOptions {
    /// Only `default_permissions` is set.
    pub fn new(volume: impl Into<String>) -> Self {
        MountOptions {
            volume: volume.into(),
            child: None,
            default_permissions: true,
            allow_other: false,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            strictatime: false,
            max_read_bytes: None,
            allow_nonempty: false,
        }
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
    /// Aborts requests in flight, then as [`UnmountMode::Clean`].
    Force,
}
