//! `limen access audit`: the access of one user to a whole volume.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::output::{self, Columns, Lines, ProgressBar};
use command::units::parse_threads;
use inspect::{
    Audit, AuditView, Counts, Kind, OnName, Rights, Seen, Start, Totals, VisitedName, VolumeTree, audit,
};
use meta::Volume;
use serde_json::{Value, json};
use types::{Ino, counted, plural};

use super::whatif::{WhatIf, inode_at};
use super::{show, who};
use crate::sids::Sids;
use crate::target::{Target, path_to_json, show_name, volume_behind};
use crate::url::{Database, MetaUrl};
use crate::users::{Person, Users};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct AuditArgs {
    /// The volume, or a directory in it, as PATH or META-URL:PATH
    #[arg(value_name = "PATH|META-URL[:PATH]", value_hint = ValueHint::AnyPath, required_unless_present = "who")]
    target: Option<OsString>,
    /// Show what this user can access; a name, number, SID or DOMAIN\NAME
    #[arg(long, value_name = "USER", conflicts_with = "who")]
    user: Option<String>,
    /// The user's groups, the primary group first [default: from the user database]
    #[arg(long, value_name = "GROUP[,GROUP...]", value_delimiter = ',', requires = "user")]
    groups: Option<Vec<String>>,
    /// Show who can access this file or directory: all users of this machine and all users in its ACLs
    #[arg(long, value_name = "PATH|META-URL:PATH", value_hint = ValueHint::AnyPath)]
    who: Option<OsString>,
    /// Show the effect of a change without making it: "setfacl ...", "chmod ...", "chown ...", "add user U to
    /// group G" or "remove user U from group G"; only differences are listed
    #[arg(long, value_name = "CHANGE")]
    what_if: Option<String>,
    /// List every name that the user can reach, not only totals
    #[arg(long)]
    list: bool,
    /// A file of names of Windows identities, with a SID and a name on each line [default: ask wbinfo]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    sid_names: Option<PathBuf>,
    /// Number of threads that read, without --list
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    threads: Option<usize>,
    /// Print JSON; with --list one line for each name, and a last line with the totals
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

const AFTER_HELP: &str = "\
A name is reached if the user can search all directories of the volume above it; directories above the mount point are not
checked. Files are counted by name, so a file with two names counts twice. The right delete is to remove the name, with
sticky directories taken into account; own is to change mode and ACL. A line of --list begins with the type (d directory,
- file, o other) and the rights (r read, w write, x execute or search, d delete, o own).

--who lists system accounts (uid 1 to 999) only if their access is not that of everyone else; --json and --csv list all.

Each distinct combination of ACL, owner, group and mode is evaluated once. Directories are read in pages, so memory use does
not grow with the number of files. The volume can be in use: each page shows the state at one moment.

PATH is a directory on a volume that this user or root has mounted; the volume's database is read directly. META-URL:PATH
is a path from the root of a volume, mounted or not; the path begins at the first :/ after the :// of the URL.

Examples:
  limen access audit sqlite:///var/lib/limen/home.db --user ann
  limen access audit /mnt/project --user ann --list --csv >ann.csv
  limen access audit --who /mnt/project/report.txt
  limen access audit /mnt --user ann --list --what-if 'setfacl -R -m g:staff:rX /mnt/project'
  limen access audit /mnt --what-if 'add user ann to group staff'";

/// The directory to audit.
struct AuditRoot {
    database: Database,
    volume: Volume,
    dir: Ino,
    /// The path of the directory, which all reported paths begin with.
    path: Vec<u8>,
    /// The device number if the directory is on a mount. Paths are then those of this machine.
    device: Option<u64>,
    /// The volume, if it is audited by URL.
    url: Option<MetaUrl>,
}

pub(super) fn run(args: &AuditArgs) -> Result<ExitCode, CliError> {
    let target =
        args.target.as_ref().or(args.who.as_ref()).map(|target| Target::parse(target)).transpose()?;
    let sids = target.map(|target| Sids::new(target, args.sid_names.as_deref())).transpose()?;
    let users = Users::with_sids(sids.unwrap_or_default());
    let what_if = args.what_if.as_deref().map(|text| WhatIf::parse(text, &users)).transpose()?;
    if let Some(path) = &args.who {
        let query = who::Query { path, volume: args.target.as_deref(), json: args.json, csv: args.csv };
        return who::run(&query, what_if.as_ref(), &users);
    }
    let user = args.user.as_deref().or(what_if.as_ref().and_then(WhatIf::user));
    let user = user.ok_or_else(|| {
        CliError::usage("no user or file is given").advise("write --user USER or --who PATH")
    })?;
    let person = users.person(user, args.groups.as_deref())?;
    let root = find(args)?;
    let engine = root.database.engine();
    let before = AuditView::of(person.cred.clone());
    let after = match &what_if {
        None => None,
        Some(what_if) => {
            let tree = VolumeTree::of(&*engine, &root.volume);
            let edit = what_if.edit(&tree, root.device, root.url.as_ref())?;
            Some(AuditView { cred: what_if.cred(&person, &users)?, edit })
        }
    };
    let start = Start { dir: root.dir, path: root.path.clone() };
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, |n| n.get()));
    let views = (&before, after.as_ref());
    let mut list = List::new(args, what_if.is_some());
    // On a terminal, the list itself shows the progress.
    let bar = if args.list && io::stdout().is_terminal() {
        ProgressBar::hidden()
    } else {
        output::progress("names")
    };
    let progress = |names| bar.inc(names);
    let mut print = |met: VisitedName<'_>| list.print(met);
    let each: Option<&mut OnName<'_, CliError>> = if args.list { Some(&mut print) } else { None };
    let found = audit(&*engine, &root.volume, &start, views, threads, each, &progress);
    bar.finish_and_clear();
    let found = match found.and_then(|found| list.out.flush().map(|()| found)) {
        // The reader of the pipe has closed it, so the rest of the list is not needed.
        Err(error) if error.is_reported() => return Ok(ExitCode::SUCCESS),
        found => found.at(shown(args))?,
    };
    report(args, &person, &found, what_if.as_ref(), &users)?;
    Ok(ExitCode::SUCCESS)
}

