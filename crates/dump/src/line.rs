//! The lines of a dump: one record each, as JSON. To add a kind of record, add a variant of [`Line`], the
//! code that writes it (`records.rs`), and an arm of [`Line::effects`].

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use meta::{Counter, Effect, Inode, Quota, QuotaKey, QuotaRule, QuotaState, QuotaTag};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use types::{
    AclId, CHUNK_BYTES, ChunkIndex, FileType, Ino, Mode, Name, QuotaId, Slice, SliceId, SliceSource, Time,
    XattrName,
};

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// The first line.
    Dump(FirstLine),
    Setting {
        name: String,
        value: String,
    },
    /// The next number that the counter gives out.
    Counter {
        name: String,
        next: u64,
    },
    /// An ACL in its storage form, under its id in hexadecimal.
    Acl {
        id: String,
        text: String,
    },
    Inode(Box<InodeLine>),
    Xattr {
        ino: u64,
        name: Bytes,
        value: Bytes,
    },
    /// The target of a symlink.
    Symlink {
        ino: u64,
        target: Bytes,
    },
    /// Rows of a chunk, oldest first. If there are many rows, or they have much data, the chunk has several
    /// such lines.
    Rows {
        ino: u64,
        chunk: u64,
        rows: Vec<RowLine>,
    },
    /// A directory entry.
    Entry {
        dir: u64,
        name: Bytes,
        ino: u64,
        kind: TypeName,
    },
    /// A slice that more than one row refers to. `rows` is the number of rows beyond the first. A slice with
    /// many rows has several such lines, whose numbers add up.
    Shared {
        slice: u64,
        rows: u64,
    },
    /// A quota, with the usage of the inodes in the dump.
    Quota(QuotaLine),
    /// The last line.
    End(LastLine),
}

/// The version and the identity of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstLine {
    /// [`VERSION`](crate::VERSION) of the limen that wrote it.
    pub version: u32,
    /// Random; different for each dump.
    pub id: String,
    /// Nanoseconds since 1970.
    pub created: i64,
}

/// The totals by which a reader sees that a dump is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastLine {
    /// The number of lines before this one.
    pub lines: u64,
    pub inodes: u64,
    /// CRC-32C of all bytes before this line.
    pub checksum: u32,
}

