//! `limen status`: a volume's settings, its usage, and its mounts.

use std::path::Path;
use std::time::Duration;

use command::error::{CliError, ErrorAt};
use command::output::{self, HumanDuration, Table};
use command::process::Process;
use command::registry::{self, Entry};
use command::statistics::Statistics;
use command::units::show_size;
use meta::{
    Engine, EngineError, LastBackup, Maintenance, QuotaKey, Record, RecordKey, Scan, Session, Usage, Volume,
};
use serde_json::{Value, json};
use types::{QuotaId, Time, counted, plural};
use vfs::process::{has_ended, process_has_ended};
use vfs::{Coherence, SearchCounts, SessionLoss};

use crate::config::{backups, shown, trash};
use crate::maintenance;
use crate::marker;
use crate::network::Network;
use crate::records::{self, usage, used_bytes};
use crate::sessions::{session_times, sessions};
use crate::staged;
use crate::target::volume_url;
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:\n  limen status /mnt\n  limen status --json sqlite:///var/lib/limen/home.db | jq .usage")]
pub(crate) struct StatusArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let url = volume_url(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let engine = database.engine();
    let usage = usage(&*engine).at(&url)?;
    let sessions = sessions(&*engine).at(&url)?;
    let tool = maintenance::announced(&*engine).at(&url)?;
    let last_backup = last_backup(&*engine).at(&url)?;
    let quotas = Quotas::count(&*engine).at(&url)?;
    let mounts: Vec<Option<Statistics>> = sessions.iter().map(mount_statistics).collect();
    let server = match &database {
        Database::Network(network) => Some(network),
        Database::Sqlite(_) | Database::Memory(_) => None,
    };
    let store_error = marker::store_problem(&volume);
    // `None` if this user has no permission to read the staging directory of another user.
    let staged = chunk::count_staged(&staged::places(&volume)).ok();
    if args.json {
        let all: Vec<_> = sessions.iter().zip(&mounts).collect();
        let mut status = to_json(&url, server, &volume, &usage, &all, tool.as_ref(), staged);
        status["last_backup"] = last_backup
            .map_or(Value::Null, |last| json!({ "began": rfc3339(last.began), "took_secs": last.took_secs }));
        status["store_error"] = store_error.map_or(Value::Null, |error| error.to_string().into());
        let Quotas { all, above_soft_limit, full, trash } = quotas;
        status["trash"] = json!({ "days": volume.trash_days, "inodes": trash.0, "bytes": trash.1 });
        status["quotas"] = json!({ "all": all, "above_soft_limit": above_soft_limit, "full": full });
        return output::print_json(&status);
    }
    let mut table = Table::default();
    table.row("volume", &volume.name);
    table.row("uuid", &volume.uuid);
    table.row("created", volume.created);
    table.row("metadata", format!("{url} ({})", url.engine()));
    if let Some(Network { server, warnings, .. }) = server {
        table.row("server", server);
        for warning in warnings {
            table.row("warning", warning);
        }
    }
    table.row("format", meta::FORMAT_VERSION);
    table.row("objects", format!("{} ({})", or(&volume.bucket, "-"), volume.storage));
    if let Some(error) = store_error {
        table.row("warning", error);
    }
    table.row("ACLs", volume.acl.name());
    if volume.abe {
        table.row("listings", shown(&volume));
    }
    table.row("compression", &volume.compression);
    let cipher = volume.encryption.split(':').next().filter(|cipher| !cipher.is_empty());
    table.row("encryption", cipher.unwrap_or("none"));
    table.row("inline up to", show_size(volume.inline_bytes.into()));
    table.row("data", of_limit(show_size(used_bytes(&usage)), volume.capacity_bytes, show_size));
    table.row("inodes", of_limit(usage.inodes.to_string(), volume.max_inodes, |n| n.to_string()));
    table.row("backups", backups(&volume));
    if let Some(LastBackup { began, took_secs, .. }) = last_backup {
        let state = match took_secs {
            Some(secs) => format!(", which took {}", HumanDuration(Duration::from_secs(secs))),
            None => ", which is not complete".to_owned(),
        };
        table.row("", format!("the last one began at {began}{state}"));
    }
    if volume.trash_days > 0 || quotas.trash.0 > 0 {
        let (inodes, bytes) = quotas.trash;
        let kept = format!(
            "{}; it has {} with {}",
            trash(&volume),
            counted(inodes, "inode", "inodes"),
            show_size(bytes)
        );
        table.row("trash", kept);
    }
    if let Quotas { all: all @ 1.., above_soft_limit, full, .. } = quotas {
        table.row("quotas", format!("{all}, {above_soft_limit} above the soft limit, {full} full"));
    }
    for (session, mount) in sessions.iter().zip(&mounts) {
        let Session { id, host, pid, mountpoint, since, version, .. } = session;
        let state = state(session);
        let coherence = match mount.as_ref().and_then(|mount| mount.coherence) {
            Some(Coherence::Notified) => ", notified of other mounts' changes",
            Some(Coherence::Polling) => ", not notified of other mounts' changes: polls the database",
            Some(Coherence::Exclusive) | None => "",
        };
        table.row(
            "session",
            format!(
                "{id}: {mountpoint} on {host}, process {pid} of limen {version}, since {since}{state}{coherence}"
            ),
        );
        if let Some(loss) = mount.as_ref().and_then(|mount| mount.session_loss) {
            let SessionLoss { session, at, files } = loss;
            table.row(
                "",
                format!(
                    "session {session} was lost at {at}, when another client removed it as dead; {files} files that were open \
                     then fail with EIO"
                ),
            );
        }
        if let Some(transport) = mount.as_ref().and_then(Statistics::transport) {
            table.row(
                "",
                format!("requests over {}", if transport == "ring" { "io_uring" } else { "/dev/fuse" }),
            );
        }
        if let Some(address) = mount.as_ref().and_then(|mount| mount.metrics) {
            table.row("", format!("metrics at http://{address}/metrics"));
        }
        let searches = mount.as_ref().map(|mount| mount.searches).unwrap_or_default();
        if searches != SearchCounts::default() {
            let SearchCounts { skipped, checked } = searches;
            let all = skipped + checked;
            table.row(
                "",
                format!(
                    "{skipped} of {} needed no access check, because everyone can search the directory",
                    counted(all, "lookup", "lookups")
                ),
            );
        }
    }
    if let Some(Maintenance { tool, host, pid, process, since, .. }) = &tool {
        let note = if process_has_ended(*pid, process) { " (its process no longer exists)" } else { "" };
        table.row(
            "tool",
            format!("{tool} on {host}, process {pid}, since {since}{note}: new mounts are refused"),
        );
    }
    if sessions.is_empty() {
        table.row("session", "none: the volume is not mounted");
    }
    if let Some((blocks, bytes)) = staged.filter(|(blocks, _)| *blocks > 0) {
        let size = show_size(bytes);
        table.row(
            "write-back",
            format!(
                "{}, {size}, {} on this machine for upload",
                counted(blocks, "block", "blocks"),
                plural(blocks, "waits", "wait")
            ),
        );
    }
    let upload_errors = mounts.iter().flatten().filter_map(|mount| mount.pending.as_ref()?.error.as_ref());
    for error in upload_errors {
        table.row("", format!("the object store does not accept them: {error}"));
    }
    output::print(&table.render())
}

