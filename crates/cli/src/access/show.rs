//! Permissions, entries and reasons as text and JSON.

use acl::identity::DomainTable;
use acl::nfs4::{self, Reason, Who};
use acl::posix::{Entry, Perm, Tag};
use inspect::{AccessAttrs, Check, CheckReason, CheckResult, Requirement};
use serde_json::{Value, json};
use types::{Caps, Cred};

use crate::modes;
use crate::users::{Person, Users};

/// A user as text: `ann (uid 1000; groups ann, staff)`.
pub(crate) fn person(person: &Person, users: &Users) -> String {
    let groups: Vec<String> = groups(&person.cred).map(|gid| users.group(gid)).collect();
    let all = if person.cred.uid == 0 { "; every capability" } else { "" };
    format!("{} (uid {}; groups {}{all})", person.name, person.cred.uid, groups.join(", "))
}

pub(super) fn person_to_json(person: &Person) -> Value {
    json!({ "name": person.name, "uid": person.cred.uid, "groups": groups(&person.cred).collect::<Vec<u32>>() })
}

/// All groups, the primary one first.
fn groups(cred: &Cred) -> impl Iterator<Item = u32> + '_ {
    std::iter::once(cred.gid).chain(cred.groups().iter().copied().filter(|gid| *gid != cred.gid))
}

/// An ACL entry like in getfacl(1): `user:ann:rw-`.
pub(crate) fn entry(entry: &Entry, users: &Users) -> String {
    let name = match entry.tag {
        Tag::User(uid) => users.user(uid),
        Tag::Group(gid) => users.group(gid),
        Tag::UserObj | Tag::GroupObj | Tag::Mask | Tag::Other => return entry.to_string(),
    };
    format!("{}:{name}:{}", entry.tag.name(), entry.perm)
}

/// Names the operation that a check must permit.
pub(crate) fn requirement(requirement: &Requirement) -> String {
    match requirement {
        Requirement::Search => "search".to_owned(),
        Requirement::Follow { .. } => "follow the link".to_owned(),
        Requirement::Access(perm) => rights_in_words(*perm),
        Requirement::Names => "write and search".to_owned(),
        Requirement::Sticky { .. } | Requirement::Remove { .. } => "remove the name".to_owned(),
        Requirement::Own => "act as the owner".to_owned(),
        Requirement::GiveAway => "change the owner".to_owned(),
        Requirement::SetTimes => "set the times".to_owned(),
    }
}

fn rights_in_words(perm: Perm) -> String {
    let all = [(Perm::READ, "read"), (Perm::WRITE, "write"), (Perm::EXECUTE, "execute")];
    let words: Vec<&str> = all.into_iter().filter(|(one, _)| perm.has(*one)).map(|(_, word)| word).collect();
    words.join(" and ")
}

/// The reason of a decision, in one line.
pub(crate) fn reason(reason: &CheckReason, users: &Users, domains: &DomainTable) -> String {
    match reason {
        CheckReason::Mode(of) => entry(of, users),
        CheckReason::ModeAside(of) => {
            format!("{}, because the group bits are clear, so the ACL is ignored", entry(of, users))
        }
        CheckReason::Entry(of, None) => entry(of, users),
        CheckReason::Entry(of, Some(mask)) => format!("{} under mask::{mask}", entry(of, users)),
        CheckReason::Nfs4(all) => {
            all.iter().map(|one| nfs4_verdict(one, users, domains)).collect::<Vec<_>>().join("; ")
        }
        CheckReason::Capability(caps) => format!("{} overrides mode and ACL", capability(*caps)),
        CheckReason::NeedsCapability(caps) => format!("needs {}", capability(*caps)),
        CheckReason::Owns => "the user owns it".to_owned(),
        CheckReason::IsNotOwner => "the user does not own it".to_owned(),
        CheckReason::OwnsDirectory => "the user owns the sticky directory".to_owned(),
        CheckReason::OwnsNeither => "the user owns neither it nor the sticky directory".to_owned(),
        CheckReason::LinkOfDirectory => "the owner of the directory owns the link".to_owned(),
        CheckReason::LinkOfOther => {
            "neither the user nor the owner of the sticky directory owns the link".to_owned()
        }
    }
}

