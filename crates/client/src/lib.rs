//! A client of a volume: runs operations on an engine, with one retry loop, and caches the records that it
//! has read. Its entry point is [`Meta`].

mod activity;
mod cache;
mod candidates;
mod certainty;
mod charge;
mod clone;
mod commit;
mod doubt;
mod driver;
mod failure;
mod fence;
mod group;
mod hand_over;
mod held;
mod holding;
mod listing;
mod merge;
mod open;
mod queue;
mod quotas;
mod read_ancestors;
mod readdir;
mod reap;
mod recall;
mod replay;
mod run;
mod session;
mod settings;
mod taking;
mod terms;
mod ticket;
mod trash;

pub use activity::Activity;
pub use candidates::TakePolicy;
pub use clone::{CloneError, CloneFailure, CloneProgress, CloneRequest};
pub use doubt::{InDoubtTxn, MARK_NEEDED, is_mark_without_term};
pub use driver::Meta;
pub use failure::Failure;
pub use hand_over::SessionState;
pub use held::{HasRoom, MakeDurable, NoteTaken};
pub use listing::{Generation, WholeListing};
pub use queue::QueueAtExit;
pub use quotas::{QuotaChange, QuotaError, Retagging};
pub use readdir::{ListedEntry, Listing};
pub use trash::{Emptied, Emptying, TrashedHour};
