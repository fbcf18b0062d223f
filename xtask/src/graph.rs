//! The table of crates in ARCHITECTURE.md shows the graph of their imports: each row names crates, the crates
//! of this workspace that they import, and their purpose. A row imports only crates of the rows below it.
//!
//! Tests of a crate may import the crates that [`FOR_TESTS`] permits for it, and all crates of the rows below
//! it except engines.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::{Manifest, matches};
use crate::problem::Problem;

/// The file that has the table.
pub(crate) const GRAPH_FILE: &str = "ARCHITECTURE.md";

const HEADING: &str = "| crate | imports | what it is |";

/// Crates that only tests import: (the crate, the crates whose tests may import it).
const FOR_TESTS: &[(&str, &[&str])] = &[
    ("suite", &["engine-*", "keyspace", "client", "vfs"]),
    ("servers", &["engine-*", "cli"]),
    ("skip", &["*"]),
];

/// The crate that may import engines.
const NAMES_ENGINES: &str = "cli";

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    crates: Vec<String>,
    imports: BTreeSet<String>,
    what: String,
}

/// Checks the table in `text` against the manifests of all crates.
pub(crate) fn check(text: &str, manifests: &[Manifest]) -> Vec<Problem> {
    let Some(line) = text.lines().position(|line| line == HEADING) else {
        let what = format!("there is no table `{HEADING}`");
        return vec![Problem { place: GRAPH_FILE.into(), what, remedy: "write one row for each crate" }];
    };
    let mut problems = Vec::new();
    // Skips the heading and the line of dashes below it.
    let present: Vec<&str> = text.lines().skip(line + 2).take_while(|line| line.starts_with('|')).collect();
    let rows = correct(present.iter().map(|line| parse(line)).collect(), manifests);
    let right: Vec<String> = rows.iter().map(|row| render(row, &rows)).collect();
    if present != right {
        problems.push(Problem {
            place: format!("{GRAPH_FILE}:{}", line + 1),
            what: format!("the table differs from the manifests, which say:\n\n{}\n", right.join("\n")),
            remedy: "remove the import from the manifest, or replace the rows",
        });
    }
    problems.extend(manifests.iter().flat_map(|manifest| forbidden(manifest, &rows)));
    problems
}

/// The rows that the manifests require. The order and the texts of the given rows are kept if the manifests
/// permit it.
fn correct(rows: Vec<Row>, manifests: &[Manifest]) -> Vec<Row> {
    let names: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    let mut missing: BTreeMap<&str, BTreeSet<String>> = manifests
        .iter()
        .map(|manifest| {
            let imports = manifest.dependencies.iter().filter(|name| names.contains(name.as_str()));
            (manifest.name.as_str(), imports.cloned().collect())
        })
        .collect();
    let mut wanted: Vec<Row> = Vec::new();
    for row in rows {
        let first = wanted.len();
        for name in &row.crates {
            let Some(imports) = missing.remove(name.as_str()) else { continue };
            // Crates stay in one row if they still have the same imports.
            match wanted[first..].iter_mut().find(|other| other.imports == imports) {
                Some(same) => same.crates.push(name.clone()),
                None => wanted.push(Row { crates: vec![name.clone()], imports, what: row.what.clone() }),
            }
        }
    }
    let new = |(name, imports): (&str, BTreeSet<String>)| Row {
        crates: vec![name.to_owned()],
        imports,
        what: "...".into(),
    };
    wanted.extend(missing.into_iter().map(new));
    downwards(wanted)
}

/// Sorts the rows so that each row imports only rows below it. A row moves only if it must.
fn downwards(mut rows: Vec<Row>) -> Vec<Row> {
    let mut ordered = Vec::with_capacity(rows.len());
    while !rows.is_empty() {
        let is_imported =
            |row: &Row| rows.iter().any(|other| row.crates.iter().any(|name| other.imports.contains(name)));
        // If rows of several crates import each other in a circle, they keep their order.
        let next = rows.iter().position(|row| !is_imported(row)).unwrap_or(0);
        ordered.push(rows.remove(next));
    }
    ordered
}

/// Finds imports that are forbidden whatever the table says: crates for tests, engines, and what tests may
/// not import.
fn forbidden(manifest: &Manifest, rows: &[Row]) -> Vec<Problem> {
    let name = manifest.name.as_str();
    let level = |name: &str| rows.iter().position(|row| row.crates.iter().any(|known| known == name));
    let mut problems = Vec::new();
    let mut problem = |what: String, remedy| {
        problems.push(Problem { place: format!("crate `{name}`"), what, remedy });
    };
    for import in &manifest.dependencies {
        if FOR_TESTS.iter().any(|(for_tests, _)| for_tests == import) {
            problem(format!("imports `{import}`, which is for tests"), "make it a dev-dependency");
        }
        if is_engine(import) && level(import).is_some() && name != NAMES_ENGINES {
            problem(format!("imports `{import}`"), "only cli names an engine");
        }
    }
    for import in manifest.dev_dependencies.iter().filter(|import| level(import).is_some()) {
        let is_for_tests = FOR_TESTS.iter().find(|(for_tests, _)| for_tests == import);
        let is_allowed = match is_for_tests {
            Some((_, users)) => users.iter().any(|user| matches(user, name)),
            None => level(import) > level(name) && !is_engine(import),
        };
        if !is_allowed {
            problem(
                format!("its tests import `{import}`"),
                "tests import crates below the crate, and those that FOR_TESTS in xtask/src/graph.rs allows",
            );
        }
    }
    problems
}

