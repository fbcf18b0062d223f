//! One user and one path: the explanation, the listing as the user sees it, and who else has access.

use ::console::Failure;
use ::console::model::{
    AccessAnswer, AccessQuery, Explanation, Fact, File, Holder, Holders, Listing, ListingRow, Step,
};
use acl::identity::DomainTable;
use command::units::show_size;
use inspect::{
    AccessAttrs, AuditError, AuditView, Operation, PathAnswer, PathChecks, QueryError, Requirement,
    SeenEntry, Tree, VolumeTree, evaluate, list_as,
};
use meta::Inode;
use types::{Cred, Errno, Ino, Name};

use super::opened::{Opened, quoted, unanswered};
use super::remedy;
use super::words::{Words, asked, deed, rules};
use crate::access::{show, who};
use crate::modes;
use crate::target::show_name;
use crate::users::Person;

/// The maximum number of names of a directory on a page.
const NAMES: usize = 200;
/// The maximum number of users on a page.
const USERS: usize = 100;

pub(super) fn access(opened: &Opened<'_>, query: &AccessQuery) -> Result<AccessAnswer, Failure> {
    let want: Operation =
        query.want.parse().map_err(|error: inspect::OperationError| Failure::Wrong(error.to_string()))?;
    let person = match &query.user {
        Some(user) => Some(opened.person(user, query.groups.as_deref())?),
        None => None,
    };
    let tree = opened.tree();
    let explanation =
        person.as_ref().map(|person| explanation(opened, &tree, person, query, want)).transpose()?;
    // A name that does not exist yet has no file: its directory is shown.
    let shown = match opened.find(&query.path) {
        Err(Failure::Wrong(_)) if want == Operation::Create => parent(&query.path).to_vec(),
        Err(failure) => return without_file(opened, query, person.as_ref(), explanation, failure),
        Ok(_) => query.path.clone(),
    };
    let (ino, path) = opened.find(&shown)?;
    let (inode, access_attrs) = tree.inode(ino).map_err(unanswered)?;
    let domains = tree.domains(access_attrs.rules.highest_domain()).map_err(unanswered)?;
    let listing = || listing(opened, person.as_ref(), (ino, &shown[..]), query);
    let listing = inode.kind.is_dir().then(listing).transpose()?;
    Ok(AccessAnswer {
        person: person.as_ref().map(|person| show::person(person, &opened.users)),
        explanation,
        file: file(opened, path.clone(), &inode, &access_attrs, &domains),
        listing,
        holders: holders(opened, &tree, &shown)?,
    })
}

/// The answer for a path that leads to no file: the explanation if a check denies the user access, otherwise
/// `failure`.
fn without_file(
    opened: &Opened<'_>,
    query: &AccessQuery,
    person: Option<&Person>,
    explanation: Option<Explanation>,
    failure: Failure,
) -> Result<AccessAnswer, Failure> {
    let Failure::Wrong(text) = &failure else { return Err(failure) };
    let (Some(explanation), Some(person)) =
        (explanation.filter(|explanation| !explanation.is_granted), person)
    else {
        return Err(failure);
    };
    let file = File {
        path: query.path.clone(),
        kind: "no file",
        is_dir: false,
        facts: Vec::new(),
        mode: String::new(),
        rules: Vec::new(),
        damage: Some(text.clone()),
    };
    let person = Some(show::person(person, &opened.users));
    Ok(AccessAnswer {
        person,
        explanation: Some(explanation),
        file,
        listing: None,
        holders: Holders::default(),
    })
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) | None => b"/",
        Some(at) => &path[..at],
    }
}

fn explanation(
    opened: &Opened<'_>,
    tree: &VolumeTree<'_>,
    person: &Person,
    query: &AccessQuery,
    want: Operation,
) -> Result<Explanation, Failure> {
    let path_checks = PathChecks::find(tree, &query.path, want).map_err(unanswered)?;
    let answer = path_checks.explain(&person.cred);
    let words = Words { person, users: &opened.users, domains: &path_checks.domains };
    let is_dir = path_checks
        .target()
        .is_some_and(|check| check.path == query.path && check.access_attrs.kind.is_dir());
    let (is_granted, deed) = (answer.errno.is_none(), deed(want, is_dir, &query.path));
    let can = if is_granted { "can" } else { "cannot" };
    let remedies = if is_granted { Vec::new() } else { remedy::remedies(opened, person, &path_checks) };
    let mut command = format!(
        "limen access explain {} --user {} --want {want}",
        quoted(&[format!("{}:", opened.place.url).as_bytes(), &query.path[..]].concat()),
        quoted(person.name.as_bytes()),
    );
    if let Some(groups) = &query.groups {
        command.push_str(&format!(" --groups {}", quoted(groups.as_bytes())));
    }
    Ok(Explanation {
        is_granted,
        headline: format!("{} {can} {deed}", person.name),
        because: because(&words, &path_checks, &answer, &person.cred),
        steps: steps(opened, &path_checks, &answer),
        remedies,
        command,
    })
}

