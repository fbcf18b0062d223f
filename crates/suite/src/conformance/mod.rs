//! The conformance suite: what [`Engine`](meta::Engine) promises, as tests that run against any engine.
//!
//! [`conformance!`](crate::conformance!) makes one `#[test]` of each case. A case gets an empty engine and panics where a
//! promise is broken, which is its purpose. `random` compares an engine with [`MemEngine`](meta::MemEngine) on random
//! transactions, from a seed that is printed.

mod batches;
mod effects;
mod fixture;
mod guards;
mod random;
mod rng;
mod scans;
mod terms;
mod values;
mod watching;

pub use batches::*;
pub use effects::*;
pub use guards::*;
pub use random::*;
pub use scans::*;
pub use terms::*;
pub use values::*;
pub use watching::*;

/// Makes one `#[test]` of each case of the suite. `$new` is a function without arguments that gives an empty engine and
/// something to keep alive beside it, such as a temporary directory. An engine that has no stream of changes says so:
/// `conformance!(without_stream, $new)`.
#[macro_export]
macro_rules! conformance {
    ($new:expr) => {
        $crate::conformance! { @common $new }
        $crate::conformance! { @cases $new;
            changes_are_told_in_order a_change_comes_with_the_next_answer every_change_is_told_once
        }
    };
    (without_stream, $new:expr) => {
        $crate::conformance! { @common $new }
        $crate::conformance! { @cases $new; no_changes_are_told }
    };
    (@common $new:expr) => {
        $crate::conformance! { @cases $new;
            edge_guards node_guards empty_guard xattr_guard setting_guard counter_guard room_guard session_guard term_guard
            guards_on_what_is_absent a_conflict_answers_every_guard
            nodes_are_put_and_replaced a_dropped_node_takes_all_it_has_along edges_are_put_and_dropped
            access_changes_move_the_revision parents_links_and_times_change sizes_are_set_and_extended
            slices_are_kept_in_order_of_commit dropped_slices_become_garbage a_shared_slice_keeps_its_count_to_the_end xattrs_are_put_and_dropped
            acls_are_stored_once symlinks_are_kept sessions_and_orphans_come_and_go settings_and_counters_are_set
            usage_is_corrected
            absent_targets_do_nothing post_images_are_of_changed_nodes
            later_transactions_see_earlier_ones creates_are_done_in_order room_is_given_in_order a_conflict_stops_only_itself
            a_repetition_does_nothing
            results_are_kept_until_their_term_ends an_operation_of_an_ended_term_does_nothing
            an_operation_that_races_with_the_end_of_its_term_comes_before_or_never
            ten_thousand_operations_are_remembered empty_transactions_are_claims commits_are_numbered
            usage_is_exact a_wiped_engine_is_empty a_sync_returns threads_lose_nothing reads_are_of_one_moment
            directories_are_scanned_in_order directories_are_scanned_with_nodes nodes_are_scanned_in_order
            orphans_sessions_and_garbage_are_scanned_in_order shared_slices_and_acls_are_scanned_in_order
            scans_obey_their_limit
            names_of_any_bytes numbers_at_their_limits long_values acls_come_with_nodes
            random_transactions_agree_with_memory
        }
    };
    (@cases $new:expr; $($case:ident)*) => {
        $(#[test]
        fn $case() {
            let (engine, _alive) = $new();
            $crate::conformance::$case(&engine);
        })*
    };
}
