//! POSIX ACLs as text, as in `acl(5)`. Users and groups are numeric ids, because an id can have different
//! names on different machines.
//!
//! There are three forms: *long* (`user:1000:r-x`, one entry in each line, as `getfacl -n` prints), *short*
//! (`u:1000:r-x`, separated by commas), and *stored*, which is the short form in canonical order. ACLs are
//! stored as text, so that an administrator can read them in the database. The id of an ACL is a hash of the
//! stored form.

use std::fmt;

use super::{AclError, Entry, Perm, PosixAcl, Tag};

impl PosixAcl {
    /// Parses the long or the short form. The entries can be in any order, separated by commas or line ends.
    /// Blanks, and comments from `#` to the end of the line, are skipped, so that the output of `getfacl -n`
    /// for an access ACL can be parsed. As with `setfacl`, the letters of a permission can be in any order,
    /// a `-` can be left out, and `mask` and `other` can have one colon instead of two.
    pub fn from_text(text: &str) -> Result<Self, AclError> {
        // One more than the limit is enough to detect that the text exceeds it.
        let entries = crate::items(text).take(Self::MAX_ENTRIES + 1).map(parse_entry);
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        Self::from_entries(entries)
    }

    /// The long form: one entry in each line, and a newline after each.
    pub fn to_long_text(&self) -> String {
        self.entries().map(|entry| format!("{entry}\n")).collect()
    }

    /// The stored form, e.g. `u::rwx,u:1000:r-x,g::r-x,m::rwx,o::---`. It is ASCII, and equal ACLs have the
    /// same text.
    pub fn to_storage(&self) -> String {
        self.to_string()
    }

    /// Parses the output of [`Self::to_storage`].
    ///
    /// # Errors
    /// Every other text, even of a valid ACL, is an error: limenfs did not write it, and its hash is not the
    /// id of the ACL.
    pub fn from_storage(text: &str) -> Result<Self, AclError> {
        let acl = Self::from_text(text)?;
        if acl.to_storage() == text { Ok(acl) } else { Err(AclError::Text) }
    }
}

/// The short form, which is also the stored one.
impl fmt::Display for PosixAcl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.entries().enumerate() {
            let separator = if index > 0 { "," } else { "" };
            write!(f, "{separator}{entry:#}")?;
        }
        Ok(())
    }
}

fn parse_entry(text: &str) -> Result<Entry, AclError> {
    let mut fields = text.split(':').map(str::trim);
    let (Some(tag), Some(second), third, None) = (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(AclError::Text);
    };
    let (tag, perm) = match (tag, second, third) {
        ("user" | "u", "", Some(perm)) => (Tag::UserObj, perm),
        ("user" | "u", id, Some(perm)) => (Tag::User(parse_id(id)?), perm),
        ("group" | "g", "", Some(perm)) => (Tag::GroupObj, perm),
        ("group" | "g", id, Some(perm)) => (Tag::Group(parse_id(id)?), perm),
        ("mask" | "m", "", Some(perm)) | ("mask" | "m", perm, None) => (Tag::Mask, perm),
        ("other" | "o", "", Some(perm)) | ("other" | "o", perm, None) => (Tag::Other, perm),
        ("user" | "u" | "group" | "g" | "mask" | "m" | "other" | "o", ..) => return Err(AclError::Text),
        _ => return Err(AclError::Tag),
    };
    Ok(Entry { tag, perm: parse_perm(perm)? })
}

fn parse_id(text: &str) -> Result<u32, AclError> {
    // `str::parse` also accepts a leading plus sign.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AclError::Text);
    }
    text.parse().map_err(|_| AclError::Id)
}

/// One to three of `r`, `w`, `x` and `-`, each letter at most once.
fn parse_perm(text: &str) -> Result<Perm, AclError> {
    if text.is_empty() || text.len() > 3 {
        return Err(AclError::Perm);
    }
    text.bytes().try_fold(Perm::NONE, |perm, byte| {
        let bit = match byte {
            b'r' => Perm::READ,
            b'w' => Perm::WRITE,
            b'x' => Perm::EXECUTE,
            b'-' => return Ok(perm),
            _ => return Err(AclError::Perm),
        };
        if perm.has(bit) { Err(AclError::Perm) } else { Ok(perm | bit) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = "u::rwx,u:0:---,u:1000:r-x,g::r-x,g:4294967294:-w-,m::rwx,o::--x";

    #[test]
    fn all_forms_parse_to_the_same_acl() {
        let acl = PosixAcl::from_storage(STORED).unwrap();
        assert_eq!(acl.to_storage(), STORED);
        let long = acl.to_long_text();
        assert!(
            long.starts_with("user::rwx\nuser:0:---\n") && long.ends_with("mask::rwx\nother::--x\n"),
            "{long}"
        );
        assert_eq!(PosixAcl::from_text(&long), Ok(acl.clone()));
        let by_hand = "# file: a\n o:x , m:xwr\ng::r-x\t#effective:r-x\n\nuser: 1000 :rx,u:00:-,user::rwx\ng:4294967294:w";
        assert_eq!(PosixAcl::from_text(by_hand), Ok(acl));
    }

    #[test]
    fn from_storage_accepts_only_the_canonical_form() {
        for other in [
            "u::rwx,g::r-x,o::--x,",
            "u::rwx,g::r-x,o::x",
            "u::rwx,g::r-x,o:--x",
            "u::rwx,o::--x,g::r-x",
            "user::rwx,g::r-x,o::--x",
            "u::rwx,g::r-x, o::--x",
            "u::rwx\ng::r-x\no::--x",
            "u::rwx,u:01:r--,g::r-x,m::r--,o::--x",
            "u::rwx,u:2:r--,u:1:r--,g::r-x,m::r--,o::--x",
        ] {
            assert!(PosixAcl::from_text(other).is_ok(), "{other}");
            assert_eq!(PosixAcl::from_storage(other), Err(AclError::Text), "{other}");
        }
    }

    #[test]
    fn malformed_text_is_rejected() {
        let entry =
            |entry: &str| PosixAcl::from_text(&format!("u::rwx,g::r-x,m::rwx,o::---,{entry}")).unwrap_err();
        assert_eq!(entry("u:root:r--"), AclError::Text);
        assert_eq!(entry("u:+1:r--"), AclError::Text);
        assert_eq!(entry("u:-1:r--"), AclError::Text);
        assert_eq!(entry("u:1:r--:"), AclError::Text);
        assert_eq!(entry("u:r--"), AclError::Text);
        assert_eq!(entry("m:1:r--"), AclError::Text);
        assert_eq!(entry("u"), AclError::Text);
        assert_eq!(entry("u:4294967295:r--"), AclError::Id);
        assert_eq!(entry("u:4294967296:r--"), AclError::Id);
        assert_eq!(entry("x:1:r--"), AclError::Tag);
        assert_eq!(entry("default:u:1:r--"), AclError::Text);
        for perm in ["", "rr", "rwx-", "R", "7", "é"] {
            assert_eq!(entry(&format!("u:1:{perm}")), AclError::Perm, "{perm}");
        }
        assert_eq!(PosixAcl::from_text(""), Err(AclError::Missing));
        assert_eq!(PosixAcl::from_text(&"u:1:r--,".repeat(100_000)), Err(AclError::TooLong));
    }
}
