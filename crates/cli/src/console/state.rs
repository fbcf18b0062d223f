//! The state of the volume: usage, sessions, quotas, garbage.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ::console::Failure;
use ::console::model::{
    Fact, GarbageSummary, Level, Map, MapEntry, Overview, QuotaRow, Quotas, SessionRow, Sessions, Size, Tone,
};
use command::output::HumanDuration;
use command::units::show_size;
use meta::{LastBackup, Maintenance, Quota, QuotaKey, QuotaRule, Record, Scan, Session, Usage};
use types::{Ino, SessionId, Time, counted, plural};
use vfs::Coherence;
use vfs::process::{has_ended, process_has_ended};

use super::opened::{Opened, engine_failed, failed};
use crate::config::{backups, shown, trash};
use crate::gc::Known;
use crate::maintenance;
use crate::quota::target::{QuotaTarget, whose};
use crate::quota::{notes, of};
use crate::records::{PAGE, usage, used_bytes};
use crate::sessions::sessions as all_sessions;
use crate::status::{self, last_backup, mount_statistics};
use crate::summary::{self, Limit, Sum};

/// The maximum number of names that the map of usage counts, and the longest time that it takes.
const MAP_NAMES: u64 = 300_000;
const MAP_TIME: Duration = Duration::from_secs(4);
/// Quotas on a page.
const QUOTAS: usize = 200;
/// The maximum number of quotas near their limit on the first page, and the share of the limit from which a
/// quota counts as near it.
const NEAR: usize = 8;
const NEAR_SHARE: f64 = 0.8;
/// Locks and unlinked files that are counted.
const MAX_HELD: usize = 100_000;
/// Slices of garbage that are counted.
const MAX_GARBAGE: u64 = 1_000_000;

pub(super) fn overview(opened: &Opened<'_>) -> Result<Overview, Failure> {
    let Opened { place, engine, volume, .. } = opened;
    let usage = usage(&**engine).map_err(engine_failed)?;
    let sessions = all_sessions(&**engine).map_err(engine_failed)?;
    let ill = sessions.iter().filter(|session| health(session).tone != Tone::Good).count();
    let counted = status::Quotas::count(&**engine).map_err(engine_failed)?;
    let limit = |limit: u64| (limit > 0).then_some(limit);
    let cipher = volume.encryption.split(':').next().filter(|cipher| !cipher.is_empty());
    let mut facts = vec![
        Fact::new("Metadata", format!("{} ({})", place.url, place.url.engine())),
        Fact::new("Objects", format!("{} ({})", volume.bucket, volume.storage)),
        Fact::new("ACLs", volume.acl.name()),
        Fact::new("Listings", shown(volume)),
        Fact::new("Compression", &volume.compression),
        Fact::new("Encryption", cipher.unwrap_or("none")),
        Fact::new("Backups", backups(volume)),
        Fact::new("Created", volume.created),
        Fact::new("UUID", &volume.uuid),
    ];
    if volume.trash_days > 0 || counted.trash.0 > 0 {
        let (inodes, bytes) = counted.trash;
        let kept = format!(
            "{}; it has {} with {}",
            trash(volume),
            types::counted(inodes, "inode", "inodes"),
            show_size(bytes)
        );
        facts.push(Fact::new("Trash", kept));
    }
    let near = if counted.all > 0 { near(opened)? } else { Vec::new() };
    let tool = maintenance::announced(&**engine).map_err(engine_failed)?;
    let mut warnings: Vec<String> = tool.iter().map(describe).collect();
    if let crate::url::Database::Network(network) = &place.database {
        warnings.extend(network.warnings.iter().cloned());
    }
    Ok(Overview {
        facts,
        bytes: Level { used: used_bytes(&usage), limit: limit(volume.capacity_bytes) },
        inodes: Level { used: usage.inodes, limit: limit(volume.max_inodes) },
        sessions: (sessions.len(), ill),
        quotas: (counted.all, counted.above_soft_limit, counted.full),
        near,
        backup: backup(last_backup(&**engine).map_err(engine_failed)?),
        warnings,
    })
}

fn backup(last: Option<LastBackup>) -> Fact {
    match last {
        None => Fact::new("none", "no automatic backup was made yet"),
        Some(LastBackup { began, took_secs: Some(secs), .. }) => {
            let took = HumanDuration(Duration::from_secs(secs));
            Fact::new("complete", format!("began at {began}, took {took}")).tone(Tone::Good)
        }
        Some(LastBackup { began, took_secs: None, .. }) => {
            Fact::new("incomplete", format!("began at {began}")).tone(Tone::Warn)
        }
    }
}

/// A tool that has the volume for itself.
fn describe(tool: &Maintenance) -> String {
    let Maintenance { tool, host, pid, process, since, .. } = tool;
    let note = if process_has_ended(*pid, process) { " (its process no longer exists)" } else { "" };
    format!(
        "{tool} on {host}, process {pid}, has had the volume for itself since {since}{note}: new mounts are refused"
    )
}

