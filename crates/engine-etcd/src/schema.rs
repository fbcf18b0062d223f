//! The version of the layout, stored under one key (see the table in the crate `keyspace`, file `keys.rs`).

use keyspace::{Access, Keyspace, Known, LAYOUT_VERSION, OpenError, Snapshot, Source, check_version};

use crate::connect::Connection;
use crate::error::{Asked, engine_error};
use crate::read::fetch;
use crate::wire::{
    CREATE, Compare, EQUAL, Operand, PutRequest, Request, RequestOp, TXN, TxnRequest, TxnResponse,
};

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
        .map_err(|error| engine_error(Asked::Look, &error))?;
    let found = snapshot.get(&key);
    let value = if let Known::Held(held) = &found { Some(&held.value[..]) } else { None };
    if check_version(value, prefix, create)? {
        let value = LAYOUT_VERSION.to_string().into();
        let put = PutRequest { key: key.clone().into(), value };
        let compare = Compare {
            result: EQUAL,
            target: CREATE,
            key: key.into(),
            operand: Some(Operand::CreateRevision(0)),
            ..Compare::default()
        };
        let success = vec![RequestOp { request: Some(Request::Put(put)) }];
        let request = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
        let _by_whomever: TxnResponse = connection
            .run(|channel| channel.call(TXN, &request))
            .map_err(|error| engine_error(Asked::Change, &error))?;
    }
    Ok(())
}
