//! The benchmark of `limen mdtest`: metadata operations directly on the engine and the object store, without
//! a mount.
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | what to measure |
//! | `tree` | the directories and files, and each operation on them |
//! | `load`, `histogram` | many threads, and their times |
//! | `phase` | one kind of operation on the whole tree, with its counters |
//! | `report` | the results as text and JSON |

mod histogram;
pub(crate) mod load;
mod options;
mod phase;
mod report;
mod tree;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use acl::credential::Credentials;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output;
use command::process::host_name;
use rustix::process::{getegid, geteuid};
use types::{Caps, Cred, Ino};
use vfs::{Caller, Coherence, Identity, Kernel, SessionInfo, Vfs};

pub use self::options::{Counters, OpenVolume, Options};
use self::phase::Sample;
use self::report::Report;
use self::tree::{Top, Tree, join};

/// How long to wait until the engine's stream of other clients' changes works. After that, the benchmark
/// begins without the stream.
const WATCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the benchmark in a session of its own, and prints its results.
///
/// # Errors
/// The tree would be too large; an operation fails; the user interrupted the command.
pub fn run(volume: &OpenVolume, options: &Options, interrupt: &Interrupt) -> Result<(), CliError> {
    let levels = options.shape.levels()?;
    let samples = in_session(volume, options, || work(volume, options, levels, interrupt))?;
    Report { options, volume, samples: &samples }.print()
}

/// Runs `work` in a session like that of a mount, with its housekeeping and its stream of other clients'
/// changes.
fn in_session<T>(
    volume: &OpenVolume,
    options: &Options,
    work: impl FnOnce() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let OpenVolume { vfs, url, .. } = volume;
    let session = SessionInfo {
        host: host_name(),
        pid: std::process::id(),
        mountpoint: join("limen mdtest ", options.dir.trim_start_matches('/')),
    };
    vfs.lifecycle.begin(session).what("cannot begin the session").at(url)?;
    let started = vfs.lifecycle.start_threads().and_then(|()| vfs.caches.start_watching(Arc::new(NoKernel)));
    let done = started.as_ref().map_err(CliError::new).what("cannot start a thread").at(url).and_then(|_| {
        wait_for_watch(vfs);
        work()
    });
    let ended = vfs.lifecycle.end().what("cannot end the session").at(url);
    for thread in started.unwrap_or_default() {
        // The thread returns no result.
        let _ = thread.join();
    }
    let done = done?;
    ended.map(|()| done)
}

/// Waits until the stream of other clients' changes works, so that cached records are valid from the start.
fn wait_for_watch(vfs: &Vfs) {
    let begun = Instant::now();
    while vfs.caches.coherence() == Coherence::Polling {
        if begun.elapsed() > WATCH_TIMEOUT {
            return output::note(
                "no notifications of other clients' changes: cached records are used for half a second only",
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Creates the tree, runs the phases, and removes the tree, even after a failure.
fn work(
    volume: &OpenVolume,
    options: &Options,
    levels: Vec<u64>,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, CliError> {
    let vfs = &*volume.vfs;
    // A user with access to the database can change everything, so no permission is checked.
    let cred = Cred::new(geteuid().as_raw(), getegid().as_raw(), &[], Caps::ALL);
    let credential = Credentials::new(1).intern(&cred, &[]);
    let caller = Caller::known(Identity { credential, caps: Caps::ALL });
    let top = Top::make(vfs, &caller, &options.dir)?;
    let tree = Tree::new(vfs, &caller, &top, options.shape, levels, options.write);
    let samples = phase::all(&tree, options.threads, options.keep, &volume.counters, interrupt);
    if options.keep {
        return samples;
    }
    if samples.is_err()
        && let Err(error) = phase::clear(&tree, options.threads)
    {
        output::note(format!("the tree is not removed completely: {error}"));
        return samples;
    }
    let removed = top.remove(vfs, &caller);
    let samples = samples?;
    removed.map(|()| samples)
}

/// A kernel without caches.
#[derive(Debug)]
struct NoKernel;

impl Kernel for NoKernel {
    fn invalidate_attributes(&self, _: Ino) {}

    fn invalidate_content(&self, _: Ino) {}

    fn invalidate_content_then(&self, _: Ino, then: Box<dyn FnOnce() + Send>) {
        then();
    }

    fn invalidate_range(&self, _: Ino, _: u64, _: u64) {}

    fn expire_name(&self, _: Ino, _: &[u8]) {}

    fn expire_directory(&self, _: Ino) {}
    fn expire_all(&self) {}

    fn can_expire_names(&self) -> bool {
        true
    }

    fn sends_forget(&self) -> bool {
        false
    }
}
