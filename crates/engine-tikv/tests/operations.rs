//! The rules of the operations, on a cluster within this process or on the one that `LIMEN_TEST_TIKV` names.

mod support;

suite::operations!(support::empty);