/// An inode, with the fields of [`Inode`]; times are nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InodeLine {
    pub ino: u64,
    kind: TypeName,
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    nlink: u32,
    size: u64,
    atime: i64,
    mtime: i64,
    ctime: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access_acl: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default_acl: Option<String>,
    parent: u64,
    access_rev: u64,
    xattr_blocks: u16,
    /// The directory quota in which the inode counts; 0 if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    quota: u64,
    /// Whether the inode counts in the quotas of its owner and group.
    #[serde(default, skip_serializing_if = "is_false")]
    owner_quotas: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A quota, with the fields of [`QuotaRule`]. A limit that is not given does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaLine {
    of: QuotaOf,
    /// The number of a directory quota, the uid or the gid.
    id: u64,
    inodes: i64,
    blocks: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    outer: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_inodes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_blocks: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    soft_inodes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    soft_blocks: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    root: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    state: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum QuotaOf {
    Directory,
    User,
    Group,
}

impl QuotaLine {
    pub(crate) fn new(key: QuotaKey, quota: &Quota) -> QuotaLine {
        let (of, id) = match key {
            QuotaKey::Directory(id) => (QuotaOf::Directory, id.0),
            QuotaKey::User(uid) => (QuotaOf::User, uid.into()),
            QuotaKey::Group(gid) => (QuotaOf::Group, gid.into()),
        };
        let Quota { inodes, blocks, rule } = *quota;
        let limit = |limit: u64| (limit != QuotaRule::NO_LIMIT).then_some(limit);
        QuotaLine {
            of,
            id,
            inodes,
            blocks,
            outer: rule.outer.0,
            max_inodes: limit(rule.max_inodes),
            max_blocks: limit(rule.max_blocks),
            soft_inodes: limit(rule.soft_inodes),
            soft_blocks: limit(rule.soft_blocks),
            root: rule.root.0,
            state: rule.state.to_number().into(),
        }
    }

    /// # Errors
    /// The number is too large.
    pub(crate) fn key(&self) -> Result<QuotaKey, String> {
        let owner = |id: u64| u32::try_from(id).map_err(|_| format!("there is no user or group {id}"));
        Ok(match self.of {
            QuotaOf::Directory => QuotaKey::Directory(quota_id(self.id)?),
            QuotaOf::User => QuotaKey::User(owner(self.id)?),
            QuotaOf::Group => QuotaKey::Group(owner(self.id)?),
        })
    }

    fn effects(&self) -> Result<Vec<Effect>, String> {
        let key = self.key()?;
        let limit = |limit: Option<u64>| limit.map_or(Ok(QuotaRule::NO_LIMIT), number);
        let state = u8::try_from(self.state).ok().and_then(QuotaState::from_number);
        // Name every field, so that a new field cannot be forgotten here.
        let rule = QuotaRule {
            outer: quota_id(self.outer)?,
            max_inodes: limit(self.max_inodes)?,
            max_blocks: limit(self.max_blocks)?,
            soft_inodes: limit(self.soft_inodes)?,
            soft_blocks: limit(self.soft_blocks)?,
            root: Ino(number(self.root)?),
            state: state.ok_or("a quota has an unknown state")?,
        };
        let (inodes, blocks) = (self.inodes, self.blocks);
        Ok(vec![Effect::PutQuota { key, rule }, Effect::Charge { key, inodes, blocks }])
    }
}

/// Returns the id of a directory quota if every engine can store it. An inode's record stores the id and a
/// flag in one number ([`QuotaTag`]), so the id has one bit less than other numbers.
fn quota_id(id: u64) -> Result<QuotaId, String> {
    if id <= i64::MAX as u64 >> 1 { Ok(QuotaId(id)) } else { Err(format!("the number {id} is too large")) }
}

/// The `len` bytes from `pos` on in a chunk. They are `data`, or come from `slice`, or are zeros if neither
/// is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowLine {
    pos: u32,
    len: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice: Option<SlicePart>,
}

/// The bytes of a slice from `offset` on; the slice has `size` bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlicePart {
    pub id: u64,
    offset: u32,
    size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeName {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

/// Bytes, written as text if they are UTF-8 and do not begin with [`BASE64`], else as [`BASE64`] and their
/// base64.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Arc<[u8]>);

const BASE64: &str = "base64:";

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with(BASE64) => serializer.serialize_str(text),
            _ => serializer.serialize_str(&format!("{BASE64}{}", BASE64_STANDARD.encode(&self.0))),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.strip_prefix(BASE64) {
            Some(code) => {
                let bytes = BASE64_STANDARD.decode(code).map_err(serde::de::Error::custom)?;
                Ok(Bytes(bytes.into()))
            }
            None => Ok(Bytes(text.into_bytes().into())),
        }
    }
}

/// The kinds of inodes in a dump, with their file types.
const KINDS: [(TypeName, FileType); 7] = [
    (TypeName::Fifo, FileType::Fifo),
    (TypeName::CharDevice, FileType::CharDevice),
    (TypeName::Directory, FileType::Directory),
    (TypeName::BlockDevice, FileType::BlockDevice),
    (TypeName::Regular, FileType::Regular),
    (TypeName::Symlink, FileType::Symlink),
    (TypeName::Socket, FileType::Socket),
];

impl From<FileType> for TypeName {
    fn from(kind: FileType) -> TypeName {
        KINDS.into_iter().find(|(_, of)| *of == kind).map_or(TypeName::Regular, |(kind, _)| kind)
    }
}

impl From<TypeName> for FileType {
    fn from(kind: TypeName) -> FileType {
        KINDS.into_iter().find(|(of, _)| *of == kind).map_or(FileType::Regular, |(_, kind)| kind)
    }
}

