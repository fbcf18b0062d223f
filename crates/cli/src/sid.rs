//! `limen sid`: the rules that map SIDs in NFSv4 ACLs to uids and gids.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;

use acl::identity::{Domain, DomainIndex, DomainTable};
use acl::sid_rules::{IdRange, SidRules};
use clap::{Subcommand, ValueHint};
use client::{Failure, Meta};
use command::error::{CliError, ErrorAt};
use command::output::{self, Columns};
use meta::{AclKind, Volume};
use ops::{AddSidRule, Authority, Op, RemoveSidRules, SidRulesRefusal};
use serde_json::{Value, json};
use types::Errno;

use crate::sids::table;
use crate::target::{Target, volume_behind};
use crate::url::Database;
use crate::users::Users;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
An ACL entry for a SID applies to the user and to the group whose number its RID is mapped to:
  number = RID - first RID + first number of the range
This is the mapping of Samba's idmap_rid and idmap_autorid: use the ranges of smb.conf, or of net idmap get ranges.
Without a rule, entries for SIDs of a domain are stored and shown, and apply to nobody.
Mounts apply a change within about ten seconds. TARGET is a path on a mount, or META-URL.

Examples:
  limen sid set redis://db.example/1 S-1-5-21-1004336348-1177238915-682003330 --range 100000-199999
  limen sid set /mnt S-1-5-21-1004336348-1177238915-682003330 --range 200000-299999 \\
      --first-rid 100000
  limen sid list /mnt
  limen sid delete /mnt S-1-5-21-1004336348-1177238915-682003330")]
pub(crate) struct SidArgs {
    #[command(subcommand)]
    command: SidCommand,
}

#[derive(Debug, Subcommand)]
enum SidCommand {
    /// Map a range of a domain's RIDs to uids and gids
    Set(SetArgs),
    /// List the Windows domains in the volume's ACLs, and the rules that map them
    List(ListArgs),
    /// Remove the rules of a domain; its entries then apply to nobody
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    /// A path on a mount, or the volume's URL
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    target: OsString,
    /// The SID of the domain, without a RID
    #[arg(value_name = "DOMAIN-SID", value_parser = parse_domain)]
    domain: Domain,
    /// The uids and gids, which must be in no other rule and belong to no other users and groups
    #[arg(long, value_name = "LOW-HIGH", value_parser = parse_range)]
    range: IdRange,
    /// The RID that is mapped to LOW
    #[arg(long, value_name = "RID", default_value_t = 0)]
    first_rid: u32,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// A path on a mount, or the volume's URL
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    target: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// A path on a mount, or the volume's URL
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    target: OsString,
    /// The SID of the domain, without a RID
    #[arg(value_name = "DOMAIN-SID", value_parser = parse_domain)]
    domain: Domain,
    /// Remove only the rule that begins at this RID
    #[arg(long, value_name = "RID")]
    first_rid: Option<u32>,
}

fn parse_domain(text: &str) -> Result<Domain, String> {
    text.parse()
        .map_err(|_| "write the SID of a domain, such as S-1-5-21-1004336348-1177238915-682003330".to_owned())
}

fn parse_range(text: &str) -> Result<IdRange, String> {
    let wrong =
        |_| "write the first and the last number, such as 100000-199999, between 1 and 4294967294".to_owned();
    text.parse().map_err(wrong)
}

pub(crate) fn run(args: &SidArgs) -> Result<(), CliError> {
    match &args.command {
        SidCommand::Set(args) => {
            let rule = AddSidRule { domain: args.domain.clone(), first_rid: args.first_rid, ids: args.range };
            OpenVolume::open(&args.target)?.change(&rule, &args.domain)?;
            warn(args.range)
        }
        SidCommand::List(args) => OpenVolume::open(&args.target)?.list(args.json),
        SidCommand::Delete(args) => {
            let rule = RemoveSidRules { domain: args.domain.clone(), first_rid: args.first_rid };
            OpenVolume::open(&args.target)?.change(&rule, &args.domain)
        }
    }
}

/// Warns if a user or group of this machine has a number in the range, because entries for a SID would apply
/// to it.
fn warn(range: IdRange) -> Result<(), CliError> {
    let users = Users::default();
    let named: Vec<(u32, String)> = users.all()?.into_iter().map(|user| (user.cred.uid, user.name)).collect();
    warnings(range, &named, &users.all_groups()?).into_iter().for_each(output::note);
    Ok(())
}

/// A warning about the first user and one about the first group in the range.
fn warnings(range: IdRange, users: &[(u32, String)], groups: &[(u32, String)]) -> Vec<String> {
    let first = |kind: &str, named: &[(u32, String)]| {
        let (id, name) = named.iter().find(|(id, _)| (range.first()..=range.last()).contains(id))?;
        Some(format!(
            "{kind} {name} of this machine has the number {id}, so entries for the SID of that number apply to it"
        ))
    };
    first("user", users).into_iter().chain(first("group", groups)).collect()
}

