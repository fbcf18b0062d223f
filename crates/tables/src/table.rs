//! The tables whose rows are facts.

/// A table, and the columns with the numbers and byte strings of its fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    pub fact: i16,
    pub name: &'static str,
    pub numbers: &'static [&'static str],
    /// Columns of byte strings and of texts.
    pub strings: &'static [&'static str],
}

const fn table(
    fact: i16,
    name: &'static str,
    numbers: &'static [&'static str],
    strings: &'static [&'static str],
) -> Table {
    Table { fact, name, numbers, strings }
}

impl Table {
    pub const NODE: Table = table(
        1,
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
        ],
        &["access_acl", "default_acl"],
    );
    pub const EDGE: Table = table(2, "edge", &["parent", "ino", "kind"], &["name"]);
    pub const XATTR: Table = table(4, "xattr", &["ino"], &["name", "value"]);
    pub const SYMLINK: Table = table(5, "symlink", &["ino"], &["target"]);
    /// Without the position of the row in its chunk.
    pub const SLICE: Table =
        table(6, "slice", &["ino", "chunk", "pos", "len", "slice", "slice_off", "slice_size"], &["data"]);
    pub const ACL: Table = table(7, "acl", &[], &["id", "text"]);
    pub const SETTING: Table = table(8, "setting", &[], &["name", "value"]);
    pub const COUNTER: Table = table(9, "counter", &["value"], &["name"]);
    pub const USAGE: Table = table(10, "usage", &["inodes", "blocks"], &[]);
    pub const LOCK: Table =
        table(11, "lock", &["ino", "first", "last", "session", "owner", "kind", "exclusive", "pid"], &[]);
    pub const LOCK_WAIT: Table = Table { fact: 12, name: "lock_wait", ..Table::LOCK };
    /// The key of a waiting lock request: its owner.
    pub const WAITER: Table = Table { numbers: &["session", "owner", "kind"], ..Table::LOCK_WAIT };
    pub const SESSION: Table = table(
        13,
        "session",
        &["id", "pid", "since", "heartbeat", "pid_namespace", "start_time", "first_slice"],
        &["host", "mountpoint", "boot_id", "version"],
    );
    pub const ORPHAN: Table = table(14, "orphan", &["session", "ino"], &[]);
    pub const GARBAGE: Table = table(15, "garbage", &["slice", "size"], &[]);
    pub const SHARED: Table = table(16, "shared", &["slice", "extra"], &[]);

    /// The columns of its numbers, then those of its strings.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.numbers.iter().chain(self.strings).copied()
    }
}
