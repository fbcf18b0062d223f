//! The content of pages.

/// The attention that a value needs, which is shown by its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
}

/// A label and a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub label: &'static str,
    pub value: String,
    pub tone: Tone,
}

impl Fact {
    pub fn new(label: &'static str, value: impl ToString) -> Self {
        Fact { label, value: value.to_string(), tone: Tone::Plain }
    }

    #[must_use]
    pub fn tone(self, tone: Tone) -> Self {
        Fact { tone, ..self }
    }
}

/// An amount, and its limit if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub used: u64,
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    pub facts: Vec<Fact>,
    pub bytes: Level,
    pub inodes: Level,
    /// Sessions, and how many of them need attention.
    pub sessions: (usize, usize),
    /// All quotas, those above the soft limit, and those that are full.
    pub quotas: (u64, u64, u64),
    /// Quotas near their limits, the fullest first.
    pub near: Vec<QuotaRow>,
    pub backup: Fact,
    pub warnings: Vec<String>,
}

/// The usage of a directory and of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub path: Vec<u8>,
    pub total: Size,
    /// In the order of names.
    pub entries: Vec<MapEntry>,
    /// The number of entries that are not in the list, and their sum.
    pub others: (u64, Size),
    /// How many names were counted, if the walk was cut off.
    pub cut_after: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    pub inodes: u64,
    /// The walk was cut off below here, so there may be more.
    pub at_least: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    pub name: Vec<u8>,
    pub is_dir: bool,
    pub size: Size,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    pub rows: Vec<SessionRow>,
    /// The tool that has exclusive use of the volume.
    pub tool: Option<String>,
    /// Locks or unlinked files were not all counted.
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    pub id: String,
    pub host: String,
    pub pid: u32,
    pub version: String,
    pub mountpoint: String,
    pub since: String,
    /// The age of the last heartbeat by the clock of this machine.
    pub heartbeat: String,
    pub health: Fact,
    pub locks: u64,
    pub unlinked: u64,
    /// Sentences about the mount from its own statistics, if it is on this machine.
    pub notes: Vec<String>,
}

/// The work of a mount on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    pub mountpoint: String,
    /// The time that the figures cover, in seconds.
    pub seconds: f64,
    pub figures: Vec<Fact>,
    pub operations: Vec<LiveOperation>,
    /// Requests per second, the newest last.
    pub history: Vec<f64>,
    /// Why there are no figures.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LiveOperation {
    pub name: String,
    pub per_second: f64,
    pub mean_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    pub rows: Vec<QuotaRow>,
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaRow {
    pub whose: String,
    /// The path of the directory, if this is a directory quota.
    pub path: Option<Vec<u8>>,
    /// The usage, the soft limit and the hard limit, as `limen quota list` shows them.
    pub bytes: String,
    pub inodes: String,
    pub bytes_level: Level,
    pub inodes_level: Level,
    pub note: String,
    pub tone: Tone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageSummary {
    pub facts: Vec<Fact>,
    pub is_cut: bool,
}

/// A user, a path, and what the user wants to do there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessQuery {
    /// A name, number, SID or DOMAIN\NAME.
    pub user: Option<String>,
    /// Groups, separated by commas, that replace the user's groups in the user database.
    pub groups: Option<String>,
    pub path: Vec<u8>,
    /// As `--want` of `limen access explain`.
    pub want: String,
    /// List entries after this name.
    pub after: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessAnswer {
    /// The user with number and groups; `None` if no user was chosen.
    pub person: Option<String>,
    /// `None` if no user was chosen.
    pub explanation: Option<Explanation>,
    pub file: File,
    /// The content of a directory.
    pub listing: Option<Listing>,
    pub holders: Holders,
}

/// Whether a user can do something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub is_granted: bool,
    /// "ann cannot read this file."
    pub headline: String,
    /// The reasons, in sentences.
    pub because: Vec<String>,
    pub steps: Vec<Step>,
    pub remedies: Vec<Remedy>,
    /// The command that gives the same answer.
    pub command: String,
}

/// One check on the way to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub path: Vec<u8>,
    pub mode: String,
    pub owner: String,
    /// The access that is checked.
    pub asked: String,
    /// `None` if an earlier check denied.
    pub is_granted: Option<bool>,
    /// The entry or rule that decided.
    pub by: String,
}

/// A change that would grant the access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    pub text: String,
    /// The command that makes the change; empty if there is none.
    pub command: String,
    /// The change on the page that shows its effect.
    pub change: Option<(Vec<u8>, PermissionChange)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: Vec<u8>,
    pub kind: &'static str,
    pub is_dir: bool,
    pub facts: Vec<Fact>,
    pub mode: String,
    /// The rules of owner, mode and ACL in words: each entry and its meaning.
    pub rules: Vec<(String, String)>,
    /// Why the rules cannot be shown.
    pub damage: Option<String>,
}

/// The content of a directory, as a user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Why the user cannot list the directory; `None` if the user can.
    pub hidden: Option<String>,
    pub rows: Vec<ListingRow>,
    /// The name to continue after, if there are more.
    pub more: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingRow {
    pub name: Vec<u8>,
    pub kind: &'static str,
    pub is_dir: bool,
    pub mode: String,
    pub owner: String,
    pub size: String,
    /// To read, write, execute or search, and delete; `None` if no user was chosen.
    pub rights: Option<[bool; 4]>,
    /// Why the user does not see this name; `None` if the user sees it.
    pub hidden: Option<&'static str>,
}

/// The users that have access to a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    pub rows: Vec<Holder>,
    /// System accounts that have the access of everyone else.
    pub alike: usize,
    /// Users without any access.
    pub none: usize,
    /// More users have access than the list shows.
    pub cut: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    /// Whether this is a user, and not everyone else.
    pub is_user: bool,
    /// `rw-`, or `none`.
    pub rights: String,
    /// The entry or rule that decides.
    pub by: String,
}

/// A change of permissions, as the fields of a form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionChange {
    /// `chmod`, `setfacl`, `unset`, `chown`, `join` or `leave`.
    pub kind: String,
    /// The mode in octal, of `chmod`.
    pub mode: String,
    /// The user or group of an entry or of `chown`: `u` or `g`, and its name.
    pub class: String,
    pub name: String,
    /// The permissions of an entry: letters of `rwx`.
    pub perms: String,
    /// Whether the change applies to everything below the directory.
    pub recursive: bool,
    /// Whether the mask stays as it is.
    pub keep_mask: bool,
}

/// The access that a change would open and close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessEffect {
    /// The change as a command.
    pub command: String,
    /// Users whose access to the file itself changes: name, access before, access after, the entry or rule
    /// that decides after the change.
    pub users: Vec<(String, String, String, String)>,
    /// The number of users whose access to the file does not change.
    pub unchanged: usize,
    /// The names below the directory, for one user.
    pub below: Option<Below>,
}

/// The access that a change opens and closes below a directory for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    pub user: String,
    pub names: u64,
    pub gained: u64,
    pub lost: u64,
    /// Some of the names whose access changes: path, access before, access after.
    pub changes: Vec<(Vec<u8>, String, String)>,
    /// The walk ended at this number of names.
    pub cut_after: Option<u64>,
}
