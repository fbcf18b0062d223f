//! The principals that an NFSv4 ACL can name: users and groups of the system by number, and Windows
//! identities by SID.
//!
//! A SID (`S-1-5-21-…-1105`, [MS-DTYP] 2.4.2) is a *domain* and a number within it, the RID. The texts of
//! domains are long, and there are few domains. So a volume keeps them in an append-only table, and an ACL
//! holds the pair (index in the table, RID), as ZFS does with its FUIDs. Index 0 is the system itself: there
//! the RID is a uid or a gid.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// An index in the volume's [`DomainTable`]; 0 stands for the system's own users and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainIndex(u32);

impl DomainIndex {
    pub const SYSTEM: DomainIndex = DomainIndex(0);

    /// None for an index above the maximum.
    pub fn new(index: u32) -> Option<Self> {
        (index as usize <= DomainTable::MAX_DOMAINS).then_some(DomainIndex(index))
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

/// A principal as an ACL names it: a user or group of the system, or an identity of a Windows domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    domain: DomainIndex,
    rid: u32,
}

impl Id {
    /// A uid or gid; None for -1, which is not a valid id.
    pub fn system(id: u32) -> Option<Self> {
        (id != u32::MAX).then_some(Id { domain: DomainIndex::SYSTEM, rid: id })
    }

    /// An identity of a domain; with [`DomainIndex::SYSTEM`] the same as [`Self::system`].
    pub fn new(domain: DomainIndex, rid: u32) -> Option<Self> {
        if domain == DomainIndex::SYSTEM { Self::system(rid) } else { Some(Id { domain, rid }) }
    }

    pub fn domain(self) -> DomainIndex {
        self.domain
    }

    pub fn rid(self) -> u32 {
        self.rid
    }

    /// The uid or gid, if it is one.
    pub fn to_system(self) -> Option<u32> {
        (self.domain == DomainIndex::SYSTEM).then_some(self.rid)
    }
}

/// A decimal uid or gid, or `index-rid` for an identity of a domain: the form that ACLs are stored in.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_system() {
            Some(id) => write!(f, "{id}"),
            None => write!(f, "{}-{}", self.domain.0, self.rid),
        }
    }
}

/// The text is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a uid, gid, domain-rid pair or SID such as S-1-5-21-1-2-3-1105")]
pub struct ParseIdError;

impl FromStr for Id {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (domain, rid) = match text.split_once('-') {
            Some((domain, rid)) => {
                let domain = DomainIndex::new(decimal(domain)?).ok_or(ParseIdError)?;
                if domain == DomainIndex::SYSTEM {
                    return Err(ParseIdError);
                }
                (domain, rid)
            }
            None => (DomainIndex::SYSTEM, text),
        };
        Id::new(domain, decimal(rid)?).ok_or(ParseIdError)
    }
}

/// A SID without its last number, e.g. `S-1-5-21-1-2-3`; always in canonical text, so that equal domains
/// compare equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(Arc<str>);

impl Domain {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Domain {
    type Err = ParseIdError;

    /// Parses `S-1-`, the authority, and up to 14 numbers. Leading zeros and a hexadecimal authority are made
    /// canonical.
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        canonical_sid(text, 14).map(|text| Domain(text.into()))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A Windows security identifier with at least one subauthority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sid {
    pub domain: Domain,
    pub rid: u32,
}

impl Sid {
    /// The user (`false`) or group (`true`) of a Unix system, if Samba made this SID for one: `S-1-22-1-UID`,
    /// `S-1-22-2-GID`.
    pub fn to_unix(&self) -> Option<(bool, u32)> {
        match self.domain.as_str() {
            "S-1-22-1" => Some((false, self.rid)),
            "S-1-22-2" => Some((true, self.rid)),
            _ => None,
        }
    }
}

impl FromStr for Sid {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (domain, rid) = text.rsplit_once('-').ok_or(ParseIdError)?;
        Ok(Sid { domain: domain.parse()?, rid: decimal(rid)? })
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.domain, self.rid)
    }
}

/// The domains in a volume, in the order in which they were added. Domains are never removed, so an index
/// keeps its meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainTable {
    domains: Vec<Domain>,
    /// The total length of the domains, each with one blank, in bytes.
    text_bytes: usize,
}

