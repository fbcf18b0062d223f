//! The kinds of rows in replies, as numbers.

/// Defines the constants, and the list of all of them.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        $($(#[$doc])* pub const $name: i16 = $number;)*

        /// Every kind with the name of its constant, which statements use instead of the number.
        pub const ALL: &[(&str, i16)] = &[$((stringify!($name), $name)),*];
    };
}

kinds! {
    INODE = 1;
    DIRENT = 2;
    NOT_EMPTY = 3;
    XATTR = 4;
    SYMLINK = 5;
    SLICE = 6;
    ACL = 7;
    SETTING = 8;
    COUNTER = 9;
    USAGE = 10;
    LOCK = 11;
    LOCK_WAIT = 12;
    SESSION = 13;
    ORPHAN = 14;
    GARBAGE = 15;
    SHARED = 16;
    DIRENT_WITH_INODE = 17;
    QUOTA = 18;
}
