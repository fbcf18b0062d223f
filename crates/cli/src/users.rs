//! Users and groups from this machine's databases (nsswitch.conf(5)).
//!
//! Lookups use getent(1) and id(1), which query every source that nsswitch.conf names, directory services
//! included. The functions of the C library do the same, but cannot be called without `unsafe`. Names of ids
//! that are in the local files are read from there, without starting a program. Only commands use this; a
//! mount looks names up in `vfs/src/name_service.rs`.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use acl::identity::Sid;
use command::error::{CliError, ErrorAt};
use command::output;
use inspect::UserDatabase;
use types::{Caps, Cred};

use crate::sids::Sids;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// The exit code of getent(1) for a key that does not exist.
const NOT_FOUND: i32 = 2;
/// The time after which timeout(1) ends a lookup, in seconds, and its exit code then. A directory service
/// that is away would otherwise hang the command.
const TIMEOUT_SECS: &str = "10";
const TIMED_OUT: i32 = 124;
/// How long getent(1) is not called after it has timed out.
const PAUSE: Duration = Duration::from_secs(60);
/// The maximum number of cached names of each database. A full table is cleared.
const MAX_NAMES: usize = 1 << 16;

/// A user whose access is evaluated.
#[derive(Clone, Debug)]
pub(crate) struct Person {
    /// The user's name, or the number if there is no name.
    pub(crate) name: String,
    pub(crate) cred: Cred,
}

/// Looks up users and groups. Caches the names of ids.
#[derive(Debug, Default)]
pub(crate) struct Users {
    users: Table,
    groups: Table,
    sids: Sids,
}

/// The names in one of the two databases, of users or of groups.
#[derive(Debug, Default)]
struct Table {
    local: OnceCell<HashMap<u32, String>>,
    cached: RefCell<HashMap<u32, String>>,
}

/// The needed fields of a line of passwd(5) or group(5).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    id: u32,
    /// The primary group of a user.
    gid: Option<u32>,
}

impl Users {
    /// Like [`Users::default`], but also knows the Windows identities of a volume.
    pub(crate) fn with_sids(sids: Sids) -> Self {
        Users { sids, ..Users::default() }
    }

    /// The Windows identities.
    pub(crate) fn sids(&self) -> &Sids {
        &self.sids
    }

