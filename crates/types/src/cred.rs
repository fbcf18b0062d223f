//! Credentials of callers.

use std::sync::Arc;

/// The identity for which access is checked: the file-system ids of `credentials(7)`, and capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    pub uid: u32,
    pub gid: u32,
    groups: Arc<[u32]>,
    pub caps: Caps,
}

impl Cred {
    /// `groups` are the supplementary groups, in any order, with or without repetitions.
    pub fn new(uid: u32, gid: u32, groups: &[u32], caps: Caps) -> Self {
        let mut sorted = groups.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        Cred { uid, gid, groups: sorted.into(), caps }
    }

    /// User 0 with every capability.
    pub fn root() -> Self {
        Cred::new(0, 0, &[], Caps::ALL)
    }

    /// Whether `gid` is the primary or a supplementary group (`in_group_p`, kernel/groups.c).
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }

    /// The supplementary groups, sorted, each once.
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }
}

/// Capabilities (`capabilities(7)`), as the bits of the kernel's capability mask. Those that limenfs checks
/// are named here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caps(u64);

impl Caps {
    pub const NONE: Caps = Caps(0);
    pub const CHOWN: Caps = Caps(1 << 0);
    pub const DAC_OVERRIDE: Caps = Caps(1 << 1);
    pub const DAC_READ_SEARCH: Caps = Caps(1 << 2);
    pub const FOWNER: Caps = Caps(1 << 3);
    pub const FSETID: Caps = Caps(1 << 4);
    pub const SYS_ADMIN: Caps = Caps(1 << 21);
    pub const MKNOD: Caps = Caps(1 << 27);
    pub const ALL: Caps = Caps(u64::MAX);

    /// `bits` is a mask of the kernel, such as `CapEff` in `/proc/PID/status`.
    pub fn from_bits(bits: u64) -> Self {
        Caps(bits)
    }

    /// The mask that [`Caps::from_bits`] takes.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The name of a single capability, as in `capabilities(7)`.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Caps::CHOWN => Some("CAP_CHOWN"),
            Caps::DAC_OVERRIDE => Some("CAP_DAC_OVERRIDE"),
            Caps::DAC_READ_SEARCH => Some("CAP_DAC_READ_SEARCH"),
            Caps::FOWNER => Some("CAP_FOWNER"),
            Caps::FSETID => Some("CAP_FSETID"),
            Caps::SYS_ADMIN => Some("CAP_SYS_ADMIN"),
            Caps::MKNOD => Some("CAP_MKNOD"),
            _ => None,
        }
    }

    pub fn has(self, all_of: Caps) -> bool {
        self.0 & all_of.0 == all_of.0
    }
}

impl std::ops::BitOr for Caps {
    type Output = Caps;

    fn bitor(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }
}
