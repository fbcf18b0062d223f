//! `limen quota`: limits of directories, users and groups.
//!
//! | module | what it holds |
//! |---|---|
//! | `check` | counts quotas again |
//! | `target` | the volume and directory of a target; the name and path of a quota |

mod check;
pub(crate) mod target;

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::Subcommand;
use client::QuotaChange;
use command::error::CliError;
use command::output;
use command::units::{parse_size, parse_whole, show_size};
use meta::{Quota, QuotaKey, QuotaRule, QuotaState, Usage, blocks_of};
use ops::QuotaLimits;
use serde_json::{Value, json};
use types::{Ino, QuotaId};

use self::target::{QuotaTarget, add_path, whose};
use crate::users::Users;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
TARGET is a path on a mount, or META-URL:/PATH in a volume that need not be mounted.

The volume may be in use. If an SQLite volume is mounted, its mount counts the files, so the command must be given on the same
machine, as root or the user that mounts it.

Examples:
  limen quota set /mnt/projects/a --bytes 500G --inodes 1000000
  limen quota set redis://db.example.org/1 --user ann --bytes 50G --soft-bytes 40G
  limen quota list redis://db.example.org/1
  limen quota check redis://db.example.org/1
  limen quota delete /mnt/projects/a")]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Limit the size of a directory, or of the files of a user or group; existing files are counted, and if
    /// the command is interrupted, the same command continues it
    Set(SetArgs),
    /// Show the quota of a directory, user or group, and how much of it is used
    Get(GetArgs),
    /// List all quotas of a volume; /.trash counts what is in the trash, and has no limits
    List(ListArgs),
    /// Remove the quota of a directory, or the limits of a user or group
    Delete(DeleteArgs),
    /// Count the files of all quotas again, and compare; the volume may be in use
    Check(check::CheckArgs),
}

