//! The options of `limen mount` about permissions: filtered listings, id maps, squashing, and bypass
//! traverse.

use std::fs;
use std::path::absolute;
use std::process::Command;

use acl::idmap::{ANONYMOUS, IdMap, Ids, MapError, Squash, UNMAPPED};
use acl::nfs4::Traversers;
use command::error::CliError;

use crate::users::Users;

/// A map with the maximum number of ranges is shorter than this.
const MAX_MAP_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Rights")]
pub(crate) struct RightsArgs {
    /// Listings show each caller only entries that it may read (access-based enumeration); limen config --abe
    /// on sets this for all mounts of a volume
    #[arg(long)]
    pub(crate) abe: bool,
    /// Map user ids of the volume to user ids on this machine: ranges VOLUME:HERE:COUNT separated by commas,
    /// or a file with one range per line. An id in no range is unmapped
    #[arg(long, value_name = "RANGES|FILE")]
    pub(crate) uid_map: Option<String>,
    /// Map group ids in the same way
    #[arg(long, value_name = "RANGES|FILE")]
    pub(crate) gid_map: Option<String>,
    /// Treat user 0 and group 0 as the anonymous user and group, and ignore capabilities
    #[arg(long, conflicts_with = "all_squash")]
    pub(crate) root_squash: bool,
    /// Treat every caller as the anonymous user
    #[arg(long)]
    pub(crate) all_squash: bool,
    /// The anonymous user's id in the volume [default: 65534]
    #[arg(long, value_name = "UID", value_parser = parse_id)]
    pub(crate) anon_uid: Option<u32>,
    /// The anonymous group's id in the volume [default: 65534]
    #[arg(long, value_name = "GID", value_parser = parse_id)]
    pub(crate) anon_gid: Option<u32>,
    /// Let a user or group search every directory of a volume with NFSv4 ACLs, whatever the directory's ACL
    /// says (Windows: bypass traverse checking). This grants no other access. Write a group's name or a
    /// user's number, or u:USER or g:GROUP with a name or number. Can be repeated
    #[arg(long, value_name = "GROUP|UID")]
    pub(crate) bypass_traverse: Vec<String>,
}

impl RightsArgs {
    /// Merges these options with those of `-o`.
    ///
    /// # Errors
    /// An option that takes one value is given in both places.
    pub(crate) fn with(&self, listed: &RightsArgs) -> Result<RightsArgs, CliError> {
        let twice = [
            ("uid_map", self.uid_map.is_some() && listed.uid_map.is_some()),
            ("gid_map", self.gid_map.is_some() && listed.gid_map.is_some()),
            ("anon_uid", self.anon_uid.is_some() && listed.anon_uid.is_some()),
            ("anon_gid", self.anon_gid.is_some() && listed.anon_gid.is_some()),
        ];
        if let Some((option, _)) = twice.into_iter().find(|(_, is_so)| *is_so) {
            return Err(CliError::usage("this option is given both with -o and without").at(option));
        }
        Ok(RightsArgs {
            abe: self.abe || listed.abe,
            uid_map: self.uid_map.clone().or_else(|| listed.uid_map.clone()),
            gid_map: self.gid_map.clone().or_else(|| listed.gid_map.clone()),
            root_squash: self.root_squash || listed.root_squash,
            all_squash: self.all_squash || listed.all_squash,
            anon_uid: self.anon_uid.or(listed.anon_uid),
            anon_gid: self.anon_gid.or(listed.anon_gid),
            bypass_traverse: [&self.bypass_traverse[..], &listed.bypass_traverse].concat(),
        })
    }

    /// The users and groups that may search every directory, by their ids in the volume.
    ///
    /// # Errors
    /// A user or group is unknown, or its id is unmapped; there are too many.
    pub(crate) fn traversers(&self, ids: &Ids) -> Result<Traversers, CliError> {
        let known = Users::default();
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for text in &self.bypass_traverse {
            let at = || format!("--bypass-traverse {text}");
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let (is_group, name) = match text.split_once(':') {
                Some(("u", user)) => (false, user),
                Some(("g", group)) => (true, group),
                _ => (!is_number, text.as_str()),
            };
            let here = if is_group { known.gid(name) } else { known.uid(name) };
            let here = here.map_err(|error| error.at(at()))?;
            let id = if is_group { ids.group_in_volume(here) } else { ids.user_in_volume(here) };
            if id == UNMAPPED {
                return Err(CliError::usage("the id map does not map this id into the volume").at(at()));
            }
            (if is_group { &mut groups } else { &mut users }).push(id);
        }
        let all = Traversers::new(&users, &groups);
        all.ok_or_else(|| {
            CliError::usage(format!("at most {} users and groups are allowed", Traversers::MAX))
                .at("--bypass-traverse")
        })
    }

