//! The error of a command: what failed, on which object, and what to do.

use std::error::Error;
use std::fmt;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Printed as `limen: WHAT: WHERE: WHAT TO DO`; parts that are empty are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    what: String,
    place: String,
    advice: String,
    code: u8,
    is_reported: bool,
}

impl Fault {
    pub fn new(what: impl fmt::Display) -> Self {
        Fault {
            what: what.to_string(),
            place: String::new(),
            advice: String::new(),
            code: FAILED,
            is_reported: false,
        }
    }

    /// The command line is wrong: exit code 2.
    pub fn usage(what: impl fmt::Display) -> Self {
        Fault { code: USAGE, ..Fault::new(what) }
    }

    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        Fault { place: place.to_string(), ..self }
    }

    #[must_use]
    pub fn advise(self, advice: impl fmt::Display) -> Self {
        Fault { advice: advice.to_string(), ..self }
    }

    /// Marks the error as already shown to the user, so that it is not printed again.
    #[must_use]
    pub fn mark_reported(self) -> Self {
        Fault { is_reported: true, ..self }
    }

    pub fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Sets an exit code that the command's help documents.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Fault { code, ..self }
    }

    /// 1 if the operation failed, 2 if the command line is wrong (like clap), or the code of
    /// [`Fault::with_code`].
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Fault {
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

/// `?` turns any error into a fault. For that reason [`Fault`] is not an [`Error`] itself.
impl<E: Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Fault::new(error)
    }
}

/// Converts the error of a result into a [`Fault`], and adds to the fault.
pub trait OrFault<T>: Sized {
    fn or_fault(self, change: impl FnOnce(Fault) -> Fault) -> Result<T, Fault>;

    /// Adds what failed: the message becomes `WHAT: ERROR`.
    ///
    /// # Errors
    /// The error of this result. The same holds for all functions of this trait.
    fn what(self, what: impl fmt::Display) -> Result<T, Fault> {
        self.or_fault(|fault| Fault { what: format!("{what}: {}", fault.what), ..fault })
    }

    /// Adds the object on which the operation failed.
    fn at(self, place: impl fmt::Display) -> Result<T, Fault> {
        self.or_fault(|fault| fault.at(place))
    }

    /// Adds what the user can do.
    fn advise(self, advice: impl fmt::Display) -> Result<T, Fault> {
        self.or_fault(|fault| fault.advise(advice))
    }

    /// Sets exit code 2: the command line is wrong.
    fn usage(self) -> Result<T, Fault> {
        self.or_fault(|fault| fault.with_code(USAGE))
    }
}

impl<T, E: Into<Fault>> OrFault<T> for Result<T, E> {
    fn or_fault(self, change: impl FnOnce(Fault) -> Fault) -> Result<T, Fault> {
        self.map_err(|error| change(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_parts_are_left_out() {
        assert_eq!(Fault::new("it failed").advise("try again").to_string(), "it failed: try again");
        let all = Fault::usage("no such option").at("-o x").advise("known are ro and rw");
        assert_eq!(all.to_string(), "no such option: -o x: known are ro and rw");
        assert_eq!((all.exit_code(), Fault::new("").exit_code()), (2, 1));
    }
}
