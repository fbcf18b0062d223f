//! The log: to standard error or a file, filtered by the environment variable `LIMEN_LOG`, with times in UTC.

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use command::error::{CliError, ErrorAt};
use command::paths;
use command::registry;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};
use types::Time;

const VARIABLE: &str = "LIMEN_LOG";

/// A log file larger than this is renamed to `NAME.1` when a process opens it.
const ROTATE_BYTES: u64 = 16 << 20;

/// A part of the subscriber: the log, or the export of spans.
pub(crate) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging, to `file` or to standard error. `default` is the filter if `LIMEN_LOG` is not set. `spans`
/// is the layer that exports spans, if there is one.
///
/// # Errors
/// The filter in `LIMEN_LOG` is malformed.
pub(crate) fn init(default: &str, file: Option<File>, spans: Option<BoxedLayer>) -> Result<(), CliError> {
    let filter = env::var(VARIABLE).unwrap_or_else(|_| default.to_owned());
    subscriber(&filter, file, spans)?.init();
    Ok(())
}

/// Creates the subscriber of the log and the spans. Its layers are in a list and not nested, because a nested
/// layer without a filter would let the macros of `tracing` build every span and event, of all levels, before
/// the log's filter drops it.
fn subscriber(
    filter: &str,
    file: Option<File>,
    spans: Option<BoxedLayer>,
) -> Result<impl Subscriber, CliError> {
    let filter = EnvFilter::try_new(filter)
        .usage()
        .at(format!("environment variable {VARIABLE}"))
        .advise("write e.g. info or vfs=debug")?;
    let writer = match file {
        Some(file) => BoxMakeWriter::new(Arc::new(file)),
        None => BoxMakeWriter::new(io::stderr),
    };
    let form = Format::default().with_timer(Utc).with_ansi(false);
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .event_format(Counted { form, repeats: Repeats::default() })
        .with_writer(writer)
        .with_filter(filter);
    Ok(tracing_subscriber::registry().with(spans.into_iter().chain([log.boxed()]).collect::<Vec<_>>()))
}

/// A problem that lasts is logged when it begins, and then once in this time.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// A problem that did not occur for this long has ended. Most work is retried at least every five seconds.
const ENDED_AFTER: Duration = Duration::from_secs(15);

/// The problems that last: each place in the program that has logged a warning or error about something that
/// is retried.
#[derive(Clone, Debug, Default)]
struct Repeats(Arc<Mutex<HashMap<Identifier, Repeat>>>);

#[derive(Clone, Copy, Debug)]
struct Repeat {
    shown: Instant,
    seen: Instant,
    /// Lines that were left out since `shown`.
    left_out: u64,
}

impl Repeats {
    /// Whether a line of this place is shown now. Counts a line that is not shown.
    fn admit(&self, place: &Identifier, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(place) {
            Some(known) => {
                let is_over = now.duration_since(known.seen) >= ENDED_AFTER;
                known.seen = now;
                if is_over {
                    known.left_out = 0;
                }
                if !is_over && now.duration_since(known.shown) < REPEAT_AFTER {
                    known.left_out += 1;
                    return false;
                }
                known.shown = now;
                true
            }
            None => {
                all.insert(place.clone(), Repeat { shown: now, seen: now, left_out: 0 });
                true
            }
        }
    }

    /// How many lines of this place were left out before the one that is written now.
    fn take_left_out(&self, place: &Identifier) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(place).map_or(0, |known| std::mem::take(&mut known.left_out))
    }
}

/// Whether an event says that something is retried. The same event then follows until a retry succeeds.
#[derive(Debug, Default)]
struct IsRetried(bool);

impl Visit for IsRetried {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let text = format!("{value:?}");
            self.0 = text.ends_with("retrying") || text == "the metadata engine failed";
        }
    }
}

impl Repeats {
    /// Whether a line for this event is left out.
    fn leave_out(&self, event: &Event<'_>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return false;
        }
        let mut retried = IsRetried::default();
        event.record(&mut retried);
        retried.0 && !self.admit(&event.metadata().callsite(), Instant::now())
    }
}

/// The usual form of a line, and after it the number of lines that were left out before.
///
/// Lines are left out here, by writing nothing. A filter could not do that: if the only filter of a
/// subscriber rejects an event late, in `event_enabled`, the next event of another place is dropped too.
#[derive(Debug)]
struct Counted {
    form: Format<Full, Utc>,
    repeats: Repeats,
}

