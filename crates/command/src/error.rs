//! The error of a command: what failed, on which object, and what to do.

use std::error::Error;
use std::fmt;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Printed as `limen: WHAT: WHERE: WHAT TO DO`; parts that are empty are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    what: String,
    place: String,
    advice: String,
    code: u8,
    is_reported: bool,
}

impl CliError {
    pub fn new(what: impl fmt::Display) -> Self {
        CliError {
            what: what.to_string(),
            place: String::new(),
            advice: String::new(),
            code: FAILED,
            is_reported: false,
        }
    }

    /// The command line is wrong: exit code 2.
    pub fn usage(what: impl fmt::Display) -> Self {
        CliError { code: USAGE, ..CliError::new(what) }
    }

    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        CliError { place: place.to_string(), ..self }
    }

    #[must_use]
    pub fn advise(self, advice: impl fmt::Display) -> Self {
        CliError { advice: advice.to_string(), ..self }
    }

    /// Marks the error as already shown to the user, so that it is not printed again.
    #[must_use]
    pub fn mark_reported(self) -> Self {
        CliError { is_reported: true, ..self }
    }

    pub fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Sets an exit code that the command's help documents.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        CliError { code, ..self }
    }

    /// 1 if the operation failed, 2 if the command line is wrong (like clap), or the code of
    /// [`CliError::with_code`].
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&self.what, &self.place, &self.advice];
        for (index, part) in parts.into_iter().filter(|part| !part.is_empty()).enumerate() {
            if index > 0 {
                f.write_str(": ")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

/// `?` turns any error into a [`CliError`], which for that reason is not an [`Error`] itself.
impl<E: Error> From<E> for CliError {
    fn from(error: E) -> Self {
        CliError::new(error)
    }
}

/// Converts the error of a result into a [`CliError`], and adds to it.
pub trait ErrorAt<T>: Sized {
    fn or_error(self, change: impl FnOnce(CliError) -> CliError) -> Result<T, CliError>;

    /// Adds what failed: the message becomes `WHAT: ERROR`.
    ///
    /// # Errors
    /// The error of this result. The same holds for all functions of this trait.
    fn what(self, what: impl fmt::Display) -> Result<T, CliError> {
        self.or_error(|error| CliError { what: format!("{what}: {}", error.what), ..error })
    }

    /// Adds the object on which the operation failed.
    fn at(self, place: impl fmt::Display) -> Result<T, CliError> {
        self.or_error(|error| error.at(place))
    }

    /// Adds what the user can do.
    fn advise(self, advice: impl fmt::Display) -> Result<T, CliError> {
        self.or_error(|error| error.advise(advice))
    }

    /// Sets exit code 2: the command line is wrong.
    fn usage(self) -> Result<T, CliError> {
        self.or_error(|error| error.with_code(USAGE))
    }
}

impl<T, E: Into<CliError>> ErrorAt<T> for Result<T, E> {
    fn or_error(self, change: impl FnOnce(CliError) -> CliError) -> Result<T, CliError> {
        self.map_err(|error| change(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_parts_are_left_out() {
        assert_eq!(CliError::new("it failed").advise("try again").to_string(), "it failed: try again");
        let all = CliError::usage("no such option").at("-o x").advise("known are ro and rw");
        assert_eq!(all.to_string(), "no such option: -o x: known are ro and rw");
        assert_eq!((all.exit_code(), CliError::new("").exit_code()), (2, 1));
    }
}