fn find(args: &AuditArgs) -> Result<AuditRoot, CliError> {
    let target = args.target.as_deref().unwrap_or_default();
    match Target::parse(target)? {
        Target::Local(path) => {
            let metadata = fs::metadata(&path).at(path.display())?;
            let (database, volume) = volume_behind(&path, metadata.dev())?;
            let (dir, bytes) = (Ino(metadata.ino()), path.as_os_str().as_bytes().to_vec());
            Ok(AuditRoot { database, volume, dir, path: bytes, device: Some(metadata.dev()), url: None })
        }
        Target::Volume(url, path) => {
            let (database, volume) = url.open_volume()?;
            let engine = database.engine();
            let dir = inode_at(&VolumeTree::of(&*engine, &volume), &path)?;
            Ok(AuditRoot { database, volume, dir, path, device: None, url: Some(url) })
        }
    }
}

/// The audited directory, for messages.
fn shown(args: &AuditArgs) -> String {
    let target = Target::parse(args.target.as_deref().unwrap_or_default());
    target.map_or_else(|_| String::new(), |target| show_name(target.show().as_bytes()))
}

/// Prints the names as the audit visits them.
struct List<'a> {
    args: &'a AuditArgs,
    /// List only names whose access changes.
    differs: bool,
    out: Lines,
    begun: bool,
}

impl<'a> List<'a> {
    fn new(args: &'a AuditArgs, differs: bool) -> Self {
        List { args, differs, out: Lines::default(), begun: false }
    }

    fn print(&mut self, met: VisitedName<'_>) -> Result<(), CliError> {
        let VisitedName { path, kind, before, after } = met;
        if self.args.csv && !self.begun {
            self.begun = true;
            let after = if self.differs { ",reached_after,rights_after" } else { "" };
            self.out.line(format!("path,type,reached,rights{after}"))?;
        }
        let is_listed = if self.differs { before != after } else { before.reached };
        if !is_listed {
            return Ok(());
        }
        if self.args.json {
            let (text, bytes) = path_to_json(path);
            let mut line = json!({ "path": text, "type": name(kind) });
            if let Some(bytes) = bytes {
                line["path_bytes"] = bytes.into();
            }
            line["rights"] = letters(before).into();
            if self.differs {
                line["reached"] = before.reached.into();
                line["after"] = json!({ "reached": after.reached, "rights": letters(after) });
            }
            return self.out.line(line.to_string());
        }
        if self.args.csv {
            // The path is written unescaped between quotation marks, with quotation marks doubled (RFC 4180).
            let mut line = b"\"".to_vec();
            line.extend(
                path.iter().flat_map(|byte| std::iter::repeat_n(*byte, if *byte == b'"' { 2 } else { 1 })),
            );
            line.extend(
                format!("\",{},{},{}", name(kind), u8::from(before.reached), letters(before)).bytes(),
            );
            if self.differs {
                line.extend(format!(",{},{}", u8::from(after.reached), letters(after)).bytes());
            }
            return self.out.line(line);
        }
        let initial = match kind {
            Kind::Directory => 'd',
            Kind::File => '-',
            Kind::Other => 'o',
        };
        let shown = |seen: Seen| if seen.reached { letters(seen) } else { "none".to_owned() };
        match self.differs {
            false => self.out.line(format!("{initial} {}  {}", shown(before), show_name(path))),
            true => {
                let (was, is) = (shown(before), shown(after));
                self.out.line(format!("{initial} {was:6} -> {is:6}  {}", show_name(path)))
            }
        }
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Directory => "directory",
        Kind::File => "file",
        Kind::Other => "other",
    }
}

