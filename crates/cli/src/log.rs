//! The log: to standard error or a file, filtered by the environment variable `LIMEN_LOG`, with times in UTC.

use std::env;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use command::fault::{Fault, OrFault};
use command::paths;
use tracing::Subscriber;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};
use types::Time;

const VARIABLE: &str = "LIMEN_LOG";

/// A log file larger than this is renamed to `NAME.1` before the next mount writes to it.
const ROTATE_BYTES: u64 = 16 << 20;

/// A part of the subscriber: the log, or the export of spans.
pub(crate) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging, to `file` or to standard error. `default` is the filter if `LIMEN_LOG` is not set. `spans` takes
/// the spans, if anything does.
///
/// # Errors
/// The filter in `LIMEN_LOG` is malformed.
pub(crate) fn init(default: &str, file: Option<File>, spans: Option<BoxedLayer>) -> Result<(), Fault> {
    let filter = env::var(VARIABLE).unwrap_or_else(|_| default.to_owned());
    subscriber(&filter, file, spans)?.init();
    Ok(())
}

/// The layers are a list, not nested, because of what they cost: a nested layer without a filter would let the
/// macros of `tracing` build every span and event, of all levels, before the log's filter drops it.
fn subscriber(filter: &str, file: Option<File>, spans: Option<BoxedLayer>) -> Result<impl Subscriber, Fault> {
    let filter = EnvFilter::try_new(filter)
        .usage()
        .at(format!("environment variable {VARIABLE}"))
        .advise("write e.g. info or vfs=debug")?;
    let writer = match file {
        Some(file) => BoxMakeWriter::new(Arc::new(file)),
        None => BoxMakeWriter::new(io::stderr),
    };
    let log = tracing_subscriber::fmt::layer()
        .with_timer(Utc)
        .with_ansi(false)
        .with_writer(writer)
        .with_filter(filter);
    Ok(tracing_subscriber::registry().with(spans.into_iter().chain([log.boxed()]).collect::<Vec<_>>()))
}

/// The default log file of a background mount: in `/var/log` for root, otherwise in the user's state
/// directory.
///
/// # Errors
/// The user has no state directory.
pub(crate) fn default_path(volume: &str) -> Result<PathBuf, Fault> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(format!("/var/log/limen-{volume}.log")));
    }
    let state = paths::state_directory().ok_or_else(|| {
        Fault::new("no default directory for the log: neither XDG_STATE_HOME nor HOME is set")
            .advise("name a file with --log")
    })?;
    Ok(state.join(format!("{volume}.log")))
}

/// Opens a log file for appending. Creates it and its directory if they do not exist.
///
/// # Errors
/// The directory or file cannot be created, renamed or opened.
pub(crate) fn open(path: &Path) -> Result<File, Fault> {
    let opened = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > ROTATE_BYTES) {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".1");
            fs::rename(path, aside)?;
        }
        OpenOptions::new().create(true).append(true).open(path)
    };
    opened().what("cannot write the log").at(path.display()).advise("name another file with --log")
}

/// The time format of the log: `2026-11-20T18:52:07.123Z`.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        let now = Time::now();
        let text = now.to_string().replacen(' ', "T", 1);
        write!(w, "{}.{:03}Z", text.trim_end_matches(" UTC"), now.nsec() / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use tracing::level_filters::LevelFilter;
    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::layer::Identity;

    use super::*;

    /// The highest level at which a span or an event is built at all.
    fn level(filter: &str, spans: Option<BoxedLayer>) -> LevelFilter {
        subscriber(filter, None, spans).unwrap().max_level_hint().unwrap_or(LevelFilter::TRACE)
    }

    #[test]
    fn what_the_filter_drops_is_not_built() {
        assert_eq!(level("off", None), LevelFilter::OFF);
        assert_eq!(level("info", None), LevelFilter::INFO);
        assert_eq!(level("info,vfs=debug", None), LevelFilter::DEBUG);
        let spans = || Identity::new().with_filter(filter_fn(|_| true)).boxed();
        assert_eq!(level("info", Some(spans())), LevelFilter::TRACE);
    }
}
