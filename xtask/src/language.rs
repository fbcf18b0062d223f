//! Rules of language: words that plain English does without, names that the glossary has replaced, and the
//! form of commit subjects.

use std::path::Path;
use std::process::Command;

use crate::problem::Problem;
use crate::source::{Masked, has_word};

/// Words that mark a sentence without a subject, or treat a program as a person.
const WORDS: &[&str] = &[concat!("who", "m"), concat!("who", "ever"), concat!("where", "from")];

/// Former words of this project, in Rust, SQL, Lua, scripts and documents, each with the present one.
const FORMER_WORDS: &[(&str, &str)] = &[
    (concat!("ask", "er"), "lock owner"),
    (concat!("ask", "ers"), "lock owners"),
    (concat!("gh", "ost"), "unlinked inode"),
    (concat!("gh", "osts"), "unlinked inodes"),
    (concat!("vou", "ch"), "authority"),
    (concat!("vou", "ched"), "has authority"),
    (concat!("vou", "ches"), "has authority"),
];

/// Former names of types, each with the present one.
const NAMES: &[(&str, &str)] = &[
    ("Edge", "Dirent"),
    ("Facts", "Snapshot"),
    ("Ground", "CheckReason"),
    ("Neighbour", "KernelState"),
    ("Odds", "FaultRates"),
    ("PutEdge", "PutDirent"),
    ("PutNode", "PutInode"),
    ("Touched", "Invalidation"),
    ("Trouble", "QueryError"),
    ("Want", "RecordKey"),
];

/// The last commit from before the rule for subjects.
const SUBJECTS_SINCE: &str = "c09faf3";

const SUBJECT_MAX: usize = 72;

/// Checks a text file; `place` is the path to print.
pub(crate) fn check_words(place: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.to_lowercase();
        for word in WORDS.iter().filter(|word| has_word(&line, word)) {
            problems.push(Problem {
                place: format!("{place}:{number}"),
                what: format!("the word '{word}'"),
                remedy: "name the subject of the sentence",
            });
        }
        for (old, new) in FORMER_WORDS.iter().filter(|(old, _)| has_word(&line, old)) {
            problems.push(Problem {
                place: format!("{place}:{number}"),
                what: format!("the word '{old}'; the term is '{new}'"),
                remedy: "use the glossary's term",
            });
        }
    }
    problems
}

/// Checks a Rust file for names that were replaced.
pub(crate) fn check_names(place: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(Masked::new(text).code.lines()) {
        for (old, new) in NAMES.iter().filter(|(old, _)| has_word(line, old)) {
            problems.push(Problem {
                place: format!("{place}:{number}"),
                what: format!("`{old}` is called `{new}`"),
                remedy: "use the glossary's name",
            });
        }
    }
    problems
}

/// Checks the subjects of the commits after [`SUBJECTS_SINCE`]. If the history does not contain that commit,
/// for example in a source archive, nothing is checked.
pub(crate) fn check_subjects(top: &Path) -> Vec<Problem> {
    let range = format!("{SUBJECTS_SINCE}..HEAD");
    let log = Command::new("git").arg("-C").arg(top).args(["log", "--format=%h %s", &range]).output();
    let Ok(log) = log else { return Vec::new() };
    let subjects = String::from_utf8_lossy(&log.stdout);
    let broken = |line: &&str| line.split_once(' ').is_some_and(|(_, subject)| !is_subject(subject));
    subjects
        .lines()
        .filter(broken)
        .map(|line| Problem {
            place: "git log".into(),
            what: format!("the subject of {line}"),
            remedy: "write `area: change`, imperative, at most 72 columns",
        })
        .collect()
}

fn is_subject(subject: &str) -> bool {
    let is_area = |area: &str| {
        !area.is_empty()
            && area.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || " ,.-_/".contains(c))
    };
    let ends_well = !subject.ends_with('.');
    subject.chars().count() <= SUBJECT_MAX
        && ends_well
        && subject.split_once(": ").is_some_and(|(area, change)| is_area(area) && !change.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        let text = format!("a\n{}ever it meets\nnohow\n", "Who");
        let found = check_words("P", &text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "P:2");
        assert!(check_words("P", "wherefore, who\n").is_empty());
    }

    #[test]
    fn former_words_are_found_in_any_text() {
        let former = FORMER_WORDS[0].0;
        let found = check_words("a.sql", &format!("SELECT 1;\n-- the {former} waits\n"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "a.sql:2");
        assert!(check_words("P", &format!("{former}_id\n")).is_empty());
    }

    #[test]
    fn old_names_are_found_in_code_only() {
        assert_eq!(check_names("P", "fn f(a: Want) {}\n").len(), 1);
        assert!(check_names("P", "// a Want\nlet a = \"Want\"; WantX;\n").is_empty());
    }

    #[test]
    fn subjects_have_an_area_and_fit() {
        assert!(is_subject("meta, engines: keep results until their term ends"));
        assert!(is_subject("engine-redis: read once"));
        assert!(!is_subject("A directory is not empty of what the same batch puts into it"));
        assert!(!is_subject("Meta: read once"));
        assert!(!is_subject("meta: read once."));
        assert!(!is_subject(&format!("meta: {}", "x".repeat(SUBJECT_MAX))));
    }
}
