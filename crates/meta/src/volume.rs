//! A volume: its settings, how it is created, and how a client opens it.

use std::sync::Arc;

use acl::nfs4::{AclInherit, AclMode, Policy};
use types::{Errno, FileType, Ino, Mode, OpId, SessionId, SliceId, Time};

use crate::driver::{Authority, Ctx, Failure, Meta, Op, Plan};
use crate::engine::{Engine, EngineError, Outcome};
use crate::record::{Counter, Inode, Record, RecordKey, Session, Settings, blocks_of};
use crate::txn::{Effect, Guard, Txn};
use crate::view::{PlanStop, View};

/// The version of the record layout: this build writes it, and reads no newer one.
pub const FORMAT_VERSION: u32 = 1;

/// The kind of ACLs on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    Off,
    Posix,
    Nfs4,
}

impl AclKind {
    pub fn name(self) -> &'static str {
        match self {
            AclKind::Off => "off",
            AclKind::Posix => "posix",
            AclKind::Nfs4 => "nfsv4",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [AclKind::Off, AclKind::Posix, AclKind::Nfs4].into_iter().find(|kind| kind.name() == text)
    }
}

/// The settings that `limen format` writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub uuid: String,
    /// The kind of object store, for example `file`, and the location of the volume's blocks in it.
    pub storage: String,
    pub bucket: String,
    /// The compression of blocks, by its name in the crate `chunk`; `none` for no compression.
    pub compression: String,
    /// The encryption of blocks, in the stored form of the crate `chunk`; empty for no encryption. It
    /// contains no secrets.
    pub encryption: String,
    pub acl: AclKind,
    /// What chmod does to NFSv4 ACLs (`aclmode`), and what new files inherit from them (`aclinherit`).
    pub policy: Policy,
    /// Files of up to this many bytes are stored in the metadata.
    pub inline_bytes: u32,
    /// The limit for the total size of all files in bytes; 0 = no limit.
    pub capacity_bytes: u64,
    /// The limit for the number of inodes; 0 = no limit.
    pub max_inodes: u64,
    /// Whether listings show a caller only the entries that it may read, on every mount.
    pub abe: bool,
    /// Whether the object store must hold the marker that names this volume. False for volumes that are older
    /// than the marker, and for storage in memory.
    pub store_marker: bool,
    pub created: Time,
}