/// The reasons of an explanation, in sentences.
fn because(words: &Words<'_>, path_checks: &PathChecks, answer: &PathAnswer, cred: &Cred) -> Vec<String> {
    let name = &words.person.name;
    let last = answer.results.last().zip(path_checks.checks.get(answer.results.len().saturating_sub(1)));
    let Some((result, check)) = last else { return vec![end(answer.errno)] };
    let on = &check.access_attrs;
    let reason = words.reason(&result.reason, on);
    if result.is_granted() {
        let mut sentences = Vec::new();
        if let Some(errno) = answer.errno {
            sentences.push(end(Some(errno)));
        } else {
            let above =
                if path_checks.checks.len() > 1 { "Every directory on the way can be passed. " } else { "" };
            sentences.push(format!("{above}At {}: {reason}", show_name(&check.path)));
        }
        return sentences;
    }
    let (path, mode) = (show_name(&check.path), show::mode(on));
    let owner = format!("{}:{}", words.users.user(on.uid), words.users.group(on.gid));
    let mut sentences = match &check.requirement {
        Requirement::Search => {
            vec![format!("The directory {path} ({mode} {owner}) does not let {name} pass: {reason}")]
        }
        requirement => {
            let asked = asked(requirement, on.kind.is_dir());
            vec![format!("{path} ({mode} {owner}) does not allow {asked}: {reason}")]
        }
    };
    // The user may have expected that the permissions of the file itself decide. They do not matter if a
    // directory above it cannot be searched.
    if check.requirement == Requirement::Search
        && let Some(target) = path_checks.target().filter(|target| target.path != check.path)
    {
        let allows = evaluate(cred, target).is_granted();
        sentences.push(match allows {
            true => format!(
                "{} itself would allow it, but nobody gets there without passing every directory above.",
                show_name(&target.path)
            ),
            false => format!("{} itself would deny it, too.", show_name(&target.path)),
        });
    }
    sentences
}

/// The error of an access that no check denies.
fn end(errno: Option<Errno>) -> String {
    match errno {
        None => "Nothing needs to be checked.".to_owned(),
        Some(Errno::ENOENT) => "No check denies it, but the name does not exist.".to_owned(),
        Some(Errno::EEXIST) => "No check denies it, but the name already exists.".to_owned(),
        Some(Errno::ENOTDIR) => "No check denies it, but a name on the way is not a directory.".to_owned(),
        Some(errno) => format!("No check denies it, but it fails: {errno}."),
    }
}

fn steps(opened: &Opened<'_>, path_checks: &PathChecks, answer: &PathAnswer) -> Vec<Step> {
    let users = &opened.users;
    let step = |(at, check): (usize, &inspect::Check)| {
        let on = &check.access_attrs;
        let result = answer.results.get(at);
        Step {
            path: check.path.clone(),
            mode: show::mode(on),
            owner: format!("{}:{}", users.user(on.uid), users.group(on.gid)),
            asked: asked(&check.requirement, on.kind.is_dir()),
            is_granted: result.map(inspect::CheckResult::is_granted),
            by: result
                .map(|result| show::reason(&result.reason, users, &path_checks.domains))
                .unwrap_or_default(),
        }
    };
    path_checks.checks.iter().enumerate().map(step).collect()
}

fn file(
    opened: &Opened<'_>,
    path: Vec<u8>,
    inode: &Inode,
    access_attrs: &AccessAttrs,
    domains: &DomainTable,
) -> File {
    let users = &opened.users;
    let facts = vec![
        Fact::new("Path", show_name(&path)),
        Fact::new("Mode", show::mode(access_attrs)),
        Fact::new("Owner", format!("{} ({})", users.user(inode.uid), inode.uid)),
        Fact::new("Group", format!("{} ({})", users.group(inode.gid), inode.gid)),
        Fact::new("Size", show_size(inode.shown_size())),
        Fact::new("Modified", inode.mtime),
        Fact::new("Links", inode.nlink),
        Fact::new("Inode", inode.ino),
    ];
    File {
        path,
        kind: modes::kind_name(inode.kind),
        is_dir: inode.kind.is_dir(),
        facts,
        mode: show::mode(access_attrs),
        rules: rules(access_attrs, users, domains),
        damage: None,
    }
}

