//! What `limen mount` is told about rights: what listings show, what numbers users and groups have, and whom callers are
//! taken for.

use std::fs;
use std::process::Command;

use acl::idmap::{ANONYMOUS, IdMap, Ids, MapError, Squash};

use crate::fault::Fault;

/// A map of as many ranges as there may be is shorter than this.
const MAX_MAP_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Rights")]
pub(crate) struct RightsArgs {
    /// Listings show a caller only what he may read (access-based enumeration); a volume can say so for all its mounts
    /// with limen config --abe on
    #[arg(long)]
    pub(crate) abe: bool,
    /// What users of the volume are here: ranges VOLUME:HERE:COUNT separated by commas, or a file with one a line.
    /// Who is in no range has no place on the other side
    #[arg(long, value_name = "RANGES|FILE")]
    pub(crate) uid_map: Option<String>,
    /// The same for groups
    #[arg(long, value_name = "RANGES|FILE")]
    pub(crate) gid_map: Option<String>,
    /// Take user 0 and group 0 for the anonymous ones, and let nobody use capabilities
    #[arg(long, conflicts_with = "all_squash")]
    pub(crate) root_squash: bool,
    /// Take everybody for the anonymous user
    #[arg(long)]
    pub(crate) all_squash: bool,
    /// The anonymous user, by his number in the volume [default: 65534]
    #[arg(long, value_name = "UID", value_parser = parse_id)]
    pub(crate) anon_uid: Option<u32>,
    /// The anonymous group [default: 65534]
    #[arg(long, value_name = "GID", value_parser = parse_id)]
    pub(crate) anon_gid: Option<u32>,
}

impl RightsArgs {
    /// What numbers users and groups have, and whom callers are taken for.
    ///
    /// # Errors
    /// A map is none, or has no place for the anonymous user or group; an anonymous user without anybody to be taken for
    /// him.
    pub(crate) fn ids(&self) -> Result<Ids, Fault> {
        let squash = match (self.root_squash, self.all_squash) {
            (true, _) => Some(Squash::Root),
            (_, true) => Some(Squash::All),
            (false, false) => None,
        };
        let (users, groups) =
            (read("--uid-map", self.uid_map.as_deref())?, read("--gid-map", self.gid_map.as_deref())?);
        let anonymous = (self.anon_uid.unwrap_or(ANONYMOUS), self.anon_gid.unwrap_or(ANONYMOUS));
        if squash.is_none() && (self.anon_uid.is_some() || self.anon_gid.is_some()) {
            return Err(Fault::usage("--anon-uid and --anon-gid say nothing where nobody is squashed")
                .advise("add --root-squash or --all-squash"));
        }
        let maps = [("--uid-map", &users, anonymous.0), ("--gid-map", &groups, anonymous.1)];
        for (option, map, id) in maps {
            if squash.is_some() && map.as_ref().is_some_and(|map| map.to_here(id).is_none()) {
                return Err(Fault::usage(format!("the anonymous id {id} has no place in the map"))
                    .at(option)
                    .advise("add a range for it, or choose another one with --anon-uid and --anon-gid"));
            }
        }
        Ok(Ids { users, groups, squash, anonymous })
    }

    /// Hands them on to a process that is to mount by them.
    ///
    /// # Errors
    /// Those of [`RightsArgs::ids`].
    pub(crate) fn pass_to(&self, command: &mut Command) -> Result<(), Fault> {
        // What a file says is said in its place: the other process has another directory to look from.
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
        Ok(())
    }
}

fn read(option: &str, asked: Option<&str>) -> Result<Option<IdMap>, Fault> {
    let Some(asked) = asked else { return Ok(None) };
    let wrong = |error: MapError| Fault::usage(error).at(format!("{option} {asked}"));
    if asked.starts_with(|c: char| c.is_ascii_digit()) {
        return asked.parse().map(Some).map_err(wrong);
    }
    let failed = |error: std::io::Error| Fault::usage(error).at(format!("{option} {asked}"));
    if fs::metadata(asked).map_err(failed)?.len() > MAX_MAP_BYTES {
        return Err(wrong(MapError::TooLong));
    }
    fs::read_to_string(asked).map_err(failed)?.parse().map(Some).map_err(wrong)
}

fn parse_id(text: &str) -> Result<u32, String> {
    // The highest number stands for nobody.
    let id = text.parse().ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| format!("'{text}' is no id"))
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
    fn what_makes_no_sense_is_refused() {
        let map = |text: &str| Some(text.to_owned());
        for (args, part) in [
            (RightsArgs { uid_map: map("0:1:2,1:5:1"), ..args() }, "two places"),
            (RightsArgs { gid_map: map("1:2"), ..args() }, "--gid-map 1:2"),
            (RightsArgs { gid_map: map("/nowhere/map"), ..args() }, "/nowhere/map"),
            (RightsArgs { anon_uid: Some(5), ..args() }, "--root-squash"),
            (RightsArgs { root_squash: true, uid_map: map("0:0:1000"), ..args() }, "anonymous id 65534"),
        ] {
            let fault = args.ids().unwrap_err();
            assert!(fault.to_string().contains(part), "{fault}");
        }
        assert!(RightsArgs { root_squash: true, uid_map: map("0:0:65535"), ..args() }.ids().is_ok());
    }
}
