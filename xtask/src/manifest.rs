//! Rules for `Cargo.toml`: names, lints, and which crate may depend on which.

use crate::tidy::Problem;

/// The crates of this workspace that a crate may depend on, according to the layers in ARCHITECTURE.md.
/// `engine-*` stands for every crate whose name begins with `engine-`. `cli` and `xtask` are not listed: see
/// [`forbidden`].
const LAYERS: &[(&str, &[&str])] = &[
    ("host", &[]),
    ("types", &["host"]),
    ("acl", &["types"]),
    ("meta", &["host", "types", "acl"]),
    ("inspect", &["types", "acl", "meta"]),
    ("pool", &["types", "meta"]),
    ("keyspace", &["types", "meta"]),
    ("tables", &["types", "meta"]),
    ("engine-*", &["types", "meta", "pool", "keyspace", "tables"]),
    ("chunk", &["types"]),
    ("vfs", &["host", "types", "acl", "meta", "chunk"]),
    ("fuse-proto", &["types"]),
    ("fuse-transport", &["types", "fuse-proto"]),
    ("fuse", &["types", "acl", "vfs", "fuse-proto", "fuse-transport"]),
    // A test tool: tests file systems from outside, and depends on no other crate.
    ("difftest", &[]),
    ("suite", &["types", "acl", "meta"]),
    // A test tool: clients of a volume under a scheduler.
    ("sim", &["host", "types", "acl", "meta", "chunk", "vfs"]),
    // A test tool: reports tests that cannot run.
    ("skip", &[]),
];

/// What tests of a crate may depend on in addition. No program may.
const TEST_LAYERS: &[(&str, &[&str])] = &[("engine-*", &["suite"]), ("keyspace", &["suite"])];

/// External crates that belong to one layer: (the crate, the crates that may depend on it). A trailing `*`
/// matches any ending.
const RESERVED: &[(&str, &[&str])] = &[
    ("clap*", &["cli"]),
    ("indicatif", &["cli"]),
    ("fuser", &["fuse*"]),
    ("fuse3", &["fuse*"]),
    ("fuse-backend-rs", &["fuse*"]),
    ("polyfuse*", &["fuse*"]),
    ("opendal", &["chunk"]),
    ("rusqlite", &["engine-sqlite"]),
    ("libsqlite3-sys", &["engine-sqlite"]),
    ("redis", &["engine-redis"]),
    ("postgres*", &["engine-postgres"]),
    ("tokio-postgres*", &["engine-postgres"]),
    ("mysql*", &["engine-mysql"]),
    ("etcd-client", &["engine-etcd"]),
    ("tikv-client", &["engine-tikv"]),
];

/// Crates that may contain `unsafe` code, and therefore do not use the workspace's `forbid`.
pub(crate) const UNSAFE_CRATES: &[&str] = &["fuse-transport"];

/// The parts of a manifest that the rules need.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    /// `[dependencies]` and `[build-dependencies]`, for any target.
    pub(crate) dependencies: Vec<String>,
    pub(crate) dev_dependencies: Vec<String>,
    /// Whether it has `[lints] workspace = true`.
    pub(crate) workspace_lints: bool,
    /// Whether it has its own `[lints.rust]` or `[lints.clippy]` table.
    pub(crate) own_lints: bool,
}

impl Manifest {
    /// Reads the few tables needed, line by line. Cargo has accepted the file before, so this need not be a
    /// TOML parser.
    pub(crate) fn parse(text: &str) -> Self {
        let mut manifest = Self::default();
        let mut table = String::new();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                table = header.trim().to_owned();
                manifest.own_lints |= table.starts_with("lints.");
                // `[dependencies.name]` is a dependency in its own table.
                if let Some((list, name)) =
                    manifest.list_of(&table).and_then(|(list, rest)| Some((list, rest?)))
                {
                    list.push(name);
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            // `name.workspace = true` and `name = { ... }` both begin with the name.
            let key = key.trim().split('.').next().unwrap_or_default().trim_matches('"').to_owned();
            match table.as_str() {
                "package" if key == "name" => manifest.name = value.trim().trim_matches('"').to_owned(),
                "lints" => manifest.workspace_lints |= key == "workspace" && value.trim() == "true",
                _ => {
                    if let Some((list, None)) = manifest.list_of(&table) {
                        list.push(key);
                    }
                }
            }
        }
        manifest
    }

