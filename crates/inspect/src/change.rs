//! A planned change: a `setfacl`, `chmod` or `chown`, or a change of a group's members.

use acl::posix::{self, Entry, Perm, PosixAcl, Tag};
use types::Mode;

use crate::access_attrs::{AccessAttrs, Rules};

/// Resolves the names of users and groups.
pub trait UserDatabase {
    fn user(&self, name: &str) -> Option<u32>;
    fn group(&self, name: &str) -> Option<u32>;
    /// The primary group of a user, who is given by name or number.
    fn login_group(&self, user: &str) -> Option<u32>;
}

/// A planned change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedChange {
    /// The user becomes a member of the group. The user is kept by name, because the caller of this crate
    /// looks up the user's groups.
    Join {
        user: String,
        group: u32,
    },
    Leave {
        user: String,
        group: u32,
    },
    /// A change of a file, and with `recursive` of everything below it.
    Edit {
        path: String,
        recursive: bool,
        edit: Edit,
    },
}

/// A change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    Setfacl(Setfacl),
    /// Sets the nine permission bits, SUID, SGID and the sticky bit to those of this mode.
    Chmod(Mode),
    Chown {
        uid: Option<u32>,
        gid: Option<u32>,
    },
}

/// The options of a setfacl(1) that affect access. Default ACLs do not affect access to existing files and
/// are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setfacl {
    steps: Vec<Step>,
    /// `-n`.
    keep_mask: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// `-b`
    Clear,
    /// `--set`
    Set(Vec<Spec>),
    /// `-m`
    Modify(Vec<Spec>),
    /// `-x`
    Remove(Vec<Tag>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spec {
    tag: Tag,
    perm: Perm,
    /// `X`: grants execute if the file is a directory or some entry already grants execute.
    execute_if: bool,
}

/// Why a planned change cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error(
        "unknown change '{0}': write a setfacl, chmod or chown command, or add user U to group G, or \
         remove user U from group G"
    )]
    Command(String),
    #[error("a quotation mark is not closed")]
    Quote,
    #[error("option '{0}' is not supported")]
    Option(String),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("more than one path: '{0}'")]
    Paths(String),
    #[error("'{0}' is not an ACL entry: write entries as in u:ann:rwx,g:staff:r-x")]
    Entry(String),
    #[error("'{0}' is not a mode: write it in octal, as in 750")]
    Mode(String),
    #[error("there is no user '{0}'")]
    User(String),
    #[error("there is no group '{0}'")]
    Group(String),
    #[error("user '{0}' has no entry in the user database, so its login group is unknown: name the group")]
    LoginGroup(String),
    #[error("the resulting ACL is invalid: {0}")]
    Acl(#[from] posix::AclError),
    #[error("setfacl and chmod are not supported for volumes with NFSv4 ACLs")]
    Nfs4,
}

/// Parses a change in the form of a command: `setfacl -R -m u:ann:rwx /dir`, `chmod 750 /dir`, `chown
/// ann:staff /f`, `add user ann to group staff`, `remove user ann from group staff`.
///
/// # Errors
/// [`ChangeError`] if it cannot be parsed, or names an unknown user or group.
pub fn parse_change(text: &str, names: &dyn UserDatabase) -> Result<PlannedChange, ChangeError> {
    let words = split(text)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let group = |name: &str| id(name, |name| names.group(name)).ok_or(ChangeError::Group(name.to_owned()));
    match words.as_slice() {
        ["setfacl", options @ ..] => setfacl(options, names),
        ["chmod", options @ ..] => chmod(options),
        ["chown", options @ ..] => chown(options, names),
        ["add", "user", user, "to", "group", name] => {
            Ok(PlannedChange::Join { user: (*user).to_owned(), group: group(name)? })
        }
        ["remove", "user", user, "from", "group", name] => {
            Ok(PlannedChange::Leave { user: (*user).to_owned(), group: group(name)? })
        }
        _ => Err(ChangeError::Command(text.to_owned())),
    }
}

