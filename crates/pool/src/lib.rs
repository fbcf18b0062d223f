//! What engines on a network share: the URL of a server and its parameters, a bounded pool of connections to it, requests
//! on these, and what it means when one fails.
//!
//! | module | what it holds |
//! |---|---|
//! | `url`, `secret` | where a server is and who asks; a password that nobody sees |
//! | `query`, `params` | a URL's parameters, and those that all engines know |
//! | `tls` | whom to trust, and who we are |
//! | `pool`, `request` | connections; a request on one, and what its failure leaves |
//! | `open` | why a volume could not be opened |
//! | `again` | what is done more than once: looks for news, parts of a batch, one place after the other, attempts |
//! | `tail`, `numbers` | the stream of changes of a log that is looked at again and again; which of its numbers are accounted for |

mod again;
mod numbers;
mod open;
mod params;
mod pool;
mod query;
mod request;
mod secret;
mod tail;
pub mod tls;
mod url;

pub use again::{Jitter, Turns, first, gradually, in_halves, in_parts};
pub use numbers::Numbers;
pub use open::{OpenError, check_version, ensure_version};
pub use params::{ParamError, Params};
pub use pool::{Connect, Pool, Pooled};
pub use query::{NamedFile, Query};
pub use request::{Asked, Failed, Leaves};
pub use secret::Secret;
pub use tail::{Log, Tail};
pub use url::{Host, Url, UrlError};
