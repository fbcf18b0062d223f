//! `limen quota`: limits of directories, users and groups.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use clap::Subcommand;
use client::{Failure, Meta, QuotaError, Retagging};
use command::fault::Fault;
use command::interrupt::Interrupt;
use command::output;
use command::units::{parse_size, show_size};
use meta::{Beside, Quota, QuotaKey, QuotaRule, QuotaState, Record, Scan, Usage, blocks_of};
use ops::{Authority, GetInode, GetQuotas, QuotaLimits};
use serde_json::{Value, json};
use types::{Errno, Ino, Name, QuotaId};

use crate::maintenance::require_none;
use crate::target::{Target, path_to_json, show_name};
use crate::url::Database;
use crate::users::Users;

const BY_TOOL: Authority<'static> = Authority::Kernel { told: None };

#[derive(Debug, clap::Args)]
#[command(after_help = "\
TARGET is a path on a mount, or META-URL:/PATH in a volume that need not be mounted.

Examples:
  limen quota set /mnt/projects/a --bytes 500G --inodes 1000000
  limen quota set redis://db.example.org/1 --user ann --bytes 50G --soft-bytes 40G
  limen quota list redis://db.example.org/1
  limen quota delete /mnt/projects/a")]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Limit what is in a directory, or what a user or group owns in the volume; files that exist are counted while
    /// the volume is in use, and an interrupted command goes on when it is given again
    Set(SetArgs),
    /// Show the quota of a directory, user or group, and what it counts
    Get(GetArgs),
    /// List all quotas of a volume
    List(ListArgs),
    /// Remove the quota of a directory, or the limits of a user or group
    Delete(DeleteArgs),
}

