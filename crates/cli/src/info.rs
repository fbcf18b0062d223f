//! `limen info`: how a file is stored. The file is found by its device and inode numbers, and its records are
//! read directly from the volume's database.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use chunk::object_key;
use clap::ValueHint;
use command::fault::{Fault, OrFault};
use command::output::{self, Table};
use command::paths;
use inspect::Domains;
use meta::{Engine, EngineError, Inode, Record, RecordKey};
use serde_json::{Value, json};
use types::{AclId, BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, FileType, Ino, Slice, SliceSource};

use crate::modes::kind_name;
use crate::target::volume_behind;
use crate::url::Database;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen info /mnt/report.pdf")]
pub(crate) struct InfoArgs {
    /// Files or directories on a mounted volume
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Print JSON, an array with an object for each path
    #[arg(long)]
    json: bool,
}

/// At most this many chunks of a file are shown (16 GiB), because a sparse file can have very many.
const MAX_CHUNKS: u64 = 256;

pub(crate) fn run(args: &InfoArgs) -> Result<(), Fault> {
    let mut open: HashMap<u64, (String, Database)> = HashMap::new();
    let mut values = Vec::with_capacity(args.paths.len());
    for path in &args.paths {
        let metadata = fs::symlink_metadata(path).at(path.display())?;
        let device = metadata.dev();
        let (volume, database) = match open.entry(device) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let (database, volume) = volume_behind(path, device)?;
                place.insert((volume.name, database))
            }
        };
        if metadata.is_file() {
            // fsync(2) stores the data that the mount still buffers, so that it is shown. Without read
            // permission fsync(2) is not possible, and only data that is already stored is shown.
            let _ = File::open(path).and_then(|file| file.sync_all());
        }
        let engine = database.engine();
        let found = Details::read(&*engine, Ino(metadata.ino())).at(path.display())?;
        let parent = parent(path, &metadata, &found.inode);
        match args.json {
            true => values.push(found.to_json(path, volume, parent)),
            false => output::print(&found.to_text(path, volume, parent))?,
        }
    }
    if args.json { output::print_json(&Value::Array(values)) } else { Ok(()) }
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

    fn to_text(&self, path: &Path, volume: &str, parent: Option<u64>) -> String {
        let inode = &self.inode;
        let mut table = Table::default();
        table.row("volume", volume);
        table.row("inode", inode.ino);
        table.row("type", kind_name(inode.kind));
        table.row("mode", inode.mode);
        table.row("owner", format!("{}:{}", inode.uid, inode.gid));
        table.row("links", inode.nlink);
        table.row("size", inode.size);
        table.row("modified", inode.mtime);
        table.row("changed", inode.ctime);
        table.row("parent", parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()));
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
                    table.row("", format!("    {key}"));
                }
            }
        }
        if self.unread > 0 {
            table.row("chunks", format!("{} more are not shown", self.unread));
        }
        format!("{}\n{}", path.display(), indent(&table.render()))
    }

    fn to_json(&self, path: &Path, volume: &str, parent: Option<u64>) -> Value {
        let inode = &self.inode;
        let acl = |id: AclId| {
            self.acl(id)
                .map(|text| json!({ "id": id.to_string(), "entries": text.lines().collect::<Vec<_>>() }))
        };
        let slice = |slice: &Slice| {
            let mut value =
                json!({ "pos": slice.pos, "len": slice.len, "source": source_name(&slice.source) });
            if let SliceSource::Blocks { id, offset, size } = slice.source {
                value["slice"] = json!({ "id": id.0, "offset": offset, "size": size });
                value["objects"] = objects(slice).collect();
            }
            value
        };
        let chunk = |(index, rows): &(ChunkIndex, Vec<Slice>)| json!({ "index": index.0, "slices": rows.iter().map(slice).collect::<Vec<_>>() });
        json!({
            "path": path.to_string_lossy(),
            "volume": volume,
            "inode": inode.ino.0,
            "type": kind_name(inode.kind),
            "mode": inode.mode.to_string(),
            "uid": inode.uid,
            "gid": inode.gid,
            "links": inode.nlink,
            "size": inode.size,
            "rdev": inode.rdev,
            "atime_ns": inode.atime.nanos(),
            "mtime_ns": inode.mtime.nanos(),
            "ctime_ns": inode.ctime.nanos(),
            "parent": parent,
            "access_acl": acl(inode.access_acl),
            "default_acl": acl(inode.default_acl),
            "chunks": self.chunks.iter().map(chunk).collect::<Vec<_>>(),
            "chunks_not_shown": self.unread,
        })
    }
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

fn source_text(source: &SliceSource) -> String {
    match source {
        SliceSource::Hole => "a hole".to_owned(),
        SliceSource::Inline(_) => "in the metadata".to_owned(),
        SliceSource::Blocks { id, offset, size } => format!("slice {id}, from {offset} of {size} bytes"),
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
