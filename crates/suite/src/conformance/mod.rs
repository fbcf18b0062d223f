//! The conformance suite: the contract of [`Engine`](meta::Engine) as tests that run against any engine.
//!
//! [`conformance!`](crate::conformance!) creates one `#[test]` per case. A case gets an empty engine and
//! panics if the engine breaks the contract. `random` compares an engine with [`MemEngine`](meta::MemEngine)
//! on random transactions, from a seed that is printed.

mod acls;
mod batches;
mod effects;
mod fixture;
#[cfg(test)]
mod footprints;
mod guards;
mod quotas;
mod random;
mod rng;
mod scans;
mod terms;
mod values;
mod watching;

pub use acls::*;
pub use batches::*;
pub use effects::*;
pub use guards::*;
pub use quotas::*;
pub use random::*;
pub use scans::*;
pub use terms::*;
pub use values::*;
pub use watching::*;

/// Creates one `#[test]` per case of the suite. `$new` is a function without arguments that returns an empty
/// engine and a value to keep alive with it, such as a temporary directory. For an engine without a stream of
/// changes, write `conformance!(without_stream, $new)`. If the engine needs a server that may be missing,
/// write `conformance!(if $can, $new)`: `$can` is a function that returns whether the test can run, and
/// reports a skip if it cannot.
#[macro_export]
macro_rules! conformance {
    (if $can:expr, $new:expr) => {
        $crate::conformance! { @common $can, $new }
        $crate::conformance! { @cases $can, $new;
            changes_are_delivered_in_order all_changes_are_returned_without_waiting
            the_next_call_returns_a_change every_change_is_delivered_once
        }
    };
    (without_stream, $new:expr) => {
        $crate::conformance! { @common || true, $new }
        $crate::conformance! { @cases || true, $new; the_engine_has_no_stream_of_changes }
    };
    (@common $can:expr, $new:expr) => {
        $crate::conformance! { @cases $can, $new;
            dirent_guards inode_guards empty_guard xattr_guard xattr_blocks_guard setting_guard counter_guard room_guard session_guard term_guard
            guards_on_absent_records a_conflict_returns_the_records_of_every_guard
            inodes_are_put_and_replaced dropping_an_inode_drops_its_records dirents_are_put_and_dropped
            access_changes_increment_the_revision parents_links_and_times_change sizes_are_set_and_extended
            slices_are_kept_in_commit_order dropped_slices_become_garbage
            a_shorter_drop_in_the_same_batch_does_not_replace_a_longer_one a_shared_slice_keeps_its_count_until_it_is_garbage
            a_slice_with_many_rows_is_garbage_when_its_last_row_is_removed xattrs_are_put_and_dropped
            acls_are_stored_once symlinks_are_kept sessions_and_orphans_are_put_and_dropped settings_and_counters_are_set
            usage_can_be_corrected xattr_blocks_count_in_usage
            effects_on_absent_targets_do_nothing post_images_show_each_changed_inode_once
            later_transactions_see_earlier_ones creates_are_applied_in_order space_is_granted_in_order
            a_directory_is_empty_only_after_all_removals_of_the_batch a_directory_is_removed_together_with_its_entries
            a_conflict_affects_only_its_transaction
            a_repeated_transaction_has_no_effect
            results_are_kept_until_their_term_ends an_operation_of_an_ended_term_has_no_effect
            an_operation_racing_with_the_end_of_its_term_commits_before_it_or_never
            results_of_ten_thousand_operations_are_kept transactions_without_effects_check_their_guards commits_have_increasing_sequence_numbers
            usage_is_exact a_wiped_engine_is_empty sync_succeeds concurrent_creates_all_commit reads_are_atomic
            directories_are_scanned_in_order directories_are_scanned_with_inodes inodes_are_scanned_in_order
            orphans_sessions_and_garbage_are_scanned_in_order shared_slices_and_acls_are_scanned_in_order
            scans_obey_their_limit snapshot_records_stay_as_they_were
            acl_guard only_condemned_acls_are_dropped no_inode_begins_to_refer_to_a_condemned_acl
            an_acl_that_an_inode_refers_to_is_not_dropped
            names_of_any_bytes numbers_at_their_limits long_values acls_are_read_with_inodes
            quota_guard quotas_are_put_charged_and_dropped quotas_are_scanned_in_order quota_tags_are_kept
            charges_are_granted_in_order concurrent_charges_never_exceed_a_limit
            random_transactions_agree_with_the_memory_engine
        }
    };
    (@cases $can:expr, $new:expr; $($case:ident)*) => {
        $(#[test]
        fn $case() {
            if $can() {
                let (engine, _alive) = $new();
                $crate::conformance::$case(&engine);
            }
        })*
    };
    ($new:expr) => {
        $crate::conformance! { if || true, $new }
    };
}
