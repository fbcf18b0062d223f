//! A volume: its settings, how it comes to be, and how a client opens it.

use std::sync::Arc;

use acl::nfs4::{AclInherit, AclMode, Policy};
use types::{Errno, FileType, Ino, Mode, OpId, SessionId, SliceId, Time};

use crate::driver::{Ctx, Failure, Meta, Op, Plan, Vouch};
use crate::engine::{Engine, EngineError, Outcome};
use crate::record::{Counter, Node, Record, Session, Settings, Want, blocks_of};
use crate::txn::{Effect, Guard, Txn};
use crate::view::{Stop, View};

/// The layout of records that this build writes and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Which kind of ACLs a volume carries.
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

/// What `limen format` lays down for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub uuid: String,
    /// The object store's kind, e.g. `file`, and where in it the volume's blocks are.
    pub storage: String,
    pub bucket: String,
    /// How blocks are compressed, by the name the store has for it; `none`.
    pub compression: String,
    /// How blocks are encrypted, as the store writes it down; empty for not at all. Nothing in it is secret.
    pub encryption: String,
    pub acl: AclKind,
    /// What chmod does to NFSv4 ACLs (`aclmode`), and what new files get of them (`aclinherit`).
    pub policy: Policy,
    /// Files up to this many bytes lie in the metadata.
    pub inline_bytes: u32,
    /// Bytes the files may have in all; 0 = no limit.
    pub capacity_bytes: u64,
    /// Inodes the volume may have in all; 0 = no limit.
    pub max_inodes: u64,
    /// Whether listings show a caller only what he may read, on every mount.
    pub abe: bool,
    /// Whether the object store must hold the marker that names this volume. Not so on volumes of before there was one,
    /// and in the memory of a mount.
    pub store_marker: bool,
    pub created: Time,
}

/// Why a volume cannot be opened or formatted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("there is no volume here yet: run `limen format` first")]
    NotFormatted,
    #[error(
        "volume '{name}' was formatted by a newer limen (format {found}, this one knows {FORMAT_VERSION})"
    )]
    Newer { name: String, found: String },
    #[error("there is a volume here already: '{name}', made {created}; remove it with `limen destroy`")]
    Exists { name: String, created: String },
    #[error("the volume's setting '{setting}' is missing or damaged (it says {value:?})")]
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
    /// Lays down a new volume: its settings and an empty root directory of user 0.
    ///
    /// # Errors
    /// [`VolumeError::Exists`], and those of the database.
    pub fn format(&self, engine: &dyn Engine) -> Result<(), VolumeError> {
        let root = Node {
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
        };
        let mut effects: Vec<Effect> = self.settings().into();
        effects.push(Effect::PutNode(root));
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
    /// [`VolumeError::NotFormatted`], [`VolumeError::Newer`], [`VolumeError::Damaged`], and those of the database.
    pub fn load(engine: &dyn Engine) -> Result<Volume, VolumeError> {
        let facts = engine.read(&[Want::Settings])?;
        match facts.records.first() {
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
        // Volumes from before there were NFSv4 ACLs have no policies for them.
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
            // Volumes of before these settings have them off.
            abe: flag("abe")?,
            store_marker: flag("store_marker")?,
            created: Time::from_nanos(text("created")?.parse().map_err(|_| damaged("created"))?),
        })
    }

    /// Whether the two are settings of one volume, at different times.
    pub(crate) fn is_same_volume(&self, other: &Volume) -> bool {
        let Volume { capacity_bytes, max_inodes, inline_bytes, abe, policy, store_marker, .. } = *other;
        let changed = Volume { capacity_bytes, max_inodes, inline_bytes, abe, policy, ..self.clone() };
        Volume { store_marker, ..changed } == *other
    }

    /// The limits as [`Guard::Room`] takes them; `None` where there are none.
    pub(crate) fn limits(&self) -> Option<(u64, u64)> {
        if self.max_inodes == 0 && self.capacity_bytes == 0 {
            return None;
        }
        let or_none = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Some((or_none(self.max_inodes), or_none(blocks_of(self.capacity_bytes))))
    }
}