fn listing(
    opened: &Opened<'_>,
    person: Option<&Person>,
    (dir, path): (Ino, &[u8]),
    query: &AccessQuery,
) -> Result<Listing, Failure> {
    // Without a user, the names are listed as root sees them.
    let everything = Cred::new(0, 0, &[], types::Caps::ALL);
    let cred = person.map_or(everything, |person| person.cred.clone());
    let view = AuditView::of(cred.clone());
    let after = query.after.as_deref().map(Name::new).transpose();
    let after = after.map_err(|error| Failure::Wrong(error.to_string()))?;
    let (entries, more) =
        list_as(&*opened.engine, &opened.volume, &view, dir, (after, NAMES)).map_err(cannot_list)?;
    let hidden = match person {
        Some(person) => closed(opened, person, path)?,
        None => None,
    };
    let rows = entries.iter().map(|entry| row(opened, entry, person.is_some(), hidden.is_some()));
    let more = if more { entries.last().map(|entry| entry.name.as_bytes().to_vec()) } else { None };
    Ok(Listing { rows: rows.collect(), hidden, more })
}

/// The reason why a user sees no names of a directory; `None` if the user sees them.
fn closed(opened: &Opened<'_>, person: &Person, path: &[u8]) -> Result<Option<String>, Failure> {
    let name = &person.name;
    let tree = opened.tree();
    let path_checks =
        PathChecks::find(&tree, path, Operation::Access(acl::posix::Perm::READ)).map_err(unanswered)?;
    let answer = path_checks.explain(&person.cred);
    if answer.errno.is_none() {
        return Ok(None);
    }
    let at = path_checks.checks.get(answer.results.len().saturating_sub(1));
    Ok(Some(match at {
        Some(check) if check.requirement == Requirement::Search => {
            format!("{name} sees none of these names, because {} cannot be passed.", show_name(&check.path))
        }
        _ => format!(
            "{name} cannot list this directory, and sees none of these names. Somebody who knows a name may still open it."
        ),
    }))
}

fn row(opened: &Opened<'_>, entry: &SeenEntry, is_asked: bool, is_closed: bool) -> ListingRow {
    let inspect::Rights { read, write, execute, delete, .. } = entry.seen.rights;
    let has_acl = entry.inode.is_some_and(|inode| !inode.access_acl.is_none());
    let hidden = match entry.inode {
        None => Some("damaged"),
        Some(_) if !is_asked => None,
        Some(_) if !entry.seen.reached => Some("out of reach"),
        Some(_) if is_closed => Some("not listed"),
        Some(_) if opened.volume.abe && !entry.listed => Some("hidden by ABE"),
        Some(_) => None,
    };
    ListingRow {
        name: entry.name.as_bytes().to_vec(),
        kind: modes::kind_name(entry.kind),
        is_dir: entry.kind.is_dir(),
        mode: entry
            .inode
            .map_or_else(|| "?".to_owned(), |inode| modes::show(inode.kind, inode.mode, has_acl)),
        owner: entry.inode.map_or_else(String::new, |inode| {
            format!("{}:{}", opened.users.user(inode.uid), opened.users.group(inode.gid))
        }),
        size: match entry.inode {
            Some(inode) if !inode.kind.is_dir() => show_size(inode.size),
            _ => String::new(),
        },
        rights: is_asked.then_some([read, write, execute, delete]),
        hidden,
    }
}

fn cannot_list(error: AuditError) -> Failure {
    match error {
        AuditError::QueryError(error) => unanswered(error),
        error => Failure::Wrong(error.to_string()),
    }
}

/// The checks on the path to a file for each of the three permissions.
pub(super) fn checks_by_right(tree: &VolumeTree<'_>, path: &[u8]) -> Result<Vec<PathChecks>, QueryError> {
    who::RIGHTS.into_iter().map(|right| PathChecks::find(tree, path, Operation::Access(right))).collect()
}

fn holders(opened: &Opened<'_>, tree: &VolumeTree<'_>, path: &[u8]) -> Result<Holders, Failure> {
    let by_right = checks_by_right(tree, path).map_err(unanswered)?;
    let rows = who::rows(&by_right, &by_right, None, &opened.users).map_err(super::opened::failed)?;
    let shown = who::select(&rows, false);
    // Everyone else comes first, because that row says most.
    let mut order = shown.rows.clone();
    order.sort_by_key(|row| !row.is_everyone_else());
    let holder = |row: &&who::Row| Holder {
        name: row.person.name.clone(),
        is_user: !row.is_everyone_else(),
        rights: row.before.show(),
        by: row.before.by.clone(),
    };
    Ok(Holders {
        rows: order.iter().take(USERS).map(holder).collect(),
        alike: shown.alike,
        none: shown.others,
        cut: order.len().saturating_sub(USERS),
    })
}