impl From<&Inode> for InodeLine {
    fn from(inode: &Inode) -> Self {
        let acl = |id: AclId| (!id.is_none()).then(|| acl_text(id));
        InodeLine {
            ino: inode.ino.0,
            kind: inode.kind.into(),
            mode: inode.mode.bits(),
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            nlink: inode.nlink,
            // The size field of a directory may name the session that holds it. In the loaded volume there is
            // no such session.
            size: inode.shown_size(),
            atime: inode.atime.nanos(),
            mtime: inode.mtime.nanos(),
            ctime: inode.ctime.nanos(),
            access_acl: acl(inode.access_acl),
            default_acl: acl(inode.default_acl),
            parent: inode.parent.0,
            access_rev: inode.access_rev,
            xattr_blocks: inode.xattr_blocks,
            quota: inode.quota.directory().0,
            owner_quotas: inode.quota.owners(),
        }
    }
}

impl From<&Slice> for RowLine {
    fn from(slice: &Slice) -> Self {
        let (data, stored) = match &slice.source {
            SliceSource::Hole => (None, None),
            SliceSource::Inline(data) => (Some(Bytes(Arc::clone(data))), None),
            SliceSource::Blocks { id, offset, size } => {
                (None, Some(SlicePart { id: id.0, offset: *offset, size: *size }))
            }
        };
        RowLine { pos: slice.pos, len: slice.len, data, slice: stored }
    }
}

impl RowLine {
    /// The number of bytes of data in the row itself.
    pub(crate) fn bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.0.len())
    }

    fn slice(&self) -> Result<Slice, String> {
        let RowLine { pos, len, data, slice } = self;
        short(data.as_ref().map_or(&[], |data| &data.0), MAX_VALUE_BYTES, "the data in a row of a chunk")?;
        let source = match (data, slice) {
            (None, None) => SliceSource::Hole,
            (Some(data), None) if data.0.len() == *len as usize => SliceSource::Inline(Arc::clone(&data.0)),
            (None, Some(SlicePart { id, offset, size })) => {
                SliceSource::Blocks { id: SliceId(number(*id)?), offset: *offset, size: *size }
            }
            _ => return Err("a row of a chunk is malformed".to_owned()),
        };
        if u64::from(*pos) + u64::from(*len) > CHUNK_BYTES {
            return Err("a row exceeds its chunk".to_owned());
        }
        Ok(Slice { pos: *pos, len: *len, source })
    }
}

impl InodeLine {
    /// # Errors
    /// A field has a value that no engine can store; the text says which.
    pub(crate) fn inode(&self) -> Result<Inode, String> {
        let acl = |text: &Option<String>| text.as_deref().map_or(Ok(AclId::NONE), acl_id);
        if self.mode > 0o7777 {
            return Err(format!("inode {} has an invalid mode", self.ino));
        }
        // Name every field, so that a new field cannot be forgotten here.
        Ok(Inode {
            ino: Ino(number(self.ino)?),
            kind: self.kind.into(),
            mode: Mode::new(self.mode),
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            nlink: self.nlink,
            size: number(self.size)?,
            atime: Time::from_nanos(self.atime),
            mtime: Time::from_nanos(self.mtime),
            ctime: Time::from_nanos(self.ctime),
            access_acl: acl(&self.access_acl)?,
            default_acl: acl(&self.default_acl)?,
            parent: Ino(number(self.parent)?),
            access_rev: number(self.access_rev)?,
            xattr_blocks: self.xattr_blocks,
            quota: QuotaTag::new(quota_id(self.quota)?, self.owner_quotas),
        })
    }
}

