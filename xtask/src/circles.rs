//! Rule for the files of a crate: they do not import each other in a circle.
//!
//! A file imports another file if it names an item of that file by a path that begins with `crate`, `self`,
//! `super` or the name of a child, in a `use` or elsewhere. If a file re-exports an item, a path through that
//! file leads to the file that defines the item. The `mod` lines of a parent and its re-exports of its
//! children do not count as imports; all other uses of its children do. Tests do not count.
//!
//! A line `//! Circle: REASON` in the header of a file permits the circles through that file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use crate::problem::Problem;
use crate::source::{Masked, is_test_file, lines_before_tests};

/// The beginning of the line that permits a circle.
const PERMIT: &str = "//! Circle: ";

/// A module, as the names of the modules on its path; the root is empty.
type Name = Vec<String>;

/// A path in a `use` or in code, and the name by which the file then uses the item.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    segments: Vec<String>,
    name: String,
}

/// One file.
#[derive(Debug, Default)]
struct Module {
    place: PathBuf,
    /// All paths in the file; `true` for the paths of a `pub use`.
    imports: Vec<(bool, Import)>,
    is_permitted: bool,
}

/// Checks the files of a crate, given as (path relative to its folder, text). `place` is the folder to print.
pub(crate) fn check(place: &str, files: &[(PathBuf, String)]) -> Vec<Problem> {
    let modules = Modules::new(files);
    let circles = modules.circles();
    let problem = |circle: Vec<String>| Problem {
        place: place.to_owned(),
        what: format!("its files import each other in a circle: {}", circle.join(" -> ")),
        remedy: "move what they share into a file below them, or say in a header why not: `//! Circle: REASON`",
    };
    circles.into_iter().map(problem).collect()
}

/// The files of a crate.
#[derive(Debug)]
struct Modules(BTreeMap<Name, Module>);

impl Modules {
    fn new(files: &[(PathBuf, String)]) -> Self {
        let sources = files.iter().filter(|(path, _)| !is_test_file(path));
        let named = sources.filter_map(|(path, text)| Some((name_of(path)?, path, text)));
        let parsed: BTreeMap<Name, Module> = named
            .map(|(name, path, text)| {
                let code: Vec<&str> = text.lines().take(lines_before_tests(text)).collect();
                let is_permitted =
                    text.lines().any(|line| line.len() > PERMIT.len() && line.starts_with(PERMIT));
                let imports = imports(&Masked::new(&code.join("\n")).code);
                (name, Module { place: path.clone(), imports, is_permitted })
            })
            .collect();
        Modules(parsed)
    }

    /// The module at which a path in `from` begins, and the segments after it; `None` for a path into another
    /// crate.
    fn base<'i>(&self, from: &Name, segments: &'i [String]) -> Option<(Name, &'i [String])> {
        let (first, rest) = segments.split_first()?;
        match first.as_str() {
            "crate" => Some((Name::new(), rest)),
            "self" => Some((from.clone(), rest)),
            "super" => {
                let supers = segments.iter().take_while(|segment| *segment == "super").count();
                Some((from[..from.len().saturating_sub(supers)].to_vec(), &segments[supers..]))
            }
            name => self.0.contains_key(&child(from, name)).then(|| (from.clone(), segments)),
        }
    }

    /// The file that defines the item that a path names.
    fn resolve(&self, start: Name, segments: &[String], depth: usize) -> Name {
        const MAX_DEPTH: usize = 10;
        let mut at = start;
        for (index, segment) in segments.iter().enumerate() {
            let below = child(&at, segment);
            if self.0.contains_key(&below) {
                at = below;
                continue;
            }
            let exports = self.0.get(&at).into_iter().flat_map(|module| &module.imports);
            let export =
                exports.filter(|(is_public, _)| *is_public).find(|(_, import)| import.name == *segment);
            if let Some((_, import)) = export
                && depth < MAX_DEPTH
                && let Some((base, path)) = self.base(&at, &import.segments)
            {
                let path = [path, &segments[index + 1..]].concat();
                return self.resolve(base, &path, depth + 1);
            }
            break;
        }
        at
    }

    /// The files that each file imports. Files that permit circles are left out, as importers and as imports.
    fn edges(&self) -> BTreeMap<&Name, BTreeSet<Name>> {
        let checked = self.0.iter().filter(|(_, module)| !module.is_permitted);
        let edges = checked.map(|(name, module)| {
            let targets = module.imports.iter().filter_map(|(is_public, import)| {
                let (base, path) = self.base(name, &import.segments)?;
                let target = self.resolve(base, path, 0);
                let is_below = target.starts_with(name);
                let counts = target != *name && !(*is_public && is_below);
                let is_checked = self.0.get(&target).is_some_and(|module| !module.is_permitted);
                (counts && is_checked).then_some(target)
            });
            (name, targets.collect())
        });
        edges.collect()
    }

    /// The shortest circle through each file that is in a circle, as the names of the circle's files. The
    /// files of a reported circle are not reported again.
    fn circles(&self) -> Vec<Vec<String>> {
        let edges = self.edges();
        let mut seen: BTreeSet<&Name> = BTreeSet::new();
        let mut circles = Vec::new();
        for start in edges.keys() {
            if seen.contains(*start) {
                continue;
            }
            if let Some(circle) = shortest_circle(&edges, start) {
                let show = |name: &&Name| {
                    let place = &self.0[*name].place;
                    place.strip_prefix("src").unwrap_or(place).display().to_string()
                };
                circles.push(circle.iter().chain(circle.first()).map(show).collect());
                seen.extend(circle);
            }
        }
        circles
    }
}