/// Why a volume cannot be opened or formatted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("no volume found: run `limen format` first")]
    NotFormatted,
    #[error(
        "volume '{name}' was formatted by a newer limen (format {found}, this one knows {FORMAT_VERSION})"
    )]
    Newer { name: String, found: String },
    #[error("there is already a volume '{name}', created {created}; remove it with `limen destroy`")]
    Exists { name: String, created: String },
    #[error("the volume's setting '{setting}' is missing or damaged (value: {value:?})")]
    Damaged { setting: &'static str, value: Option<String> },
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl From<EngineError> for VolumeError {
    fn from(error: EngineError) -> Self {
        VolumeError::Failed(error.into())
    }
}

impl Volume {
    /// Creates a volume: its settings, and an empty root directory that user 0 owns.
    ///
    /// # Errors
    /// [`VolumeError::Exists`], and those of the database.
    pub fn format(&self, engine: &dyn Engine) -> Result<(), VolumeError> {
        let root = Inode {
            ino: Ino::ROOT,
            kind: FileType::Directory,
            mode: Mode::new(0o755),
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: 2,
            size: DIR_BYTES,
            atime: self.created,
            mtime: self.created,
            ctime: self.created,
            access_acl: Default::default(),
            default_acl: Default::default(),
            parent: Ino::ROOT,
            access_rev: 1,
            xattr_blocks: 0,
        };
        let mut effects: Vec<Effect> = self.settings().into();
        effects.push(Effect::PutInode(root));
        let first = [(Counter::Ino, Ino::ROOT.0 + 1), (Counter::Slice, 1), (Counter::Session, 1)];
        effects.extend(first.map(|(counter, value)| Effect::SetCounter { counter, value }));
        let guards = vec![Guard::Setting { name: "format_version", value: None }];
        let op_id = OpId(self.created.nanos() as u128);
        match engine.commit(&[Txn { op_id, guards, effects }])?.pop() {
            Some(Outcome::Committed { .. }) => Ok(()),
            _ => match Volume::load(engine) {
                Ok(volume) => {
                    Err(VolumeError::Exists { name: volume.name, created: volume.created.to_string() })
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Reads the volume's settings.
    ///
    /// # Errors
    /// [`VolumeError::NotFormatted`], [`VolumeError::Newer`], [`VolumeError::Damaged`], and those of the
    /// database.
    pub fn load(engine: &dyn Engine) -> Result<Volume, VolumeError> {
        let snapshot = engine.read(&[RecordKey::Settings])?;
        match snapshot.records.first() {
            Some(Record::Settings(settings)) => Volume::parse(settings),
            _ => Err(VolumeError::NotFormatted),
        }
    }

    fn settings(&self) -> [Effect; 16] {
        [
            ("format_version", FORMAT_VERSION.to_string()),
            ("name", self.name.clone()),
            ("uuid", self.uuid.clone()),
            ("storage", self.storage.clone()),
            ("bucket", self.bucket.clone()),
            ("compression", self.compression.clone()),
            ("encryption", self.encryption.clone()),
            ("acl", self.acl.name().to_owned()),
            ("aclmode", self.policy.mode.name().to_owned()),
            ("aclinherit", self.policy.inherit.name().to_owned()),
            ("inline_bytes", self.inline_bytes.to_string()),
            ("capacity_bytes", self.capacity_bytes.to_string()),
            ("max_inodes", self.max_inodes.to_string()),
            ("abe", on_off(self.abe).to_owned()),
            ("store_marker", on_off(self.store_marker).to_owned()),
            ("created", self.created.nanos().to_string()),
        ]
        .map(|(name, value)| Effect::PutSetting { name, value })
    }

    fn parse(settings: &Settings) -> Result<Volume, VolumeError> {
        let get = |name: &str| settings.get(name).cloned();
        let Some(found) = get("format_version") else { return Err(VolumeError::NotFormatted) };
        let name = get("name").unwrap_or_default();
        if found.parse::<u32>().is_ok_and(|v| v > FORMAT_VERSION) {
            return Err(VolumeError::Newer { name, found });
        }
        let damaged = |setting| VolumeError::Damaged { setting, value: get(setting) };
        let text = |setting| get(setting).ok_or_else(|| damaged(setting));
        let number = |setting| text(setting)?.parse::<u64>().map_err(|_| damaged(setting));
        let flag = |setting| match get(setting).as_deref() {
            None | Some("off") => Ok(false),
            Some("on") => Ok(true),
            Some(_) => Err(damaged(setting)),
        };
        if found != FORMAT_VERSION.to_string() {
            return Err(damaged("format_version"));
        }
        // Volumes that are older than NFSv4 ACLs have no policies for them.
        let aclmode = get("aclmode").map(|name| AclMode::from_name(&name).ok_or_else(|| damaged("aclmode")));
        let inherit = get("aclinherit");
        let inherit = inherit.map(|name| AclInherit::from_name(&name).ok_or_else(|| damaged("aclinherit")));
        Ok(Volume {
            name,
            uuid: text("uuid")?,
            storage: text("storage")?,
            bucket: text("bucket")?,
            compression: text("compression")?,
            encryption: text("encryption")?,
            acl: AclKind::parse(&text("acl")?).ok_or_else(|| damaged("acl"))?,
            policy: Policy {
                mode: aclmode.transpose()?.unwrap_or_default(),
                inherit: inherit.transpose()?.unwrap_or_default(),
            },
            inline_bytes: u32::try_from(number("inline_bytes")?).map_err(|_| damaged("inline_bytes"))?,
            capacity_bytes: number("capacity_bytes")?,
            max_inodes: number("max_inodes")?,
            // In volumes that are older than these settings, they are off.
            abe: flag("abe")?,
            store_marker: flag("store_marker")?,
            created: Time::from_nanos(text("created")?.parse().map_err(|_| damaged("created"))?),
        })
    }

    /// Whether both are settings of the same volume, possibly from different times.
    pub(crate) fn is_same_volume(&self, other: &Volume) -> bool {
        let Volume { capacity_bytes, max_inodes, inline_bytes, abe, policy, store_marker, .. } = *other;
        let changed = Volume { capacity_bytes, max_inodes, inline_bytes, abe, policy, ..self.clone() };
        Volume { store_marker, ..changed } == *other
    }

    /// The limits for [`Guard::Room`]; `None` if there are none.
    pub(crate) fn limits(&self) -> Option<(u64, u64)> {
        if self.max_inodes == 0 && self.capacity_bytes == 0 {
            return None;
        }
        let or_none = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Some((or_none(self.max_inodes), or_none(blocks_of(self.capacity_bytes))))
    }
}

/// The size of any directory (`st_size`), whatever its number of entries.
pub const DIR_BYTES: u64 = 4096;

impl Meta {
    /// Opens a volume for reading and for work that needs no session.
    ///
    /// # Errors
    /// Those of [`Volume::load`].
    pub fn open(engine: Arc<dyn Engine>, cache_records: usize) -> Result<Meta, VolumeError> {
        let volume = Volume::load(&*engine)?;
        // Operation ids contain the session number, so even an unregistered client needs a number of its own.
        let visitor = Meta::new(engine.clone(), volume.clone(), random_session(), 1);
        let id =
            visitor.run(&Lease { counter: Counter::Session, count: 1 }, &Authority::Kernel { told: None })?;
        Ok(Meta::new(engine, volume, SessionId(id), cache_records))
    }

    /// Creates or replaces the session record of any client. For this client's own session, see
    /// [`Meta::begin_session`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn put_session(&self, session: Session) -> Result<(), Failure> {
        self.run(&Put(vec![Effect::PutSession(session)]), &Authority::Kernel { told: None })
    }

    /// Removes a session's record.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_session(&self, session: SessionId) -> Result<(), Failure> {
        self.run(&Put(vec![Effect::DropSession { session }]), &Authority::Kernel { told: None })
    }

    /// Removes slices from the garbage after their blocks were deleted, in one commit.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_garbage(&self, slices: &[SliceId]) -> Result<(), Failure> {
        let effects = slices.iter().map(|&slice| Effect::DropGarbage { slice }).collect();
        self.run(&Put(effects), &Authority::Kernel { told: None })
    }

    /// The next unused number of a counter, as stored in the database.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read_counter(&self, counter: Counter) -> Result<u64, Failure> {
        let snapshot = self.retry(|| self.engine().read(&[RecordKey::Counter(counter)]))?;
        match snapshot.records.first() {
            Some(Record::Counter(_, value)) => Ok(*value),
            _ => Err(EngineError::permanent("the engine did not return the counter").into()),
        }
    }

    /// Reserves `count` numbers that no client had before, and returns the first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn lease(&self, counter: Counter, count: u64) -> Result<u64, Failure> {
        self.run(&Lease { counter, count }, &Authority::Kernel { told: None })
    }
}

