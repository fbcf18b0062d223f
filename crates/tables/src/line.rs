//! Records as rows of tables: the rows of a record key, and the rows that effects put and remove.

use std::borrow::Cow;

use meta::{Effect, Inode, Lock, Process, QuotaKey, QuotaRule, RecordKey};
use types::{AclId, ChunkIndex, Ino, Slice};

use crate::table::Table;
use crate::values;

/// A row, or a key that selects rows: values for the first number columns and for the first byte-string
/// columns of a table. A key selects all rows that have these values in these columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'v> {
    pub table: Table,
    pub numbers: Vec<Option<i128>>,
    pub strings: Vec<Option<Cow<'v, [u8]>>>,
}

const NO_NUMBERS: [u64; 0] = [];

impl<'v> Line<'v> {
    fn new(
        table: Table,
        numbers: impl IntoIterator<Item: Into<i128>>,
        strings: impl IntoIterator<Item = &'v [u8]>,
    ) -> Self {
        let numbers = numbers.into_iter().map(|number| Some(number.into())).collect();
        Line { table, numbers, strings: strings.into_iter().map(|string| Some(string.into())).collect() }
    }

    /// The columns for which the line has values.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> + use<> {
        let Table { numbers, strings, .. } = self.table;
        let columns = numbers.iter().take(self.numbers.len()).chain(strings.iter().take(self.strings.len()));
        columns.copied()
    }

    pub fn inode(inode: &Inode) -> Self {
        let acls = [inode.access_acl, inode.default_acl].map(values::acl);
        let strings = acls.map(|id| id.map(|id| id.to_vec().into())).into();
        Line { strings, ..Line::new(Table::INODE, values::inode(inode), []) }
    }

    /// A row of a chunk, without its position.
    pub fn slice(ino: Ino, chunk: ChunkIndex, slice: &'v Slice) -> Self {
        let (numbers, data) = values::slice(slice);
        let mut line = Line::new(Table::SLICE, [ino.0, chunk.0], []);
        line.numbers.extend(numbers);
        line.strings.push(data.map(Cow::from));
        line
    }

    pub fn lock(ino: Ino, lock: &Lock) -> Self {
        let mut line = Line::new(Table::LOCK, [ino.0], []);
        line.numbers.extend(values::lock(lock).map(Some));
        line
    }

    /// The key of a quota.
    pub fn quota(key: QuotaKey) -> Self {
        let (kind, number) = key.to_numbers();
        Line::new(Table::QUOTA, [kind.into(), number], [])
    }

    /// An ACL, or only its key if `text` is `None`.
    pub fn acl(id: AclId, text: Option<&'v str>) -> Self {
        let mut line = Line::new(Table::ACL, NO_NUMBERS, []);
        let text = text.map(|text| text.as_bytes().into());
        line.strings.extend([Some(Cow::from(id.to_bytes().to_vec()))].into_iter().chain(text.map(Some)));
        line
    }

    /// A quota without its counters.
    pub fn rule(key: QuotaKey, rule: &QuotaRule) -> Self {
        Line::new(Table::QUOTA, values::quota(key, rule), [])
    }
}