fn shortest_circle<'e>(
    edges: &'e BTreeMap<&'e Name, BTreeSet<Name>>,
    start: &'e Name,
) -> Option<Vec<&'e Name>> {
    let mut before: BTreeMap<&Name, &Name> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(at) = waiting.pop_front() {
        for next in edges.get(at).into_iter().flatten() {
            if next == start {
                let (mut circle, mut last) = (vec![at], at);
                while last != start {
                    last = before[last];
                    circle.push(last);
                }
                circle.reverse();
                return Some(circle);
            }
            if !before.contains_key(next) {
                before.insert(next, at);
                waiting.push_back(next);
            }
        }
    }
    None
}

fn child(parent: &Name, name: &str) -> Name {
    parent.iter().cloned().chain([name.to_owned()]).collect()
}

/// The module of a file below `src`; `None` for a file in `src/bin`, which is the root of another program.
fn name_of(path: &Path) -> Option<Name> {
    let inside = path.strip_prefix("src").ok()?.with_extension("");
    let mut name: Name = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if name.first().is_some_and(|first| first == "bin") {
        return None;
    }
    if name.last().is_some_and(|last| last == "mod")
        || matches!(&name[..], [root] if root == "lib" || root == "main")
    {
        name.pop();
    }
    Some(name)
}

/// All paths in `code`, which contains no comments and literals; `true` for the paths of a `pub use`.
fn imports(code: &str) -> Vec<(bool, Import)> {
    let mut found = Vec::new();
    let mut rest = String::with_capacity(code.len());
    let mut left = code;
    while let Some(at) = find_use(left) {
        let (before, statement) = left.split_at(at);
        let end = statement.find(';').unwrap_or(statement.len());
        let last = before.rsplit([';', '{', '}', ']']).next().unwrap_or_default().trim_start();
        let mut tree = Vec::new();
        flatten("", statement["use".len()..end].trim(), &mut tree);
        found.extend(tree.into_iter().map(|import| (last.starts_with("pub"), import)));
        rest.push_str(before);
        left = &statement[end..];
    }
    rest.push_str(left);
    found.extend(inline_paths(&rest).map(|segments| {
        let name = segments.last().cloned().unwrap_or_default();
        (false, Import { segments, name })
    }));
    found
}

fn is_part_of_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The position of the next `use` statement.
fn find_use(code: &str) -> Option<usize> {
    code.match_indices("use").map(|(at, _)| at).find(|&at| {
        let starts = !code[..at].chars().next_back().is_some_and(is_part_of_name);
        starts && code[at + "use".len()..].starts_with(char::is_whitespace)
    })
}

/// The paths of a use tree such as `a::{b, c as d}`.
fn flatten(prefix: &str, tree: &str, into: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((head, inner)) = tree.split_once('{') {
        let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
        let prefix = format!("{prefix}{head}");
        let (mut depth, mut start) = (0_usize, 0);
        for (at, character) in inner.char_indices() {
            match character {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    flatten(&prefix, &inner[start..at], into);
                    start = at + 1;
                }
                _ => {}
            }
        }
        flatten(&prefix, &inner[start..], into);
    } else if !tree.is_empty() {
        let mut words = tree.split_whitespace();
        let path = format!("{prefix}{}", words.next().unwrap_or_default());
        let alias = words.nth(1).map(str::to_owned);
        let mut segments: Vec<String> = path.split("::").map(|segment| segment.trim().to_owned()).collect();
        // `a::{self}` names `a`.
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let name = alias.or_else(|| segments.last().cloned()).unwrap_or_default();
        into.push(Import { segments, name });
    }
}

