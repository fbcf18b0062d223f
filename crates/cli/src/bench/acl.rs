//! `limen bench acl PATH`: what ACLs cost, against none.

use std::path::Path;

use acl::posix::{Entry, Perm, PosixAcl, Tag};
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::args::AclArgs;
use super::ops::{ACCESS_ACL, DEFAULT_ACL};
use super::place::Place;
use super::progress;
use super::series::{MountRow, Series};
use super::table::{Columns, figure};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::output;

const NAMED_USERS: u32 = 300;
const NAMED_GROUPS: u32 = 150;
/// Named users and groups have ids from here on, which nobody has.
const FIRST_ID: u32 = 700_000;

/// What the directories differ in.
#[derive(Debug)]
struct Variant {
    name: &'static str,
    title: &'static str,
    acl: Option<PosixAcl>,
    series: Series,
}

pub(super) fn run(args: &AclArgs, interrupt: &Interrupt) -> Result<(), Fault> {
    let mut variants = variants().map_err(|error| Fault::new(error).at(args.path.display()))?;
    let place = Place::make(&args.path)?;
    let bar = progress((args.rounds * variants.len()) as u64);
    place.warm_up(&args.load, interrupt)?;
    for number in 0..args.rounds {
        for variant in &mut variants {
            let name = format!("{}-{number}", variant.name);
            let acl = variant.acl.as_ref();
            let samples = place.round(&name, &args.load, &bar, interrupt, |dir| give(dir, acl))?;
            variant.series.add(samples);
        }
    }
    bar.finish_and_clear();
    if args.json {
        return output::print_json(&to_json(args, &variants));
    }
    output::print(&to_text(args, &variants))
}

fn variants() -> Result<[Variant; 3], acl::posix::AclError> {
    let variant = |name, title, acl| Variant { name, title, acl, series: Series::default() };
    let perm = |bits: u32| Perm::new(bits);
    let basic = [(Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 0)];
    let basic = basic.map(|(tag, bits)| Entry { tag, perm: perm(bits) });
    let users = (0..NAMED_USERS).map(|n| Tag::User(FIRST_ID + n));
    let groups = (0..NAMED_GROUPS).map(|n| Tag::Group(FIRST_ID + n));
    let named = users.chain(groups).map(|tag| Entry { tag, perm: perm(5) });
    let mask = Entry { tag: Tag::Mask, perm: perm(7) };
    let long = PosixAcl::from_entries(basic.into_iter().chain(named).chain([mask]))?;
    Ok([
        variant("none", "", None),
        variant("minimal", "minimal: loss", Some(PosixAcl::from_entries(basic)?)),
        variant("named", "450 named: loss", Some(long)),
    ])
}

/// Gives a directory the ACL, and whatever is made in it.
fn give(dir: &Path, acl: Option<&PosixAcl>) -> Result<(), Fault> {
    let Some(value) = acl.map(PosixAcl::to_xattr) else { return Ok(()) };
    for name in [ACCESS_ACL, DEFAULT_ACL] {
        setxattr(dir, name, &value, XattrFlags::empty()).map_err(|error| {
            let fault = Fault::new(format!("cannot set an ACL: {error}")).at(dir.display());
            match error {
                Errno::OPNOTSUPP => fault.advise("this file system, or this mount of it, has no POSIX ACLs"),
                Errno::NOSPC | Errno::TOOBIG | Errno::INVAL => {
                    fault.advise("this file system has no room for an ACL of 454 entries")
                }
                _ => fault,
            }
        })?;
    }
    Ok(())
}

fn to_text(args: &AclArgs, variants: &[Variant; 3]) -> String {
    let [none, with @ ..] = variants;
    let mut head = vec!["operation", "ops/s", "CPU us/op"];
    for variant in with {
        head.extend([variant.title, "min..max", "CPU"]);
    }
    let ours = none.series.rows().iter().any(|row| row.mount.is_some());
    if ours {
        head.extend(["requests/op", "trips/op"]);
    }
    let mut columns = Columns::new(&head);
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
    let entries = with.iter().filter_map(|variant| variant.acl.as_ref()).map(PosixAcl::entry_count).max();
    format!(
        "{}: {} files, {} threads, medians of {} rounds by turns.\nFor minimal ACLs and for those of {} entries: the \
         loss in % against no ACLs, its spread, and by how many % more CPU time was used.\n\n{}",
        args.path.display(),
        args.load.files,
        args.load.threads,
        args.rounds,
        entries.unwrap_or(0),
        columns.render()
    )
}

fn to_json(args: &AclArgs, variants: &[Variant; 3]) -> Value {
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
            "entries": variant.acl.as_ref().map_or(0, PosixAcl::entry_count),
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
    fn the_long_acl_is_as_long_as_it_says() {
        let variants = variants().unwrap();
        let entries =
            variants.each_ref().map(|variant| variant.acl.as_ref().map_or(0, PosixAcl::entry_count));
        assert_eq!(entries, [0, 3, 454]);
    }
}
