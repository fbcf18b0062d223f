//! Rule for the names of types: a name that is public in one crate is public in no other crate, so that it
//! has one meaning in the project. The names in [`SHARED`] are excepted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::problem::Problem;
use crate::source::{Masked, is_test_file, lines_before_tests};

/// Names that several crates have, sorted. Such a name means the same in each layer, for example a request of
/// the kernel and the operation that serves it, or the name of its crate makes clear what the type is.
const SHARED: &[&str] = &[
    "Activity",
    "Attr",
    "Caller",
    "CopyRange",
    "Counters",
    "Counts",
    "Difference",
    "DirEntry",
    "Entry",
    "Failure",
    "Fault",
    "Header",
    "Kind",
    "Line",
    "Link",
    "Listing",
    "Live",
    "LockRequest",
    "Malformed",
    "OpenError",
    "Operation",
    "Options",
    "Process",
    "Query",
    "Reader",
    "Request",
    "RequestMeter",
    "Secret",
    "SetAttr",
    "SetXattr",
    "Size",
    "Source",
    "StatFs",
    "Store",
    "StoreKind",
    "StoreOptions",
    "Table",
    "UrlError",
    "Write",
    "Writer",
    "Written",
    "Xattrs",
];

const ITEMS: &[&str] = &["pub struct ", "pub enum ", "pub trait ", "pub type "];

/// The public types of all crates: for each name, the files that define it, by crate.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, BTreeMap<String, String>>);

impl Names {
    /// Adds the types that a file defines outside of its modules and functions; `place` is the path to print.
    pub(crate) fn add(&mut self, crate_name: &str, place: &str, inside: &Path, text: &str) {
        if is_test_file(inside) || !inside.starts_with("src") {
            return;
        }
        let code = Masked::new(text).code;
        for (number, line) in (1..).zip(code.lines().take(lines_before_tests(text))) {
            let Some(rest) = ITEMS.iter().find_map(|item| line.strip_prefix(item)) else { continue };
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let crates = self.0.entry(name.to_owned()).or_default();
            crates.entry(crate_name.to_owned()).or_insert_with(|| format!("{place}:{number}"));
        }
    }

    pub(crate) fn check(&self) -> Vec<Problem> {
        self.check_except(SHARED)
    }

    fn check_except(&self, shared: &[&str]) -> Vec<Problem> {
        let several = |(name, crates): (&String, &BTreeMap<String, String>)| {
            let places: Vec<&str> = crates.values().map(String::as_str).collect();
            (places.len() > 1).then(|| (name.clone(), places.join(", ")))
        };
        let found: BTreeMap<String, String> = self.0.iter().filter_map(several).collect();
        let known: BTreeSet<&str> = shared.iter().copied().collect();
        let new = found.iter().filter(|(name, _)| !known.contains(name.as_str())).map(|(name, places)| Problem {
            place: places.clone(),
            what: format!("several crates have a public type `{name}`"),
            remedy: "rename one by what it holds; if both mean the same, add the name to xtask/src/names.rs",
        });
        let old = known.iter().filter(|name| !found.contains_key(**name)).map(|name| Problem {
            place: "xtask/src/names.rs".into(),
            what: format!("`{name}` is listed, but not public in several crates"),
            remedy: "remove it from the list",
        });
        new.chain(old).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[(&str, &str, &str)]) -> Names {
        let mut names = Names::default();
        for (crate_name, inside, text) in files {
            names.add(crate_name, &format!("{crate_name}/{inside}"), Path::new(inside), text);
        }
        names
    }

    #[test]
    fn name_of_two_crates_is_found() {
        let names =
            names(&[("a", "src/x.rs", "\npub struct Same<'a>;\n"), ("b", "src/y.rs", "pub enum Same {}\n")]);
        let problems = names.check_except(&[]);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].place, "a/src/x.rs:2, b/src/y.rs:1");
        assert_eq!(names.check_except(&["Same"]), []);
    }

    #[test]
    fn private_types_tests_and_one_crate_may_repeat_a_name() {
        let names = names(&[
            ("a", "src/x.rs", "pub struct Same;\npub struct Other;\n"),
            ("a", "src/y.rs", "pub struct Same;\n"),
            ("b", "src/x.rs", "struct Same;\npub(crate) struct Other;\n// pub struct Same;\n"),
            ("b", "src/tests.rs", "pub struct Same;\n"),
            ("b", "tests/z.rs", "pub struct Same;\n"),
            ("c", "src/x.rs", "#[cfg(test)]\nmod tests {\npub struct Same;\n}\n"),
        ]);
        assert_eq!(names.check_except(&[]), []);
    }

    #[test]
    fn listed_name_without_a_second_type_is_found() {
        assert_eq!(names(&[("a", "src/x.rs", "pub struct Once;\n")]).check_except(&["Once"]).len(), 1);
    }
}
