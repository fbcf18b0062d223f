//! The helper that umount(8) executes for mounts of the type `fuse.limen`: this program under the name
//! `umount.fuse.limen`. It unmounts like `limen umount`, so umount(8) returns when all data is stored.
//!
//! libmount takes the type from mountinfo(5) for `umount -a`, and with the options `-c` (as systemd calls
//! it), `-f` and `-l`. For `umount DIR` it takes the type from statfs(2), which reports only `fuse`.
//! umount(8) then unmounts by itself, and does not wait.

use std::ffi::OsString;

use clap::Parser;
use command::error::CliError;
use command::output;

use crate::args::{Args, Command};
use crate::log;
use crate::umount::{self, UmountArgs};

pub(crate) const NAME: &str = "umount.fuse.limen";

const HELP: &str = "\
Usage: umount.fuse.limen DIR [-flnrv] [-t TYPE]

umount(8) executes this program for mounts of limenfs if it is called with -a, -c (as systemd calls it), -f or -l. It does
what limen umount does: it returns when all data is stored.

  -f  abort requests in flight
  -l  detach the mount at once, and do not wait
  -n, -r, -v, -t TYPE
      accepted without an effect

Exit codes, as of umount(8): 0 unmounted, 1 the arguments are wrong, 32 the volume is still mounted, or its data is not
stored yet.
";

/// The arguments, or a text to print instead of unmounting.
#[derive(Debug)]
enum Asked {
    Umount(UmountArgs),
    Text(String),
}

/// # Errors
/// The arguments are wrong; the errors of `limen umount`.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), CliError> {
    match parse(args)? {
        Asked::Text(text) => output::print(&text),
        Asked::Umount(args) => {
            log::init("off", None, None)?;
            umount::run(&args)
        }
    }
}

fn parse(args: Vec<OsString>) -> Result<Asked, CliError> {
    let (mut dirs, mut options) = (Vec::new(), vec!["limen", "umount"]);
    let (mut force, mut lazy) = (false, false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        match text {
            "--help" => return Ok(Asked::Text(HELP.to_owned())),
            "--version" => return Ok(Asked::Text(version())),
            _ => {}
        }
        let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            dirs.push(arg);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'f' => force = true,
                'l' => lazy = true,
                'n' | 'r' | 'v' => {}
                'h' => return Ok(Asked::Text(HELP.to_owned())),
                'V' => return Ok(Asked::Text(version())),
                't' => {
                    // The value is the rest of this argument, or the next one.
                    if letters.len() == at + 1 {
                        args.next();
                    }
                    break;
                }
                'N' => return Err(wrong("another mount namespace is not supported", "-N")),
                _ => return Err(wrong("unknown option", &format!("-{letter}"))),
            }
        }
    }
    let [dir] = &dirs[..] else { return Err(wrong("the argument must be one directory", NAME)) };
    // If both -f and -l are given, --force is enough: it also detaches a mount that is in use.
    options.extend(if force { Some("--force") } else { lazy.then_some("--lazy") });
    let words = options.into_iter().map(OsString::from).chain(["--".into(), dir.clone()]);
    match Args::try_parse_from(words).map(|args| args.command) {
        Ok(Command::Umount(args)) => Ok(Asked::Umount(args)),
        Ok(_) => Err(CliError::usage("the arguments are not those of an unmount")),
        Err(error) => Err(CliError::usage(error.render())),
    }
}

fn version() -> String {
    format!("{NAME} {}\n", env!("CARGO_PKG_VERSION"))
}

fn wrong(what: &str, place: &str) -> CliError {
    CliError::usage(what).at(place).advise(format!("see {NAME} --help"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<String, CliError> {
        parse(args.split_whitespace().map(OsString::from).collect()).map(|asked| match asked {
            Asked::Umount(args) => format!("{args:?}"),
            Asked::Text(text) => text,
        })
    }

    #[test]
    fn arguments_of_umount_are_parsed() {
        // The arguments have the form in which libmount passes them.
        for (args, force, lazy) in [
            ("/mnt -n", false, false),
            ("/mnt", false, false),
            ("/mnt -l -v -t fuse.limen", false, true),
            ("/mnt -l -f -v -r", true, false),
            ("-tfuse.limen -nl /mnt", false, true),
        ] {
            let args = parsed(args).unwrap();
            let parts = ["\"/mnt\"", &format!("force: {force}"), &format!("lazy: {lazy}")];
            assert!(parts.iter().all(|part| args.contains(part)), "{args}");
        }
        assert_eq!(parsed("-h").unwrap(), HELP);
        assert!(parsed("/mnt -V").unwrap().starts_with("umount.fuse.limen "));
        for (args, part) in
            [("", "one directory"), ("/a /b", "one directory"), ("/a -x", "-x"), ("/a -N 5", "-N")]
        {
            let error = parsed(args).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(part), "{error}");
        }
    }
}