fn parse(line: &str) -> Row {
    let mut cells = line.trim_matches('|').splitn(3, '|').map(str::trim);
    let mut cell = || cells.next().unwrap_or_default();
    let crates = cell().split(',').map(|name| name.trim().trim_matches('`').to_owned()).collect();
    let imports = cell().split_whitespace().map(str::to_owned).collect();
    Row { crates, imports, what: cell().to_owned() }
}

/// A row as it stands in the file. The imports are in the order of the table.
fn render(row: &Row, rows: &[Row]) -> String {
    let crates: Vec<String> = row.crates.iter().map(|name| format!("`{name}`")).collect();
    let all: Vec<&String> = rows.iter().flat_map(|row| &row.crates).collect();
    let has_all_engines = all.iter().all(|name| !is_engine(name) || row.imports.contains(*name));
    let mut imports: Vec<&str> = Vec::new();
    for name in all.into_iter().filter(|name| row.imports.contains(*name)) {
        let shown = if has_all_engines && is_engine(name) { "engine-*" } else { name.as_str() };
        if !imports.contains(&shown) {
            imports.push(shown);
        }
    }
    format!("| {} | {} | {} |", crates.join(", "), imports.join(" "), row.what).replace("|  |", "| |")
}

fn is_engine(name: &str) -> bool {
    name.starts_with("engine-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, imports: &[&str], of_tests: &[&str]) -> Manifest {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Manifest {
            name: name.to_owned(),
            dependencies: owned(imports),
            dev_dependencies: owned(of_tests),
            ..Manifest::default()
        }
    }

    fn small() -> Vec<Manifest> {
        vec![
            manifest("cli", &["vfs", "engine-a", "engine-b", "clap"], &["skip"]),
            manifest("vfs", &["types"], &["skip"]),
            manifest("engine-a", &["types"], &["suite"]),
            manifest("engine-b", &["types"], &[]),
            manifest("suite", &["types"], &[]),
            manifest("types", &[], &[]),
            manifest("skip", &[], &[]),
        ]
    }

    const TABLE: &str = "\
# Map

| crate | imports | what it is |
|---|---|---|
| `cli` | vfs engine-* | the command |
| `vfs` | types | files |
| `engine-a`, `engine-b` | types | engines |
| `suite` | types | cases |
| `types`, `skip` | | values |

Text.
";

    fn found(text: &str, manifests: &[Manifest]) -> Vec<String> {
        check(text, manifests).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn table_that_agrees_is_accepted() {
        assert_eq!(found(TABLE, &small()), Vec::<String>::new());
    }

    #[test]
    fn right_rows_are_printed_if_an_import_is_added() {
        let mut manifests = small();
        manifests[3] = manifest("engine-b", &["types", "pool"], &[]);
        manifests.push(manifest("pool", &[], &[]));
        let found = found(TABLE, &manifests);
        assert_eq!(found.len(), 1);
        let rows = "\
| `cli` | vfs engine-* | the command |
| `vfs` | types | files |
| `engine-a` | types | engines |
| `engine-b` | types pool | engines |
| `suite` | types | cases |
| `types`, `skip` | | values |
| `pool` | | ... |
";
        assert!(found[0].starts_with("ARCHITECTURE.md:3: ") && found[0].contains(rows), "{}", found[0]);
    }

    #[test]
    fn import_of_a_row_above_moves_the_row() {
        let mut manifests = small();
        manifests[1] = manifest("vfs", &["types", "suite2"], &[]);
        manifests[4] = manifest("suite2", &["types"], &[]);
        manifests[2] = manifest("engine-a", &["types"], &[]);
        let table = TABLE.replace("`suite`", "`suite2`");
        assert!(found(&table, &manifests)[0].contains("| `vfs` | suite2 types | files |\n"));
        let upside_down = TABLE
            .replace("| `vfs` | types | files |\n", "")
            .replace("\nText", "| `vfs` | types | files |\n\nText");
        assert!(
            found(&upside_down, &small())[0].contains("| `vfs` | types | files |\n| `types`, `skip` | |")
        );
    }

    #[test]
    fn only_cli_imports_an_engine() {
        let mut manifests = small();
        manifests[1] = manifest("vfs", &["types", "engine-a"], &[]);
        assert!(
            found(TABLE, &manifests)
                .contains(&"crate `vfs`: imports `engine-a`; only cli names an engine".into())
        );
        manifests[1] = manifest("vfs", &["types"], &["engine-a"]);
        assert_eq!(found(TABLE, &manifests).len(), 1);
    }

    #[test]
    fn only_tests_import_what_is_for_tests() {
        let mut manifests = small();
        manifests[0] = manifest("cli", &["vfs", "engine-a", "engine-b", "clap"], &["suite"]);
        assert_eq!(found(TABLE, &manifests).len(), 1);
        manifests = small();
        manifests[1] = manifest("vfs", &["types"], &["cli"]);
        assert_eq!(found(TABLE, &manifests).len(), 1);
        manifests[1] = manifest("vfs", &["types", "skip"], &[]);
        assert_eq!(found(TABLE, &manifests).len(), 2);
    }

    #[test]
    fn missing_table_is_a_problem() {
        assert_eq!(found("# Map\n", &small()).len(), 1);
    }
}
