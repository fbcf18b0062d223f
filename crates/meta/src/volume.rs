//! A volume: its settings, and how it is created.

use acl::nfs4::{AclInherit, AclMode, Policy};
use acl::sid_rules::SidRules;
use types::{FileType, Ino, Mode, OpId, QuotaId, Time};

use crate::backup::DEFAULT_BACKUP_SECS;
use crate::engine::{Engine, EngineError, Outcome};
use crate::quota::{QuotaKey, QuotaRule, QuotaTag};
use crate::record::{Counter, DIR_BYTES, Inode, Record, RecordKey, Settings, blocks_of};
use crate::txn::{Effect, Guard, Txn};

/// The version of the record layout. This build writes this version, and rejects volumes of a newer one.
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

/// The default of [`Volume::inline_bytes`].
pub const DEFAULT_INLINE_BYTES: u32 = 4096;

/// The settings of a volume. `limen format` writes most of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub uuid: String,
    /// The kind of object store, for example `file`.
    pub storage: String,
    /// The address of the object store; its form depends on the kind.
    pub bucket: String,
    /// The compression of blocks, by its name in the crate `chunk`; `none` for no compression.
    pub compression: String,
    /// The encryption of blocks, in the stored form of the crate `chunk`; empty for no encryption. It
    /// contains no secrets.
    pub encryption: String,
    pub acl: AclKind,
    /// The policy for NFSv4 ACLs: how chmod changes them (`aclmode`), and how new files inherit them
    /// (`aclinherit`).
    pub policy: Policy,
    /// The rules that map SIDs in NFSv4 ACLs to uids and gids.
    pub sid_rules: SidRules,
    /// Files of up to this many bytes are stored in the metadata.
    pub inline_bytes: u32,
    /// The limit for the total size of all files in bytes; 0 = no limit.
    pub capacity_bytes: u64,
    /// The limit for the number of inodes; 0 = no limit.
    pub max_inodes: u64,
    /// Whether listings show a caller only the entries that it may read, on every mount.
    pub abe: bool,
    /// Whether every mount commits all changes before it answers them, as with `-o sync_metadata`.
    pub sync_metadata: bool,
    /// The time between two automatic backups of the metadata, in seconds; 0 = no automatic backups.
    pub backup_secs: u64,
    /// How long removed files are kept in the trash, in days; 0 = removed files are deleted at once.
    pub trash_days: u64,
    /// Whether the object store must hold the marker that names this volume. `false` for volumes that were
    /// formatted before the marker existed, and for storage in memory.
    pub store_marker: bool,
    /// The text that `limen load` stored: a random part, and the id of the dump. Empty if `limen format`
    /// created the volume in this database. The store's marker contains the text of the database that uses
    /// the store. A database with another text, such as the one from which the dump was made, cannot use it.
    pub loaded: String,
    /// How often the volume has moved to a copy of its objects. A client that has read another number may
    /// still use the previous object store.
    pub moves: u64,
    pub created: Time,
}

