//! What engines on a network share: the URL of a server, and a bounded pool of connections to it.

mod params;
mod pool;
mod secret;
mod url;

pub use params::{ParamError, Params};
pub use pool::{Connect, Pool, Pooled};
pub use secret::Secret;
pub use url::{Host, Url, UrlError};
