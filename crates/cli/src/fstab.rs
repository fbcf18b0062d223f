//! Lines of fstab(5): adds or replaces the line of one mount point in the text, and replaces the file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use command::error::{CliError, ErrorAt};

use crate::options::has_no_effect;

/// The file system type in a line, for which mount(8) executes `mount.limen`.
pub(crate) const TYPE: &str = "limen";

/// The type of a mounted volume in mountinfo(5), which some people write into fstab.
const MOUNTED_TYPE: &str = "fuse.limen";

/// The fields of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) source: String,
    pub(crate) mountpoint: String,
    pub(crate) options: Vec<String>,
}

/// The new text of a file, and the line in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edited {
    pub(crate) text: String,
    pub(crate) line: String,
}

/// Adds the line of `entry` to the text of a file, or replaces the line of its mount point. A line that says
/// the same stays as it is. Options of a replaced line that are for other programs are kept, as are its last
/// two fields.
///
/// # Errors
/// A line has another file system at the mount point.
pub(crate) fn edit(text: &str, entry: &Entry) -> Result<Edited, CliError> {
    let mut kept = String::new();
    let mut line = None;
    for old in text.lines() {
        let fields: Vec<&str> = old.split_whitespace().collect();
        let [source, mountpoint, kind, rest @ ..] = &fields[..] else {
            kept.push_str(&format!("{old}\n"));
            continue;
        };
        if source.starts_with('#') || !is_same_path(&decode(mountpoint), &entry.mountpoint) {
            kept.push_str(&format!("{old}\n"));
            continue;
        }
        if ![TYPE, MOUNTED_TYPE].contains(kind) {
            return Err(CliError::new(format!("another file system is mounted at this mount point: {old}"))
                .advise("remove that line, or choose another mount point"));
        }
        // If several lines are for the mount point, only the first one stays.
        if line.is_some() {
            continue;
        }
        let new = rendered(entry, rest);
        let is_same = new.split_whitespace().eq(fields.iter().copied());
        let new = if is_same { old.to_owned() } else { new };
        kept.push_str(&format!("{new}\n"));
        line = Some(new);
    }
    let line = line.unwrap_or_else(|| {
        let new = rendered(entry, &[]);
        kept.push_str(&format!("{new}\n"));
        new
    });
    Ok(Edited { text: kept, line })
}

/// The line of `entry`. `old` has the fields of the present line from its options on.
fn rendered(entry: &Entry, old: &[&str]) -> String {
    let mut options = entry.options.clone();
    let old_options = old.first().copied().unwrap_or_default().split(',');
    for option in old_options.map(decode).filter(|option| has_no_effect(option) && option != "defaults") {
        if !options.contains(&option) {
            options.push(option);
        }
    }
    if options.is_empty() {
        options.push("defaults".to_owned());
    }
    let Entry { source, mountpoint, .. } = entry;
    let field = |at: usize| old.get(at).copied().unwrap_or("0");
    format!(
        "{} {} {TYPE} {} {} {}",
        encode(source),
        encode(mountpoint),
        encode(&options.join(",")),
        field(1),
        field(2)
    )
}

fn is_same_path(one: &str, other: &str) -> bool {
    let bare = |path: &str| match path.trim_end_matches('/') {
        "" => "/".to_owned(),
        path => path.to_owned(),
    };
    bare(one) == bare(other)
}

/// Writes characters that would end a field, and backslashes, as a backslash and three octal digits.
fn encode(field: &str) -> String {
    let mut encoded = String::new();
    for letter in field.chars() {
        match letter {
            ' ' | '\t' | '\n' | '\r' | '\\' => encoded.push_str(&format!("\\{:03o}", letter as u32)),
            _ => encoded.push(letter),
        }
    }
    // A line that begins with # would be a comment.
    if encoded.starts_with('#') { encoded.replacen('#', "\\043", 1) } else { encoded }
}

/// Undoes [`encode`], and the same encoding by other programs.
fn decode(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..3).filter(|digits| digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte)));
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                decoded.push(char::from(byte));
                decoded.push_str(&part[3..]);
            }
            None => {
                decoded.push('\\');
                decoded.push_str(part);
            }
        }
    }
    decoded
}

/// The text of a file of fstab(5); empty if it does not exist.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        text => text.what("cannot read the table of file systems").at(path.display()),
    }
}