/// Whose quota.
#[derive(Debug, clap::Args)]
struct Whose {
    /// A directory, or with --user or --group any path on the volume, or its URL
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// What this user owns in the whole volume: a name or number
    #[arg(long, value_name = "USER", conflicts_with = "group")]
    user: Option<String>,
    /// What has this group in the whole volume: a name or number
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    #[command(flatten)]
    whose: Whose,
    /// The maximum total size of files, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bytes: Option<u64>,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N")]
    inodes: Option<u64>,
    /// Warn in `limen quota list` and `get` above this size; 0 for never
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    soft_bytes: Option<u64>,
    /// Warn above this number of files and directories; 0 for never
    #[arg(long, value_name = "N")]
    soft_inodes: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct GetArgs {
    #[command(flatten)]
    whose: Whose,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// A path on a mount, or the volume's URL
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    #[command(flatten)]
    whose: Whose,
    /// The quota of a directory that no longer exists, by its number in `limen quota list`
    #[arg(long, value_name = "N", conflicts_with_all = ["user", "group"])]
    id: Option<u64>,
}

/// A volume, and the file in it that a target names.
struct Place {
    shown: String,
    database: Database,
    meta: Meta,
    ino: Ino,
}

pub(crate) fn run(args: &QuotaArgs) -> Result<(), Fault> {
    match &args.command {
        QuotaCommand::Set(args) => set(args),
        QuotaCommand::Get(args) => get(args),
        QuotaCommand::List(args) => {
            let place = Place::open(&args.target)?;
            let quotas = place.quotas()?;
            place.show(&quotas, args.json)
        }
        QuotaCommand::Delete(args) => delete(args),
    }
}

fn set(args: &SetArgs) -> Result<(), Fault> {
    let limits = QuotaLimits {
        max_inodes: args.inodes.map(limit).transpose()?,
        max_blocks: args.bytes.map(|bytes| limit(blocks_of(bytes))).transpose()?,
        soft_inodes: args.soft_inodes.map(limit).transpose()?,
        soft_blocks: args.soft_bytes.map(|bytes| limit(blocks_of(bytes))).transpose()?,
    };
    if limits == QuotaLimits::default() {
        return Err(Fault::usage("there is nothing to set")
            .advise("give --bytes, --inodes, --soft-bytes or --soft-inodes; 0 means no limit"));
    }
    let place = Place::open(&args.whose.target)?;
    require_order(limits)?;
    let key = args.whose.owner()?;
    let counted = match key {
        Some(_) => place.counts_owners()?,
        None => place.quota_of(place.ino)?.is_some_and(|(_, quota)| quota.rule.state == QuotaState::Settled),
    };
    let _lock = place.lock(!counted)?;
    let key = place.walk(|meta, progress| match key {
        Some(key) => meta.set_owner_quota(key, limits, progress).map(|()| key),
        None => meta.set_directory_quota(place.ino, limits, progress).map(QuotaKey::Directory),
    })?;
    place.sync()?;
    let quotas = place.quotas()?;
    let set: Vec<_> = quotas.into_iter().filter(|(found, _)| *found == key).collect();
    place.show(&set, args.json)
}

fn get(args: &GetArgs) -> Result<(), Fault> {
    let place = Place::open(&args.whose.target)?;
    let quotas = place.quotas()?;
    let key = match args.whose.owner()? {
        Some(key) => key,
        None => match place.quota_of(place.ino)? {
            Some((id, _)) => QuotaKey::Directory(id),
            None => return Err(Fault::new("the directory has no quota").at(&place.shown)),
        },
    };
    let found: Vec<_> = quotas.into_iter().filter(|(found, _)| *found == key).collect();
    if found.is_empty() {
        return Err(Fault::new("there is no such quota").at(&place.shown));
    }
    place.show(&found, args.json)
}

fn delete(args: &DeleteArgs) -> Result<(), Fault> {
    let place = Place::open(&args.whose.target)?;
    if let Some(key) = args.whose.owner()? {
        // Counting continues without a limit, so that a new limit needs no walk.
        const NONE: Option<u64> = Some(QuotaRule::NO_LIMIT);
        if !place.quotas()?.iter().any(|(found, _)| *found == key) {
            return Err(Fault::new("there is no such quota").at(&place.shown));
        }
        let limits = QuotaLimits { max_inodes: NONE, max_blocks: NONE, soft_inodes: NONE, soft_blocks: NONE };
        let _lock = place.lock(!place.counts_owners()?)?;
        place.walk(|meta, progress| meta.set_owner_quota(key, limits, progress))?;
        return place.sync();
    }
    let id = match (args.id, place.quota_of(place.ino)?) {
        (Some(id), _) => QuotaId(id),
        (None, Some((id, _))) => id,
        (None, None) => return Err(Fault::new("the directory has no quota").at(&place.shown)),
    };
    let _lock = place.lock(true)?;
    place.walk(|meta, progress| meta.remove_directory_quota(id, progress))?;
    place.sync()
}

/// A limit as it is stored; 0 means no limit.
fn limit(number: u64) -> Result<u64, Fault> {
    match number {
        0 => Ok(QuotaRule::NO_LIMIT),
        QuotaRule::NO_LIMIT.. => Err(Fault::usage("the limit is too large").at(number)),
        _ => Ok(number),
    }
}

/// # Errors
/// The soft limit is above the hard limit, so it would never warn.
fn require_order(limits: QuotaLimits) -> Result<(), Fault> {
    let is_wrong = |soft: Option<u64>, hard: Option<u64>| {
        soft.zip(hard).is_some_and(|(soft, hard)| soft > hard && soft != QuotaRule::NO_LIMIT)
    };
    if is_wrong(limits.soft_inodes, limits.max_inodes) || is_wrong(limits.soft_blocks, limits.max_blocks) {
        return Err(Fault::usage("a soft limit must not be above the hard limit"));
    }
    Ok(())
}

impl Whose {
    fn owner(&self) -> Result<Option<QuotaKey>, Fault> {
        let users = Users::default();
        Ok(match (&self.user, &self.group) {
            (Some(user), _) => Some(QuotaKey::User(users.uid(user)?)),
            (None, Some(group)) => Some(QuotaKey::Group(users.gid(group)?)),
            (None, None) => None,
        })
    }
}

impl Place {
    fn open(target: &OsStr) -> Result<Place, Fault> {
        let target = Target::parse(target)?;
        let shown = target.show();
        let (database, _, ino) = target.open()?;
        let engine = database.engine();
        let meta = Meta::open(engine, 10_000).map_err(|error| Fault::new(error).at(&shown))?;
        if let Target::Volume(url, _) = &target {
            require_none(url, &meta)?;
        }
        Ok(Place { shown, database, meta, ino })
    }

    /// Locks the database file if the command walks through inodes, so that this machine cannot mount the
    /// volume meanwhile: a mount of the embedded engine would not see the changes.
    fn lock(&self, walks: bool) -> Result<Option<engine_sqlite::MountLock>, Fault> {
        if !walks {
            return Ok(None);
        }
        self.database.lock(false).map_err(|_| {
            Fault::new("the volume is mounted, and its database serves one process at a time")
                .at(&self.shown)
                .advise("unmount it first; limits of quotas that exist can be changed at any time")
        })
    }

