//! `limen bench acl PATH`: the cost of ACLs, compared with files without ACLs.

use std::path::{Path, PathBuf};

use acl::identity::DomainTable;
use acl::nfs4::{Nfs4Acl, Scope};
use acl::posix::{Entry, Perm, PosixAcl, Tag};
use clap::ValueHint;
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output::{self, Columns};
use rustix::fs::{XattrFlags, getxattr_query, setxattr};
use rustix::io::Errno;
use serde_json::{Value, json};
use types::counted;

use crate::figure::figure;
use crate::load::{Load, parse_rounds};
use crate::ops::{ACCESS_ACL, DEFAULT_ACL};
use crate::scratch::Scratch;
use crate::series::{MountRow, Series};

const NAMED_USERS: u32 = 300;
const NAMED_GROUPS: u32 = 150;
/// The first id of named users and groups. No real user or group is expected to have these ids.
const FIRST_ID: u32 = 700_000;

const NFS4_ACL: &str = "system.nfs4_acl";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The rounds alternate between three directories: one without ACLs; one with a minimal default ACL, which says the same as a
mode; and one with access and default ACLs of 300 named users and 150 named groups, which all files created in it inherit.
The loss of a round is its difference to the round without ACLs; the median over the rounds is shown.

Example:
  limen bench acl /mnt --rounds 15")]
pub(crate) struct Options {
    /// A directory on the file system to measure
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    #[command(flatten)]
    load: Load,
    /// Number of rounds; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "7")]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One of the three directories.
#[derive(Debug)]
struct Variant {
    name: &'static str,
    title: &'static str,
    acl: Option<Given>,
    series: Series,
}

/// An ACL in its wire form.
#[derive(Debug)]
struct Given {
    /// The xattrs to set.
    names: &'static [&'static str],
    value: Vec<u8>,
    entries: usize,
}

/// Runs the benchmark and prints its results.
///
/// # Errors
/// The file system fails; the user interrupted the command.
pub(crate) fn run(args: &Options, interrupt: &Interrupt) -> Result<(), CliError> {
    // A file system with NFSv4 ACLs has no POSIX ACLs.
    let nfs4 = getxattr_query(&args.path, NFS4_ACL).is_ok();
    let mut variants = variants(nfs4)?;
    let scratch = Scratch::make(&args.path)?;
    let bar = output::steps((args.rounds * variants.len()) as u64);
    scratch.warm_up(&args.load, interrupt)?;
    for number in 0..args.rounds {
        for variant in &mut variants {
            let name = format!("{}-{number}", variant.name);
            let acl = variant.acl.as_ref();
            let samples = scratch.round(&name, &args.load, &bar, interrupt, |dir| give(dir, acl))?;
            variant.series.add(samples);
        }
    }
    bar.finish_and_clear();
    output::result(args.json, || to_json(args, &variants), || to_text(args, &variants))
}

fn variants(nfs4: bool) -> Result<[Variant; 3], CliError> {
    let variant = |name, title, acl| Variant { name, title, acl, series: Series::default() };
    let acls = if nfs4 { nfs4_acls() } else { posix_acls() };
    let [minimal, named] = acls.map_err(CliError::new)?;
    Ok([
        variant("none", "", None),
        variant("minimal", "minimal: loss", Some(minimal)),
        variant("named", "450 named: loss", Some(named)),
    ])
}

/// A minimal POSIX ACL, which grants the same as a mode, and an ACL that also names many users and groups.
fn posix_acls() -> Result<[Given; 2], String> {
    let perm = |bits: u32| Perm::new(bits);
    let basic = [(Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 0)];
    let basic = basic.map(|(tag, bits)| Entry { tag, perm: perm(bits) });
    let users = (0..NAMED_USERS).map(|n| Tag::User(FIRST_ID + n));
    let groups = (0..NAMED_GROUPS).map(|n| Tag::Group(FIRST_ID + n));
    let named = users.chain(groups).map(|tag| Entry { tag, perm: perm(5) });
    let mask = Entry { tag: Tag::Mask, perm: perm(7) };
    let given = |acl: Result<PosixAcl, acl::posix::AclError>| -> Result<Given, String> {
        let acl = acl.map_err(|error| error.to_string())?;
        let names = &[ACCESS_ACL, DEFAULT_ACL][..];
        Ok(Given { names, value: acl.to_xattr(), entries: acl.entry_count() })
    };
    Ok([
        given(PosixAcl::from_entries(basic))?,
        given(PosixAcl::from_entries(basic.into_iter().chain(named).chain([mask])))?,
    ])
}

