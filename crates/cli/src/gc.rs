//! `limen gc`: finds and removes objects, files and sessions of a volume that nothing needs any more.

use std::time::{Duration, SystemTime};

use check::{AclCounts, SliceWindow};
use chunk::{BlockStore, ChunkError, StoredBlock};
use client::{Failure, Meta};
use command::error::{CliError, ErrorAt};
use command::output::{self, Table};
use command::units::show_size;
use meta::{Engine, EngineError, Record, Scan, Session, Volume};
use ops::Reap;
use serde_json::json;
use types::{BLOCK_BYTES, Errno, Ino, SessionId, SliceId};
use vfs::process::has_ended;

use crate::journals;
use crate::maintenance;
use crate::marker;
use crate::parse::parse_span;
use crate::records::{self, next_slice};
use crate::sessions::sessions;
use crate::store::{open_without_key, store_error};
use crate::target::volume_url;
use crate::url::Database;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mount removes data that its files no longer refer to. This command removes the rest: objects that a mount stored but did
not refer to in the metadata before it was killed, data and open files that the next mount would remove, and ACLs that no
file has any more.
It is safe while the volume is mounted, here or elsewhere: it keeps every object that a mount could still refer to.

Examples:
  limen gc sqlite:///var/lib/limen/home.db
      shows what can be removed
  limen gc --delete redis://db.example.org/1
      removes it")]
pub(crate) struct GcArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    /// Remove what is found; without this option nothing is changed
    #[arg(long)]
    delete: bool,
    /// Keep unreferenced objects that are younger than this, e.g. 90s, 30m, 1h or 2d
    #[arg(long, value_name = "AGE", value_parser = parse_span, default_value = "1h")]
    grace: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Records of garbage read at a time.
const PAGE: usize = 256;

/// How many unlinked inodes one commit removes.
const REAPED_AT_ONCE: usize = 16;

/// Totals of what can be removed, or was removed.
#[derive(Debug, Default)]
struct Found {
    sessions: u64,
    orphans: u64,
    garbage: u64,
    garbage_bytes: u64,
    objects: u64,
    object_bytes: u64,
    /// Unreferenced objects that are kept: they are too young, a mount could still refer to them, their slice
    /// is in use, or their number was never allocated.
    kept: u64,
    acls: AclCounts,
    /// Why unused ACLs are kept.
    acls_kept: Option<String>,
}

pub(crate) fn run(args: &GcArgs) -> Result<(), CliError> {
    let url = volume_url(&args.url)?;
    let (database, volume) = url.open_volume()?;
    // On the embedded engine, the volume cannot be mounted while this process holds the lock. Without the
    // lock, this process must not change the volume, because a mount could have the volume exclusively.
    let lock = database.lock(false).ok().flatten();
    let may_change = lock.is_some() || matches!(database, Database::Network(_));
    let engine = database.engine();
    let store = open_without_key(&volume)?;
    marker::verify(&volume, &store)?;
    let bar = output::progress("objects");
    // The counter is read before the sessions: a session that begins later allocates numbers from `next` on.
    let next = SliceId(next_slice(&*engine).at(&url)?);
    if args.delete && may_change {
        journals::replay(database.file(), &url.client(engine.clone(), 1)?).at(&url)?;
    }
    let left = Left::find(&*engine, lock.is_some()).at(&url)?;
    let below = left.living.iter().map(|session| session.first_slice).fold(next, SliceId::min);
    let mounted = !left.living.is_empty();
    let mut found =
        Found { sessions: left.gone.len() as u64, orphans: left.orphans.len() as u64, ..Found::default() };
    if args.delete && may_change {
        let meta = url.client(engine.clone(), 10_000)?;
        maintenance::require_none(&url, &meta)?;
        left.remove(&meta).at(&url)?;
        collect(&meta, &volume, &store, &mut found)?;
        left.drop_acls(&meta, &mut found).at(&url)?;
    } else {
        count_garbage(&*engine, &mut found).at(&url)?;
        found.acls = check::unused_acls(&*engine).at(&url)?;
    }
    let sweeper = Sweeper { delete: args.delete, grace: args.grace, below, mounted };
    let mut seen = 0;
    Unreferenced::find(&*engine, &volume, &store, &mut |object| {
        seen += 1;
        bar.set_position(seen);
        sweeper.sweep(&store, object, &mut found)
    })?;
    if args.delete {
        engine.sync().at(&url)?;
    }
    bar.finish_and_clear();
    output::result(
        args.json,
        || found.to_json(args, &volume, may_change),
        || found.to_text(args, mounted, may_change),
    )
}