/// The directory, user or group whose quota a command shows or changes.
#[derive(Debug, clap::Args)]
struct Whose {
    /// A directory; with --user or --group, any path on the volume, or the volume's URL
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The quota of this user (name or number): it counts all files in the volume that the user owns
    #[arg(long, value_name = "USER", conflicts_with = "group")]
    user: Option<String>,
    /// The quota of this group (name or number): it counts all files in the volume that have this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    #[command(flatten)]
    whose: Whose,
    /// The maximum total size of files, e.g. 500G, rounded up to whole blocks of 4 KiB; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    bytes: Option<u64>,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N", value_parser = parse_whole, allow_negative_numbers = true)]
    inodes: Option<u64>,
    /// Warn above this size, in the log of each mount, `limen status` and `limen quota list`; 0 for never
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    soft_bytes: Option<u64>,
    /// Warn above this number of files and directories; 0 for never
    #[arg(long, value_name = "N", value_parser = parse_whole, allow_negative_numbers = true)]
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

pub(crate) fn run(args: &QuotaArgs) -> Result<ExitCode, CliError> {
    let done = match &args.command {
        QuotaCommand::Set(args) => set(args),
        QuotaCommand::Get(args) => get(args),
        QuotaCommand::List(args) => list(args),
        QuotaCommand::Delete(args) => delete(args),
        QuotaCommand::Check(args) => return Ok(check::run(args)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let target = QuotaTarget::open(&args.target)?;
    let quotas = target.quotas()?;
    show(&target, &quotas, args.json)
}

fn set(args: &SetArgs) -> Result<(), CliError> {
    let limits = QuotaLimits {
        max_inodes: args.inodes.map(limit).transpose()?,
        max_blocks: args.bytes.map(|bytes| limit(blocks_of(bytes))).transpose()?,
        soft_inodes: args.soft_inodes.map(limit).transpose()?,
        soft_blocks: args.soft_bytes.map(|bytes| limit(blocks_of(bytes))).transpose()?,
    };
    if limits == QuotaLimits::default() {
        return Err(CliError::usage("there is nothing to set")
            .advise("give --bytes, --inodes, --soft-bytes or --soft-inodes; 0 means no limit"));
    }
    let target = QuotaTarget::open(&args.whose.target)?;
    let key = args.whose.owner()?;
    let (counted, rule) = match key {
        Some(key) => (target.counts_owners()?, target.rule(key)?),
        None => {
            target.require_directory()?;
            let rule = target.quota_of(target.ino)?.map(|(_, quota)| quota.rule);
            (rule.is_some_and(|rule| rule.state == QuotaState::Settled), rule)
        }
    };
    require_order(limits, &rule.unwrap_or_default()).map_err(|error| error.at(&target.shown))?;
    let change = match key {
        Some(key) => QuotaChange::SetOwner { key, limits },
        None => QuotaChange::SetDirectory { dir: target.ino, limits },
    };
    let key = target.change(change, !counted)?;
    let quotas = target.quotas()?;
    let set: Vec<_> = quotas.into_iter().filter(|(found, _)| *found == key).collect();
    show(&target, &set, args.json)
}

fn get(args: &GetArgs) -> Result<(), CliError> {
    let target = QuotaTarget::open(&args.whose.target)?;
    let quotas = target.quotas()?;
    let key = match args.whose.owner()? {
        Some(key) => key,
        None => match target.directory_quota()? {
            Some((id, _)) => QuotaKey::Directory(id),
            None => return Err(no_quota(&target)),
        },
    };
    let found: Vec<_> = quotas.into_iter().filter(|(found, _)| *found == key).collect();
    if found.is_empty() {
        return Err(args.whose.without_quota(&target.shown));
    }
    show(&target, &found, args.json)
}

fn no_quota(target: &QuotaTarget) -> CliError {
    CliError::new("the directory itself has no quota")
        .at(&target.shown)
        .advise("limen quota list shows all quotas; those of the directories above count it too")
}

fn delete(args: &DeleteArgs) -> Result<(), CliError> {
    let target = QuotaTarget::open(&args.whose.target)?;
    if let Some(key) = args.whose.owner()? {
        // Counting continues without a limit, so that a new limit needs no walk.
        const NONE: Option<u64> = Some(QuotaRule::NO_LIMIT);
        if target.rule(key)?.is_none() {
            return Err(args.whose.without_quota(&target.shown));
        }
        let limits = QuotaLimits { max_inodes: NONE, max_blocks: NONE, soft_inodes: NONE, soft_blocks: NONE };
        return target.change(QuotaChange::SetOwner { key, limits }, !target.counts_owners()?).map(drop);
    }
    let id = match args.id.map(QuotaId) {
        None => target.directory_quota()?.map(|(id, _)| id),
        id => id,
    };
    let Some(id) = id else {
        return Err(no_quota(&target));
    };
    target.change(QuotaChange::RemoveDirectory(id), true).map(drop)
}

/// A limit as it is stored; 0 means no limit.
fn limit(number: u64) -> Result<u64, CliError> {
    match number {
        0 => Ok(QuotaRule::NO_LIMIT),
        QuotaRule::NO_LIMIT.. => Err(CliError::usage(format!(
            "a limit of {number} is too large: write a smaller one, or 0 for no limit"
        ))),
        _ => Ok(number),
    }
}

/// Checks that the new limits leave no soft limit above its hard limit, because such a soft limit would never
/// warn.
///
/// # Errors
/// A limit is given that would leave a soft limit above its hard limit.
fn require_order(limits: QuotaLimits, present: &QuotaRule) -> Result<(), CliError> {
    let is_wrong = |(soft, old_soft): (Option<u64>, u64), (hard, old_hard): (Option<u64>, u64)| {
        let (new_soft, new_hard) = (soft.unwrap_or(old_soft), hard.unwrap_or(old_hard));
        soft.or(hard).is_some() && new_soft > new_hard && new_soft != QuotaRule::NO_LIMIT
    };
    let inodes = is_wrong((limits.soft_inodes, present.soft_inodes), (limits.max_inodes, present.max_inodes));
    let blocks = is_wrong((limits.soft_blocks, present.soft_blocks), (limits.max_blocks, present.max_blocks));
    if inodes || blocks {
        return Err(CliError::usage("a soft limit must not be above the hard limit")
            .advise("give both limits; a soft limit of 0 removes it"));
    }
    Ok(())
}

impl Whose {
    /// The error if the user or group has no quota.
    fn without_quota(&self, target: &str) -> CliError {
        let whose = match (&self.user, &self.group) {
            (Some(user), _) => format!("user '{user}'"),
            (None, Some(group)) => format!("group '{group}'"),
            (None, None) => "the directory".to_owned(),
        };
        CliError::new(format!("{whose} has no quota")).at(target).advise("limen quota list shows all quotas")
    }

    fn owner(&self) -> Result<Option<QuotaKey>, CliError> {
        let users = Users::default();
        Ok(match (&self.user, &self.group) {
            (Some(user), _) => Some(QuotaKey::User(users.uid(user)?)),
            (None, Some(group)) => Some(QuotaKey::Group(users.gid(group)?)),
            (None, None) => None,
        })
    }
}

fn show(target: &QuotaTarget, quotas: &[(QuotaKey, Quota)], json: bool) -> Result<(), CliError> {
    let users = Users::default();
    let mut paths: HashMap<Ino, Vec<u8>> = HashMap::new();
    for root in quotas.iter().map(|(_, quota)| quota.rule.root).filter(|root| *root != Ino(0)) {
        paths.extend(target.find_path(root).map_err(|error| target.failed(error))?.map(|path| (root, path)));
    }
    let path = |quota: &Quota| paths.get(&quota.rule.root).map(|path| &path[..]);
    if json {
        let all = quotas.iter().map(|(key, quota)| to_json(*key, quota, path(quota), &users));
        return output::print_json(&json!({ "quotas": all.collect::<Vec<Value>>() }));
    }
    let rows = quotas.iter().map(|(key, quota)| {
        let whose = whose(*key, path(quota), &users);
        let rule = &quota.rule;
        let size = |blocks: u64| show_size(blocks.saturating_mul(Usage::BLOCK_BYTES));
        let bytes = of(quota.blocks, rule.soft_blocks, rule.max_blocks, &size);
        let inodes = of(quota.inodes, rule.soft_inodes, rule.max_inodes, &|count| count.to_string());
        [whose, bytes, inodes, notes(quota)]
    });
    let head = ["QUOTA", "BYTES (USED, SOFT, HARD)", "INODES (USED, SOFT, HARD)", ""].map(str::to_owned);
    output::print(&columns([head].into_iter().chain(rows).collect()))
}

/// Formats what is used, the soft limit and the hard limit.
pub(crate) fn of(used: i64, soft: u64, hard: u64, show: &dyn Fn(u64) -> String) -> String {
    let limit = |limit| if limit == QuotaRule::NO_LIMIT { "-".to_owned() } else { show(limit) };
    format!("{} / {} / {}", show(used.max(0).unsigned_abs()), limit(soft), limit(hard))
}

/// The state of a quota in words; empty if there is nothing to say.
pub(crate) fn notes(quota: &Quota) -> String {
    let state = match quota.rule.state {
        QuotaState::Settled => "",
        QuotaState::Building => "incomplete: give limen quota set again",
        QuotaState::Removing => "being removed: give limen quota delete again",
    };
    let fill = match (quota.is_above_soft_limit(), quota.is_full()) {
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
    let mut value = json!({
        "kind": kind,
        "id": number,
        "name": name,
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
        "above_soft_limit": quota.is_above_soft_limit(),
        "full": quota.is_full(),
    });
    add_path(&mut value, path);
    value
}