impl DomainTable {
    /// The highest index.
    pub const MAX_DOMAINS: usize = 65_535;
    /// The maximum length of the stored form. It has room for about 1,500 domains of the usual length, more
    /// than the 1,200 that Microsoft recommends as the maximum for an Active Directory forest. The limit
    /// bounds what hostile ACLs can add.
    pub const MAX_TEXT_BYTES: usize = 64 << 10;

    /// The table with these domains in this order; None if a domain is repeated or the table is too large.
    pub fn from_domains(domains: impl IntoIterator<Item = Domain>) -> Option<Self> {
        let mut table = DomainTable::default();
        for domain in domains {
            if table.find(&domain).is_some() {
                return None;
            }
            table.append(domain)?;
        }
        Some(table)
    }

    /// The domains in order, separated by blanks.
    pub fn to_storage(&self) -> String {
        self.domains.iter().map(Domain::as_str).collect::<Vec<_>>().join(" ")
    }

    /// Parses the output of [`Self::to_storage`]; None for any other text.
    pub fn from_storage(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(DomainTable::default());
        }
        let canonical = |piece: &str| piece.parse::<Domain>().ok().filter(|domain| domain.as_str() == piece);
        Self::from_domains(text.split(' ').map(canonical).collect::<Option<Vec<_>>>()?)
    }

    /// All domains. The first one has index 1.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    pub fn find(&self, domain: &Domain) -> Option<DomainIndex> {
        let position = self.domains.iter().position(|known| known == domain)?;
        u32::try_from(position + 1).ok().map(DomainIndex)
    }

    pub fn get(&self, index: DomainIndex) -> Option<&Domain> {
        self.domains.get((index.0 as usize).checked_sub(1)?)
    }

    /// The index of the domain, which is appended if it is new; None if the table is full.
    pub fn append(&mut self, domain: Domain) -> Option<DomainIndex> {
        if let Some(index) = self.find(&domain) {
            return Some(index);
        }
        let text_bytes = self.text_bytes + domain.as_str().len() + 1;
        if self.domains.len() >= Self::MAX_DOMAINS || text_bytes > Self::MAX_TEXT_BYTES {
            return None;
        }
        self.text_bytes = text_bytes;
        self.domains.push(domain);
        u32::try_from(self.domains.len()).ok().map(DomainIndex)
    }

    /// None if the domain is not in the table.
    pub fn id_of(&self, sid: &Sid) -> Option<Id> {
        Id::new(self.find(&sid.domain)?, sid.rid)
    }

    /// None for a uid or gid, and for a domain that is not in the table.
    pub fn sid_of(&self, id: Id) -> Option<Sid> {
        Some(Sid { domain: self.get(id.domain)?.clone(), rid: id.rid })
    }
}

fn canonical_sid(text: &str, max_subauthorities: usize) -> Result<String, ParseIdError> {
    let mut fields = text.split('-');
    let (Some("S" | "s"), Some("1"), Some(authority)) = (fields.next(), fields.next(), fields.next()) else {
        return Err(ParseIdError);
    };
    let authority = match authority.strip_prefix("0x").or(authority.strip_prefix("0X")) {
        Some(hex) if !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).map_err(|_| ParseIdError)?
        }
        Some(_) => return Err(ParseIdError),
        None => decimal(authority)?,
    };
    if authority >= 1 << 48 {
        return Err(ParseIdError);
    }
    // [MS-DTYP] 2.4.2.1: decimal below 2^32, else twelve hexadecimal digits.
    let mut canonical =
        if authority < 1 << 32 { format!("S-1-{authority}") } else { format!("S-1-0x{authority:012X}") };
    for (count, field) in fields.enumerate() {
        if count == max_subauthorities {
            return Err(ParseIdError);
        }
        canonical.push_str(&format!("-{}", decimal::<u32>(field)?));
    }
    Ok(canonical)
}

