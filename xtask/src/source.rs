//! Rules for `.rs` files: length (of a file, and of a whole engine), unfinished work, unsafe code, skipped
//! tests, errnos in engines, files that no module declares.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::manifest::UNSAFE_CRATES;
use crate::problem::Problem;

/// The maximum number of lines of a file before its tests.
const LINES_MAX: usize = 600;

/// The maximum number of lines of code of an engine, in all languages together.
const ENGINE_LINES_MAX: usize = 2_250;

/// Macros that mark unfinished work or leftover debugging.
const UNFINISHED_MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Marks in comments that mean unfinished work.
const UNFINISHED_MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("X", "XX")];

/// POSIX errors that only operations decide, and engines must not return.
const VERDICTS: &[&str] = &["EEXIST", "ENOTEMPTY", "EACCES", "EPERM", "ENOTDIR", "EISDIR"];

/// Checks one file: `inside` is its path relative to the crate's folder, `place` the path to print.
pub(crate) fn check(crate_name: &str, place: &str, inside: &Path, text: &str) -> Vec<Problem> {
    let masked = Masked::new(text);
    let mut problems = Vec::new();
    let mut problem = |line: usize, what: String, remedy| {
        problems.push(Problem { place: format!("{place}:{line}"), what, remedy });
    };

    let length = lines_before_tests(text);
    if length > LINES_MAX && !is_test_file(inside) {
        problem(
            length,
            format!("{length} lines before its tests, more than {LINES_MAX}"),
            "split it by what it does",
        );
    }
    for (number, line) in (1..).zip(masked.code.lines()) {
        for word in UNFINISHED_MACROS.iter().filter(|word| has_word(line, word)) {
            problem(number, format!("`{word}`"), "finish the work or remove it");
        }
        if !UNSAFE_CRATES.contains(&crate_name) && (has_word(line, "unsafe") || has_word(line, "unsafe_code"))
        {
            problem(number, format!("unsafe code in `{crate_name}`"), "move it to fuse-transport");
        }
    }
    for (number, line) in (1..).zip(masked.comments.lines()) {
        for word in UNFINISHED_MARKS.iter().filter(|word| has_word(line, word)) {
            problem(number, format!("`{word}`"), "do it now, or open an issue");
        }
    }
    for line in unexplained_unsafe(&masked) {
        problem(line, "unsafe block without a `SAFETY:` comment".into(), "write above it why it is sound");
    }
    for (number, line) in (1..).zip(masked.code.lines()) {
        if line.trim_start().starts_with("#[ignore") {
            problem(number, "an ignored test".into(), "report the skip with the crate `skip`");
        }
    }
    if !matches!(crate_name, "skip" | "xtask") {
        for (number, line) in (1..).zip(masked.code_and_strings.lines()) {
            if ["\"SKIPPED", "\"skipped: "].iter().any(|word| line.contains(word)) {
                problem(
                    number,
                    "a skip that `make test` does not count".into(),
                    "call a function of the crate `skip`",
                );
            }
        }
    }
    if crate_name.starts_with("engine-") {
        for (number, line) in (1..).zip(masked.code_and_strings.lines()) {
            for word in VERDICTS.iter().filter(|word| has_word(line, word)) {
                problem(
                    number,
                    format!("engine mentions {word}"),
                    "report a conflict; only operations choose errnos",
                );
            }
        }
    }
    problems
}

/// Checks the length of all sources of an engine together: Rust without tests, SQL and Lua, each without
/// blank lines and comments. `files` is as for [`dead_files`], but also contains the SQL and Lua files.
pub(crate) fn check_length(crate_name: &str, place: &str, files: &[(PathBuf, String)]) -> Option<Problem> {
    if !crate_name.starts_with("engine-") {
        return None;
    }
    let length: usize = files.iter().map(|(path, text)| lines_of_code(path, text)).sum();
    (length > ENGINE_LINES_MAX).then(|| Problem {
        place: place.to_owned(),
        what: format!("{length} lines of code, the limit is {ENGINE_LINES_MAX}"),
        remedy: "move code that several engines need to shared crates",
    })
}