/// Why a volume cannot be opened or formatted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("no volume found: run `limen format` first")]
    NotFormatted,
    #[error("a dump was loaded here only in part")]
    Loading,
    #[error(
        "volume '{name}' was formatted by a newer limen (format {found}, this one knows {FORMAT_VERSION})"
    )]
    Newer { name: String, found: String },
    #[error("there is already a volume '{name}', created {created}; remove it with `limen destroy`")]
    Exists { name: String, created: String },
    #[error("the volume's setting '{setting}' is missing or damaged (value: {value:?})")]
    Damaged { setting: &'static str, value: Option<String> },
    #[error(transparent)]
    Failed(#[from] EngineError),
}

impl Volume {
    /// The name of the setting in which a load of a dump stores its progress; empty or absent if no load is
    /// in progress.
    pub const LOADING: &str = "loading";

    /// The name of the setting [`Volume::sid_rules`]; absent if there has never been a rule.
    pub const SID_RULES: &str = "sid_rules";

    /// The name of the setting with the progress of the removal of unused ACLs: the session that last began a
    /// step of the removal, and the number of this step; absent if no session ever began one.
    pub const ACL_SWEEP: &str = "acl_sweep";

    /// The name of the setting [`Volume::trash_days`]; absent on volumes that were formatted before there was
    /// a trash.
    pub const TRASH_DAYS: &str = "trash_days";

    /// The name of the setting [`Volume::sync_metadata`]; absent if it was never set.
    pub const SYNC_METADATA: &str = "sync_metadata";

    /// The name of the setting [`Volume::loaded`].
    pub const LOADED: &str = "loaded";

    /// The name of the setting [`Volume::moves`]; absent if it is 0.
    pub const MOVES: &str = "moves";

    /// A volume whose blocks are in memory, with the defaults of `limen format`. Its id and its time of
    /// creation are fixed.
    pub fn in_memory(name: &str) -> Volume {
        Volume {
            name: name.into(),
            uuid: "0b6a1a4e-6d1c-4b53-9d5a-0a4f2b1f4f10".into(),
            storage: "memory".into(),
            bucket: String::new(),
            compression: "none".into(),
            encryption: String::new(),
            acl: AclKind::Posix,
            policy: Policy::default(),
            sid_rules: SidRules::default(),
            inline_bytes: DEFAULT_INLINE_BYTES,
            capacity_bytes: 0,
            max_inodes: 0,
            abe: false,
            sync_metadata: false,
            backup_secs: DEFAULT_BACKUP_SECS,
            trash_days: 0,
            store_marker: false,
            loaded: String::new(),
            moves: 0,
            created: Time::new(1_700_000_000, 7),
        }
    }

    /// Creates a volume: its settings, and an empty root directory that user 0 owns.
    ///
    /// # Errors
    /// [`VolumeError::Exists`], those of [`Volume::load`] if the database contains a volume that cannot be
    /// loaded, and those of the database.
    pub fn format(&self, engine: &dyn Engine) -> Result<(), VolumeError> {
        let root = Inode {
            size: DIR_BYTES,
            parent: Ino::ROOT,
            ..Inode::new(Ino::ROOT, FileType::Directory, Mode::new(0o755), self.created)
        };
        let mut effects: Vec<Effect> = self.settings().into();
        effects.push(Effect::PutInode(root));
        if self.trash_days > 0 {
            effects.extend(Volume::trash_root(self.created, false));
            let key = QuotaKey::Directory(QuotaId::TRASH);
            effects.push(Effect::Charge { key, inodes: 1, blocks: 0 });
        }
        let first = [(Counter::Ino, Ino::ROOT.0 + 1), (Counter::Slice, 1), (Counter::Session, 1)];
        effects.extend(first.map(|(counter, value)| Effect::SetCounter { counter, value }));
        let guards =
            ["format_version", Volume::LOADING].map(|name| Guard::Setting { name, value: None }).into();
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

    /// The effects that create the root of the trash, and the quota that counts the trash. No name refers to
    /// this directory. `owners` says whether the directory counts in the quotas of its owner and group.
    pub fn trash_root(now: Time, owners: bool) -> [Effect; 2] {
        let root = Inode {
            size: DIR_BYTES,
            parent: Ino::ROOT,
            quota: QuotaTag::new(QuotaId::TRASH, owners),
            ..Inode::new(Ino::TRASH, FileType::Directory, Mode::new(0o711), now)
        };
        let rule = QuotaRule { root: Ino::TRASH, ..QuotaRule::default() };
        let key = QuotaKey::Directory(QuotaId::TRASH);
        [Effect::PutInode(root), Effect::PutQuota { key, rule }]
    }

    /// Reads the volume's settings.
    ///
    /// # Errors
    /// Those of [`Volume::parse`] and of the database.
    pub fn load(engine: &dyn Engine) -> Result<Volume, VolumeError> {
        let snapshot = engine.read(&[RecordKey::Settings])?;
        match snapshot.records.first() {
            Some(Record::Settings(settings)) => Volume::parse(settings),
            _ => Err(VolumeError::NotFormatted),
        }
    }

    fn settings(&self) -> [Effect; 18] {
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
            ("backup_secs", self.backup_secs.to_string()),
            (Volume::TRASH_DAYS, self.trash_days.to_string()),
            ("store_marker", on_off(self.store_marker).to_owned()),
            ("created", self.created.nanos().to_string()),
        ]
        .map(|(name, value)| Effect::PutSetting { name, value })
    }

    /// The volume with these settings.
    ///
    /// # Errors
    /// - [`VolumeError::Loading`]: there is no `format_version`, and a load of a dump is in progress.
    /// - [`VolumeError::NotFormatted`]: there is no `format_version`, and no load is in progress.
    /// - [`VolumeError::Newer`]: a newer build has formatted the volume.
    /// - [`VolumeError::Damaged`]: a setting is missing or malformed.
    pub fn parse(settings: &Settings) -> Result<Volume, VolumeError> {
        let get = |name: &str| settings.get(name).cloned();
        let Some(found) = get("format_version") else {
            let is_loading = get(Volume::LOADING).is_some_and(|marker| !marker.is_empty());
            return Err(if is_loading { VolumeError::Loading } else { VolumeError::NotFormatted });
        };
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
        // Volumes that were formatted before there was compression and encryption have neither setting. If
        // only one of them is missing, the volume is damaged: its blocks may be encrypted.
        let is_older = get("compression").is_none() && get("encryption").is_none();
        let (compression, encryption) = match is_older {
            true => ("none".to_owned(), String::new()),
            false => (text("compression")?, text("encryption")?),
        };
        // Volumes that were formatted before NFSv4 ACLs existed have no policies for them.
        let aclmode = get("aclmode").map(|name| AclMode::from_name(&name).ok_or_else(|| damaged("aclmode")));
        let inherit = get("aclinherit");
        let inherit = inherit.map(|name| AclInherit::from_name(&name).ok_or_else(|| damaged("aclinherit")));
        Ok(Volume {
            name,
            uuid: text("uuid")?,
            storage: text("storage")?,
            bucket: text("bucket")?,
            compression,
            encryption,
            acl: AclKind::parse(&text("acl")?).ok_or_else(|| damaged("acl"))?,
            policy: Policy {
                mode: aclmode.transpose()?.unwrap_or_default(),
                inherit: inherit.transpose()?.unwrap_or_default(),
            },
            sid_rules: SidRules::from_storage(&get(Volume::SID_RULES).unwrap_or_default())
                .ok_or_else(|| damaged(Volume::SID_RULES))?,
            inline_bytes: u32::try_from(number("inline_bytes")?).map_err(|_| damaged("inline_bytes"))?,
            capacity_bytes: number("capacity_bytes")?,
            max_inodes: number("max_inodes")?,
            // Volumes that were formatted before these settings existed have them off.
            abe: flag("abe")?,
            sync_metadata: flag(Volume::SYNC_METADATA)?,
            // Volumes that were formatted before there were automatic backups get them too.
            backup_secs: match get("backup_secs") {
                Some(_) => number("backup_secs")?,
                None => DEFAULT_BACKUP_SECS,
            },
            moves: match get(Volume::MOVES) {
                Some(_) => number(Volume::MOVES)?,
                None => 0,
            },
            trash_days: match get(Volume::TRASH_DAYS) {
                Some(_) => number(Volume::TRASH_DAYS)?,
                None => 0,
            },
            store_marker: flag("store_marker")?,
            loaded: get(Volume::LOADED).unwrap_or_default(),
            created: Time::from_nanos(text("created")?.parse().map_err(|_| damaged("created"))?),
        })
    }

    /// Whether `self` is the same volume as `earlier`, which was read before: the two differ at most in
    /// settings that can be changed.
    pub fn is_same_volume(&self, earlier: &Volume) -> bool {
        let Volume {
            capacity_bytes,
            max_inodes,
            inline_bytes,
            abe,
            sync_metadata,
            backup_secs,
            trash_days,
            policy,
            store_marker,
            ..
        } = *earlier;
        // `limen config --bucket` may set another address of the same objects. If the objects there are a
        // copy, it also increments `moves`, which is compared below.
        let (storage, bucket) = (earlier.storage.clone(), earlier.bucket.clone());
        let changed = Volume {
            storage,
            bucket,
            capacity_bytes,
            max_inodes,
            inline_bytes,
            abe,
            sync_metadata,
            backup_secs,
            trash_days,
            policy,
            sid_rules: earlier.sid_rules.clone(),
            ..self.clone()
        };
        // `limen config` can turn POSIX ACLs on. Any other difference in `acl` means another volume.
        let acl = if self.acl == AclKind::Posix { AclKind::Off } else { self.acl };
        let acl = if earlier.acl == AclKind::Off { acl } else { self.acl };
        Volume { store_marker, acl, ..changed } == *earlier
    }

    /// The limits for [`Guard::Room`]; `None` if there are none.
    pub fn limits(&self) -> Option<(u64, u64)> {
        if self.max_inodes == 0 && self.capacity_bytes == 0 {
            return None;
        }
        let or_none = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Some((or_none(self.max_inodes), or_none(blocks_of(self.capacity_bytes))))
    }
}

/// The stored form of a flag.
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
