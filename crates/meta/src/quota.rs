//! Quotas of directories, users and groups: counters of usage, with limits.
//!
//! A quota counts its inodes and their blocks ([`Inode::blocks`](crate::Inode::blocks)). The [`QuotaTag`] of
//! an inode says in which quotas the inode counts: it names the nearest directory quota, and says whether the
//! inode counts in the quotas of its owner and group. The nearest directory quota is the first of a chain, in
//! which each quota names the next one around it ([`QuotaRule::outer`]); the inode counts in all quotas of
//! the chain. On a volume without quotas no inode has a tag, so operations pay nothing.
//!
//! Engines do not compute charges. An operation that changes the usage of a tagged inode guards everything
//! that the charges depend on (the access revision, the size and the xattr blocks), and adds the difference
//! to each counter by [`Effect::Charge`](crate::Effect::Charge). [`Guard::Quota`](crate::Guard::Quota) checks
//! the limit, and checks that the chain is still the one from which the charges were computed.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::{Ino, QuotaId};

/// The quotas in which an inode counts. The tag is kept in its stored form, which makes each inode in memory
/// 8 bytes smaller.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuotaTag(u64);

impl QuotaTag {
    pub const NONE: QuotaTag = QuotaTag(0);

    pub const fn new(directory: QuotaId, owners: bool) -> Self {
        QuotaTag(directory.0 << 1 | owners as u64)
    }

    /// The nearest directory quota. An inode gets it from its directory when it is created or moved, or from
    /// the walk that adds a quota to existing inodes ([`QuotaState::Building`]). 0 if there is none.
    pub const fn directory(self) -> QuotaId {
        QuotaId(self.0 >> 1)
    }

    /// Whether the inode counts in the quotas of its owner and its group.
    pub const fn owners(self) -> bool {
        self.0 & 1 == 1
    }

    /// The stored form: a number of at most `i64::MAX`; 0 for [`QuotaTag::NONE`].
    pub const fn to_number(self) -> u64 {
        self.0
    }

    /// The tag with this stored form.
    pub const fn from_number(number: u64) -> Self {
        QuotaTag(number)
    }
}

impl fmt::Debug for QuotaTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaTag")
            .field("directory", &self.directory())
            .field("owners", &self.owners())
            .finish()
    }
}

/// Identifies a quota. Keys are ordered by kind, then by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QuotaKey {
    Directory(QuotaId),
    /// The quota of the inodes that this uid owns.
    User(u32),
    /// The quota of the inodes with this gid.
    Group(u32),
}

impl QuotaKey {
    /// The stored form: a kind (0, 1 or 2) and a number of at most `i64::MAX`. The order of these pairs is
    /// the order of keys.
    pub fn to_numbers(self) -> (u8, u64) {
        match self {
            QuotaKey::Directory(id) => (0, id.0),
            QuotaKey::User(uid) => (1, uid.into()),
            QuotaKey::Group(gid) => (2, gid.into()),
        }
    }

    /// The key with this stored form; `None` if there is none.
    pub fn from_numbers(kind: u8, number: u64) -> Option<Self> {
        match kind {
            0 => Some(QuotaKey::Directory(QuotaId(number))),
            1 => Some(QuotaKey::User(number.try_into().ok()?)),
            2 => Some(QuotaKey::Group(number.try_into().ok()?)),
            _ => None,
        }
    }
}

/// A quota: its counters, and its rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The number of its inodes. Only damage can make it negative.
    pub inodes: i64,
    /// The sum of their blocks. Only damage can make it negative.
    pub blocks: i64,
    pub rule: QuotaRule,
}

/// The limits of a quota, its place in a chain of directory quotas, and its state. Every number is at most
/// `i64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRule {
    /// The next quota of the chain: the nearest directory quota that contains the directory of this one. 0 if
    /// there is none, and for users and groups.
    pub outer: QuotaId,
    /// The hard limits; [`QuotaRule::NO_LIMIT`] if there is none.
    pub max_inodes: u64,
    pub max_blocks: u64,
    /// The soft limits; [`QuotaRule::NO_LIMIT`] if there is none.
    pub soft_inodes: u64,
    pub soft_blocks: u64,
    /// The directory of a directory quota; 0 for users and groups.
    pub root: Ino,
    pub state: QuotaState,
}

impl QuotaRule {
    /// A limit that nothing reaches.
    pub const NO_LIMIT: u64 = i64::MAX as u64;
}

impl Default for QuotaRule {
    fn default() -> Self {
        QuotaRule {
            outer: QuotaId(0),
            max_inodes: QuotaRule::NO_LIMIT,
            max_blocks: QuotaRule::NO_LIMIT,
            soft_inodes: QuotaRule::NO_LIMIT,
            soft_blocks: QuotaRule::NO_LIMIT,
            root: Ino(0),
            state: QuotaState::Settled,
        }
    }
}

/// Whether the tags of a quota's inodes are complete. Stored as 0, 1, 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaState {
    /// All inodes of the quota have its tag.
    #[default]
    Settled,
    /// A walk adds the tag to the inodes that existed before the quota.
    Building,
    /// A walk removes the tag from the inodes.
    Removing,
}

impl QuotaState {
    /// The stored form.
    pub fn to_number(self) -> u8 {
        match self {
            QuotaState::Settled => 0,
            QuotaState::Building => 1,
            QuotaState::Removing => 2,
        }
    }

    /// The state with this stored form; `None` if there is none.
    pub fn from_number(number: u8) -> Option<Self> {
        [QuotaState::Settled, QuotaState::Building, QuotaState::Removing].get(usize::from(number)).copied()
    }
}

impl Quota {
    /// The setting that each change of a rule increments. Its value is the id of the next directory quota.
    pub const NEXT_SETTING: &str = "next_quota";
    /// The setting that says whether inodes count in the quotas of their owners: absent, `building` or `on`.
    pub const OWNERS_SETTING: &str = "owner_quotas";

    /// Whether the usage exceeds a soft limit.
    pub fn is_above_soft_limit(&self) -> bool {
        let above = |used: i64, limit: u64| used.max(0).unsigned_abs() > limit;
        above(self.inodes, self.rule.soft_inodes) || above(self.blocks, self.rule.soft_blocks)
    }

    /// Whether nothing more fits below a hard limit.
    pub fn is_full(&self) -> bool {
        !self.fits(1, 0) || !self.fits(0, 1)
    }

    /// Whether this many more inodes and blocks fit below the hard limits. Zero always fits, even if the
    /// usage exceeds the limit.
    pub fn fits(&self, inodes: u64, blocks: u64) -> bool {
        let fits = |used: i64, more: u64, max: u64| {
            more == 0 || i128::from(used) + i128::from(more) <= i128::from(max)
        };
        fits(self.inodes, inodes, self.rule.max_inodes) && fits(self.blocks, blocks, self.rule.max_blocks)
    }
}