    /// The user's name, or the number if there is no name.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.name("passwd", PASSWD, uid)
    }

    /// The group's name, or the number if there is no name.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.name("group", GROUP, gid)
    }

    /// Finds a user by name, number, SID, or name in a Windows domain (`DOM\ann`). The user gets `groups` if
    /// given, else the groups of the database or, if only the Windows domain knows the user, those of the
    /// domain. The first group is the primary group. User 0 has every capability, all other users have none.
    ///
    /// # Errors
    /// The user or a group does not exist; no rule maps the SID; `groups` is empty; `groups` is `None`, and
    /// neither the database nor the Windows domain knows the user's groups; the database or the rules cannot
    /// be read.
    pub(crate) fn person(&self, user: &str, groups: Option<&[String]>) -> Result<Person, CliError> {
        let sid = self.sid_of(user);
        let by_sid = sid.as_ref().map(|sid| self.unix_id(sid, false)).transpose()?;
        let key = by_sid.map_or_else(|| user.to_owned(), |uid| uid.to_string());
        let found = query("passwd", &key)?;
        let (uid, name) = match (&found, number(&key)) {
            (Some(found), _) => (found.id, found.name.clone()),
            (None, Some(uid)) if user.contains('\\') => (uid, user.to_owned()),
            (None, Some(uid)) => (uid, uid.to_string()),
            (None, None) => return Err(no_user(user)),
        };
        let all = match (groups, found, sid) {
            (Some(names), ..) => {
                names.iter().map(|name| self.gid(name)).collect::<Result<Vec<u32>, CliError>>()?
            }
            (None, Some(found), _) => groups_of(&found)?,
            (None, None, sid) => sid.map_or(Ok(Vec::new()), |sid| self.groups_of_sid(&sid))?,
        };
        if groups.is_none() && all.is_empty() {
            return Err(CliError::usage(format!(
                "user {uid} has no entry in the user database, so its groups are unknown"
            ))
            .advise("give the groups with --groups"));
        }
        let Some((primary, more)) = all.split_first() else {
            return Err(CliError::usage("a user needs at least one group").advise("give it with --groups"));
        };
        let caps = if uid == 0 { Caps::ALL } else { Caps::NONE };
        Ok(Person { name, cred: Cred::new(uid, *primary, more, caps) })
    }

    /// The id of a user, by name, number or SID.
    ///
    /// # Errors
    /// There is no such user; no rule maps the SID; the user database cannot be queried.
    pub(crate) fn uid(&self, user: &str) -> Result<u32, CliError> {
        if let Some(sid) = self.sid_of(user) {
            return self.unix_id(&sid, false);
        }
        id_of("passwd", user, || no_user(user))
    }

    /// All users of the local files. Directory services are left out, because they need not allow listing
    /// their users.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn all(&self) -> Result<Vec<Person>, CliError> {
        let read = |place| fs::read_to_string(place).at(place);
        let (users, groups) = (read(PASSWD)?, read(GROUP)?);
        let users = users.lines().filter_map(|line| parse(line, true));
        Ok(users.map(|user| Person { cred: local_cred(&user, &groups), name: user.name }).collect())
    }

    /// The numbers and names of all groups of the local file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn all_groups(&self) -> Result<Vec<(u32, String)>, CliError> {
        let groups = fs::read_to_string(GROUP).at(GROUP)?;
        let groups = groups.lines().filter_map(|line| parse(line, false));
        Ok(groups.map(|group| (group.id, group.name)).collect())
    }

    /// The id of a group, by name, number or SID.
    ///
    /// # Errors
    /// There is no such group; no rule maps the SID; the user database cannot be queried.
    pub(crate) fn gid(&self, name: &str) -> Result<u32, CliError> {
        if let Some(sid) = self.sid_of(name) {
            return self.unix_id(&sid, true);
        }
        id_of("group", name, || CliError::usage(format!("there is no group '{name}'")))
    }

    /// Parses a SID, or finds the SID of a name in a Windows domain. `None` for a number, and for a name that
    /// this machine's databases know: these stand for a Unix id.
    fn sid_of(&self, text: &str) -> Option<Sid> {
        if let Ok(sid) = text.parse() {
            return Some(sid);
        }
        let is_known =
            || UserDatabase::user(self, text).is_some() || UserDatabase::group(self, text).is_some();
        if number(text).is_some() || is_known() { None } else { self.sids.named(text) }
    }

    /// The uid or gid of a SID. The SID that Samba derives from a Unix user or group contains it; all others
    /// are mapped by the volume's rules.
    ///
    /// # Errors
    /// No rule maps the SID; the SID is of a Unix group, but a user is expected, or the other way round; the
    /// rules cannot be read.
    fn unix_id(&self, sid: &Sid, is_group: bool) -> Result<u32, CliError> {
        let found = match sid.to_unix() {
            Some((of_group, id)) => Some(id).filter(|id| of_group == is_group && *id != u32::MAX),
            None => self.sids.number_of(sid)?,
        };
        let wanted = if is_group { "group" } else { "user" };
        found.ok_or_else(|| {
            CliError::usage(format!("no Unix {wanted} belongs to this Windows identity"))
                .at(sid)
                .advise(format!("map its domain with limen sid set, or name the Unix {wanted}"))
        })
    }

    /// The gids of a user that only the Windows domain knows. Groups that no rule maps are left out, because
    /// no entry applies to them.
    fn groups_of_sid(&self, sid: &Sid) -> Result<Vec<u32>, CliError> {
        let mut gids = Vec::new();
        for group in self.sids.groups_of(sid) {
            gids.extend(self.sids.number_of(&group)?);
        }
        Ok(gids)
    }
}