/// Replaces a file atomically: a reader sees the old text or the new one, even after a crash. Owner and mode
/// stay the same.
///
/// # Errors
/// The directory or the file cannot be written. The file is unchanged, unless only the sync of the directory
/// failed.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), CliError> {
    // If the path is a link, replace the file to which it leads, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut part: OsString = path.clone().into_os_string();
    part.push(format!(".limen-{}", std::process::id()));
    let part = Path::new(&part);
    let written = write_part(&path, part, text).and_then(|()| fs::rename(part, &path));
    let synced = written.and_then(|()| match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    });
    synced
        .inspect_err(|_| {
            // If the removal fails too, a file that no program reads stays beside fstab.
            let _ = fs::remove_file(part);
        })
        .what("cannot change the table of file systems")
        .at(path.display())
        .advise("run the command as root")
}

fn write_part(path: &Path, part: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part)?;
    match fs::metadata(path) {
        Ok(old) => {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
            file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        Err(error) => return Err(error),
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: &str = "# a comment\nUUID=1 / ext4 errors=remount-ro 0 1\n\nnone /tmp tmpfs size=1G\n";

    fn entry(source: &str, mountpoint: &str, options: &[&str]) -> Entry {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Entry { source: source.to_owned(), mountpoint: mountpoint.to_owned(), options }
    }

    #[test]
    fn a_line_is_added_once() {
        let wanted = entry("redis://db.example/1?a=b&c=/d", "/mnt/a b", &["_netdev", "ro"]);
        let line = "redis://db.example/1?a=b&c=/d /mnt/a\\040b limen _netdev,ro 0 0";
        for text in [OTHERS, OTHERS.trim_end()] {
            let first = edit(text, &wanted).unwrap();
            assert_eq!(first, Edited { text: format!("{OTHERS}{line}\n"), line: line.to_owned() });
            assert_eq!(edit(&first.text, &wanted).unwrap(), first);
        }
        assert_eq!(edit("", &entry("mem://", "/m", &[])).unwrap().text, "mem:// /m limen defaults 0 0\n");
    }

    #[test]
    fn the_line_of_the_mount_point_is_replaced_where_it_is() {
        let old = "mem://\t/mnt/   limen  noauto,x-systemd.automount,rw,defaults 0 2\n";
        let again = "mem://x /mnt fuse.limen defaults\n";
        let text = format!("{old}# mem:// /mnt limen\n{OTHERS}{again}");
        let edited = edit(&text, &entry("sqlite:///v.db", "/mnt", &["ro", "noauto"])).unwrap();
        let line = "sqlite:///v.db /mnt limen ro,noauto,x-systemd.automount 0 2";
        assert_eq!(edited.text, format!("{line}\n# mem:// /mnt limen\n{OTHERS}"));
        assert_eq!(edited.line, line);
    }

    #[test]
    fn a_line_that_says_the_same_stays_as_it_is() {
        let text = format!("mem://a\t\t/mnt  limen\tro,nofail\t0  0\n{OTHERS}");
        assert_eq!(edit(&text, &entry("mem://a", "/mnt", &["ro"])).unwrap().text, text);
    }

    #[test]
    fn another_file_system_at_the_mount_point_is_refused() {
        let error = edit(OTHERS, &entry("mem://", "/tmp/", &[])).unwrap_err().to_string();
        assert!(error.contains("none /tmp tmpfs") && error.contains("another mount point"), "{error}");
    }

    #[test]
    fn fields_are_encoded_as_mount_reads_them() {
        for (field, encoded) in [
            ("/a b\tc\\d\n", "/a\\040b\\011c\\134d\\012"),
            ("#x#", "\\043x#"),
            ("postgres://u@h/db?x=y", "postgres://u@h/db?x=y"),
        ] {
            assert_eq!((encode(field).as_str(), decode(encoded).as_str()), (encoded, field));
        }
        assert_eq!(decode("a\\9\\04\\"), "a\\9\\04\\");
    }

    #[test]
    fn the_file_is_replaced_at_once_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("fstab"), dir.path().join("link"));
        replace(&path, "new\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, "newer\n").unwrap();
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.mode() & 0o7777, read(&path).unwrap().as_str()), (0o640, "newer\n"));
        assert_ne!(now.ino(), inode, "it is another file");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
        assert!(replace(Path::new("/proc/no/fstab"), "").unwrap_err().to_string().contains("as root"));
    }
}
