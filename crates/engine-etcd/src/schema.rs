//! The version of the layout, stored under one key (see the table of keys in the crate `keyspace`, file
//! `keys.rs`).

use keyspace::{KeyQuery, KeyReader, KeyState, KeyWrite, LAYOUT_VERSION, Precondition, Source};
use pool::{OpenError, check_version};

use crate::request;
use crate::shared::Shared;

impl Shared {
    /// Checks the version. Writes it if there is none and `create` is set.
    pub(crate) fn prepare(&self, prefix: &str, create: bool) -> Result<(), OpenError> {
        let key = self.keys.version();
        let location = format!("under the prefix '{prefix}'");
        let check = |create| {
            let (read_set, _) = self.fetch(&[KeyQuery::Key(key.clone())], None)?;
            let found = read_set.get(&key);
            let value = if let KeyState::StoredValue(held) = &found { Some(&held.value[..]) } else { None };
            check_version(value, LAYOUT_VERSION, &location, create)
        };
        if check(create)? {
            let put = KeyWrite::Put(key.clone(), LAYOUT_VERSION.to_string().into());
            let preconditions = [Precondition::Key(key.clone(), None)];
            let request = request::commit(&preconditions, 0, &[], &[put], &[], self.max_ops)?;
            // Another client may have just created the volume, perhaps with another version.
            let _written_by_any_client = self.transact(&request)?;
            check(false)?;
        }
        Ok(())
    }
}
