//! The version of the layout, stored under one key (see the table in the crate `keyspace`, file `keys.rs`).

use keyspace::{KeyQuery, KeyState, KeyWrite, LAYOUT_VERSION, Source};
use pool::{OpenError, check_version};

use crate::shared::Shared;
use crate::store::{CommitError, Phases};

impl Shared {
    /// Checks the version of the layout. If there is none and `create` is true, writes it.
    pub(crate) fn prepare(&self, prefix: &str, create: bool) -> Result<(), OpenError> {
        let key = self.keys.version();
        let location = format!("under the prefix '{prefix}'");
        let check = |start, create| {
            let read_set = self.read_as_of(start, &[KeyQuery::Key(key.clone())])?;
            let found = read_set.get(&key);
            let value = if let KeyState::StoredValue(held) = &found { Some(&held.value[..]) } else { None };
            check_version(value, LAYOUT_VERSION, &location, create)
        };
        let attempt = self.store.begin(Phases::Two)?;
        let start = attempt.started_at();
        if check(start, create)? {
            let put = KeyWrite::Put(key.clone(), LAYOUT_VERSION.to_string().into());
            // A conflict means that another client has just created the volume, perhaps with another version.
            CommitError::failure(attempt.commit(self.mutations(start, &[], &[put])?))?;
            check(self.store.timestamp()?, false)?;
        }
        Ok(())
    }
}
