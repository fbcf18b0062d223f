//! `limen ls`: names, attributes and ACLs of whole directories in bulk.
//!
//! | module | what it holds |
//! |---|---|
//! | `source` | reads directories from a volume's records or from the kernel |
//! | `print` | formats text and JSON |

mod print;
mod source;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::ValueHint;
use command::error::CliError;
use command::output;
use types::Name;

use self::print::Printer;
use self::source::{Directory, Lister, Operand};
use crate::target::{Target, join, show_name};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LsArgs {
    /// Files or directories, as PATH or META-URL:PATH
    #[arg(value_name = "PATH|META-URL:PATH", value_hint = ValueHint::AnyPath, default_value = ".")]
    targets: Vec<OsString>,
    /// Show mode, links, owner, group, size, modification time (UTC), and the targets of symbolic links
    #[arg(short)]
    long: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show names that begin with a dot; --json always shows them
    #[arg(short, long)]
    all: bool,
    /// Show numeric ids instead of names of users and groups
    #[arg(short)]
    numeric: bool,
    /// Print a line of JSON for each name, with ACLs
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Names are sorted by their bytes. Directories of a volume are read in pages, so memory use does not grow with their size. A
plus after the mode means that the file has an ACL; --json shows its entries. Control characters in names are escaped.

A directory on a limenfs volume that this user or root has mounted is read from the volume's database, 1,024 entries per
request and without a system call for each file; the kernel is asked once per directory whether the user can read it. The
size of a file that is being written can be about five seconds old. On other mounts and file systems, each file is read
through the kernel.

META-URL:PATH is a path from the root of a volume, mounted or not: sqlite:///var/lib/limen/home.db:/project.
The path begins at the first :/ after the :// of the URL; without a path, the root directory is listed. Everyone with access
to the database can see the whole volume this way.

Exit codes: 0 everything was listed, 1 something below the named files could not be listed, 2 a named file could not be
listed, or the command line is wrong.

Examples:
  limen ls -l /mnt/project
  limen ls -R --json sqlite:///var/lib/limen/home.db | jq -r 'select(.access_acl) | .path'";

/// How many subdirectories of one directory are kept in memory; the names of further ones are read again
/// later.
const MAX_BELOW: usize = 1024;

pub(crate) fn run(args: &LsArgs) -> ExitCode {
    let mut walk = Walk { args, printer: Printer::new(args.long, args.numeric, args.json), code: 0 };
    match walk.all() {
        Err(error) if !error.is_reported() => {
            output::note(&error);
            ExitCode::from(2)
        }
        _ => ExitCode::from(walk.code),
    }
}

struct Walk<'a> {
    args: &'a LsArgs,
    printer: Printer,
    code: u8,
}

/// A directory whose subdirectories are being listed.
struct Frame {
    directory: Directory,
    path: Vec<u8>,
    below: VecDeque<Name>,
    /// The name after which more subdirectories may follow.
    rest: Option<Name>,
}

impl Walk<'_> {
    fn all(&mut self) -> Result<(), CliError> {
        let with_heads = self.args.recursive || self.args.targets.len() > 1;
        for text in &self.args.targets {
            let opened = Target::parse(text)
                .and_then(|target| Operand::open(target, self.args.long || self.args.json));
            match opened {
                Ok(Operand::File { row, path }) => {
                    self.printer.row(row, &path)?;
                    self.printer.end_of_page()?;
                }
                Ok(Operand::Directory { lister, directory, path }) => {
                    self.tree(&lister, directory, path, with_heads)?
                }
                Err(error) => {
                    output::note(error);
                    self.code = 2;
                }
            }
        }
        self.printer.finish()
    }

    /// Lists a directory, and with `-R` all directories below it.
    fn tree(
        &mut self,
        lister: &Lister,
        directory: Directory,
        path: Vec<u8>,
        with_heads: bool,
    ) -> Result<(), CliError> {
        let mut frames = Vec::new();
        frames.extend(self.directory(lister, directory, path, with_heads)?);
        while let Some(frame) = frames.last_mut() {
            if frame.below.is_empty()
                && let Some(rest) = frame.rest.take()
            {
                (frame.below, frame.rest) =
                    lister.directories(&frame.directory, rest, MAX_BELOW, self.args.hides())?;
            }
            let Some(name) = frame.below.pop_front() else {
                frames.pop();
                continue;
            };
            let path = join(&frame.path, name.as_bytes());
            match lister.open_below(&frame.directory, &name)? {
                Ok(directory) => frames.extend(self.directory(lister, directory, path, with_heads)?),
                Err(errno) => {
                    self.head(&path, with_heads)?;
                    self.fail(format!("cannot open directory '{}': {errno}", show_name(&path)));
                }
            }
        }
        Ok(())
    }

    /// Lists one directory.
    fn directory(
        &mut self,
        lister: &Lister,
        directory: Directory,
        path: Vec<u8>,
        with_heads: bool,
    ) -> Result<Option<Frame>, CliError> {
        self.head(&path, with_heads)?;
        let (mut below, mut rest) = (VecDeque::new(), None);
        let mut unseen: Option<String> = None;
        let printer = &mut self.printer;
        let (hides, recursive) = (self.args.hides(), self.args.recursive);
        let listed = lister.list(&directory, None, &mut |row, is_below| {
            if hides && row.name.starts_with(b".") {
                return Ok(());
            }
            if row.attr.is_none() && unseen.is_none() {
                unseen = Some(show_name(&row.name));
            }
            if recursive && is_below && rest.is_none() {
                let name = Name::new(&row.name)?;
                if below.len() < MAX_BELOW {
                    below.push_back(name);
                } else {
                    rest = below.back().cloned();
                }
            }
            printer.row(row, &path)
        })?;
        self.printer.end_of_page()?;
        if let Err(errno) = listed {
            self.fail(format!("cannot read directory '{}': {errno}", show_name(&path)));
        }
        if let Some(name) = unseen {
            let dir = show_name(&path);
            self.fail(format!(
                "cannot access '{name}' and possibly more files in '{dir}': permission denied, or damaged (see limen fsck)"
            ));
        }
        Ok(recursive.then_some(Frame { directory, path, below, rest }))
    }

    fn head(&mut self, path: &[u8], with_heads: bool) -> Result<(), CliError> {
        if with_heads { self.printer.head(path) } else { Ok(()) }
    }

    /// Reports that something cannot be listed; the listing continues.
    fn fail(&mut self, what: String) {
        output::note(what);
        self.code = self.code.max(1);
    }
}

impl LsArgs {
    fn hides(&self) -> bool {
        !self.all && !self.json
    }
}
