//! Identifiers and small values that all layers of limenfs share: no I/O, no policy.

mod boot;
pub mod bytes;
mod cred;
mod errno;
mod ids;
mod mode;
mod name;
mod plural;
mod slice;
mod time;

pub use boot::BootInstant;
pub use cred::{Caps, Cred};
pub use errno::Errno;
pub use ids::{AclId, ChunkIndex, Ino, OpId, QuotaId, SessionId, SliceId, Term};
pub use mode::{FileType, Mode};
pub use name::{Name, NameError, XattrName, XattrNameError};
pub use plural::{counted, plural};
pub use slice::{BLOCK_BYTES, CHUNK_BYTES, Slice, SliceSource};
pub use time::Time;
