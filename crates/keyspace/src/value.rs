//! The format of values: one byte for the version, then the fields in order.

use std::sync::Arc;

use bytes::Bytes;
use meta::{Dirent, Inode, Invalidation, Lock, LockWait, Quota, QuotaRule, QuotaState, QuotaTag, Session};
use types::{AclId, Ino, Mode, Name, QuotaId, SessionId, Slice, Time};

use crate::form::{Reader, Writer};
use crate::keys::InodeLocation;

/// A key or value that no version of limenfs writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged value: {what}, key {key}")]
pub struct Damaged {
    pub what: &'static str,
    /// In hexadecimal digits.
    pub key: String,
}

impl Damaged {
    pub(crate) fn new(what: &'static str, key: &[u8]) -> Self {
        Damaged { what, key: key.iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

const VERSION: u8 = 1;

/// An inode's own record. The links and times of a directory are not in it: they are stored next to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) inode: Inode,
    /// The number of the next row of the file. It changes with every change of rows, so an unchanged record
    /// shows that the rows are unchanged too.
    pub(crate) rows: u64,
}

/// The value of a dirent; `stored` is the inode if the dirent is its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredDirent {
    pub(crate) dirent: Dirent,
    pub(crate) stored: Option<Stored>,
}

/// The value of an inode's location record: the location, or the inode itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InodeRow {
    At(InodeLocation),
    Here(Stored),
}

/// Numbers of inodes, and of blocks of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) inodes: i64,
    pub(crate) blocks: i64,
}

/// The amounts that one writer has added to the usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageShard {
    pub(crate) used: Amount,
    pub(crate) reservation: Option<Reservation>,
}

/// Space that is reserved for one writer; see the module `reservation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// The shard may grow up to this without a read of the others.
    pub(crate) upto: Amount,
    /// The amount that all shards together do not exceed, as long as none exceeds its reservation.
    pub(crate) within: Amount,
}

/// The log entry of an applied operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its position among the transactions committed by the same write.
    pub index: u8,
    pub invalidations: Vec<Invalidation>,
}

impl Writer {
    pub(crate) fn versioned() -> Self {
        Writer::default().u8(VERSION)
    }

    fn stored(self, stored: &Stored) -> Self {
        let inode = &stored.inode;
        let writer = self
            .u64(inode.ino.0)
            .kind(inode.kind)
            .u32(inode.mode.bits())
            .u32(inode.uid)
            .u32(inode.gid)
            .u32(inode.rdev)
            .u64(inode.size)
            .bytes(&inode.access_acl.to_bytes())
            .bytes(&inode.default_acl.to_bytes())
            .u64(inode.parent.0)
            .u64(inode.access_rev)
            .u16(inode.xattr_blocks)
            .u64(stored.rows);
        let times = [inode.atime, inode.mtime, inode.ctime];
        let writer = match inode.kind.is_dir() {
            true => writer,
            false => times.into_iter().fold(writer.u32(inode.nlink), |writer, time| writer.i64(time.nanos())),
        };
        // Without a tag, the record has the same form as on volumes that are older than quotas.
        if inode.quota == QuotaTag::NONE { writer } else { writer.u64(inode.quota.to_number()) }
    }
}

pub(crate) fn encode_dirent(entry: &StoredDirent) -> Bytes {
    let writer = Writer::versioned().kind(entry.dirent.kind).u64(entry.dirent.ino.0);
    match &entry.stored {
        Some(stored) => writer.stored(stored).done(),
        None => writer.done(),
    }
}

pub(crate) fn encode_inode_row(row: &InodeRow) -> Bytes {
    match row {
        InodeRow::At(InodeLocation::At(parent, name)) => {
            Writer::versioned().u8(b'e').u64(parent.0).bytes(name.as_bytes()).done()
        }
        InodeRow::At(InodeLocation::Here(_)) => Writer::versioned().done(),
        InodeRow::Here(stored) => Writer::versioned().u8(b'n').stored(stored).done(),
    }
}

