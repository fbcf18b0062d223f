//! Rules for Markdown files: the files and tests that they name exist, and no table contains a row twice,
//! which a merge of two branches can cause. ARCHITECTURE.md has a maximum length.

use std::collections::BTreeSet;

use crate::problem::Problem;
use crate::source::has_word;

/// A code span that begins with one of these is a path from the top of the checkout.
const FOLDERS: &[&str] = &["crates/", "docs/", "scripts/", "tests/", "xtask/"];

/// A file that a newcomer reads as a whole, and its maximum number of lines.
const LINES_MAX: (&str, usize) = ("ARCHITECTURE.md", 199);

/// Checks a Markdown file. `place` is the path to print. `read` returns the text of a file of the checkout,
/// an empty text for a folder, and `None` if there is no such file.
pub(crate) fn check(place: &str, text: &str, mut read: impl FnMut(&str) -> Option<String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (file, most) = LINES_MAX;
    if place == file && text.lines().count() > most {
        let what = format!("{} lines, the limit is {most}", text.lines().count());
        problems.push(Problem {
            place: place.into(),
            what,
            remedy: "move details to the crate that they concern",
        });
    }
    let mut rows = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut problem = |what: String, remedy| {
            problems.push(Problem { place: format!("{place}:{number}"), what, remedy });
        };
        if !line.starts_with('|') {
            rows.clear();
        } else if line.contains(char::is_alphanumeric) && !rows.insert(line) {
            problem("a row of this table twice".into(), "remove one of them");
        }
        // The files whose tests the rest of the line names, with their texts.
        let mut files: Vec<(&str, String)> = Vec::new();
        let mut was_name = false;
        let mut parts = line.split('`');
        while let (Some(between), Some(span)) = (parts.next(), parts.next()) {
            if between.contains(';') {
                files.clear();
            }
            let path = span.split([' ', ':']).next().unwrap_or_default();
            if FOLDERS.iter().any(|folder| path.starts_with(folder)) && !path.contains(['*', '<', '{']) {
                if was_name {
                    files.clear();
                    was_name = false;
                }
                match read(path.trim_end_matches('/')) {
                    Some(text) if path.ends_with(".rs") => files.push((path, text)),
                    Some(_) => files.clear(),
                    None => problem(format!("no file `{path}`"), "name the present one"),
                }
            } else if line.starts_with('|') && is_test_name(span) {
                was_name = true;
                for (path, text) in &files {
                    if !has_word(text, &format!("fn {span}")) {
                        problem(format!("no `fn {span}` in `{path}`"), "name the present test");
                    }
                }
            }
        }
    }
    problems
}

/// Whether a code span after a path in a table is the name of a test.
fn is_test_name(span: &str) -> bool {
    span.contains('_') && span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let read = |path: &str| match path {
            "crates/a/src/b.rs" => Some("fn a_b() {}\nfn c_d_e() {}\n".to_owned()),
            "crates/a/src/c.rs" => Some("fn c_d_e() {}\n".to_owned()),
            "tests/x.sh" | "docs" => Some(String::new()),
            _ => None,
        };
        check("P", text, read).iter().map(|problem| format!("{}: {}", problem.place, problem.what)).collect()
    }

    #[test]
    fn named_files_and_tests_must_exist() {
        let right = "| x | `crates/a/src/c.rs`; in it `crates/a/src/b.rs`: `a_b`; `tests/x.sh --long`, `a_z`, `docs/` |\n\
                     | y | `crates/a/src/b.rs`, `crates/a/src/c.rs`: `c_d_e`, `Other`; all `crates/a/src/b.rs`: `a_b` |\n`crates/a/src/b.rs` `a_z`\n";
        assert!(problems(right).is_empty(), "{:?}", problems(right));
        let wrong = "| x | `crates/a/src/c.rs`, `crates/a/src/b.rs`: `a_b` |\n| y | `crates/a/src/b.rs`: `c_d` |\n`docs/z.md`\n";
        let expected = [
            "P:1: no `fn a_b` in `crates/a/src/c.rs`",
            "P:2: no `fn c_d` in `crates/a/src/b.rs`",
            "P:3: no file `docs/z.md`",
        ];
        assert_eq!(problems(wrong), expected);
    }

    #[test]
    fn the_architecture_is_short() {
        let problems = |place: &str, lines| check(place, &"x\n".repeat(lines), |_| None).len();
        assert_eq!([199, 200].map(|lines| problems("ARCHITECTURE.md", lines)), [0, 1]);
        assert_eq!(problems("docs/x.md", 200), 0);
    }

    #[test]
    fn rows_of_one_table_are_distinct() {
        assert!(problems("| a | b |\n|---|---|\n| c | d |\n\n| a | b |\n|---|---|\n").is_empty());
        assert_eq!(problems("| a |\n|---|\n| c |\n| c |\n"), ["P:4: a row of this table twice"]);
    }
}
