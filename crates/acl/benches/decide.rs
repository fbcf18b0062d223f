//! The cost of a permission decision, by the length of the ACL and the number of the caller's groups.
//!
//! `cargo bench -p acl` prints times, in ns; `cargo bench -p acl -- --instructions` runs each case under
//! valgrind and prints the processor's instructions for each decision, which are the same on every run.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use acl::cache::{self, DecisionCache, FileAttrs};
use acl::credential::{Credential, Credentials};
use acl::nfs4::{self, AclFlags, EntryFlags, Kind, Mask, Nfs4Acl, Who};
use acl::posix::{self, Perm, PosixAcl, Tag};
use types::{AclId, Caps, Cred, Mode};

const FAMILIES: [&str; 2] = ["posix", "nfs4"];
/// The number of named entries of the ACL; None for a mode without an ACL.
const ACLS: [(&str, Option<u32>); 3] =
    [("mode bits", None), ("short ACL", Some(1)), ("500 entries", Some(496))];
const GROUPS: [u32; 3] = [4, 400, 4000];
/// The number of files, used in turn, so that branch prediction cannot learn one answer.
const FILES: u32 = 64;
const OWNER: u32 = 1;
const CALLER: u32 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--one", family, acl, groups, rounds] => match (acl.parse(), groups.parse(), rounds.parse()) {
            (Ok(acl), Ok(groups), Ok(rounds)) => {
                Case::new(family, ACLS.get::<usize>(acl).and_then(|(_, named)| *named), groups).warm(rounds);
                ExitCode::SUCCESS
            }
            _ => ExitCode::from(2),
        },
        rest if rest.contains(&"--instructions") => {
            print_table("instructions for a decision, cached", |family, acl, groups| {
                let count = |rounds: u64| instructions(family, acl, groups, rounds);
                (count(120_000)? - count(20_000)?).checked_div(100_000).map(|each| each.to_string())
            });
            ExitCode::SUCCESS
        }
        _ => {
            print_times("ns for a decision, cached", 10_000, Case::warm);
            print_times("ns for a decision, compiled ACL", 1_000, Case::compiled);
            print_times("ns for a decision, entry by entry", 100, Case::step_by_step);
            ExitCode::SUCCESS
        }
    }
}

fn print_table(title: &str, measure: impl Fn(&str, usize, u32) -> Option<String>) {
    println!("| {title} | 4 groups | 400 groups | 4000 groups |\n|---|---|---|---|");
    for family in FAMILIES {
        for (acl, (name, _)) in ACLS.iter().enumerate() {
            let cells: Vec<String> = GROUPS
                .iter()
                .map(|groups| measure(family, acl, *groups).unwrap_or_else(|| "not measured".into()))
                .collect();
            println!("| {family}, {name} | {} |", cells.join(" | "));
        }
    }
    println!();
}

/// Runs each case 301 times in turn, with `decisions` decisions each, and prints the lowest and the median
/// time: on a shared machine, the lowest time shows the cost of the code.
fn print_times(title: &str, decisions: u64, run: impl Fn(&Case, u64)) {
    let mut measured: HashMap<(&str, usize, u32), (Case, Vec<f64>)> = HashMap::new();
    for family in FAMILIES {
        for (acl, (_, named)) in ACLS.iter().enumerate() {
            for groups in GROUPS {
                let case = Case::new(family, *named, groups);
                run(&case, decisions);
                measured.insert((family, acl, groups), (case, Vec::new()));
            }
        }
    }
    for _ in 0..301 {
        for (case, times) in measured.values_mut() {
            let start = Instant::now();
            run(case, decisions);
            times.push(start.elapsed().as_nanos() as f64 / decisions as f64);
        }
    }
    for (_, times) in measured.values_mut() {
        times.sort_by(f64::total_cmp);
    }
    print_table(&format!("{title}: lowest, median"), |family, acl, groups| {
        let (_, times) = measured.get(&(family, acl, groups))?;
        Some(format!("{:.1}, {:.1}", times.first()?, times.get(times.len() / 2)?))
    });
}

/// All instructions of a process that makes `rounds` decisions; None without valgrind.
fn instructions(family: &str, acl: usize, groups: u32, rounds: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["--one", family, &acl.to_string(), &groups.to_string(), &rounds.to_string()])
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let collected = report.lines().find_map(|line| line.split_once("Collected :"))?.1;
    collected.trim().parse().ok()
}

struct Case {
    is_nfs4: bool,
    cache: DecisionCache,
    caller: Arc<Credential>,
    files: Vec<FileAttrs>,
    posix: Option<Arc<posix::Compiled>>,
    nfs4: Option<Arc<nfs4::Compiled>>,
}

