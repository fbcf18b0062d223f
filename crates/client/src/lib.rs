//! A client of a volume: runs operations on an engine, with one retry loop, and caches what it has read.

mod activity;
mod cache;
mod certainty;
mod charge;
mod climb;
mod clone;
mod commit;
mod doubt;
mod driver;
mod failure;
mod fence;
mod listing;
mod open;
mod quotas;
mod readdir;
mod reap;
mod run;
mod session;
mod settings;
mod terms;
mod ticket;
mod trash;

pub use activity::Activity;
pub use clone::{CloneError, CloneFailure, CloneProgress, CloneRequest};
pub use doubt::{Doubt, MARK_NEEDED, is_mark_without_term};
pub use driver::Meta;
pub use failure::Failure;
pub use listing::{Generation, WholeListing};
pub use quotas::{QuotaError, Retagging};
pub use readdir::{ListedEntry, Listing};
pub use trash::{Emptied, Emptying, TrashedHour};
