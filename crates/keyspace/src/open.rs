//! Whether a store holds a volume that this limen can use.

use std::fmt::Display;

use meta::EngineError;

use crate::keys::LAYOUT_VERSION;

/// Why a volume on a key-value store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no volume under the prefix '{0}': make one with limen format")]
    Missing(String),
    #[error(
        "the volume has layout version {found}, and this limen knows versions up to {known}: use the limen that wrote it, or a newer one"
    )]
    Newer { found: u32, known: u32 },
    #[error("what stands under the prefix '{0}' is not of limenfs")]
    NotLimenfs(String),
    /// Something in the URL cannot be, or this machine lacks what it takes.
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl OpenError {
    pub fn config(what: impl Display) -> Self {
        OpenError::Config(what.to_string())
    }
}

/// Judges what stands under [`Keyspace::version`](crate::Keyspace::version), and says whether the version has to be
/// written there now, which is so where there is none and `create` says so.
///
/// # Errors
/// [`OpenError::Missing`], [`OpenError::Newer`], [`OpenError::NotLimenfs`].
pub fn check_version(found: Option<&[u8]>, prefix: &str, create: bool) -> Result<bool, OpenError> {
    let Some(value) = found else {
        return if create { Ok(true) } else { Err(OpenError::Missing(prefix.to_owned())) };
    };
    match str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
        Some(found) if found <= LAYOUT_VERSION => Ok(false),
        Some(found) => Err(OpenError::Newer { found, known: LAYOUT_VERSION }),
        None => Err(OpenError::NotLimenfs(prefix.to_owned())),
    }
}
