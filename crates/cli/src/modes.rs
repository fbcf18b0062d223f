//! File types and modes, in letters and words.

use types::{FileType, Mode};

/// Like `ls -l`, e.g. `drwxr-x--t+`; the plus means that the file has an ACL.
pub(crate) fn show(kind: FileType, mode: Mode, has_acl: bool) -> String {
    let mut shown = String::with_capacity(11);
    shown.push(match kind {
        FileType::Fifo => 'p',
        FileType::CharDevice => 'c',
        FileType::Directory => 'd',
        FileType::BlockDevice => 'b',
        FileType::Regular => '-',
        FileType::Symlink => 'l',
        FileType::Socket => 's',
    });
    let special = [(Mode::SUID, 's', 'S'), (Mode::SGID, 's', 'S'), (Mode::STICKY, 't', 'T')];
    for (shift, (bit, with, without)) in [6, 3, 0].into_iter().zip(special) {
        let has = |one: u32| mode.rwx() >> shift & one != 0;
        shown.push(if has(4) { 'r' } else { '-' });
        shown.push(if has(2) { 'w' } else { '-' });
        shown.push(match (has(1), mode.has(bit)) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    if has_acl {
        shown.push('+');
    }
    shown
}

pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "fifo",
        FileType::CharDevice => "character device",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block device",
        FileType::Regular => "file",
        FileType::Symlink => "symlink",
        FileType::Socket => "socket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_shown_as_ls_shows_them() {
        let of = |kind, bits, acl| show(kind, Mode::new(bits), acl);
        assert_eq!(of(FileType::Directory, 0o1777, false), "drwxrwxrwt");
        assert_eq!(of(FileType::Directory, 0o3750, true), "drwxr-s--T+");
        assert_eq!(of(FileType::Regular, 0o6644, false), "-rwSr-Sr--");
        assert_eq!(of(FileType::Regular, 0o4711, false), "-rws--x--x");
        assert_eq!(of(FileType::Symlink, 0o777, false), "lrwxrwxrwx");
    }
}
