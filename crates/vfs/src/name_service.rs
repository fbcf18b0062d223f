//! Names of users and groups that are not in local files, from the services that nsswitch.conf(5) names
//! (LDAP, Active Directory through SSSD or winbind).
//!
//! getent(1) asks them, one name or id at a time, on a thread that ends when nothing is left to ask. A
//! request never waits to show a name: it shows the number, and later requests show the name. A request that
//! names a user or group in a new ACL waits up to [`WAIT`] and then fails with ETIMEDOUT. If [`MAX_WAITING`]
//! requests wait already, a further one fails at once, so that threads are left for other requests. The errno
//! is not EAGAIN, because Linux turns EAGAIN into EOPNOTSUPP (`__vfs_setxattr_noperm`). If the services do
//! not answer, nothing is asked for [`PAUSE`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use host::Instant;

/// How long a request waits for the ids of names, and the number of requests that may wait.
const WAIT: Duration = Duration::from_secs(1);
const MAX_WAITING: usize = 2;
/// The time after which timeout(1) ends getent, in seconds, and its exit codes then.
const TIMEOUT_SECS: &str = "10";
const TIMED_OUT: [i32; 2] = [124, 137];
/// How long nothing is asked after getent timed out or failed.
const PAUSE: Duration = Duration::from_secs(60);
/// The exit codes of getent if the name or id does not exist, and of timeout if getent does not exist.
const NOT_FOUND: i32 = 2;
const NO_PROGRAM: i32 = 127;
/// How long a name is remembered, and how long the absence of a name. After this time, the services are asked
/// again.
const FOUND_FOR: Duration = Duration::from_secs(600);
const MISSING_FOR: Duration = Duration::from_secs(60);
/// A name is shown this long after it was learned. Otherwise, a program that asks for the length of an ACL
/// and then for the ACL could get the length with a number and the ACL with a longer name.
const SHOWN_AFTER: Duration = Duration::from_millis(200);
/// The number of answers that are remembered, and of questions that may wait. Further questions are not
/// asked.
const MAX_ANSWERS: usize = 4096;
const MAX_QUESTIONS: usize = 256;
/// The longest name, in bytes, and the longest beginning of a line of getent that is read: a group's line
/// ends with all its members.
const MAX_NAME: usize = 256;
const MAX_LINE: u64 = 1024;

/// The names of one mount.
#[derive(Debug, Clone)]
pub(crate) struct NameService {
    shared: Arc<Shared>,
}

/// The answer is not known yet, or the services do not answer: ETIMEDOUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unknown;

#[derive(Debug)]
struct Shared {
    /// The program to run, `getent`.
    program: &'static str,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    answers: HashMap<Question, Answer>,
    questions: VecDeque<Question>,
    /// The questions that wait or are being asked.
    asked: HashSet<Question>,
    /// Whether the thread runs.
    is_running: bool,
    /// The number of requests that wait.
    waiting: usize,
    /// Nothing is asked until this moment.
    paused_until: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    is_group: bool,
    key: Key,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Name(String),
    Id(u32),
}

/// The last answer to a question.
#[derive(Debug, Clone)]
struct Answer {
    entry: Option<(String, u32)>,
    /// When the entry was first learned.
    since: Instant,
    at: Instant,
    /// Whether the services did not find the entry at `at`. getent does not tell whether a name was removed
    /// or its service failed, so a known entry is forgotten only when it is not found a second time.
    is_denied: bool,
}

impl Answer {
    fn is_fresh(&self) -> bool {
        let is_found = self.entry.is_some() && !self.is_denied;
        self.at.elapsed() < if is_found { FOUND_FOR } else { MISSING_FOR }
    }
}

impl NameService {
    pub(crate) fn new() -> Self {
        Self::with_program("getent")
    }

    pub(crate) fn with_program(program: &'static str) -> Self {
        NameService {
            shared: Arc::new(Shared { program, state: Mutex::default(), answered: Condvar::new() }),
        }
    }

    /// The name of a user or group; `None` if there is none, or it is not known yet. Never waits.
    pub(crate) fn name(&self, id: u32, is_group: bool) -> Option<String> {
        let question = Question { is_group, key: Key::Id(id) };
        let mut state = self.shared.lock();
        let answer = state.answers.get(&question).cloned();
        if !answer.as_ref().is_some_and(Answer::is_fresh) {
            self.ask(&mut state, &question);
        }
        Some(answer.filter(|answer| answer.since.elapsed() >= SHOWN_AFTER)?.entry?.0)
    }

    /// The id of a user or group, `None` if there is none. Waits until `deadline`; without one, asks nothing.
    ///
    /// # Errors
    /// [`Unknown`] if the id is not known by then, or too many requests wait.
    pub(crate) fn id(
        &self,
        name: &str,
        is_group: bool,
        deadline: Option<Instant>,
    ) -> Result<Option<u32>, Unknown> {
        if !is_name(name) {
            return Ok(None);
        }
        let question = Question { is_group, key: Key::Name(name.to_owned()) };
        let mut state = self.shared.lock();
        loop {
            if let Some(answer) = state.answers.get(&question).filter(|answer| answer.is_fresh()) {
                return Ok(answer.entry.as_ref().map(|(_, id)| *id));
            }
            let left = deadline.ok_or(Unknown)?.saturating_duration_since(Instant::now());
            if !self.ask(&mut state, &question) || left.is_zero() || state.waiting == MAX_WAITING {
                return Err(Unknown);
            }
            state.waiting += 1;
            state = host::wait_timeout(&self.shared.answered, &self.shared.state, state, left);
            state.waiting -= 1;
        }
    }