    /// The list for the entries of a table, and the dependency's name if the table is about one dependency.
    fn list_of(&mut self, table: &str) -> Option<(&mut Vec<String>, Option<String>)> {
        // `[target.'cfg(unix)'.dependencies]` counts like `[dependencies]`.
        let table = match table.strip_prefix("target.") {
            Some(rest) => {
                &rest[rest.rfind("dev-dep").or(rest.rfind("build-dep")).or(rest.rfind("dependencies"))?..]
            }
            None => table,
        };
        let (kind, name) = match table.split_once('.') {
            Some((kind, name)) => (kind, Some(name.trim_matches('"').to_owned())),
            None => (table, None),
        };
        match kind {
            "dependencies" | "build-dependencies" => Some((&mut self.dependencies, name)),
            "dev-dependencies" => Some((&mut self.dev_dependencies, name)),
            _ => None,
        }
    }
}

/// Checks one manifest; `folder` is the name of its folder.
pub(crate) fn check(folder: &str, place: &str, manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |what: String, remedy| problems.push(Problem { place: place.to_owned(), what, remedy });
    let name = manifest.name.as_str();

    if name != folder {
        problem(format!("crate `{name}` is in folder `{folder}`"), "give both the same name");
    }
    if UNSAFE_CRATES.contains(&name) {
        if !manifest.workspace_lints && !manifest.own_lints {
            problem(
                "has no lints".into(),
                "add `[lints] workspace = true`, or the same lints with unsafe_code = \"deny\"",
            );
        }
    } else if !manifest.workspace_lints {
        problem("does not use the lints of the workspace".into(), "add `[lints]` with `workspace = true`");
    }
    if layer(name).is_none() && !is_top(name) {
        problem(format!("crate `{name}` has no layer"), "add it to LAYERS in xtask/src/manifest.rs");
    }
    for dependency in &manifest.dependencies {
        if let Some(remedy) = forbidden(name, dependency) {
            problem(format!("`{name}` depends on `{dependency}`"), remedy);
        }
    }
    for dependency in &manifest.dev_dependencies {
        // Tests obey the same layers, except for the suites. A test that needs an engine belongs in cli, or
        // uses the one in memory.
        let is_for_tests = dependency == "skip" || names(TEST_LAYERS, name, dependency);
        if let Some(remedy) = forbidden(name, dependency).filter(|_| !is_for_tests) {
            problem(format!("tests of `{name}` depend on `{dependency}`"), remedy);
        }
    }
    problems
}

/// Why `name` must not depend on `dependency`; `None` if it may.
fn forbidden(name: &str, dependency: &str) -> Option<&'static str> {
    if let Some((_, owners)) = RESERVED.iter().find(|(reserved, _)| matches(reserved, dependency)) {
        let is_owner = owners.iter().any(|owner| matches(owner, name));
        return (!is_owner)
            .then_some("the crate belongs to another layer: see RESERVED in xtask/src/manifest.rs");
    }
    if !is_top(dependency) && layer(dependency).is_none() {
        return None; // Not a crate of this workspace.
    }
    if dependency == "suite" {
        return Some("the suites are for tests: make it a dev-dependency of an engine");
    }
    if dependency == "skip" {
        return Some("skip is for tests: make it a dev-dependency");
    }
    if name == "cli" || names(LAYERS, name, dependency) {
        return None;
    }
    Some("dependencies must point down: see LAYERS in xtask/src/manifest.rs")
}

/// Whether the table allows `name` to depend on `dependency`.
fn names(table: &[(&str, &[&str])], name: &str, dependency: &str) -> bool {
    let line = table.iter().find(|(pattern, _)| matches(pattern, name));
    line.is_some_and(|(_, below)| below.iter().any(|below| matches(below, dependency)))
}

fn layer(name: &str) -> Option<&'static [&'static str]> {
    LAYERS.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, below)| *below)
}

