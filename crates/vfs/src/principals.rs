//! The names of users and groups in the wire forms of NFSv4 ACLs: `name@domain` if the mount has a domain and
//! the system knows the name, otherwise the number. Other identities are SIDs.
//!
//! Names come from `/etc/passwd` and `/etc/group`, which are read again when they change. Other names come
//! from a [`NameService`].

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use acl::identity::{DomainTable, Id};
use acl::nfs4::{self, GrowingTable};
use host::Instant;

use crate::name_service::{NameService, Unknown};

/// The largest part of a file that is read; it holds some 100,000 users.
const MAX_BYTES: u64 = 8 << 20;

/// The names of principals on this mount.
#[derive(Debug)]
pub(crate) struct Principals {
    domain: Option<String>,
    users: AccountFile,
    groups: AccountFile,
    service: NameService,
}

impl Principals {
    pub(crate) fn new(domain: Option<String>) -> Self {
        Principals {
            domain,
            users: AccountFile::new("/etc/passwd"),
            groups: AccountFile::new("/etc/group"),
            service: NameService::new(),
        }
    }

    /// The current names, with this part of the volume's table of domains.
    pub(crate) fn now(&self, table: Arc<DomainTable>) -> Named {
        let names = self.domain.as_ref().map(|domain| Names {
            domain: domain.clone(),
            users: self.users.now(),
            groups: self.groups.now(),
            service: self.service.clone(),
            deadline: Cell::new(None),
            is_unknown: Cell::new(false),
        });
        Named { names, sids: GrowingTable::new(table) }
    }
}

/// The names for one request.
#[derive(Debug)]
pub(crate) struct Named {
    names: Option<Names>,
    pub(crate) sids: GrowingTable,
}

/// The names of a domain.
#[derive(Debug)]
struct Names {
    domain: String,
    users: Arc<NameTable>,
    groups: Arc<NameTable>,
    service: NameService,
    /// When the request stops waiting for the ids of names; `None` while it must not wait.
    deadline: Cell<Option<Instant>>,
    /// Whether an id was not known in time.
    is_unknown: Cell<bool>,
}

impl Named {
    /// Whether the id of a name is not known, or was not known in time.
    pub(crate) fn is_unknown(&self) -> bool {
        self.names.as_ref().is_some_and(|names| names.is_unknown.get())
    }

    /// Lets the request wait for ids from now on.
    pub(crate) fn wait(&self) {
        if let Some(names) = &self.names {
            names.deadline.set(Some(NameService::deadline()));
            names.is_unknown.set(false);
        }
    }
}

impl Names {
    fn table(&self, is_group: bool) -> &NameTable {
        if is_group { &self.groups } else { &self.users }
    }

    /// The id of a name of this domain.
    fn id(&self, name: &str, is_group: bool) -> Option<u32> {
        let asked = |name: &str| self.service.id(name, is_group, self.deadline.get());
        self.table(is_group).ids.get(name).copied().or_else(|| {
            // SSSD can be configured to know users by their full names only.
            let id = asked(name).and_then(|id| id.map_or_else(|| asked(&self.full(name)), |id| Ok(Some(id))));
            id.unwrap_or_else(|Unknown| {
                self.is_unknown.set(true);
                None
            })
        })
    }

    /// The name of an id, with the domain.
    fn name(&self, id: u32, is_group: bool) -> Option<String> {
        if let Some(name) = self.table(is_group).names.get(&id) {
            return Some(self.full(name));
        }
        let name = self.service.name(id, is_group)?;
        let short = match name.rsplit_once('@') {
            None => &name,
            Some((short, of)) if of.eq_ignore_ascii_case(&self.domain) => short,
            Some(_) => return None,
        };
        // If a program set the ACL again, a local user with this name would get the entry.
        (!self.table(is_group).ids.contains_key(short)).then(|| self.full(short))
    }

    fn full(&self, name: &str) -> String {
        format!("{name}@{}", self.domain)
    }
}

impl nfs4::Principals for Named {
    fn id_of(&self, name: &str, is_group: bool) -> Option<Id> {
        match (&self.names, name.rsplit_once('@')) {
            (Some(names), Some((name, of))) if of.eq_ignore_ascii_case(&names.domain) => {
                Id::system(names.id(name, is_group)?)
            }
            (Some(_), Some(_)) => None,
            _ => self.sids.id_of(name, is_group),
        }
    }

    fn name_of(&self, id: Id, is_group: bool) -> Option<String> {
        match (&self.names, id.to_system()) {
            (Some(names), Some(number)) => names.name(number, is_group),
            _ => self.sids.name_of(id, is_group),
        }
    }
}