/// Accepts digits only, whereas `parse` also accepts a leading plus sign.
fn decimal<N: FromStr>(text: &str) -> Result<N, ParseIdError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseIdError);
    }
    text.parse().map_err(|_| ParseIdError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sids_are_made_canonical() {
        for (text, canonical) in [
            ("S-1-5-21-1004336348-1177238915-682003330-512", "S-1-5-21-1004336348-1177238915-682003330-512"),
            ("s-1-05-021-7", "S-1-5-21-7"),
            ("S-1-1-0", "S-1-1-0"),
            ("S-1-0x5-32-544", "S-1-5-32-544"),
            ("S-1-0xfffffffff-1", "S-1-0x000FFFFFFFFF-1"),
        ] {
            let sid: Sid = text.parse().unwrap();
            assert_eq!(sid.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(sid));
        }
        let longest = format!("S-1-5{}", "-4294967295".repeat(15));
        assert_eq!(longest.parse::<Sid>().unwrap().to_string(), longest);
    }

    #[test]
    fn malformed_sids_are_rejected() {
        let too_long = format!("S-1-5{}", "-1".repeat(16));
        for text in [
            "",
            "S",
            "S-1",
            "S-1-5",
            "S-2-5-1",
            "S-1-5-",
            "S-1--1",
            "S-1-5-4294967296",
            "S-1-5-+1",
            "S-1-5-1 ",
            "S-1-0x-1",
            "S-1-0x+5-1",
            "S-1-281474976710656-1",
            "X-1-5-1",
            &too_long,
        ] {
            assert_eq!(text.parse::<Sid>(), Err(ParseIdError), "{text}");
        }
    }

    #[test]
    fn indexes_in_the_table_do_not_change() {
        let mut table = DomainTable::default();
        let sid: Sid = "S-1-5-21-1-2-3-1105".parse().unwrap();
        assert_eq!(table.id_of(&sid), None);
        let index = table.append(sid.domain.clone()).unwrap();
        assert_eq!(index.get(), 1);
        assert_eq!(table.append("S-1-5-32".parse().unwrap()).unwrap().get(), 2);
        assert_eq!(table.append(sid.domain.clone()), Some(index));
        let id = table.id_of(&sid).unwrap();
        assert_eq!(id.to_string(), "1-1105");
        assert_eq!("1-1105".parse(), Ok(id));
        assert_eq!(table.sid_of(id), Some(sid.clone()));
        assert_eq!(table.sid_of(Id::system(1105).unwrap()), None);
        assert_eq!(table.sid_of("3-1".parse().unwrap()), None);
        assert_eq!(DomainTable::from_domains(table.domains().to_vec()), Some(table));
        assert_eq!(DomainTable::from_domains([sid.domain.clone(), sid.domain]), None);
    }

    #[test]
    fn table_has_a_stored_form_and_a_bound() {
        let text = "S-1-5-21-1-2-3 S-1-5-32 S-1-0x000FFFFFFFFF";
        let table = DomainTable::from_storage(text).unwrap();
        assert_eq!(table.to_storage(), text);
        assert_eq!(table.domains().len(), 3);
        assert_eq!(DomainTable::from_storage(""), Some(DomainTable::default()));
        for text in
            [" ", "S-1-5-32 ", "S-1-5-32  S-1-1", "s-1-5", "S-1-05", "S-1-5 S-1-5", "x", "S-1-5\nS-1-1"]
        {
            assert_eq!(DomainTable::from_storage(text), None, "{text:?}");
        }
        let mut table = DomainTable::default();
        let domain = |n: u32| format!("S-1-5-21-{n}-4294967295-4294967295").parse::<Domain>().unwrap();
        let full = (1_000_000..).find(|n| table.append(domain(*n)).is_none()).unwrap();
        assert!(table.domains().len() > 1_000 && table.to_storage().len() <= DomainTable::MAX_TEXT_BYTES);
        assert_eq!(
            table.append(domain(1_000_000)).map(DomainIndex::get),
            Some(1),
            "a known domain is found in a full table"
        );
        assert_eq!(table.find(&domain(full)), None);
        assert_eq!(DomainTable::from_storage(&table.to_storage()), Some(table));
    }

    #[test]
    fn unix_sids_of_samba_are_users_and_groups() {
        let unix = |text: &str| text.parse::<Sid>().unwrap().to_unix();
        assert_eq!(unix("S-1-22-1-1000"), Some((false, 1000)));
        assert_eq!(unix("S-1-22-2-0"), Some((true, 0)));
        for text in ["S-1-22-3-1", "S-1-22-1", "S-1-22-1-1-1", "S-1-5-21-1-2-3-1000"] {
            assert_eq!(unix(text), None, "{text}");
        }
    }

    #[test]
    fn ids_have_one_text_form() {
        for text in ["0", "4294967294", "1-0", "65535-4294967295"] {
            assert_eq!(text.parse::<Id>().unwrap().to_string(), text);
        }
        for text in ["", "-", "-1", "4294967295", "0-5", "65536-1", "1-4294967296", "1-1-1", "+1", "root"] {
            assert_eq!(text.parse::<Id>(), Err(ParseIdError), "{text}");
        }
    }
}
