//! The mapping between the user and group numbers of a volume and those of a mount, and the squashing of
//! callers.

use std::fmt;
use std::str::FromStr;

use types::{Caps, Cred};

/// A one-to-one mapping between the ids of a volume and the local ids, which are those on the mount. An id in
/// no range is unmapped.
///
/// The text form is `VOLUME:HERE:COUNT`. Several ranges are separated by commas, or by line breaks as in
/// `/proc/PID/uid_map`. Spaces can separate the numbers instead of colons, and a `#` begins a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// Sorted by the numbers of the volume.
    by_volume: Box<[Range]>,
    /// The same ranges, sorted by the local numbers.
    by_local: Box<[Range]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    volume: u32,
    local: u32,
    count: u32,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.volume, self.local, self.count)
    }
}

/// Why text is not a valid map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("it has no range, so it would map no id")]
    Empty,
    #[error("it has more than {} ranges", IdMap::MAX_RANGES)]
    TooLong,
    #[error("'{0}' is not a range: write VOLUME:HERE:COUNT, e.g. 0:100000:65536")]
    NoRange(String),
    #[error("'{0}' maps no ids: COUNT is 0")]
    NoIds(String),
    #[error("'{0}' exceeds the highest id, {max}", max = u32::MAX - 1)]
    TooHigh(String),
    #[error("'{0}' and '{1}' map one id of the volume to two ids on the mount")]
    TwiceInVolume(String, String),
    #[error("'{0}' and '{1}' map two ids of the volume to one id on the mount")]
    TwiceLocal(String, String),
}

impl IdMap {
    /// The maximum that the kernel accepts for a user namespace (`UID_GID_MAP_MAX_EXTENTS`).
    pub const MAX_RANGES: usize = 340;

    /// The local number for a number of the volume.
    pub fn to_local(&self, volume: u32) -> Option<u32> {
        find(&self.by_volume, volume, |range| (range.volume, range.local))
    }

    /// The number in the volume for a local number.
    pub fn to_volume(&self, local: u32) -> Option<u32> {
        find(&self.by_local, local, |range| (range.local, range.volume))
    }
}

/// The ranges in the text form, sorted by the numbers of the volume.
impl fmt::Display for IdMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for range in &self.by_volume {
            write!(f, "{separator}{range}")?;
            separator = ",";
        }
        Ok(())
    }
}

fn find(sorted: &[Range], id: u32, from_to: impl Fn(&Range) -> (u32, u32)) -> Option<u32> {
    let index = sorted.partition_point(|range| from_to(range).0 <= id).checked_sub(1)?;
    let range = sorted.get(index)?;
    let (from, to) = from_to(range);
    // Neither operation overflows: the range begins at `id` or below, and no range exceeds the highest id.
    let offset = id.checked_sub(from)?;
    if offset < range.count { to.checked_add(offset) } else { None }
}

impl FromStr for IdMap {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let mut ranges = crate::items(text).map(range).collect::<Result<Vec<Range>, MapError>>()?;
        if ranges.is_empty() {
            return Err(MapError::Empty);
        }
        if ranges.len() > Self::MAX_RANGES {
            return Err(MapError::TooLong);
        }
        ranges.sort_unstable_by_key(|range| range.local);
        check_overlap(&ranges, |range| range.local, MapError::TwiceLocal)?;
        let by_local = ranges.clone().into();
        ranges.sort_unstable_by_key(|range| range.volume);
        check_overlap(&ranges, |range| range.volume, MapError::TwiceInVolume)?;
        Ok(IdMap { by_volume: ranges.into(), by_local })
    }
}

fn range(text: &str) -> Result<Range, MapError> {
    let fields: Vec<&str> =
        text.split(|c: char| c == ':' || c.is_ascii_whitespace()).filter(|field| !field.is_empty()).collect();
    let number = |field: &&str| -> Option<u32> {
        field.bytes().all(|byte| byte.is_ascii_digit()).then(|| field.parse().ok())?
    };
    let numbers: Option<Vec<u32>> = fields.iter().map(number).collect();
    let Some(&[volume, local, count]) = numbers.as_deref() else {
        return Err(MapError::NoRange(text.to_owned()));
    };
    if count == 0 {
        return Err(MapError::NoIds(text.to_owned()));
    }
    // The number -1 is not a valid id.
    if volume.max(local).checked_add(count).is_none() {
        return Err(MapError::TooHigh(text.to_owned()));
    }
    Ok(Range { volume, local, count })
}

