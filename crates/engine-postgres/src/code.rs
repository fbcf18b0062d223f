//! The numbers that stand for guards, effects and rows of replies, in this code and in the functions of the
//! server. `functions.sql` writes each number as a colon and its name, including the kinds of rows that all
//! SQL engines share ([`tables::kind`]).

use tables::kind;

/// Defines the constants, and the list of all of them.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: i64 = $number;)*
        const ALL: &[(&str, i64)] = &[$((stringify!($name), $name)),*];
    };
}

codes! {
    /// Rows of replies: the ids and sequence numbers of transactions that were applied.
    COMMITTED = 20;
    /// The ids and sequence numbers of transactions that had been applied before.
    REPEATED = 21;
    /// The numbers of transactions whose guards failed; the records that these guards read follow.
    FAILED = 22;
    /// Follows the records of failed guards.
    CONFLICT_END = 23;

    /// The kind of a guard divided by this is the kind of the record key that decides it.
    GUARDS_PER_RECORD = 10;
    GUARD_ACCESS = 10;
    GUARD_INODE_ABSENT = 11;
    GUARD_LINKS = 12;
    GUARD_PARENT_IS = 13;
    GUARD_SIZE = 14;
    GUARD_XATTR_BLOCKS = 15;
    GUARD_DIRENT_IS = 20;
    GUARD_DIRENT_ABSENT = 21;
    GUARD_EMPTY = 30;
    GUARD_XATTR = 40;
    GUARD_ROWS = 60;
    GUARD_ACL = 70;
    GUARD_SETTING = 80;
    GUARD_COUNTER = 90;
    GUARD_ROOM = 100;
    GUARD_LOCKS = 110;
    GUARD_SESSION = 130;
    GUARD_TERM = 131;
    GUARD_QUOTA = 180;
    GUARD_QUOTA_INODES = 181;
    GUARD_QUOTA_BLOCKS = 182;

    /// The bits of the columns of an inode that a change sets; the last one stands for all columns that
    /// access depends on.
    SETS_ATIME = 1;
    SETS_MTIME = 2;
    SETS_CTIME = 4;
    SETS_PARENT = 8;
    SETS_ACCESS = 16;

    /// Effects of function `rest`. An effect that puts a row has the kind of that row.
    EFFECT_DROP_SLICES = 1;
    EFFECT_REPLACE_ROWS = 2;
    /// A new row of an [`EFFECT_REPLACE_ROWS`].
    EFFECT_REPLACING_ROW = 3;
    EFFECT_PUT_XATTR = kind::XATTR as i64;
    EFFECT_PUT_SYMLINK = kind::SYMLINK as i64;
    EFFECT_APPEND_SLICE = kind::SLICE as i64;
    EFFECT_PUT_ACL = kind::ACL as i64;
    EFFECT_PUT_SETTING = kind::SETTING as i64;
    EFFECT_SET_COUNTER = kind::COUNTER as i64;
    EFFECT_ADD_USAGE = kind::USAGE as i64;
    EFFECT_PUT_LOCK = kind::LOCK as i64;
    EFFECT_PUT_WAIT = kind::LOCK_WAIT as i64;
    EFFECT_PUT_SESSION = kind::SESSION as i64;
    EFFECT_PUT_ORPHAN = kind::ORPHAN as i64;
    EFFECT_SHARE = kind::SHARED as i64;
    EFFECT_BEGIN_TERM = 17;
    EFFECT_PUT_QUOTA = kind::QUOTA as i64;
    EFFECT_CHARGE = 19;
    EFFECT_CONDEMN_ACL = 20;
    /// Added to the kind of the rows that an effect removes.
    REMOVED = 100;
    EFFECT_DROP_XATTR = REMOVED + kind::XATTR as i64;
    EFFECT_DROP_LOCKS = REMOVED + kind::LOCK as i64;
    EFFECT_DROP_ACL = REMOVED + kind::ACL as i64;
    EFFECT_DROP_WAIT = REMOVED + kind::LOCK_WAIT as i64;
    EFFECT_DROP_SESSION = REMOVED + kind::SESSION as i64;
    EFFECT_DROP_ORPHAN = REMOVED + kind::ORPHAN as i64;
    EFFECT_DROP_GARBAGE = REMOVED + kind::GARBAGE as i64;
    EFFECT_END_TERM = 117;
    EFFECT_DROP_QUOTA = REMOVED + kind::QUOTA as i64;
    /// The third and fourth string of a session: a row has room for two strings only.
    EFFECT_SESSION_TEXTS = 213;
}

/// Replaces each colon and name in `sql` by the number.
pub(crate) fn substituted(sql: &str) -> String {
    let mut parts = sql.split(':');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match number(name) {
            Some(number) => text += &(number.to_string() + rest),
            None => text.extend([":", part]),
        }
    }
    text
}

fn number(name: &str) -> Option<i64> {
    let mut all = kind::ALL.iter().map(|(name, kind)| (*name, i64::from(*kind))).chain(ALL.iter().copied());
    all.find(|(other, _)| *other == name).map(|(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: &str = include_str!("functions.sql");

    #[test]
    fn functions_name_every_code_and_no_other() {
        let sql = substituted(FUNCTIONS);
        let unknown = |part: &&str| part.starts_with(|c: char| c.is_ascii_uppercase());
        assert_eq!(sql.split(':').skip(1).find(unknown), None);
        for (name, _) in ALL.iter().filter(|(name, _)| *name != "REMOVED") {
            let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_uppercase() || c == '_');
            assert!(FUNCTIONS.split(&format!(":{name}")).skip(1).any(is_end), "{name}");
        }
        for literal in ["what = 1", "what = 2", "'{1", "'{2", "1::smallint", "2::smallint"] {
            assert!(!FUNCTIONS.contains(literal), "{literal}");
        }
    }

    #[test]
    fn guards_divide_to_the_kinds_of_their_records() {
        let kinds = [
            (GUARD_ACCESS, kind::INODE),
            (GUARD_XATTR_BLOCKS, kind::INODE),
            (GUARD_DIRENT_ABSENT, kind::DIRENT),
            (GUARD_EMPTY, kind::NOT_EMPTY),
            (GUARD_XATTR, kind::XATTR),
            (GUARD_ROWS, kind::SLICE),
            (GUARD_ACL, kind::ACL),
            (GUARD_SETTING, kind::SETTING),
            (GUARD_COUNTER, kind::COUNTER),
            (GUARD_ROOM, kind::USAGE),
            (GUARD_LOCKS, kind::LOCK),
            (GUARD_TERM, kind::SESSION),
            (GUARD_QUOTA, kind::QUOTA),
            (GUARD_QUOTA_BLOCKS, kind::QUOTA),
        ];
        for (guard, kind) in kinds {
            assert_eq!(guard / GUARDS_PER_RECORD, i64::from(kind), "{guard}");
        }
    }

    #[test]
    fn only_known_names_are_substituted() {
        assert_eq!(substituted("a[1:2] = :SLICE::smallint, :SLICES"), "a[1:2] = 6::smallint, :SLICES");
    }
}
