//! Finds changes that would grant an access that is denied.
//!
//! A candidate is a small change: more permissions for this user on each file that denies access, or
//! membership in a group. It is applied to a copy of the user's groups or of the attributes of the files on
//! the path, and all checks are evaluated again. Only a candidate with which all checks grant the access is
//! shown, so this module has no access rules of its own. It changes nothing itself.

use std::collections::BTreeSet;

use ::console::model::{PermissionChange, Remedy};
use acl::nfs4::{self, AclFlags, EntryFlags, Nfs4Acl};
use acl::posix::{Perm, PosixAcl, Tag};
use inspect::{
    AccessAttrs, Check, Edit, Nfs4Rules, PathChecks, PlannedChange, Requirement, Rules, evaluate,
    parse_change,
};
use types::{Cred, Mode};

use super::opened::{Opened, quoted};
use super::words::rights;
use crate::target::show_name;
use crate::users::Person;

/// The maximum number of steps. If more were needed, none is shown.
const STEPS: usize = 8;
/// The maximum number of groups that are tried.
const GROUPS: usize = 64;

/// The change of one file on the path.
struct Step {
    text: String,
    command: String,
    change: Option<(Vec<u8>, PermissionChange)>,
}

pub(super) fn remedies(opened: &Opened<'_>, person: &Person, path_checks: &PathChecks) -> Vec<Remedy> {
    if path_checks.end.is_err() {
        return Vec::new();
    }
    let mut remedies = by_entries(opened, person, path_checks);
    remedies.extend(by_group(opened, person, path_checks));
    remedies
}

/// Steps that grant the missing permission to this user alone, one for each file that denies it.
fn by_entries(opened: &Opened<'_>, person: &Person, path_checks: &PathChecks) -> Vec<Remedy> {
    let mut changed = path_checks.clone();
    let mut steps: Vec<Step> = Vec::new();
    while changed.explain(&person.cred).errno.is_some() {
        let denied = changed.explain(&person.cred).results.len().saturating_sub(1);
        let Some((step, after)) = changed.checks.get(denied).and_then(|check| grant(opened, person, check))
        else {
            return Vec::new();
        };
        let path = changed.checks[denied].path.clone();
        for check in changed.checks.iter_mut().filter(|check| check.path == path) {
            check.access_attrs = after.clone();
        }
        steps.push(step);
        // Each round must get past at least one more check; otherwise the loop would not end.
        let next = changed.explain(&person.cred);
        if next.errno.is_some() && next.results.len() <= denied + 1 || steps.len() > STEPS {
            return Vec::new();
        }
    }
    let count = steps.len();
    let numbered = |(at, Step { text, command, change }): (usize, Step)| Remedy {
        text: if count > 1 { format!("Step {} of {count}: {text}", at + 1) } else { text },
        command,
        change,
    };
    steps.into_iter().enumerate().map(numbered).collect()
}

