//! The tables, and the columns of the rows of replies.

use crate::kind;

/// A table, and the columns with the numbers and byte strings of its rows in replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    pub kind: i16,
    pub name: &'static str,
    pub numbers: &'static [&'static str],
    /// Columns of byte strings and of texts.
    pub strings: &'static [&'static str],
}

const fn table(
    kind: i16,
    name: &'static str,
    numbers: &'static [&'static str],
    strings: &'static [&'static str],
) -> Table {
    Table { kind, name, numbers, strings }
}

impl Table {
    pub const INODE: Table = table(
        kind::INODE,
        "node",
        &[
            "ino",
            "kind",
            "mode",
            "uid",
            "gid",
            "rdev",
            "nlink",
            "size",
            "atime",
            "mtime",
            "ctime",
            "parent",
            "access_rev",
            "xattr_blocks",
            "quota",
        ],
        &["access_acl", "default_acl"],
    );
    pub const DIRENT: Table = table(kind::DIRENT, "edge", &["parent", "ino", "kind"], &["name"]);
    pub const XATTR: Table = table(kind::XATTR, "xattr", &["ino"], &["name", "value"]);
    pub const SYMLINK: Table = table(kind::SYMLINK, "symlink", &["ino"], &["target"]);
    /// The columns do not include the position of the row in its chunk.
    pub const SLICE: Table = table(
        kind::SLICE,
        "slice",
        &["ino", "chunk", "pos", "len", "slice", "slice_off", "slice_size"],
        &["data"],
    );
    pub const ACL: Table = table(kind::ACL, "acl", &[], &["id", "text"]);
    pub const SETTING: Table = table(kind::SETTING, "setting", &[], &["name", "value"]);
    pub const COUNTER: Table = table(kind::COUNTER, "counter", &["value"], &["name"]);
    pub const USAGE: Table = table(kind::USAGE, "usage", &["inodes", "blocks"], &[]);
    pub const LOCK: Table = table(
        kind::LOCK,
        "lock",
        &["ino", "first", "last", "session", "owner", "kind", "exclusive", "pid"],
        &[],
    );
    pub const LOCK_WAIT: Table = Table { kind: kind::LOCK_WAIT, name: "lock_wait", ..Table::LOCK };
    /// The table `lock_wait` with the columns of its key only: the owner of the request.
    pub const WAITER: Table = Table { numbers: &["session", "owner", "kind"], ..Table::LOCK_WAIT };
    pub const SESSION: Table = table(
        kind::SESSION,
        "session",
        &["id", "pid", "since", "heartbeat", "pid_namespace", "start_time", "first_slice"],
        &["host", "mountpoint", "boot_id", "version"],
    );
    pub const ORPHAN: Table = table(kind::ORPHAN, "orphan", &["session", "ino"], &[]);
    pub const GARBAGE: Table = table(kind::GARBAGE, "garbage", &["slice", "size"], &[]);
    pub const SHARED: Table = table(kind::SHARED, "shared", &["slice", "extra"], &[]);
    /// The key, the rule, and the counters.
    pub const QUOTA: Table = table(
        kind::QUOTA,
        "quota",
        &[
            "kind",
            "number",
            "next",
            "max_inodes",
            "max_blocks",
            "soft_inodes",
            "soft_blocks",
            "root",
            "state",
            "inodes",
            "blocks",
        ],
        &[],
    );

    /// The columns of the numbers, then those of the strings.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.numbers.iter().chain(self.strings).copied()
    }

    /// Whether a column of `strings` holds texts; the others hold byte strings.
    pub fn is_text(&self, column: &str) -> bool {
        matches!(self.kind, kind::SETTING | kind::COUNTER | kind::SESSION) && self.strings.contains(&column)
            || self.kind == kind::ACL && column == "text"
    }
}
