//! The ACLs and the mode that a new file gets from the default ACL of its directory.

use types::{FileType, Mode};

use super::PosixAcl;

/// The mode and ACLs of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    pub mode: Mode,
    pub access: Option<PosixAcl>,
    pub default: Option<PosixAcl>,
}

/// The permissions of a file created with `mode` and the low nine bits of `umask` in a directory with this
/// default ACL. Equivalent to `posix_acl_create` and `posix_acl_create_masq`.
///
/// Without a default ACL, the umask limits the mode. With a default ACL, even a minimal one, the umask is
/// ignored. The file's access ACL is the default ACL in which the mode limits the entries of the owner, of
/// others, and of the mask (of the owning group if there is no mask). The file's mode has the bits that both
/// `mode` and the default ACL allow. Directories also inherit the default ACL unchanged. Symbolic links get
/// no ACL and ignore the umask. SUID, SGID and sticky bits of `mode` stay.
pub fn inherit(default: Option<&PosixAcl>, mode: Mode, umask: u32, file_type: FileType) -> Inherited {
    if file_type == FileType::Symlink {
        return Inherited { mode, access: None, default: None };
    }
    let Some(default) = default else {
        return Inherited { mode: mode.without(umask & 0o777), access: None, default: None };
    };
    let (allowed, minimal) = default.equiv_mode();
    let mode = mode.without(0o777 & !allowed);
    Inherited {
        mode,
        access: if minimal { None } else { Some(default.with_rwx(mode.rwx())) },
        default: if file_type.is_dir() { Some(default.clone()) } else { None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> PosixAcl {
        PosixAcl::from_storage(text).unwrap()
    }

    #[test]
    fn umask_applies_without_a_default_acl() {
        let plain = inherit(None, Mode::new(0o2777), 0o7022, FileType::Directory);
        assert_eq!(plain, Inherited { mode: Mode::new(0o2755), access: None, default: None });
    }

    #[test]
    fn minimal_default_acl_replaces_the_umask() {
        let default = acl("u::rwx,g::rwx,o::r-x");
        let file = inherit(Some(&default), Mode::new(0o666), 0o077, FileType::Regular);
        assert_eq!(file, Inherited { mode: Mode::new(0o664), access: None, default: None });
        let dir = inherit(Some(&default), Mode::new(0o777), 0o077, FileType::Directory);
        assert_eq!(dir, Inherited { mode: Mode::new(0o775), access: None, default: Some(default) });
    }

    #[test]
    fn mode_limits_the_inherited_acl() {
        let default = acl("u::rwx,u:5:rwx,g::rwx,m::r-x,o::-wx");
        let file = inherit(Some(&default), Mode::new(0o4642), 0o077, FileType::Regular);
        assert_eq!(file.mode, Mode::new(0o4642));
        assert_eq!(file.access, Some(acl("u::rw-,u:5:rwx,g::rwx,m::r--,o::-w-")));
        assert_eq!(file.default, None);
        let dir = inherit(Some(&default), Mode::new(0o777), 0, FileType::Directory);
        assert_eq!(
            dir,
            Inherited { mode: Mode::new(0o753), access: Some(default.clone()), default: Some(default) }
        );
    }

    #[test]
    fn symbolic_links_inherit_nothing() {
        let default = acl("u::r--,g::---,o::---");
        let link = inherit(Some(&default), Mode::new(0o777), 0o077, FileType::Symlink);
        assert_eq!(link, Inherited { mode: Mode::new(0o777), access: None, default: None });
    }
}
