//! Fields as bytes; numbers are big endian.

use bytes::Bytes;
use meta::{Lock, LockKind, LockOwner, Process, Session};
use types::{FileType, SessionId, Slice, SliceId, SliceSource, Time};

/// Appends fields.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn with_capacity(bytes: usize) -> Self {
        Writer(Vec::with_capacity(bytes))
    }

    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn i64(self, value: i64) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }

    /// A text after its length.
    pub fn text(self, value: &str) -> Self {
        // The texts are far shorter than 4 GiB: boot ids, versions, host names and mount points.
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX)).bytes(value.as_bytes())
    }

    /// The type as `d_type`.
    pub fn kind(self, kind: FileType) -> Self {
        self.u8(kind.to_dtype() as u8)
    }

    /// The time with its sign bit inverted, so that the order of the bytes is the order of the times.
    pub fn ordered_time(self, time: Time) -> Self {
        self.u64(time.nanos() as u64 ^ SIGN)
    }

    /// The owner of a lock.
    pub fn owner(self, owner: LockOwner) -> Self {
        self.u64(owner.session.0).u64(owner.owner).u8(owner.kind.number())
    }

    /// A row of a file.
    pub fn row(self, slice: &Slice) -> Self {
        let writer = self.u32(slice.pos).u32(slice.len);
        match &slice.source {
            SliceSource::Hole => writer.u8(b'h'),
            SliceSource::Inline(bytes) => writer.u8(b'i').bytes(bytes),
            SliceSource::Blocks { id, offset, size } => writer.u8(b'b').u64(id.0).u32(*offset).u32(*size),
        }
    }

    pub fn lock(self, lock: &Lock) -> Self {
        let writer = self.u64(lock.start).u64(lock.end).owner(lock.owner);
        writer.u8(lock.exclusive.into()).u32(lock.pid)
    }

    /// A session without its id. The heartbeat is first, because a script of the Redis engine compares it
    /// without decoding the rest.
    pub fn session(self, session: &Session) -> Self {
        let Process { boot_id, pid_namespace, start_time } = &session.process;
        let writer = self.i64(session.heartbeat.nanos()).i64(session.since.nanos()).u32(session.pid);
        let writer = writer.u64(*pid_namespace).u64(*start_time).u64(session.first_slice.0);
        writer.text(boot_id).text(&session.version).text(&session.host).text(&session.mountpoint)
    }

    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn done(self) -> Bytes {
        self.0.into()
    }
}

/// Takes fields from the front. A method returns `None` if there are too few bytes or the value is invalid.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the fields of a whole value; `None` if bytes are left over.
    pub fn whole<T>(value: &'a [u8], fields: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut reader = Reader(value);
        fields(&mut reader).filter(|_| reader.0.is_empty())
    }

    /// Takes fields of one kind up to the end.
    pub fn all<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            all.push(one(self)?);
        }
        Some(all)
    }

    pub fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_be_bytes)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.chunk().map(i64::from_be_bytes)
    }

    pub fn time(&mut self) -> Option<Time> {
        self.i64().map(Time::from_nanos)
    }

    pub fn owner(&mut self) -> Option<LockOwner> {
        let (session, owner) = (SessionId(self.u64()?), self.u64()?);
        Some(LockOwner { session, owner, kind: LockKind::of(self.u8()?)? })
    }

    pub fn ordered_time(&mut self) -> Option<Time> {
        self.u64().map(|bits| Time::from_nanos((bits ^ SIGN) as i64))
    }

    /// A row of a file.
    pub fn row(&mut self) -> Option<Slice> {
        let (pos, len) = (self.u32()?, self.u32()?);
        let source = match self.u8()? {
            b'h' => SliceSource::Hole,
            b'i' => SliceSource::Inline(self.rest().into()),
            b'b' => SliceSource::Blocks { id: SliceId(self.u64()?), offset: self.u32()?, size: self.u32()? },
            _ => return None,
        };
        Some(Slice { pos, len, source })
    }

    pub fn lock(&mut self) -> Option<Lock> {
        let (start, end, owner) = (self.u64()?, self.u64()?, self.owner()?);
        Some(Lock { start, end, owner, exclusive: self.u8()? != 0, pid: self.u32()? })
    }

    pub fn session(&mut self, id: SessionId) -> Option<Session> {
        let (heartbeat, since, pid) = (self.time()?, self.time()?, self.u32()?);
        let (pid_namespace, start_time, first_slice) = (self.u64()?, self.u64()?, SliceId(self.u64()?));
        let process = Process { boot_id: self.text()?, pid_namespace, start_time };
        let (version, host, mountpoint) = (self.text()?, self.text()?, self.text()?);
        Some(Session { id, host, pid, mountpoint, since, heartbeat, process, version, first_slice })
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Bytes after their length.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        let (bytes, rest) = self.0.split_at_checked(length as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn text(&mut self) -> Option<String> {
        Some(str::from_utf8(self.counted()?).ok()?.to_owned())
    }

    pub fn kind(&mut self) -> Option<FileType> {
        FileType::from_ifmt(u32::from(self.u8()?) << 12)
    }
}

const SIGN: u64 = 1 << 63;
