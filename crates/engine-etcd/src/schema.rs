//! The version of the layout, stored under one key (see the table in the crate `keyspace`, file `keys.rs`).

use keyspace::{Access, Keyspace, Known, LAYOUT_VERSION, Snapshot, Source};

use crate::connect::Connection;
use crate::error::{Asked, OpenError, engine_error};
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
    match snapshot.get(&key) {
        Known::Held(held) => {
            let text = str::from_utf8(&held.value).ok();
            let found: Option<u32> = text.and_then(|text| text.parse().ok());
            match found {
                Some(found) if found <= LAYOUT_VERSION => Ok(()),
                Some(found) => Err(OpenError::Newer { found, known: LAYOUT_VERSION }),
                None => Err(OpenError::NotLimenfs(prefix.to_owned())),
            }
        }
        _ if create => {
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
            Ok(())
        }
        _ => Err(OpenError::Missing(prefix.to_owned())),
    }
}