fn check_overlap(
    sorted: &[Range],
    from: impl Fn(&Range) -> u32,
    error: impl Fn(String, String) -> MapError,
) -> Result<(), MapError> {
    for pair in sorted.windows(2) {
        if let [first, second] = pair
            && from(second) - from(first) < first.count
        {
            return Err(error(first.to_string(), second.to_string()));
        }
    }
    Ok(())
}

/// The callers that become the anonymous user. No caller keeps capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// User 0 becomes the anonymous user. Group 0 becomes the anonymous group, even as a supplementary group;
    /// other groups stay.
    Root,
    /// Every caller becomes the anonymous user in the anonymous group, without supplementary groups.
    All,
}

/// The default uid and gid of the anonymous user, as on NFS servers.
pub const ANONYMOUS: u32 = 65_534;

/// How a mount maps the users and groups of its volume, and which callers it squashes.
///
/// There are two kinds of ids: *local* ids, which the kernel of this mount uses, and ids *in the volume*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub users: Option<IdMap>,
    pub groups: Option<IdMap>,
    pub squash: Option<Squash>,
    /// Uid and gid of squashed callers, in the volume.
    pub anonymous: (u32, u32),
}

impl Default for Ids {
    fn default() -> Self {
        Ids { users: None, groups: None, squash: None, anonymous: (ANONYMOUS, ANONYMOUS) }
    }
}

/// The result for an id without a mapping: -1, which is not a valid id.
pub const UNMAPPED: u32 = u32::MAX;

impl Ids {
    /// The uid shown for a user of the volume; [`UNMAPPED`] if it has no mapping.
    pub fn local_user(&self, volume: u32) -> u32 {
        self.users.as_ref().map_or(Some(volume), |map| map.to_local(volume)).unwrap_or(UNMAPPED)
    }

    pub fn local_group(&self, volume: u32) -> u32 {
        self.groups.as_ref().map_or(Some(volume), |map| map.to_local(volume)).unwrap_or(UNMAPPED)
    }

    /// The volume's uid of a local user, without squashing; [`UNMAPPED`] if it has no mapping.
    pub fn user_in_volume(&self, local: u32) -> u32 {
        self.users.as_ref().map_or(Some(local), |map| map.to_volume(local)).unwrap_or(UNMAPPED)
    }

    pub fn group_in_volume(&self, local: u32) -> u32 {
        self.groups.as_ref().map_or(Some(local), |map| map.to_volume(local)).unwrap_or(UNMAPPED)
    }

    /// User and primary group of a caller in the volume, after squashing.
    pub fn caller(&self, uid: u32, gid: u32) -> (u32, u32) {
        let (anonymous_user, anonymous_group) = self.anonymous;
        match self.squash {
            Some(Squash::All) => self.anonymous,
            Some(Squash::Root) => (
                if uid == 0 { anonymous_user } else { self.user_in_volume(uid) },
                if gid == 0 { anonymous_group } else { self.group_in_volume(gid) },
            ),
            None => (self.user_in_volume(uid), self.group_in_volume(gid)),
        }
    }

    /// The whole credential of a caller in the volume, after squashing.
    pub fn cred(&self, local: &Cred) -> Cred {
        let (uid, gid) = self.caller(local.uid, local.gid);
        let caps = if self.squash.is_some() { Caps::NONE } else { local.caps };
        let group = |gid: u32| match self.squash {
            Some(Squash::Root) if gid == 0 => self.anonymous.1,
            _ => self.group_in_volume(gid),
        };
        let groups: Vec<u32> = match self.squash {
            Some(Squash::All) => Vec::new(),
            _ => local.groups().iter().map(|gid| group(*gid)).filter(|gid| *gid != UNMAPPED).collect(),
        };
        Cred::new(uid, gid, &groups, caps)
    }

