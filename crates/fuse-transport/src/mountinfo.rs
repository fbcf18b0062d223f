//! `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`): lists mounts without a request to their file systems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Major and minor of `st_dev`.
    pub dev: (u32, u32),
    pub mount_point: PathBuf,
    fs_type: Vec<u8>,
}

impl MountInfo {
    /// The mounts that a process sees; a later one hides earlier ones on the same mount point. `process` is
    /// `/proc/self` or the directory of another process.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn all(process: &Path) -> io::Result<Vec<Self>> {
        let all = fs::read(process.join("mountinfo"))?;
        Ok(all.split(|&b| b == b'\n').filter_map(parse).collect())
    }

    /// The topmost mount at exactly `path`.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        Ok(Self::all(Path::new("/proc/self"))?.into_iter().rfind(|info| info.mount_point == path))
    }

    pub(crate) fn is_limen(&self) -> bool {
        self.fs_type == crate::FS_TYPE.as_bytes()
    }
}

/// `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS...] - TYPE SOURCE SUPEROPTIONS`
fn parse(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|&b| b == b' ');
    let dev = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let mount_point = fields.nth(1)?;
    fields.find(|field| *field == b"-")?;
    Some(MountInfo {
        dev: (major.parse().ok()?, minor.parse().ok()?),
        mount_point: OsString::from_vec(unescape(mount_point)).into(),
        fs_type: unescape(fields.next()?),
    })
}

/// Space, tab, newline and backslash are written as a backslash and three octal digits (`mangle_path`).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|d| byte == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_tags_are_parsed() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 shared:2 - fuse.limen vol rw,errors=continue";
        let info = parse(line).unwrap();
        assert_eq!((info.dev, info.mount_point.to_str().unwrap()), ((98, 0), r"/mnt 2\x"));
        assert!(info.is_limen());
        let line = b"36 35 0:7 / /a rw - ext4 /dev/sda rw";
        assert!(!parse(line).unwrap().is_limen());
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:7 / /a rw shared:1"), None);
    }

    #[test]
    fn root_directory_is_a_mount() {
        assert!(MountInfo::at(Path::new("/")).unwrap().is_some());
        assert_eq!(MountInfo::at(Path::new("/no/such/mount")).unwrap(), None);
    }
}
