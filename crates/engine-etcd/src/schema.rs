//! The version of the layout, stored under one key (see the table of keys in the crate `keyspace`, file
//! `keys.rs`).

use keyspace::{Access, Claim, KeyReader, KeyState, LAYOUT_VERSION, Source, Write};
use pool::{OpenError, check_version};

use crate::request;
use crate::shared::Shared;

impl Shared {
    /// Checks the version. Writes it if there is none and `create` is set.
    pub(crate) fn prepare(&self, prefix: &str, create: bool) -> Result<(), OpenError> {
        let key = self.keys.version();
        let (read_set, _) = self.fetch(&[Access::Key(key.clone())], None)?;
        let found = read_set.get(&key);
        let value = if let KeyState::StoredValue(held) = &found { Some(&held.value[..]) } else { None };
        if check_version(value, LAYOUT_VERSION, &format!("under the prefix '{prefix}'"), create)? {
            let put = Write::Put(key.clone(), LAYOUT_VERSION.to_string().into());
            let request = request::commit(&[Claim::Key(key, None)], 0, &[], &[put], &[], self.max_ops)?;
            let _written_by_any_client = self.transact(&request)?;
        }
        Ok(())
    }
}