/// Encodes a time so that the order of the bytes is the order of the times, and a store can compare them.
pub(crate) fn encode_time(time: Time) -> Bytes {
    Writer::versioned().ordered_time(time).done()
}

pub(crate) fn encode_links(nlink: u32, atime: Time) -> Bytes {
    Writer::versioned().u32(nlink).i64(atime.nanos()).done()
}

pub(crate) fn encode_row(slice: &Slice) -> Bytes {
    Writer::versioned().row(slice).done()
}

pub(crate) fn encode_bytes(bytes: &[u8]) -> Bytes {
    Writer::versioned().bytes(bytes).done()
}

pub(crate) fn encode_u64(value: u64) -> Bytes {
    Writer::versioned().u64(value).done()
}

pub(crate) fn encode_shard(shard: UsageShard) -> Bytes {
    let write = |writer: Writer, amount: Amount| writer.i64(amount.inodes).i64(amount.blocks);
    let writer = write(Writer::versioned(), shard.used);
    shard
        .reservation
        .map_or(writer.clone(), |reservation| write(write(writer, reservation.upto), reservation.within))
        .done()
}

pub(crate) fn encode_quota(quota: &Quota) -> Bytes {
    let Quota { inodes, blocks, rule } = quota;
    let writer = Writer::versioned().i64(*inodes).i64(*blocks).u64(rule.outer.0);
    let limits = [rule.max_inodes, rule.max_blocks, rule.soft_inodes, rule.soft_blocks];
    let writer = limits.into_iter().fold(writer, Writer::u64);
    writer.u64(rule.root.0).u8(rule.state.to_number()).done()
}

pub(crate) fn encode_session(session: &Session) -> Bytes {
    Writer::versioned().session(session).done()
}

pub(crate) fn encode_locks(locks: &[Lock]) -> Bytes {
    locks.iter().fold(Writer::versioned(), Writer::lock).done()
}

pub(crate) fn encode_wait(wait: &LockWait) -> Bytes {
    Writer::versioned().u64(wait.ino.0).lock(&wait.lock).done()
}

pub(crate) fn encode_log(index: u8, invalidations: &[Invalidation]) -> Bytes {
    Writer::versioned().u8(index).bytes(&Invalidation::encode(invalidations)).done()
}

impl Reader<'_> {
    fn amount(&mut self) -> Option<Amount> {
        Some(Amount { inodes: self.i64()?, blocks: self.i64()? })
    }

    fn stored(&mut self) -> Option<Stored> {
        let (ino, kind) = (Ino(self.u64()?), self.kind()?);
        let mut inode = Inode {
            ino,
            kind,
            mode: Mode::new(self.u32()?),
            uid: self.u32()?,
            gid: self.u32()?,
            rdev: self.u32()?,
            size: self.u64()?,
            access_acl: AclId::from_bytes(self.chunk()?),
            default_acl: AclId::from_bytes(self.chunk()?),
            parent: Ino(self.u64()?),
            access_rev: self.u64()?,
            xattr_blocks: self.u16()?,
            quota: QuotaTag::NONE,
            nlink: 0,
            atime: Time::MIN,
            mtime: Time::MIN,
            ctime: Time::MIN,
        };
        let rows = self.u64()?;
        if !kind.is_dir() {
            (inode.nlink, inode.atime, inode.mtime, inode.ctime) =
                (self.u32()?, self.time()?, self.time()?, self.time()?);
        }
        if !self.0.is_empty() {
            inode.quota = QuotaTag::from_number(self.u64()?);
        }
        Some(Stored { inode, rows })
    }
}