/// The key of the rows that answer a record key. The usage is the sum of its rows.
pub fn row_key(key: &RecordKey) -> Line<'_> {
    let of = |table, ino: &Ino| Line::new(table, [ino.0], []);
    match key {
        RecordKey::Inode(ino) => of(Table::INODE, ino),
        RecordKey::Dirent(parent, name) => Line::new(Table::DIRENT, [parent.0], [name.as_bytes()]),
        RecordKey::Empty(ino) => of(Table::DIRENT, ino),
        RecordKey::Xattrs(ino) => of(Table::XATTR, ino),
        RecordKey::Symlink(ino) => of(Table::SYMLINK, ino),
        RecordKey::Slices(ino, chunk) => Line::new(Table::SLICE, [ino.0, chunk.0], []),
        RecordKey::Acl(id) => Line::acl(*id, None),
        RecordKey::Settings => Line::new(Table::SETTING, NO_NUMBERS, []),
        RecordKey::Counter(counter) => Line::new(Table::COUNTER, NO_NUMBERS, [counter.name().as_bytes()]),
        RecordKey::Usage => Line::new(Table::USAGE, NO_NUMBERS, []),
        RecordKey::Locks(ino) => of(Table::LOCK, ino),
        RecordKey::Waits => Line::new(Table::LOCK_WAIT, NO_NUMBERS, []),
        RecordKey::Session(id) => Line::new(Table::SESSION, [id.0], []),
        RecordKey::Quota(key) => Line::quota(*key),
    }
}

/// The key of the rows that an effect removes before it puts rows. Removals that depend on other rows, such
/// as a slice that becomes garbage, are not included. The caller removes an ACL only if it is condemned.
pub fn removed(effect: &Effect) -> Option<Line<'_>> {
    Some(match effect {
        Effect::DropDirent { parent, name } => Line::new(Table::DIRENT, [parent.0], [name.as_bytes()]),
        Effect::DropXattr { ino, name } => Line::new(Table::XATTR, [ino.0], [name.as_bytes()]),
        Effect::PutLocks { ino, .. } => Line::new(Table::LOCK, [ino.0], []),
        Effect::DropWait { owner } => {
            Line::new(Table::WAITER, [owner.session.0, owner.owner, owner.kind.number().into()], [])
        }
        Effect::DropOrphan { session, ino } => Line::new(Table::ORPHAN, [session.0, ino.0], []),
        Effect::DropSession { session } => Line::new(Table::SESSION, [session.0], []),
        Effect::DropGarbage { slice } => Line::new(Table::GARBAGE, [slice.0], []),
        Effect::DropQuota { key } => Line::quota(*key),
        Effect::DropAcl { id } => Line::acl(*id, None),
        _ => return None,
    })
}