impl Line {
    /// The effects that store the record. Settings and counters have none here, because a load stores them
    /// last, in one transaction, and only then does the volume exist.
    ///
    /// # Errors
    /// The record is invalid; the text says how.
    pub(crate) fn effects(&self) -> Result<Vec<Effect>, String> {
        Ok(match self {
            Line::Dump(_) | Line::End(_) | Line::Setting { .. } => Vec::new(),
            Line::Counter { name, next } => {
                counter(name)?;
                number(*next)?;
                Vec::new()
            }
            Line::Acl { id, text } => {
                short(text.as_bytes(), MAX_ACL_BYTES, "an ACL")?;
                vec![Effect::PutAcl { id: acl_id(id)?, text: text.as_str().into() }]
            }
            Line::Inode(inode) => vec![Effect::PutInode(inode.inode()?)],
            Line::Xattr { ino, name, value } => {
                short(&value.0, MAX_VALUE_BYTES, "the value of an extended attribute")?;
                let name = XattrName::new(&name.0).map_err(|error| error.to_string())?;
                vec![Effect::PutXattr { ino: Ino(number(*ino)?), name, value: Arc::clone(&value.0) }]
            }
            Line::Symlink { ino, target } => {
                short(&target.0, MAX_TARGET_BYTES, "the target of a symlink")?;
                vec![Effect::PutSymlink { ino: Ino(number(*ino)?), target: Arc::clone(&target.0) }]
            }
            Line::Rows { ino, chunk, rows } => {
                if rows.len() > MAX_ROWS {
                    return Err(format!("a line of inode {ino} has more than {MAX_ROWS} rows"));
                }
                let (ino, chunk) = (Ino(number(*ino)?), ChunkIndex(number(*chunk)?));
                let append = |row: &RowLine| Ok(Effect::AppendSlice { ino, chunk, slice: row.slice()? });
                rows.iter().map(append).collect::<Result<_, String>>()?
            }
            Line::Entry { dir, name, ino, kind } => {
                let name = Name::new(&name.0).map_err(|error| error.to_string())?;
                let (parent, ino) = (Ino(number(*dir)?), Ino(number(*ino)?));
                vec![Effect::PutDirent { parent, name, ino, kind: (*kind).into() }]
            }
            Line::Quota(quota) => quota.effects()?,
            Line::Shared { slice, rows } => {
                let slice = SliceId(number(*slice)?);
                let rows = u32::try_from(*rows).ok().filter(|rows| *rows <= MAX_SHARES);
                vec![Effect::Share { slice, rows: rows.ok_or("a slice has too many rows")? }]
            }
        })
    }
}

impl Line {
    /// The slices in the object store that the rows of the line refer to.
    pub(crate) fn slices(&self) -> impl Iterator<Item = SliceId> {
        let rows = if let Line::Rows { rows, .. } = self { &rows[..] } else { &[] };
        rows.iter().filter_map(|row| row.slice.as_ref().map(|slice| SliceId(slice.id)))
    }
}

/// The maximum size of the value of an extended attribute (`XATTR_SIZE_MAX`, limits.h), and of the data in a
/// row.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// The maximum length of the target of a symlink: `PATH_MAX` without the last byte.
const MAX_TARGET_BYTES: usize = 4095;
/// The maximum length of an ACL in its storage form.
const MAX_ACL_BYTES: usize = 1 << 20;

/// # Errors
/// `bytes` is longer than `most`.
fn short(bytes: &[u8], most: usize, what: &str) -> Result<(), String> {
    if bytes.len() <= most { Ok(()) } else { Err(format!("{what} is longer than {most} bytes")) }
}

/// The maximum number of rows of a line. It is small because a load stores all rows of a line in one
/// transaction.
pub(crate) const MAX_ROWS: usize = 16;

/// The maximum number of rows of a [`Line::Shared`]. It is small because older versions load such a line as
/// one transaction with an effect for each row.
pub(crate) const MAX_SHARES: u32 = 16;

/// The counter with this name.
pub(crate) fn counter(name: &str) -> Result<Counter, String> {
    let found = Counter::ALL.into_iter().find(|counter| counter.name() == name);
    found.ok_or_else(|| format!("unknown counter '{name}'"))
}

/// Returns `number` if every engine can store it.
fn number(number: u64) -> Result<u64, String> {
    match i64::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => Err(format!("the number {number} is too large")),
    }
}

pub(crate) fn acl_text(id: AclId) -> String {
    id.to_string()
}

fn acl_id(text: &str) -> Result<AclId, String> {
    let id = if text.len() == 32 { u128::from_str_radix(text, 16).ok() } else { None };
    id.map(AclId).ok_or_else(|| format!("'{text}' is not the id of an ACL"))
}
