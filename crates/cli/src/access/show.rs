//! Rights, entries and reasons, in words.

use acl::identity::DomainTable;
use acl::nfs4::{self, Reason};
use acl::posix::{Entry, Perm, Tag};
use inspect::{Check, Demand, Ground, Subject, Verdict};
use serde_json::{Value, json};
use types::{Caps, Cred};

use crate::modes;
use crate::users::{Person, Users};

/// `ann (uid 1000; groups ann, staff)`.
pub(super) fn person(person: &Person, users: &Users) -> String {
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

/// `user:ann:rw-`, as getfacl writes it.
pub(super) fn entry(entry: &Entry, users: &Users) -> String {
    let perm = entry.perm;
    match entry.tag {
        Tag::UserObj => format!("user::{perm}"),
        Tag::User(uid) => format!("user:{}:{perm}", users.user(uid)),
        Tag::GroupObj => format!("group::{perm}"),
        Tag::Group(gid) => format!("group:{}:{perm}", users.group(gid)),
        Tag::Mask => format!("mask::{perm}"),
        Tag::Other => format!("other::{perm}"),
    }
}

/// What is asked, in a word or two.
pub(super) fn demand(demand: &Demand) -> String {
    match demand {
        Demand::Search => "search".to_owned(),
        Demand::Follow { .. } => "follow the link".to_owned(),
        Demand::Access(perm) => rights_in_words(*perm),
        Demand::Names => "write and search".to_owned(),
        Demand::Sticky { .. } | Demand::Remove { .. } => "be removed".to_owned(),
        Demand::Own => "be changed".to_owned(),
        Demand::GiveAway => "be given away".to_owned(),
        Demand::Touch => "be touched".to_owned(),
    }
}

fn rights_in_words(perm: Perm) -> String {
    let all = [(Perm::READ, "read"), (Perm::WRITE, "write"), (Perm::EXECUTE, "execute")];
    let words: Vec<&str> = all.into_iter().filter(|(one, _)| perm.has(*one)).map(|(_, word)| word).collect();
    words.join(" and ")
}

/// What decided, in one line.
pub(super) fn ground(ground: &Ground, users: &Users, domains: &DomainTable) -> String {
    match ground {
        Ground::Mode(of) => entry(of, users),
        Ground::ModeAside(of) => {
            format!("{}, for the group bits are clear and put the ACL aside", entry(of, users))
        }
        Ground::Entry(of, None) => entry(of, users),
        Ground::Entry(of, Some(mask)) => format!("{} under mask::{mask}", entry(of, users)),
        Ground::Nfs4(all) => all.iter().map(|one| nfs4_verdict(one, domains)).collect::<Vec<_>>().join("; "),
        Ground::Capability(caps) => format!("{}, whatever mode and ACL say", capability(*caps)),
        Ground::NeedsCapability(caps) => format!("it takes {}", capability(*caps)),
        Ground::Owns => "it is the user's own".to_owned(),
        Ground::OwnsNot => "it is not the user's own".to_owned(),
        Ground::OwnsDirectory => "the sticky directory is the user's own".to_owned(),
        Ground::OwnsNeither => "neither it nor the sticky directory is the user's own".to_owned(),
        Ground::LinkOfDirectory => "the link belongs to who owns the directory".to_owned(),
        Ground::LinkOfOther => "the link belongs to a third, in a sticky directory".to_owned(),
    }
}

fn capability(caps: Caps) -> &'static str {
    caps.name().unwrap_or("several capabilities")
}

fn nfs4_verdict((verdict, entry): &(nfs4::Verdict, Option<nfs4::Entry>), domains: &DomainTable) -> String {
    let reason = match (verdict.reason, entry) {
        (_, Some(entry)) => entry.by_sid(domains).to_string(),
        (Reason::OwnerRight, _) => "owners always may".to_owned(),
        (Reason::Mode(class), _) => format!("the mode, as {class:?}").to_lowercase(),
        (Reason::NotMentioned | Reason::Entry(_), _) => "no entry speaks of it".to_owned(),
    };
    format!("{}: {reason}", verdict.permission)
}

/// By what kind of thing it was decided, for programs.
fn ground_kind(ground: &Ground) -> &'static str {
    match ground {
        Ground::Mode(_) => "mode",
        Ground::ModeAside(_) => "mode, ACL put aside",
        Ground::Entry(..) => "entry",
        Ground::Nfs4(_) => "nfs4",
        Ground::Capability(_) | Ground::NeedsCapability(_) => "capability",
        Ground::Owns | Ground::OwnsNot => "owner",
        Ground::OwnsDirectory | Ground::OwnsNeither => "sticky",
        Ground::LinkOfDirectory | Ground::LinkOfOther => "link",
    }
}

pub(super) fn ground_to_json(of: &Ground, users: &Users, domains: &DomainTable) -> Value {
    let mut value = json!({ "kind": ground_kind(of), "text": ground(of, users, domains) });
    match of {
        Ground::Mode(of) | Ground::ModeAside(of) => value["entry"] = numeric(of).into(),
        Ground::Entry(of, mask) => {
            value["entry"] = numeric(of).into();
            value["mask"] = mask.map(|mask| mask.to_string()).into();
        }
        Ground::Nfs4(all) => {
            let one = |(verdict, entry): &(nfs4::Verdict, Option<nfs4::Entry>)| {
                json!({
                    "permission": verdict.permission.to_string(),
                    "granted": verdict.granted,
                    "entry": entry.as_ref().map(|entry| entry.by_sid(domains).to_string()),
                })
            };
            value["permissions"] = all.iter().map(one).collect();
        }
        Ground::Capability(caps) | Ground::NeedsCapability(caps) => {
            value["capability"] = capability(*caps).into();
        }
        _ => {}
    }
    value
}

/// With numeric ids, in the short form in which ACLs are stored.
fn numeric(entry: &Entry) -> String {
    let perm = entry.perm;
    match entry.tag {
        Tag::UserObj => format!("u::{perm}"),
        Tag::User(uid) => format!("u:{uid}:{perm}"),
        Tag::GroupObj => format!("g::{perm}"),
        Tag::Group(gid) => format!("g:{gid}:{perm}"),
        Tag::Mask => format!("m::{perm}"),
        Tag::Other => format!("o::{perm}"),
    }
}

/// `-rw-r-----+`.
pub(super) fn mode(subject: &Subject) -> String {
    modes::show(subject.kind, subject.mode, subject.rules.has_acl())
}

pub(super) fn check_to_json(check: &Check, verdict: &Verdict, users: &Users, domains: &DomainTable) -> Value {
    let (path, bytes) = crate::target::path_to_json(&check.path);
    let mut value = json!({
        "path": path,
        "inode": check.subject.ino,
        "type": modes::kind_name(check.subject.kind),
        "mode": check.subject.mode.to_string(),
        "uid": check.subject.uid,
        "gid": check.subject.gid,
        "acl": check.subject.rules.acl_text_by_sid(domains),
        "asked": demand(&check.demand),
        "granted": verdict.is_granted(),
        "errno": verdict.errno.and_then(|errno| errno.name()),
        "by": ground_to_json(&verdict.ground, users, domains),
    });
    if let Some(bytes) = bytes {
        value["path_bytes"] = bytes.into();
    }
    value
}
