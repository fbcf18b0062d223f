//! A client of a volume: runs operations on an engine, with one retry loop, and caches what it has read.

mod cache;
mod certainty;
mod charge;
mod climb;
mod doubt;
mod driver;
mod fence;
mod listing;
mod open;
mod run;
mod settings;
mod terms;

pub use doubt::Doubt;
pub use driver::{Failure, Meta};
pub use listing::{Generation, ListedEntry, Listing, WholeListing};