/// The smallest grant that a check needs, and the attributes after it.
fn grant(opened: &Opened<'_>, person: &Person, check: &Check) -> Option<(Step, AccessAttrs)> {
    let needed = match &check.requirement {
        Requirement::Search => Perm::EXECUTE,
        Requirement::Access(perm) => *perm,
        Requirement::Names => Perm::WRITE | Perm::EXECUTE,
        _ => return None,
    };
    let on = &check.access_attrs;
    let allows = |after: &AccessAttrs| {
        let check = Check { access_attrs: after.clone(), ..check.clone() };
        evaluate(&person.cred, &check).is_granted()
    };
    // In a POSIX ACL, an entry for the user replaces the permissions that the user has by a group or as
    // everyone else, so the entry repeats them.
    let has = |perm: Perm| {
        let check = Check { requirement: Requirement::Access(perm), ..check.clone() };
        evaluate(&person.cred, &check).is_granted()
    };
    let held = [Perm::READ, Perm::WRITE, Perm::EXECUTE].into_iter().filter(|perm| has(*perm));
    let perm = held.fold(needed, |all, one| all | one);
    let place = show_name(&check.path);
    let word = opened.word(&check.path);
    let allow = rights(needed, on.kind.is_dir());
    match &on.rules {
        Rules::Posix(_) if on.uid == person.cred.uid => {
            let mode = Mode::new(on.mode.bits() | perm.bits() << 6);
            let after = Edit::Chmod(mode).apply(on).ok().filter(&allows)?;
            let octal = format!("{:o}", mode.bits() & 0o7777);
            let change = PermissionChange {
                kind: "chmod".to_owned(),
                mode: octal.clone(),
                ..PermissionChange::default()
            };
            let step = Step {
                text: format!("Allow the owner of {place} {allow}:"),
                command: format!("chmod {octal} {word}"),
                change: Some((check.path.clone(), change)),
            };
            Some((step, after))
        }
        Rules::Posix(acl) => {
            let has_mask = acl.iter().flat_map(PosixAcl::entries).any(|entry| entry.tag == Tag::Mask);
            // Try first to keep the present mask, because then nobody else gets more permissions.
            let masks: &[bool] = if has_mask { &[true, false] } else { &[false] };
            masks.iter().find_map(|keep_mask| {
                let flag = if *keep_mask { "-n " } else { "" };
                let text = format!("setfacl {flag}-m u:{}:{perm} x", person.cred.uid);
                let PlannedChange::Edit { edit, .. } = parse_change(&text, &opened.users).ok()? else {
                    return None;
                };
                let after = edit.apply(on).ok().filter(&allows)?;
                let letters = perm.to_string().replace('-', "");
                let change = PermissionChange {
                    kind: "setfacl".to_owned(),
                    class: "u".to_owned(),
                    name: person.name.clone(),
                    perms: letters,
                    keep_mask: *keep_mask,
                    ..PermissionChange::default()
                };
                let entry = quoted(format!("u:{}:{perm}", person.name).as_bytes());
                let step = Step {
                    text: format!("For {} alone, allow {allow} at {place}:", person.name),
                    command: format!("setfacl {flag}-m {entry} {word}"),
                    change: Some((check.path.clone(), change)),
                };
                Some((step, after))
            })
        }
        Rules::Nfs4(acl) => {
            let is_dir = on.kind.is_dir();
            let stored =
                acl.as_ref().map_or_else(|| nfs4::from_mode(on.mode, is_dir), |acl| acl.stored().clone());
            let bits = [
                (Perm::READ, nfs4::Mask::READ_DATA),
                (Perm::WRITE, nfs4::Mask::WRITE_DATA),
                (Perm::EXECUTE, nfs4::Mask::EXECUTE),
            ];
            let bits = bits.into_iter().filter(|(one, _)| needed.has(*one));
            let mask = bits.fold(nfs4::Mask::NONE, |all, (_, bit)| all | bit);
            let who = nfs4::Who::User(acl::identity::Id::system(person.cred.uid)?);
            let entry = nfs4::Entry { kind: nfs4::Kind::Allow, flags: EntryFlags::NONE, who, mask };
            let entries = [&[entry], stored.entries()].concat();
            let acl = Nfs4Acl::new(AclFlags::NONE, entries).ok()?;
            let rules = Rules::Nfs4(Some(Nfs4Rules::new(acl, &opened.volume.sid_rules)));
            let after = Some(AccessAttrs { rules, ..on.clone() }).filter(&allows)?;
            let step = Step {
                text: format!(
                    "For {} alone, allow {allow} at {place}, by an entry before all others:",
                    person.name
                ),
                command: format!("nfs4_setfacl -a {entry} {word}"),
                change: None,
            };
            Some((step, after))
        }
    }
}

/// The advice to make the user a member of a group, if membership in one of the groups grants the access.
fn by_group(opened: &Opened<'_>, person: &Person, path_checks: &PathChecks) -> Option<Remedy> {
    let cred = &person.cred;
    let grants = |gid: &u32| {
        let groups = [cred.groups(), &[*gid]].concat();
        path_checks.explain(&Cred::new(cred.uid, cred.gid, &groups, cred.caps)).errno.is_none()
    };
    let gid = groups(path_checks).into_iter().filter(|gid| *gid != 0).take(GROUPS).find(grants)?;
    let group = opened.users.group(gid);
    let change =
        PermissionChange { kind: "join".to_owned(), name: group.clone(), ..PermissionChange::default() };
    let target = path_checks.target().map(|check| check.path.clone())?;
    Some(Remedy {
        text: format!(
            "Or make {} a member of the group {group}. This opens everything that the group can reach.",
            person.name
        ),
        command: String::new(),
        change: Some((target, change)),
    })
}

/// The groups that own a file on the way, or that its ACL names.
fn groups(path_checks: &PathChecks) -> BTreeSet<u32> {
    let of = |on: &AccessAttrs| {
        let mut gids = vec![on.gid];
        match &on.rules {
            Rules::Posix(acl) => {
                gids.extend(acl.iter().flat_map(PosixAcl::entries).filter_map(|entry| match entry.tag {
                    Tag::Group(gid) => Some(gid),
                    _ => None,
                }))
            }
            Rules::Nfs4(acl) => {
                let entries = acl.iter().flat_map(|acl| acl.deciding().entries());
                gids.extend(entries.filter_map(|entry| match entry.who {
                    nfs4::Who::NamedGroup(id) => id.to_system(),
                    _ => None,
                }));
            }
        }
        gids
    };
    path_checks.checks.iter().flat_map(|check| of(&check.access_attrs)).collect()
}