impl UserDatabase for Users {
    fn user(&self, name: &str) -> Option<u32> {
        query("passwd", name).ok().flatten().map(|entry| entry.id)
    }

    fn group(&self, name: &str) -> Option<u32> {
        query("group", name).ok().flatten().map(|entry| entry.id)
    }

    fn login_group(&self, user: &str) -> Option<u32> {
        let entry = query("passwd", user).ok().flatten()?;
        // An entry whose name looks like this number belongs to another id.
        entry.gid.filter(|_| number(user).is_none_or(|uid| uid == entry.id))
    }
}

impl Table {
    fn name(&self, database: &str, place: &str, id: u32) -> String {
        let read = || {
            let text = fs::read_to_string(place).unwrap_or_default();
            // If a number has several names, the first one counts, as in the C library.
            text.lines()
                .rev()
                .filter_map(|line| parse(line, false))
                .map(|entry| (entry.id, entry.name))
                .collect()
        };
        if let Some(name) = self.local.get_or_init(read).get(&id) {
            return name.clone();
        }
        let number = id.to_string();
        let lookup = || match query(database, &number) {
            // An entry whose name looks like this number belongs to another id.
            Ok(Some(entry)) if entry.id == id => entry.name,
            _ => number.clone(),
        };
        let mut cached = self.cached.borrow_mut();
        if cached.len() >= MAX_NAMES && !cached.contains_key(&id) {
            cached.clear();
        }
        cached.entry(id).or_insert_with(lookup).clone()
    }
}

/// The id of a name, or a number that need not have an entry.
fn id_of(database: &str, key: &str, missing: impl FnOnce() -> CliError) -> Result<u32, CliError> {
    match (query(database, key), number(key)) {
        (Ok(Some(entry)), _) => Ok(entry.id),
        (_, Some(id)) => Ok(id),
        (found, None) => found.and_then(|_| Err(missing())),
    }
}

/// The database entry for a name or number.
fn query(database: &str, key: &str) -> Result<Option<Entry>, CliError> {
    let failed = |what: String| CliError::new(format!("cannot query the user database: {what}")).at(key);
    if key.is_empty() || key.contains(['\0', '\n', ':']) {
        return Ok(None);
    }
    if given_up().is_some_and(|at| at.elapsed() < PAUSE) {
        return Err(failed(format!("no answer within {TIMEOUT_SECS} seconds")));
    }
    let output = bounded(&["getent", "--", database, key]).stderr(Stdio::null()).output();
    let output = output.map_err(|error| failed(format!("getent: {error}")))?;
    match output.status.code() {
        Some(0) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let found = text.lines().next().and_then(|line| parse(line, database == "passwd"));
            // getent(1) takes a number modulo 2^32, so 4294967296 would be root.
            let is_asked =
                |entry: &Entry| entry.name == key || key.parse().is_ok_and(|id: u32| id == entry.id);
            Ok(found.filter(|entry| !key.bytes().all(|byte| byte.is_ascii_digit()) || is_asked(entry)))
        }
        Some(NOT_FOUND) => Ok(None),
        Some(TIMED_OUT) => {
            *given_up() = Some(Instant::now());
            output::note(format!(
                "the user database did not answer within {TIMEOUT_SECS} seconds: users and groups that are not in local files are shown as numbers"
            ));
            Err(failed(format!("no answer within {TIMEOUT_SECS} seconds")))
        }
        _ => Err(failed(format!("getent: {}", output.status))),
    }
}

/// When getent(1) last timed out. For [`PAUSE`] after that, [`query`] fails at once, so that neither a
/// command with many names nor a page of the console waits for each of them.
static GIVEN_UP: Mutex<Option<Instant>> = Mutex::new(None);

fn given_up() -> MutexGuard<'static, Option<Instant>> {
    GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bounded(lookup: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg(TIMEOUT_SECS).args(lookup).stdin(Stdio::null());
    command
}

