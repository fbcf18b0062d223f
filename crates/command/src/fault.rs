//! The error of a command: what failed, on which object, and what to do.

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
    told: bool,
}

impl Fault {
    pub fn new(what: impl fmt::Display) -> Self {
        Fault {
            what: what.to_string(),
            place: String::new(),
            advice: String::new(),
            code: FAILED,
            told: false,
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
    pub fn told(self) -> Self {
        Fault { told: true, ..self }
    }

    pub fn is_told(&self) -> bool {
        self.told
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

impl From<fuse::Error> for Fault {
    fn from(error: fuse::Error) -> Self {
        Fault::new(error)
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