    /// The id maps and the squashing of callers.
    ///
    /// # Errors
    /// A map is invalid, or does not map the anonymous id; an anonymous id is given without squashing; root
    /// and all callers are to be squashed.
    pub(crate) fn ids(&self) -> Result<Ids, CliError> {
        let squash = match (self.root_squash, self.all_squash) {
            (true, true) => {
                return Err(CliError::usage("--root-squash and --all-squash exclude each other")
                    .advise("omit one of them"));
            }
            (true, false) => Some(Squash::Root),
            (false, true) => Some(Squash::All),
            (false, false) => None,
        };
        let (users, groups) =
            (read("--uid-map", self.uid_map.as_deref())?, read("--gid-map", self.gid_map.as_deref())?);
        let anonymous = (self.anon_uid.unwrap_or(ANONYMOUS), self.anon_gid.unwrap_or(ANONYMOUS));
        if squash.is_none() && (self.anon_uid.is_some() || self.anon_gid.is_some()) {
            return Err(CliError::usage("--anon-uid and --anon-gid have no effect without squashing")
                .advise("add --root-squash or --all-squash"));
        }
        let maps = [("--uid-map", &users, anonymous.0), ("--gid-map", &groups, anonymous.1)];
        for (option, map, id) in maps {
            if squash.is_some() && map.as_ref().is_some_and(|map| map.to_local(id).is_none()) {
                return Err(CliError::usage(format!("the map does not contain the anonymous id {id}"))
                    .at(option)
                    .advise("add a range for it, or choose another id with --anon-uid and --anon-gid"));
            }
        }
        Ok(Ids { users, groups, squash, anonymous })
    }

    /// Adds these options to the command line of the background process.
    ///
    /// # Errors
    /// Those of [`RightsArgs::ids`].
    pub(crate) fn pass_to(&self, command: &mut Command) -> Result<(), CliError> {
        // The contents of a map file are passed instead of its path, because the process runs in another
        // directory.
        let ids = self.ids()?;
        let flags =
            [("--abe", self.abe), ("--root-squash", self.root_squash), ("--all-squash", self.all_squash)];
        command.args(flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag));
        for (option, map) in [("--uid-map", &ids.users), ("--gid-map", &ids.groups)] {
            if let Some(map) = map {
                command.arg(option).arg(map.to_string());
            }
        }
        for (option, id) in [("--anon-uid", self.anon_uid), ("--anon-gid", self.anon_gid)] {
            if let Some(id) = id {
                command.arg(option).arg(id.to_string());
            }
        }
        for holder in &self.bypass_traverse {
            command.arg("--bypass-traverse").arg(holder);
        }
        Ok(())
    }
}

impl RightsArgs {
    /// These options in the form of `-o`.
    ///
    /// # Errors
    /// The path of a map is relative, and the current directory does not exist.
    pub(crate) fn to_options(&self) -> Result<Vec<String>, CliError> {
        let flags = [("abe", self.abe), ("root_squash", self.root_squash), ("all_squash", self.all_squash)];
        let flags = flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag.to_owned());
        let mut all: Vec<String> = flags.collect();
        for (option, map) in [("uid_map", &self.uid_map), ("gid_map", &self.gid_map)] {
            match map {
                Some(map) if map.starts_with(|c: char| c.is_ascii_digit()) => {
                    all.extend(map.split(',').map(|range| format!("{option}={range}")));
                }
                Some(map) => all.push(format!("{option}={}", absolute(map)?.display())),
                None => {}
            }
        }
        let ids = [("anon_uid", self.anon_uid), ("anon_gid", self.anon_gid)];
        all.extend(ids.into_iter().filter_map(|(option, id)| Some(format!("{option}={}", id?))));
        all.extend(self.bypass_traverse.iter().map(|holder| format!("bypass_traverse={holder}")));
        Ok(all)
    }
}

/// The options for id maps and squashing in the form of `-o`, without paths of files.
pub(crate) fn ids_to_options(ids: &Ids) -> String {
    let ranges = |map: &Option<IdMap>| map.as_ref().map(ToString::to_string);
    let (uid, gid) = ids.anonymous;
    let args = RightsArgs {
        uid_map: ranges(&ids.users),
        gid_map: ranges(&ids.groups),
        root_squash: ids.squash == Some(Squash::Root),
        all_squash: ids.squash == Some(Squash::All),
        anon_uid: ids.squash.map(|_| uid),
        anon_gid: ids.squash.map(|_| gid),
        ..RightsArgs::default()
    };
    args.to_options().unwrap_or_default().join(",")
}