impl Edit {
    /// The attributes of a file after the edit.
    ///
    /// # Errors
    /// [`ChangeError::Nfs4`] if a mode or ACL is to be changed on a volume with NFSv4 ACLs;
    /// [`ChangeError::Acl`] if the result would not be a valid ACL.
    pub fn apply(&self, access_attrs: &AccessAttrs) -> Result<AccessAttrs, ChangeError> {
        let mut after = access_attrs.clone();
        match (self, &access_attrs.rules) {
            (Edit::Chown { uid, gid }, _) => {
                after.uid = uid.unwrap_or(access_attrs.uid);
                after.gid = gid.unwrap_or(access_attrs.gid);
            }
            (_, Rules::Nfs4(_)) => return Err(ChangeError::Nfs4),
            (Edit::Chmod(mode), Rules::Posix(acl)) => {
                after.mode = *mode;
                after.rules = Rules::Posix(acl.as_ref().map(|acl| acl.chmod(*mode)));
            }
            (Edit::Setfacl(setfacl), Rules::Posix(acl)) => {
                let changed = setfacl.apply(access_attrs, acl.as_ref())?;
                let (mode, acl) = posix::set_access(access_attrs.mode, Some(changed), false);
                (after.mode, after.rules) = (mode, Rules::Posix(acl));
            }
        }
        Ok(after)
    }
}

impl Setfacl {
    fn apply(&self, access_attrs: &AccessAttrs, acl: Option<&PosixAcl>) -> Result<PosixAcl, ChangeError> {
        let mut entries: Vec<Entry> = match acl {
            Some(acl) => acl.entries().collect(),
            None => {
                let rwx = access_attrs.mode.rwx();
                let all = [(Tag::UserObj, rwx >> 6), (Tag::GroupObj, rwx >> 3), (Tag::Other, rwx)];
                all.map(|(tag, bits)| Entry { tag, perm: Perm::new(bits) }).into()
            }
        };
        let mut mask_is_given = false;
        for step in &self.steps {
            match step {
                Step::Clear => entries.retain(|entry| is_base(entry.tag)),
                Step::Remove(tags) => {
                    entries.retain(|entry| is_base(entry.tag) || !tags.contains(&entry.tag))
                }
                Step::Modify(specs) | Step::Set(specs) => {
                    let executes = access_attrs.kind.is_dir()
                        || entries
                            .iter()
                            .any(|entry| entry.perm.has(Perm::EXECUTE) && entry.tag != Tag::Mask);
                    if let Step::Set(_) = step {
                        entries.clear();
                    }
                    mask_is_given |= specs.iter().any(|spec| spec.tag == Tag::Mask);
                    for Spec { tag, perm, execute_if } in specs.iter().copied() {
                        let perm = if execute_if && executes { perm | Perm::EXECUTE } else { perm };
                        entries.retain(|entry| entry.tag != tag);
                        entries.push(Entry { tag, perm });
                    }
                }
            }
        }
        self.set_mask(&mut entries, mask_is_given);
        Ok(PosixAcl::from_entries(entries)?)
    }

    /// Adds a mask if there are named entries. Unless the mask is given or is to be kept, it becomes the
    /// union of the entries that it limits (setfacl(1), "automatically created entries").
    fn set_mask(&self, entries: &mut Vec<Entry>, is_given: bool) {
        let named = entries.iter().any(|entry| matches!(entry.tag, Tag::User(_) | Tag::Group(_)));
        let has_mask = entries.iter().any(|entry| entry.tag == Tag::Mask);
        if is_given || has_mask && self.keep_mask || !named && !has_mask {
            return;
        }
        let limited = entries.iter().filter(|entry| match entry.tag {
            Tag::GroupObj => true,
            Tag::User(_) | Tag::Group(_) => !self.keep_mask,
            _ => false,
        });
        let perm = limited.fold(Perm::NONE, |all, entry| all | entry.perm);
        entries.retain(|entry| entry.tag != Tag::Mask);
        entries.push(Entry { tag: Tag::Mask, perm });
    }
}

