//! The test suites that every engine must pass: the contract of [`Engine`](meta::Engine) ([`conformance!`]),
//! and the rules of the operations ([`operations!`]). This is a separate crate, a dev-dependency of engines,
//! so that no program contains it. Module [`files`] is for tests of servers. [`Faulty`] is an engine with
//! injected faults.

pub mod conformance;
mod faulty;
pub mod files;
pub mod operations;
mod rng;

pub use faulty::{Fault, FaultRates, Faulty};