pub(super) fn map(opened: &Opened<'_>, path: &[u8]) -> Result<Map, Failure> {
    let (ino, path) = opened.find(path)?;
    let limit = Limit { names: Some(MAP_NAMES), until: Some(Instant::now() + MAP_TIME) };
    let found = summary::children(&*opened.engine, ino, limit).map_err(failed)?;
    let size = |sum: &Sum| Size { bytes: sum.bytes(), inodes: sum.inodes, at_least: sum.is_cut };
    let entries = found.entries.iter().map(|(name, is_dir, sum)| MapEntry {
        name: name.clone(),
        is_dir: *is_dir,
        size: size(sum),
    });
    Ok(Map {
        path,
        total: size(&found.sum),
        entries: entries.collect(),
        others: (found.others.0, size(&found.others.1)),
        cut_after: found.cut_after,
    })
}

/// The health of a session. The age of a heartbeat depends on the clocks of two machines, so an old heartbeat
/// does not prove that the session has ended.
fn health(session: &Session) -> Fact {
    let state = status::state(session);
    let note = state.trim().trim_start_matches('(').trim_end_matches(')').to_owned();
    if has_ended(session) {
        Fact::new("ended", note).tone(Tone::Bad)
    } else if state.is_empty() {
        Fact::new("healthy", "").tone(Tone::Good)
    } else {
        Fact::new("silent", note).tone(Tone::Warn)
    }
}

pub(super) fn sessions(opened: &Opened<'_>) -> Result<Sessions, Failure> {
    let engine = &*opened.engine;
    let all = all_sessions(engine).map_err(engine_failed)?;
    let (mut locks, mut unlinked): (HashMap<SessionId, u64>, HashMap<SessionId, u64>) = Default::default();
    let mut left = MAX_HELD;
    let held = [
        Scan::Locks { after: Ino(0), limit: PAGE },
        Scan::Orphans { after: (SessionId(0), Ino(0)), limit: PAGE },
    ];
    for scan in held {
        for page in scan.pages(|scan| engine.scan(scan)) {
            for record in page.map_err(engine_failed)? {
                left = left.saturating_sub(1);
                match record {
                    Record::Locks(_, held) => {
                        let mut owners: Vec<SessionId> = held.iter().map(|lock| lock.owner.session).collect();
                        owners.sort_unstable();
                        owners.dedup();
                        owners.into_iter().for_each(|owner| *locks.entry(owner).or_default() += 1);
                    }
                    Record::Orphan(session, _) => *unlinked.entry(session).or_default() += 1,
                    _ => {}
                }
            }
            if left == 0 {
                break;
            }
        }
    }
    let tool = maintenance::announced(engine).map_err(engine_failed)?;
    let rows = all.iter().map(|session| SessionRow {
        id: session.id.to_string(),
        host: session.host.clone(),
        pid: session.pid,
        version: session.version.clone(),
        mountpoint: session.mountpoint.clone(),
        since: session.since.to_string(),
        heartbeat: age(session.heartbeat),
        health: health(session),
        locks: locks.get(&session.id).copied().unwrap_or(0),
        unlinked: unlinked.get(&session.id).copied().unwrap_or(0),
        notes: own_words(session),
    });
    Ok(Sessions { rows: rows.collect(), tool: tool.as_ref().map(describe), is_cut: left == 0 })
}

fn age(heartbeat: Time) -> String {
    let age = Time::now().nanos().saturating_sub(heartbeat.nanos());
    match u64::try_from(age) {
        Ok(nanos) if nanos < 1_000_000_000 => "now".to_owned(),
        Ok(nanos) => format!("{} ago", HumanDuration(Duration::from_nanos(nanos))),
        Err(_) => "by a clock that is ahead of this machine’s".to_owned(),
    }
}

/// Sentences about a mount on this machine, from its own statistics.
fn own_words(session: &Session) -> Vec<String> {
    let Some(mount) = mount_statistics(session) else { return Vec::new() };
    let mut notes = Vec::new();
    notes.extend(match mount.coherence {
        Some(Coherence::Notified) => Some("It is notified of other mounts’ changes.".to_owned()),
        Some(Coherence::Polling) => Some("It polls the database for other mounts’ changes.".to_owned()),
        Some(Coherence::Exclusive) => Some("It has the volume for itself.".to_owned()),
        None => None,
    });
    notes.extend(mount.transport().map(|transport| {
        format!("Requests come over {}.", if transport == "ring" { "io_uring" } else { "/dev/fuse" })
    }));
    notes.extend(mount.session_loss.map(|loss| {
        format!(
            "Session {} was lost at {}; {} files that were open then fail with EIO.",
            loss.session, loss.at, loss.files
        )
    }));
    notes.extend(mount.pending.filter(|pending| pending.blocks > 0).map(|pending| {
        format!(
            "{}, {}, {} for upload.",
            counted(pending.blocks, "block", "blocks"),
            show_size(pending.bytes),
            plural(pending.blocks, "waits", "wait")
        )
    }));
    notes
}

