//! How the command line is parsed, and how `--help` and its errors look: lines of at most [`WIDTH`] columns,
//! and no suggestion of a command that removes something.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};

use crate::args::Args;

/// No line of a help text is longer. `clap` breaks lines earlier on a narrower terminal.
const WIDTH: usize = 100;

/// Commands that remove something. None of these is suggested for a misspelled command, because people run
/// suggestions without reading them.
const REMOVING: &[&str] = &["destroy", "rmr", "gc", "delete", "purge"];

/// Names that people try for commands, and the names that these commands have in limen.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("undelete", "limen restore"),
    ("recover", "limen restore (removed files), or limen backup restore (a volume)"),
    ("export", "limen dump"),
    ("import", "limen load"),
    ("du", "limen summary"),
    ("check", "limen fsck"),
    ("top", "limen profile, or limen stats"),
    ("acl", "limen access"),
    ("explain", "limen access explain"),
    ("audit", "limen access audit"),
];

/// The arguments of this process. Ends the process if they are wrong, or if they ask for help.
pub(crate) fn parse() -> Args {
    let parsed = command().try_get_matches().and_then(|matches| Args::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| without_removing(error).exit())
}

/// The definition of the command line, with texts of at most [`WIDTH`] columns.
pub(crate) fn command() -> Command {
    narrow(Args::command().max_term_width(WIDTH))
}

fn narrow(command: Command) -> Command {
    let after = command.get_after_help().map(|text| fold(&text.to_string()));
    let command = match after {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(narrow)
}

/// Breaks the lines of a text after the options. A line without indentation continues the paragraph of the
/// line above it. An indented line is a term with its explanation after two spaces or more, or continues an
/// explanation in the same column. A line that is neither, such as an example, stays as it is.
fn fold(text: &str) -> String {
    let mut folded = String::new();
    // The column in which the open paragraph or explanation goes on.
    let mut open: Option<usize> = None;
    let mut used = 0;
    for line in text.lines() {
        let inner = line.trim_start();
        let indent = line.len() - inner.len();
        let explained = inner.find("  ").filter(|_| indent > 0).map(|end| {
            let gap = inner[end..].len() - inner[end..].trim_start().len();
            (&line[..indent + end + gap], inner[end..].trim_start())
        });
        let words = match (inner, explained) {
            ("", _) => {
                folded.push_str("\n\n");
                (open, used) = (None, 0);
                continue;
            }
            (_, Some((term, explanation))) => {
                folded.push('\n');
                folded.push_str(term);
                (open, used) = (Some(term.chars().count()), term.chars().count());
                explanation
            }
            (_, None) if open == Some(indent) => inner,
            (_, None) => {
                folded.push('\n');
                folded.push_str(&line[..indent]);
                // The next line must not be joined to an example.
                let is_open = indent != 2 && !inner.ends_with(':');
                (open, used) = (is_open.then_some(indent), indent);
                if !is_open {
                    folded.push_str(inner);
                    continue;
                }
                inner
            }
        };
        let start = open.unwrap_or(0);
        for word in words.split(' ') {
            let width = word.chars().count();
            if used > start && used + 1 + width > WIDTH {
                folded.push('\n');
                folded.extend(std::iter::repeat_n(' ', start));
                used = start;
            }
            if used > start {
                folded.push(' ');
                used += 1;
            }
            folded.push_str(word);
            used += width;
        }
    }
    folded.trim_start_matches('\n').replace("\n\n\n", "\n\n")
}

/// Removes suggestions of commands that remove something from the error. If the unknown name is one of
/// [`OTHER_NAMES`], suggests the command of limen.
fn without_removing(mut error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let text = |value: Option<&ContextValue>| match value {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(all)) => all.clone(),
        _ => Vec::new(),
    };
    let similar = text(error.get(ContextKind::SuggestedSubcommand));
    let kept: Vec<String> = similar.into_iter().filter(|name| !REMOVING.contains(&name.as_str())).collect();
    let given = text(error.get(ContextKind::InvalidSubcommand));
    let here = OTHER_NAMES.iter().find(|(name, _)| given.iter().any(|given| given == name));
    match here {
        Some((_, ours)) => {
            error.remove(ContextKind::SuggestedSubcommand);
            let tip = StyledStr::from(format!("write {ours}"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        None if kept.is_empty() => {
            error.remove(ContextKind::SuggestedSubcommand);
        }
        None => {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(kept));
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(command: Command) -> Vec<Command> {
        let below: Vec<Command> = command.get_subcommands().cloned().collect();
        [command].into_iter().chain(below.into_iter().flat_map(all)).collect()
    }

    #[test]
    fn no_line_of_a_help_text_is_longer_than_100_columns() {
        let mut top = command();
        top.build();
        let mut long = Vec::new();
        for command in all(top) {
            // This is the width that clap uses if standard output is not a terminal.
            let mut command = command.term_width(WIDTH);
            for text in [command.render_help(), command.render_long_help()] {
                let text = text.to_string();
                let lines = text.lines().filter(|line| line.chars().count() > WIDTH);
                long.extend(lines.map(|line| format!("{}: {line}", command.get_name())));
            }
        }
        assert!(long.is_empty(), "{}", long.join("\n"));
    }

    #[test]
    fn paragraphs_and_explanations_are_folded_and_examples_are_not() {
        let long = "word ".repeat(25);
        let long = long.trim_end();
        let text = format!(
            "{long}\nthe end.\n\n  term  {long}\n        more\n  other  one\n\nExamples:\n  limen {long}"
        );
        let (first, rest) = (["word"; 20].join(" "), ["word"; 5].join(" "));
        let (in_term, left) = (["word"; 18].join(" "), ["word"; 7].join(" "));
        assert_eq!(
            fold(&text),
            format!(
                "{first}\n{rest} the end.\n\n  term  {in_term}\n        {left} more\n  other  one\n\nExamples:\n  limen {long}"
            )
        );
    }

    #[test]
    fn a_command_that_removes_something_is_never_suggested() {
        let said = |args: &[&str]| {
            let error = command().try_get_matches_from([&["limen"], args].concat()).unwrap_err();
            without_removing(error).to_string()
        };
        for name in ["restor", "undelete", "recover", "destro", "destory", "rm", "rmt", "gcc", "g"] {
            let text = said(&[name]);
            assert!(REMOVING.iter().all(|command| !text.contains(&format!("'{command}'"))), "{text}");
        }
        assert!(!said(&["quota", "delet"]).contains("'delete'"));
        assert!(said(&["restor"]).contains("'restore'"));
        assert!(said(&["recover"]).contains("limen backup restore"));
        assert!(said(&["undelete"]).contains("limen restore"));
        assert!(said(&["statsu"]).contains("'stat"));
    }
}