/// The files of a crate, given as (path relative to its folder, text), that are not reachable by `mod` lines
/// from a root: `src/lib.rs`, `src/main.rs`, or any file directly in `src/bin`.
pub(crate) fn dead_files(files: &[(PathBuf, String)]) -> Vec<PathBuf> {
    let all: BTreeSet<&Path> = files.iter().map(|(path, _)| path.as_path()).collect();
    let is_root = |path: &Path| {
        path == Path::new("src/lib.rs")
            || path == Path::new("src/main.rs")
            || path.parent() == Some(Path::new("src/bin"))
    };
    let mut waiting: Vec<PathBuf> =
        all.iter().filter(|path| is_root(path)).map(|path| path.to_path_buf()).collect();
    let mut reached: BTreeSet<PathBuf> = waiting.iter().cloned().collect();
    while let Some(path) = waiting.pop() {
        let Some((_, text)) = files.iter().find(|(candidate, _)| *candidate == path) else { continue };
        let parent = path.parent().unwrap_or(Path::new(""));
        let stem = path.file_stem().unwrap_or_default();
        let children = if is_root(&path) || stem == "mod" { parent.to_path_buf() } else { parent.join(stem) };
        for module in declared_modules(text) {
            let candidates = match module {
                Module::Named(name) => {
                    vec![children.join(format!("{name}.rs")), children.join(name).join("mod.rs")]
                }
                Module::At(file) => vec![parent.join(file)],
            };
            for candidate in candidates {
                if all.contains(candidate.as_path()) && reached.insert(candidate.clone()) {
                    waiting.push(candidate);
                }
            }
        }
    }
    files.iter().map(|(path, _)| path.clone()).filter(|path| !reached.contains(path)).collect()
}

enum Module {
    Named(String),
    /// It has a `#[path = "..."]` attribute.
    At(String),
}

fn declared_modules(text: &str) -> Vec<Module> {
    let masked = Masked::new(text);
    let mut modules = Vec::new();
    let mut path = None;
    for (line, raw) in masked.code.lines().zip(text.lines()) {
        let line = line.trim();
        if line.starts_with("#[path") {
            path = raw.split('"').nth(1).map(str::to_owned);
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| *word == "mod") else { continue };
        let visible = words[..at].iter().all(|word| word.starts_with("pub") || word.starts_with("#["));
        if let Some(name) = words.get(at + 1).and_then(|name| name.strip_suffix(';')).filter(|_| visible) {
            modules.push(match path.take() {
                Some(file) => Module::At(file),
                None => Module::Named(name.to_owned()),
            });
        }
    }
    modules
}

/// The number of lines before the first `#[cfg(test)]` module.
pub(crate) fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let begins_tests = |at: usize| {
        let item = lines[at + 1..].iter().find(|line| !line.trim_start().starts_with("#["));
        lines[at] == "#[cfg(test)]"
            && item.is_some_and(|item| item.split_whitespace().any(|word| word == "mod"))
    };
    (0..lines.len()).find(|&at| begins_tests(at)).unwrap_or(lines.len())
}

/// The number of lines with code in a Rust file before its tests, or in an SQL or Lua file.
fn lines_of_code(path: &Path, text: &str) -> usize {
    if path.extension().is_some_and(|extension| extension == "rs") {
        let code = Masked::new(text).code_and_strings;
        code.lines().take(lines_before_tests(text)).filter(|line| !line.trim().is_empty()).count()
    } else {
        text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--")).count()
    }
}

/// Whether the file contains tests, and may have any length: a file in `tests`, `benches` or `fuzz`, or the
/// module file of such a folder.
pub(crate) fn is_test_file(inside: &Path) -> bool {
    let exempt = |part: &std::ffi::OsStr| part == "tests" || part == "benches" || part == "fuzz";
    inside.iter().any(exempt) || inside.file_stem().is_some_and(exempt)
}

/// Lines with an unsafe block or an unsafe impl that has no `SAFETY:` comment, neither on the line nor
/// directly above the statement.
fn unexplained_unsafe(masked: &Masked) -> Vec<usize> {
    let code: Vec<&str> = masked.code.lines().collect();
    let comments: Vec<&str> = masked.comments.lines().collect();
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate() {
        if !has_word(line, "unsafe") || line.contains("unsafe fn") || line.contains("unsafe extern") {
            continue;
        }
        let mut above = at;
        let explained = loop {
            if comments[above].contains("SAFETY:") {
                break true;
            }
            if above == 0 {
                break false;
            }
            above -= 1;
            // A comment, an attribute or the beginning of the same statement continues the search upwards;
            // anything else ends it.
            let code = code[above].trim();
            let is_comment_only = code.is_empty() && !comments[above].trim().is_empty();
            if !is_comment_only
                && (code.is_empty() || (!code.starts_with("#[") && code.ends_with([';', '{', '}'])))
            {
                break false;
            }
        };
        if !explained {
            found.push(at + 1);
        }
    }
    found
}

