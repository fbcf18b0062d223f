//! The conformance suite where no transaction of several tables lies in one region, so that all take two phases, and
//! every other one leaves its locks behind.

mod support;

use support::Cluster;

suite::conformance!(|| {
    let cluster = Cluster::split(&[b"v_/c", b"v_/e", b"v_/l", b"v_/n", b"v_/u"]);
    (support::open(&cluster, true), cluster)
});
