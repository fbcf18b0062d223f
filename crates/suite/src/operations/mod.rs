//! The rules of the operations as a suite that runs on every engine: what each operation does and refuses, what it
//! costs in round trips, and that it agrees with a model under faults, rivals and threads.
//!
//! [`operations!`](crate::operations!) makes one `#[test]` of each group of them. A test panics where a rule is broken, which
//! is its purpose.

mod acls;
mod attrs;
mod doubt;
mod fixture;
mod heard;
mod invariants;
mod links;
mod locks;
mod model;
mod names;
mod nfs4;
mod nfs4_callers;
mod races;
mod random;
mod ranges;
mod ranges_random;
mod renames;
mod sids;
mod stale;
mod threads;
mod traverse;
mod trips;
mod volumes;
mod vouch;
mod writers;

use std::fmt;
use std::sync::Arc;

use meta::{Changes, Engine, EngineError, Facts, Outcome, Page, Scan, Txn, Want};

pub use writers::{Writers, Written, writers};

/// Makes an engine without any record.
pub type Factory<'a> = &'a dyn Fn() -> Arc<dyn Engine>;

/// A test of the suite, by name.
type Case = (&'static str, fn(Factory<'_>));

/// The tests, grouped as the files of this folder.
const GROUPS: &[(&str, &[Case])] = &[
    ("acls", acls::CASES),
    ("attrs", attrs::CASES),
    ("doubt", doubt::CASES),
    ("heard", heard::CASES),
    ("links", links::CASES),
    ("locks", locks::CASES),
    ("names", names::CASES),
    ("nfs4", nfs4::CASES),
    ("nfs4_callers", nfs4_callers::CASES),
    ("races", races::CASES),
    ("random", random::CASES),
    ("ranges", ranges::CASES),
    ("renames", renames::CASES),
    ("sids", sids::CASES),
    ("stale", stale::CASES),
    ("threads", threads::CASES),
    ("traverse", traverse::CASES),
    ("trips", trips::CASES),
    ("volumes", volumes::CASES),
    ("vouch", vouch::CASES),
];

/// Runs one group of tests. Each one's name is printed before it runs, so that a panic has a name.
pub fn run(group: &str, factory: Factory<'_>) {
    let (_, cases) =
        GROUPS.iter().find(|(name, _)| *name == group).expect("the macro names groups that exist");
    for (name, case) in *cases {
        println!("{name}");
        case(factory);
    }
}

/// Lets an engine keep something alive beside it, such as a temporary directory.
pub fn keep<E, K>((engine, beside): (E, K)) -> Arc<dyn Engine>
where
    E: Engine + 'static,
    K: Send + Sync + fmt::Debug + 'static,
{
    Arc::new(Kept { engine, _beside: beside })
}

/// Makes one `#[test]` of each group of the suite. `$new` is a function without arguments that gives an empty engine and
/// something to keep alive beside it, as [`conformance!`](crate::conformance!) takes it; `without_stream` likewise.
#[macro_export]
macro_rules! operations {
    ($new:expr) => {
        $crate::operations! { @common $new }
        $crate::operations! { @groups $new; heard }
    };
    (without_stream, $new:expr) => {
        $crate::operations! { @common $new }
    };
    (@common $new:expr) => {
        $crate::operations! { @groups $new;
            acls attrs doubt links locks names nfs4 nfs4_callers races random ranges renames sids stale threads
            traverse trips volumes vouch
        }
    };
    (@groups $new:expr; $($group:ident)*) => {
        $(
            #[test]
            fn $group() {
                $crate::operations::run(stringify!($group), &|| $crate::operations::keep($new()));
            }
        )*
    };
}

#[derive(Debug)]
struct Kept<E, K> {
    engine: E,
    _beside: K,
}

impl<E: Engine, K: Send + Sync + fmt::Debug> Engine for Kept<E, K> {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.engine.read(wants)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.engine.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.engine.scan(scan)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.engine.sync()
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.engine.wipe()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        self.engine.watch()
    }
}
