//! `limen access audit --who`: the access of all users to one path.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use acl::posix::{Perm, PosixAcl, Tag};
use command::error::CliError;
use command::output;
use inspect::{AccessAttrs, Operation, PathChecks, Rules};
use serde_json::{Value, json};
use types::{Caps, Cred, counted};

use super::whatif::WhatIf;
use super::{explain, show};
use crate::target::{Target, show_name};
use crate::users::{Person, Users};

/// Stands for all users that are not listed. This is the highest valid id, which no user is expected to have.
const NOBODY_ELSE: u32 = u32::MAX - 1;

/// Lower uids belong to system accounts. This is the usual UID_MIN of login.defs(5).
pub(crate) const FIRST_USER: u32 = 1000;

/// The three permissions; each is checked separately.
pub(crate) const RIGHTS: [Perm; 3] = [Perm::READ, Perm::WRITE, Perm::EXECUTE];

/// The access of one user, before and after the change.
pub(crate) struct Row {
    pub(crate) person: Person,
    pub(crate) before: Effective,
    pub(crate) after: Effective,
}

/// The effective permissions of a user on the file, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) reached: bool,
    pub(crate) rights: Perm,
    /// The reason why the file cannot be reached; otherwise the reason of the first granted permission, or of
    /// the first denied one if none is granted.
    pub(crate) by: String,
}

/// The file to list users for, and the format of the list.
pub(super) struct Query<'a> {
    /// The file of `--who`.
    pub(super) path: &'a OsStr,
    /// The volume, if the command line names one.
    pub(super) volume: Option<&'a OsStr>,
    pub(super) json: bool,
    pub(super) csv: bool,
}

pub(super) fn run(query: &Query<'_>, what_if: Option<&WhatIf>, users: &Users) -> Result<ExitCode, CliError> {
    let target = target(query)?;
    let mut before = Vec::new();
    let mut after = Vec::new();
    for right in RIGHTS {
        let path_checks = explain::find(&target, Operation::Access(right))?;
        if let Err(errno) = path_checks.end {
            return Err(CliError::new(errno).at(target.show()));
        }
        after.push(
            what_if
                .map(|what_if| what_if.path_checks(&path_checks, &target))
                .transpose()?
                .unwrap_or(path_checks.clone()),
        );
        before.push(path_checks);
    }
    let rows = rows(&before, &after, what_if, users)?;
    if query.json {
        output::print_json(&to_json(&target, &rows, what_if))?;
    } else if query.csv {
        output::print(&to_csv(&rows))?;
    } else {
        output::print(&to_text(&target, &rows, what_if))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The access of all users. There is one [`PathChecks`] for each of [`RIGHTS`], before and after the change.
///
/// # Errors
/// The users of this machine cannot be read; the errors of [`WhatIf::cred`].
pub(crate) fn rows(
    before: &[PathChecks],
    after: &[PathChecks],
    what_if: Option<&WhatIf>,
    users: &Users,
) -> Result<Vec<Row>, CliError> {
    let mut rows = Vec::new();
    for person in people(before, after, what_if.and_then(|what_if| what_if.uid), users)? {
        let cred = match what_if {
            Some(what_if) if person.cred.uid != NOBODY_ELSE => what_if.cred(&person, users)?,
            _ => person.cred.clone(),
        };
        let (before, after) = (evaluate(before, &person.cred, users), evaluate(after, &cred, users));
        rows.push(Row { person, before, after });
    }
    Ok(rows)
}

/// The rows to print, and how many users are left out.
pub(crate) struct Shown<'a> {
    pub(crate) rows: Vec<&'a Row>,
    /// The number of system accounts that are left out, because they have the access of everyone else.
    pub(crate) alike: usize,
    /// The number of all other users that are left out: they have no access or, if there is a change, it
    /// makes no difference to them.
    pub(crate) others: usize,
}

/// If there is a change, selects the users whose access or its reason changes. Otherwise selects those with
/// any permission, but not system accounts with the access of everyone else: every machine has about thirty
/// of them.
pub(crate) fn select(rows: &[Row], is_changed: bool) -> Shown<'_> {
    let everyone = rows.iter().find(|row| row.is_everyone_else());
    let is_alike = |row: &Row| {
        (1..FIRST_USER).contains(&row.person.cred.uid)
            && everyone.is_some_and(|everyone| row.before == everyone.before)
    };
    if is_changed {
        let changed: Vec<&Row> = rows.iter().filter(|row| row.before != row.after).collect();
        return Shown { others: rows.len() - changed.len(), rows: changed, alike: 0 };
    }
    let has_access = |row: &&Row| row.before.rights != Perm::NONE;
    let shown: Vec<&Row> = rows.iter().filter(has_access).filter(|row| !is_alike(row)).collect();
    let alike = rows.iter().filter(has_access).filter(|row| is_alike(row)).count();
    Shown { others: rows.len() - shown.len() - alike, rows: shown, alike }
}

