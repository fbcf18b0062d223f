//! The version of the layout, stored under one key (see the table of keys in the crate `keyspace`, file
//! `keys.rs`).

use keyspace::{Access, Claim, KeyState, Keyspace, LAYOUT_VERSION, ReadSet, Source, Write};
use pool::{Asked, Failed, OpenError, check_version};

use crate::connect::Connection;
use crate::read::fetch;
use crate::request;
use crate::wire::{TXN, TxnResponse};

/// Checks the version. Writes it if there is none and `create` is set.
pub(crate) fn prepare(
    connection: &mut Connection,
    keys: &Keyspace,
    prefix: &str,
    create: bool,
) -> Result<(), OpenError> {
    let key = keys.version();
    let mut read_set = ReadSet::default();
    fetch(connection, &[Access::Key(key.clone())], 0, 1, &mut read_set)
        .map_err(|error| error.engine_error("etcd", Asked::Look))?;
    let found = read_set.get(&key);
    let value = if let KeyState::StoredValue(held) = &found { Some(&held.value[..]) } else { None };
    if check_version(value, LAYOUT_VERSION, &format!("under the prefix '{prefix}'"), create)? {
        let put = Write::Put(key.clone(), LAYOUT_VERSION.to_string().into());
        let request = request::commit(&[Claim::Key(key, None)], 0, &[], &[put], &[], usize::MAX)?;
        let _written_by_any_client: TxnResponse = connection
            .run(|channel| channel.call(TXN, &request))
            .map_err(|error| error.engine_error("etcd", Asked::Change))?;
    }
    Ok(())
}
