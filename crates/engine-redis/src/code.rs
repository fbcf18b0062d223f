//! The codes of record keys, scans, guards and effects in requests. The scripts use the names of these
//! constants, which [`substituted`] replaces by their values, because a local variable costs a script more
//! than a literal.

/// Defines the constants, and the list of all of them.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: &str = $code;)*
        const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}

codes! {
    GUARD_DIRENT_IS = "edge";
    GUARD_DIRENT_ABSENT = "free";
    GUARD_ACCESS = "arev";
    GUARD_INODE_ABSENT = "none";
    /// The stored inode has these bytes at this offset.
    GUARD_INODE_BYTES = "same";
    GUARD_EMPTY = "void";
    GUARD_XATTR = "attr";
    GUARD_XATTR_BLOCKS = "most";
    GUARD_SETTING = "sett";
    /// The setting does not exist.
    GUARD_NO_SETTING = "nset";
    GUARD_COUNTER = "cntr";
    GUARD_LOCKS = "lock";
    GUARD_ROWS = "rows";
    GUARD_ROOM = "room";
    GUARD_QUOTA = "quot";
    GUARD_SESSION = "live";
    GUARD_HEARTBEAT = "beat";
    GUARD_TERM = "term";
    GUARD_ACL = "acls";

    EFFECT_PUT_INODE = "node";
    EFFECT_DROP_INODE = "gone";
    EFFECT_PUT_DIRENT = "edge";
    EFFECT_DROP_DIRENT = "free";
    EFFECT_SET_ACCESS = "perm";
    EFFECT_SET_PARENT = "home";
    EFFECT_ADD_LINKS = "link";
    /// Sets mtime and ctime to the same time.
    EFFECT_SET_MTIME_CTIME = "both";
    EFFECT_SET_TIMES = "time";
    EFFECT_SET_SIZE = "size";
    EFFECT_EXTEND = "grow";
    EFFECT_ADD_XATTR_BLOCKS = "bulk";
    EFFECT_APPEND_SLICE = "data";
    EFFECT_DROP_SLICES = "trim";
    EFFECT_REPLACE_ROWS = "swap";
    EFFECT_SHARE = "refs";
    EFFECT_PUT_XATTR = "attr";
    EFFECT_DROP_XATTR = "noat";
    EFFECT_PUT_ACL = "acls";
    EFFECT_CONDEMN_ACL = "cond";
    EFFECT_DROP_ACL = "noac";
    EFFECT_PUT_SYMLINK = "path";
    EFFECT_PUT_ORPHAN = "orph";
    EFFECT_DROP_ORPHAN = "heir";
    /// Puts a key and its value into a map; [`schema`](crate::schema) describes maps.
    EFFECT_PUT_MEMBER = "keep";
    /// Removes a key from a map.
    EFFECT_DROP_MEMBER = "drop";
    EFFECT_BEGIN_TERM = "term";
    EFFECT_PUT_LOCKS = "lock";
    /// Sets a field of a hash.
    EFFECT_PUT_FIELD = "sets";
    EFFECT_ADD_USAGE = "used";
    EFFECT_PUT_QUOTA = "rule";
    EFFECT_CHARGE = "bill";
    /// Follows the last effect of a transaction.
    TXN_END = "done";

    RECORD_INODE = "node";
    RECORD_DIRENT = "entry";
    RECORD_EMPTY = "empty";
    RECORD_XATTRS = "xattrs";
    RECORD_SYMLINK = "symlink";
    RECORD_SLICES = "slices";
    RECORD_ACL = "acl";
    RECORD_SETTINGS = "settings";
    RECORD_COUNTER = "counter";
    RECORD_USAGE = "usage";
    RECORD_LOCKS = "locks";
    RECORD_SESSION = "session";
    RECORD_WAITS = "waits";
    RECORD_QUOTA = "quota";

    /// The entries of a directory; entries with their inodes; entries with their inodes and ACLs.
    SCAN_DIR = "entries";
    SCAN_DIR_INODES = "inodes";
    SCAN_DIR_ACLS = "directory";
    /// Scans without a code here are named by the map that they read.
    SCAN_INODES = "nodes";
    SCAN_SLICES = "slices";
    SCAN_ORPHANS = "orphans";
}

/// The text of a script, with the names of codes replaced by their values.
pub(crate) fn substituted(script: &str) -> String {
    let mut codes = ALL.to_vec();
    // Replace the longest names first, because some names begin with another one.
    codes.sort_unstable_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    codes.iter().fold(script.to_owned(), |text, (name, code)| text.replace(name, &format!("'{code}'")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SCRIPTS: &str = concat!(
        include_str!("lua/common.lua"),
        include_str!("lua/read.lua"),
        include_str!("lua/scan.lua"),
        include_str!("lua/commit.lua")
    );

    /// The names in a script that look like those of codes.
    fn names(script: &str) -> BTreeSet<&str> {
        let words = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let is_name = |word: &&str| {
            ["GUARD_", "EFFECT_", "RECORD_", "SCAN_", "TXN_"].iter().any(|first| word.starts_with(first))
        };
        words.filter(is_name).collect()
    }

    #[test]
    fn scripts_use_every_code_by_its_name() {
        assert_eq!(names(SCRIPTS), ALL.iter().map(|(name, _)| *name).collect());
        assert!(names(&substituted(SCRIPTS)).is_empty());
        for literal in ["kind == '", "kind ~= '", "record == '"] {
            assert!(!SCRIPTS.contains(literal), "{literal}");
        }
    }

    #[test]
    fn codes_of_one_group_differ_and_those_of_guards_and_effects_have_four_letters() {
        for group in ["GUARD_", "EFFECT_", "RECORD_", "SCAN_"] {
            let mut seen = BTreeSet::new();
            for (name, code) in ALL.iter().filter(|(name, _)| name.starts_with(group)) {
                assert!(seen.insert(code), "{name}");
                assert!(code.len() == 4 || ["RECORD_", "SCAN_"].contains(&group), "{name}");
                assert_ne!(*code, TXN_END, "{name}");
            }
        }
    }
}
