//! The records that a plan can look up: their keys, their values, and their source.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use acl::nfs4::{self, Nfs4Acl};
use acl::posix::PosixAcl;
use host::{HashMap, Instant};
use meta::{
    AclKind, Counter, Dirent, Inode, Lock, LockWait, Quota, QuotaKey, Record, RecordKey, Settings, Usage,
    Xattrs,
};
use types::{AclId, ChunkIndex, FileType, Ino, Name, Slice, XattrName};

/// The records that are known before an operation reads any: a client's cache, or a map in a test.
pub trait KnownRecords: fmt::Debug {
    /// The value of a record, unless it was read before `oldest`. Never returns [`Value::Unknown`]. The age
    /// of a record that never changes ([`Key::is_immutable`]) does not matter.
    fn get(&self, key: &Key, oldest: Option<Instant>) -> Option<Value>;

    /// Offers a value that a plan has computed from immutable records, for later plans.
    fn put(&self, _key: Key, _value: Value) {}
}

/// The records that an operation has read itself.
pub type OwnReads = HashMap<Key, Value>;

impl KnownRecords for OwnReads {
    fn get(&self, key: &Key, _: Option<Instant>) -> Option<Value> {
        HashMap::get(self, key).cloned()
    }
}

/// The key of a known record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Inode(Ino),
    Dirent(Ino, Name),
    /// How much of a directory's listing a cache holds. No plan looks this up.
    Listed(Ino),
    Empty(Ino),
    Xattrs(Ino),
    Symlink(Ino),
    Slices(Ino, ChunkIndex),
    Acl(AclId),
    /// For an NFSv4 ACL with SIDs: the ACL that decides access in its place. Its SIDs are mapped to users and
    /// groups. The number is the version of the rules for SIDs.
    Mapped(AclId, u64),
    /// The ACL that a new file inherits from this ACL of its directory.
    Inherited(AclId, InheritKey),
    /// The access ACL that results from a chmod of this one to these rwx bits (POSIX ACLs).
    Chmod(AclId, u32),
    /// For an NFSv4 ACL: the POSIX ACL that the kernel is shown in its place. The numbers are the version of
    /// the rules for SIDs, and the owner and group of the inode. The flag tells whether the inode is a
    /// directory.
    Projection(AclId, u64, u32, u32, bool),
    /// The POSIX ACL that the kernel is shown for a directory without an ACL. The numbers are its rwx bits,
    /// owner and group.
    ModeProjection(u32, u32, u32),
    /// Whether an access ACL lets everybody search.
    Anyone(AclId),
    Settings,
    Counter(Counter),
    Usage,
    Locks(Ino),
    Waits,
    Quota(QuotaKey),
}

/// Everything that a new file's inherited ACL depends on, besides the ACL of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InheritKey {
    pub kind: FileType,
    /// The rwx bits of the mode after the umask.
    pub mode: u32,
    /// The rwx bits of the mode before the umask: under [`nfs4::AclMode::GroupMask`] the result depends on
    /// them. 0 on a volume without NFSv4 ACLs.
    pub requested: u32,
    /// The volume's policy; the default on a volume without NFSv4 ACLs.
    pub policy: nfs4::Policy,
}

impl Key {
    /// The key by which an engine returns this record; `None` if no engine stores it.
    pub fn to_read(&self) -> Option<RecordKey> {
        Some(match self {
            Key::Inode(ino) => RecordKey::Inode(*ino),
            Key::Dirent(parent, name) => RecordKey::Dirent(*parent, name.clone()),
            Key::Empty(ino) => RecordKey::Empty(*ino),
            Key::Xattrs(ino) => RecordKey::Xattrs(*ino),
            Key::Symlink(ino) => RecordKey::Symlink(*ino),
            Key::Slices(ino, chunk) => RecordKey::Slices(*ino, *chunk),
            Key::Acl(id) => RecordKey::Acl(*id),
            Key::Settings => RecordKey::Settings,
            Key::Counter(counter) => RecordKey::Counter(*counter),
            Key::Usage => RecordKey::Usage,
            Key::Locks(ino) => RecordKey::Locks(*ino),
            Key::Waits => RecordKey::Waits,
            Key::Quota(quota) => RecordKey::Quota(*quota),
            Key::Listed(_)
            | Key::Mapped(..)
            | Key::Inherited(..)
            | Key::Chmod(..)
            | Key::Projection(..)
            | Key::ModeProjection(..)
            | Key::Anyone(_) => return None,
        })
    }

    /// Whether the record never changes once it exists. ACLs are stored under the hash of their content.
    pub fn is_immutable(&self) -> bool {
        matches!(
            self,
            Key::Acl(_)
                | Key::Mapped(..)
                | Key::Inherited(..)
                | Key::Chmod(..)
                | Key::Projection(..)
                | Key::ModeProjection(..)
                | Key::Anyone(_)
        )
    }
}

