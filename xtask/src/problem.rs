//! A broken rule.

use std::fmt;

/// A broken rule: where, what, and how to fix it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The path relative to the top of the checkout, with `:line` if there is one.
    pub(crate) place: String,
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_prints_place_what_and_remedy() {
        let problem = Problem { place: "crates/a/src/b.rs:3".into(), what: "x".into(), remedy: "do y" };
        assert_eq!(problem.to_string(), "crates/a/src/b.rs:3: x; do y");
    }
}