/// Explains the letters of a list.
const LETTERS: &str =
    "d directory, - file, o other; r read, w write, x execute or search, d delete the name, o own";

/// `rwxdo`, with a dash for each right that is missing.
pub(crate) fn letters(seen: Seen) -> String {
    let Rights { read, write, execute, delete, own } = seen.rights;
    let all = [(read, 'r'), (write, 'w'), (execute, 'x'), (delete, 'd'), (own, 'o')];
    all.into_iter().map(|(has, letter)| if has { letter } else { '-' }).collect()
}

const COLUMNS: [&str; 7] = ["names", "reached", "read", "write", "execute", "delete", "own"];

fn cells(counts: &Counts) -> [u64; 7] {
    let Counts { names, reached, read, write, execute, delete, own } = *counts;
    [names, reached, read, write, execute, delete, own]
}

fn kinds(totals: &Totals) -> [(&'static str, &Counts); 3] {
    [("directories", &totals.directories), ("files", &totals.files), ("others", &totals.others)]
}

fn report(
    args: &AuditArgs,
    person: &Person,
    found: &Audit,
    what_if: Option<&WhatIf>,
    users: &Users,
) -> Result<(), CliError> {
    if args.json {
        let value = to_json(args, person, found, what_if);
        // With a list, the totals are one more line.
        return if args.list { output::print(&format!("{value}\n")) } else { output::print_json(&value) };
    }
    if args.csv {
        return if args.list { Ok(()) } else { output::print(&to_csv(found, what_if)) };
    }
    let mut text = String::new();
    if args.list {
        text.push_str(&format!("\n{LETTERS}\n\n"));
    }
    text.push_str(&format!("{}, at {}\n", show::person(person, users), shown(args)));
    text.push_str(&table(&found.before));
    if let Some(what_if) = what_if {
        text.push_str(&format!("\nwith: {}\n", show_name(what_if.text.as_bytes())));
        text.push_str(&table(&found.after));
        let inspect::Difference { gained, lost } = found.difference;
        text.push_str(&format!(
            "Access to {} is gained, access to {} is lost.\n",
            counted(gained, "name", "names"),
            counted(lost, "name", "names")
        ));
    }
    text.push_str(&format!(
        "\n{} of ACL, owner, group and mode {} evaluated.\n",
        counted(found.decisions, "distinct combination", "distinct combinations"),
        plural(found.decisions, "was", "were")
    ));
    if found.damaged > 0 {
        text.push_str(&format!(
            "{} to an inode or ACL that is missing or damaged: limen fsck lists {}.\n",
            counted(found.damaged, "name refers", "names refer"),
            plural(found.damaged, "it", "them")
        ));
    }
    output::print(&text)
}

fn table(totals: &Totals) -> String {
    let mut columns = Columns::new(1, &[&[""][..], &COLUMNS].concat());
    for (kind, counts) in kinds(totals) {
        let counts = cells(counts).into_iter().map(|count| count.to_string());
        columns.line(std::iter::once(kind.to_owned()).chain(counts));
    }
    columns.render()
}

fn to_csv(found: &Audit, what_if: Option<&WhatIf>) -> String {
    let mut text = format!("type,{}\n", COLUMNS.join(","));
    let mut rows = |totals: &Totals, suffix: &str| {
        for (kind, counts) in kinds(totals) {
            let counts: Vec<String> = cells(counts).iter().map(u64::to_string).collect();
            text.push_str(&format!("{kind}{suffix},{}\n", counts.join(",")));
        }
    };
    rows(&found.before, "");
    if what_if.is_some() {
        rows(&found.after, " after");
    }
    text
}

fn to_json(args: &AuditArgs, person: &Person, found: &Audit, what_if: Option<&WhatIf>) -> Value {
    let totals = |totals: &Totals| -> Value {
        let of = |counts: &Counts| -> Value {
            COLUMNS.iter().zip(cells(counts)).map(|(column, count)| (*column, Value::from(count))).collect()
        };
        kinds(totals).into_iter().map(|(kind, counts)| (kind, of(counts))).collect()
    };
    let mut value = json!({
        "target": args.target.as_deref().and_then(|text| Target::parse(text).ok()).map(|target| target.show()),
        "user": show::person_to_json(person),
        "totals": totals(&found.before),
        "decisions": found.decisions,
        "damaged": found.damaged,
    });
    if let Some(what_if) = what_if {
        value["what_if"] = what_if.text.clone().into();
        value["after"] = totals(&found.after);
        value["gained"] = found.difference.gained.into();
        value["lost"] = found.difference.lost.into();
    }
    value
}
