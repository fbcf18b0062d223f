//! The conformance suite on a cluster in which transactions on several tables span several regions, so that
//! they take two phases. Every second such transaction leaves its locks.

mod support;

use support::Cluster;

suite::conformance!(|| {
    let cluster = Cluster::split(&[b"v_/c", b"v_/e", b"v_/l", b"v_/n", b"v_/u"]);
    (support::open(&cluster, true), cluster)
});