/// The paths of at least two segments in code.
fn inline_paths(code: &str) -> impl Iterator<Item = Vec<String>> {
    let mut paths = Vec::new();
    let mut before = ' ';
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|character| !is_part_of_name(character)).unwrap_or(rest.len());
        if length == 0 {
            before = first;
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let mut segments = vec![rest[..length].to_owned()];
        let starts = !matches!(before, ':' | '.');
        rest = &rest[length..];
        while let Some(next) = rest.strip_prefix("::") {
            let length = next.find(|character| !is_part_of_name(character)).unwrap_or(next.len());
            if length == 0 {
                break;
            }
            segments.push(next[..length].to_owned());
            rest = &next[length..];
        }
        before = 'a';
        if starts && segments.len() > 1 {
            paths.push(segments);
        }
    }
    paths.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        Modules::new(&files).circles().into_iter().map(|circle| circle.join(" -> ")).collect()
    }

    #[test]
    fn circle_is_found_through_every_kind_of_path() {
        let root = ("src/lib.rs", "mod a;\nmod b;\n");
        for b in [
            "use crate::a::A;",
            "use super::a::A;",
            "use crate::{\n    c::C,\n    a::{self, A as B},\n};",
            "fn f() { crate::a::f(); }",
            "fn f(_: super::a::A) {}",
        ] {
            assert_eq!(
                circles(&[root, ("src/a.rs", "use crate::b::B;"), ("src/b.rs", b)]),
                ["a.rs -> b.rs -> a.rs"]
            );
        }
    }

    #[test]
    fn tree_is_accepted() {
        let files = [
            ("src/main.rs", "mod a;\nmod b;\nmod c;\nuse crate::a::A;\nfn main() { b::run(); }\n"),
            ("src/a.rs", "use crate::b::B;\nuse crate::c;\n"),
            ("src/b.rs", "use crate::c::C;\n// crate::a::A\nlet text = \"crate::a::A\";\n"),
            ("src/c.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("src/a/tests.rs", "use crate::a::A;\n"),
        ];
        assert!(circles(&files).is_empty());
    }

    #[test]
    fn parent_and_child_are_a_circle_unless_the_parent_only_re_exports() {
        let child = ("src/p/c.rs", "use super::P;\n");
        let with = |parent| circles(&[("src/lib.rs", "mod p;\n"), ("src/p/mod.rs", parent), child]);
        assert!(with("mod c;\npub use self::c::C;\npub(crate) use c::D;\nstruct P;\n").is_empty());
        assert_eq!(with("mod c;\nuse self::c::C;\nstruct P;\n"), ["p/mod.rs -> p/c.rs -> p/mod.rs"]);
        assert_eq!(with("mod c;\nfn f() { c::f(); }\n").len(), 1);
    }

    #[test]
    fn re_exported_name_leads_to_its_file() {
        let files = [
            ("src/lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::B as C;\n"),
            ("src/a.rs", "use crate::C;\n"),
            ("src/b.rs", "use crate::A;\n"),
        ];
        assert_eq!(circles(&files), ["a.rs -> b.rs -> a.rs"]);
    }

    #[test]
    fn header_permits_only_circles_through_its_file() {
        let files = |a, b| {
            let root = ("src/lib.rs", "mod a;\nmod b;\nmod c;\n");
            circles(&[root, ("src/a.rs", a), ("src/b.rs", b), ("src/c.rs", "use crate::b::B;\n")])
        };
        let a = "//! Text.\n//!\n//! Circle: a plan calls its own kind.\nuse crate::b::B;\n";
        assert!(files(a, "use crate::a::A;\n").is_empty());
        assert_eq!(files("//! Circle: \nuse crate::b::B;\n", "use crate::a::A;\n").len(), 1);
        assert_eq!(files(a, "use crate::a::A;\nuse crate::c::C;\n"), ["b.rs -> c.rs -> b.rs"]);
    }
}
