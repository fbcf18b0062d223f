//! `limen access explain`: one path and one wish, check by check.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::absolute;
use std::process::ExitCode;

use clap::ValueHint;
use inspect::{Answer, LocalTree, Route, VolumeTree, Want};
use serde_json::json;
use types::Errno;

use super::show;
use crate::fault::Fault;
use crate::output;
use crate::target::{Target, show_name};
use crate::users::{Person, Users};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ExplainArgs {
    /// The file, as PATH or META-URL:PATH
    #[arg(value_name = "PATH|META-URL:PATH", value_hint = ValueHint::AnyPath)]
    target: OsString,
    /// Who wants it, by name or number [default: who asks]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The groups that the user is in, the primary one first [default: as the user database says]
    #[arg(long, value_name = "GROUP[,GROUP...]", value_delimiter = ',')]
    groups: Option<Vec<String>>,
    /// What is wanted of the file: some of r, w and x, all at once; or stat, create, delete, chmod, chown, touch
    #[arg(long, value_name = "WHAT", default_value = "r", value_parser = parse_want)]
    want: Want,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Each directory on the way has to be searched; then the file is asked, or, to create and delete a name, its directory and
its sticky bit. For each check the entry that decides it is named, up to the first that refuses. Symbolic links are
followed as the kernel does.

PATH is any path on this machine, on a limenfs mount or not, looked at with the rights of who asks: root sees everything.
META-URL:PATH is a path from the root of a volume, whether it is mounted or not: sqlite:///var/lib/limen/home.db:/project;
the path begins at the first :/ after the URL's own ://.

User 0 is taken to have every capability, others none. Not asked: whether the mount is read-only or noexec, whether a
directory is empty, security modules.

Exit codes: 0 granted, 1 refused, 2 not to be found out.

Examples:
  limen access explain /mnt/project/report.txt --user ann --want rw
  limen access explain sqlite:///var/lib/limen/home.db:/project/old --user 1000 --groups 1000,50 --want delete --json";

fn parse_want(text: &str) -> Result<Want, String> {
    text.parse().map_err(|error: inspect::WantError| error.to_string())
}

pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode, Fault> {
    let users = Users::default();
    let user = args.user.clone().unwrap_or_else(|| rustix::process::geteuid().as_raw().to_string());
    let person = users.person(&user, args.groups.as_deref())?;
    let target = Target::parse(&args.target)?;
    let route = find(&target, args.want)?;
    let answer = route.explain(&person.cred);
    if args.json {
        output::print_json(&to_json(args, &target, &person, &route, &answer, &users))?;
    } else {
        output::print(&to_text(args, &target, &person, &route, &answer, &users))?;
    }
    Ok(if answer.errno.is_none() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The checks on the way to a wish.
///
/// # Errors
/// The way cannot be looked at.
pub(super) fn find(target: &Target, want: Want) -> Result<Route, Fault> {
    match target {
        Target::Local(path) => {
            let full = absolute(path).map_err(|error| Fault::new(error).at(path.display()))?;
            Route::find(&LocalTree::default(), full.as_os_str().as_bytes(), want).map_err(super::trouble)
        }
        Target::Volume(url, path) => {
            let (database, volume) = url.open_volume()?;
            let engine = database.engine();
            let tree = VolumeTree::new(&*engine, volume.acl);
            Route::find(&tree, path, want).map_err(|error| super::trouble(error).at(url))
        }
    }
}

fn to_text(
    args: &ExplainArgs,
    target: &Target,
    person: &Person,
    route: &Route,
    answer: &Answer,
    users: &Users,
) -> String {
    let who = show::person(person, users);
    let place = show_name(OsStr::new(&target.show()).as_bytes());
    let want = args.want;
    let mut text = match answer.errno {
        None => format!("granted: {who} may {want}: {place}\n\n"),
        Some(errno) => format!("refused: {who} may not {want}: {place}: {errno}\n\n"),
    };
    let rows: Vec<[String; 5]> = route
        .checks
        .iter()
        .zip(&answer.verdicts)
        .map(|(check, verdict)| {
            let subject = &check.subject;
            let granted = if verdict.is_granted() { "granted" } else { "refused" };
            [
                show::mode(subject),
                format!("{}:{}", users.user(subject.uid), users.group(subject.gid)),
                show_name(&check.path),
                format!("{} {granted}", show::demand(&check.demand)),
                show::ground(&verdict.ground, users, &route.domains),
            ]
        })
        .collect();
    let head = ["MODE", "OWNER", "PATH", "CHECK", "BY"].map(str::to_owned);
    let widths = std::array::from_fn::<usize, 4, _>(|at| {
        std::iter::once(&head).chain(&rows).map(|row| row[at].chars().count()).max().unwrap_or(0)
    });
    for row in std::iter::once(&head).chain(&rows) {
        for (cell, width) in row.iter().zip(widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(&row[4]);
        text.push('\n');
    }
    let passed = answer.verdicts.iter().all(inspect::Verdict::is_granted);
    if let (true, Some(errno)) = (passed, answer.errno) {
        text.push_str(&format!("\n{}\n", end(errno)));
    }
    text
}

/// How a way ends that no right is missing for.
fn end(errno: Errno) -> String {
    let what = match errno {
        Errno::ENOENT => "there is no such name here",
        Errno::EEXIST => "the name is taken already",
        Errno::ENOTDIR => "this is no directory",
        Errno::EBUSY => "the root has no name that could be taken away",
        _ => return format!("No right is missing, but {errno}"),
    };
    format!("No right is missing, but {what}: {errno}")
}

fn to_json(
    args: &ExplainArgs,
    target: &Target,
    person: &Person,
    route: &Route,
    answer: &Answer,
    users: &Users,
) -> serde_json::Value {
    let checks: Vec<_> = route
        .checks
        .iter()
        .zip(&answer.verdicts)
        .map(|(check, verdict)| show::check_to_json(check, verdict, users, &route.domains))
        .collect();
    json!({
        "path": target.show(),
        "user": show::person_to_json(person),
        "want": args.want.to_string(),
        "granted": answer.errno.is_none(),
        "errno": answer.errno.and_then(Errno::name),
        "checks": checks,
    })
}
