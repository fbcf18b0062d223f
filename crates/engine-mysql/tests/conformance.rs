//! The conformance suite on a server of its own: by blocks, as MariaDB runs scripts, and by the stored procedure, as
//! MySQL does.

mod support;

suite::conformance!(support::empty);

mod routine {
    suite::conformance!(|| super::support::empty_with("routine=always"));
}
