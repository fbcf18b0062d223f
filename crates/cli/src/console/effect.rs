//! Shows which access a change of permissions would grant and remove. Nothing is changed.

use std::time::{Duration, Instant};

use ::console::Failure;
use ::console::model::{AccessEffect, AccessQuery, Below, PermissionChange};
use inspect::{AuditError, AuditView, Seen, Start, VisitedName, audit};
use types::{Cred, Ino};

use super::access::checks_by_right;
use super::opened::{Opened, failed, unanswered, wrong};
use crate::access::audit::letters;
use crate::access::whatif::WhatIf;
use crate::access::who::{self, Row};

/// The maximum number of names that the walk below a directory visits, and the longest time that it takes.
const NAMES: u64 = 100_000;
const TIME: Duration = Duration::from_secs(4);
/// The maximum number of names with changed access on a page.
const CHANGES: usize = 200;
/// The maximum number of users with changed access on a page.
const USERS: usize = 200;

pub(super) fn effect(
    opened: &Opened<'_>,
    query: &AccessQuery,
    change: &PermissionChange,
) -> Result<AccessEffect, Failure> {
    let (ino, path) = opened.find(&query.path)?;
    let user = query.user.as_deref();
    // `x` stands for the path. The edit is applied to the file that is already found, not to a parsed path.
    let what_if = WhatIf::parse(&command(change, user, "x")?, &opened.users).map_err(wrong)?;
    let tree = opened.tree();
    let before = checks_by_right(&tree, &path).map_err(unanswered)?;
    let after: Result<Vec<_>, _> =
        before.iter().map(|path_checks| what_if.checks_after(path_checks, &path)).collect();
    let after = after.map_err(wrong)?;
    let rows = who::rows(&before, &after, Some(&what_if), &opened.users).map_err(wrong)?;
    let shown = who::select(&rows, true);
    let user_row =
        |row: &&Row| (row.person.name.clone(), row.before.show(), row.after.show(), row.after.by.clone());
    let below = match tree.inode(ino) {
        Ok((inode, _)) if inode.kind.is_dir() => below(opened, query, &what_if, ino, &path, &shown)?,
        _ => None,
    };
    Ok(AccessEffect {
        command: command(change, user, &opened.word(&path))?,
        users: shown.rows.iter().take(USERS).map(user_row).collect(),
        unchanged: shown.others,
        below,
    })
}

/// The change as a command.
fn command(change: &PermissionChange, user: Option<&str>, path: &str) -> Result<String, Failure> {
    let PermissionChange { kind, mode, class, name, perms, recursive, keep_mask } = change;
    let is_odd = |letter: char| matches!(letter, '\'' | '"') || letter.is_control();
    if name.contains([',', ':']) || name.contains(is_odd) {
        return Err(Failure::Wrong(format!(
            "the name contains a character that an ACL entry cannot have: {name}"
        )));
    }
    if mode.contains(is_odd) {
        return Err(Failure::Wrong(format!("'{mode}' is not a mode: write it in octal, as in 750")));
    }
    let class = if class == "g" { "g" } else { "u" };
    let recursive = if *recursive { "-R " } else { "" };
    let name = name.as_str();
    // In single quotes, every character is kept, such as a backslash of a Windows name. Text that contains a
    // single quote is refused.
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:=@%".contains(letter);
    let word = |text: String| if text.chars().all(is_plain) { text } else { format!("'{text}'") };
    Ok(match kind.as_str() {
        "setfacl" => {
            let perms: String =
                ["r", "w", "x"].map(|one| if perms.contains(one) { one } else { "-" }).concat();
            let mask = if *keep_mask { "-n " } else { "" };
            format!("setfacl {recursive}{mask}-m {} {path}", word(format!("{class}:{name}:{perms}")))
        }
        "unset" => format!("setfacl {recursive}-x {} {path}", word(format!("{class}:{name}"))),
        "chmod" => format!("chmod {recursive}{} {path}", word(mode.clone())),
        "chown" if class == "g" => format!("chown {recursive}{} {path}", word(format!(":{name}"))),
        "chown" => format!("chown {recursive}{} {path}", word(name.to_owned())),
        "join" | "leave" => {
            let user = user.ok_or_else(|| Failure::Wrong("choose a user first".to_owned()))?;
            if user.contains('\'') || user.chars().any(char::is_control) {
                return Err(Failure::Wrong(format!(
                    "the user contains a character that cannot be shown in a command: {user}"
                )));
            }
            match kind.as_str() {
                "join" => format!("add user {} to group {}", word(user.to_owned()), word(name.to_owned())),
                _ => format!("remove user {} from group {}", word(user.to_owned()), word(name.to_owned())),
            }
        }
        _ => return Err(Failure::Wrong(format!("unknown change '{kind}'"))),
    })
}

