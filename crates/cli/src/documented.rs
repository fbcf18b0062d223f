//! Tests that the help text, README.md and the documents name what this program accepts, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

use crate::args::Args;
use crate::options;
use crate::schemes::{SCHEMES, Scheme};
use crate::url::MetaUrl;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(top().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// README.md, SEMANTICS.md and the files of docs, each with its name.
fn documents() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned(), "SEMANTICS.md".to_owned()];
    for entry in fs::read_dir(top().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.into_iter().map(|name| (name.clone(), read(&name))).collect()
}

/// Every `SCHEME` of a `SCHEME://` in a text.
fn schemes_in(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '+';
    let scheme = |(at, _): (usize, &str)| {
        let before = &text[..at];
        &before[before.trim_end_matches(is_part).len()..]
    };
    text.match_indices("://").map(scheme).filter(|scheme| !scheme.is_empty()).collect()
}

fn store_schemes() -> impl Iterator<Item = &'static str> {
    chunk::STORES
        .iter()
        .flat_map(|store| store.buckets.iter())
        .map(|(scheme, _)| *scheme)
        .filter(|scheme| !scheme.is_empty())
}

#[test]
fn help_names_every_scheme_and_no_other() {
    let help = Args::command().render_long_help().to_string();
    let accepted: BTreeSet<&str> = SCHEMES
        .iter()
        .filter(|scheme| scheme.is_built())
        .flat_map(Scheme::names)
        .chain(store_schemes())
        .collect();
    assert_eq!(schemes_in(&help), accepted);
    for scheme in SCHEMES {
        let url = MetaUrl::parse(scheme.example).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(url.engine(), scheme.engine.name());
        assert_eq!(help.contains(scheme.example), scheme.is_built(), "{}", scheme.example);
    }
    for store in chunk::STORES {
        assert!(help.contains(&format!("\n  {} ", store.name)), "{} is missing", store.name);
        assert!(store.buckets.iter().all(|(_, example)| help.contains(example)), "{}", store.name);
    }
}

#[test]
fn readme_names_every_scheme_and_no_other() {
    let readme = read("README.md");
    let accepted: BTreeSet<&str> = SCHEMES.iter().flat_map(Scheme::names).chain(store_schemes()).collect();
    let named = schemes_in(&readme);
    assert!(named.is_subset(&accepted), "not accepted: {named:?}");
    // README need not name these.
    let left_out = ["gs", "sftp"];
    assert!(accepted.iter().all(|scheme| named.contains(scheme) || left_out.contains(scheme)), "{named:?}");
}

#[test]
fn help_of_mount_names_every_option_and_no_other() {
    let command = Args::command();
    let help = command.find_subcommand("mount").and_then(Command::get_after_help).unwrap().to_string();
    let (table, _) = help.split_once("\n\nExamples:").unwrap();
    let mut shown = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let (names, _) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        let names = names.split(',').map(|name| name.split('=').next().unwrap_or_default().trim());
        shown.extend(names.filter(|name| !name.is_empty() && *name != "x-NAME"));
    }
    assert_eq!(shown, options::names().into_iter().collect());
}

#[test]
fn every_command_is_documented() {
    let all: String = documents().into_iter().map(|(_, text)| text).collect();
    let command = Args::command();
    for below in command.get_subcommands() {
        let name = below.get_name();
        assert!(all.contains(&format!("limen {name}")), "limen {name} is in no document");
        for third in below.get_subcommands() {
            let name = format!("{name} {}", third.get_name());
            assert!(all.contains(&format!("limen {name}")), "limen {name} is in no document");
        }
    }
}