/// The numbers of quotas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quotas {
    pub(crate) all: u64,
    pub(crate) above_soft_limit: u64,
    pub(crate) full: u64,
    /// The inodes and bytes in the trash, without its root. The quota of the trash counts them; `all` does
    /// not include it.
    pub(crate) trash: (u64, u64),
}

impl Quotas {
    /// # Errors
    /// Those of the database.
    pub(crate) fn count(engine: &dyn Engine) -> Result<Quotas, EngineError> {
        let mut quotas = Quotas::default();
        let scan = Scan::Quotas { after: None, limit: records::PAGE };
        for page in scan.pages(|scan| engine.scan(scan)) {
            for record in page? {
                let Record::Quota(key, Some(quota)) = record else { continue };
                if key == QuotaKey::Directory(QuotaId::TRASH) {
                    let blocks = quota.blocks.max(0).unsigned_abs();
                    let inodes = quota.inodes.max(0).unsigned_abs().saturating_sub(1);
                    quotas.trash = (inodes, blocks.saturating_mul(Usage::BLOCK_BYTES));
                    continue;
                }
                quotas.all += 1;
                quotas.above_soft_limit += u64::from(quota.is_above_soft_limit());
                quotas.full += u64::from(quota.is_full());
            }
        }
        Ok(quotas)
    }
}

/// A note about a session whose process is proven to be dead, or that was not renewed in time; otherwise
/// empty. The age of a heartbeat depends on the clocks of two machines, so an old heartbeat does not prove
/// that the session has ended.
pub(crate) fn state(session: &Session) -> String {
    if has_ended(session) {
        return " (its process no longer exists; the next mount removes the session)".to_owned();
    }
    let age = Time::now().nanos().saturating_sub(session.heartbeat.nanos());
    let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
    let late = session_times().unwrap_or_default().valid_for;
    if age <= late { String::new() } else { format!(" (no heartbeat for {})", HumanDuration(age)) }
}

