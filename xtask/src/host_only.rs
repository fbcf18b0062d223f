//! A rule for most crates that the simulator runs: they use clocks, threads, pauses and random numbers only
//! through the crate `host`.

use std::path::Path;

use crate::problem::Problem;
use crate::source::{self, Masked, has_word};

/// The crates to which the rule applies. Tests are exempt.
const CRATES: &[&str] = &["types", "meta", "ops", "client", "check", "vfs"];

const REMEDY: &str = "use the crate `host`, so that the simulator can provide it";

/// Names that are never allowed, whichever crate they come from.
const WORDS: &[&str] =
    &["SystemTime", "UNIX_EPOCH", "rand", "fastrand", "getrandom", "hash_map::RandomState"];

/// Checks one file; the arguments are those of [`source::check`].
pub(crate) fn check(crate_name: &str, place: &str, inside: &Path, text: &str) -> Vec<Problem> {
    if !CRATES.contains(&crate_name) || !inside.starts_with("src") || source::is_test_file(inside) {
        return Vec::new();
    }
    let code = Masked::new(text).code;
    let code: String =
        code.lines().take(source::lines_before_tests(text)).flat_map(|line| [line, "\n"]).collect();
    let mut found: Vec<(usize, String)> = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        let words = WORDS.iter().filter(|word| has_word(line, word)).map(|word| format!("`{word}`"));
        let paths = paths(line).filter(|path| !is_allowed(path)).map(|path| format!("`{path}`"));
        found.extend(words.chain(paths).map(|what| (number, what)));
    }
    found.extend(waits(&code).map(|at| (1 + code[..at].matches('\n').count(), "a wait on a condvar".into())));
    found
        .into_iter()
        .map(|(line, what)| Problem { place: format!("{place}:{line}"), what, remedy: REMEDY })
        .collect()
}

/// The paths on a line that begin with `std::` or with `thread::`, each with its braces.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let starts = move |(at, _): &(usize, &str)| {
        let before = line[..*at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || matches!(before, '_' | ':'))
    };
    let from = ["std::", "thread::"].into_iter().flat_map(move |root| line.match_indices(root));
    from.filter(starts).map(move |(at, _)| {
        let rest = &line[at..];
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        match rest[end..].strip_prefix('{') {
            Some(list) => &rest[..end + 1 + list.find('}').map_or(list.len(), |close| close + 1)],
            None => &rest[..end],
        }
    })
}

/// Whether the path is allowed. `std::thread` is allowed for the thread handle only, and `std::time` for
/// `Duration` only.
fn is_allowed(path: &str) -> bool {
    let Some((root, rest)) = path.strip_prefix("std::").unwrap_or(path).split_once("::") else {
        let names = path.strip_prefix("std::").unwrap_or_default();
        return !["thread", "time"].iter().any(|name| has_word(names, name));
    };
    match root {
        "thread" => rest.starts_with("JoinHandle"),
        "time" => rest.starts_with("Duration") || rest == "{Duration}",
        _ => true,
    }
}

/// The positions at which a method of a condvar is called. A method `wait` is that of a condvar if its result
/// is unwrapped.
fn waits(code: &str) -> impl Iterator<Item = usize> {
    let by_name = [".wait_timeout(", ".wait_while(", ".wait_timeout_while("];
    let named = by_name.into_iter().flat_map(move |name| code.match_indices(name));
    let unwrapped = code.match_indices(".wait(").filter(move |(at, name)| {
        let arguments = &code[at + name.len()..];
        let mut depth = 1;
        let end = arguments.find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        end.is_some_and(|end| arguments[end + 1..].trim_start().starts_with(".unwrap"))
    });
    named.chain(unwrapped).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(crate_name: &str, text: &str) -> Vec<String> {
        check(crate_name, "P", Path::new("src/a.rs"), text).iter().map(|found| found.what.clone()).collect()
    }

    #[test]
    fn clocks_threads_and_random_numbers_of_other_crates_are_found() {
        for line in [
            "use std::thread;",
            "use std::thread::{self, JoinHandle};",
            "use std::{fmt, thread};",
            "use std::time::{Duration, Instant};",
            "use std::time::Instant;",
            "let a = std::time::Instant::now();",
            "std::thread::sleep(b);",
            "thread::scope(|scope| c(scope));",
            "let d = SystemTime::now();",
            "let e = rand::random::<u64>();",
            "let f = std::collections::hash_map::RandomState::new();",
            "let g = cond.wait(guard).unwrap();",
            "let h = cond\n    .wait(of(guard))\n    .unwrap_or_else(i);",
            "let j = cond.wait_timeout(guard, k);",
        ] {
            assert!(!problems("vfs", line).is_empty(), "{line}");
            assert!(problems("fuse", line).is_empty(), "{line}");
            assert!(problems("vfs", &format!("#[cfg(test)]\nmod tests {{\n{line}\n}}\n")).is_empty());
            assert!(check("meta", "P", Path::new("src/cache/tests.rs"), line).is_empty());
            assert!(check("meta", "P", Path::new("tests/a.rs"), line).is_empty());
        }
    }

    #[test]
    fn services_of_host_are_allowed() {
        for line in [
            "use std::thread::JoinHandle;",
            "use std::time::Duration;",
            "use std::sync::{Arc, Condvar};",
            "use host::{Instant, RandomState};",
            "let a = Instant::now();",
            "let b = host::wait_timeout(&cond, &mutex, guard, left);",
            "self.repeats.wait(CHECK_EVERY);",
            "// std::thread::sleep, rand",
            "let c = \"std::thread\";",
            "let operand = brand;",
        ] {
            assert_eq!(problems("meta", line), Vec::<String>::new(), "{line}");
        }
    }
}