/// The garbage that the database records. Unreferenced objects are not in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Sessions whose process no longer exists.
    pub(crate) sessions: u64,
    /// Unlinked inodes that such sessions left open.
    pub(crate) orphans: u64,
    pub(crate) slices: u64,
    pub(crate) slice_bytes: u64,
    /// The count stopped at its limit, so there may be more slices.
    pub(crate) is_cut: bool,
}

impl Known {
    /// Counts without a walk over inodes, rows or objects. Stops after the page that reaches `slices_max`
    /// slices.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn count(engine: &dyn Engine, slices_max: u64) -> Result<Known, EngineError> {
        let left = Left::find(engine, false)?;
        let mut known = Known {
            sessions: left.gone.len() as u64,
            orphans: left.orphans.len() as u64,
            ..Known::default()
        };
        let scan = Scan::Garbage { after: SliceId(0), limit: PAGE };
        for page in scan.pages(|scan| engine.scan(scan)) {
            for record in page? {
                let Record::Garbage(garbage) = record else { continue };
                known.slices += 1;
                known.slice_bytes += u64::from(garbage.size);
            }
            if known.slices >= slices_max {
                known.is_cut = true;
                break;
            }
        }
        Ok(known)
    }
}

/// The sessions, and the orphans that ended sessions left behind.
struct Left {
    living: Vec<Session>,
    /// Sessions whose process is proven to be dead: they can change nothing any more.
    gone: Vec<Session>,
    /// Unlinked inodes that were open in a session that is dead or no longer recorded.
    orphans: Vec<(SessionId, Ino)>,
}

impl Left {
    /// With `is_unmounted`, the volume is known not to be mounted, so all sessions have ended.
    fn find(engine: &dyn Engine, is_unmounted: bool) -> Result<Left, EngineError> {
        // Orphans are read before sessions, so that an orphan of a session that begins meanwhile is not in
        // the list.
        let mut orphans = orphans(engine)?;
        // The journal of an ended session on an embedded engine may name blocks that no record names yet.
        let is_living = |session: &Session| !is_unmounted && (engine.is_embedded() || !has_ended(session));
        let (living, gone): (Vec<Session>, Vec<Session>) = sessions(engine)?.into_iter().partition(is_living);
        orphans.retain(|(session, _)| living.iter().all(|living| living.id != *session));
        Ok(Left { living, gone, orphans })
    }

    fn remove(&self, meta: &Meta) -> Result<(), Failure> {
        for session in &self.gone {
            meta.remove_session(session.id, session.heartbeat)?;
        }
        for some in self.orphans.chunks(REAPED_AT_ONCE) {
            let reaps: Vec<Reap> = some.iter().map(|&(session, ino)| Reap { session, ino }).collect();
            meta.reap(&reaps, &|| false)?;
        }
        Ok(())
    }
}

impl Left {
    /// Removes unused ACLs, unless there is a mount of another version. That version may not know that a new
    /// reference to a condemned ACL ends its condemnation (`acls.rs` in the crate `check`).
    fn drop_acls(&self, meta: &Meta, found: &mut Found) -> Result<(), Failure> {
        // Mounts may have begun since the sessions were read.
        let now = sessions(&**meta.engine())?;
        let is_other = |session: &Session| session.version != env!("CARGO_PKG_VERSION");
        found.acls_kept = if self.living.iter().chain(&now).any(is_other) {
            Some("a mount of another limen version may use them".to_owned())
        } else {
            match check::drop_unused_acls(meta) {
                Ok(counts) => {
                    found.acls = counts;
                    return Ok(());
                }
                Err(Failure::Operation(Errno::EBUSY)) => Some("another limen gc removes them".to_owned()),
                // This error must not stop the removal of unreferenced objects.
                Err(failure) => Some(failure.to_string()),
            }
        };
        found.acls = check::unused_acls(&**meta.engine())?;
        Ok(())
    }
}

