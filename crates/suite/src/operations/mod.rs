//! The rules of the operations, as a suite that runs on every engine: the effects and errors of each
//! operation, its cost in round trips, and whether it agrees with a model under faults, rivals and threads.
//!
//! [`operations!`](crate::operations!) creates one `#[test]` per group of cases. A case panics if a rule is
//! broken.

mod acl_sweep;
mod acls;
mod attrs;
mod authority;
mod case;
mod clones;
mod doubt;
mod fixture;
mod invariants;
mod links;
mod locks;
mod model;
mod names;
mod nfs4;
mod nfs4_callers;
mod quota_races;
mod quota_writers;
mod quotas;
mod races;
mod random;
mod ranges;
mod ranges_random;
mod remote_changes;
mod renames;
mod sids;
mod stale;
mod threads;
mod trash;
mod traverse;
mod trips;
mod volumes;
mod writers;

use std::fmt;
use std::sync::Arc;

use meta::Engine;

pub use case::Factory;
pub use quota_writers::{QuotaWriters, QuotaWritten, quota_writers};
pub use writers::{Writers, Written, writers};

/// The cases, one group for each file of this folder.
const GROUPS: &[(&str, &[case::Case])] = &[
    ("acl_sweep", acl_sweep::CASES),
    ("acls", acls::CASES),
    ("attrs", attrs::CASES),
    ("clones", clones::CASES),
    ("doubt", doubt::CASES),
    ("remote_changes", remote_changes::CASES),
    ("links", links::CASES),
    ("locks", locks::CASES),
    ("names", names::CASES),
    ("nfs4", nfs4::CASES),
    ("nfs4_callers", nfs4_callers::CASES),
    ("quota_races", quota_races::CASES),
    ("quotas", quotas::CASES),
    ("races", races::CASES),
    ("random", random::CASES),
    ("ranges", ranges::CASES),
    ("ranges_random", ranges_random::CASES),
    ("renames", renames::CASES),
    ("sids", sids::CASES),
    ("stale", stale::CASES),
    ("threads", threads::CASES),
    ("trash", trash::CASES),
    ("traverse", traverse::CASES),
    ("trips", trips::CASES),
    ("volumes", volumes::CASES),
    ("authority", authority::CASES),
];

/// Runs one group of cases. It prints the name of each case before the case runs, so that the output shows
/// which case panicked.
pub fn run(group: &str, factory: Factory<'_>) {
    let (_, cases) =
        GROUPS.iter().find(|(name, _)| *name == group).expect("the macro names only existing groups");
    for (name, case) in *cases {
        println!("{name}");
        case(factory);
    }
}

/// Returns an engine that also keeps `beside` alive, such as a temporary directory.
pub fn keep<E, K>((engine, beside): (E, K)) -> Arc<dyn Engine>
where
    E: Engine + 'static,
    K: Send + Sync + fmt::Debug + 'static,
{
    Arc::new(Kept { engine, _beside: beside })
}

/// Creates one `#[test]` per group of the suite. `$new` is a function without arguments that returns an empty
/// engine and a value to keep alive with it, as for [`conformance!`](crate::conformance!), which also
/// explains `without_stream` and `if $can`.
#[macro_export]
macro_rules! operations {
    (if $can:expr, $new:expr) => {
        $crate::operations! { @common $can, $new }
        $crate::operations! { @groups $can, $new; remote_changes }
    };
    (without_stream, $new:expr) => {
        $crate::operations! { @common || true, $new }
    };
    (@common $can:expr, $new:expr) => {
        $crate::operations! { @groups $can, $new;
            acl_sweep acls attrs clones doubt links locks names nfs4 nfs4_callers quotas quota_races races random ranges ranges_random renames sids stale threads
            trash traverse trips volumes authority
        }
    };
    (@groups $can:expr, $new:expr; $($group:ident)*) => {
        $(
            #[test]
            fn $group() {
                if $can() {
                    $crate::operations::run(stringify!($group), &|| $crate::operations::keep($new()));
                }
            }
        )*
    };
    ($new:expr) => {
        $crate::operations! { if || true, $new }
    };
}

#[derive(Debug)]
struct Kept<E, K> {
    engine: E,
    _beside: K,
}

impl<E: Engine, K: Send + Sync + fmt::Debug> Engine for Kept<E, K> {
    meta::pass_on! { (.engine) read commit scan open_snapshot sync wipe remove watch is_embedded set_reserve_open }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use meta::{EngineError, Outcome, Page, RecordKey, Scan, Snapshot, SnapshotReader, Txn};

    use super::*;

    /// Notes the names of the called methods.
    #[derive(Debug, Default)]
    struct Noting(Mutex<Vec<&'static str>>);

    impl Noting {
        fn note(&self, method: &'static str) {
            self.0.lock().unwrap().push(method);
        }
    }

    impl Engine for &'static Noting {
        fn read(&self, _: &[RecordKey]) -> Result<Snapshot, EngineError> {
            unreachable!()
        }

        fn commit(&self, _: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
            unreachable!()
        }

        fn scan(&self, _: &Scan) -> Result<Page, EngineError> {
            unreachable!()
        }

        fn sync(&self) -> Result<(), EngineError> {
            unreachable!()
        }

        fn wipe(&self) -> Result<(), EngineError> {
            unreachable!()
        }

        fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
            self.note("open_snapshot");
            Ok(None)
        }

        fn remove(&self) -> Result<(), EngineError> {
            self.note("remove");
            Ok(())
        }
    }

    #[test]
    fn a_kept_engine_passes_on_methods_with_defaults() {
        let noting: &'static Noting = Box::leak(Box::default());
        let engine = keep((noting, ()));
        engine.open_snapshot().unwrap();
        engine.remove().unwrap();
        assert_eq!(*noting.0.lock().unwrap(), ["open_snapshot", "remove"]);
    }
}
