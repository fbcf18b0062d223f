//! Rules for one `Cargo.toml`: its name, its lints, and external crates that belong to other layers.

use crate::problem::Problem;

/// External crates that belong to one layer: (the crate, the crates that may depend on it). A trailing `*`
/// matches any ending.
const RESERVED: &[(&str, &[&str])] = &[
    ("clap", &["cli", "bench"]),
    ("clap_*", &["cli"]),
    ("indicatif", &["command"]),
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
    /// Reads the tables that the rules need, line by line. Cargo has accepted the file before, so a full TOML
    /// parser is not needed.
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
    for dependency in manifest.dependencies.iter().chain(&manifest.dev_dependencies) {
        if let Some((_, owners)) = RESERVED.iter().find(|(reserved, _)| matches(reserved, dependency))
            && !owners.iter().any(|owner| matches(owner, name))
        {
            problem(
                format!("`{name}` depends on `{dependency}`"),
                "the crate belongs to another layer: see RESERVED in xtask/src/manifest.rs",
            );
        }
    }
    problems
}

pub(crate) fn matches(pattern: &str, name: &str) -> bool {
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
    fn reserved_crates_stay_in_their_layer() {
        assert!(with_dependency("cli", "clap_complete = \"4\"").is_empty());
        assert_eq!(with_dependency("vfs", "clap = \"4\"").len(), 1);
        assert_eq!(with_dependency("cli", "rusqlite = \"1\"").len(), 1);
        assert_eq!(with_dependency("meta", "fuser = \"1\"").len(), 1);
        assert!(with_dependency("fuse-proto", "fuser = \"1\"").is_empty());
    }

    #[test]
    fn name_and_lints_are_required() {
        let found = problems("folder", "[package]\nname = \"other\"\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            problems("fuse-transport", "[package]\nname = \"fuse-transport\"\n[lints.rust]\na = \"deny\"\n")
                .is_empty()
        );
        assert_eq!(problems("vfs", "[package]\nname = \"vfs\"\n[lints.rust]\na = \"deny\"\n").len(), 1);
    }
}