#[test]
fn documented_commands_and_options_exist() {
    let mut top = Args::command();
    top.build();
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        for line in code_in(&text) {
            for call in calls_in(&line) {
                if let Err(what) = check_call(&top, &call) {
                    wrong.push(format!("{name}: {what} in: {call}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The messages in the first column of the tables of docs/troubleshooting.md are in the source of this
/// program. Words in capitals and numbers are not compared.
#[test]
fn messages_of_troubleshooting_exist() {
    let source = format!(" {} ", words(&sources(&top().join("crates"))).join(" "));
    let text = read("docs/troubleshooting.md");
    let cells = text.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(1));
    let is_placeholder = |word: &String| !word.contains(|c: char| c.is_ascii_lowercase());
    let mut count = 0;
    for message in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        for part in message.replace("...", ";").split([';', ':']).map(words) {
            for fixed in part.split(is_placeholder).filter(|fixed| !fixed.is_empty()) {
                let fixed = fixed.join(" ");
                assert!(source.contains(&format!(" {fixed} ")), "no '{fixed}', of: {message}");
                count += 1;
            }
        }
    }
    assert!(count > 50, "only {count} parts of messages were found");
}

/// The words of a text, without punctuation.
fn words(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '/';
    text.split(|c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The text of all source files below a folder, except those in folders named `tests` or `target`, and this
/// file.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            if path.is_dir() && !path.ends_with("tests") && !path.ends_with("target") {
                waiting.push(path);
            } else if is_source && !path.ends_with("documented.rs") {
                all.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    all
}

/// The lines of code blocks, and the code spans of other lines, of a Markdown text.
fn code_in(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut found = Vec::new();
    let mut is_fenced = false;
    let mut paragraph = String::new();
    for line in joined.lines().chain([""]) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            found.push(line.to_owned());
        } else if line.is_empty() || line.starts_with('|') {
            // A code span can continue in the next line of its paragraph.
            found.extend(paragraph.split('`').skip(1).step_by(2).map(str::to_owned));
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
            paragraph.clear();
        } else {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    found
}

/// The calls of `limen` in a line of shell, without quoted text and comments.
fn calls_in(line: &str) -> Vec<String> {
    let unquoted: String = line.split('\'').step_by(2).collect::<Vec<_>>().join("QUOTED");
    let unquoted: String = unquoted.split('"').step_by(2).collect::<Vec<_>>().join("QUOTED");
    let command = unquoted.split(" #").next().unwrap_or_default();
    let parts = command.split(['|', ';', '&']).map(str::trim);
    parts.filter(|part| part.starts_with("limen ")).map(str::to_owned).collect()
}

fn check_call(top: &Command, call: &str) -> Result<(), String> {
    let mut command = top;
    let mut words = call.split_whitespace().skip(1).peekable();
    if let Some(first) = words.peek().filter(|word| !word.starts_with('-'))
        && top.find_subcommand(first).is_none()
    {
        return Err(format!("no command {first}"));
    }
    let mut is_list = false;
    for word in words {
        if is_list {
            check_options(word)?;
            is_list = false;
        } else if let Some(long) = word.strip_prefix("--") {
            let long = long.split('=').next().unwrap_or_default();
            let has = |arg: &clap::Arg| {
                arg.get_long() == Some(long)
                    || arg.get_visible_aliases().is_some_and(|all| all.contains(&long))
            };
            if !command.get_arguments().any(has) {
                return Err(format!("{} has no option --{long}", command.get_name()));
            }
        } else if let Some(letters) = word.strip_prefix('-') {
            is_list = letters == "o";
            let has = |letter| command.get_arguments().any(|arg| arg.get_short() == Some(letter));
            if let Some(letter) = letters.chars().find(|letter| !has(*letter)) {
                return Err(format!("{} has no option -{letter}", command.get_name()));
            }
        } else if let Some(below) = command.find_subcommand(word) {
            command = below;
        }
    }
    Ok(())
}

/// Checks the list of `-o`.
fn check_options(list: &str) -> Result<(), String> {
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let name = option.split('=').next().unwrap_or_default();
        if !options::names().contains(&name) && !name.starts_with("x-") {
            return Err(format!("no mount option {name}"));
        }
    }
    Ok(())
}

#[test]
fn wrong_calls_are_found() {
    let mut top = Args::command();
    top.build();
    let check = |line: &str| calls_in(line).iter().try_for_each(|call| check_call(&top, call));
    for right in [
        "limen ls -lR /mnt | grep --color x",
        "limen mount -d -o shared,cache=1G,x-a.b URL /mnt   # --no",
        "limen access audit /mnt --what-if 'setfacl -R' --json",
        "limen --help",
        "cargo run --bin x",
    ] {
        assert_eq!(check(right), Ok(()), "{right}");
    }
    for wrong in [
        "limen frob",
        "limen ls -x",
        "limen mount -o sharde URL",
        "true && limen gc --grase 1h",
        "limen access explain --who x",
    ] {
        assert!(check(wrong).is_err(), "{wrong}");
    }
    assert_eq!(code_in("a `b\nc` d\n\n    e\n```sh\nf \\\ng\n```\n"), ["b c", "    e", "f  g"]);
}
