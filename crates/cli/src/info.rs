//! `limen info`: how a file is stored, and how much is in a directory. A file on a mount is found by its
//! device and inode numbers. The records are read directly from the volume's database.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use chunk::{bucket_of, object_key};
use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::output::{self, Table};
use command::paths;
use command::units::show_size;
use inspect::Domains;
use meta::{Engine, EngineError, Inode, Record, RecordKey, Scan, ScanInclude, Volume};
use serde_json::{Value, json};
use types::{AclId, BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, FileType, Ino, Slice, SliceSource, counted};

use crate::bucket::store_of;
use crate::modes::kind_name;
use crate::summary::{self, Sum};
use crate::target::{Target, volume_behind};
use crate::url::Database;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
For a directory, the entries in it are counted; --recursive counts all that is below it. Totals that the volume or a quota
counts anyway are always shown.

Examples:
  limen info /mnt/report.pdf
  limen info --recursive /mnt/project
  limen info --inode 4711 sqlite:///var/lib/limen/home.db
      the inode with a number that a log or limen fsck names")]
pub(crate) struct InfoArgs {
    /// Files or directories on a mounted volume, or META-URL:/PATH; with --inode, a path on the volume or
    /// META-URL
    #[arg(required = true, value_name = "PATH|META-URL", value_hint = ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Show the inode with this number instead of that of the path; can be repeated
    #[arg(long, value_name = "N")]
    inode: Vec<u64>,
    /// Count all that is below a directory
    #[arg(short, long)]
    recursive: bool,
    /// Print JSON, an array with an object for each path or inode
    #[arg(long)]
    json: bool,
}

/// At most this many chunks of a file are shown (16 GiB), because a sparse file can have very many.
const MAX_CHUNKS: u64 = 256;

/// Entries of a directory that are read at a time.
const PAGE: usize = 1024;

pub(crate) fn run(args: &InfoArgs) -> Result<(), CliError> {
    let mut shower = Shower { args, values: Vec::new() };
    let mut open: HashMap<u64, (Volume, Database)> = HashMap::new();
    for text in &args.paths {
        let target = Target::parse(text)?;
        if let (Target::Local(path), true) = (&target, args.inode.is_empty()) {
            let metadata = fs::symlink_metadata(path).at(target.show())?;
            let device = metadata.dev();
            let (volume, database) = match open.entry(device) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let (database, volume) = volume_behind(path, device)?;
                    place.insert((volume, database))
                }
            };
            if metadata.is_file() {
                // fsync(2) stores the data that the mount still buffers, so that it is shown. Without read
                // permission fsync(2) is not possible, and only data that is already stored is shown.
                let _ = File::open(path).and_then(|file| file.sync_all());
            }
            let parent = |inode: &Inode| parent(path, &metadata, inode);
            let engine = database.engine();
            let raw = path.to_string_lossy().into_owned();
            shower.show(&*engine, volume, [target.show(), raw], Ino(metadata.ino()), parent)?;
            continue;
        }
        let (database, volume, ino) = target.open()?;
        let engine = database.engine();
        let above = |inode: &Inode| inode.kind.is_dir().then_some(inode.parent.0);
        if args.inode.is_empty() {
            shower.show(&*engine, &volume, [target.show(), target.show()], ino, above)?;
        }
        for number in &args.inode {
            let shown = format!("inode {number} of {}", target.show());
            shower.show(&*engine, &volume, [shown, target.show()], Ino(*number), above)?;
        }
    }
    if args.json { output::print_json(&Value::Array(shower.values)) } else { Ok(()) }
}

/// Prints inodes one after another, or collects them as JSON.
struct Shower<'a> {
    args: &'a InfoArgs,
    values: Vec<Value>,
}

impl Shower<'_> {
    /// Shows an inode. The names are its path as text for people, and its unescaped path for JSON.
    fn show(
        &mut self,
        engine: &dyn Engine,
        volume: &Volume,
        [shown, raw]: [String; 2],
        ino: Ino,
        parent: impl FnOnce(&Inode) -> Option<u64>,
    ) -> Result<(), CliError> {
        let found = Details::read(engine, ino).at(&shown)?;
        let parent = parent(&found.inode);
        let totals = match found.inode.kind.is_dir() {
            true => Some(Totals::read(engine, ino, self.args.recursive).at(&shown)?),
            false => None,
        };
        if self.args.json {
            self.values.push(found.to_json(&raw, volume, parent, totals.as_ref()));
            return Ok(());
        }
        output::print(&found.to_text(&shown, volume, parent, totals.as_ref()))
    }
}

/// The numbers of inodes in and below a directory.
#[derive(Debug)]
struct Totals {
    /// Entries that are not directories, and directories.
    entries: (u64, u64),
    /// The totals of the directory and everything below it; `None` if no counter has them and `--recursive`
    /// was not given.
    below: Option<Sum>,
}

