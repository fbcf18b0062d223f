//! The attributes of an inode that access depends on, from a volume's records or from the kernel.

use acl::identity::DomainTable;
use acl::nfs4::{Entry, Mapped, Nfs4Acl, Who};
use acl::posix::PosixAcl;
use acl::sid_rules::SidRules;
use meta::{AclKind, Inode, Record};
use types::{AclId, FileType, Mode};

use crate::QueryError;

/// The rules that decide access to an inode, with the inode's ACL; `None` if the mode alone decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    Posix(Option<PosixAcl>),
    Nfs4(Option<Nfs4Rules>),
}

/// An NFSv4 ACL, and the ACL that decides in its place if rules map SIDs in it to uids and gids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfs4Rules {
    stored: Nfs4Acl,
    mapped: Option<Mapped>,
}

impl Nfs4Rules {
    /// The rules of this ACL on a volume with these SID rules.
    pub fn new(stored: Nfs4Acl, sid_rules: &SidRules) -> Self {
        let mapped = stored.mapped(sid_rules);
        Nfs4Rules { stored, mapped }
    }

    /// The ACL as it is stored.
    pub fn stored(&self) -> &Nfs4Acl {
        &self.stored
    }

    /// The ACL that decides.
    pub fn deciding(&self) -> &Nfs4Acl {
        self.mapped.as_ref().map_or(&self.stored, |mapped| &mapped.acl)
    }

    /// The stored entry from which the entry at this index of [`Self::deciding`] was made.
    pub fn stored_entry(&self, at: usize) -> Option<Entry> {
        let at = self.mapped.as_ref().map_or(Some(at), |mapped| mapped.origin(at))?;
        self.stored.entries().get(at).copied()
    }

    /// The uids of the users that entries name, by number or by a SID that is mapped.
    pub fn users(&self) -> impl Iterator<Item = u32> + '_ {
        self.deciding().entries().iter().enumerate().filter_map(|(at, entry)| {
            match (entry.who, self.stored_entry(at)?.who) {
                // A group's SID is also mapped to a user entry of the same number. Skip it: no such user
                // exists.
                (Who::User(id), Who::User(_)) => id.to_system(),
                _ => None,
            }
        })
    }
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
    /// damaged. `sid_rules` map its SIDs.
    pub(crate) fn read(kind: AclKind, id: AclId, text: &str, sid_rules: &SidRules) -> Option<Rules> {
        match kind {
            AclKind::Off | AclKind::Posix => {
                let acl = PosixAcl::from_storage(text).ok().filter(|acl| acl.id() == id)?;
                Some(Rules::Posix(Some(acl)))
            }
            AclKind::Nfs4 => {
                let acl = Nfs4Acl::from_storage(text).ok().filter(|acl| acl.id() == id)?;
                Some(Rules::Nfs4(Some(Nfs4Rules::new(acl, sid_rules))))
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
            Rules::Nfs4(acl) => acl.as_ref().map(|acl| acl.stored.by_sid(domains).to_string()),
        }
    }

    /// The highest index of a Windows domain in the ACL; 0 if it names none.
    pub fn highest_domain(&self) -> u32 {
        match self {
            Rules::Nfs4(Some(acl)) => acl.stored.highest_domain(),
            _ => 0,
        }
    }
}

impl AccessAttrs {
    /// # Errors
    /// [`QueryError::Acl`] if the inode's ACL is not among `records`, or is damaged.
    pub(crate) fn of(
        inode: &Inode,
        acl: AclKind,
        sid_rules: &SidRules,
        records: &[Record],
    ) -> Result<Self, QueryError> {
        let id = inode.access_acl;
        let rules = if id.is_none() {
            Rules::plain(acl)
        } else {
            let text = records.iter().find_map(|record| match record {
                Record::Acl(found, Some(text)) if *found == id => Some(text),
                _ => None,
            });
            let rules = text.and_then(|text| Rules::read(acl, id, text, sid_rules));
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
