//! Rules on `.rs` files: length, also of a whole engine, unfinished work, unsafe code, errnos in engines, files that no
//! module reaches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::manifest::UNSAFE_CRATES;
use crate::tidy::Problem;

/// The longest a file may be before its tests begin.
const LINES_MAX: usize = 600;

/// What the sources of an engine have to stay under together, each up to its tests.
const ENGINE_LINES_BOUND: usize = 1_500;

/// Likewise of the embedded engine, which is client and server in one and takes care of its disk.
const EMBEDDED_LINES_BOUND: usize = 2_500;

/// Macros that stand for work not done, or for a debugging session that is over.
const UNFINISHED_MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Marks in comments that stand for work not done.
const UNFINISHED_MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("X", "XX")];

/// Verdicts of POSIX, which operations reach and engines never do.
const VERDICTS: &[&str] = &["EEXIST", "ENOTEMPTY", "EACCES", "EPERM", "ENOTDIR", "EISDIR"];

/// Checks one file: `inside` is its path below the crate's folder, `place` the one to print.
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
            problem(number, format!("`{word}`"), "finish the work or take it out");
        }
        if !UNSAFE_CRATES.contains(&crate_name) && (has_word(line, "unsafe") || has_word(line, "unsafe_code"))
        {
            problem(
                number,
                format!("unsafe code in `{crate_name}`"),
                "only fuse-transport may: move it there",
            );
        }
    }
    for (number, line) in (1..).zip(masked.comments.lines()) {
        for word in UNFINISHED_MARKS.iter().filter(|word| has_word(line, word)) {
            problem(number, format!("`{word}`"), "do it now, or open an issue");
        }
    }
    for line in unexplained_unsafe(&masked) {
        problem(
            line,
            "an unsafe block without its reason".into(),
            "say above it in a `SAFETY:` comment why it is sound",
        );
    }
    for (number, line) in (1..).zip(masked.code.lines()) {
        if line.trim_start().starts_with("#[ignore") {
            problem(number, "a test that does not run".into(), "have it say so: see the crate `skip`");
        }
    }
    if !matches!(crate_name, "skip" | "xtask") {
        for (number, line) in (1..).zip(masked.code_and_strings.lines()) {
            if ["\"SKIPPED", "\"skipped: "].iter().any(|word| line.contains(word)) {
                problem(number, "a skip that is not counted".into(), "call a function of the crate `skip`");
            }
        }
    }
    if crate_name.starts_with("engine-") {
        for (number, line) in (1..).zip(masked.code_and_strings.lines()) {
            for word in VERDICTS.iter().filter(|word| has_word(line, word)) {
                problem(
                    number,
                    format!("an engine names {word}"),
                    "leave verdicts to meta's operations: report a conflict",
                );
            }
        }
    }
    problems
}

/// What is wrong with the length of all sources of a crate together, given as for [`dead_files`].
pub(crate) fn check_length(crate_name: &str, place: &str, files: &[(PathBuf, String)]) -> Option<Problem> {
    let bound = match crate_name {
        "engine-sqlite" => EMBEDDED_LINES_BOUND,
        name if name.starts_with("engine-") => ENGINE_LINES_BOUND,
        _ => return None,
    };
    let length: usize = files.iter().map(|(_, text)| lines_without_tests(text)).sum();
    (length >= bound).then(|| Problem {
        place: place.to_owned(),
        what: format!("{length} lines without tests, not under {bound}"),
        remedy: "move what several engines need to the crates they share",
    })
}

/// Files of a crate, given as (path below its folder, text), that no `mod` line reaches from a root: `src/lib.rs`,
/// `src/main.rs`, or anything directly in `src/bin`.
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
    /// `#[path = "..."]` stands above it.
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

/// Lines before the first `#[cfg(test)]` that belongs to a module.
fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let begins_tests = |at: usize| {
        let item = lines[at + 1..].iter().find(|line| !line.trim_start().starts_with("#["));
        lines[at] == "#[cfg(test)]"
            && item.is_some_and(|item| item.split_whitespace().any(|word| word == "mod"))
    };
    (0..lines.len()).find(|&at| begins_tests(at)).unwrap_or(lines.len())
}