/// The rows that an effect puts, except rows of inodes and of quotas. (A row of a quota is not replaced as a
/// whole, because the quota keeps its counters.) Each row replaces the row with the same key. The caller must
/// not put rows that belong to an inode that does not exist.
pub fn put(effect: &Effect) -> Vec<Line<'_>> {
    vec![match effect {
        Effect::PutDirent { parent, name, ino, kind } => {
            Line::new(Table::DIRENT, [parent.0, ino.0, kind.to_dtype().into()], [name.as_bytes()])
        }
        Effect::AppendSlice { ino, chunk, slice } => Line::slice(*ino, *chunk, slice),
        Effect::ReplaceRows { ino, chunk, rows, .. } => {
            return rows.iter().map(|row| Line::slice(*ino, *chunk, row)).collect();
        }
        Effect::PutXattr { ino, name, value } => Line::new(Table::XATTR, [ino.0], [name.as_bytes(), value]),
        Effect::PutSymlink { ino, target } => Line::new(Table::SYMLINK, [ino.0], [&target[..]]),
        Effect::PutAcl { id, text } => Line::acl(*id, Some(text)),
        Effect::PutLocks { ino, locks } => {
            return locks.iter().map(|lock| Line::lock(*ino, lock)).collect();
        }
        Effect::PutWait(wait) => Line { table: Table::LOCK_WAIT, ..Line::lock(wait.ino, &wait.lock) },
        Effect::PutOrphan { session, ino } => Line::new(Table::ORPHAN, [session.0, ino.0], []),
        Effect::PutSession(session) => {
            let [since, heartbeat] = [session.since, session.heartbeat].map(|time| time.nanos().into());
            let Process { boot_id, pid_namespace, start_time } = &session.process;
            let numbers: [i128; 7] = [
                session.id.0.into(),
                session.pid.into(),
                since,
                heartbeat,
                (*pid_namespace).into(),
                (*start_time).into(),
                session.first_slice.0.into(),
            ];
            let strings = [&session.host, &session.mountpoint, boot_id, &session.version];
            Line::new(Table::SESSION, numbers, strings.map(|text| text.as_bytes()))
        }
        Effect::PutSetting { name, value } => {
            Line::new(Table::SETTING, NO_NUMBERS, [name.as_bytes(), value.as_bytes()])
        }
        Effect::SetCounter { counter, value } => {
            Line::new(Table::COUNTER, [*value], [counter.name().as_bytes()])
        }
        _ => return Vec::new(),
    }]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{LockKind, LockOwner, LockWait, Session};
    use types::{AclId, FileType, Name, SessionId, SliceId, SliceSource, Time, XattrName};

    use super::*;

    #[test]
    fn rows_have_all_columns_and_keys_no_more() {
        let (ino, session, chunk) = (Ino(7), SessionId(u64::MAX), ChunkIndex(1));
        let (name, xattr) = (Name::new(b"a").unwrap(), XattrName::new(b"user.a").unwrap());
        let owner = LockOwner { session, owner: 2, kind: LockKind::Flock };
        let lock = Lock { start: 1, end: u64::MAX, owner, exclusive: true, pid: 4 };
        let slice = Slice { pos: 1, len: 2, source: SliceSource::Hole };
        let time = Time::from_nanos(-1);
        let (host, mountpoint) = ("h".to_owned(), "/m".to_owned());
        let effects = [
            Effect::PutDirent { parent: ino, name: name.clone(), ino, kind: FileType::Regular },
            Effect::AppendSlice { ino, chunk, slice: slice.clone() },
            Effect::ReplaceRows { ino, chunk, count: 2, rows: [slice.clone(), slice].into() },
            Effect::PutXattr { ino, name: xattr.clone(), value: b"v"[..].into() },
            Effect::PutSymlink { ino, target: b"t"[..].into() },
            Effect::PutAcl { id: AclId::from_bytes([1; 16]), text: "u::rwx".into() },
            Effect::PutLocks { ino, locks: [lock].into() },
            Effect::PutWait(LockWait { ino, lock }),
            Effect::PutOrphan { session, ino },
            Effect::PutSession(Session {
                id: session,
                host,
                pid: 3,
                mountpoint,
                since: time,
                heartbeat: time,
                process: Process::default(),
                version: String::new(),
                first_slice: SliceId(0),
            }),
            Effect::PutSetting { name: "s", value: "v".to_owned() },
            Effect::SetCounter { counter: meta::Counter::Ino, value: 9 },
        ];
        for effect in &effects {
            let lines = put(effect);
            assert!(!lines.is_empty(), "{effect:?}");
            for line in lines {
                assert_eq!(line.numbers.len(), line.table.numbers.len(), "{effect:?}");
                assert_eq!(line.strings.len(), line.table.strings.len(), "{effect:?}");
            }
        }
        let keys = [
            Effect::DropDirent { parent: ino, name: name.clone() },
            Effect::DropXattr { ino, name: xattr },
            Effect::PutLocks { ino, locks: Arc::new([]) },
            Effect::DropWait { owner },
            Effect::DropOrphan { session, ino },
            Effect::DropSession { session },
            Effect::DropGarbage { slice: SliceId(1) },
            Effect::DropQuota { key: QuotaKey::User(1) },
        ];
        let removed = keys.each_ref().map(|effect| removed(effect).unwrap());
        let record_keys =
            [RecordKey::Dirent(ino, name), RecordKey::Slices(ino, chunk), RecordKey::Waits, RecordKey::Usage];
        for key in record_keys.iter().map(row_key).chain(removed) {
            assert!(key.numbers.len() <= key.table.numbers.len(), "{key:?}");
            assert!(key.strings.len() <= key.table.strings.len(), "{key:?}");
        }
    }
}
