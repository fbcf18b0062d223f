//! Permissions and reasons in sentences, for people who cannot read ACLs.
//!
//! This module decides nothing: each sentence says a [`CheckReason`] in words.

use acl::identity::DomainTable;
use acl::nfs4;
use acl::posix::{Entry, Perm, Tag};
use inspect::{AccessAttrs, CheckReason, Operation, Requirement, Rules};

use crate::access::show;
use crate::target::show_name;
use crate::users::{Person, Users};

/// The user that the sentences are about, and the names of users, groups and Windows domains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    pub(super) person: &'a Person,
    pub(super) users: &'a Users,
    pub(super) domains: &'a DomainTable,
}

impl Words<'_> {
    /// Why a check has its result. The sentence begins in lower case.
    pub(super) fn reason(&self, reason: &CheckReason, on: &AccessAttrs) -> String {
        let name = &self.person.name;
        let (owner, group) = (self.users.user(on.uid), self.users.group(on.gid));
        let is_dir = on.kind.is_dir();
        match reason {
            CheckReason::Mode(entry) => format!("{}.", self.by_class(entry, on)),
            CheckReason::ModeAside(entry) => format!(
                "{}. Its ACL is ignored, because the group bits of its mode are all clear.",
                self.by_class(entry, on)
            ),
            CheckReason::Entry(entry @ Entry { tag, perm }, mask) => {
                let allows = format!("it allows {}", rights(*perm, is_dir));
                let decided = match tag {
                    Tag::User(_) => {
                        format!(
                            "its ACL has an entry for {name} ({}); {allows}",
                            show::entry(entry, self.users)
                        )
                    }
                    Tag::Group(gid) => format!(
                        "its ACL has an entry for the group {}, which {name} is in ({}); {allows}",
                        self.users.group(*gid),
                        show::entry(entry, self.users)
                    ),
                    Tag::GroupObj => {
                        format!(
                            "{name} is in its group {group}, so the entry of that group ({entry}) decides; {allows}"
                        )
                    }
                    Tag::Other => format!(
                        "{name} is not its owner ({owner}), and its ACL names neither {name} nor a group that {name} is in, \
                         so the entry of everyone else ({entry}) decides; {allows}"
                    ),
                    Tag::UserObj | Tag::Mask => self.by_class(entry, on),
                };
                match mask {
                    None => format!("{decided}."),
                    Some(mask) => format!(
                        "{decided}. The mask of the ACL (mask::{mask}) limits this to {}.",
                        rights(*perm & *mask, is_dir)
                    ),
                }
            }
            CheckReason::Nfs4(all) => {
                let all: Vec<String> = all.iter().map(|one| self.by_nfs4(one, on)).collect();
                format!("{}.", all.join("; "))
            }
            CheckReason::NeedsCapability(_) => {
                format!("only root may do this ({}).", show::reason(reason, self.users, self.domains))
            }
            CheckReason::Capability(_) => {
                format!("{name} is root: {}.", show::reason(reason, self.users, self.domains))
            }
            CheckReason::Owns => format!("{name} owns it."),
            CheckReason::IsNotOwner => format!("only its owner ({owner}) or root may do this."),
            CheckReason::OwnsDirectory => format!("{name} owns the directory, which is sticky."),
            CheckReason::OwnsNeither => format!(
                "the directory is sticky (t in its mode), so only the owner of a name’s file, the owner of the directory or root \
                 may remove the name. {owner} owns the file."
            ),
            CheckReason::LinkOfDirectory => "the owner of the directory owns the link.".to_owned(),
            CheckReason::LinkOfOther => format!(
                "it is a symbolic link of {owner} in a sticky directory, and the kernel follows such a link only for its owner."
            ),
        }
    }

    fn by_class(&self, Entry { tag, perm }: &Entry, on: &AccessAttrs) -> String {
        let name = &self.person.name;
        let (owner, group) = (self.users.user(on.uid), self.users.group(on.gid));
        let rights = rights(*perm, on.kind.is_dir());
        match tag {
            Tag::UserObj => format!("{name} owns it, so the owner’s permissions decide; they allow {rights}"),
            Tag::GroupObj => {
                format!(
                    "{name} is in its group {group}, so the group’s permissions decide; they allow {rights}"
                )
            }
            _ => format!(
                "{name} is neither its owner ({owner}) nor in its group ({group}), so the permissions of everyone else \
                 decide; they allow {rights}"
            ),
        }
    }

    fn by_nfs4(&self, (verdict, entry): &(nfs4::Verdict, Option<nfs4::Entry>), on: &AccessAttrs) -> String {
        let name = &self.person.name;
        let right = mask_in_words(verdict.permission, on.kind.is_dir());
        let allows = if verdict.granted { "allows" } else { "denies" };
        match (verdict.reason, entry) {
            (_, Some(entry)) => format!(
                "its ACL {allows} {} to {right}, by the entry {}",
                self.principal(entry),
                entry.by_sid(self.domains)
            ),
            (nfs4::Reason::OwnerRight, _) => format!("{name} owns it, and an owner may always {right}"),
            (nfs4::Reason::Mode(class), _) => {
                let class = format!("{class:?}").to_lowercase();
                format!("it has no ACL, and its mode {allows} {class} to {right}")
            }
            _ => format!("no entry of its ACL allows {name} to {right}"),
        }
    }

    fn principal(&self, entry: &nfs4::Entry) -> String {
        principal(entry, self.users, self.domains)
    }
}