/// Lines before the tests, and before the blank ones above these.
fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().take(lines_before_tests(text)).collect();
    lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1)
}

/// Tests may be as long as they like: in `tests`, `benches`, `fuzz`, or a module file called so.
fn is_test_file(inside: &Path) -> bool {
    let exempt = |part: &std::ffi::OsStr| part == "tests" || part == "benches" || part == "fuzz";
    inside.iter().any(exempt) || inside.file_stem().is_some_and(exempt)
}

/// Lines with an unsafe block or an unsafe impl that has no `SAFETY:` comment on it, or directly above its statement.
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
            // A comment, an attribute or the beginning of the same statement leads further up; anything else ends it.
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

/// Whether `word` stands in `line` with no letter, digit or underscore on either side.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(joins);
        let after = line[at + word.len()..].chars().next().is_some_and(joins);
        !(before || (after && word.ends_with(joins)))
    })
}

/// A file in three views, each with the same lines: what does not belong to a view is blank in it.
struct Masked {
    /// Without comments and without what stands in string and character literals.
    code: String,
    /// Without comments.
    code_and_strings: String,
    comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Masked {
    fn new(text: &str) -> Self {
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

/// The length in bytes (at least 1) and the kind of what `rest` begins with; `before` is the character in front of it.
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
        // 'a' and '\n' are characters, 'a without a closing quote is a lifetime.
        let mut characters = quote.chars();
        let first = characters.next();
        if first == Some('\\') || characters.next() == Some('\'') {
            return (quoted(rest, '\''), Kind::Literal);
        }
    }
    (rest.chars().next().map_or(1, char::len_utf8), Kind::Code)
}

/// The length of a block comment; they nest.
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

/// The length of a literal that `quote` opens and closes, with backslash escapes.
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
    fn a_long_file_is_found_and_its_tests_are_free() {
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
    fn an_engine_that_grows_too_long_is_found_and_its_tests_are_free() {
        let half = "x\n".repeat(ENGINE_LINES_BOUND / 2 - 1);
        let files =
            |last: &str| ["src/a.rs", "src/b.rs"].map(|path| (PathBuf::from(path), format!("{half}{last}")));
        let length =
            |name: &str, last: &str| check_length(name, "P", &files(last)).map(|problem| problem.what);
        assert_eq!(length("engine-redis", "\n#[cfg(test)]\nmod tests {}\n"), None);
        assert_eq!(
            length("engine-redis", "x\n").as_deref(),
            Some("1500 lines without tests, not under 1500")
        );
        assert_eq!(length("engine-sqlite", "x\n"), None);
        assert_eq!(length("meta", &half), None);
    }

    #[test]
    fn unfinished_work_is_found_where_it_counts() {
        assert_eq!(problems("vfs", "fn f() { todo!() }\n"), ["P:1: `todo!`; finish the work or take it out"]);
        assert_eq!(problems("vfs", &format!("// {} later\n", UNFINISHED_MARKS[0])).len(), 1);
        assert!(problems("vfs", "// a todo! in prose\nlet a = \"dbg!\"; my_dbg!(1);\n").is_empty());
    }

    #[test]
    fn unsafe_code_is_kept_to_its_crate_and_explained() {
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
    fn no_test_skips_itself_uncounted() {
        assert_eq!(problems("vfs", "#[ignore = \"slow\"]\nfn f() {}\n").len(), 1);
        assert_eq!(problems("vfs", "eprintln!(\"skipped: no root\");\n").len(), 1);
        assert!(problems("vfs", "// a \"SKIPPED\" test\nlet a = Counts { skipped: 1 };\n").is_empty());
    }

    #[test]
    fn engines_know_no_verdicts() {
        assert_eq!(problems("engine-sqlite", "return Err(Errno::EEXIST);\n").len(), 1);
        assert_eq!(problems("engine-sqlite", "let a = \"SELECT 'EACCES'\";\n").len(), 1);
        assert!(problems("engine-sqlite", "// the planner's EEXIST\n").is_empty());
        assert!(problems("meta", "Errno::EEXIST\n").is_empty());
    }

    #[test]
    fn a_file_without_a_mod_line_is_dead() {
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
