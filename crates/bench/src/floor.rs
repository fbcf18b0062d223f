//! A private mount of a volume in memory, as a reference for the speed of FUSE on this machine at this
//! moment.

use std::env;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use command::error::{CliError, ErrorAt};
use command::output;

use crate::scratch::Scratch;

/// The mount. Dropping it unmounts it and removes its directory.
#[derive(Debug)]
pub(crate) struct Floor {
    // The scratch directory on the mount. It is dropped before the mount is unmounted.
    scratch: Option<Scratch>,
    dir: PathBuf,
}

impl Floor {
    /// Mounts the volume in a temporary directory.
    ///
    /// # Errors
    /// The mount fails.
    pub(crate) fn mount() -> Result<Self, CliError> {
        let dir = env::temp_dir().join(format!("limen-floor.{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir).at(dir.display())?;
        let mut floor = Floor { scratch: None, dir: dir.clone() };
        fs::create_dir(floor.mountpoint()).at(dir.display())?;
        let (log, mountpoint) = (floor.dir.join("log"), floor.mountpoint());
        let mut command = limen("mount");
        let output = command.args(["-d", "--log"]).arg(log).args(["--", "mem://floor"]).arg(&mountpoint);
        succeed(output.output()?)?;
        floor.scratch = Some(Scratch::make(&mountpoint)?);
        Ok(floor)
    }

    pub(crate) fn scratch(&self) -> Option<&Scratch> {
        self.scratch.as_ref()
    }

    fn mountpoint(&self) -> PathBuf {
        self.dir.join("mnt")
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.scratch = None;
        let mountpoint = self.mountpoint();
        let unmounted = limen("umount").arg("--").arg(&mountpoint).output();
        // Each file is removed by name and not recursively, so that no file of the volume is removed if the
        // volume is still mounted.
        let removed = [fs::remove_dir(&mountpoint), fs::remove_file(self.dir.join("log"))];
        let all = fs::remove_dir(&self.dir);
        if all.is_err() || removed.iter().any(Result::is_err) {
            let why = unmounted.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            output::note(format!(
                "cannot remove the mount in memory at {}: {}",
                mountpoint.display(),
                why.unwrap_or_else(|error| error.to_string()).trim()
            ));
        }
    }
}

fn limen(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).stdin(Stdio::null());
    command
}

fn succeed(output: Output) -> Result<(), CliError> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CliError::new("cannot mount a volume in memory").at(said.trim()))
}