/// Whether every ACL has an entry with this tag.
fn is_base(tag: Tag) -> bool {
    matches!(tag, Tag::UserObj | Tag::GroupObj | Tag::Other)
}

fn setfacl(words: &[&str], names: &dyn UserDatabase) -> Result<PlannedChange, ChangeError> {
    let mut made = Setfacl::default();
    let (mut recursive, mut path, mut of_default) = (false, None, false);
    // The letter of each step, and its entries. The entries are parsed after all options, because a later
    // `-d` makes them entries of the default ACL.
    let mut steps: Vec<(char, &str)> = Vec::new();
    let mut words = words.iter().copied();
    let mut only_paths = false;
    while let Some(word) = words.next() {
        if only_paths || !word.starts_with('-') || word == "-" {
            one_path(&mut path, word)?;
            continue;
        }
        if word == "--" {
            only_paths = true;
            continue;
        }
        let is_long = word.starts_with("--");
        let unknown = || ChangeError::Option(word.to_owned());
        let (letters, mut value) = match word.split_once('=') {
            Some((long, value)) if is_long => (letter_of(long).ok_or_else(unknown)?, Some(value)),
            _ if is_long => (letter_of(word).ok_or_else(unknown)?, None),
            _ => (&word[1..], None),
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            match letter {
                'R' => recursive = true,
                'n' => made.keep_mask = true,
                'M' if is_long => made.keep_mask = false,
                'd' => of_default = true,
                'k' => {}
                'b' => steps.push(('b', "")),
                'm' | 'x' | 's' if letter != 's' || is_long => {
                    // The entries follow in the same word, or in the next word.
                    let rest = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                    let entries = value.take().or(rest).or_else(|| words.next());
                    steps.push((letter, entries.ok_or(ChangeError::Missing("the entries of the ACL"))?));
                    break;
                }
                _ => return Err(unknown()),
            }
        }
    }
    if steps.is_empty() {
        return Err(ChangeError::Missing("-m, -x, -b or --set"));
    }
    for (letter, text) in steps {
        made.steps.extend(step(letter, text, of_default, names)?);
    }
    let path = path.ok_or(ChangeError::Missing("the path"))?;
    Ok(PlannedChange::Edit { path, recursive, edit: Edit::Setfacl(made) })
}

/// The letter of a long option of setfacl(1). `--mask` and `--set` have none; `M` and `s` stand for them
/// here.
fn letter_of(long: &str) -> Option<&'static str> {
    Some(match long {
        "--recursive" => "R",
        "--remove-all" => "b",
        "--remove-default" => "k",
        "--default" => "d",
        "--no-mask" => "n",
        "--mask" => "M",
        "--modify" => "m",
        "--remove" => "x",
        "--set" => "s",
        _ => return None,
    })
}

/// Parses a step; `None` if it only affects default ACLs.
fn step(
    letter: char,
    text: &str,
    of_default: bool,
    names: &dyn UserDatabase,
) -> Result<Option<Step>, ChangeError> {
    if letter == 'b' {
        return Ok(Some(Step::Clear));
    }
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    let access: Vec<&str> = texts
        .filter(|text| !of_default && !text.starts_with("d:") && !text.starts_with("default:"))
        .collect();
    if access.is_empty() {
        return Ok(None);
    }
    let access = access.into_iter();
    if letter == 'x' {
        return Ok(Some(Step::Remove(access.map(|text| removed(text, names)).collect::<Result<_, _>>()?)));
    }
    let specs = access.map(|text| spec(text, names)).collect::<Result<_, _>>()?;
    Ok(Some(if letter == 's' { Step::Set(specs) } else { Step::Modify(specs) }))
}