    fn failed(&self, error: impl std::fmt::Display) -> Fault {
        Fault::new(error).at(&self.shown)
    }

    fn sync(&self) -> Result<(), Fault> {
        self.meta.sync().map_err(|error| self.failed(error))
    }

    fn quotas(&self) -> Result<Vec<(QuotaKey, Quota)>, Fault> {
        self.meta.quotas().map_err(|error| self.failed(error))
    }

    fn quota_of(&self, dir: Ino) -> Result<Option<(QuotaId, Quota)>, Fault> {
        Ok(self.quotas()?.into_iter().find_map(|(key, quota)| match key {
            QuotaKey::Directory(id) if quota.rule.root == dir => Some((id, quota)),
            _ => None,
        }))
    }

    fn counts_owners(&self) -> Result<bool, Fault> {
        let (_, owners) = self.meta.run(&GetQuotas, &BY_TOOL).map_err(|error| self.failed(error))?;
        Ok(owners == Some(QuotaState::Settled))
    }

    /// Runs `work`, which may walk through inodes, and shows its progress. Ctrl-C ends the walk.
    fn walk<T>(
        &self,
        work: impl FnOnce(&Meta, &mut dyn FnMut(&Retagging) -> bool) -> Result<T, QuotaError>,
    ) -> Result<T, Fault> {
        let interrupt = Interrupt::install()?;
        let bar = output::progress("inodes");
        let done = work(&self.meta, &mut |done| {
            bar.set_position(done.seen);
            !interrupt.is_set()
        });
        bar.finish_and_clear();
        done.map_err(|error| match error {
            QuotaError::Inside { dir } => {
                Fault::new(format!("{} below it has a quota", self.path(dir))).at(&self.shown).advise(
                    "delete that quota first, and set it again afterwards: quotas nest from the outside in",
                )
            }
            QuotaError::Removing => {
                Fault::new(&error).at(&self.shown).advise("complete it with limen quota delete")
            }
            QuotaError::Interrupted => {
                Fault::new("interrupted").at(&self.shown).advise("give the same command again to go on")
            }
            QuotaError::Failed(Failure::Refused(Errno::ELOOP)) => self.failed(format!(
                "the directory is already in {} quotas, and more cannot be nested",
                ops::MAX_NESTED_QUOTAS
            )),
            error => self.failed(error),
        })
    }

    /// The path of a directory, or its inode number.
    fn path(&self, dir: Ino) -> String {
        let found = self.find_path(dir).ok().flatten();
        found.map_or_else(|| format!("inode {dir}"), |path| show_name(&path))
    }

    /// The path of a directory, from the names in the directories above it; `None` if it does not exist.
    fn find_path(&self, dir: Ino) -> Result<Option<Vec<u8>>, Failure> {
        const DEPTH: usize = 4096;
        let mut names: Vec<Name> = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT && names.len() < DEPTH {
            let parent = match self.meta.run(&GetInode(at), &BY_TOOL) {
                Err(Failure::Refused(_)) => return Ok(None),
                inode => inode?.parent,
            };
            let Some(name) = self.find_name(parent, at)? else { return Ok(None) };
            names.push(name);
            at = parent;
        }
        let path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", name.as_bytes()].concat()).collect();
        Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
    }