fn capability(caps: Caps) -> &'static str {
    caps.name().unwrap_or("several capabilities")
}

fn nfs4_verdict(
    (verdict, entry): &(nfs4::Verdict, Option<nfs4::Entry>),
    users: &Users,
    domains: &DomainTable,
) -> String {
    let reason = match (verdict.reason, entry) {
        (_, Some(entry)) => match sid_name(entry, users, domains) {
            Some(name) => format!("{} ({name})", entry.by_sid(domains)),
            None => entry.by_sid(domains).to_string(),
        },
        (Reason::OwnerRight, _) => "always granted to the owner".to_owned(),
        (Reason::Mode(class), _) => format!("the mode, as {class:?}").to_lowercase(),
        (Reason::NotMentioned | Reason::Entry(_), _) => "no entry mentions it".to_owned(),
    };
    format!("{}: {reason}", verdict.permission)
}

/// The name of the SID that an entry is for; `None` if it is for another principal, or the name is unknown.
fn sid_name(entry: &nfs4::Entry, users: &Users, domains: &DomainTable) -> Option<String> {
    let (Who::User(id) | Who::NamedGroup(id)) = entry.who else { return None };
    users.sids().name_of(&domains.sid_of(id)?)
}

/// The kind of the reason, for JSON.
fn reason_kind(reason: &CheckReason) -> &'static str {
    match reason {
        CheckReason::Mode(_) => "mode",
        CheckReason::ModeAside(_) => "mode, ACL put aside",
        CheckReason::Entry(..) => "entry",
        CheckReason::Nfs4(_) => "nfs4",
        CheckReason::Capability(_) | CheckReason::NeedsCapability(_) => "capability",
        CheckReason::Owns | CheckReason::IsNotOwner => "owner",
        CheckReason::OwnsDirectory | CheckReason::OwnsNeither => "sticky",
        CheckReason::LinkOfDirectory | CheckReason::LinkOfOther => "link",
    }
}

pub(super) fn reason_to_json(of: &CheckReason, users: &Users, domains: &DomainTable) -> Value {
    let mut value = json!({ "kind": reason_kind(of), "text": reason(of, users, domains) });
    match of {
        CheckReason::Mode(of) | CheckReason::ModeAside(of) => value["entry"] = format!("{of:#}").into(),
        CheckReason::Entry(of, mask) => {
            value["entry"] = format!("{of:#}").into();
            value["mask"] = mask.map(|mask| mask.to_string()).into();
        }
        CheckReason::Nfs4(all) => {
            let one = |(verdict, entry): &(nfs4::Verdict, Option<nfs4::Entry>)| {
                json!({
                    "permission": verdict.permission.to_string(),
                    "granted": verdict.granted,
                    "entry": entry.as_ref().map(|entry| entry.by_sid(domains).to_string()),
                    "sid_name": entry.as_ref().and_then(|entry| sid_name(entry, users, domains)),
                })
            };
            value["permissions"] = all.iter().map(one).collect();
        }
        CheckReason::Capability(caps) | CheckReason::NeedsCapability(caps) => {
            value["capability"] = capability(*caps).into();
        }
        _ => {}
    }
    value
}

/// Type and mode: `-rw-r-----+`.
pub(crate) fn mode(access_attrs: &AccessAttrs) -> String {
    modes::show(access_attrs.kind, access_attrs.mode, access_attrs.rules.has_acl())
}

pub(super) fn check_to_json(
    check: &Check,
    result: &CheckResult,
    users: &Users,
    domains: &DomainTable,
) -> Value {
    let (path, bytes) = crate::target::path_to_json(&check.path);
    let mut value = json!({
        "path": path,
        "inode": check.access_attrs.ino,
        "type": modes::kind_name(check.access_attrs.kind),
        "mode": check.access_attrs.mode.to_string(),
        "uid": check.access_attrs.uid,
        "gid": check.access_attrs.gid,
        "acl": check.access_attrs.rules.acl_text_by_sid(domains),
        "asked": requirement(&check.requirement),
        "granted": result.is_granted(),
        "errno": result.errno.and_then(|errno| errno.name()),
        "by": reason_to_json(&result.reason, users, domains),
    });
    if let Some(bytes) = bytes {
        value["path_bytes"] = bytes.into();
    }
    value
}