/// Parses an entry with permissions: `u:ann:rwx`, `ann:rwx`, `g::r-x`, `m::rx`, `o:r`.
fn spec(text: &str, names: &dyn UserDatabase) -> Result<Spec, ChangeError> {
    let wrong = || ChangeError::Entry(text.to_owned());
    let fields: Vec<&str> = text.split(':').collect();
    let (kind, name, perm) = match fields.as_slice() {
        [kind @ ("m" | "mask" | "o" | "other"), perm] => (*kind, "", *perm),
        [name, perm] => ("u", *name, *perm),
        [kind, name, perm] => (*kind, *name, *perm),
        _ => return Err(wrong()),
    };
    let tag = tag(kind, name, names).ok_or_else(wrong)??;
    let mut made = Spec { tag, perm: Perm::NONE, execute_if: false };
    if let Some(bits) = perm.parse().ok().filter(|bits| *bits < 8 && perm.len() == 1) {
        return Ok(Spec { perm: Perm::new(bits), ..made });
    }
    for letter in perm.chars() {
        match letter {
            'r' => made.perm = made.perm | Perm::READ,
            'w' => made.perm = made.perm | Perm::WRITE,
            'x' => made.perm = made.perm | Perm::EXECUTE,
            'X' => made.execute_if = true,
            '-' => {}
            _ => return Err(wrong()),
        }
    }
    Ok(made)
}

/// Parses an entry to remove: `u:ann`, `g:staff`, `m`.
fn removed(text: &str, names: &dyn UserDatabase) -> Result<Tag, ChangeError> {
    let wrong = || ChangeError::Entry(text.to_owned());
    let fields: Vec<&str> = text.trim_end_matches(':').split(':').collect();
    match fields.as_slice() {
        [kind @ ("m" | "mask")] => tag(kind, "", names).ok_or_else(wrong)?,
        [name] => tag("u", name, names).ok_or_else(wrong)?,
        [kind, name] => tag(kind, name, names).ok_or_else(wrong)?,
        _ => Err(wrong()),
    }
}

fn tag(kind: &str, name: &str, names: &dyn UserDatabase) -> Option<Result<Tag, ChangeError>> {
    Some(match (kind, name) {
        ("u" | "user", "") => Ok(Tag::UserObj),
        ("u" | "user", name) => {
            id(name, |name| names.user(name)).map(Tag::User).ok_or_else(|| ChangeError::User(name.to_owned()))
        }
        ("g" | "group", "") => Ok(Tag::GroupObj),
        ("g" | "group", name) => id(name, |name| names.group(name))
            .map(Tag::Group)
            .ok_or_else(|| ChangeError::Group(name.to_owned())),
        ("m" | "mask", "") => Ok(Tag::Mask),
        ("o" | "other", "") => Ok(Tag::Other),
        _ => return None,
    })
}

/// The id of a known name, or else a number.
fn id(name: &str, known: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    known(name).or_else(|| name.parse().ok().filter(|id| *id != u32::MAX))
}

fn chmod(words: &[&str]) -> Result<PlannedChange, ChangeError> {
    let (recursive, words) = recursion(words)?;
    let (mode, path) = two(&words, "the mode")?;
    let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o7777);
    let bits = bits.ok_or_else(|| ChangeError::Mode(mode.to_owned()))?;
    Ok(PlannedChange::Edit { path, recursive, edit: Edit::Chmod(Mode::new(bits)) })
}

fn chown(words: &[&str], names: &dyn UserDatabase) -> Result<PlannedChange, ChangeError> {
    let (recursive, words) = recursion(words)?;
    let (owner, path) = two(&words, "the owner")?;
    let (user, group) = owner.split_once(':').map_or((owner, None), |(user, group)| (user, Some(group)));
    let of = |name: &str, known: &dyn Fn(&str) -> Option<u32>| match name {
        "" => Some(None),
        name => id(name, known).map(Some),
    };
    let uid = of(user, &|name| names.user(name)).ok_or_else(|| ChangeError::User(user.to_owned()))?;
    let gid = match group {
        // As chown(1): a colon without a group stands for the login group.
        Some("") if !user.is_empty() => {
            Some(names.login_group(user).ok_or_else(|| ChangeError::LoginGroup(user.to_owned()))?)
        }
        group => {
            let group = group.unwrap_or_default();
            of(group, &|name| names.group(name)).ok_or_else(|| ChangeError::Group(group.to_owned()))?
        }
    };
    Ok(PlannedChange::Edit { path, recursive, edit: Edit::Chown { uid, gid } })
}