/// The last automatic backup of the metadata.
pub(crate) fn last_backup(engine: &dyn Engine) -> Result<Option<LastBackup>, EngineError> {
    let records = engine.read(&[RecordKey::Settings])?.records;
    let Some(Record::Settings(settings)) = records.first() else { return Ok(None) };
    Ok(settings.get(LastBackup::SETTING).and_then(|text| LastBackup::decode(text)))
}

/// The statistics of a session's mount, if it is on this machine and answers.
pub(crate) fn mount_statistics(session: &Session) -> Option<Statistics> {
    Statistics::query(&mount_here(session)?).ok()
}

/// The mount of a session, if it is on this machine.
pub(crate) fn mount_here(session: &Session) -> Option<Entry> {
    let entries = registry::by_mountpoint(Path::new(&session.mountpoint));
    entries.into_iter().find(|entry| {
        let Process { pid, started } = entry.process;
        (pid, started) == (session.pid, session.process.start_time) && entry.process.is_alive()
    })
}

fn to_json(
    url: &MetaUrl,
    server: Option<&Network>,
    volume: &Volume,
    usage: &Usage,
    sessions: &[(&Session, &Option<Statistics>)],
    tool: Option<&Maintenance>,
    staged: Option<(u64, u64)>,
) -> Value {
    let session = |(session, mount): &(&Session, &Option<Statistics>)| {
        json!({
            "id": session.id.0,
            "host": session.host,
            "pid": session.pid,
            "version": session.version,
            "mountpoint": session.mountpoint,
            "since": rfc3339(session.since),
            "heartbeat": rfc3339(session.heartbeat),
            "alive": !has_ended(session),
            "searches": mount.as_ref().map(|mount| json!({
                "skipped": mount.searches.skipped,
                "checked": mount.searches.checked,
            })),
            "lost": mount.as_ref().and_then(|mount| mount.session_loss).map(|loss| json!({
                "session": loss.session.0,
                "at": rfc3339(loss.at),
                "files": loss.files,
            })),
            "coherence": mount.as_ref().and_then(|mount| mount.coherence).map(Coherence::name),
            "transport": mount.as_ref().and_then(Statistics::transport),
            "metrics": mount.as_ref().and_then(|mount| mount.metrics).map(|address| address.to_string()),
        })
    };
    json!({
        "url": url.to_string(),
        "engine": url.engine(),
        "server": server.map(|network| &network.server),
        "warnings": server.map(|network| &network.warnings),
        "format_version": meta::FORMAT_VERSION,
        "name": volume.name,
        "uuid": volume.uuid,
        "created": rfc3339(volume.created),
        "storage": volume.storage,
        "bucket": volume.bucket,
        "acl": volume.acl.name(),
        "abe": volume.abe,
        "compression": volume.compression,
        "encryption": volume.encryption,
        "inline_bytes": volume.inline_bytes,
        "capacity_bytes": volume.capacity_bytes,
        "max_inodes": volume.max_inodes,
        "usage": { "inodes": usage.inodes, "bytes": used_bytes(usage) },
        "staged": staged.map(|(blocks, bytes)| json!({ "blocks": blocks, "bytes": bytes })),
        "sessions": sessions.iter().map(session).collect::<Vec<_>>(),
        "backup_secs": volume.backup_secs,
        "maintenance": tool.map(|tool| json!({
            "tool": tool.tool,
            "host": tool.host,
            "pid": tool.pid,
            "since": rfc3339(tool.since),
            "alive": !process_has_ended(tool.pid, &tool.process),
        })),
    })
}

pub(crate) fn rfc3339(time: Time) -> String {
    time.to_string().replacen(' ', "T", 1).replace(" UTC", "Z")
}

fn of_limit(used: String, limit: u64, show: impl Fn(u64) -> String) -> String {
    if limit == 0 { used } else { format!("{used} of {}", show(limit)) }
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_heartbeat_of_another_machine_is_shown() {
        let at = |seconds: i64| {
            let heartbeat = Time::from_nanos(Time::now().nanos() - seconds * 1_000_000_000);
            state(&Session::new(types::SessionId(1), heartbeat))
        };
        assert_eq!((at(0), at(190)), (String::new(), " (no heartbeat for 3 minutes)".to_owned()));
        // The clock of the other machine is ahead.
        assert_eq!(at(-600), "");
    }
}
