//! What every engine has to pass, as suites that its tests call: what [`Engine`](meta::Engine) promises
//! ([`conformance!`]), and that the operations keep their rules on it ([`operations!`]). A crate of its own, so that no
//! program holds it: engines have it as a dev-dependency.

pub mod conformance;
pub mod operations;
mod rng;
