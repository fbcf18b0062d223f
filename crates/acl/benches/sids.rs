//! The cost of access decisions for a caller whose groups belong to 1,000 Windows domains, all mapped by
//! rules. The ACL has 500 entries for SIDs of these domains.
//!
//! `cargo bench -p acl --bench sids` prints times in ns, for callers with 4, 300, 400 and 5,000 groups:
//!
//! | column | what is measured |
//! |---|---|
//! | copy, cold | making the credential from the caller's list of groups: sorting the list and building a filter |
//! | copy, warm | finding the existing credential by that list, as when a process is seen for the first time |
//! | decision, cold | the decision by the compiled ACL |
//! | decision, warm | the cached decision |
//! | total, cold and warm | the sum of both |
//!
//! Three rows show the same decision in three forms: entries for gids; entries for SIDs that rules map to
//! these gids; and entries for SIDs that the credential has, without rules. After the tables, the benchmark
//! prints the cost of the work that is done once: for each volume, parsing the table and the rules; for each
//! ACL, mapping its SIDs.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use acl::cache::{self, DecisionCache, FileAttrs};
use acl::credential::{Credential, Credentials};
use acl::identity::{Domain, DomainIndex, DomainTable, Id};
use acl::nfs4::{AclFlags, Compiled, Entry, Mask, Nfs4Acl, Who};
use acl::sid_rules::{IdRange, SidRule, SidRules};
use types::{Caps, Cred, Mode};

const DOMAINS: u32 = 1_000;
/// RIDs of each domain that a rule maps.
const RIDS: u32 = 1_000;
const FIRST_ID: u32 = 1_000_000;
const ENTRIES: u32 = 500;
const GROUPS: [u32; 4] = [4, 300, 400, 5_000];
const REPEATS: usize = 101;

#[derive(Clone, Copy)]
enum Form {
    Gids,
    MappedSids,
    SidsOfCaller,
}

fn main() {
    let (table, rules) = (table(), rules());
    let forms = [
        ("entries for gids", Form::Gids),
        ("SIDs, mapped", Form::MappedSids),
        ("SIDs of the caller", Form::SidsOfCaller),
    ];
    println!(
        "| ns: lowest, median | groups | copy, cold | copy, warm | decision, cold | decision, warm | total, cold | total, warm |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for groups in GROUPS {
        for (name, form) in forms {
            let case = Case::new(form, groups, &rules);
            let [copy_cold, copy_warm, cold, warm] = case.measure();
            let sum = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
            let cells = [copy_cold, copy_warm, cold, warm, sum(copy_cold, cold), sum(copy_warm, warm)];
            let cells: Vec<String> =
                cells.iter().map(|[low, median]| format!("{low:.0}, {median:.0}")).collect();
            println!("| {name} | {groups} | {} |", cells.join(" | "));
        }
    }
    let (table_text, rules_text, acl) = (table.to_storage(), rules.to_storage(), acl_of(Form::MappedSids));
    let once = [
        (
            "parse the table of 1,000 domains",
            time(1, || drop(black_box(DomainTable::from_storage(&table_text)))),
        ),
        ("parse 1,000 rules", time(1, || drop(black_box(SidRules::from_storage(&rules_text))))),
        ("compile an ACL of 500 entries for SIDs", time(1, || drop(black_box(Compiled::new(acl.clone()))))),
        (
            "map its SIDs and compile it",
            time(1, || drop(black_box(acl.mapped(&rules).map(|mapped| Compiled::new(mapped.acl))))),
        ),
    ];
    println!("\n| ns: lowest, median | once |\n|---|---|");
    for (what, [low, median]) in once {
        println!("| {what} | {low:.0}, {median:.0} |");
    }
}

/// The lowest and the median time of one of `rounds` calls, over [`REPEATS`] measurements.
fn time(rounds: u32, mut work: impl FnMut()) -> [f64; 2] {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_nanos() as f64 / f64::from(rounds)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    [times[0], times[REPEATS / 2]]
}

struct Case {
    cred: Cred,
    sids: Vec<Id>,
    caller: Arc<Credential>,
    credentials: Credentials,
    compiled: Arc<Compiled>,
    inode: FileAttrs,
}

