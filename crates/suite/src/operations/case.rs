//! The types of a case and of the function that makes its engine.

use std::sync::Arc;

use meta::Engine;

/// Returns an engine without any record.
pub type Factory<'a> = &'a dyn Fn() -> Arc<dyn Engine>;

/// The name of a case, and its function.
pub(super) type Case = (&'static str, fn(Factory<'_>));
