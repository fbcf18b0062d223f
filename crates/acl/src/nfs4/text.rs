//! ACLs as text, in the syntax of `nfs4_acl(5)` with numeric ids: `type:flags:who:permissions`, e.g.
//! `A:fdg:1000:rx`.
//!
//! The stored form is the same with letters in a fixed order and entries separated by commas. If the list has
//! flags, it begins with `flags:` and their letters: `flags:a,A::OWNER@:rwx,D:g:1-1105:w`.

use std::fmt::{self, Write as _};

use crate::identity::DomainTable;

use super::{AclError, AclFlags, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who};

const FLAGS: &str = "flags:";
/// The letter of `ACE4_IDENTIFIER_GROUP`.
const GROUP_LETTER: char = 'g';

impl Nfs4Acl {
    /// Parses entries separated by commas or line ends. Blanks, and comments from `#` to the end of the line,
    /// are skipped, so that the output of `nfs4_getfacl` with numeric ids can be read. Letters may come in
    /// any order.
    ///
    /// # Errors
    /// Those of [`AclError`] except `Size`.
    pub fn from_text(text: &str) -> Result<Self, AclError> {
        let mut flags = AclFlags::NONE;
        let mut parts = text
            .lines()
            .map(|line| line.split_once('#').map_or(line, |(entries, _comment)| entries))
            .flat_map(|line| line.split(','))
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .peekable();
        if let Some(letters) = parts.peek().and_then(|first| first.strip_prefix(FLAGS)) {
            flags = AclFlags::from_letters(letters).ok_or(AclError::Flags)?;
            parts.next();
        }
        // One more than the limit is enough to detect that the text exceeds it.
        let entries = parts.take(Self::MAX_ENTRIES + 1).map(parse_entry).collect::<Result<Vec<_>, _>>()?;
        if entries.is_empty() { Err(AclError::Empty) } else { Self::new(flags, entries) }
    }

    /// The stored form: ASCII, exactly one text for each ACL.
    pub fn to_storage(&self) -> String {
        self.to_string()
    }

    /// Parses the output of [`Self::to_storage`], and no other form: limenfs did not write another form, and
    /// its hash would not be the one that the ACL is stored under.
    pub fn from_storage(text: &str) -> Result<Self, AclError> {
        let acl = Self::from_text(text)?;
        if acl.to_storage() == text { Ok(acl) } else { Err(AclError::Text) }
    }
}

impl fmt::Display for Nfs4Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_acl(f, self, None)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_entry(f, self, None)
    }
}

/// Does not show whether an id is a user's or a group's: a flag of the entry does.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_who(f, *self, None)
    }
}

/// An ACL or an entry as text for people: identities of the domains in the table are shown as SIDs, e.g.
/// `A::S-1-5-21-1-2-3-1105:r`. Those of other domains keep the stored form (`1-1105`).
#[derive(Clone, Copy, Debug)]
pub struct BySid<'a, T> {
    of: &'a T,
    table: &'a DomainTable,
}

impl Nfs4Acl {
    pub fn by_sid<'a>(&'a self, table: &'a DomainTable) -> BySid<'a, Nfs4Acl> {
        BySid { of: self, table }
    }
}

impl Entry {
    pub fn by_sid<'a>(&'a self, table: &'a DomainTable) -> BySid<'a, Entry> {
        BySid { of: self, table }
    }
}

impl fmt::Display for BySid<'_, Nfs4Acl> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_acl(f, self.of, Some(self.table))
    }
}

impl fmt::Display for BySid<'_, Entry> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_entry(f, self.of, Some(self.table))
    }
}

fn write_acl(f: &mut fmt::Formatter<'_>, acl: &Nfs4Acl, table: Option<&DomainTable>) -> fmt::Result {
    if !acl.flags().is_none() {
        write!(f, "{FLAGS}{},", acl.flags())?;
    }
    for (index, entry) in acl.entries().iter().enumerate() {
        if index > 0 {
            f.write_char(',')?;
        }
        write_entry(f, entry, table)?;
    }
    Ok(())
}

fn write_entry(f: &mut fmt::Formatter<'_>, entry: &Entry, table: Option<&DomainTable>) -> fmt::Result {
    let kind = match entry.kind {
        Kind::Allow => 'A',
        Kind::Deny => 'D',
        Kind::Audit => 'U',
        Kind::Alarm => 'L',
    };
    let group = if matches!(entry.who, Who::NamedGroup(_)) { "g" } else { "" };
    write!(f, "{kind}:{}{group}:", entry.flags)?;
    write_who(f, entry.who, table)?;
    write!(f, ":{}", entry.mask)
}

fn write_who(f: &mut fmt::Formatter<'_>, who: Who, table: Option<&DomainTable>) -> fmt::Result {
    match who {
        Who::Owner => f.write_str("OWNER@"),
        Who::Group => f.write_str("GROUP@"),
        Who::Everyone => f.write_str("EVERYONE@"),
        Who::User(id) | Who::NamedGroup(id) => match table.and_then(|table| table.sid_of(id)) {
            Some(sid) => write!(f, "{sid}"),
            None => write!(f, "{id}"),
        },
    }
}

