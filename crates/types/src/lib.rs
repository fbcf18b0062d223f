//! Identifiers and small values that every layer of limenfs speaks: no I/O, no policy.

mod cred;
mod errno;
mod ids;
mod mode;
mod name;
mod time;

pub use cred::{Caps, Cred};
pub use errno::Errno;
pub use ids::{AclId, ChunkIndex, Ino, OpId, SessionId, SliceId};
pub use mode::{FileType, Mode};
pub use name::{Name, NameError, XattrName};
pub use time::Time;
