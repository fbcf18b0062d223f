//! The version of the layout, stored under one key (see the table in the crate `keyspace`, file `keys.rs`).

use keyspace::{Access, Claim, Keyspace, Known, LAYOUT_VERSION, Snapshot, Source, Write};
use pool::{Asked, Failed, OpenError, check_version};

use crate::connect::Connection;
use crate::read::fetch;
use crate::request;
use crate::wire::{TXN, TxnResponse};

/// Checks the version, and writes it where there is none and `create` says so.
pub(crate) fn prepare(
    connection: &mut Connection,
    keys: &Keyspace,
    prefix: &str,
    create: bool,
) -> Result<(), OpenError> {
    let key = keys.version();
    let mut snapshot = Snapshot::default();
    fetch(connection, &[Access::Key(key.clone())], 0, 1, &mut snapshot)
        .map_err(|error| error.engine_error("etcd", Asked::Look))?;
    let found = snapshot.get(&key);
    let value = if let Known::Held(held) = &found { Some(&held.value[..]) } else { None };
    if check_version(value, LAYOUT_VERSION, &format!("under the prefix '{prefix}'"), create)? {
        let put = Write::Put(key.clone(), LAYOUT_VERSION.to_string().into());
        let request = request::commit(&[Claim::Key(key, None)], 0, &[], &[put], &[], usize::MAX)?;
        let _by_whomever: TxnResponse = connection
            .run(|channel| channel.call(TXN, &request))
            .map_err(|error| error.engine_error("etcd", Asked::Change))?;
    }
    Ok(())
}
