//! The ACL and the mode that a new file gets from the ACL of its directory.

use types::{FileType, Mode};

use super::mode::{around, group_mask};
use super::{AclError, AclFlags, AclMode, Entry, EntryFlags, Kind, Mask, Nfs4Acl};

/// The rule by which entries pass to new children: the volume's `aclinherit`, `zfsprops(7)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AclInherit {
    /// No entry passes.
    Discard,
    /// All entries except allow entries pass.
    NoAllow,
    /// All entries pass, but allow entries lose the permissions to change ACL and owner.
    #[default]
    Restricted,
    /// All entries pass unchanged. Entries for owner, group or everyone replace the mode and the umask.
    Passthrough,
    /// Like `Passthrough`, but a file is executable only if its creator requested that.
    PassthroughX,
}

impl AclInherit {
    pub const ALL: [AclInherit; 5] = [
        AclInherit::Discard,
        AclInherit::NoAllow,
        AclInherit::Restricted,
        AclInherit::Passthrough,
        AclInherit::PassthroughX,
    ];

    /// The value of the ZFS property.
    pub fn name(self) -> &'static str {
        match self {
            AclInherit::Discard => "discard",
            AclInherit::NoAllow => "noallow",
            AclInherit::Restricted => "restricted",
            AclInherit::Passthrough => "passthrough",
            AclInherit::PassthroughX => "passthrough-x",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The volume's two policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    pub mode: AclMode,
    pub inherit: AclInherit,
}

/// The mode and ACL of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    pub mode: Mode,
    /// `None` if the mode alone grants the same.
    pub acl: Option<Nfs4Acl>,
}

/// The permissions of a file created with `mode` and the low nine bits of `umask` in a directory with this
/// ACL. Equivalent to `zfs_acl_ids_create` and `zfs_acl_inherit`, which receive a mode from which the bits of
/// the umask are already removed. SUID, SGID and sticky bits of `mode` stay.
///
/// Symbolic links, and files in directories without inheritable entries, get the mode and no ACL. For other
/// files, the entries that pass are marked as inherited. Entries for the mode are put around them, unless the
/// policy lets them replace the mode. The file's mode is then that of the resulting ACL. Under
/// [`AclMode::GroupMask`], the entries that pass allow no more than the group bits of `mode` before the
/// umask, as under a POSIX default ACL, unless the policy passes entries unchanged. The only flag of the list
/// that passes is `AUTO_INHERIT` (RFC 8881 section 6.4.3.2).
///
/// # Errors
/// [`AclError::TooLong`] if the entries for the mode exceed the limit.
pub fn inherit(
    parent: Option<&Nfs4Acl>,
    mode: Mode,
    umask: u32,
    file_type: FileType,
    policy: Policy,
) -> Result<Inherited, AclError> {
    if file_type == FileType::Symlink {
        return Ok(Inherited { mode, acl: None });
    }
    let (asked, mode) = (mode, mode.without(umask & 0o777));
    let Some(parent) = parent.filter(|parent| parent.is_inheritable()) else {
        return Ok(Inherited { mode, acl: None });
    };
    let is_dir = file_type.is_dir();
    let passing: Vec<Entry> =
        parent.entries().iter().filter_map(|entry| pass(entry, mode, is_dir, policy.inherit)).collect();
    let flags = parent.flags() & AclFlags::AUTO_INHERIT;
    let acl = if replaces_mode(&passing, file_type, policy) {
        Nfs4Acl::new(flags, passing)?
    } else {
        // `AUTO_INHERIT` means that tools may replace the inherited entries later. Here there are none.
        let flags = if passing.is_empty() { AclFlags::NONE } else { flags };
        let passthrough = matches!(policy.inherit, AclInherit::Passthrough | AclInherit::PassthroughX);
        let is_masked = policy.mode == AclMode::GroupMask && !passthrough;
        let trim = if is_masked { group_mask(asked, is_dir) } else { Mask::ALL };
        around(flags, passing, mode, is_dir, trim)?
    };
    Ok(Inherited { mode: mode.without(0o777).with(acl.mode_bits()), acl: acl.unless_trivial(is_dir) })
}

