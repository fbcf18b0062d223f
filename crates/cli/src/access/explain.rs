//! `limen access explain`: one access to one path, check by check.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{PathBuf, absolute};
use std::process::ExitCode;

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::output::{self, Columns};
use inspect::{LocalTree, MountedRules, Operation, PathAnswer, PathChecks, VolumeTree};
use serde_json::json;
use types::Errno;

use super::show;
use crate::sids::{Rules, Sids, rules_behind};
use crate::target::{Target, show_name};
use crate::users::{Person, Users};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ExplainArgs {
    /// The file, as PATH or META-URL:PATH
    #[arg(value_name = "PATH|META-URL:PATH", value_hint = ValueHint::AnyPath)]
    target: OsString,
    /// The user, by name, number, SID or DOMAIN\NAME [default: the user that runs the command]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The user's groups, the primary group first [default: from the user database]
    #[arg(long, value_name = "GROUP[,GROUP...]", value_delimiter = ',')]
    groups: Option<Vec<String>>,
    /// The access to check: one or more of r, w and x together; or stat, create, delete, chmod, chown, touch
    #[arg(long, value_name = "WHAT", default_value = "r", value_parser = parse_operation)]
    want: Operation,
    /// A file of names of Windows identities, with a SID and a name on each line [default: ask wbinfo]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    sid_names: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Each directory on the path must be searchable. Then the file itself is checked; to create or delete a name, its directory
and the sticky bit are checked. The output shows the entry that decides each check, up to the first check that denies
access. Symbolic links are followed like in the kernel.

PATH is any path on this machine, on a limenfs mount or not. It is read with the permissions of the user that runs the
command, so only root sees everything.
META-URL:PATH is a path from the root of a volume, mounted or not: sqlite:///var/lib/limen/home.db:/project;
the path begins at the first :/ after the :// of the URL.

User 0 is assumed to have every capability, other users none. Not checked: whether the mount is read-only or noexec, whether
a directory is empty, security modules.

Exit codes: 0 granted, 1 denied, 2 the answer cannot be found or the command line is wrong.

Examples:
  limen access explain /mnt/project/report.txt --user ann --want rw
  limen access explain sqlite:///srv/home.db:/old --user 1000 --groups 1000,50 --want delete --json";

fn parse_operation(text: &str) -> Result<Operation, String> {
    text.parse().map_err(|error: inspect::OperationError| error.to_string())
}

pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let target = Target::parse(&args.target)?;
    let users = Users::with_sids(Sids::new(target.clone(), args.sid_names.as_deref())?);
    let user = args.user.clone().unwrap_or_else(|| rustix::process::geteuid().as_raw().to_string());
    let person = users.person(&user, args.groups.as_deref())?;
    let path_checks = find(&target, args.want)?;
    let answer = path_checks.explain(&person.cred);
    output::result(
        args.json,
        || to_json(args, &target, &person, &path_checks, &answer, &users),
        || to_text(args, &target, &person, &path_checks, &answer, &users),
    )?;
    Ok(if answer.errno.is_none() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Finds the checks that an access to a path needs.
///
/// # Errors
/// The path or its attributes cannot be read.
pub(super) fn find(target: &Target, want: Operation) -> Result<PathChecks, CliError> {
    match target {
        Target::Local(path) => {
            let full = absolute(path).at(path.display())?;
            Ok(PathChecks::find(&LocalTree::new(&OfMounts), full.as_os_str().as_bytes(), want)?)
        }
        Target::Volume(url, path) => {
            let (database, volume) = url.open_volume()?;
            let engine = database.engine();
            let tree = VolumeTree::of(&*engine, &volume);
            PathChecks::find(&tree, path, want).at(url)
        }
    }
}

/// The users of this machine, and the rules of the volumes that are mounted on this machine.
#[derive(Debug)]
struct OfMounts;

impl MountedRules for OfMounts {
    fn of(&self, device: u64) -> Result<Rules, String> {
        rules_behind(device).map_err(|error| error.to_string())
    }

    fn number_of(&self, name: &str, is_group: bool) -> Option<u32> {
        let users = Users::default();
        if is_group { users.gid(name).ok() } else { users.uid(name).ok() }
    }
}

fn to_text(
    args: &ExplainArgs,
    target: &Target,
    person: &Person,
    path_checks: &PathChecks,
    answer: &PathAnswer,
    users: &Users,
) -> String {
    let user = show::person(person, users);
    let place = show_name(OsStr::new(&target.show()).as_bytes());
    let want = args.want;
    let mut text = match answer.errno {
        None => format!("granted: {want} for {user}: {place}\n\n"),
        Some(errno) => format!("denied: {want} for {user}: {place}: {errno}\n\n"),
    };
    let mut columns = Columns::new(5, &["MODE", "OWNER", "PATH", "CHECK", "BY"]);
    for (check, result) in path_checks.checks.iter().zip(&answer.results) {
        let access_attrs = &check.access_attrs;
        let granted = if result.is_granted() { "granted" } else { "denied" };
        columns.line([
            show::mode(access_attrs),
            format!("{}:{}", users.user(access_attrs.uid), users.group(access_attrs.gid)),
            show_name(&check.path),
            format!("{} {granted}", show::requirement(&check.requirement)),
            show::reason(&result.reason, users, &path_checks.domains),
        ]);
    }
    text.push_str(&columns.render());
    let passed = answer.results.iter().all(inspect::CheckResult::is_granted);
    if let (true, Some(errno)) = (passed, answer.errno) {
        text.push_str(&format!("\n{}\n", end(errno)));
    }
    text
}

/// The error of an access that fails although all checks grant it.
fn end(errno: Errno) -> String {
    let what = match errno {
        Errno::ENOENT => "the name does not exist",
        Errno::EEXIST => "the name already exists",
        Errno::ENOTDIR => "this is not a directory",
        Errno::EBUSY => "the root directory has no name to remove",
        _ => return format!("All checks grant access, but it fails: {errno}"),
    };
    format!("All checks grant access, but {what}: {errno}")
}

fn to_json(
    args: &ExplainArgs,
    target: &Target,
    person: &Person,
    path_checks: &PathChecks,
    answer: &PathAnswer,
    users: &Users,
) -> serde_json::Value {
    let checks: Vec<_> = path_checks
        .checks
        .iter()
        .zip(&answer.results)
        .map(|(check, result)| show::check_to_json(check, result, users, &path_checks.domains))
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