impl Row {
    /// Whether the row stands for all users that are not listed.
    pub(crate) fn is_everyone_else(&self) -> bool {
        self.person.cred.uid == NOBODY_ELSE
    }
}

/// The file of `--who`. If the target is the URL of a volume, a plain path is a path in that volume.
fn target(query: &Query<'_>) -> Result<Target, CliError> {
    let asked = Target::parse(query.path)?;
    let Some(beside) = query.volume else { return Ok(asked) };
    match (Target::parse(beside)?, asked) {
        (Target::Volume(url, top), Target::Local(path)) if top == b"/" => {
            Ok(Target::Volume(url, path.into_os_string().into_vec()))
        }
        _ => Err(CliError::usage("--who already names the file, as PATH or META-URL:PATH")
            .advise("omit the other path")),
    }
}

/// The users to list: the users of this machine, all users that own a file on the path or that its ACLs name,
/// the user whose groups a change affects, and one entry for all others.
fn people(
    before: &[PathChecks],
    after: &[PathChecks],
    changed: Option<u32>,
    users: &Users,
) -> Result<Vec<Person>, CliError> {
    let mut people = users.all()?;
    let known: BTreeSet<u32> = people.iter().map(|person| person.cred.uid).collect();
    let subjects = before
        .iter()
        .chain(after)
        .flat_map(|path_checks| &path_checks.checks)
        .map(|check| &check.access_attrs);
    let named: BTreeSet<u32> = subjects.flat_map(named).chain(changed).collect();
    for uid in named.into_iter().filter(|uid| !known.contains(uid)) {
        let name = users.user(uid);
        // The groups of a user without a database entry are unknown.
        let person = users.person(&name, None);
        people.push(person.unwrap_or(Person { name, cred: Cred::new(uid, NOBODY_ELSE, &[], Caps::NONE) }));
    }
    people.sort_by(|one, other| (one.cred.uid, &one.name).cmp(&(other.cred.uid, &other.name)));
    let cred = Cred::new(NOBODY_ELSE, NOBODY_ELSE, &[], Caps::NONE);
    people.push(Person { name: "everyone else".to_owned(), cred });
    Ok(people)
}

/// The owner of an inode and the users that its ACL names.
fn named(access_attrs: &AccessAttrs) -> Vec<u32> {
    let mut uids = vec![access_attrs.uid];
    match &access_attrs.rules {
        Rules::Posix(acl) => {
            uids.extend(acl.iter().flat_map(PosixAcl::entries).filter_map(|entry| match entry.tag {
                Tag::User(uid) => Some(uid),
                _ => None,
            }));
        }
        Rules::Nfs4(acl) => {
            uids.extend(acl.iter().flat_map(|acl| acl.users()));
        }
    }
    uids
}

fn evaluate(by_right: &[PathChecks], cred: &Cred, users: &Users) -> Effective {
    let mut effective = Effective { reached: false, rights: Perm::NONE, by: String::new() };
    for (right, path_checks) in RIGHTS.into_iter().zip(by_right) {
        let answer = path_checks.explain(cred);
        let (Some(result), Some(check)) =
            (answer.results.last(), path_checks.checks.get(answer.results.len().saturating_sub(1)))
        else {
            continue;
        };
        if answer.results.len() < path_checks.checks.len() {
            let reason = show::reason(&result.reason, users, &path_checks.domains);
            effective.by = format!("{reason} at {}", show_name(&check.path));
            return effective;
        }
        effective.reached = true;
        let is_first = effective.rights == Perm::NONE;
        if answer.errno.is_none() {
            effective.rights = effective.rights | right;
        }
        if effective.by.is_empty() || is_first && effective.rights != Perm::NONE {
            effective.by = show::reason(&result.reason, users, &path_checks.domains);
        }
    }
    effective
}

