//! What access to an inode depends on, wherever it was read.

use acl::identity::DomainTable;
use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use meta::{AclKind, Node, Record};
use types::{AclId, FileType, Mode};

use crate::Trouble;

/// The rules that an inode's access is decided by, and its ACL; none where its mode says it all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    Posix(Option<PosixAcl>),
    Nfs4(Option<Nfs4Acl>),
}

/// All that access to an inode depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub ino: u64,
    pub kind: FileType,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub rules: Rules,
}

impl Rules {
    /// The rules of a volume of this kind where the mode says it all.
    pub(crate) fn plain(kind: AclKind) -> Rules {
        match kind {
            AclKind::Off | AclKind::Posix => Rules::Posix(None),
            AclKind::Nfs4 => Rules::Nfs4(None),
        }
    }

    /// The rules under an access ACL that such a volume stores as `text` under `id`; `None` where it is damaged.
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

    /// Whether there is an ACL.
    pub fn has_acl(&self) -> bool {
        matches!(self, Rules::Posix(Some(_)) | Rules::Nfs4(Some(_)))
    }

    /// The ACL in its short form, with numeric ids; those of Windows domains as they are stored (`1-1105`).
    pub fn acl_text(&self) -> Option<String> {
        self.acl_text_by_sid(&DomainTable::default())
    }

    /// The same with SIDs, by the table in which the domains stand that the ACL names.
    pub fn acl_text_by_sid(&self, domains: &DomainTable) -> Option<String> {
        match self {
            Rules::Posix(acl) => acl.as_ref().map(ToString::to_string),
            Rules::Nfs4(acl) => acl.as_ref().map(|acl| acl.by_sid(domains).to_string()),
        }
    }

    /// The highest number of a Windows domain that the ACL names; 0 where it names none.
    pub fn highest_domain(&self) -> u32 {
        match self {
            Rules::Nfs4(Some(acl)) => acl.highest_domain(),
            _ => 0,
        }
    }
}

impl Subject {
    /// # Errors
    /// [`Trouble::Acl`]: its ACL is not among `records`, or damaged.
    pub(crate) fn of(node: &Node, acl: AclKind, records: &[Record]) -> Result<Self, Trouble> {
        let id = node.access_acl;
        let rules = if id.is_none() {
            Rules::plain(acl)
        } else {
            let text = records.iter().find_map(|record| match record {
                Record::Acl(found, Some(text)) if *found == id => Some(text),
                _ => None,
            });
            let rules = text.and_then(|text| Rules::read(acl, id, text));
            rules.ok_or(Trouble::Acl { ino: node.ino.0, id })?
        };
        Ok(Subject::with(node, rules))
    }

    pub(crate) fn with(node: &Node, rules: Rules) -> Self {
        Subject { ino: node.ino.0, kind: node.kind, mode: node.mode, uid: node.uid, gid: node.gid, rules }
    }
}
