//! The conformance suite on a server of its own: with anonymous blocks, as on MariaDB, and with the stored
//! procedure, as on MySQL.

mod support;

suite::conformance!(support::empty);

mod routine {
    suite::conformance!(|| super::support::empty_with("routine=always"));
}