/// Whether `line` contains `word` with no letter, digit or underscore next to it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(joins);
        let after = line[at + word.len()..].chars().next().is_some_and(joins);
        !(before || (after && word.ends_with(joins)))
    })
}

/// A file in three views with the same lines. Text that does not belong to a view is replaced by spaces.
pub(crate) struct Masked {
    /// Without comments and without the content of string and character literals.
    pub(crate) code: String,
    /// Without comments.
    code_and_strings: String,
    pub(crate) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Masked {
    pub(crate) fn new(text: &str) -> Self {
        let mut masked =
            Self { code: String::new(), code_and_strings: String::new(), comments: String::new() };
        let mut rest = text;
        let mut before = ' ';
        while !rest.is_empty() {
            let (length, kind) = token(rest, before);
            let (token, after) = rest.split_at(length);
            masked.push(token, kind);
            before = token.chars().next_back().unwrap_or(' ');
            rest = after;
        }
        masked
    }

    fn push(&mut self, token: &str, kind: Kind) {
        for character in token.chars() {
            let blank = if character == '\n' { '\n' } else { ' ' };
            self.code.push(if kind == Kind::Code { character } else { blank });
            self.code_and_strings.push(if kind == Kind::Comment { blank } else { character });
            self.comments.push(if kind == Kind::Comment { character } else { blank });
        }
    }
}

/// The length in bytes (at least 1) and the kind of the token at the start of `rest`; `before` is the
/// character before it.
fn token(rest: &str, before: char) -> (usize, Kind) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), Kind::Comment);
    }
    if rest.starts_with('"') {
        return (quoted(rest, '"'), Kind::Literal);
    }
    if rest.starts_with('r') && !(before.is_alphanumeric() && before != 'b' && before != 'c' || before == '_')
    {
        let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
        if rest[1 + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            let end = rest[start..].find(&close).map_or(rest.len(), |at| start + at + close.len());
            return (end, Kind::Literal);
        }
    }
    if let Some(quote) = rest.strip_prefix('\'') {
        // 'a' and '\n' are characters; 'a without a closing quote is a lifetime.
        let mut characters = quote.chars();
        let first = characters.next();
        if first == Some('\\') || characters.next() == Some('\'') {
            return (quoted(rest, '\''), Kind::Literal);
        }
    }
    (rest.chars().next().map_or(1, char::len_utf8), Kind::Code)
}