impl<S, N> FormatEvent<S, N> for Counted
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.repeats.leave_out(event) {
            return Ok(());
        }
        let left_out = self.repeats.take_left_out(&event.metadata().callsite());
        if left_out == 0 {
            return self.form.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.form.format_event(context, Writer::new(&mut line), event)?;
        writeln!(writer, "{} left_out={left_out}", line.trim_end())
    }
}

/// The default log file of a background mount: in `/var/log` for root, otherwise in the user's state
/// directory. Its name gets a number if another mount, of this volume or of one with the same name, already
/// writes to the file without a number.
///
/// # Errors
/// The user has no state directory.
pub(crate) fn default_path(volume: &str) -> Result<PathBuf, CliError> {
    let used: Vec<PathBuf> = registry::all()
        .into_iter()
        .filter(|entry| entry.process.is_alive())
        .filter_map(|entry| entry.log)
        .collect();
    let first = unnumbered_path(volume)?;
    let numbered = (2..).map(|number| first.with_extension(format!("{number}.log")));
    let free = iter::once(first.clone()).chain(numbered).find(|path| !used.contains(path));
    Ok(free.unwrap_or(first))
}

fn unnumbered_path(volume: &str) -> Result<PathBuf, CliError> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(format!("/var/log/limen-{volume}.log")));
    }
    let state = paths::state_directory().ok_or_else(|| {
        CliError::new("no default directory for the log: neither XDG_STATE_HOME nor HOME is set")
            .advise("name a file with --log")
    })?;
    Ok(state.join(format!("{volume}.log")))
}

/// Opens the log file of a background mount again, after log rotation has renamed it. The file is the
/// standard error of the process.
///
/// # Errors
/// Those of [`open`].
pub(crate) fn reopen(path: &Path) -> Result<(), CliError> {
    let file = open(path)?;
    rustix::stdio::dup2_stderr(&file).what("cannot write the log").at(path.display())
}

/// Opens a log file for appending. Creates it and its directory if they do not exist.
///
/// # Errors
/// The directory or file cannot be created, renamed or opened.
pub(crate) fn open(path: &Path) -> Result<File, CliError> {
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
#[derive(Debug)]
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
    fn a_problem_that_lasts_is_logged_once_a_minute() {
        let repeats = Repeats::default();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (form, to) = (Format::default().with_timer(Utc).with_ansi(false), Arc::clone(&written));
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(Counted { form, repeats: repeats.clone() })
            .with_writer(move || Sink(Arc::clone(&to)))
            .with_filter(EnvFilter::new("info"));
        let begin = Instant::now();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let fail = || tracing::warn!(n = 1, "it fails; retrying");
            for _ in 0..5 {
                fail();
                tracing::warn!("another problem");
            }
            // Pretend that the problem has lasted for a minute.
            let ago = |secs: u64| begin.checked_sub(Duration::from_secs(secs)).unwrap();
            for known in repeats.0.lock().unwrap().values_mut() {
                (known.shown, known.seen) = (ago(61), ago(1));
            }
            fail();
            fail();
        });
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let count = |part: &str| text.matches(part).count();
        assert_eq!((count("it fails;"), count("another problem")), (2, 5), "{text}");
        assert!(text.ends_with("retrying n=1 left_out=4\n"), "{text}");
    }

    #[test]
    fn lines_left_out_are_counted_until_the_problem_ends() {
        let repeats = Repeats::default();
        let place = tracing::callsite!(name: "place", kind: tracing::metadata::Kind::EVENT, fields: message);
        let place = tracing::Callsite::metadata(place).callsite();
        let begin = Instant::now();
        let shown = |secs: u64| repeats.admit(&place, begin + Duration::from_secs(secs));
        let every_five: Vec<u64> = (0..=130).step_by(5).filter(|&secs| shown(secs)).collect();
        assert_eq!(every_five, [0, 60, 120]);
        assert_eq!(repeats.take_left_out(&place), 24);
        assert!(shown(150), "the problem had ended");
        assert!(!shown(151));
    }

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn spans_and_events_that_the_filter_drops_are_not_built() {
        assert_eq!(level("off", None), LevelFilter::OFF);
        assert_eq!(level("info", None), LevelFilter::INFO);
        assert_eq!(level("info,vfs=debug", None), LevelFilter::DEBUG);
        let spans = || Identity::new().with_filter(filter_fn(|_| true)).boxed();
        assert_eq!(level("info", Some(spans())), LevelFilter::TRACE);
    }
}