/// The users or groups in one of the two files, as of its last read.
#[derive(Debug)]
struct AccountFile {
    path: &'static str,
    /// The version that was last read, which is `None` if the file was absent, and its names. `None` before
    /// the first read.
    read: Mutex<Option<(Option<Stamp>, Arc<NameTable>)>>,
}

/// The version of a file: device, inode, length, modification time.
type Stamp = (u64, u64, u64, i64, i64);

#[derive(Debug, Default)]
struct NameTable {
    ids: HashMap<String, u32>,
    names: HashMap<u32, String>,
}

impl AccountFile {
    fn new(path: &'static str) -> Self {
        AccountFile { path, read: Mutex::default() }
    }

    fn now(&self) -> Arc<NameTable> {
        let stamp = fs::metadata(self.path)
            .ok()
            .map(|of| (of.dev(), of.ino(), of.len(), of.mtime(), of.mtime_nsec()));
        let mut read = host::lock(&self.read);
        match &*read {
            Some((known, names)) if *known == stamp => Arc::clone(names),
            _ => {
                let text = read_text(self.path).inspect_err(|error| {
                    tracing::warn!(path = self.path, %error, "cannot read the file: its names show as numbers");
                });
                let names = Arc::new(text.map(|text| NameTable::parse(&text)).unwrap_or_default());
                *read = Some((stamp, Arc::clone(&names)));
                names
            }
        }
    }
}

fn read_text(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == MAX_BYTES {
        // The number in a line that is cut off would be another one.
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl NameTable {
    /// Parses lines of `name:password:number:...`, passwd(5) and group(5). The first line with a name gives
    /// its number, and the first line with a number gives its name. Lines of another form, and names that
    /// contain `@`, are skipped.
    fn parse(text: &str) -> Self {
        let mut names = NameTable::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(_), Some(id)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (Ok(id), false) = (id.parse::<u32>(), name.is_empty() || name.contains('@')) else {
                continue;
            };
            if id != u32::MAX {
                names.ids.entry(name.to_owned()).or_insert(id);
                names.names.entry(id).or_insert_with(|| name.to_owned());
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use acl::nfs4::Principals as _;

    use super::*;

    #[test]
    fn valid_lines_are_parsed_and_others_skipped() {
        let text = "ann:x:1000:1000:Ann:/home/ann:/bin/sh\n+::::::\nbad\nann:x:7:\ntwin:x:1000:\nat@x:x:8:\n\
                    minus:x:4294967295:\nword:x:one:\n";
        let names = Arc::new(NameTable::parse(text));
        assert_eq!(names.ids.len(), 2);
        let users = Named {
            names: Some(Names {
                domain: "example.org".into(),
                users: Arc::clone(&names),
                groups: Arc::default(),
                service: NameService::with_program("no-such-program"),
                deadline: Cell::new(None),
                is_unknown: Cell::new(false),
            }),
            sids: GrowingTable::default(),
        };
        assert_eq!(users.id_of("ann@EXAMPLE.org", false), Id::system(1000));
        for other in ["ann@example.com", "ann", "bob@example.org", "", "S-1-5"] {
            assert_eq!(users.id_of(other, false), None, "{other}");
        }
        let sid = users.id_of("S-1-5-21-1-2-3-4", false).unwrap();
        assert_eq!(users.name_of(sid, false).as_deref(), Some("S-1-5-21-1-2-3-4"));
        assert_eq!(users.id_of("ann@example.org", true), None, "no group has this name");
        assert_eq!(users.name_of(Id::system(1000).unwrap(), false).as_deref(), Some("ann@example.org"));
        assert_eq!(users.name_of(Id::system(8).unwrap(), false), None);
        let numbers = Named { names: None, sids: GrowingTable::default() };
        assert_eq!(numbers.id_of("ann@example.org", false), None);
        assert_eq!(numbers.name_of(Id::system(1000).unwrap(), false), None);
    }

    #[test]
    fn file_is_read_only_when_it_changes() {
        let users = AccountFile::new("/etc/passwd");
        assert_eq!(users.now().ids.get("root"), Some(&0));
        assert!(Arc::ptr_eq(&users.now(), &users.now()));
        let absent = AccountFile::new("/nonexistent/passwd");
        assert!(absent.now().ids.is_empty());
        assert!(Arc::ptr_eq(&absent.now(), &absent.now()), "each attempt to read it logs a warning");
    }
}