/// Crates that no other crate depends on; `cli` may depend on every crate, `xtask` on none.
fn is_top(name: &str) -> bool {
    matches!(name, "cli" | "xtask")
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(folder: &str, text: &str) -> Vec<String> {
        check(folder, "P", &Manifest::parse(text)).iter().map(ToString::to_string).collect()
    }

    fn with_dependency(name: &str, line: &str) -> Vec<String> {
        problems(
            name,
            &format!("[package]\nname = \"{name}\"\n[dependencies]\n{line}\n[lints]\nworkspace = true\n"),
        )
    }

    #[test]
    fn every_form_of_a_dependency_is_parsed() {
        let manifest = Manifest::parse(
            "[package]\nname = \"a\" # the name\n[dependencies]\nb.workspace = true\nc = \"1\"\nd = { path = \"../d\" }\n\
             [dependencies.e]\nversion = \"1\"\n[target.'cfg(unix)'.dependencies]\nf = \"1\"\n\
             [target.'cfg(target_os = \"linux\")'.dev-dependencies]\ng = \"1\"\n[build-dependencies]\nh = \"1\"\n\
             [dev-dependencies]\ni = \"1\"\n[features]\nj = []\n",
        );
        assert_eq!(manifest.name, "a");
        assert_eq!(manifest.dependencies, ["b", "c", "d", "e", "f", "h"]);
        assert_eq!(manifest.dev_dependencies, ["g", "i"]);
        assert!(!manifest.workspace_lints);
    }

    #[test]
    fn downward_is_allowed_and_upward_is_not() {
        assert!(with_dependency("meta", "acl.workspace = true").is_empty());
        assert_eq!(with_dependency("acl", "meta.workspace = true").len(), 1);
        assert_eq!(with_dependency("types", "acl.workspace = true").len(), 1);
        assert_eq!(with_dependency("chunk", "meta.workspace = true").len(), 1);
        assert_eq!(with_dependency("vfs", "fuse.workspace = true").len(), 1);
        assert_eq!(with_dependency("fuse", "meta.workspace = true").len(), 1);
        assert_eq!(with_dependency("vfs", "cli.workspace = true").len(), 1);
    }

    #[test]
    fn only_cli_names_an_engine() {
        assert!(with_dependency("cli", "engine-sqlite.workspace = true").is_empty());
        assert_eq!(with_dependency("vfs", "engine-sqlite.workspace = true").len(), 1);
        assert_eq!(with_dependency("engine-redis", "engine-sqlite.workspace = true").len(), 1);
        let tests = "[package]\nname = \"vfs\"\n[dev-dependencies]\nengine-sqlite = \"1\"\n[lints]\nworkspace = true\n";
        assert_eq!(problems("vfs", tests).len(), 1);
    }

    #[test]
    fn only_tests_of_engines_use_the_suites() {
        let tests = |name: &str| {
            let table = "[dev-dependencies]\nsuite.workspace = true\n[lints]\nworkspace = true\n";
            problems(name, &format!("[package]\nname = \"{name}\"\n{table}"))
        };
        assert!(tests("engine-sqlite").is_empty() && tests("keyspace").is_empty());
        assert_eq!(tests("meta").len(), 1);
        assert_eq!(tests("vfs").len(), 1);
        for name in ["engine-sqlite", "cli", "keyspace"] {
            assert_eq!(with_dependency(name, "suite.workspace = true").len(), 1, "{name}");
        }
        assert_eq!(with_dependency("suite", "engine-sqlite.workspace = true").len(), 1);
    }

    #[test]
    fn only_tests_use_skip() {
        let tests = "[package]\nname = \"acl\"\n[dev-dependencies]\nskip.workspace = true\n[lints]\nworkspace = true\n";
        assert!(problems("acl", tests).is_empty());
        for name in ["acl", "cli"] {
            assert_eq!(with_dependency(name, "skip.workspace = true").len(), 1, "{name}");
        }
    }

    #[test]
    fn reserved_crates_stay_in_their_layer() {
        assert!(with_dependency("cli", "clap_complete = \"4\"").is_empty());
        assert_eq!(with_dependency("vfs", "clap = \"4\"").len(), 1);
        assert_eq!(with_dependency("cli", "rusqlite = \"1\"").len(), 1);
        assert_eq!(with_dependency("meta", "fuser = \"1\"").len(), 1);
        assert!(with_dependency("fuse-proto", "fuser = \"1\"").is_empty());
    }

    #[test]
    fn name_lints_and_layer_are_required() {
        let found = problems("folder", "[package]\nname = \"other\"\n");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            problems("fuse-transport", "[package]\nname = \"fuse-transport\"\n[lints.rust]\na = \"deny\"\n")
                .is_empty()
        );
        assert_eq!(problems("vfs", "[package]\nname = \"vfs\"\n[lints.rust]\na = \"deny\"\n").len(), 1);
    }
}