/// Removes `-R` from the words.
fn recursion<'a>(words: &[&'a str]) -> Result<(bool, Vec<&'a str>), ChangeError> {
    let (flags, rest): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with('-') && word.len() > 1);
    match flags.iter().find(|flag| !matches!(**flag, "-R" | "--recursive")) {
        Some(unknown) => Err(ChangeError::Option((*unknown).to_owned())),
        None => Ok((!flags.is_empty(), rest)),
    }
}

fn two<'a>(words: &[&'a str], first: &'static str) -> Result<(&'a str, String), ChangeError> {
    match words {
        [] => Err(ChangeError::Missing(first)),
        [_] => Err(ChangeError::Missing("the path")),
        [word, path] => Ok((word, (*path).to_owned())),
        [_, _, more, ..] => Err(ChangeError::Paths((*more).to_owned())),
    }
}

fn one_path(path: &mut Option<String>, word: &str) -> Result<(), ChangeError> {
    match path.replace(word.to_owned()) {
        None => Ok(()),
        Some(_) => Err(ChangeError::Paths(word.to_owned())),
    }
}

/// Splits text into words at blanks, with quotation marks and backslashes as in a shell.
fn split(text: &str) -> Result<Vec<String>, ChangeError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some('\''), letter) => word.get_or_insert_default().push(letter),
            (_, '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    if quote.is_some() { Err(ChangeError::Quote) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use types::FileType;

    use super::*;

    struct Known;

    impl UserDatabase for Known {
        fn user(&self, name: &str) -> Option<u32> {
            [("ann", 7), ("bob", 8)].into_iter().find(|(known, _)| *known == name).map(|(_, id)| id)
        }

        fn group(&self, name: &str) -> Option<u32> {
            (name == "staff").then_some(50)
        }

        fn login_group(&self, user: &str) -> Option<u32> {
            ["ann", "7"].contains(&user).then_some(100)
        }
    }

    fn access_attrs(mode: u32, acl: Option<&str>) -> AccessAttrs {
        let acl = acl.map(|text| PosixAcl::from_storage(text).unwrap());
        let mode = Mode::new(mode);
        AccessAttrs { ino: 9, kind: FileType::Regular, mode, uid: 1, gid: 2, rules: Rules::Posix(acl) }
    }

    /// The mode and ACL after a command.
    fn after(command: &str, before: &AccessAttrs) -> Result<(String, String), ChangeError> {
        let PlannedChange::Edit { edit, .. } = parse_change(command, &Known)? else { panic!("{command}") };
        let after = edit.apply(before)?;
        Ok((after.mode.to_string(), after.rules.acl_text().unwrap_or_default()))
    }

    fn shown(mode: &str, acl: &str) -> Result<(String, String), ChangeError> {
        Ok((mode.to_owned(), acl.to_owned()))
    }

    /// The expected values are those of setfacl 2.3.1.
    #[test]
    fn edits_agree_with_setfacl() {
        let plain = access_attrs(0o640, None);
        assert_eq!(
            after("setfacl -m u:ann:rwx /f", &plain),
            shown("0670", "u::rw-,u:7:rwx,g::r--,m::rwx,o::---")
        );
        assert_eq!(
            after("setfacl -n -m u:ann:rwx /f", &plain),
            shown("0640", "u::rw-,u:7:rwx,g::r--,m::r--,o::---")
        );
        assert_eq!(after("setfacl -m g::rwx,o:x /f", &plain), shown("0671", ""));
        let named = access_attrs(0o670, Some("u::rw-,u:7:rwx,g::r--,g:50:r--,m::rwx,o::---"));
        assert_eq!(after("setfacl -x ann /f", &named), shown("0640", "u::rw-,g::r--,g:50:r--,m::r--,o::---"));
        assert_eq!(after("setfacl -xu:7,g:staff /f", &named), shown("0640", "u::rw-,g::r--,m::r--,o::---"));
        assert_eq!(after("setfacl -b /f", &named), shown("0640", ""));
        assert_eq!(
            after("setfacl --modify=m::r,u:bob:7 /f", &named),
            shown("0640", "u::rw-,u:7:rwx,u:8:rwx,g::r--,g:50:r--,m::r--,o::---")
        );
        assert_eq!(after("setfacl --set u::rwx,g::rx,o:- /f", &named), shown("0750", ""));
        assert_eq!(
            after("setfacl -m g:staff:rX /f", &plain),
            shown("0640", "u::rw-,g::r--,g:50:r--,m::r--,o::---")
        );
        assert_eq!(after("setfacl -m d:u:ann:rwx /f", &plain), shown("0640", ""));
        assert_eq!(after("setfacl -d -m u:ann:rwx /f", &plain), shown("0640", ""));
        assert_eq!(
            after("chmod 700 /f", &named),
            shown("0700", "u::rwx,u:7:rwx,g::r--,g:50:r--,m::---,o::---")
        );
    }

    #[test]
    fn commands_are_parsed() {
        assert_eq!(
            parse_change("add user ann to group staff", &Known),
            Ok(PlannedChange::Join { user: "ann".to_owned(), group: 50 })
        );
        assert_eq!(
            parse_change("remove user 12 from group 51", &Known),
            Ok(PlannedChange::Leave { user: "12".to_owned(), group: 51 })
        );
        let edit = Edit::Chown { uid: Some(7), gid: Some(50) };
        assert_eq!(
            parse_change("chown -R ann:staff '/a b'", &Known),
            Ok(PlannedChange::Edit { path: "/a b".to_owned(), recursive: true, edit })
        );
        // After a colon without a group, chown(1) sets the login group.
        for (owner, uid, gid) in [
            ("ann", Some(7), None),
            ("ann:", Some(7), Some(100)),
            ("7:", Some(7), Some(100)),
            (":staff", None, Some(50)),
            (":", None, None),
        ] {
            let Ok(PlannedChange::Edit { edit, .. }) = parse_change(&format!("chown {owner} /f"), &Known)
            else {
                panic!("{owner}");
            };
            assert_eq!(edit, Edit::Chown { uid, gid }, "{owner}");
        }
        let unknown = parse_change("chown 8: /f", &Known).unwrap_err();
        assert!(unknown.to_string().contains("login group"), "{unknown}");
        let Ok(PlannedChange::Edit { path, recursive, .. }) =
            parse_change("setfacl -Rm u:ann:r -- /d\\ e", &Known)
        else {
            panic!("it is valid");
        };
        assert_eq!((path.as_str(), recursive), ("/d e", true));
    }

    #[test]
    fn unknown_commands_are_rejected() {
        for text in [
            "",
            "rm -rf /",
            "setfacl",
            "setfacl /f",
            "setfacl -m",
            "setfacl -m u:ann:r",
            "setfacl -m u:eve:r /f",
            "setfacl -m u:ann:z /f",
            "setfacl -m m:7:r /f",
            "setfacl -q /f",
            "setfacl -s u::rwx /f",
            "setfacl -Mm u:ann:r /f",
            "setfacl --restore=x",
            "chmod /f",
            "setfacl -m u:ann:r /f /g",
            "chmod 9 /f",
            "chmod 77777 /f",
            "chown eve /f",
            "chown -h ann /f",
            "add user ann to group eve",
            "add user ann",
            "setfacl -m 'u:ann:r /f",
            "setfacl -m u:4294967295:r /f",
        ] {
            assert!(parse_change(text, &Known).is_err(), "{text}");
        }
        let minimal = access_attrs(0o640, None);
        assert!(matches!(after("setfacl --set u:ann:rwx /f", &minimal), Err(ChangeError::Acl(_))));
    }
}