/// The size a directory shows (`st_size`), whatever it holds.
pub const DIR_BYTES: u64 = 4096;

impl Meta {
    /// Opens a volume for looking at it and for work that needs no session.
    ///
    /// # Errors
    /// Those of [`Volume::load`].
    pub fn open(engine: Arc<dyn Engine>, cache_records: usize) -> Result<Meta, VolumeError> {
        let volume = Volume::load(&*engine)?;
        // Operation ids are the session's, so even a visitor takes a number of its own.
        let visitor = Meta::new(engine.clone(), volume.clone(), random_session(), 1);
        let id =
            visitor.run(&Lease { counter: Counter::Session, count: 1 }, &Vouch::Kernel { told: None })?;
        Ok(Meta::new(engine, volume, SessionId(id), cache_records))
    }

    /// Puts the session of any client on record; see [`Meta::begin_session`] for this client's own.
    ///
    /// # Errors
    /// Those of the database.
    pub fn put_session(&self, session: Session) -> Result<(), Failure> {
        self.run(&Put(vec![Effect::PutSession(session)]), &Vouch::Kernel { told: None })
    }

    /// Takes a session off the list.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_session(&self, session: SessionId) -> Result<(), Failure> {
        self.run(&Put(vec![Effect::DropSession { session }]), &Vouch::Kernel { told: None })
    }

    /// Records that the blocks of slices are gone, in one commit.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_garbage(&self, slices: &[SliceId]) -> Result<(), Failure> {
        let effects = slices.iter().map(|&slice| Effect::DropGarbage { slice }).collect();
        self.run(&Put(effects), &Vouch::Kernel { told: None })
    }

    /// The next number that nobody has taken, as the database says.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read_counter(&self, counter: Counter) -> Result<u64, Failure> {
        let facts = self.retry(|| self.engine().read(&[Want::Counter(counter)]))?;
        match facts.records.first() {
            Some(Record::Counter(_, value)) => Ok(*value),
            _ => Err(EngineError::permanent("the engine does not say how far a counter is").into()),
        }
    }

    /// Takes `count` numbers that no client had before, and returns the first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn lease(&self, counter: Counter, count: u64) -> Result<u64, Failure> {
        self.run(&Lease { counter, count }, &Vouch::Kernel { told: None })
    }
}

/// A session number that is not leased: its upper bit is set, the rest is random. Were it the time, two clients that
/// open a volume in the same moment would share an operation id, and so a session.
pub(crate) fn random_session() -> SessionId {
    SessionId(1 << 63 | host::random())
}

/// What may be changed of a volume once it is made; `None` leaves a setting as it is. A client that has the volume open
/// goes by the change once it has read the settings again ([`Meta::refresh_settings`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configure {
    /// Bytes the files may have in all; 0 = no limit. What is beyond it already stays.
    pub capacity_bytes: Option<u64>,
    /// Inodes the volume may have in all; 0 = no limit. What is beyond it already stays.
    pub max_inodes: Option<u64>,
    /// Files up to this many bytes lie in the metadata, from their next write on.
    pub inline_bytes: Option<u32>,
    /// What chmod does to NFSv4 ACLs from now on.
    pub aclmode: Option<AclMode>,
    /// What new files get of NFSv4 ACLs from now on.
    pub aclinherit: Option<AclInherit>,
    /// Whether listings show a caller only what he may read.
    pub abe: Option<bool>,
    /// Whether the object store must hold the volume's marker.
    pub store_marker: Option<bool>,
}

impl Op for Configure {
    type Reply = ();
    const NAME: &'static str = "configure";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
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

/// How settings say yes and no.
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

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<u64>, Stop> {
        let first = view.counter(self.counter)?;
        let value = first.checked_add(self.count).filter(|&v| v <= i64::MAX as u64).ok_or(Errno::ENOSPC)?;
        Ok(Plan { reply: first, effects: vec![Effect::SetCounter { counter: self.counter, value }] })
    }
}

/// Effects that need no rule.
struct Put(Vec<Effect>);

impl Op for Put {
    type Reply = ();
    const NAME: &'static str = "housekeeping";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        Ok(Plan { reply: (), effects: self.0.clone() })
    }
}