/// The groups of a user, the primary group first.
fn groups_of(user: &Entry) -> Result<Vec<u32>, CliError> {
    let failed =
        |what: String| CliError::new(format!("cannot query the user's groups: {what}")).at(&user.name);
    let output = bounded(&["id", "-G", "--", &user.name]).output();
    let output = output.map_err(|error| failed(format!("id: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let groups: Option<Vec<u32>> = text.split_ascii_whitespace().map(|gid| gid.parse().ok()).collect();
    let groups = groups.filter(|groups| output.status.success() && !groups.is_empty());
    let groups = groups.ok_or_else(|| failed(format!("id: {}", output.status)))?;
    Ok(user.gid.into_iter().chain(groups).collect())
}

/// Parses `name:password:id:...`; in passwd(5) the primary group follows.
fn parse(line: &str, is_user: bool) -> Option<Entry> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, id, rest @ ..] = fields.as_slice() else { return None };
    let gid = if is_user { Some(rest.first()?.parse().ok()?) } else { None };
    Some(Entry { name: (*name).to_owned(), id: id.parse().ok()?, gid }).filter(|entry| !entry.name.is_empty())
}

/// The credential of a local user, with the groups of the local group file.
fn local_cred(user: &Entry, groups: &str) -> Cred {
    let is_member = |line: &&str| {
        line.rsplit(':')
            .next()
            .is_some_and(|members| members.split(',').any(|member| member.trim() == user.name))
    };
    let more: Vec<u32> = groups
        .lines()
        .filter(is_member)
        .filter_map(|line| parse(line, false))
        .map(|group| group.id)
        .collect();
    let caps = if user.id == 0 { Caps::ALL } else { Caps::NONE };
    Cred::new(user.id, user.gid.unwrap_or(user.id), &more, caps)
}

/// Parses an id; `(uid_t) -1` is not one.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

fn no_user(user: &str) -> CliError {
    CliError::usage(format!("there is no user '{user}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_lines_are_parsed() {
        let user = parse("ann:x:1000:50:Ann:/home/ann:/bin/sh", true).unwrap();
        assert_eq!(user, Entry { name: "ann".to_owned(), id: 1000, gid: Some(50) });
        assert_eq!(parse("staff:x:50:ann,bob", false).unwrap().id, 50);
        for line in ["", "ann", "ann:x:many:50", ":x:1:1", "+::::::", "ann:x:1"] {
            assert_eq!(parse(line, true), None, "{line}");
        }
        let groups = "a:x:1:bob\nb:x:2:bob,ann\nc:x:3:\nd:x:4:ann\n";
        let cred = local_cred(&user, groups);
        assert_eq!((cred.gid, cred.groups()), (50, &[2, 4][..]));
    }

    #[test]
    fn users_are_found_by_name_number_and_sid() {
        let users = Users::default();
        for text in ["root", "0"] {
            let root = users.person(text, None).unwrap();
            assert_eq!((root.name.as_str(), root.cred.uid, root.cred.caps), ("root", 0, Caps::ALL));
        }
        assert_eq!((users.user(0), users.group(0)), ("root".to_owned(), "root".to_owned()));
        assert!(users.all().unwrap().iter().any(|person| person.cred.uid == 0));
        for text in ["", "no such user", "a:b", "-x", "4294967295", "4294967296", "a\nb"] {
            assert!(users.person(text, None).is_err(), "{text}");
        }
        assert_eq!(users.person("S-1-22-1-0", None).unwrap().name, "root");
        assert_eq!(users.gid("S-1-22-2-12").unwrap(), 12);
        for text in ["S-1-5-21-1-2-3-1105", "S-1-22-2-0", "S-1-22-1-4294967295"] {
            let error = users.person(text, None).unwrap_err();
            assert!(error.to_string().contains("Windows identity"), "{error}");
        }
        let numbered = users.person("3999999999", Some(&["12".to_owned(), "7".to_owned()])).unwrap();
        assert_eq!((numbered.cred.gid, numbered.cred.groups()), (12, &[7][..]));
        assert!(users.person("3999999999", None).unwrap_err().to_string().contains("--groups"));
    }
}
