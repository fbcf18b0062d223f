//! Windows identities on the command line: their names, and the rules of a volume that map them to uids and
//! gids.
//!
//! Names come from a file that the command line names, or from wbinfo(1) of Samba. Only commands ask for
//! names. A mount never does, so no access waits for an identity service.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use acl::identity::{DomainTable, Sid};
use acl::sid_rules::SidRules;
use command::error::{CliError, ErrorAt};
use command::registry;
use meta::{Engine, Record, RecordKey};

use crate::target::Target;
use crate::url::MetaUrl;

/// The maximum size of a file of names. It has room for some 100,000 names.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// The maximum number of answers of wbinfo that are cached. A full table is cleared.
const MAX_NAMES: usize = 1 << 16;
/// After this time without an answer, wbinfo is ended, and not asked again.
const WBINFO_TIMEOUT: Duration = Duration::from_secs(5);

/// The rules of a volume, with the table of domains that their indexes refer to.
pub(crate) type Rules = (DomainTable, SidRules);

/// The Windows identities of the volume that a command is about.
#[derive(Debug, Default)]
pub(crate) struct Sids {
    /// `None` if the command is about no volume; then no SID is mapped.
    target: Option<Target>,
    rules: OnceCell<Rc<Rules>>,
    of_file: HashMap<Sid, String>,
    by_file: HashMap<String, Sid>,
    asked: RefCell<HashMap<Sid, Option<String>>>,
    /// Set if wbinfo cannot be run, or has not answered.
    without_wbinfo: OnceCell<()>,
}

impl Sids {
    /// The identities of the volume of `target`, with names from a file if given.
    ///
    /// # Errors
    /// The file cannot be read, or one of its lines is not a SID and a name.
    pub(crate) fn new(target: Target, names: Option<&Path>) -> Result<Self, CliError> {
        let mut sids = Sids { target: Some(target), ..Sids::default() };
        let Some(path) = names else { return Ok(sids) };
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
        read.at(path.display())?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(CliError::usage(format!("the file has more than {MAX_FILE_BYTES} bytes"))
                .at(path.display())
                .advise("give a file with the names of this volume's domains only"));
        }
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = line.split_once(char::is_whitespace);
            let parsed =
                parsed.and_then(|(sid, name)| Some((sid.parse::<Sid>().ok()?, name.trim().to_owned())));
            let (sid, name) = parsed.ok_or_else(|| {
                CliError::usage(format!("line {} is not a SID and a name", index + 1))
                    .at(path.display())
                    .advise("write lines such as: S-1-5-21-1-2-3-1105 DOM\\ann")
            })?;
            sids.by_file.insert(name.to_lowercase(), sid.clone());
            sids.of_file.insert(sid, name);
        }
        Ok(sids)
    }

    /// The number to which the volume's rules map this SID: both a uid and a gid. `None` if no rule maps it.
    ///
    /// # Errors
    /// The volume's rules cannot be read.
    pub(crate) fn number_of(&self, sid: &Sid) -> Result<Option<u32>, CliError> {
        let rules = self.rules()?;
        let (table, rules) = &*rules;
        Ok(table.id_of(sid).and_then(|id| rules.id_of(id)))
    }

    fn rules(&self) -> Result<Rc<Rules>, CliError> {
        if let Some(known) = self.rules.get() {
            return Ok(Rc::clone(known));
        }
        let found = Rc::new(match &self.target {
            Some(target) => rules_of(target)?,
            None => Rules::default(),
        });
        Ok(Rc::clone(self.rules.get_or_init(|| found)))
    }

    /// The name of this SID, such as `DOM\ann`; `None` if it is unknown.
    pub(crate) fn name_of(&self, sid: &Sid) -> Option<String> {
        if let Some(name) = self.of_file.get(sid) {
            return Some(name.clone());
        }
        if let Some(known) = self.asked.borrow().get(sid) {
            return known.clone();
        }
        let answer = self.wbinfo(&["--sid-to-name", &sid.to_string()]);
        let name = answer.and_then(|text| name_in(&text));
        let mut asked = self.asked.borrow_mut();
        if asked.len() >= MAX_NAMES {
            asked.clear();
        }
        asked.insert(sid.clone(), name.clone());
        name
    }

    /// The SID of a name; `None` if it is unknown. wbinfo is asked only for names with a domain, such as
    /// `DOM\ann`.
    pub(crate) fn named(&self, name: &str) -> Option<Sid> {
        if let Some(sid) = self.by_file.get(&name.to_lowercase()) {
            return Some(sid.clone());
        }
        if !name.contains(['\\', '@']) || name.starts_with('-') {
            return None;
        }
        let answer = self.wbinfo(&["--name-to-sid", name])?;
        answer.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The SIDs of a user's groups, as far as wbinfo knows them.
    pub(crate) fn groups_of(&self, sid: &Sid) -> Vec<Sid> {
        let answer = self.wbinfo(&["--user-domgroups", &sid.to_string()]).unwrap_or_default();
        answer.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// The output of wbinfo; `None` if it fails, is not installed, or does not answer in time.
    fn wbinfo(&self, args: &[&str]) -> Option<String> {
        if self.without_wbinfo.get().is_some() {
            return None;
        }
        let mut command = Command::new("wbinfo");
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        match output_of(&mut command, WBINFO_TIMEOUT) {
            Ok(answer) => answer,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    command::output::note(format!(
                        "names of Windows identities are left out: wbinfo: {error}"
                    ));
                }
                let _ = self.without_wbinfo.set(());
                None
            }
        }
    }
}

