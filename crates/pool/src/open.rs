//! Checks whether a volume exists, and whether this limen supports the version of its layout.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meta::EngineError;

/// Why a volume on a server could not be opened. No message contains a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is invalid, or this machine cannot use it: a file is missing, or a thread cannot be started.
    #[error("{0}")]
    Config(String),
    #[error("there is no volume {0}: create one with limen format")]
    Missing(String),
    #[error("the data {0} does not belong to limenfs: use another table_prefix or database")]
    NotLimenfs(String),
    #[error(
        "the volume {location} has layout version {found}, and this limen supports versions up to {known}: use the limen that wrote it, or a newer one"
    )]
    Newer { location: String, found: u64, known: u64 },
    #[error(
        "the volume {location} has layout version {found}, and this limen supports only version {known}: copy its files out with the limen that wrote it"
    )]
    Older { location: String, found: u64, known: u64 },
    #[error(
        "the volume {0} has the layout of an earlier limen, which still uses it: unmount it everywhere, and try again three minutes later"
    )]
    InUse(String),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl OpenError {
    pub fn config(what: impl ToString) -> Self {
        OpenError::Config(what.to_string())
    }
}

/// Checks the stored version of the layout, which is in decimal digits. Returns whether the caller must write
/// it, because there is none and `create` is set. `location` is, for example, "at redis://host".
///
/// # Errors
/// [`OpenError::Missing`], [`OpenError::NotLimenfs`], [`OpenError::Newer`], [`OpenError::Older`].
pub fn check_version(
    found: Option<&[u8]>,
    known: u64,
    location: &str,
    create: bool,
) -> Result<bool, OpenError> {
    let Some(digits) = found else {
        return if create { Ok(true) } else { Err(OpenError::Missing(location.to_owned())) };
    };
    match str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()) {
        Some(found) if found == known => Ok(false),
        Some(found) if found < known => Err(OpenError::Older { location: location.to_owned(), found, known }),
        Some(found) => Err(OpenError::Newer { location: location.to_owned(), found, known }),
        None => Err(OpenError::NotLimenfs(location.to_owned())),
    }
}

/// The functions that read a volume's layout, write it, and convert it from the previous version.
#[derive(Debug)]
pub struct Layout<V, M, H, U> {
    /// Reads the stored version, in decimal digits.
    pub version: V,
    /// Writes the layout.
    pub make: M,
    /// Reads the latest heartbeat of all sessions, in nanoseconds since 1970.
    pub heartbeat: H,
    /// Converts the layout from the previous version. Afterwards, clients of that version must not be able to
    /// change anything. If the conversion is interrupted, it can be repeated.
    pub upgrade: U,
}

/// Checks the stored version. Writes the layout if there is none and `create` is set, and converts a layout
/// of the previous version. After that it checks the version again, because another limen may have done the
/// same at the same time.
///
/// # Errors
/// Those of [`check_version`] and of the functions of `layout`; [`OpenError::InUse`] if the layout is of the
/// previous version and a session seems to be alive. The check of the sessions only protects against
/// mistakes, because the clocks of machines may differ.
pub fn ensure_version<V, M, H, U>(
    known: u64,
    location: &str,
    create: bool,
    layout: Layout<V, M, H, U>,
) -> Result<(), OpenError>
where
    V: Fn() -> Result<Option<Vec<u8>>, EngineError>,
    M: FnOnce() -> Result<(), EngineError>,
    H: FnOnce() -> Result<Option<i64>, EngineError>,
    U: FnOnce() -> Result<(), EngineError>,
{
    let Layout { version, make, heartbeat, upgrade } = layout;
    let done = match check_version(version()?.as_deref(), known, location, create) {
        Ok(false) => return Ok(()),
        Ok(true) => make(),
        Err(OpenError::Older { found, .. }) if found + 1 == known => {
            if heartbeat()?.is_some_and(is_recent) {
                return Err(OpenError::InUse(location.to_owned()));
            }
            upgrade()
        }
        Err(error) => return Err(error),
    };
    let checked = check_version(version()?.as_deref(), known, location, false);
    // If another client has written or converted the layout, the failure of `make` or `upgrade` does not
    // matter.
    if checked.is_err() {
        done?;
    }
    checked.map(drop)
}

/// If a session was not renewed for this long, it counts as dead. This is twice the time after which mounts
/// remove a session.
const SILENT: Duration = Duration::from_secs(180);

fn is_recent(heartbeat: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos().abs_diff(heartbeat.max(0).unsigned_abs().into()) < SILENT.as_nanos()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_absent_volume_is_created_and_a_newer_one_is_refused() {
        let check = |found: Option<&str>, create| check_version(found.map(str::as_bytes), 3, "at x", create);
        assert!(check(None, true).unwrap());
        assert!(matches!(check(None, false), Err(OpenError::Missing(location)) if location == "at x"));
        assert!(!check(Some("3"), true).unwrap());
        assert!(matches!(check(Some("4"), true), Err(OpenError::Newer { found: 4, known: 3, .. })));
        assert!(matches!(check(Some("3a"), true), Err(OpenError::NotLimenfs(_))));
    }

    #[test]
    fn the_version_before_is_converted_unless_it_is_in_use() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64;
        let ensure = |found: &'static str, heartbeat, works: bool| {
            let stored = Cell::new(found);
            let failure = || Err(EngineError::permanent("it failed"));
            let upgraded = || {
                stored.set("3");
                Ok(())
            };
            let layout = Layout {
                version: || Ok(Some(stored.get().as_bytes().to_vec())),
                make: || panic!("there is a layout"),
                heartbeat: || Ok(heartbeat),
                upgrade: || if works { upgraded() } else { failure() },
            };
            (ensure_version(3, "at x", true, layout), stored.get())
        };
        assert!(matches!(ensure("2", None, true), (Ok(()), "3")));
        assert!(matches!(ensure("2", Some(now - 181_000_000_000), true), (Ok(()), "3")));
        assert!(matches!(ensure("2", Some(now - 100_000_000_000), true), (Err(OpenError::InUse(_)), "2")));
        assert!(matches!(ensure("2", None, false), (Err(OpenError::Engine(_)), "2")));
        assert!(matches!(ensure("1", None, true), (Err(OpenError::Older { found: 1, .. }), "1")));
        assert!(matches!(ensure("4", None, true), (Err(OpenError::Newer { .. }), "4")));
    }
}