    /// Whether users or groups are mapped.
    pub fn is_mapping(&self) -> bool {
        self.users.is_some() || self.groups.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> IdMap {
        text.parse().unwrap()
    }

    #[test]
    fn ids_are_mapped_both_ways() {
        let map = map("0:100000:65536,70000:5:2");
        for (volume, local) in [(0, 100_000), (65_535, 165_535), (70_000, 5), (70_001, 6)] {
            assert_eq!((map.to_local(volume), map.to_volume(local)), (Some(local), Some(volume)));
        }
        for outside in [65_536, 69_999, 70_002, u32::MAX] {
            assert_eq!(map.to_local(outside), None, "{outside}");
        }
        for outside in [0, 4, 7, 99_999, 165_536, u32::MAX] {
            assert_eq!(map.to_volume(outside), None, "{outside}");
        }
        let file = "# from here\n     0     100000      65536\n70000 5 2 # two more\n\n";
        assert_eq!(file.parse(), Ok(map.clone()));
        assert_eq!(map.to_string(), "0:100000:65536,70000:5:2");
    }

    #[test]
    fn errors_name_the_wrong_range() {
        for (text, part) in [
            ("", "no range"),
            ("# nothing\n", "no range"),
            ("1:2", "'1:2'"),
            ("0:0:1,1:x:1", "'1:x:1'"),
            ("1:2:3:4", "'1:2:3:4'"),
            ("+1:2:3", "'+1:2:3'"),
            ("1:2:0", "COUNT is 0"),
            ("4294967295:0:1", "exceeds"),
            ("0:4294967290:6", "exceeds"),
            ("0:4294967296:1", "'0:4294967296:1'"),
            ("0:100:10,9:200:1", "'0:100:10' and '9:200:1' map one id of the volume to two ids"),
            ("0:100:10,50:109:1", "'0:100:10' and '50:109:1' map two ids of the volume to one id"),
        ] {
            let error = text.parse::<IdMap>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert_eq!(map("0:4294967290:5").to_local(4), Some(u32::MAX - 1), "the highest id");
        let many: Vec<String> = (0..341).map(|n| format!("{}:{}:1", 2 * n, 2 * n)).collect();
        assert_eq!(many.join(",").parse::<IdMap>(), Err(MapError::TooLong));
        assert!(many[..340].join("\n").parse::<IdMap>().is_ok());
    }

    #[test]
    fn callers_are_mapped_and_squashed() {
        let root = Cred::new(0, 0, &[0, 5, 1000], Caps::ALL);
        let user = Cred::new(1000, 0, &[0, 5], Caps::DAC_OVERRIDE);
        let plain = Ids::default();
        assert_eq!((plain.cred(&root), plain.cred(&user)), (root.clone(), user.clone()));

        let squash = |squash| Ids { squash: Some(squash), anonymous: (77, 78), ..Ids::default() };
        let no_root = squash(Squash::Root);
        assert_eq!(no_root.cred(&root), Cred::new(77, 78, &[78, 5, 1000], Caps::NONE));
        assert_eq!(no_root.cred(&user), Cred::new(1000, 78, &[78, 5], Caps::NONE));
        assert_eq!(no_root.caller(1000, 5), (1000, 5));
        assert_eq!(squash(Squash::All).cred(&user), Cred::new(77, 78, &[], Caps::NONE));

        let users = Some(map("1000:5000:10"));
        let groups = Some(map("5:50:1,1000:5000:1"));
        let mapped = Ids { users, groups, ..Ids::default() };
        assert_eq!((mapped.local_user(1003), mapped.user_in_volume(5003)), (5003, 1003));
        assert_eq!((mapped.local_user(0), mapped.local_group(0)), (UNMAPPED, UNMAPPED));
        let cred = mapped.cred(&Cred::new(5001, 50, &[50, 51, 5000], Caps::NONE));
        assert_eq!(cred, Cred::new(1001, 5, &[5, 1000], Caps::NONE), "an unmapped group is left out");
        assert_eq!(mapped.caller(0, 0), (UNMAPPED, UNMAPPED));
    }
}