/// The entry of the child, or None if the entry does not pass.
fn pass(entry: &Entry, mode: Mode, is_dir: bool, how: AclInherit) -> Option<Entry> {
    let flags = entry.flags;
    // A directory also takes an entry that is for files only, to pass it on to its own files, unless the
    // entry propagates one level only.
    let passes = if is_dir {
        flags.has(EntryFlags::DIRECTORY_INHERIT)
            || flags.has(EntryFlags::FILE_INHERIT) && !flags.has(EntryFlags::NO_PROPAGATE_INHERIT)
    } else {
        flags.has(EntryFlags::FILE_INHERIT)
    };
    let allows = entry.kind == Kind::Allow;
    if !passes || how == AclInherit::Discard || how == AclInherit::NoAllow && allows {
        return None;
    }
    let mut mask = entry.mask;
    if how == AclInherit::Restricted && allows {
        mask = mask.without(Mask::WRITE_ACL | Mask::WRITE_OWNER);
    }
    if how == AclInherit::PassthroughX && allows && !is_dir && mode.bits() & 0o111 == 0 {
        mask = mask.without(Mask::EXECUTE);
    }
    let flags = if !is_dir || flags.has(EntryFlags::NO_PROPAGATE_INHERIT) {
        flags.without(EntryFlags::OF_DIRECTORIES)
    } else if flags.has(EntryFlags::DIRECTORY_INHERIT) {
        flags.without(EntryFlags::INHERIT_ONLY)
    } else {
        flags.with(EntryFlags::INHERIT_ONLY)
    };
    Some(Entry { flags: flags.with(EntryFlags::INHERITED), mask, ..*entry })
}

/// Whether the entries that pass are the whole ACL, without entries for the mode.
fn replaces_mode(passing: &[Entry], file_type: FileType, policy: Policy) -> bool {
    match policy.inherit {
        AclInherit::Passthrough | AclInherit::PassthroughX
            if matches!(file_type, FileType::Regular | FileType::Directory) =>
        {
            // Inherit-only entries say nothing about the directory itself.
            passing.iter().any(|entry| entry.who.is_special() && !entry.flags.has(EntryFlags::INHERIT_ONLY))
                || restricted(passing, policy)
        }
        _ => restricted(passing, policy),
    }
}

