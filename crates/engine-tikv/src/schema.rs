//! The version of the layout, stored under one key (see the table in the crate `keyspace`, file `keys.rs`).

use keyspace::{Access, Known, LAYOUT_VERSION, Source, Write};
use pool::{OpenError, check_version};

use crate::engine::Shared;
use crate::store::{CommitError, Phases};

impl Shared {
    /// Checks the version, and writes it where there is none and `create` says so.
    pub(crate) fn prepare(&self, prefix: &str, create: bool) -> Result<(), OpenError> {
        let key = self.keys.version();
        let attempt = self.store.begin(Phases::Two)?;
        let start = attempt.started_at();
        let snapshot = self.read_as_of(start, &[Access::Key(key.clone())])?;
        let found = snapshot.get(&key);
        let value = if let Known::Held(held) = &found { Some(&held.value[..]) } else { None };
        if check_version(value, LAYOUT_VERSION, &format!("under the prefix '{prefix}'"), create)? {
            let put = Write::Put(key, LAYOUT_VERSION.to_string().into());
            match attempt.commit(self.mutations(start, &[], &[put])?) {
                // Somebody else makes the volume at this moment.
                Ok(()) | Err(CommitError::Conflict(_) | CommitError::OnePhaseRefused) => {}
                Err(CommitError::Failed(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