pub(super) fn quotas(opened: &Opened<'_>) -> Result<Quotas, Failure> {
    let target = quota_target(opened)?;
    let all = target.quotas().map_err(failed)?;
    let rows = all.iter().take(QUOTAS).map(|(key, quota)| quota_row(opened, &target, *key, quota));
    Ok(Quotas { rows: rows.collect::<Result<_, Failure>>()?, is_cut: all.len() > QUOTAS })
}

/// The quotas near their limit, the fullest one first.
fn near(opened: &Opened<'_>) -> Result<Vec<QuotaRow>, Failure> {
    let target = quota_target(opened)?;
    let mut all = target.quotas().map_err(failed)?;
    all.retain(|(_, quota)| tone(quota) != Tone::Plain || fill(quota) >= NEAR_SHARE);
    all.sort_by(|(_, one), (_, other)| fill(other).total_cmp(&fill(one)));
    all.truncate(NEAR);
    // Paths and names are looked up only for those that are shown.
    all.iter().map(|(key, quota)| quota_row(opened, &target, *key, quota)).collect()
}

fn quota_target(opened: &Opened<'_>) -> Result<QuotaTarget, Failure> {
    QuotaTarget::of(&opened.place.database, opened.place.url.to_string()).map_err(failed)
}

fn quota_row(
    opened: &Opened<'_>,
    target: &QuotaTarget,
    key: QuotaKey,
    quota: &Quota,
) -> Result<QuotaRow, Failure> {
    let path = match key {
        QuotaKey::Directory(_) => {
            let found = target.find_path(quota.rule.root);
            found.map_err(|error| Failure::Failed(error.to_string()))?
        }
        QuotaKey::User(_) | QuotaKey::Group(_) => None,
    };
    let rule = &quota.rule;
    let show_blocks = |blocks: u64| show_size(in_bytes(blocks));
    let [bytes_level, inodes_level] = levels(quota);
    Ok(QuotaRow {
        whose: whose(key, path.as_deref(), &opened.users),
        bytes: of(quota.blocks, rule.soft_blocks, rule.max_blocks, &show_blocks),
        inodes: of(quota.inodes, rule.soft_inodes, rule.max_inodes, &|count| count.to_string()),
        bytes_level,
        inodes_level,
        note: notes(quota),
        tone: tone(quota),
        path,
    })
}

fn in_bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(Usage::BLOCK_BYTES)
}

/// The used bytes and inodes of a quota, with the hard limit or else the soft one.
fn levels(quota: &Quota) -> [Level; 2] {
    let rule = &quota.rule;
    let level = |used: i64, soft: u64, hard: u64, of: &dyn Fn(u64) -> u64| {
        let limit = Some(hard).filter(|limit| *limit != QuotaRule::NO_LIMIT);
        let limit = limit.or(Some(soft).filter(|limit| *limit != QuotaRule::NO_LIMIT));
        Level { used: of(used.max(0).unsigned_abs()), limit: limit.map(of) }
    };
    [
        level(quota.blocks, rule.soft_blocks, rule.max_blocks, &in_bytes),
        level(quota.inodes, rule.soft_inodes, rule.max_inodes, &|count| count),
    ]
}

fn tone(quota: &Quota) -> Tone {
    match (quota.is_full(), quota.is_above_soft_limit()) {
        (true, _) => Tone::Bad,
        (false, true) => Tone::Warn,
        (false, false) => Tone::Plain,
    }
}

/// How full a quota is: the larger of its two shares.
fn fill(quota: &Quota) -> f64 {
    let share = |level: Level| match level.limit {
        Some(limit) if limit > 0 => level.used as f64 / limit as f64,
        Some(_) => 1.0,
        None => 0.0,
    };
    let [bytes, inodes] = levels(quota).map(share);
    bytes.max(inodes)
}

pub(super) fn garbage(opened: &Opened<'_>) -> Result<GarbageSummary, Failure> {
    let found = Known::count(&*opened.engine, MAX_GARBAGE).map_err(engine_failed)?;
    let tone = |count: u64| if count > 0 { Tone::Warn } else { Tone::Good };
    let slices = format!("{}, {} that files no longer use", found.slices, show_size(found.slice_bytes));
    let facts = vec![
        Fact::new("Sessions", format!("{} whose process no longer exists", found.sessions))
            .tone(tone(found.sessions)),
        Fact::new("Unlinked files", format!("{} left open by such sessions", found.orphans))
            .tone(tone(found.orphans)),
        Fact::new("Slices", slices),
    ];
    Ok(GarbageSummary { facts, is_cut: found.is_cut })
}