fn orphans(engine: &dyn Engine) -> Result<Vec<(SessionId, Ino)>, EngineError> {
    let scan = Scan::Orphans { after: (SessionId(0), Ino(0)), limit: records::PAGE };
    records::all(engine, scan, |record| match record {
        Record::Orphan(session, ino) => Some((session, ino)),
        _ => None,
    })
}

/// Removes the blocks of slices on the garbage list, then the records of that list.
fn collect(meta: &Meta, volume: &Volume, store: &BlockStore, found: &mut Found) -> Result<(), CliError> {
    loop {
        let page = meta.scan(&Scan::Garbage { after: SliceId(0), limit: PAGE })?;
        if page.snapshot.records.is_empty() {
            return Ok(());
        }
        // The records must be durable before the blocks are deleted. A mount that was killed may have removed
        // a row just before; if a loss of power undid that, a file would refer to blocks that are gone.
        meta.sync()?;
        let mut gone = Vec::with_capacity(PAGE);
        for record in &page.snapshot.records {
            let Record::Garbage(garbage) = record else { continue };
            let deleted = store.delete_slice(garbage.slice, garbage.size);
            deleted.map_err(|error| store_error(volume, &error))?;
            gone.push(garbage.slice);
            found.garbage_bytes += u64::from(garbage.size);
        }
        meta.drop_garbage(&gone)?;
        found.garbage += gone.len() as u64;
    }
}

fn count_garbage(engine: &dyn Engine, found: &mut Found) -> Result<(), EngineError> {
    check::for_each_slice_window(engine, |window| {
        for (_, used) in window.iter().filter(|(_, used)| used.garbage) {
            found.garbage += 1;
            found.garbage_bytes += u64::from(used.size);
        }
        Ok(())
    })
}

/// Totals of objects that neither a chunk row nor a garbage record refers to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unreferenced {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// The highest slice number of any object.
    pub(crate) last_slice: u64,
}

/// An unreferenced object of the store.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) block: StoredBlock,
    /// Whether the metadata refers to the block's slice, but not to this block of it.
    pub(crate) of_used_slice: bool,
}

impl Unreferenced {
    /// Calls `each` with every unreferenced object.
    ///
    /// # Errors
    /// The database or the store fails.
    pub(crate) fn find(
        engine: &dyn Engine,
        volume: &Volume,
        store: &BlockStore,
        each: &mut dyn FnMut(&Stray) -> Result<(), ChunkError>,
    ) -> Result<Unreferenced, CliError> {
        let mut sums = Unreferenced::default();
        check::for_each_slice_window(engine, |window| {
            let walked = store.for_each_block(&mut |block| {
                sums.last_slice = sums.last_slice.max(block.id.0);
                if !window.holds(block.id) || is_used(window, &block) {
                    return Ok(());
                }
                sums.objects += 1;
                sums.bytes += u64::from(block.len);
                let of_used_slice = window.get(block.id).is_some();
                each(&Stray { block, of_used_slice })
            });
            walked.map_err(|error| store_error(volume, &error))
        })?;
        Ok(sums)
    }
}

fn is_used(window: &SliceWindow, block: &StoredBlock) -> bool {
    let Some(used) = window.get(block.id) else { return false };
    // The rows of a shared slice may have moved from one inode to another during the scan.
    if used.rows == 0 && used.shared {
        return true;
    }
    let start = u64::from(block.block) * u64::from(BLOCK_BYTES);
    let len = u64::from(used.size).saturating_sub(start).min(BLOCK_BYTES.into());
    len > 0 && u64::from(block.len) == len
}

