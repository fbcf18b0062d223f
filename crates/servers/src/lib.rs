//! Real database servers and object stores for tests, each on a loopback port and in its own directory, and a
//! proxy between a server and a mount.
//!
//! | module | content |
//! |---|---|
//! | `kind` | the [`Kind`]s of servers: how each is started and queried, and how its requests are counted |
//! | `server` | [`Server`]: a server that is started, killed, stopped and started again |
//! | `store` | [`Store`]: an object store |
//! | `proxy` | [`Proxy`]: counts and holds back traffic |

mod kind;
mod proxy;
mod server;
mod store;

pub use kind::{Kind, ServerSettings, is_mysql};
pub use proxy::{Cut, Proxy};
pub use server::{Server, free_port};
pub use store::{Store, StoreKind};