impl Case {
    /// A caller whose groups are in all domains in turn. The last entry of the ACL names one of its groups.
    fn new(form: Form, groups: u32, rules: &SidRules) -> Self {
        let sids: Vec<Id> = (0..groups).map(|at| sid(at * 7 % DOMAINS, at / DOMAINS * 2)).collect();
        let gids: Vec<u32> = sids.iter().filter_map(|sid| rules.id_of(*sid)).collect();
        assert_eq!(gids.len(), sids.len());
        let (gids, sids) = match form {
            Form::SidsOfCaller => (Vec::new(), sids),
            Form::Gids | Form::MappedSids => (gids, Vec::new()),
        };
        let cred = Cred::new(2, 99, &gids, Caps::NONE);
        let credentials = Credentials::new(1 << 20);
        let caller = credentials.intern(&cred, &sids);
        let acl = acl_of(form);
        let deciding = match form {
            Form::MappedSids => acl.mapped(rules).expect("all SIDs are mapped").acl,
            Form::Gids | Form::SidsOfCaller => acl,
        };
        let compiled = Arc::new(Compiled::new(deciding));
        assert!(compiled.decide(&caller, false, false).allows(Mask::READ_DATA), "the last entry allows it");
        let (mode, id) = (Mode::new(0o750), compiled.id());
        let inode = FileAttrs { uid: 1, gid: 1, mode, is_dir: false, acl: id, sid_rules: rules.version() };
        Case { cred, sids, caller, credentials, compiled, inode }
    }

    fn measure(&self) -> [[f64; 2]; 4] {
        let load = || Ok::<_, Infallible>(Arc::clone(&self.compiled));
        let cache = DecisionCache::new(1 << 10);
        let copy_cold = time(1, || drop(black_box(Credentials::new(1 << 20).intern(&self.cred, &self.sids))));
        let copy_warm = time(100, || drop(black_box(self.credentials.intern(&self.cred, &self.sids))));
        let cold = time(100, || {
            let Ok(decision) = cache::decide_nfs4(&self.caller, &self.inode, load);
            black_box(decision.allows(Mask::READ_DATA));
        });
        let warm = time(1_000, || {
            let Ok(decision) = cache.nfs4(&self.caller, black_box(&self.inode), load);
            black_box(decision.allows(Mask::READ_DATA));
        });
        [copy_cold, copy_warm, cold, warm]
    }
}

fn table() -> DomainTable {
    let domain = |number| format!("S-1-5-21-1-2-{number}").parse::<Domain>().expect("a valid SID");
    DomainTable::from_domains((0..DOMAINS).map(domain)).expect("the table has room")
}

/// One rule for each domain.
fn rules() -> SidRules {
    (0..DOMAINS).fold(SidRules::default(), |rules, at| {
        let first = FIRST_ID + at * RIDS;
        let ids = IdRange::new(first, first + RIDS - 1).expect("a valid range");
        let rule = SidRule { domain: sid(at, 0).domain(), first_rid: 0, ids };
        rules.with(rule).expect("the rules are apart")
    })
}

fn sid(domain: u32, rid: u32) -> Id {
    DomainIndex::new(domain + 1).and_then(|domain| Id::new(domain, rid)).expect("a valid identity")
}

/// Entries for groups that the caller is not in, and at the end one for its first group.
fn acl_of(form: Form) -> Nfs4Acl {
    let rules = rules();
    let who = |sid: Id| match form {
        Form::Gids => Who::NamedGroup(rules.id_of(sid).and_then(Id::system).expect("the SID is mapped")),
        Form::MappedSids | Form::SidsOfCaller => Who::NamedGroup(sid),
    };
    let others = (1..ENTRIES).map(|at| Entry::allow(who(sid(at * 3 % DOMAINS, 1)), Mask::READ_DATA));
    let last = Entry::allow(who(sid(0, 0)), Mask::READ_DATA | Mask::EXECUTE);
    Nfs4Acl::new(AclFlags::NONE, others.chain([last])).expect("a valid ACL")
}