impl Totals {
    fn read(engine: &dyn Engine, dir: Ino, recursive: bool) -> Result<Totals, CliError> {
        let (mut files, mut directories) = (0, 0);
        let scan = Scan::Dir { parent: dir, after: None, limit: PAGE, include: ScanInclude::Nothing };
        for page in scan.pages(|scan| engine.scan(scan)) {
            for record in page? {
                let Record::Dirent(_, _, Some(dirent)) = record else { continue };
                let count = if dirent.kind.is_dir() { &mut directories } else { &mut files };
                *count += 1;
            }
        }
        Ok(Totals { entries: (files, directories), below: summary::sum(engine, dir, recursive)? })
    }

    fn rows(&self, table: &mut Table) {
        let (files, directories) = self.entries;
        table.row("entries", files_then_directories(files, directories));
        let Some(sum) = &self.below else { return };
        let kinds = match (sum.apart(sum.files), sum.apart(sum.directories)) {
            (Some(files), Some(directories)) => format!(" ({})", files_then_directories(files, directories)),
            _ => String::new(),
        };
        table.row(
            "in all",
            format!("{}, {}{kinds}", show_size(sum.bytes()), counted(sum.inodes, "inode", "inodes")),
        );
    }

    fn to_json(&self) -> Value {
        let (files, directories) = self.entries;
        json!({ "files": files, "directories": directories, "in_all": self.below.map(Sum::to_json) })
    }
}

/// The inode number of the directory that contains `path`.
fn parent(path: &Path, metadata: &Metadata, inode: &Inode) -> Option<u64> {
    if inode.kind.is_dir() {
        return Some(inode.parent.0);
    }
    let parent = fs::symlink_metadata(paths::mountpoint(path).ok()?.parent()?).ok()?;
    (parent.dev() == metadata.dev()).then(|| parent.ino())
}

/// A stored ACL as text. Both ACL families are tried, because no text is a valid stored form of both.
fn acl_text(stored: &str, domains: &Domains, engine: &dyn Engine) -> Result<String, EngineError> {
    let error = match PosixAcl::from_storage(stored) {
        Ok(acl) => return Ok(acl.to_long_text()),
        Err(error) => error,
    };
    match Nfs4Acl::from_storage(stored) {
        Ok(acl) => {
            let domains = domains.up_to(acl.highest_domain(), engine)?;
            Ok(acl.by_sid(&domains).to_string())
        }
        Err(_) => Ok(format!("damaged: {error}")),
    }
}

/// The records of an inode.
#[derive(Debug)]
struct Details {
    inode: Inode,
    acls: HashMap<AclId, String>,
    chunks: Vec<(ChunkIndex, Vec<Slice>)>,
    /// The number of chunks beyond [`MAX_CHUNKS`], which are not read.
    unread: u64,
}

impl Details {
    fn read(engine: &dyn Engine, ino: Ino) -> Result<Self, EngineError> {
        let mut inode = None;
        let mut acls = HashMap::new();
        let domains = Domains::default();
        for record in engine.read(&[RecordKey::Inode(ino)])?.records {
            match record {
                Record::Inode(_, found) => inode = found,
                Record::Acl(id, Some(text)) => {
                    acls.insert(id, acl_text(&text, &domains, engine)?);
                }
                _ => {}
            }
        }
        let Some(inode) = inode else {
            return Err(EngineError::permanent(format!("inode {ino} no longer exists in the volume")));
        };
        let all = if inode.kind == FileType::Regular { inode.size.div_ceil(CHUNK_BYTES) } else { 0 };
        let keys: Vec<RecordKey> =
            (0..all.min(MAX_CHUNKS)).map(|index| RecordKey::Slices(ino, ChunkIndex(index))).collect();
        let mut chunks = Vec::new();
        if !keys.is_empty() {
            for record in engine.read(&keys)?.records {
                if let Record::Slices(_, index, rows) = record
                    && !rows.is_empty()
                {
                    chunks.push((index, rows.to_vec()));
                }
            }
        }
        Ok(Details { inode, acls, chunks, unread: all.saturating_sub(MAX_CHUNKS) })
    }

    fn acl(&self, id: AclId) -> Option<&str> {
        if id.is_none() {
            return None;
        }
        Some(self.acls.get(&id).map_or("missing from the database", String::as_str))
    }

