//! The attributes of an inode that access depends on, from a volume's records or from the kernel.

use acl::identity::DomainTable;
use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use meta::{AclKind, Inode, Record};
use types::{AclId, FileType, Mode};

use crate::QueryError;

/// The rules that decide access to an inode, with the inode's ACL; `None` if the mode alone decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    Posix(Option<PosixAcl>),
    Nfs4(Option<Nfs4Acl>),
}

/// The attributes of an inode that access depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessAttrs {
    pub ino: u64,
    pub kind: FileType,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub rules: Rules,
}

impl Rules {
    /// The rules of an inode without an ACL, on a volume of this kind.
    pub(crate) fn plain(kind: AclKind) -> Rules {
        match kind {
            AclKind::Off | AclKind::Posix => Rules::Posix(None),
            AclKind::Nfs4 => Rules::Nfs4(None),
        }
    }

    /// The rules of an access ACL that a volume of this kind stores as `text` under `id`; `None` if it is
    /// damaged.
    pub(crate) fn read(kind: AclKind, id: AclId, text: &str) -> Option<Rules> {
        match kind {
            AclKind::Off | AclKind::Posix => {
                let acl = PosixAcl::from_storage(text).ok().filter(|acl| acl.id() == id)?;
                Some(Rules::Posix(Some(acl)))
            }
            AclKind::Nfs4 => {
                let acl = Nfs4Acl::from_storage(text).ok().filter(|acl| acl.id() == id)?;
                Some(Rules::Nfs4(Some(acl)))
            }
        }
    }

    /// Whether the inode has an ACL.
    pub fn has_acl(&self) -> bool {
        matches!(self, Rules::Posix(Some(_)) | Rules::Nfs4(Some(_)))
    }

    /// The ACL in its short form, with numeric ids. Identities of Windows domains are in the stored form
    /// (`1-1105`).
    pub fn acl_text(&self) -> Option<String> {
        self.acl_text_by_sid(&DomainTable::default())
    }

    /// As [`Rules::acl_text`], but with SIDs for identities of the domains in this table.
    pub fn acl_text_by_sid(&self, domains: &DomainTable) -> Option<String> {
        match self {
            Rules::Posix(acl) => acl.as_ref().map(ToString::to_string),
            Rules::Nfs4(acl) => acl.as_ref().map(|acl| acl.by_sid(domains).to_string()),
        }
    }

    /// The highest index of a Windows domain in the ACL; 0 if it names none.
    pub fn highest_domain(&self) -> u32 {
        match self {
            Rules::Nfs4(Some(acl)) => acl.highest_domain(),
            _ => 0,
        }
    }
}

impl AccessAttrs {
    /// # Errors
    /// [`QueryError::Acl`] if its ACL is not among `records`, or is damaged.
    pub(crate) fn of(inode: &Inode, acl: AclKind, records: &[Record]) -> Result<Self, QueryError> {
        let id = inode.access_acl;
        let rules = if id.is_none() {
            Rules::plain(acl)
        } else {
            let text = records.iter().find_map(|record| match record {
                Record::Acl(found, Some(text)) if *found == id => Some(text),
                _ => None,
            });
            let rules = text.and_then(|text| Rules::read(acl, id, text));
            rules.ok_or(QueryError::Acl { ino: inode.ino.0, id })?
        };
        Ok(AccessAttrs::with(inode, rules))
    }

    pub(crate) fn with(inode: &Inode, rules: Rules) -> Self {
        AccessAttrs {
            ino: inode.ino.0,
            kind: inode.kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            rules,
        }
    }
}
