//! Walks the workspace and applies the rules of the other files to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::circles;
use crate::documents;
use crate::graph::{self, GRAPH_FILE};
use crate::host_only;
use crate::language;
use crate::manifest::{self, Manifest};
use crate::names::Names;
use crate::problem::Problem;
use crate::source;

/// The folders and files whose language is checked.
const TEXT_FOLDERS: &[&str] = &["crates", "docs", "scripts", "tests", "xtask"];
const TEXT_EXTENSIONS: &[&str] = &["rs", "md", "sh", "sql", "lua", "toml", "py", "c", "go"];
const TEXT_FILES: &[&str] =
    &["README.md", "ARCHITECTURE.md", "SEMANTICS.md", "CHANGELOG.md", "Cargo.toml", "Makefile"];

/// The numbers of checked crates and files, and the problems found.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) crates: usize,
    pub(crate) files: usize,
    pub(crate) problems: Vec<Problem>,
}

/// Checks every crate of the checkout at `top`.
///
/// # Errors
/// A file cannot be read; the message contains its path.
pub(crate) fn check(top: &Path) -> io::Result<Summary> {
    let mut folders = subfolders(&top.join("crates"))?;
    folders.push(top.join("xtask"));
    let mut summary = Summary::default();
    let mut manifests = Vec::new();
    let mut names = Names::default();
    for folder in folders {
        manifests.push(check_crate(top, &folder, &mut summary, &mut names)?);
        summary.crates += 1;
    }
    summary.problems.extend(names.check());
    summary.problems.extend(graph::check(&read(&top.join(GRAPH_FILE))?, &manifests));
    for folder in TEXT_FOLDERS {
        for path in files(&top.join(folder), TEXT_EXTENSIONS)? {
            summary.problems.extend(check_text(top, &below(top, &path), &read(&path)?));
        }
    }
    for name in TEXT_FILES {
        summary.problems.extend(check_text(top, name, &read(&top.join(name))?));
    }
    summary.problems.extend(language::check_subjects(top));
    Ok(summary)
}

fn check_text(top: &Path, place: &str, text: &str) -> Vec<Problem> {
    let mut problems = language::check_words(place, text);
    if place.ends_with(".md") {
        problems.extend(documents::check(place, text, |path| {
            let path = top.join(path);
            if path.is_dir() { Some(String::new()) } else { fs::read_to_string(path).ok() }
        }));
    }
    problems
}

fn check_crate(top: &Path, folder: &Path, summary: &mut Summary, names: &mut Names) -> io::Result<Manifest> {
    let manifest_path = folder.join("Cargo.toml");
    let manifest = Manifest::parse(&read(&manifest_path)?);
    let folder_name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let place = below(top, &manifest_path);
    summary.problems.extend(manifest::check(&folder_name, &place, &manifest));

    let mut modules = Vec::new();
    for path in files(folder, &["rs"])? {
        let text = read(&path)?;
        let place = below(top, &path);
        let inside = path.strip_prefix(folder).unwrap_or(&path);
        summary.problems.extend(source::check(&folder_name, &place, inside, &text));
        summary.problems.extend(host_only::check(&folder_name, &place, inside, &text));
        summary.problems.extend(language::check_names(&place, &text));
        names.add(&folder_name, &place, inside, &text);
        if inside.starts_with("src") {
            modules.push((inside.to_path_buf(), text));
        }
        summary.files += 1;
    }
    for dead in source::dead_files(&modules) {
        summary.problems.push(Problem {
            place: below(top, &folder.join(&dead)),
            what: "no `mod` line declares this file".into(),
            remedy: "declare it or delete it",
        });
    }
    summary.problems.extend(circles::check(&below(top, folder), &modules));
    for path in files(folder, &["sql", "lua"])? {
        let inside = path.strip_prefix(folder).unwrap_or(&path);
        if inside.starts_with("src") {
            modules.push((inside.to_path_buf(), read(&path)?));
        }
    }
    summary.problems.extend(source::check_length(&folder_name, &below(top, folder), &modules));
    Ok(manifest)
}

/// All files with these extensions below a folder, sorted.
fn files(folder: &Path, extensions: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in named(&directory, fs::read_dir(&directory))? {
            let path = named(&directory, entry)?.path();
            if path.is_dir() {
                // A fuzz crate has its own target folder.
                if path.file_name().is_some_and(|name| name != "target") {
                    waiting.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|found| extensions.iter().any(|extension| found == *extension))
            {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn subfolders(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in named(directory, fs::read_dir(directory))? {
        let path = named(directory, entry)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

fn read(path: &Path) -> io::Result<String> {
    named(path, fs::read_to_string(path))
}

/// Adds the path to an error's message; the standard library does not.
fn named<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn below(top: &Path, path: &Path) -> String {
    path.strip_prefix(top).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_folder_is_named() {
        let error = check(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/crates"), "{error}");
    }
}
