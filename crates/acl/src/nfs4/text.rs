//! ACLs as text, in the syntax of `nfs4_acl(5)` with numeric ids: `type:flags:who:permissions`, e.g.
//! `A:fdg:1000:rx`.
//!
//! The stored form is the same with letters in a fixed order and entries separated by commas. If the list has
//! flags, it begins with `flags:` and their letters: `flags:a,A::OWNER@:rwx,D:g:1-1105:w`.

use std::{fmt, slice};

use crate::identity::DomainTable;

use super::{AclError, AclFlags, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who};

const FLAGS: &str = "flags:";
/// The letter of `ACE4_IDENTIFIER_GROUP`.
const GROUP_LETTER: char = 'g';

impl Nfs4Acl {
    /// Parses entries separated by commas or line ends. Blanks around an entry, and comments from `#` to the
    /// end of the line, are skipped, so that the output of `nfs4_getfacl` with numeric ids can be read.
    /// Letters may come in any order.
    ///
    /// # Errors
    /// Those of [`AclError`] except `Size`.
    pub fn from_text(text: &str) -> Result<Self, AclError> {
        let mut flags = AclFlags::NONE;
        let mut parts = crate::items(text).peekable();
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

    /// Parses the output of [`Self::to_storage`], and no other form: limenfs never writes another form, and
    /// the hash of another form is not the id under which the ACL is stored.
    pub fn from_storage(text: &str) -> Result<Self, AclError> {
        let acl = Self::from_text(text)?;
        if acl.to_storage() == text { Ok(acl) } else { Err(AclError::Text) }
    }
}

/// Entries as text.
#[derive(Clone, Copy, Debug)]
pub struct AclText<'a> {
    flags: AclFlags,
    entries: &'a [Entry],
    /// Identities of these domains are shown as SIDs, e.g. `A::S-1-5-21-1-2-3-1105:r`, and others in the
    /// stored form (`1-1105`).
    domains: Option<&'a DomainTable>,
}

impl Nfs4Acl {
    /// The text for people: identities of the domains in the table are shown as SIDs.
    pub fn by_sid<'a>(&'a self, table: &'a DomainTable) -> AclText<'a> {
        AclText { flags: self.flags(), entries: self.entries(), domains: Some(table) }
    }
}

impl Entry {
    /// As [`Nfs4Acl::by_sid`].
    pub fn by_sid<'a>(&'a self, table: &'a DomainTable) -> AclText<'a> {
        AclText { flags: AclFlags::NONE, entries: slice::from_ref(self), domains: Some(table) }
    }
}

/// The stored form.
impl fmt::Display for Nfs4Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", AclText { flags: self.flags(), entries: self.entries(), domains: None })
    }
}

/// The stored form.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", AclText { flags: AclFlags::NONE, entries: slice::from_ref(self), domains: None })
    }
}

impl fmt::Display for AclText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.flags.is_none() {
            write!(f, "{FLAGS}{},", self.flags)?;
        }
        for (index, Entry { kind, flags, who, mask }) in self.entries.iter().enumerate() {
            let separator = if index > 0 { "," } else { "" };
            let (_, kind) = Kind::ALL[*kind as usize];
            let group = if matches!(who, Who::NamedGroup(_)) { "g" } else { "" };
            write!(f, "{separator}{kind}:{flags}{group}:")?;
            match who.id().and_then(|id| self.domains?.sid_of(id)) {
                Some(sid) => write!(f, "{sid}:{mask}")?,
                None => write!(f, "{who}:{mask}")?,
            }
        }
        Ok(())
    }
}

fn parse_entry(text: &str) -> Result<Entry, AclError> {
    let mut fields = text.split(':');
    let (Some(kind), Some(flags), Some(who), Some(mask), None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(AclError::Text);
    };
    let kind = Kind::ALL.iter().find(|(_, letter)| *letter == kind).map(|(kind, _)| *kind);
    let kind = kind.ok_or(AclError::Kind)?;
    let is_group = flags.contains(GROUP_LETTER);
    let flags = EntryFlags::from_letters(&flags.replacen(GROUP_LETTER, "", 1)).ok_or(AclError::Flags)?;
    let who = Who::of(who, is_group, |id| id.parse().ok()).ok_or(AclError::Who)?;
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
