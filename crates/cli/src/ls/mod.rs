//! `limen ls`: names, attributes and ACLs of whole directories in bulk.
//!
//! | module | what it holds |
//! |---|---|
//! | `source` | directories, read from a volume's records, or from the kernel |
//! | `print` | lines for people and for programs |

mod print;
mod source;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::ValueHint;
use types::Name;

use self::print::Printer;
use self::source::{Lister, Operand, Place, Stop};
use crate::fault::Fault;
use crate::output;
use crate::target::{Target, show_name};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LsArgs {
    /// Files or directories, as PATH or META-URL:PATH
    #[arg(value_name = "PATH|META-URL:PATH", value_hint = ValueHint::AnyPath, default_value = ".")]
    targets: Vec<OsString>,
    /// Show mode, links, owner, group, size, time of the last change (UTC), and where symbolic links lead
    #[arg(short)]
    long: bool,
    /// List all that is below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show names that begin with a dot; JSON has them in any case
    #[arg(short, long)]
    all: bool,
    /// Show numbers instead of names of users and groups
    #[arg(short)]
    numeric: bool,
    /// Print a line of JSON for each name, ACLs included
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Names come in the order of their bytes, each directory in pages, so that memory does not grow with its size. A plus behind
the mode says that there is an ACL; --json has its entries. Control characters in names are shown escaped.

A directory on a limenfs volume that this user has mounted is read from the volume's database, 1,024 entries a request and
without a system call for each; the kernel is asked once for each directory whether it may be read. The size of a file that
is being written may be some five seconds old. On other mounts and file systems the kernel is asked for each file.

META-URL:PATH is a path from the root of a volume, whether it is mounted or not: sqlite:///var/lib/limen/home.db:/project.
The path begins at the first :/ after the URL's own ://, and without one the root is meant. Whoever may open the database
may see all of it so.

Exit codes: 0 all is shown, 1 something below was not, 2 something that was named could not be.

Examples:
  limen ls -l /mnt/project
  limen ls -R --json sqlite:///var/lib/limen/home.db | jq -r 'select(.access_acl) | .path'";

/// How many directories are remembered of one that is listed; the names of more are read again.
const MAX_BELOW: usize = 1024;

pub(crate) fn run(args: &LsArgs) -> ExitCode {
    let mut walk = Walk { args, printer: Printer::new(args.long, args.numeric, args.json), code: 0 };
    match walk.all() {
        Ok(()) | Err(Stop::Deaf) => ExitCode::from(walk.code),
        Err(Stop::Fault(fault)) => {
            output::note(&fault);
            ExitCode::from(2)
        }
    }
}

struct Walk<'a> {
    args: &'a LsArgs,
    printer: Printer,
    code: u8,
}

/// A directory of which the directories below are being listed.
struct Frame {
    place: Place,
    path: Vec<u8>,
    below: VecDeque<Name>,
    /// From where on more of them may follow.
    rest: Option<Name>,
}

impl Walk<'_> {
    fn all(&mut self) -> Result<(), Stop> {
        let with_heads = self.args.recursive || self.args.targets.len() > 1;
        for text in &self.args.targets {
            let opened = Target::parse(text)
                .and_then(|target| Operand::open(target, self.args.long || self.args.json));
            match opened {
                Ok(Operand::File { row, path }) => {
                    self.printer.row(row, &path)?;
                    self.printer.end_of_page()?;
                }
                Ok(Operand::Directory { lister, place, path }) => {
                    self.tree(&lister, place, path, with_heads)?
                }
                Err(fault) => {
                    output::note(fault);
                    self.code = 2;
                }
            }
        }
        self.printer.finish()
    }

    /// Lists a directory, and if asked for all below it.
    fn tree(&mut self, lister: &Lister, place: Place, path: Vec<u8>, with_heads: bool) -> Result<(), Stop> {
        let mut frames = Vec::new();
        frames.extend(self.directory(lister, place, path, with_heads)?);
        while let Some(frame) = frames.last_mut() {
            if frame.below.is_empty()
                && let Some(rest) = frame.rest.take()
            {
                (frame.below, frame.rest) =
                    lister.directories(&frame.place, rest, MAX_BELOW, self.args.hides())?;
            }
            let Some(name) = frame.below.pop_front() else {
                frames.pop();
                continue;
            };
            let path = join(&frame.path, name.as_bytes());
            match lister.open_below(&frame.place, &name)? {
                Ok(place) => frames.extend(self.directory(lister, place, path, with_heads)?),
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
        place: Place,
        path: Vec<u8>,
        with_heads: bool,
    ) -> Result<Option<Frame>, Stop> {
        self.head(&path, with_heads)?;
        let (mut below, mut rest) = (VecDeque::new(), None);
        let mut unseen: Option<String> = None;
        let printer = &mut self.printer;
        let (hides, recursive) = (self.args.hides(), self.args.recursive);
        let listed = lister.list(&place, None, &mut |row, is_below| {
            if hides && row.name.starts_with(b".") {
                return Ok(());
            }
            if row.attr.is_none() && unseen.is_none() {
                unseen = Some(show_name(&row.name));
            }
            if recursive && is_below && rest.is_none() {
                let name = Name::new(&row.name).map_err(Fault::new)?;
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
            self.fail(format!("cannot access '{name}' and perhaps more in '{dir}': no right, or damage"));
        }
        Ok(recursive.then_some(Frame { place, path, below, rest }))
    }

    fn head(&mut self, path: &[u8], with_heads: bool) -> Result<(), Stop> {
        if with_heads { self.printer.head(path) } else { Ok(()) }
    }

    /// Something is not shown, and the rest is.
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

/// The path of a name in a directory.
fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}