    /// The deadline of a request that begins now.
    pub(crate) fn deadline() -> Instant {
        Instant::now() + WAIT
    }

    /// Asks a question unless it is being asked; false if it cannot be asked now.
    fn ask(&self, state: &mut State, question: &Question) -> bool {
        if state.asked.contains(question) {
            return true;
        }
        if state.paused_until.is_some_and(|until| Instant::now() < until)
            || state.questions.len() >= MAX_QUESTIONS
        {
            return false;
        }
        if !state.is_running {
            let shared = Arc::clone(&self.shared);
            if let Err(error) = host::spawn("limen-names", move || shared.work()) {
                tracing::warn!(%error, "cannot start a thread that looks up names: they show as numbers");
                return false;
            }
            state.is_running = true;
        }
        state.asked.insert(question.clone());
        state.questions.push_back(question.clone());
        true
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        host::lock(&self.state)
    }

    /// Asks all questions.
    fn work(&self) {
        let mut state = self.lock();
        while let Some(question) = state.questions.pop_front() {
            drop(state);
            let asked = query(self.program, &question);
            state = self.lock();
            state.asked.remove(&question);
            match asked {
                Ok(entry) => state.remember(question, entry),
                Err(error) => {
                    tracing::warn!(
                        "cannot look up users and groups for {} s: getent: {error}; new names in ACLs fail with ETIMEDOUT, \
                         and show as numbers",
                        PAUSE.as_secs()
                    );
                    state.paused_until = Some(Instant::now() + PAUSE);
                    state.questions.clear();
                    state.asked.clear();
                }
            }
            self.answered.notify_all();
        }
        state.is_running = false;
    }
}

impl State {
    fn remember(&mut self, question: Question, entry: Option<(String, u32)>) {
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.retain(|_, answer| answer.is_fresh() && answer.entry.is_some());
        }
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.clear();
        }
        let at = Instant::now();
        let known = self.answers.remove(&question).filter(|known| known.entry.is_some());
        let answer = match known {
            Some(known) if known.entry == entry => Answer { at, is_denied: false, ..known },
            Some(known) if entry.is_none() && !known.is_denied => Answer { at, is_denied: true, ..known },
            _ => Answer { is_denied: entry.is_none(), entry, since: at, at },
        };
        self.answers.insert(question, answer);
    }
}

/// Asks getent. `None` if the name or id does not exist, or if getent or timeout(1) is not installed.
///
/// # Errors
/// Fails if getent does not answer in time, is ended by a signal, or ends with another exit code.
fn query(program: &str, question: &Question) -> io::Result<Option<(String, u32)>> {
    let database = if question.is_group { "group" } else { "passwd" };
    let key = match &question.key {
        Key::Name(name) => name.clone(),
        Key::Id(id) => id.to_string(),
    };
    let child = Command::new("timeout")
        .args(["--kill-after=1", TIMEOUT_SECS, program, "--", database, &key])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        // Without timeout(1), only the names in local files are known.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        child => child?,
    };
    let mut line = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |out| {
        let mut out = BufReader::new(out);
        let length = out.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        // getent would fail if it could not write the rest.
        io::copy(&mut out, &mut io::sink()).map(|_| length)
    });
    let status = child.wait()?;
    read?;
    match status.code() {
        Some(0) => Ok(entry(&String::from_utf8_lossy(&line)).filter(|(_, id)| match question.key {
            // getent takes a number modulo 2^32, and a name may look like a number.
            Key::Id(asked) => asked == *id,
            Key::Name(_) => true,
        })),
        Some(NOT_FOUND | NO_PROGRAM) => Ok(None),
        Some(code) if TIMED_OUT.contains(&code) => {
            Err(io::Error::other(format!("no answer within {TIMEOUT_SECS} seconds")))
        }
        _ => Err(io::Error::other(status.to_string())),
    }
}

/// The name and the id of a line of passwd(5) or group(5).
fn entry(line: &str) -> Option<(String, u32)> {
    let mut fields = line.split(':');
    let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
    let id = id.trim_end().parse().ok().filter(|id| *id != u32::MAX)?;
    is_name(name).then(|| (name.to_owned(), id))
}

/// Whether getent can be asked for this name, and an ACL can show it. A string that strtoul(3) accepts as a
/// number is not a name, because getent would take it for an id.
fn is_name(name: &str) -> bool {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    !is_number
        && !name.starts_with([' ', '+', '-'])
        && name.len() <= MAX_NAME
        && !name.contains(|of: char| of.is_control() || matches!(of, ':' | ','))
}