impl Case {
    /// A caller in `groups` groups. The ACL names the last of them, and other groups from the same range of
    /// numbers. The files have different owning groups.
    fn new(family: &str, named: Option<u32>, groups: u32) -> Self {
        let gids: Vec<u32> = (0..groups).map(|index| 100_000 + 7 * index).collect();
        let last = gids.last().copied().unwrap_or_default();
        let caller = Credentials::new(1 << 20).intern(&Cred::new(CALLER, 99, &gids, Caps::NONE), &[]);
        let is_nfs4 = family == "nfs4";
        let posix =
            named.filter(|_| !is_nfs4).map(|named| Arc::new(posix::Compiled::new(posix_acl(named, last))));
        let nfs4 =
            named.filter(|_| is_nfs4).map(|named| Arc::new(nfs4::Compiled::new(nfs4_acl(named, last))));
        let acl = posix.as_ref().map(|acl| acl.id()).or(nfs4.as_ref().map(|acl| acl.id()));
        let file = |index| FileAttrs {
            uid: OWNER,
            gid: 100_000 + 7 * index,
            mode: Mode::new(0o750),
            is_dir: index % 2 == 0,
            acl: acl.unwrap_or(AclId::NONE),
            sid_rules: 0,
        };
        let files = (0..FILES).map(file).collect();
        Case { is_nfs4, cache: DecisionCache::new(1 << 16), caller, files, posix, nfs4 }
    }

    fn load_posix(&self) -> Result<Arc<posix::Compiled>, Infallible> {
        Ok(self.posix.clone().expect("load is called only if there is an ACL"))
    }

    fn load_nfs4(&self) -> Result<Arc<nfs4::Compiled>, Infallible> {
        Ok(self.nfs4.clone().expect("load is called only if there is an ACL"))
    }

    fn files(&self, rounds: u64) -> impl Iterator<Item = &FileAttrs> {
        (0..rounds).map(|round| black_box(&self.files[round as usize % FILES as usize]))
    }

    fn warm(&self, rounds: u64) {
        for file in self.files(rounds) {
            if self.is_nfs4 {
                black_box(
                    self.cache.nfs4(&self.caller, file, || self.load_nfs4()).unwrap().allows(Mask::READ_DATA),
                );
            } else {
                black_box(
                    self.cache.posix(&self.caller, file, || self.load_posix()).unwrap().allows(Perm::READ),
                );
            }
        }
    }

    fn compiled(&self, rounds: u64) {
        for file in self.files(rounds) {
            if self.is_nfs4 {
                black_box(cache::decide_nfs4(&self.caller, file, || self.load_nfs4()).unwrap());
            } else {
                black_box(cache::decide_posix(&self.caller, file, || self.load_posix()).unwrap());
            }
        }
    }

    fn step_by_step(&self, rounds: u64) {
        for FileAttrs { uid, gid, mode, is_dir, .. } in self.files(rounds).copied() {
            if self.is_nfs4 {
                let acl = self.nfs4.as_deref().map(|acl| acl.acl());
                let file = nfs4::FileAttrs { uid, gid, mode, is_dir, acl };
                black_box(nfs4::decide(self.caller.cred(), &[], &file));
            } else {
                let acl = self.posix.as_deref().map(|acl| acl.acl());
                let file = posix::FileAttrs { uid, gid, mode, is_dir, acl };
                black_box(posix::decide(self.caller.cred(), &file));
            }
        }
    }
}

/// Two thirds of the entries are for users, one third for groups. The caller is in the group `group`.
fn posix_acl(named: u32, group: u32) -> PosixAcl {
    let entry = |tag, perm| posix::Entry { tag, perm };
    let mut entries = vec![
        entry(Tag::UserObj, Perm::ALL),
        entry(Tag::GroupObj, Perm::READ),
        entry(Tag::Mask, Perm::ALL),
        entry(Tag::Other, Perm::NONE),
        entry(Tag::Group(group), Perm::READ),
    ];
    entries.extend((1..named).map(|index| match index % 3 {
        0 => entry(Tag::Group(100_001 + 21 * index), Perm::READ),
        _ => entry(Tag::User(1000 + index), Perm::ALL),
    }));
    PosixAcl::from_entries(entries).expect("a valid ACL")
}

fn nfs4_acl(named: u32, group: u32) -> Nfs4Acl {
    let id = |id| acl::identity::Id::system(id).expect("a valid id");
    let entry = |kind, who, mask| nfs4::Entry { kind, flags: EntryFlags::NONE, who, mask };
    let mut entries: Vec<nfs4::Entry> = (1..named)
        .map(|index| match index % 3 {
            0 => entry(Kind::Allow, Who::NamedGroup(id(100_001 + 21 * index)), Mask::READ_DATA),
            1 => entry(Kind::Deny, Who::User(id(1000 + index)), Mask::WRITE_DATA),
            _ => entry(Kind::Allow, Who::User(id(1000 + index)), Mask::READ_DATA | Mask::EXECUTE),
        })
        .collect();
    entries.push(entry(Kind::Allow, Who::NamedGroup(id(group)), Mask::READ_DATA));
    entries.push(entry(Kind::Allow, Who::Owner, Mask::ALL));
    entries.push(entry(Kind::Allow, Who::Everyone, Mask::READ_ACL | Mask::READ_ATTRIBUTES));
    Nfs4Acl::new(AclFlags::NONE, entries).expect("a valid ACL")
}