    fn find_name(&self, parent: Ino, ino: Ino) -> Result<Option<Name>, Failure> {
        let scan = Scan::Dir { parent, after: None, limit: 1000, beside: Beside::Nothing };
        for page in scan.pages(|scan| self.meta.scan(scan)) {
            let found = page?.iter().find_map(|record| match record {
                Record::Dirent(_, name, Some(dirent)) if dirent.ino == ino => Some(name.clone()),
                _ => None,
            });
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn show(&self, quotas: &[(QuotaKey, Quota)], json: bool) -> Result<(), Fault> {
        let users = Users::default();
        let mut paths: HashMap<Ino, Vec<u8>> = HashMap::new();
        for root in quotas.iter().map(|(_, quota)| quota.rule.root).filter(|root| *root != Ino(0)) {
            paths.extend(self.find_path(root).map_err(|error| self.failed(error))?.map(|path| (root, path)));
        }
        let path = |quota: &Quota| paths.get(&quota.rule.root).map(|path| &path[..]);
        if json {
            let all = quotas.iter().map(|(key, quota)| to_json(*key, quota, path(quota), &users));
            return output::print_json(&json!({ "quotas": all.collect::<Vec<Value>>() }));
        }
        let rows = quotas.iter().map(|(key, quota)| {
            let whose = match key {
                QuotaKey::Directory(id) => match path(quota) {
                    Some(path) => show_name(path),
                    None => format!("(directory removed; --id {id})"),
                },
                QuotaKey::User(uid) => format!("user {}", users.user(*uid)),
                QuotaKey::Group(gid) => format!("group {}", users.group(*gid)),
            };
            let rule = &quota.rule;
            let size = |blocks: u64| show_size(blocks.saturating_mul(Usage::BLOCK_BYTES));
            let bytes = of(quota.blocks, rule.soft_blocks, rule.max_blocks, &size);
            let inodes = of(quota.inodes, rule.soft_inodes, rule.max_inodes, &|count| count.to_string());
            [whose, bytes, inodes, notes(quota)]
        });
        let head = ["QUOTA", "BYTES (USED, SOFT, HARD)", "INODES (USED, SOFT, HARD)", ""].map(str::to_owned);
        output::print(&columns([head].into_iter().chain(rows).collect()))
    }
}

/// Formats what is used, the soft limit and the hard limit.
fn of(used: i64, soft: u64, hard: u64, show: &dyn Fn(u64) -> String) -> String {
    let limit = |limit| if limit == QuotaRule::NO_LIMIT { "-".to_owned() } else { show(limit) };
    format!("{} / {} / {}", show(used.max(0).unsigned_abs()), limit(soft), limit(hard))
}

fn is_over(quota: &Quota) -> (bool, bool) {
    let Quota { inodes, blocks, rule } = quota;
    let over = |used: i64, limit: u64| used.max(0).unsigned_abs() > limit;
    let full = |used: i64, limit: u64| used.max(0).unsigned_abs() >= limit;
    (
        over(*inodes, rule.soft_inodes) || over(*blocks, rule.soft_blocks),
        full(*inodes, rule.max_inodes) || full(*blocks, rule.max_blocks),
    )
}

fn notes(quota: &Quota) -> String {
    let state = match quota.rule.state {
        QuotaState::Settled => "",
        QuotaState::Building => "incomplete: give limen quota set again",
        QuotaState::Removing => "being removed: give limen quota delete again",
    };
    let fill = match is_over(quota) {
        (_, true) => "full",
        (true, false) => "above the soft limit",
        (false, false) => "",
    };
    [fill, state].into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join(", ")
}

fn columns(rows: Vec<[String; 4]>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let line = |[whose, bytes, inodes, note]: &[String; 4]| {
        let line = format!("{whose:0$}  {bytes:1$}  {inodes:2$}  {note}", widths[0], widths[1], widths[2]);
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

fn to_json(key: QuotaKey, quota: &Quota, path: Option<&[u8]>, users: &Users) -> Value {
    let Quota { inodes, blocks, rule } = quota;
    let limit = |limit: u64| (limit != QuotaRule::NO_LIMIT).then_some(limit);
    let bytes = |blocks: u64| blocks.saturating_mul(Usage::BLOCK_BYTES);
    let (kind, number, name) = match key {
        QuotaKey::Directory(id) => ("directory", id.0, None),
        QuotaKey::User(uid) => ("user", uid.into(), Some(users.user(uid))),
        QuotaKey::Group(gid) => ("group", gid.into(), Some(users.group(gid))),
    };
    let (above_soft, full) = is_over(quota);
    json!({
        "kind": kind,
        "id": number,
        "name": name,
        "path": path.map(|path| path_to_json(path).0),
        "outer": (rule.outer != QuotaId(0)).then_some(rule.outer.0),
        "inodes": inodes,
        "bytes": blocks.saturating_mul(Usage::BLOCK_BYTES as i64),
        "max_inodes": limit(rule.max_inodes),
        "max_bytes": limit(rule.max_blocks).map(bytes),
        "soft_inodes": limit(rule.soft_inodes),
        "soft_bytes": limit(rule.soft_blocks).map(bytes),
        "state": match rule.state {
            QuotaState::Settled => "complete",
            QuotaState::Building => "building",
            QuotaState::Removing => "removing",
        },
        "above_soft_limit": above_soft,
        "full": full,
    })
}
