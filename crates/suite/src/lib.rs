//! The test suites that every engine must pass: the contract of [`Engine`](meta::Engine) ([`conformance!`]),
//! and the rules of the operations ([`operations!`]). This is a separate crate, a dev-dependency of engines,
//! so that no program contains it. Module [`files`] is for tests of servers.

pub mod conformance;
pub mod files;
pub mod operations;
mod rng;
