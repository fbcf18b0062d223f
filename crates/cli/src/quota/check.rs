//! `limen quota check`: counts quotas again while the volume is in use, and corrects them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

use check::{Difference, Recount, RecountError, recount};
use client::Failure;
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output;
use command::units::show_size;
use dump::scratch;
use meta::{QuotaKey, Usage};
use ops::CorrectQuotas;
use serde_json::{Value, json};
use types::{Errno, Ino, counted, plural};

use super::target::{BY_TOOL, QuotaTarget, add_path, whose};
use crate::users::Users;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
All inodes of the volume are read, and the result is exact, even while programs use the volume. On Redis, etcd and TiKV,
inodes that change during the check are read again, until few are left to read at once. If mounts keep changing very many
inodes, the check fails. On these servers, it also needs a file of 32 bytes for each inode with a quota in TMPDIR or /tmp.

Exit codes, as of limen fsck: 0 all quotas are right, 1 wrong quotas were corrected, 4 quotas are wrong, 8 the quotas could
not be checked; 2 the command line is wrong.

Examples:
  limen quota check redis://db.example.org/1
  limen quota check --repair /mnt/projects")]
pub(crate) struct CheckArgs {
    /// A directory, or META-URL:/PATH. For the root, all quotas of the volume are compared; for another
    /// directory, the quotas of directories there and below
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Correct the counters of wrong quotas; no program is interrupted
    #[arg(long)]
    repair: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const CORRECTED: u8 = 1;
const WRONG: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// The maximum number of counts. The quotas are counted again if another client changes a rule or corrects a
/// quota meanwhile.
const MAX_ROUNDS: usize = 5;

/// How many quotas one commit corrects.
const CORRECTED_AT_ONCE: usize = 100;

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    match check(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::note(&error);
            ExitCode::from(if error.exit_code() == 2 { 2 } else { NOT_CHECKED })
        }
    }
}

fn check(args: &CheckArgs) -> Result<u8, CliError> {
    let target = QuotaTarget::open(&args.target)?;
    target.require_directory()?;
    let interrupt = Interrupt::install()?;
    for _ in 0..MAX_ROUNDS {
        let mut recount = target.recount(&interrupt)?;
        if target.ino != Ino::ROOT {
            target.keep_below(&mut recount)?;
        }
        let wrong = std::mem::take(&mut recount.differences);
        if args.repair && !wrong.is_empty() && !target.correct(&wrong, &recount)? {
            continue;
        }
        target.report(args, &wrong, &recount)?;
        return Ok(match (wrong.is_empty(), args.repair) {
            (true, _) => 0,
            (false, true) => CORRECTED,
            (false, false) => WRONG,
        });
    }
    Err(target.failed("others change or correct quotas at the same time").advise("run it again"))
}

impl QuotaTarget {
    fn recount(&self, interrupt: &Interrupt) -> Result<Recount, CliError> {
        let bar = output::progress("inodes");
        let done = recount(self.meta.engine(), scratch, &mut |seen| {
            bar.set_position(seen);
            !interrupt.is_set()
        });
        bar.finish_and_clear();
        done.map_err(|error| {
            let failed = self.failed(format!("cannot count the quotas: {error}"));
            match error {
                RecountError::TooFast => failed.advise("run it again when there are fewer changes"),
                _ => failed,
            }
        })
    }

    /// Keeps only the quotas of the target and of directories below it.
    fn keep_below(&self, recount: &mut Recount) -> Result<(), CliError> {
        let mut below = BTreeMap::new();
        for (key, quota) in std::mem::take(&mut recount.quotas) {
            let root = quota.rule.root;
            let is_below = || self.meta.is_below(root, self.ino).map_err(|error| self.failed(error));
            if root == self.ino || root != Ino(0) && is_below()? {
                below.insert(key, quota);
            }
        }
        recount.differences.retain(|difference| below.contains_key(&difference.key));
        recount.quotas = below;
        Ok(())
    }

    /// Corrects quotas. Returns `false` if the check must be repeated first.
    fn correct(&self, wrong: &[Difference], recount: &Recount) -> Result<bool, CliError> {
        let mut next = recount.next.clone();
        for some in wrong.chunks(CORRECTED_AT_ONCE) {
            let corrections = some.iter().map(|Difference { key, stored, actual }| {
                let stored = stored.unwrap_or_default();
                (*key, actual.0.wrapping_sub(stored.0), actual.1.wrapping_sub(stored.1))
            });
            let correct = CorrectQuotas { next, corrections: corrections.collect() };
            next = match self.meta.run(&correct, &BY_TOOL) {
                Ok(next) => Some(next),
                Err(Failure::Operation(Errno::EAGAIN)) => return Ok(false),
                Err(failure) => return Err(self.failed(failure)),
            };
        }
        self.sync()?;
        Ok(true)
    }

    fn report(&self, args: &CheckArgs, wrong: &[Difference], recount: &Recount) -> Result<(), CliError> {
        let users = Users::default();
        let path = |key: &QuotaKey| {
            let root = recount.quotas.get(key).map(|quota| quota.rule.root).filter(|root| *root != Ino(0));
            root.map_or(Ok(None), |root| self.find_path(root)).map_err(|error| self.failed(error))
        };
        let bytes = |blocks: i64| blocks.saturating_mul(Usage::BLOCK_BYTES as i64);
        if args.json {
            let one = |Difference { key, stored, actual }: &Difference| {
                let (kind, number) = match key {
                    QuotaKey::Directory(id) => ("directory", id.0),
                    QuotaKey::User(uid) => ("user", (*uid).into()),
                    QuotaKey::Group(gid) => ("group", (*gid).into()),
                };
                let count =
                    |(inodes, blocks): (i64, i64)| json!({ "inodes": inodes, "bytes": bytes(blocks) });
                let mut value =
                    json!({ "kind": kind, "id": number, "says": stored.map(count), "is": count(*actual) });
                add_path(&mut value, path(key)?.as_deref());
                Ok(value)
            };
            let wrong = wrong.iter().map(one).collect::<Result<Vec<Value>, CliError>>()?;
            let value = json!({ "checked": recount.quotas.len(), "repaired": args.repair, "wrong": wrong });
            return output::print_json(&value);
        }
        let mut text = String::new();
        for Difference { key, stored, actual } in wrong {
            let (inodes, blocks) = stored.unwrap_or_default();
            let show = |blocks: i64| match blocks {
                0.. => show_size(bytes(blocks).unsigned_abs()),
                _ => format!("-{}", show_size(bytes(blocks).unsigned_abs())),
            };
            text.push_str(&format!(
                "{}: counts {} with {}, and has {} with {}\n",
                whose(*key, path(key)?.as_deref(), &users),
                counted(inodes, "inode", "inodes"),
                show(blocks),
                actual.0,
                show(actual.1)
            ));
        }
        text.push_str(&match (wrong.len(), args.repair) {
            (0, _) => format!(
                "All quotas are right: {} {} compared.\n",
                recount.quotas.len(),
                plural(recount.quotas.len(), "was", "were")
            ),
            (count, true) => format!("{} corrected.\n", counted(count, "quota was", "quotas were")),
            (count, false) => format!(
                "{} wrong; use --repair to correct {}.\n",
                counted(count, "quota is", "quotas are"),
                plural(count, "it", "them")
            ),
        });
        output::print(&text)
    }
}