impl Effective {
    pub(crate) fn show(&self) -> String {
        if self.reached { self.rights.to_string() } else { "none".to_owned() }
    }

    fn to_json(&self) -> Value {
        json!({ "reached": self.reached, "rights": self.rights.to_string(), "by": self.by })
    }
}

fn to_text(target: &Target, rows: &[Row], what_if: Option<&WhatIf>) -> String {
    let mut text = format!("{}\n", show_name(target.show().as_bytes()));
    if let Some(what_if) = what_if {
        text.push_str(&format!("with: {}\n", show_name(what_if.text.as_bytes())));
    }
    text.push('\n');
    let Shown { rows: shown, alike, others } = select(rows, what_if.is_some());
    let width = shown.iter().map(|row| row.person.name.chars().count()).max().unwrap_or(0);
    for Row { person, before, after } in &shown {
        let name = &person.name;
        match what_if {
            None => text.push_str(&format!("{name:width$}  {}  {}\n", before.show(), before.by)),
            Some(_) => {
                let (was, is) = (before.show(), after.show());
                text.push_str(&format!("{name:width$}  {was:6} -> {is:6}  {}\n", after.by));
            }
        }
    }
    if alike > 0 {
        text.push_str(&format!(
            "{} the access of everyone else.\n",
            counted(alike, "system account has", "system accounts have")
        ));
    }
    text.push_str(&match what_if {
        Some(_) => format!("Nothing changes for {}.\n", counted(others, "other", "others")),
        None => format!("{} no access.\n", counted(others, "other has", "others have")),
    });
    text
}

fn to_json(target: &Target, rows: &[Row], what_if: Option<&WhatIf>) -> Value {
    let row = |Row { person, before, after }: &Row| {
        let mut value = before.to_json();
        value["user"] = person.name.clone().into();
        value["uid"] = if person.cred.uid == NOBODY_ELSE { Value::Null } else { person.cred.uid.into() };
        if what_if.is_some() {
            value["after"] = after.to_json();
        }
        value
    };
    json!({
        "path": target.show(),
        "what_if": what_if.map(|what_if| &what_if.text),
        "users": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn to_csv(rows: &[Row]) -> String {
    let mut text = "user,reached,rights,reached_after,rights_after,by,by_after\n".to_owned();
    for Row { person, before, after } in rows {
        let quoted = person.name.replace('"', "\"\"");
        let of = |effective: &Effective| format!("{},{}", u8::from(effective.reached), effective.rights);
        let reason = |effective: &Effective| format!("\"{}\"", effective.by.replace('"', "\"\""));
        let (by, by_after) = (reason(before), reason(after));
        text.push_str(&format!("\"{quoted}\",{},{},{by},{by_after}\n", of(before), of(after)));
    }
    text
}

#[cfg(test)]
mod tests {
    use inspect::{Check, Requirement};
    use types::{FileType, Mode};

    use super::*;

    #[test]
    fn user_that_only_the_change_names_is_listed() {
        let users = Users::default();
        let what_if = WhatIf::parse("add user 3999999999 to group 12", &users).unwrap();
        let access_attrs = AccessAttrs {
            ino: 5,
            kind: FileType::Regular,
            mode: Mode::new(0o640),
            uid: 0,
            gid: 12,
            rules: Rules::Posix(None),
        };
        let by_right = RIGHTS.map(|right| {
            let requirement = Requirement::Access(right);
            let checks = vec![Check { path: b"/f".into(), access_attrs: access_attrs.clone(), requirement }];
            PathChecks { checks, end: Ok(()), domains: Default::default() }
        });
        let rows = rows(&by_right, &by_right, Some(&what_if), &users).unwrap();
        let shown = select(&rows, true);
        let [row] = shown.rows[..] else { panic!("{} rows", shown.rows.len()) };
        assert_eq!((row.person.cred.uid, row.before.rights), (3_999_999_999, Perm::NONE));
        assert_eq!(row.after.rights, Perm::READ);
    }
}
