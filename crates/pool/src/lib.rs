//! Code shared by engines on a network: the URL of a server and its parameters, a bounded pool of
//! connections, requests on them, and the state of a connection after a failed request.
//!
//! | module | content |
//! |---|---|
//! | `url`, `secret` | the address of a server and the user; a password that is never shown |
//! | `query`, `params` | a URL's parameters, and those that all engines have |
//! | `tls` | trusted authorities, and the client's certificate |
//! | `pool`, `request` | connections; a request on one, and the state of the connection after a failure |
//! | `snapshot` | reads records as of one moment, on a connection in a transaction |
//! | `open` | why a volume could not be opened |
//! | `loops` | loops: polls, batches in parts, attempts on several servers, pauses |
//! | `tail`, `numbers` | the stream of changes from a polled log; which numbers of the log were delivered |

mod loops;
mod numbers;
mod open;
mod params;
mod pool;
mod query;
mod request;
mod secret;
mod snapshot;
mod tail;
pub mod tls;
mod url;

pub use loops::{CommitCounter, Jitter, first, gradually, in_halves, in_parts};
pub use numbers::DeliveredNumbers;
pub use open::{Layout, OpenError, check_version, ensure_version};
pub use params::Params;
pub use pool::{Connect, Pool};
pub use query::{NamedFile, Query};
pub use request::{ConnectionState, Intent, RequestError};
pub use secret::Secret;
pub use snapshot::SnapshotConnection;
pub use tail::{Log, LogTail};
pub use url::{Host, Url, UrlError, userinfo_end};