/// A volume with NFSv4 ACLs, and the text that names it in messages.
struct OpenVolume {
    shown: String,
    database: Database,
    volume: Volume,
}

impl OpenVolume {
    fn open(target: &std::ffi::OsStr) -> Result<OpenVolume, CliError> {
        let target = Target::parse(target)?;
        let (database, volume) = match &target {
            Target::Local(path) => volume_behind(path, fs::metadata(path).at(path.display())?.dev())?,
            Target::Volume(url, _) => url.open_volume()?,
        };
        let shown = match &target {
            Target::Local(path) => path.display().to_string(),
            Target::Volume(url, _) => url.to_string(),
        };
        if volume.acl != AclKind::Nfs4 {
            return Err(CliError::usage("the volume has no NFSv4 ACLs, so no ACL names a SID").at(shown));
        }
        Ok(OpenVolume { shown, database, volume })
    }

    /// Runs a change of the rules. A refusal leaves them as they are.
    fn change<O>(&self, change: &O, domain: &Domain) -> Result<(), CliError>
    where
        O: Op<Reply = Result<(), SidRulesRefusal>>,
    {
        let meta = Meta::open(self.database.engine(), 1).at(&self.shown)?;
        let refusal = match meta.run(change, &Authority::Kernel { revisions: None }) {
            Ok(Ok(())) => return meta.sync().at(&self.shown),
            Ok(Err(refusal)) => CliError::new(refusal).at(domain).advise("nothing was changed"),
            Err(Failure::Operation(Errno::EIO)) => {
                CliError::new("the volume's rules for SIDs, or its table of domains, are damaged")
                    .at(&self.shown)
                    .advise("run limen fsck")
            }
            Err(failure) => CliError::new(failure).at(&self.shown),
        };
        Err(refusal)
    }

    fn list(&self, json: bool) -> Result<(), CliError> {
        let table = table(&*self.database.engine()).at(&self.shown)?;
        let rules = &self.volume.sid_rules;
        output::result(json, || to_json(&table, rules), || to_text(&table, rules))
    }
}

/// Each domain of the table, with its rules: the first and the last RID, and the numbers.
fn rows<'t>(
    table: &'t DomainTable,
    rules: &'t SidRules,
) -> impl Iterator<Item = (&'t Domain, Vec<(u32, u32, IdRange)>)> {
    let index = |at: usize| u32::try_from(at + 1).ok().and_then(DomainIndex::new);
    table.domains().iter().enumerate().map(move |(at, domain)| {
        let of_domain = rules.rules().iter().filter(|rule| Some(rule.domain) == index(at));
        let ranges = of_domain.map(|rule| (rule.first_rid, rule.last_rid().unwrap_or(u32::MAX), rule.ids));
        (domain, ranges.collect())
    })
}

fn to_text(table: &DomainTable, rules: &SidRules) -> String {
    let mut columns = Columns::new(3, &["DOMAIN", "RIDS", "UIDS AND GIDS"]);
    for (domain, ranges) in rows(table, rules) {
        if ranges.is_empty() {
            columns.line([domain.to_string(), "-".to_owned(), "not mapped".to_owned()]);
        }
        for (first, last, ids) in ranges {
            columns.line([domain.to_string(), format!("{first}-{last}"), ids.to_string()]);
        }
    }
    columns.render()
}

fn to_json(table: &DomainTable, rules: &SidRules) -> Value {
    let range = |(first, last, ids): &(u32, u32, IdRange)| json!({ "first_rid": first, "last_rid": last, "first_id": ids.first(), "last_id": ids.last() });
    let domain = |(domain, ranges): (&Domain, Vec<_>)| json!({ "sid": domain.as_str(), "rules": ranges.iter().map(range).collect::<Vec<Value>>() });
    json!({ "domains": rows(table, rules).map(domain).collect::<Vec<Value>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_in_the_range_are_warned_about() {
        let named = |all: &[(u32, &str)]| all.iter().map(|(id, name)| (*id, (*name).to_owned())).collect();
        let (users, groups): (Vec<_>, Vec<_>) = (named(&[(5, "ann"), (20, "bob")]), named(&[(15, "staff")]));
        let warned = |range: &str| {
            let all = warnings(range.parse().unwrap(), &users, &groups);
            all.iter().map(|text| text[..text.find(" of ").unwrap()].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(warned("10-19"), ["group staff"]);
        assert_eq!(warned("10-20"), ["user bob", "group staff"]);
        assert_eq!(warned("6-14"), [""; 0]);
    }
}