/// Runs a command that writes to a pipe. Returns its output; `None` if it fails.
///
/// # Errors
/// It cannot be run; its output is not UTF-8; [`io::ErrorKind::TimedOut`] if it does not end in time, or if
/// another process keeps the pipe open.
fn output_of(command: &mut Command, timeout: Duration) -> io::Result<Option<String>> {
    let mut child = command.spawn()?;
    // The answer is read by a thread, so that a long one cannot fill the pipe.
    let mut out = child.stdout.take();
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = out.as_mut().map_or(Ok(0), |out| out.read_to_string(&mut text));
        let _ = sender.send(read.map(|_| text));
    });
    let until = Instant::now() + timeout;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    };
    // A process that the command has started may keep the pipe open. The thread then waits for it alone.
    let text = answer.recv_timeout(timeout).map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(status.success().then_some(text))
}

/// The name in the answer of `wbinfo --sid-to-name`: a name, which may contain blanks, and the number of its
/// type.
fn name_in(answer: &str) -> Option<String> {
    let (name, kind) = answer.trim().rsplit_once(' ')?;
    let is_kind = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_digit());
    (is_kind && !name.is_empty()).then(|| name.to_owned())
}

/// The rules of a target's volume; none if it is a path that is not on a limenfs volume.
///
/// # Errors
/// The volume's database cannot be read, or the table of domains is damaged.
pub(crate) fn rules_of(target: &Target) -> Result<Rules, CliError> {
    match target {
        // A path that does not exist yet is in the volume of its directory.
        Target::Local(path) => match path.ancestors().find_map(|path| path.metadata().ok()) {
            Some(found) => rules_behind(found.dev()),
            None => Ok(Rules::default()),
        },
        Target::Volume(url, _) => rules_in(url),
    }
}

pub(crate) fn rules_behind(device: u64) -> Result<Rules, CliError> {
    let Some(entry) = registry::by_device(device) else { return Ok(Rules::default()) };
    match MetaUrl::parse(&entry.url)? {
        // No command can reach such a volume to give it rules.
        MetaUrl::Memory(_) => Ok(Rules::default()),
        url => rules_in(&url),
    }
}

fn rules_in(url: &MetaUrl) -> Result<Rules, CliError> {
    let (database, volume) = url.open_volume()?;
    if volume.sid_rules.is_empty() {
        return Ok(Rules::default());
    }
    Ok((table(&*database.engine()).at(url)?, volume.sid_rules))
}

/// The volume's table of domains.
///
/// # Errors
/// Those of the database; the table is damaged.
pub(crate) fn table(engine: &dyn Engine) -> Result<DomainTable, CliError> {
    let found = match engine.read(&[RecordKey::Settings])?.records.first() {
        Some(Record::Settings(settings)) => ops::domains_in(settings),
        _ => None,
    };
    found.ok_or_else(|| {
        CliError::new("the volume's table of Windows domains is damaged").advise("run limen fsck --repair")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_wbinfo_are_parsed() {
        assert_eq!(name_in("DOM\\ann 1\n").as_deref(), Some("DOM\\ann"));
        assert_eq!(name_in("DOM\\Domain Users 2\n").as_deref(), Some("DOM\\Domain Users"));
        for answer in ["", "\n", "DOM\\ann", " 1", "DOM\\ann x"] {
            assert_eq!(name_in(answer), None, "{answer:?}");
        }
    }

    #[test]
    fn process_that_keeps_the_pipe_open_does_not_delay_the_answer() {
        let output = |script: &str| {
            let mut command = Command::new("sh");
            output_of(command.args(["-c", script]).stdout(Stdio::piped()), Duration::from_millis(500))
        };
        assert_eq!(output("echo answer").unwrap().as_deref(), Some("answer\n"));
        assert_eq!(output("sleep 5 & echo answer").unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn names_are_read_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names");
        let target = || Target::Local("/".into());
        std::fs::write(
            &path,
            "# comment\n\nS-1-5-21-1-2-3-513\tDOM\\Domain Users \ns-1-5-21-1-2-3-1105 DOM\\Ann\n",
        )
        .unwrap();
        let sids = Sids::new(target(), Some(&path)).unwrap();
        let sid = |text: &str| text.parse::<Sid>().unwrap();
        assert_eq!(sids.name_of(&sid("S-1-5-21-1-2-3-513")).as_deref(), Some("DOM\\Domain Users"));
        assert_eq!(sids.named("dom\\ann"), Some(sid("S-1-5-21-1-2-3-1105")));
        assert_eq!(sids.named("ann"), None);
        assert_eq!(sids.number_of(&sid("S-1-5-21-1-2-3-1105")).unwrap(), None, "no rule");
        for text in ["DOM\\ann S-1-5-21-1-2-3-1105", "S-1-5-21-1-2-3-1105", "S-1-5 x"] {
            std::fs::write(&path, format!("# names\n{text}\n")).unwrap();
            let error = Sids::new(target(), Some(&path)).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{error}");
        }
        assert!(Sids::new(target(), Some(&dir.path().join("none"))).is_err());
    }
}
