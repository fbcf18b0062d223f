//! Encodes preconditions, writes and reads as the comparisons and operations of one etcd transaction.

use bytes::Bytes;
use keyspace::{KeyQuery, KeyWrite, Precondition, ReadSet, Span, StoredValue};
use meta::EngineError;

use crate::wire::{
    CREATE, Compare, DeleteRangeRequest, EQUAL, KeyValue, LESS, MOD, Operand, PutRequest, RangeRequest,
    Request, RequestOp, Response, ResponseOp, TxnRequest, VALUE,
};

/// The number of operations of a request that comparisons and reads must leave to the writes.
pub(crate) const ROOM: usize = 16;

/// The request for one query; `revision` 0 means the current one.
pub(crate) fn read(query: &KeyQuery, revision: u64) -> RequestOp {
    let (key, range_end, limit) = match (query, query.span()) {
        (_, Some(Span { start, end, limit })) => (start, end, i64::try_from(limit).unwrap_or(0)),
        (KeyQuery::Key(key), None) => (key.clone(), Vec::new(), 0),
        (KeyQuery::Group(_) | KeyQuery::Span(_), None) => Default::default(),
    };
    let limit = if limit == i64::MAX { 0 } else { limit };
    op(Request::Range(RangeRequest {
        key: key.into(),
        range_end: range_end.into(),
        limit,
        revision: signed(revision),
        count_only: false,
    }))
}

/// Stores the answers to [`read`] in a read set.
pub(crate) fn take<'a>(
    read_set: &mut ReadSet,
    queries: impl IntoIterator<Item = &'a KeyQuery>,
    responses: impl Iterator<Item = ResponseOp>,
) {
    for (query, response) in queries.into_iter().zip(responses) {
        let Some(Response::Range(range)) = response.response else { continue };
        read_set.fill(query, range.kvs.into_iter().map(held).collect());
    }
}

pub(crate) fn held(kv: KeyValue) -> (Bytes, StoredValue) {
    (kv.key, StoredValue { value: kv.value, version: kv.mod_revision.unsigned_abs() })
}

/// Encodes a commit. If all preconditions hold, it reads `shown` and then makes the writes; if not, it reads
/// `otherwise`, or nothing if those are too many reads. `read_at` is the revision at which ranges were read;
/// `most` is the server's limit of operations.
///
/// # Errors
/// A permanent error if the commit exceeds the limit.
pub(crate) fn commit(
    preconditions: &[Precondition],
    read_at: u64,
    shown: &[KeyQuery],
    writes: &[KeyWrite],
    otherwise: &[KeyQuery],
    most: usize,
) -> Result<TxnRequest, EngineError> {
    let compare: Vec<Compare> =
        preconditions.iter().map(|precondition| comparison(precondition, read_at)).collect();
    let mut success: Vec<RequestOp> = shown.iter().map(|query| read(query, 0)).collect();
    let writes: Vec<RequestOp> = writes.iter().map(write).collect();
    let otherwise = if otherwise.len() + ROOM > most { &[] } else { otherwise };
    let failure: Vec<RequestOp> = otherwise.iter().map(|query| read(query, 0)).collect();
    let beside = compare.len().max(failure.len());
    let size = group_size(success.len(), writes.len(), beside, most).ok_or_else(|| {
        EngineError::permanent(format!(
            "a transaction of {} comparisons and {} writes exceeds etcd's --max-txn-ops={most}: start etcd \
             with a larger value, and set ?max_txn_ops= to it",
            compare.len(),
            writes.len()
        ))
    })?;
    if size == usize::MAX {
        success.extend(writes);
    } else {
        success.extend(
            writes.chunks(size).map(|group| {
                op(Request::Txn(TxnRequest { success: group.to_vec(), ..TxnRequest::default() }))
            }),
        );
    }
    Ok(TxnRequest { compare, success, failure })
}

/// The number of writes in each nested transaction; `usize::MAX` if no nesting is needed; `None` if the
/// writes do not fit. etcd adds up the operations of a transaction and of those nested in it, along each path
/// from the outermost to an innermost one, and permits a sum of `most` (`checkTxnRequest`,
/// server/etcdserver/api/v3rpc/key.go). A write may itself be a transaction of one operation. `beside` is the
/// larger number of comparisons and of reads on failure.
fn group_size(shown: usize, writes: usize, beside: usize, most: usize) -> Option<usize> {
    if beside.max(shown + writes) < most {
        return Some(usize::MAX);
    }
    (1..most).find_map(|groups| {
        let size = most.checked_sub(beside.max(shown + groups) + 1)?;
        (size > 0 && size * groups >= writes).then_some(size)
    })
}

/// A revision as etcd encodes it. Revisions start at 1 and never exceed `i64::MAX`.
pub(crate) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(0)
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn comparison(precondition: &Precondition, read_at: u64) -> Compare {
    let compare = |key: &[u8], range_end: &[u8], result, target, operand| Compare {
        result,
        target,
        key: Bytes::copy_from_slice(key),
        operand: Some(operand),
        range_end: Bytes::copy_from_slice(range_end),
    };
    let later = Operand::ModRevision(signed(read_at).saturating_add(1));
    match precondition {
        Precondition::Key(key, None) => compare(key, &[], EQUAL, CREATE, Operand::CreateRevision(0)),
        Precondition::Key(key, Some(version)) => {
            compare(key, &[], EQUAL, MOD, Operand::ModRevision(signed(*version)))
        }
        Precondition::Untouched(key) => compare(key, &[], LESS, MOD, later),
        Precondition::Empty(span) => {
            compare(&span.start, &span.end, EQUAL, CREATE, Operand::CreateRevision(0))
        }
        Precondition::Unchanged(span) => compare(&span.start, &span.end, LESS, MOD, later),
    }
}

fn write(write: &KeyWrite) -> RequestOp {
    let put = |key: &[u8], value: &Bytes| {
        op(Request::Put(PutRequest { key: Bytes::copy_from_slice(key), value: value.clone() }))
    };
    let put_if_less = |key: &[u8], value: &Bytes| {
        let (key_copy, operand) = (Bytes::copy_from_slice(key), Some(Operand::Value(value.clone())));
        let compare =
            Compare { result: LESS, target: VALUE, key: key_copy, operand, range_end: Bytes::new() };
        let txn = TxnRequest { compare: vec![compare], success: vec![put(key, value)], failure: Vec::new() };
        op(Request::Txn(txn))
    };
    match write {
        KeyWrite::Put(key, value) => put(key, value),
        // If the key is absent, a comparison of its value fails: `applyCompare`, server/etcdserver/apply.go.
        KeyWrite::PutGreater(key, value) => put_if_less(key, value),
        KeyWrite::Delete(key) => delete(key, &[]),
        KeyWrite::DeleteSpan(span) => delete(&span.start, &span.end),
    }
}

fn delete(key: &[u8], range_end: &[u8]) -> RequestOp {
    op(Request::DeleteRange(DeleteRangeRequest {
        key: Bytes::copy_from_slice(key),
        range_end: Bytes::copy_from_slice(range_end),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_beyond_the_limit_are_grouped() {
        assert_eq!(group_size(2, 100, 20, 128), Some(usize::MAX));
        for (writes, beside) in [(128, 1), (1000, 40), (3800, 10)] {
            let size = group_size(3, writes, beside, 128).unwrap();
            let groups = writes.div_ceil(size);
            assert!(beside.max(3 + groups) + size < 128, "{writes} in {groups} groups of {size}");
        }
        assert_eq!(group_size(0, 10, 128, 128), None);
        assert_eq!(group_size(0, 5000, 10, 128), None);
    }
}