/// Decides whether an unreferenced object is removed.
struct Sweeper {
    delete: bool,
    grace: Duration,
    /// Objects with this slice number or a higher one are kept. This is the lowest number that a live session
    /// can still refer to, and at most the next number to be allocated. An object with a number that was
    /// never allocated belongs to another history of the volume, e.g. to the time before a backup of the
    /// database was restored.
    below: SliceId,
    mounted: bool,
}

impl Sweeper {
    fn sweep(
        &self,
        store: &BlockStore,
        Stray { block, of_used_slice }: &Stray,
        found: &mut Found,
    ) -> Result<(), ChunkError> {
        // While the volume is mounted, an object of unknown age counts as young, because a mount could have
        // just written it.
        let old = age(store, block)?.map_or(!self.mounted, |age| age >= self.grace);
        let size = u64::from(block.block) * u64::from(BLOCK_BYTES) + u64::from(block.len);
        let size = u32::try_from(size).ok().filter(|_| block.id < self.below && !of_used_slice);
        let Some(size) = size.filter(|_| old) else {
            found.kept += 1;
            return Ok(());
        };
        found.objects += 1;
        found.object_bytes += u64::from(block.len);
        if self.delete { store.delete_slice(block.id, size) } else { Ok(()) }
    }
}

/// The age of an object, if the store reports it.
fn age(store: &BlockStore, block: &StoredBlock) -> Result<Option<Duration>, ChunkError> {
    // An object with a time in the future gets age 0.
    let since = |written| SystemTime::now().duration_since(written).unwrap_or_default();
    Ok(store.modified(block)?.map(since))
}

impl Found {
    fn to_text(&self, args: &GcArgs, mounted: bool, may_change: bool) -> String {
        let mut table = Table::default();
        if mounted {
            table.row("mounted", "yes: objects that its mounts may need are kept");
        }
        table.row("sessions", format!("{} whose process no longer exists", self.sessions));
        table.row("unlinked files", format!("{} left open by such sessions", self.orphans));
        let sized = |count: u64, bytes: u64| format!("{count}, {}", show_size(bytes));
        table.row("slices", format!("{} that files no longer use", sized(self.garbage, self.garbage_bytes)));
        table.row("objects", format!("{} that nothing refers to", sized(self.objects, self.object_bytes)));
        if self.kept > 0 {
            table.row("", format!(
                    "{} more are kept: younger than --grace, possibly needed by a mount, or with a slice number that the volume \
                     has not allocated (e.g. after its database was restored from a backup)",
                    self.kept
                ));
        }
        let AclCounts { stored, unused, dropped } = self.acls;
        table.row("ACLs", format!("{unused} of {stored} that nothing refers to"));
        if args.delete && unused > dropped {
            let unknown = "they are in use again, or this command cannot change the volume";
            let why = self.acls_kept.as_deref().unwrap_or(unknown);
            table.row("", format!("{} of them are kept: {why}", unused - dropped));
        }
        let all = self.garbage + self.objects + self.orphans + self.sessions + unused;
        let verdict = match (args.delete, all) {
            (_, 0) => "There is nothing to remove.\n",
            (true, _) if !may_change => {
                "The objects were removed, except what is kept. Another process has the volume exclusively, so \
                 only that can remove the rest; a mount does so in the background.\n"
            }
            (true, _) => "All of this was removed, except what is kept.\n",
            (false, _) => "Nothing was removed; use --delete to remove it.\n",
        };
        table.render() + verdict
    }

    fn to_json(&self, args: &GcArgs, volume: &Volume, may_change: bool) -> serde_json::Value {
        json!({
            "volume": volume.name,
            "deleted": args.delete,
            "deleted_records": args.delete && may_change,
            "sessions": self.sessions,
            "orphans": self.orphans,
            "garbage": { "slices": self.garbage, "bytes": self.garbage_bytes },
            "unreferenced": { "objects": self.objects, "bytes": self.object_bytes },
            "kept_objects": self.kept,
            "acls": { "stored": self.acls.stored, "unused": self.acls.unused, "removed": self.acls.dropped },
        })
    }
}
