//! The metrics of a mount in the Prometheus text format. All their names are here.
//!
//! The metrics contain no names of files, users or hosts except the name of the volume and the mount point.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::Text;
use vfs::Coherence;

use crate::counters::Counters;
use crate::process::{own_cpu, own_memory};

/// All metrics of a mount.
pub fn text(counters: &Counters) -> String {
    let mut text = Text::default();
    mount(&mut text, counters);
    requests(&mut text, counters);
    engine(&mut text, counters);
    caches(&mut text, counters);
    store(&mut text, counters);
    session(&mut text, counters);
    process(&mut text);
    text.finish()
}

fn mount(text: &mut Text, counters: &Counters) {
    let labels = [
        ("volume", counters.vfs.meta().volume().name.as_str()),
        ("mountpoint", counters.mountpoint.as_str()),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    text.info("limen_mount_info", "The mount that these metrics are about.", &labels);
}

fn requests(text: &mut Text, counters: &Counters) {
    let seen: Vec<_> = counters.requests.seen().map(|(op, count)| (op.to_lowercase(), count)).collect();
    text.counters(
        "limen_fuse_requests_total",
        "Requests that the kernel has sent.",
        "op",
        seen.iter().map(|(op, count)| (op.as_str(), *count)),
    );
    let meters: Vec<_> = counters.requests.meters().collect();
    text.histograms(
        "limen_fuse_request_duration_seconds",
        "Time from the arrival of a request to its reply. A request that waits for a lock ends when it starts to wait.",
        "op",
        meters.iter().map(|(op, meter)| (op.as_str(), meter.times.summary())),
    );
    let with_bytes = meters.iter().map(|(op, meter)| (op.as_str(), meter.bytes.summary()));
    text.histograms(
        "limen_fuse_request_bytes",
        "Bytes of data, listings and extended attributes that a request has read or written.",
        "op",
        with_bytes.filter(|(_, summary)| summary.count > 0),
    );
    let searches = counters.vfs.access.search_counts();
    text.counters(
        "limen_search_checks_total",
        "Lookups on volumes with NFSv4 ACLs or by squashed callers: whether search permission was checked, or skipped because everyone can search.",
        "result",
        [("skipped", searches.skipped), ("checked", searches.checked)],
    );
}

fn engine(text: &mut Text, counters: &Counters) {
    let calls = counters.engine.counts();
    text.counters(
        "limen_engine_calls_total",
        "Requests of this mount to the metadata engine, before concurrent commits are batched.",
        "kind",
        [("read", calls.reads), ("commit", calls.commits), ("scan", calls.scans), ("sync", calls.syncs)],
    );
    let sent = counters.sent.measured();
    text.histograms(
        "limen_engine_request_duration_seconds",
        "Round trips to the metadata engine.",
        "kind",
        [
            ("read", sent.reads.summary()),
            ("commit", sent.commits.summary()),
            ("scan", sent.scans.summary()),
            ("sync", sent.syncs.summary()),
        ],
    );
    text.histograms(
        "limen_engine_commit_transactions",
        "Transactions in a commit. The embedded engine batches inside.",
        "",
        [("", sent.batches.summary())],
    );
    text.counters(
        "limen_engine_errors_total",
        "Round trips that failed: without effect and worth a retry (transient) or not (permanent), or perhaps with effect \
         (indeterminate).",
        "kind",
        [
            ("transient", load(&sent.transient)),
            ("permanent", load(&sent.permanent)),
            ("indeterminate", load(&sent.indeterminate)),
        ],
    );
    let activity = counters.vfs.meta().activity();
    text.counter(
        "limen_client_conflicts_total",
        "Commits in which another client was faster, so that the operation was planned again.",
        activity.conflicts,
    );
    text.counter(
        "limen_client_retries_total",
        "Requests to the engine that were sent again because they failed.",
        activity.retries,
    );
    text.counter(
        "limen_client_failures_total",
        "Requests to the engine that were given up, so that a call failed.",
        activity.failures,
    );
}

fn caches(text: &mut Text, counters: &Counters) {
    let client = counters.vfs.meta().activity();
    let [memory, disk] = counters.store.caches();
    let mount = counters.vfs.activity();
    text.counters(
        "limen_cache_hits_total",
        "Lookups that a cache answered: of metadata records, of blocks in memory, and of blocks on the local disk.",
        "cache",
        [("records", client.cache_hits), ("blocks", memory.hits), ("disk", disk.hits)],
    );
    text.counters(
        "limen_cache_misses_total",
        "Lookups that a cache did not answer.",
        "cache",
        [("records", client.cache_misses), ("blocks", memory.misses), ("disk", disk.misses)],
    );
    text.gauges(
        "limen_memory_bytes",
        "Memory by owner. For records and listings it is estimated.",
        "owner",
        [
            ("records", client.cache_bytes as f64),
            ("listings", client.listing_bytes as f64),
            ("blocks", memory.bytes as f64),
            ("write_buffers", counters.vfs.unstored_bytes() as f64),
        ],
    );
    text.gauges(
        "limen_memory_limit_bytes",
        "The limits of the memory of blocks and write buffers.",
        "owner",
        [("blocks", counters.store.cache_bytes() as f64), ("write_buffers", mount.write_buffer_bytes as f64)],
    );
    text.gauge("limen_disk_cache_bytes", "Blocks in the cache on the local disk.", disk.bytes as f64);
    text.gauge("limen_open_files", "Files that are open.", mount.open_files as f64);
    text.gauge(
        "limen_kernel_inodes",
        "Inodes that the kernel is believed to hold; not counted on a mount that has the volume exclusively.",
        mount.kernel_inodes as f64,
    );
}

fn store(text: &mut Text, counters: &Counters) {
    let all = counters.store.meters().all();
    text.histograms(
        "limen_store_request_duration_seconds",
        "Requests to the object store, with their retries.",
        "op",
        all.map(|(op, meter)| (op, meter.times.summary())),
    );
    text.histograms(
        "limen_store_request_bytes",
        "Bytes that a request has stored or read.",
        "op",
        all.iter()
            .filter(|(op, _)| matches!(*op, "put" | "get"))
            .map(|(op, meter)| (*op, meter.bytes.summary())),
    );
    text.counters(
        "limen_store_errors_total",
        "Requests to the object store that failed.",
        "op",
        all.map(|(op, meter)| (op, load(&meter.failures))),
    );
    text.counters(
        "limen_store_not_found_total",
        "Requests for objects that do not exist.",
        "op",
        all.map(|(op, meter)| (op, load(&meter.not_found))),
    );
    let pending = counters.store.pending().unwrap_or_default();
    text.gauge(
        "limen_writeback_blocks",
        "Blocks on the local disk that wait for their upload.",
        pending.blocks as f64,
    );
    text.gauge("limen_writeback_bytes", "Bytes of these blocks.", pending.bytes as f64);
    text.counter("limen_writeback_uploads_total", "Blocks that were uploaded.", pending.uploaded);
    text.counter("limen_writeback_failures_total", "Uploads that failed.", pending.failures);
    let mount = counters.vfs.activity();
    text.counter(
        "limen_garbage_slices_removed_total",
        "Slices that no file referred to, and whose blocks this mount has removed.",
        mount.garbage_removed,
    );
    text.counter(
        "limen_garbage_failures_total",
        "Attempts to remove such a slice that failed.",
        mount.garbage_failures,
    );
}

fn session(text: &mut Text, counters: &Counters) {
    let mount = counters.vfs.activity();
    text.gauge("limen_sessions", "Sessions of the volume, including this mount's.", mount.sessions as f64);
    text.gauge(
        "limen_session_age_seconds",
        "Time since the last renewal of this mount's session that succeeded. Others remove the session after 90 seconds.",
        mount.session_age.as_secs_f64(),
    );
    text.gauge(
        "limen_session_elected",
        "1 if this mount removes dead sessions and garbage for all mounts.",
        f64::from(u8::from(mount.is_elected)),
    );
    let lost = counters.vfs.session_loss().map_or(0.0, |loss| loss.at.nanos() as f64 / 1e9);
    text.gauge(
        "limen_session_lost_timestamp_seconds",
        "When another mount last removed this mount's session as dead; 0 if never.",
        lost,
    );
    let client = counters.vfs.meta().activity();
    text.gauge(
        "limen_held_directories",
        "Directories that this mount has created and uses alone, so that it answers changes in them before their commit.",
        client.held_directories as f64,
    );
    text.gauge(
        "limen_queued_changes",
        "Changes in held directories that were answered and are not yet committed.",
        client.queued_changes as f64,
    );
    let coherence = counters.vfs.caches.coherence();
    let kinds = [Coherence::Exclusive, Coherence::Notified, Coherence::Polling];
    text.gauges(
        "limen_coherence",
        "1 for the way in which this mount stays coherent with others.",
        "state",
        kinds.map(|kind| (kind.name(), f64::from(u8::from(kind == coherence)))),
    );
    text.gauge(
        "limen_lease_seconds",
        "The time left of the lease on cached records, which each answer of the stream of changes renews.",
        mount.lease.as_secs_f64(),
    );
    text.counter(
        "limen_stream_answers_total",
        "Answers of the stream of changes, including empty ones.",
        mount.stream_answers,
    );
    text.counter(
        "limen_stream_changes_total",
        "Changes that the stream delivered, including those of this mount.",
        mount.stream_changes,
    );
    text.counter(
        "limen_stream_failures_total",
        "Failures of the stream; after each, all caches are invalidated.",
        mount.stream_failures,
    );
}

fn process(text: &mut Text) {
    text.counter_seconds("process_cpu_seconds_total", "CPU time of the process.", own_cpu());
    let memory = own_memory().unwrap_or(0) as f64;
    text.gauge("process_resident_memory_bytes", "Memory of the process.", memory);
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}