    fn to_text(&self, path: &str, volume: &Volume, parent: Option<u64>, totals: Option<&Totals>) -> String {
        let inode = &self.inode;
        let buckets = several_buckets(volume);
        let mut table = Table::default();
        table.row("volume", &volume.name);
        table.row("inode", inode.ino);
        table.row("type", kind_name(inode.kind));
        table.row("mode", inode.mode);
        table.row("owner", format!("{}:{}", inode.uid, inode.gid));
        table.row("links", inode.nlink);
        table.row("size", inode.shown_size());
        table.row("modified", inode.mtime);
        table.row("changed", inode.ctime);
        table.row("parent", parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()));
        if let Some(totals) = totals {
            totals.rows(&mut table);
        }
        for (label, id) in [("access ACL", inode.access_acl), ("default ACL", inode.default_acl)] {
            if let Some(text) = self.acl(id) {
                table.row(label, format!("{} ({id})", text.trim_end().replace('\n', ",")));
            }
        }
        for (chunk, rows) in &self.chunks {
            for slice in rows {
                let place = format!("{}+{}", chunk.start() + u64::from(slice.pos), slice.len);
                table.row(format!("chunk {chunk}"), format!("{place}  {}", source_text(&slice.source)));
                for key in objects(slice) {
                    let bucket =
                        bucket_of(&buckets, &key).map_or_else(String::new, |bucket| format!(" in {bucket}"));
                    table.row("", format!("    {key}{bucket}"));
                }
            }
        }
        if self.unread > 0 {
            table.row("chunks", format!("{} more are not shown", self.unread));
        }
        format!("{path}\n{}", indent(&table.render()))
    }

    fn to_json(&self, path: &str, volume: &Volume, parent: Option<u64>, totals: Option<&Totals>) -> Value {
        let inode = &self.inode;
        let acl = |id: AclId| {
            self.acl(id)
                .map(|text| json!({ "id": id.to_string(), "entries": text.lines().collect::<Vec<_>>() }))
        };
        let buckets = several_buckets(volume);
        let slice = |slice: &Slice| {
            let mut value =
                json!({ "pos": slice.pos, "len": slice.len, "source": source_name(&slice.source) });
            if let SliceSource::Blocks { id, offset, size } = slice.source {
                value["slice"] = json!({ "id": id.0, "offset": offset, "size": size });
                value["objects"] = objects(slice).collect();
                if !buckets.is_empty() {
                    value["buckets"] =
                        objects(slice).map(|key| bucket_of(&buckets, &key).map(str::to_owned)).collect();
                }
            }
            value
        };
        let chunk = |(index, rows): &(ChunkIndex, Vec<Slice>)| json!({ "index": index.0, "slices": rows.iter().map(slice).collect::<Vec<_>>() });
        json!({
            "path": path,
            "volume": volume.name,
            "inode": inode.ino.0,
            "type": kind_name(inode.kind),
            "mode": inode.mode.to_string(),
            "uid": inode.uid,
            "gid": inode.gid,
            "links": inode.nlink,
            "size": inode.shown_size(),
            "rdev": inode.rdev,
            "atime_ns": inode.atime.nanos(),
            "mtime_ns": inode.mtime.nanos(),
            "ctime_ns": inode.ctime.nanos(),
            "parent": parent,
            "entries": totals.map(Totals::to_json),
            "access_acl": acl(inode.access_acl),
            "default_acl": acl(inode.default_acl),
            "chunks": self.chunks.iter().map(chunk).collect::<Vec<_>>(),
            "chunks_not_shown": self.unread,
        })
    }
}

/// The buckets of a volume with several buckets; otherwise empty.
fn several_buckets(volume: &Volume) -> Vec<String> {
    store_of(volume).buckets().ok().filter(|buckets| buckets.len() > 1).unwrap_or_default()
}

/// The keys of the objects that hold the data of a row.
fn objects(slice: &Slice) -> impl Iterator<Item = String> {
    let (id, offset, size) = match slice.source {
        SliceSource::Blocks { id, offset, size } if slice.len > 0 => (id, offset, size),
        _ => (Default::default(), 0, 0),
    };
    let end = u64::from(offset) + u64::from(slice.len);
    let first = offset / BLOCK_BYTES;
    let last = if size == 0 { 0 } else { end.min(size.into()).div_ceil(BLOCK_BYTES.into()) as u32 };
    (first..last).map(move |block| object_key(id, block, BLOCK_BYTES.min(size - block * BLOCK_BYTES)))
}

fn source_name(source: &SliceSource) -> &'static str {
    match source {
        SliceSource::Hole => "hole",
        SliceSource::Inline(_) => "inline",
        SliceSource::Blocks { .. } => "blocks",
    }
}

fn files_then_directories(files: u64, directories: u64) -> String {
    format!("{}, {}", counted(files, "file", "files"), counted(directories, "directory", "directories"))
}

fn source_text(source: &SliceSource) -> String {
    match source {
        SliceSource::Hole => "a hole".to_owned(),
        SliceSource::Inline(_) => "in the metadata".to_owned(),
        SliceSource::Blocks { id, offset, size } => {
            format!("slice {id}, from {offset} of {}", counted(*size, "byte", "bytes"))
        }
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use types::SliceId;

    use super::*;

    #[test]
    fn objects_of_a_row_cover_only_its_range() {
        let keys = |len, offset, size| {
            let source = SliceSource::Blocks { id: SliceId(7), offset, size };
            objects(&Slice { pos: 0, len, source }).collect::<Vec<_>>()
        };
        let size = 2 * BLOCK_BYTES + 10;
        assert_eq!(keys(size, 0, size).len(), 3);
        assert_eq!(keys(1, BLOCK_BYTES, size), [object_key(SliceId(7), 1, BLOCK_BYTES)]);
        assert_eq!(keys(10, 2 * BLOCK_BYTES, size), [object_key(SliceId(7), 2, 10)]);
        assert_eq!(keys(0, 0, size).len(), 0);
        assert_eq!(objects(&Slice { pos: 0, len: 9, source: SliceSource::Hole }).count(), 0);
    }
}