/// Decodes a whole value; no byte may be left over.
pub(crate) fn decode<T>(
    what: &'static str,
    key: &[u8],
    value: &[u8],
    fields: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, Damaged> {
    let whole = Reader::whole(value, |reader| {
        reader.u8().filter(|&version| version == VERSION)?;
        fields(reader)
    });
    whole.ok_or_else(|| Damaged::new(what, key))
}

pub(crate) fn decode_dirent(key: &[u8], value: &[u8]) -> Result<StoredDirent, Damaged> {
    decode("a directory entry", key, value, |reader| {
        let dirent = Dirent { kind: reader.kind()?, ino: Ino(reader.u64()?) };
        let stored = if reader.0.is_empty() { None } else { Some(reader.stored()?) };
        Some(StoredDirent { dirent, stored })
    })
}

pub(crate) fn decode_inode_row(key: &[u8], value: &[u8]) -> Result<InodeRow, Damaged> {
    decode("the location of an inode", key, value, |reader| match reader.u8()? {
        b'e' => {
            let parent = Ino(reader.u64()?);
            Some(InodeRow::At(InodeLocation::At(parent, Name::new(reader.rest()).ok()?)))
        }
        b'n' => Some(InodeRow::Here(reader.stored()?)),
        _ => None,
    })
}

pub(crate) fn decode_time(key: &[u8], value: &[u8]) -> Result<Time, Damaged> {
    decode("a time", key, value, |reader| reader.ordered_time())
}

pub(crate) fn decode_links(key: &[u8], value: &[u8]) -> Result<(u32, Time), Damaged> {
    decode("links", key, value, |reader| Some((reader.u32()?, reader.time()?)))
}

pub(crate) fn decode_row(key: &[u8], value: &[u8]) -> Result<Slice, Damaged> {
    decode("a row of a file", key, value, |reader| reader.row())
}

pub(crate) fn decode_bytes(key: &[u8], value: &[u8]) -> Result<Arc<[u8]>, Damaged> {
    decode("bytes", key, value, |reader| Some(reader.rest().into()))
}

pub(crate) fn decode_text(key: &[u8], value: &[u8]) -> Result<String, Damaged> {
    decode("a text", key, value, |reader| Some(str::from_utf8(reader.rest()).ok()?.to_owned()))
}

pub(crate) fn decode_u64(key: &[u8], value: &[u8]) -> Result<u64, Damaged> {
    decode("a number", key, value, |reader| reader.u64())
}

pub(crate) fn decode_shard(key: &[u8], value: &[u8]) -> Result<UsageShard, Damaged> {
    decode("a usage shard", key, value, |reader| {
        let used = reader.amount()?;
        let shares = !reader.0.is_empty();
        let reservation = if shares {
            Some(Reservation { upto: reader.amount()?, within: reader.amount()? })
        } else {
            None
        };
        Some(UsageShard { used, reservation })
    })
}

pub(crate) fn decode_quota(key: &[u8], value: &[u8]) -> Result<Quota, Damaged> {
    decode("a quota", key, value, |reader| {
        let (inodes, blocks) = (reader.i64()?, reader.i64()?);
        let rule = QuotaRule {
            outer: QuotaId(reader.u64()?),
            max_inodes: reader.u64()?,
            max_blocks: reader.u64()?,
            soft_inodes: reader.u64()?,
            soft_blocks: reader.u64()?,
            root: Ino(reader.u64()?),
            state: QuotaState::from_number(reader.u8()?)?,
        };
        Some(Quota { inodes, blocks, rule })
    })
}

pub(crate) fn decode_session(id: SessionId, key: &[u8], value: &[u8]) -> Result<Session, Damaged> {
    decode("a session", key, value, |reader| reader.session(id))
}

pub(crate) fn decode_locks(key: &[u8], value: &[u8]) -> Result<Vec<Lock>, Damaged> {
    decode("locks", key, value, |reader| reader.all(Reader::lock))
}

pub(crate) fn decode_wait(key: &[u8], value: &[u8]) -> Result<LockWait, Damaged> {
    decode("a waiting lock request", key, value, |reader| {
        Some(LockWait { ino: Ino(reader.u64()?), lock: reader.lock()? })
    })
}

/// # Errors
/// [`Damaged`].
pub fn decode_log(key: &[u8], value: &[u8]) -> Result<LogEntry, Damaged> {
    decode("the result of an operation", key, value, |reader| {
        Some(LogEntry { index: reader.u8()?, invalidations: Invalidation::decode(reader.rest())? })
    })
}