/// The length of a block comment. Block comments nest.
fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => (at, depth) = (at + 2, depth + 1),
            b"*/" => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a literal between two `quote` characters, with backslash escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(crate_name: &str, text: &str) -> Vec<String> {
        check(crate_name, "P", Path::new("src/a.rs"), text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let text =
            "a // b\n\"c // \\\" d\" e /* f /* g */ h */ i\nr#\"j \" k\"# 'l' 'm: '\\'' n\nb\"o\" br\"p\" q";
        let masked = Masked::new(text);
        let letters = |view: &str| view.chars().filter(char::is_ascii_lowercase).collect::<String>();
        assert_eq!(letters(&masked.code), "aeimnbbq");
        assert_eq!(letters(&masked.comments), "bfgh");
        assert_eq!(letters(&masked.code_and_strings), "acdeirjklmnbobrpq");
        assert_eq!(masked.code.lines().count(), text.lines().count());
    }

    #[test]
    fn long_file_is_found_without_counting_its_tests() {
        let long = "x\n".repeat(LINES_MAX + 1);
        assert_eq!(problems("vfs", &long).len(), 1);
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{long}}}\n", "x\n".repeat(LINES_MAX));
        assert!(problems("vfs", &tested).is_empty());
        let only_a_use = format!("#[cfg(test)]\nuse a::b;\n{long}");
        assert_eq!(problems("vfs", &only_a_use).len(), 1);
        assert!(check("vfs", "P", Path::new("tests/a.rs"), &long).is_empty());
        assert!(check("vfs", "P", Path::new("src/ops/tests.rs"), &long).is_empty());
    }

    #[test]
    fn long_engine_is_found_by_its_code_in_all_languages() {
        let third = "x\n".repeat(ENGINE_LINES_MAX / 3);
        let length = |name: &str, rust: &str, sql: &str| {
            let files = [("a.rs", rust), ("b.sql", sql), ("c.lua", "")]
                .map(|(path, more)| (PathBuf::from("src").join(path), format!("{third}{more}")));
            check_length(name, "P", &files).map(|problem| problem.what)
        };
        assert_eq!(length("engine-redis", "", ""), None);
        let long = length("engine-redis", "", "x\n");
        assert_eq!(long.as_deref(), Some("2251 lines of code, the limit is 2250"));
        assert_eq!(length("meta", "", "x\n"), None);
        let files =
            |last: &str| [(PathBuf::from("src/a.rs"), format!("{}{last}", "x\n".repeat(ENGINE_LINES_MAX)))];
        let length = |last: &str| check_length("engine-redis", "P", &files(last)).is_some();
        assert!(!length("// why\n\n#[cfg(test)]\nmod tests {}\n"));
        assert!(length("\"x\"\n"));
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_comments() {
        assert_eq!(problems("vfs", "fn f() { todo!() }\n"), ["P:1: `todo!`; finish the work or remove it"]);
        assert_eq!(problems("vfs", &format!("// {} later\n", UNFINISHED_MARKS[0])).len(), 1);
        assert!(problems("vfs", "// a todo! in prose\nlet a = \"dbg!\"; my_dbg!(1);\n").is_empty());
    }

    #[test]
    fn unsafe_code_outside_its_crate_or_unexplained_is_found() {
        assert_eq!(problems("vfs", "#![allow(unsafe_code)]\n").len(), 1);
        let bare = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(problems("fuse-transport", bare).len(), 1);
        assert_eq!(problems("vfs", bare).len(), 2);
        let said = "fn f() {\n    // SAFETY: g asks for nothing,\n    // today.\n    let a =\n        unsafe { g() };\n}\n";
        assert!(problems("fuse-transport", said).is_empty());
        let other = "fn f() {\n    // SAFETY: of another.\n    h();\n    unsafe { g() }\n}\n";
        assert_eq!(problems("fuse-transport", other).len(), 1);
        assert_eq!(problems("fuse-transport", "unsafe impl Send for A {}\n").len(), 1);
    }

    #[test]
    fn uncounted_skips_are_found() {
        assert_eq!(problems("vfs", "#[ignore = \"slow\"]\nfn f() {}\n").len(), 1);
        assert_eq!(problems("vfs", "eprintln!(\"skipped: no root\");\n").len(), 1);
        assert!(problems("vfs", "// a \"SKIPPED\" test\nlet a = Counts { skipped: 1 };\n").is_empty());
    }

    #[test]
    fn posix_errnos_in_engines_are_found() {
        assert_eq!(problems("engine-sqlite", "return Err(Errno::EEXIST);\n").len(), 1);
        assert_eq!(problems("engine-sqlite", "let a = \"SELECT 'EACCES'\";\n").len(), 1);
        assert!(problems("engine-sqlite", "// the planner's EEXIST\n").is_empty());
        assert!(problems("meta", "Errno::EEXIST\n").is_empty());
    }

    #[test]
    fn file_without_a_mod_line_is_dead() {
        let files = |list: &[(&str, &str)]| -> Vec<(PathBuf, String)> {
            list.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
        };
        let dead = dead_files(&files(&[
            ("src/lib.rs", "mod a;\npub mod b;\n// mod dead;\n#[cfg(test)] mod e;\n"),
            ("src/a.rs", "pub(crate) mod c;\n#[path = \"odd.rs\"]\nmod d;\n"),
            ("src/a/c.rs", ""),
            ("src/odd.rs", ""),
            ("src/b/mod.rs", "mod f;"),
            ("src/b/f.rs", ""),
            ("src/e.rs", ""),
            ("src/dead.rs", ""),
            ("src/bin/tool.rs", ""),
        ]));
        assert_eq!(dead, [PathBuf::from("src/dead.rs")]);
    }
}
