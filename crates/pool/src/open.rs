//! Checks whether a volume exists, and whether this limen supports the version of its layout.

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
        "the volume {place} has layout version {found}, and this limen supports versions up to {known}: use the limen that wrote it, or a newer one"
    )]
    Newer { place: String, found: u64, known: u64 },
    #[error(
        "the volume {place} has layout version {found}, and this limen supports only version {known}: copy its files out with the limen that wrote it"
    )]
    Older { place: String, found: u64, known: u64 },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl OpenError {
    pub fn config(what: impl ToString) -> Self {
        OpenError::Config(what.to_string())
    }
}

/// Checks the stored version of the layout, which is in decimal digits. Returns whether the caller must write
/// it, because there is none and `create` is set. `place` is, for example, "at redis://host".
///
/// # Errors
/// [`OpenError::Missing`], [`OpenError::NotLimenfs`], [`OpenError::Newer`], [`OpenError::Older`].
pub fn check_version(found: Option<&[u8]>, known: u64, place: &str, create: bool) -> Result<bool, OpenError> {
    let Some(digits) = found else {
        return if create { Ok(true) } else { Err(OpenError::Missing(place.to_owned())) };
    };
    match str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()) {
        Some(found) if found == known => Ok(false),
        Some(found) if found < known => Err(OpenError::Older { place: place.to_owned(), found, known }),
        Some(found) => Err(OpenError::Newer { place: place.to_owned(), found, known }),
        None => Err(OpenError::NotLimenfs(place.to_owned())),
    }
}

/// Checks the stored version, and calls `make` if there is none and `create` is set. Checks again after that,
/// because a newer limen may have created the volume at the same time.
///
/// # Errors
/// Those of [`check_version`], `version` and `make`.
pub fn ensure_version(
    known: u64,
    place: &str,
    create: bool,
    version: impl Fn() -> Result<Option<Vec<u8>>, EngineError>,
    make: impl FnOnce() -> Result<(), EngineError>,
) -> Result<(), OpenError> {
    if check_version(version()?.as_deref(), known, place, create)? {
        make()?;
        check_version(version()?.as_deref(), known, place, false)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_volume_is_created_and_a_newer_one_is_refused() {
        let check = |found: Option<&str>, create| check_version(found.map(str::as_bytes), 3, "at x", create);
        assert!(check(None, true).unwrap());
        assert!(matches!(check(None, false), Err(OpenError::Missing(place)) if place == "at x"));
        assert!(!check(Some("3"), true).unwrap());
        assert!(matches!(check(Some("4"), true), Err(OpenError::Newer { found: 4, known: 3, .. })));
        assert!(matches!(check(Some("3a"), true), Err(OpenError::NotLimenfs(_))));
    }
}