fn principal(entry: &nfs4::Entry, users: &Users, domains: &DomainTable) -> String {
    let of = |id: acl::identity::Id, is_group: bool| {
        let sid_name = domains.sid_of(id).and_then(|sid| users.sids().name_of(&sid));
        sid_name.or_else(|| {
            let id = id.to_system()?;
            Some(if is_group { users.group(id) } else { users.user(id) })
        })
    };
    match entry.who {
        nfs4::Who::Owner => "the owner".to_owned(),
        nfs4::Who::Group => "the owning group".to_owned(),
        nfs4::Who::Everyone => "everyone".to_owned(),
        nfs4::Who::User(id) => of(id, false).unwrap_or_else(|| "a user of a Windows domain".to_owned()),
        nfs4::Who::NamedGroup(id) => of(id, true)
            .map_or_else(|| "a group of a Windows domain".to_owned(), |name| format!("the group {name}")),
    }
}

/// Read, write and execute, as they are called for a file or a directory.
pub(super) fn rights(perm: Perm, is_dir: bool) -> String {
    let words =
        if is_dir { ["listing", "changing names", "passing"] } else { ["reading", "writing", "running"] };
    let all = [Perm::READ, Perm::WRITE, Perm::EXECUTE].into_iter().zip(words);
    listed(&all.filter(|(one, _)| perm.has(*one)).map(|(_, word)| word).collect::<Vec<_>>())
}

