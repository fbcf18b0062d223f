//! `limen man`: writes the manual pages, from the definitions that `--help` shows too.
//!
//! clap_mangen renders all sections except the text after the options. It would join the lines of the
//! examples and tables in that text into paragraphs.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use clap::{Command, ValueHint};
use clap_mangen::Man;
use command::error::{CliError, ErrorAt};
use command::output;
use rustix::fs::Mode;

/// Every command is in the section of user commands, even a command that only root can use.
const SECTION: &str = "1";

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Where to write limen.1, limen-mount.1 and so on; created if it does not exist
    #[arg(value_hint = ValueHint::DirPath, default_value = ".")]
    dir: PathBuf,
}

/// `top` is the definition of `limen`.
pub(crate) fn run(args: &ManArgs, top: Command) -> Result<(), CliError> {
    const FAILED: &str = "cannot write the manual pages";
    let pages = pages(top).what(FAILED)?;
    // Every user reads manual pages, but the usual umask of this program denies others everything.
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    fs::create_dir_all(&args.dir).what(FAILED).at(args.dir.display())?;
    for (name, text) in &pages {
        let path = args.dir.join(name);
        // The mode is also set on a page that exists, because another umask may have made that page
        // unreadable.
        let written =
            fs::write(&path, text).and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)));
        written.what(FAILED).at(path.display())?;
    }
    output::print(&format!("Wrote {} manual pages to {}.\n", pages.len(), args.dir.display()))
}

/// The file names and texts of the pages of all commands and their subcommands.
///
/// # Errors
/// Errors of clap_mangen; it has none when it writes to memory.
fn pages(top: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut top = top.disable_help_subcommand(true);
    top.build();
    let mut pages = Vec::new();
    let mut waiting = vec![top];
    while let Some(command) = waiting.pop() {
        waiting.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
        pages.push(page(command)?);
    }
    pages.sort();
    Ok(pages)
}

fn page(command: Command) -> io::Result<(String, Vec<u8>)> {
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let has_subcommands = command.get_subcommands().any(|below| !below.is_hide_set());
    let man = Man::new(command).section(SECTION).source(concat!("limen ", env!("CARGO_PKG_VERSION")));
    let man = man.manual("limen manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend(notes(&after.unwrap_or_default()).into_bytes());
    if let Some((parent, _)) = name.rsplit_once('-') {
        text.extend(format!(".SH \"SEE ALSO\"\n{}({SECTION})\n", escape(parent)).into_bytes());
    }
    Ok((man.get_filename(), text))
}

/// Renders the text after the options. A line that begins with two spaces is a term or an example. Its
/// explanation follows after more spaces, or in lines that are indented deeper. Other lines are paragraphs.
fn notes(after: &str) -> String {
    let mut text = String::new();
    let mut put = |line: &str| text.push_str(&format!("{line}\n"));
    let mut is_begun = false;
    let mut is_indented = false;
    for line in after.lines() {
        let inner = line.trim_start();
        match line.len() - inner.len() {
            _ if inner.is_empty() => put(".PP"),
            0 if inner == "Example:" || inner == "Examples:" => {
                put(".SH EXAMPLES");
                (is_begun, is_indented) = (true, false);
            }
            0 => {
                if !is_begun {
                    put(".SH NOTES");
                } else if is_indented {
                    put(".PP");
                }
                put(&escape(inner));
                (is_begun, is_indented) = (true, false);
            }
            1..=2 => {
                put(".TP");
                let (term, explanation) = inner.split_once("  ").unwrap_or((inner, ""));
                put(&format!("\\fB{}\\fR", escape(term)));
                if !explanation.is_empty() {
                    put(&escape(explanation.trim_start()));
                }
                is_indented = true;
            }
            _ => put(&escape(inner)),
        }
    }
    text
}

/// Escapes what roff would interpret.
fn escape(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    /// All commands, each with the name of its page.
    fn commands() -> Vec<(String, Command)> {
        let mut top = Args::command().disable_help_subcommand(true);
        top.build();
        let mut found = vec![("limen".to_owned(), top)];
        let mut next = 0;
        while let Some((name, command)) = found.get(next) {
            let below: Vec<_> = command
                .get_subcommands()
                .map(|below| (format!("{name}-{}", below.get_name()), below.clone()))
                .collect();
            found.extend(below);
            next += 1;
        }
        found
    }

    #[test]
    fn every_command_has_a_page_with_all_its_options() {
        let pages = pages(Args::command()).unwrap();
        let commands = commands();
        assert_eq!(pages.len(), commands.len());
        for (name, command) in commands {
            let file = format!("{name}.1");
            let page = pages.iter().find(|(page, _)| *page == file);
            let page =
                String::from_utf8(page.unwrap_or_else(|| panic!("{file} is missing")).1.clone()).unwrap();
            for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
                assert!(page.contains(section), "{file} has no {section}");
            }
            let plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "");
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                let long = option.get_long().map(|long| format!("--{long}"));
                let short = option.get_short().map(|short| format!("-{short}"));
                for text in [long, short].into_iter().flatten() {
                    let options = &plain[plain.find(".SH OPTIONS").unwrap()..];
                    assert!(options.contains(&text), "{file} does not describe {text}");
                }
            }
        }
    }

    #[test]
    fn every_user_can_read_a_page_that_was_private() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("limen.1");
        fs::write(&page, "old").unwrap();
        fs::set_permissions(&page, Permissions::from_mode(0o600)).unwrap();
        run(&ManArgs { dir: dir.path().to_owned() }, Args::command()).unwrap();
        assert_eq!(fs::metadata(&page).unwrap().mode() & 0o777, 0o644);
        assert_ne!(fs::read_to_string(&page).unwrap(), "old");
    }

    #[test]
    fn terms_and_examples_are_paragraphs_of_their_own() {
        let text = "About -o:\n  ro       mount read-only\n  a, b\n           both\n\nExamples:\n  limen x \\\n      .y\n";
        let expected = ".SH NOTES\nAbout \\-o:\n.TP\n\\fBro\\fR\nmount read\\-only\n.TP\n\\fBa, b\\fR\nboth\n.PP\n\
                        .SH EXAMPLES\n.TP\n\\fBlimen x \\e\\fR\n\\&.y\n";
        assert_eq!(notes(text), expected);
    }
}