/// Why a walk ends.
enum Stop {
    Limit,
    Error(AuditError),
}

impl From<AuditError> for Stop {
    fn from(error: AuditError) -> Self {
        Stop::Error(error)
    }
}

/// The effect below a directory: for the user asked about, or for the first one whose access to it changes.
fn below(
    opened: &Opened<'_>,
    query: &AccessQuery,
    what_if: &WhatIf,
    dir: Ino,
    path: &[u8],
    shown: &who::Shown<'_>,
) -> Result<Option<Below>, Failure> {
    let (user, before): (String, Cred) = match (&query.user, shown.rows.first()) {
        (Some(user), _) => {
            let person = opened.person(user, query.groups.as_deref())?;
            (person.name, person.cred)
        }
        (None, Some(row)) => (row.person.name.clone(), row.person.cred.clone()),
        (None, None) => return Ok(None),
    };
    let person = crate::users::Person { name: user.clone(), cred: before.clone() };
    let after = what_if.cred(&person, &opened.users).map_err(wrong)?;
    let edit = what_if.planned().map(|(recursive, edit)| (dir, recursive, edit.clone()));
    let (before, after) = (AuditView::of(before), AuditView { cred: after, edit });
    let mut below = Below { user, names: 0, gained: 0, lost: 0, changes: Vec::new(), cut_after: None };
    let until = Instant::now() + TIME;
    let mut visit = |met: VisitedName<'_>| {
        if below.names >= NAMES || below.names.is_multiple_of(256) && Instant::now() >= until {
            return Err(Stop::Limit);
        }
        below.names += 1;
        let (gains, loses) = met.before.compare(met.after);
        below.gained += u64::from(gains);
        below.lost += u64::from(loses);
        if (gains || loses) && below.changes.len() < CHANGES {
            let show = |seen: Seen| if seen.reached { letters(seen) } else { "none".to_owned() };
            below.changes.push((met.path.to_vec(), show(met.before), show(met.after)));
        }
        Ok(())
    };
    let start = Start { dir, path: path.to_vec() };
    let views = (&before, Some(&after));
    let walked = audit(&*opened.engine, &opened.volume, &start, views, 1, Some(&mut visit), &|_| {});
    match walked {
        Ok(_) => {}
        Err(Stop::Limit) => below.cut_after = Some(below.names),
        Err(Stop::Error(AuditError::QueryError(error))) => return Err(unanswered(error)),
        Err(Stop::Error(error @ AuditError::Gone)) => return Err(Failure::Wrong(error.to_string())),
        Err(Stop::Error(error)) => return Err(failed(error.into())),
    }
    Ok(Some(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_mode_is_left_to_the_parser_of_modes() {
        let of = |mode: &str| {
            let (kind, mode) = ("chmod".to_owned(), mode.to_owned());
            command(&PermissionChange { kind, mode, ..PermissionChange::default() }, None, "/f")
        };
        let command = of("u+x,g+w").unwrap();
        let error = WhatIf::parse(&command, &crate::users::Users::default()).unwrap_err().to_string();
        assert!(error.contains("write it in octal"), "{error}");
        for mode in ["7'55", "7\"55", "7\n55"] {
            assert!(of(mode).is_err(), "{mode}");
        }
    }
}