/// Adds the value of one `-o uid_map=` or `-o gid_map=` to a map. A comma ends an option of `-o`, so each
/// option has one range, which is appended to the ranges before it; or it has the path of the file to read
/// the map from. The path must be absolute, because the process that reads the file may run in another
/// directory.
///
/// # Errors
/// A message that says what to write.
pub(crate) fn add_ranges(map: &mut Option<String>, value: &str) -> Result<(), String> {
    let is_ranges = value.starts_with(|c: char| c.is_ascii_digit());
    match map {
        _ if !is_ranges && !value.starts_with('/') => {
            return Err(format!("'{value}' is neither a range VOLUME:HERE:COUNT nor an absolute path"));
        }
        None => *map = Some(value.to_owned()),
        Some(map) if is_ranges && !map.starts_with('/') => {
            map.push(',');
            map.push_str(value);
        }
        Some(_) => return Err("a map is ranges or one file".to_owned()),
    }
    Ok(())
}

fn read(option: &str, asked: Option<&str>) -> Result<Option<IdMap>, CliError> {
    let Some(asked) = asked else { return Ok(None) };
    let wrong = |error: MapError| CliError::usage(error).at(format!("{option} {asked}"));
    if asked.starts_with(|c: char| c.is_ascii_digit()) {
        return asked.parse().map(Some).map_err(wrong);
    }
    let failed = |error: std::io::Error| CliError::usage(error).at(format!("{option} {asked}"));
    if fs::metadata(asked).map_err(failed)?.len() > MAX_MAP_BYTES {
        return Err(wrong(MapError::TooLong));
    }
    fs::read_to_string(asked).map_err(failed)?.parse().map(Some).map_err(wrong)
}

pub(crate) fn parse_id(text: &str) -> Result<u32, String> {
    // The highest number, (uid_t) -1, is no valid id.
    let id = text.parse().ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| format!("'{text}' is not an id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> RightsArgs {
        RightsArgs::default()
    }

    #[test]
    fn maps_come_from_ranges_and_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("map");
        fs::write(&file, "0 100000 65536\n# and one\n70000 5 1\n").unwrap();
        let by_file = RightsArgs { uid_map: Some(file.to_str().unwrap().to_owned()), ..args() };
        let by_text = RightsArgs { uid_map: Some("0:100000:65536,70000:5:1".to_owned()), ..args() };
        assert_eq!(by_file.ids().unwrap(), by_text.ids().unwrap());
        let mut command = Command::new("limen");
        RightsArgs { abe: true, all_squash: true, anon_uid: Some(5), ..by_file }
            .pass_to(&mut command)
            .unwrap();
        let passed: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
        let expected = ["--abe", "--all-squash", "--uid-map", "0:100000:65536,70000:5:1", "--anon-uid", "5"];
        assert_eq!(passed, expected);
    }

    #[test]
    fn invalid_maps_and_combinations_are_refused() {
        let map = |text: &str| Some(text.to_owned());
        for (args, part) in [
            (RightsArgs { uid_map: map("0:1:2,1:5:1"), ..args() }, "two ids"),
            (RightsArgs { gid_map: map("1:2"), ..args() }, "--gid-map 1:2"),
            (RightsArgs { gid_map: map("/nowhere/map"), ..args() }, "/nowhere/map"),
            (RightsArgs { anon_uid: Some(5), ..args() }, "--root-squash"),
            (RightsArgs { root_squash: true, uid_map: map("0:0:1000"), ..args() }, "anonymous id 65534"),
        ] {
            let error = args.ids().unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(RightsArgs { root_squash: true, uid_map: map("0:0:65535"), ..args() }.ids().is_ok());
    }

    #[test]
    fn bypass_traverse_takes_names_and_numbers() {
        let plain = Ids::default();
        let of = |named: &[&str]| {
            let bypass_traverse = named.iter().map(|&name| name.to_owned()).collect();
            RightsArgs { bypass_traverse, ..args() }
        };
        let expected = Traversers::new(&[0, 7, 3_999_999_999], &[0, 50]);
        let named = of(&["u:root", "7", "u:3999999999", "root", "g:50"]);
        assert_eq!(Some(named.traversers(&plain).unwrap()), expected);
        assert!(of(&[]).traversers(&plain).unwrap().is_empty());
        for text in ["", "u:", "g:", "no such group", "u:no-such-user", "x:1", "4294967295", "g:-1", "u:g:1"]
        {
            let error = of(&[text]).traversers(&plain).unwrap_err();
            assert!(error.to_string().contains("--bypass-traverse"), "{text}: {error}");
        }
        let users: Vec<String> = (0..65).map(|uid| uid.to_string()).collect();
        let error = RightsArgs { bypass_traverse: users, ..args() }.traversers(&plain).unwrap_err();
        assert!(error.to_string().contains("64"), "{error}");
        let mapped = Ids { users: Some("1000:5000:10".parse().unwrap()), ..plain };
        assert_eq!(Some(of(&["5003"]).traversers(&mapped).unwrap()), Traversers::new(&[1003], &[]));
        assert!(of(&["7"]).traversers(&mapped).is_err());
    }
}