fn parse_entry(text: &str) -> Result<Entry, AclError> {
    let mut fields = text.split(':');
    let (Some(kind), Some(flags), Some(who), Some(mask), None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(AclError::Text);
    };
    let kind = match kind {
        "A" => Kind::Allow,
        "D" => Kind::Deny,
        "U" => Kind::Audit,
        "L" => Kind::Alarm,
        _ => return Err(AclError::Kind),
    };
    let is_group = flags.contains(GROUP_LETTER);
    let flags = EntryFlags::from_letters(&flags.replacen(GROUP_LETTER, "", 1)).ok_or(AclError::Flags)?;
    let who = match who {
        "OWNER@" => Who::Owner,
        "GROUP@" => Who::Group,
        "EVERYONE@" => Who::Everyone,
        id => {
            let id = id.parse().map_err(|_| AclError::Who)?;
            if is_group { Who::NamedGroup(id) } else { Who::User(id) }
        }
    };
    Ok(Entry { kind, flags, who, mask: Mask::from_letters(mask).ok_or(AclError::Mask)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str =
        "flags:apd,A:fdniI:OWNER@:rwaxdDtTnNcCoyhH,D:g:7:x,U:SF:GROUP@:w,L:F:1-5:,A::EVERYONE@:tc";

    #[test]
    fn stored_form_round_trips() {
        let acl = Nfs4Acl::from_storage(STORED).unwrap();
        assert_eq!(acl.to_storage(), STORED);
        assert_eq!(acl.entries()[1].who, Who::NamedGroup("7".parse().unwrap()));
    }

    #[test]
    fn by_sid_shows_sids() {
        let table = DomainTable::from_storage("S-1-5-21-1-2-3 S-1-5-32").unwrap();
        let acl = Nfs4Acl::from_storage("flags:a,A:fd:1-1105:r,D:g:2-544:w,A::1105:r,A:g:3-7:x,A::OWNER@:r")
            .unwrap();
        let shown = "flags:a,A:fd:S-1-5-21-1-2-3-1105:r,D:g:S-1-5-32-544:w,A::1105:r,A:g:3-7:x,A::OWNER@:r";
        assert_eq!(acl.by_sid(&table).to_string(), shown);
        assert_eq!(acl.entries()[1].by_sid(&table).to_string(), "D:g:S-1-5-32-544:w");
        assert_eq!(acl.by_sid(&DomainTable::default()).to_string(), acl.to_storage());
        assert!(Nfs4Acl::from_text(shown).is_err(), "SIDs are not part of the stored form");
    }

    #[test]
    fn output_of_nfs4_getfacl_is_parsed() {
        let printed = "# file: a\nA::OWNER@:rwaDxtTnNcCoy\nA:g:GROUP@:rtncy # the group\n\n A:dfg:1000:xr\n";
        let acl = Nfs4Acl::from_text(printed).unwrap();
        assert_eq!(acl.to_storage(), "A::OWNER@:rwaxDtTnNcCoy,A::GROUP@:rtncy,A:fdg:1000:rx");
    }

    #[test]
    fn from_storage_accepts_only_the_canonical_form() {
        for other in [
            "A::5:xr",
            "A::5:r,",
            "A:df:5:r",
            "A::05:r",
            "flags:,A::5:r",
            "A:g:OWNER@:r",
            " A::5:r",
            "A:gf:5:r",
            "A::5:r\nA::6:r",
        ] {
            assert!(Nfs4Acl::from_text(other).is_ok(), "{other}");
            assert_eq!(Nfs4Acl::from_storage(other), Err(AclError::Text), "{other}");
        }
    }

    #[test]
    fn malformed_text_is_rejected() {
        for (text, error) in [
            ("", AclError::Empty),
            ("flags:a", AclError::Empty),
            ("flags:x,A::5:r", AclError::Flags),
            ("A::5:r,flags:a", AclError::Text),
            ("A::5", AclError::Text),
            ("A::5:r:", AclError::Text),
            ("X::5:r", AclError::Kind),
            ("A:q:5:r", AclError::Flags),
            ("A:gg:5:r", AclError::Flags),
            ("A:ff:5:r", AclError::Flags),
            ("A::root:r", AclError::Who),
            ("A::OWNER:r", AclError::Who),
            ("A::owner@:r", AclError::Who),
            ("A::4294967295:r", AclError::Who),
            ("A::5:R", AclError::Mask),
            ("A::5:rr", AclError::Mask),
        ] {
            assert_eq!(Nfs4Acl::from_text(text), Err(error), "{text}");
        }
        assert_eq!(Nfs4Acl::from_text(&"A::1:r,".repeat(100_000)), Err(AclError::TooLong));
    }
}