/// A random session number that is not leased; its highest bit is set. It must not be derived from the time,
/// because two clients that open a volume at the same moment would then share a session number and so
/// operation ids.
pub(crate) fn random_session() -> SessionId {
    SessionId(1 << 63 | host::random())
}

/// The settings that can be changed after the volume was created; `None` leaves a setting unchanged. A client
/// that has the volume open applies a change when it reads the settings again ([`Meta::refresh_settings`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configure {
    /// The limit for the total size of all files in bytes; 0 = no limit. Existing data beyond it remains.
    pub capacity_bytes: Option<u64>,
    /// The limit for the number of inodes; 0 = no limit. Existing inodes beyond it remain.
    pub max_inodes: Option<u64>,
    /// Files of up to this many bytes are stored in the metadata, from their next write on.
    pub inline_bytes: Option<u32>,
    /// What chmod does to NFSv4 ACLs from now on.
    pub aclmode: Option<AclMode>,
    /// What new files inherit from NFSv4 ACLs from now on.
    pub aclinherit: Option<AclInherit>,
    /// Whether listings show a caller only the entries that it may read.
    pub abe: Option<bool>,
    /// Whether the object store must hold the volume's marker.
    pub store_marker: Option<bool>,
}

impl Op for Configure {
    type Reply = ();
    const NAME: &'static str = "configure";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let asked = [
            ("capacity_bytes", number(self.capacity_bytes)),
            ("max_inodes", number(self.max_inodes)),
            ("inline_bytes", number(self.inline_bytes.map(u64::from))),
            ("abe", self.abe.map(|abe| on_off(abe).to_owned())),
            ("store_marker", self.store_marker.map(|marked| on_off(marked).to_owned())),
            ("aclmode", self.aclmode.map(|policy| policy.name().to_owned())),
            ("aclinherit", self.aclinherit.map(|policy| policy.name().to_owned())),
        ];
        let mut effects = Vec::new();
        for (name, value) in asked {
            let Some(value) = value else { continue };
            if view.setting(name)?.as_ref() != Some(&value) {
                effects.push(Effect::PutSetting { name, value });
            }
        }
        Ok(Plan { reply: (), effects })
    }
}

/// The stored form of a flag.
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

pub(crate) struct Lease {
    pub(crate) counter: Counter,
    pub(crate) count: u64,
}

impl Op for Lease {
    type Reply = u64;
    const NAME: &'static str = "lease";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<u64>, PlanStop> {
        let first = view.counter(self.counter)?;
        let value = first.checked_add(self.count).filter(|&v| v <= i64::MAX as u64).ok_or(Errno::ENOSPC)?;
        Ok(Plan { reply: first, effects: vec![Effect::SetCounter { counter: self.counter, value }] })
    }
}

/// Effects that are applied without any check.
struct Put(Vec<Effect>);

impl Op for Put {
    type Reply = ();
    const NAME: &'static str = "housekeeping";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        Ok(Plan { reply: (), effects: self.0.clone() })
    }
}
