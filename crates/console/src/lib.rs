//! The pages of `limen console`, and the small HTTP server that serves them.
//!
//! This crate decides nothing about a volume: a [`Source`] answers every question, and the pages show the
//! answers. So the pages give the same answers as the commands. Pages are HTML without scripts.
//!
//! | module | content |
//! |---|---|
//! | `server` | connections, the token, headers of requests and answers |
//! | `request` | targets of requests, and links to pages; percent-encoding of bytes |
//! | `html` | HTML in which every text is escaped |
//! | `model`, `source` | what pages show, and where it comes from |
//! | `treemap` | areas in proportion to sizes |
//! | `frame` | the parts that pages share: navigation, links, bars |
//! | `pages` | one page each |

mod frame;
mod html;
pub mod model;
mod pages;
mod request;
mod server;
mod source;
mod treemap;

pub use request::{Link, Query};
pub use server::{Console, Token};
pub use source::{Failure, Source};
