//! The archive: a gzipped tar file (`ustar`, POSIX.1-1988) of texts, from which secrets are removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use command::error::{CliError, ErrorAt};
use flate2::Compression;
use flate2::write::GzEncoder;
use types::{Time, counted};

use super::redact::Secrets;

/// A longer part is truncated to this length.
const MAX_PART_BYTES: usize = 8 << 20;

const BLOCK_BYTES: usize = 512;

/// An archive that is being written.
pub(crate) struct Archive {
    path: PathBuf,
    file: GzEncoder<File>,
    secrets: Secrets,
    index: String,
    parts: u64,
    missing: u64,
    is_finished: bool,
}

/// The archive that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) parts: u64,
    pub(crate) missing: u64,
    pub(crate) bytes: u64,
}

impl Archive {
    /// # Errors
    /// The file exists, or cannot be created.
    pub(crate) fn create(path: &Path, secrets: Secrets) -> Result<Self, CliError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file =
            file.what("cannot create the archive").at(path.display()).advise("name another file with -o")?;
        let index =
            format!("limen debug of {}. Secrets are replaced by {}.\n\n", Time::now(), Secrets::REMOVED);
        Ok(Archive {
            path: path.to_owned(),
            file: GzEncoder::new(file, Compression::default()),
            secrets,
            index,
            parts: 0,
            missing: 0,
            is_finished: false,
        })
    }

    /// Adds a part. If there is none, adds the reason to the index.
    ///
    /// # Errors
    /// The archive cannot be written. The same holds for [`Archive::finish`].
    pub(crate) fn add(&mut self, name: &str, text: Result<String, String>) -> Result<(), CliError> {
        match text {
            Ok(text) => {
                let mut text = self.secrets.remove_from(&text);
                text.truncate(text.floor_char_boundary(MAX_PART_BYTES));
                self.index.push_str(&format!("{name}: {}\n", counted(text.len(), "byte", "bytes")));
                self.parts += 1;
                self.write(name, &text)
            }
            Err(reason) => {
                let reason = self.secrets.remove_from(reason.trim());
                self.index.push_str(&format!("{name}: missing: {}\n", reason.replace('\n', " ")));
                self.missing += 1;
                Ok(())
            }
        }
    }

    pub(crate) fn finish(mut self) -> Result<Done, CliError> {
        let index = std::mem::take(&mut self.index);
        self.write("index.txt", &index)?;
        let end = self.file.write_all(&[0; 2 * BLOCK_BYTES]).and_then(|()| self.file.try_finish());
        end.and_then(|()| self.file.get_ref().sync_all()).or_error(|error| self.failed(error))?;
        self.is_finished = true;
        let bytes = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        Ok(Done { parts: self.parts, missing: self.missing, bytes })
    }

    fn write(&mut self, name: &str, text: &str) -> Result<(), CliError> {
        let written = append(&mut self.file, name, text.as_bytes(), Time::now().sec());
        written.or_error(|error| self.failed(error))
    }

    fn failed(&self, error: CliError) -> CliError {
        CliError::new(format!("cannot write the archive: {error}"))
            .at(self.path.display())
            .advise("name a file on another disk with -o")
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if !self.is_finished {
            // The command has failed, and reports that error, not one of the removal.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Appends a file to a tar archive. The name is shorter than 100 bytes.
fn append(to: &mut impl Write, name: &str, bytes: &[u8], time: i64) -> io::Result<()> {
    let mut header = [0; BLOCK_BYTES];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", bytes.len()));
    put(136, &format!("{time:011o}\0"));
    // The checksum is computed with spaces in its place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    to.write_all(&header)?;
    to.write_all(bytes)?;
    to.write_all(&[0; BLOCK_BYTES][..bytes.len().next_multiple_of(BLOCK_BYTES) - bytes.len()])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar.gz");
        let mut archive = Archive::create(&path, Secrets::of([("LIMEN_KEY", "s3cret")])).unwrap();
        archive.add("one.txt", Ok("the s3cret\n".to_owned())).unwrap();
        archive.add("two/empty.txt", Ok(String::new())).unwrap();
        archive.add("two/long.txt", Ok("x".repeat(MAX_PART_BYTES + 1))).unwrap();
        archive.add("two/none.txt", Err("no s3cret\nhere\n".to_owned())).unwrap();
        let done = archive.finish().unwrap();
        assert_eq!((done.parts, done.missing), (3, 1));
        assert!(Archive::create(&path, Secrets::default()).is_err(), "no file is overwritten");
        let tar = Command::new("tar").arg("-xzf").arg(&path).current_dir(dir.path()).status().unwrap();
        assert!(tar.success());
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("one.txt"), "the [removed]\n");
        assert_eq!((read("two/empty.txt").len(), read("two/long.txt").len()), (0, MAX_PART_BYTES));
        let index = read("index.txt");
        assert!(index.contains("one.txt: 14 bytes\n"), "{index}");
        assert!(index.contains("two/none.txt: missing: no [removed] here\n"), "{index}");
    }

    #[test]
    fn an_archive_that_fails_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar.gz");
        drop(Archive::create(&path, Secrets::default()).unwrap());
        assert!(!path.exists());
    }
}