/// The value of a known record. If the record is known to be absent, the value says so. ACLs are parsed.
#[derive(Clone, Debug)]
pub enum Value {
    Inode(Option<Inode>),
    Dirent(Option<Dirent>),
    /// All entries up to this name are cached; `None`: all entries of the directory. Valid as long as
    /// `losses` equals the cache's counter of lost entries. Several directories may share a counter.
    Listed {
        to: Option<Name>,
        losses: u64,
    },
    Empty(bool),
    Xattrs(Arc<Xattrs>),
    /// The xattrs have changed, so their values are not known. For some of them, the map has the size in
    /// blocks as of this client's last read or change of the xattr.
    XattrSizes(Arc<BTreeMap<XattrName, u16>>),
    Symlink(Option<Arc<[u8]>>),
    Slices(Arc<[Slice]>),
    /// `None` if the ACL is missing or corrupt. Access that depends on it is then denied.
    Acl(Option<Acl>),
    /// The ACL, and the rwx bits of the resulting mode.
    Inherited(AclId, u32),
    Chmod(AclId),
    Projection(Arc<nfs4::Projection>),
    Anyone(bool),
    Settings(Arc<Settings>),
    Counter(u64),
    Usage(Usage),
    Locks(Arc<[Lock]>),
    Waits(Arc<[LockWait]>),
    /// Cached because of its rule, which names the next quota of the chain. A plan guards the next quota. The
    /// usage in the record may be out of date.
    Quota(Option<Quota>),
    /// The record changed, and the new value is not known.
    Unknown,
}

/// An ACL of the volume's kind.
#[derive(Clone, Debug)]
pub enum Acl {
    Posix(Arc<PosixAcl>),
    Nfs4(Arc<nfs4::Compiled>),
}

/// Splits a record into its key and value. `kind` is the kind of ACLs on the volume. `None` for records that
/// no plan reads.
pub fn known(record: &Record, kind: AclKind) -> Option<(Key, Value)> {
    Some(match record {
        Record::Inode(ino, inode) => (Key::Inode(*ino), Value::Inode(*inode)),
        Record::Dirent(parent, name, dirent) => (Key::Dirent(*parent, name.clone()), Value::Dirent(*dirent)),
        Record::Empty(ino, empty) => (Key::Empty(*ino), Value::Empty(*empty)),
        Record::Xattrs(ino, xattrs) => (Key::Xattrs(*ino), Value::Xattrs(xattrs.clone())),
        Record::Symlink(ino, target) => (Key::Symlink(*ino), Value::Symlink(target.clone())),
        Record::Slices(ino, chunk, rows) => (Key::Slices(*ino, *chunk), Value::Slices(rows.clone())),
        Record::Acl(id, text) => (Key::Acl(*id), Value::Acl(parse_acl(*id, text.as_deref(), kind))),
        Record::Settings(settings) => (Key::Settings, Value::Settings(settings.clone())),
        Record::Counter(counter, value) => (Key::Counter(*counter), Value::Counter(*value)),
        Record::Usage(usage) => (Key::Usage, Value::Usage(*usage)),
        Record::Locks(ino, locks) => (Key::Locks(*ino), Value::Locks(locks.clone())),
        Record::Waits(waits) => (Key::Waits, Value::Waits(waits.clone())),
        Record::Quota(key, quota) => (Key::Quota(*key), Value::Quota(*quota)),
        Record::Session(..) | Record::Orphan(..) | Record::Garbage(_) | Record::Shared(..) => return None,
    })
}

/// Parses the text of the ACL with this id. A valid text with another hash is rejected, because it is another
/// ACL: for example, it may have lost its first entries, which deny something.
fn parse_acl(id: AclId, text: Option<&str>, kind: AclKind) -> Option<Acl> {
    let text = text?;
    let parsed = match kind {
        AclKind::Nfs4 => Nfs4Acl::from_storage(text)
            .map(|acl| (acl.id(), Acl::Nfs4(Arc::new(nfs4::Compiled::new(acl)))))
            .map_err(|error| error.to_string()),
        AclKind::Posix | AclKind::Off => PosixAcl::from_storage(text)
            .map(|acl| (acl.id(), Acl::Posix(Arc::new(acl))))
            .map_err(|error| error.to_string()),
    };
    parsed
        .and_then(
            |(is, acl)| if is == id { Ok(acl) } else { Err(format!("its content is that of ACL {is}")) },
        )
        .inspect_err(|error| {
            tracing::error!(acl = %id, %error, "a stored ACL is corrupt; access that depends on it is denied");
        })
        .ok()
}