/// The same two ACLs as NFSv4 ACLs, in which every entry is inheritable.
fn nfs4_acls() -> Result<[Given; 2], String> {
    let basic = "A:fd:OWNER@:rwaxDtTnNcCoy,A:fd:GROUP@:rxtncy,A:fd:EVERYONE@:tncy";
    let users = (0..NAMED_USERS).map(|n| format!("A:fd:{}:rxtncy,", FIRST_ID + n));
    let groups = (0..NAMED_GROUPS).map(|n| format!("A:fdg:{}:rxtncy,", FIRST_ID + n));
    let named: String = users.chain(groups).chain([basic.to_owned()]).collect();
    let given = |text: &str| -> Result<Given, acl::nfs4::AclError> {
        let acl = Nfs4Acl::from_text(text)?;
        let value = acl.to_xattr(Scope::Entries, &DomainTable::default())?;
        Ok(Given { names: &[NFS4_ACL], value, entries: acl.entries().len() })
    };
    let given = |text: &str| given(text).map_err(|error| error.to_string());
    Ok([given(basic)?, given(&named)?])
}

/// Sets the ACL on a directory, so that files created in it inherit it.
fn give(dir: &Path, acl: Option<&Given>) -> Result<(), CliError> {
    let Some(Given { names, value, .. }) = acl else { return Ok(()) };
    for name in *names {
        setxattr(dir, *name, value, XattrFlags::empty()).map_err(|error| {
            let failed = CliError::new(format!("cannot set an ACL: {error}")).at(dir.display());
            match error {
                Errno::OPNOTSUPP => {
                    failed.advise("this file system, or this mount of it, does not support ACLs")
                }
                Errno::NOSPC | Errno::TOOBIG | Errno::INVAL => {
                    failed.advise("this file system does not support an ACL of 454 entries")
                }
                _ => failed,
            }
        })?;
    }
    Ok(())
}

fn to_text(args: &Options, variants: &[Variant; 3]) -> String {
    let [none, with @ ..] = variants;
    let mut head = vec!["operation", "ops/s", "CPU us/op"];
    for variant in with {
        head.extend([variant.title, "min..max", "CPU"]);
    }
    let ours = none.series.rows().iter().any(|row| row.mount.is_some());
    if ours {
        head.extend(["requests/op", "trips/op"]);
    }
    let mut columns = Columns::new(1, &head);
    for row in none.series.rows() {
        let rows: Vec<_> = variants.iter().filter_map(|variant| variant.series.row(row.op)).collect();
        let mount_cpu = row.mount.as_ref().map_or(0.0, |mount| mount.cpu_us);
        let mut cells = vec![row.op.name().to_owned(), format!("{:.0}", row.rate.median)];
        cells.push(figure(row.cpu_us + mount_cpu));
        for variant in with {
            let loss = variant.series.loss(row.op, &none.series);
            let cpu = variant.series.cpu_loss(row.op, &none.series);
            cells.push(format!("{:+.1}", loss.median));
            cells.push(format!("{:+.0}..{:+.0}", loss.min, loss.max));
            cells.push(format!("{:+.1}", cpu.median));
        }
        if ours {
            let each = |of: fn(&MountRow) -> f64| {
                let figures =
                    rows.iter().map(|row| row.mount.as_ref().map_or_else(String::new, |m| figure(of(m))));
                figures.collect::<Vec<_>>().join(" ")
            };
            cells.extend([each(|mount| mount.requests), each(|mount| mount.round_trips)]);
        }
        columns.line(cells);
    }
    let entries = with.iter().filter_map(|variant| variant.acl.as_ref()).map(|acl| acl.entries).max();
    format!(
        "{}: {}, {}, medians of {}.\nFor minimal ACLs and for ACLs of {} entries: the \
         loss in % compared with no ACLs, its minimum and maximum, and the additional CPU time in %.\n\n{}",
        args.path.display(),
        counted(args.load.files, "file", "files"),
        counted(args.load.threads, "thread", "threads"),
        counted(args.rounds, "alternating round", "alternating rounds"),
        entries.unwrap_or(0),
        columns.render()
    )
}

fn to_json(args: &Options, variants: &[Variant; 3]) -> Value {
    let none = &variants[0].series;
    let variant = |variant: &Variant| {
        let operations = variant.series.rows().into_iter().map(|row| {
            let mut value = row.to_json();
            if variant.acl.is_some() {
                value.insert("loss_pct".into(), variant.series.loss(row.op, none).to_json());
                value.insert("cpu_more_pct".into(), variant.series.cpu_loss(row.op, none).to_json());
            }
            Value::Object(value)
        });
        json!({
            "name": variant.name,
            "entries": variant.acl.as_ref().map_or(0, |acl| acl.entries),
            "operations": operations.collect::<Vec<_>>(),
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "path": args.path.to_string_lossy(),
        "threads": args.load.threads,
        "files": args.load.files,
        "rounds": args.rounds,
        "variants": variants.iter().map(variant).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_acls_have_the_expected_length() {
        for (nfs4, expected) in [(false, [0, 3, 454]), (true, [0, 3, 453])] {
            let variants = variants(nfs4).unwrap();
            let entries =
                variants.each_ref().map(|variant| variant.acl.as_ref().map_or(0, |acl| acl.entries));
            assert_eq!(entries, expected);
        }
    }
}