/// Whether the inherited entries stay unchanged because of `AclMode::Restricted`: under this policy a chmod
/// of a file with an ACL fails, so the creation does not apply the mode to the ACL either.
fn restricted(passing: &[Entry], policy: Policy) -> bool {
    policy.mode == AclMode::Restricted && !passing.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> Nfs4Acl {
        Nfs4Acl::from_storage(text).unwrap()
    }

    fn made(
        parent: &str,
        mode: u32,
        file_type: FileType,
        inherit_as: AclInherit,
        mode_as: AclMode,
    ) -> (u32, String) {
        let policy = Policy { mode: mode_as, inherit: inherit_as };
        let child = inherit(Some(&acl(parent)), Mode::new(mode), 0o022, file_type, policy).unwrap();
        (child.mode.bits(), child.acl.map_or("none".into(), |acl| acl.to_storage()))
    }

    const FILE: FileType = FileType::Regular;
    const DIR: FileType = FileType::Directory;
    const OWN_644: &str = "A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:rtncy";

    #[test]
    fn policies_select_the_inherited_entries() {
        let parent = "flags:ap,A:fd:5:rwxCo,D:f:6:w,A::7:r,A:d:8:r";
        let file = |how| made(parent, 0o666, FILE, how, AclMode::Discard);
        assert_eq!(file(AclInherit::Discard), (0o644, "none".into()));
        assert_eq!(file(AclInherit::NoAllow), (0o644, format!("flags:a,D:I:6:w,{OWN_644}")));
        assert_eq!(file(AclInherit::Restricted), (0o644, format!("flags:a,A:I:5:rwx,D:I:6:w,{OWN_644}")));
        assert_eq!(file(AclInherit::Passthrough), (0o644, format!("flags:a,A:I:5:rwxCo,D:I:6:w,{OWN_644}")));
        assert_eq!(file(AclInherit::PassthroughX), (0o644, format!("flags:a,A:I:5:rwCo,D:I:6:w,{OWN_644}")));
        let trimmed = made(parent, 0o666, FILE, AclInherit::Restricted, AclMode::GroupMask);
        assert_eq!(trimmed.1, format!("flags:a,A:I:5:rw,D:I:6:w,{OWN_644}"), "the umask is no mask");
        let private = made(parent, 0o600, FILE, AclInherit::Restricted, AclMode::GroupMask);
        assert!(private.1.starts_with("flags:a,A:I:5:,D:I:6:w,A::OWNER@:rw"), "{}", private.1);
        let kept = made(parent, 0o666, FILE, AclInherit::Passthrough, AclMode::GroupMask);
        assert_eq!(kept.1, format!("flags:a,A:I:5:rwxCo,D:I:6:w,{OWN_644}"));
    }

    #[test]
    fn policies_have_names() {
        assert!(AclInherit::ALL.iter().all(|policy| AclInherit::from_name(policy.name()) == Some(*policy)));
        assert_eq!(AclInherit::from_name("passthroughx"), None);
    }

    #[test]
    fn flags_control_how_far_entries_pass() {
        let passed = |flags: &str, file_type| {
            let (_, text) =
                made(&format!("D:{flags}:5:w"), 0o777, file_type, AclInherit::Restricted, AclMode::Discard);
            text.split(',').find(|entry| entry.contains(":5:")).map(str::to_owned)
        };
        for (flags, to_file, to_dir) in [
            ("f", Some("D:I:5:w"), Some("D:fiI:5:w")),
            ("d", None, Some("D:dI:5:w")),
            ("fd", Some("D:I:5:w"), Some("D:fdI:5:w")),
            ("fdi", Some("D:I:5:w"), Some("D:fdI:5:w")),
            ("fdn", Some("D:I:5:w"), Some("D:I:5:w")),
            ("fdni", Some("D:I:5:w"), Some("D:I:5:w")),
            ("fn", Some("D:I:5:w"), None),
            ("dn", None, Some("D:I:5:w")),
            ("di", None, Some("D:dI:5:w")),
            ("I", None, None),
        ] {
            assert_eq!(passed(flags, FILE).as_deref(), to_file, "{flags}");
            assert_eq!(passed(flags, DIR).as_deref(), to_dir, "{flags}");
        }
    }

    #[test]
    fn passthrough_replaces_mode_and_umask() {
        let parent = "A:fd:OWNER@:rwax,A:fd:GROUP@:rwax,A:fd:EVERYONE@:rx";
        for how in [AclInherit::Passthrough, AclInherit::PassthroughX] {
            assert_eq!(
                made(parent, 0o700, DIR, how, AclMode::Discard),
                (0o775, "A:fdI:OWNER@:rwax,A:fdI:GROUP@:rwax,A:fdI:EVERYONE@:rx".into())
            );
            assert_eq!(made(parent, 0o700, FileType::Fifo, how, AclMode::Discard).0 & 0o700, 0o700);
        }
        let file = |how| made(parent, 0o600, FILE, how, AclMode::Discard).0;
        assert_eq!(file(AclInherit::Passthrough), 0o775);
        assert_eq!(file(AclInherit::PassthroughX), 0o664);
        // An entry for files only does not change the mode of a directory.
        let (mode, text) = made("A:f:OWNER@:rwax", 0o750, DIR, AclInherit::Passthrough, AclMode::Discard);
        assert_eq!(mode, 0o750);
        assert!(text.starts_with("A:fiI:OWNER@:rwax,A::OWNER@:"), "{text}");
    }

    #[test]
    fn restricted_mode_keeps_inherited_entries_unchanged() {
        assert_eq!(
            made("A:fd:5:rx", 0o777, FILE, AclInherit::Restricted, AclMode::Restricted),
            (0, "A:I:5:rx".into())
        );
        assert_eq!(
            made("A:d:5:rx", 0o777, FILE, AclInherit::Restricted, AclMode::Restricted),
            (0o755, "none".into())
        );
    }

    #[test]
    fn symlinks_and_children_without_inheritable_entries_get_no_acl() {
        let (parent, plain) = (acl("A:fd:5:r"), acl("A::5:r"));
        let made = |parent, file_type| {
            inherit(parent, Mode::new(0o4777), 0o7022, file_type, Policy::default()).unwrap()
        };
        assert_eq!(made(Some(&parent), FileType::Symlink), Inherited { mode: Mode::new(0o4777), acl: None });
        assert_eq!(made(Some(&plain), FILE), Inherited { mode: Mode::new(0o4755), acl: None });
        assert_eq!(made(None, DIR), Inherited { mode: Mode::new(0o4755), acl: None });
        let full = Nfs4Acl::new(AclFlags::NONE, vec![parent.entries()[0]; Nfs4Acl::MAX_ENTRIES]).unwrap();
        let too_long = inherit(Some(&full), Mode::new(0o600), 0, FILE, Policy::default());
        assert_eq!(too_long, Err(AclError::TooLong));
    }
}