/// "a", "a and b", "a, b and c"; "nothing".
fn listed(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The action of a user, with the name of the file.
pub(super) fn deed(want: Operation, is_dir: bool, path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    let name = name.map_or_else(|| "the root directory".to_owned(), show_name);
    let verb = match want {
        Operation::Access(perm) => {
            let words = if is_dir { ["list", "add names to", "enter"] } else { ["read", "write", "run"] };
            let all = [Perm::READ, Perm::WRITE, Perm::EXECUTE].into_iter().zip(words);
            listed(&all.filter(|(one, _)| perm.has(*one)).map(|(_, word)| word).collect::<Vec<_>>())
        }
        Operation::Stat => "see the attributes of".to_owned(),
        Operation::Create => "create".to_owned(),
        Operation::Delete => "delete".to_owned(),
        Operation::Chmod => "change the permissions of".to_owned(),
        Operation::Chown => "change the owner of".to_owned(),
        Operation::SetTimes => "set the times of".to_owned(),
    };
    format!("{verb} {name}")
}

/// The access that a check requires, as a noun.
pub(super) fn asked(requirement: &Requirement, is_dir: bool) -> String {
    match requirement {
        Requirement::Search => "passing".to_owned(),
        Requirement::Access(perm) => rights(*perm, is_dir),
        Requirement::Names => "adding and removing names".to_owned(),
        other => show::requirement(other),
    }
}

/// The rules of a file, from its owner, mode and ACL: each entry, and its meaning.
pub(super) fn rules(on: &AccessAttrs, users: &Users, domains: &DomainTable) -> Vec<(String, String)> {
    let is_dir = on.kind.is_dir();
    let (owner, group) = (users.user(on.uid), users.group(on.gid));
    let may = |perm: Perm| match verbs(perm, is_dir) {
        verbs if verbs.is_empty() => "may do nothing".to_owned(),
        verbs => format!("may {verbs}"),
    };
    let posix = |entries: Vec<Entry>| {
        let mask = entries.iter().find(|entry| entry.tag == Tag::Mask).map(|entry| entry.perm);
        let limited = |entry: &Entry| match mask {
            Some(mask) if !mask.has(entry.perm) => {
                format!("{} – its entry says more, but the mask limits it", may(entry.perm & mask))
            }
            _ => may(entry.perm),
        };
        let words = |entry: &Entry| match entry.tag {
            Tag::UserObj => format!("{owner}, the owner, {}", may(entry.perm)),
            Tag::User(uid) => format!("{} {}", users.user(uid), limited(entry)),
            Tag::GroupObj => format!("Members of {group}, the owning group, {}", limited(entry)),
            Tag::Group(gid) => format!("Members of {} {}", users.group(gid), limited(entry)),
            Tag::Mask => match verbs(entry.perm, is_dir) {
                verbs if verbs.is_empty() => "Named users and groups get nothing (the mask)".to_owned(),
                verbs => format!("Named users and groups get at most: {verbs} (the mask)"),
            },
            Tag::Other => format!("Everyone else {}", may(entry.perm)),
        };
        entries.iter().map(|entry| (show::entry(entry, users), words(entry))).collect()
    };
    match &on.rules {
        Rules::Posix(Some(acl)) => posix(acl.entries().collect()),
        Rules::Posix(None) | Rules::Nfs4(None) => {
            let rwx = on.mode.rwx();
            let all = [(Tag::UserObj, rwx >> 6), (Tag::GroupObj, rwx >> 3), (Tag::Other, rwx)];
            posix(all.map(|(tag, bits)| Entry { tag, perm: Perm::new(bits) }).into())
        }
        Rules::Nfs4(Some(acl)) => {
            let entries = acl.stored().entries();
            let words = |entry: &nfs4::Entry| {
                let who = principal(entry, users, domains);
                let may = if entry.kind == nfs4::Kind::Allow { "may" } else { "may not" };
                match entry.kind {
                    nfs4::Kind::Audit | nfs4::Kind::Alarm => "No effect: a request to log".to_owned(),
                    nfs4::Kind::Allow | nfs4::Kind::Deny => {
                        let inherited = if entry.is_effective() { "" } else { "Inherited only: " };
                        format!("{inherited}{who} {may} {}", mask_in_words(entry.mask, is_dir))
                    }
                }
            };
            entries.iter().map(|entry| (entry.by_sid(domains).to_string(), capital(&words(entry)))).collect()
        }
    }
}

fn verbs(perm: Perm, is_dir: bool) -> String {
    let words = if is_dir { ["list", "add and remove names", "enter"] } else { ["read", "write", "run"] };
    let all = [Perm::READ, Perm::WRITE, Perm::EXECUTE].into_iter().zip(words);
    let verbs: Vec<&str> = all.filter(|(one, _)| perm.has(*one)).map(|(_, word)| word).collect();
    if verbs.is_empty() { String::new() } else { listed(&verbs) }
}

/// The permissions of an NFSv4 ACL.
fn mask_in_words(mask: nfs4::Mask, is_dir: bool) -> String {
    use nfs4::Mask;
    if mask == Mask::ALL {
        return "do everything".to_owned();
    }
    let words = [
        (Mask::READ_DATA, "read", "list"),
        (Mask::WRITE_DATA, "write", "create files"),
        (Mask::APPEND_DATA, "append", "create directories"),
        (Mask::EXECUTE, "run", "enter"),
        (Mask::DELETE, "delete it", "delete it"),
        (Mask::DELETE_CHILD, "delete what is in it", "delete what is in it"),
        (Mask::READ_ATTRIBUTES, "read attributes", "read attributes"),
        (Mask::WRITE_ATTRIBUTES, "set times", "set times"),
        (Mask::READ_ACL, "read the ACL", "read the ACL"),
        (Mask::WRITE_ACL, "change permissions", "change permissions"),
        (Mask::WRITE_OWNER, "change the owner", "change the owner"),
    ];
    let of = |(one, file, dir): &(Mask, &'static str, &'static str)| {
        mask.has(*one).then_some(if is_dir { *dir } else { *file })
    };
    match listed(&words.iter().filter_map(of).collect::<Vec<_>>()) {
        nothing if nothing == "nothing" => format!("use {mask}"),
        words => words,
    }
}

/// The sentence with a capital letter at its beginning.
fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use acl::nfs4::{AclFlags, EntryFlags, Kind, Mask, Nfs4Acl, Who};
    use acl::sid_rules::SidRules;
    use inspect::Nfs4Rules;
    use types::{FileType, Mode};

    use super::*;

    #[test]
    fn entries_of_an_nfs4_acl_are_put_into_words() {
        let inherited = EntryFlags::INHERIT_ONLY | EntryFlags::FILE_INHERIT;
        let expected = [
            (Kind::Allow, EntryFlags::NONE, "Everyone may list"),
            (Kind::Deny, EntryFlags::NONE, "Everyone may not list"),
            (Kind::Allow, inherited, "Inherited only: everyone may list"),
            (Kind::Deny, inherited, "Inherited only: everyone may not list"),
            (Kind::Audit, EntryFlags::NONE, "No effect: a request to log"),
            (Kind::Alarm, inherited, "No effect: a request to log"),
        ];
        let entries = expected.map(|(kind, flags, _)| nfs4::Entry {
            kind,
            flags,
            who: Who::Everyone,
            mask: Mask::READ_DATA,
        });
        let acl = Nfs4Acl::new(AclFlags::NONE, entries).unwrap();
        let dir = AccessAttrs {
            ino: 5,
            kind: FileType::Directory,
            mode: Mode::new(0o700),
            uid: 0,
            gid: 0,
            rules: Rules::Nfs4(Some(Nfs4Rules::new(acl, &SidRules::default()))),
        };
        let words = rules(&dir, &Users::default(), &DomainTable::default());
        let words: Vec<&str> = words.iter().map(|(_, words)| words.as_str()).collect();
        assert_eq!(words, expected.map(|(.., words)| words));
    }
}
