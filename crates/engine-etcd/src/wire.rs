//! The part of etcd's messages that is used here (api/etcdserverpb/rpc.proto, api/mvccpb/kv.proto). They are
//! written by hand, so that the build needs no protobuf compiler.

use bytes::Bytes;
use prost::{Message, Oneof};

pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const COMPACT: &str = "/etcdserverpb.KV/Compact";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(crate) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// Defines messages: each field with its Rust type and its protobuf type.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $type:ty [$($form:tt)*],)* })*) => {$(
        #[derive(Clone, PartialEq, Message)]
        $(#[$about])*
        pub(crate) struct $name {
            $($(#[$note])* #[prost($($form)*)] pub(crate) $field: $type,)*
        }
    )*};
}

messages! {
    ResponseHeader {
        revision: i64 [int64, tag = "3"],
    }
    KeyValue {
        key: Bytes [bytes = "bytes", tag = "1"],
        mod_revision: i64 [int64, tag = "3"],
        value: Bytes [bytes = "bytes", tag = "5"],
    }
    RangeRequest {
        key: Bytes [bytes = "bytes", tag = "1"],
        /// Empty to read one key.
        range_end: Bytes [bytes = "bytes", tag = "2"],
        /// 0 means no limit.
        limit: i64 [int64, tag = "3"],
        /// 0 means the current revision.
        revision: i64 [int64, tag = "4"],
        count_only: bool [bool, tag = "9"],
    }
    RangeResponse {
        header: Option<ResponseHeader> [message, optional, tag = "1"],
        kvs: Vec<KeyValue> [message, repeated, tag = "2"],
    }
    PutRequest {
        key: Bytes [bytes = "bytes", tag = "1"],
        value: Bytes [bytes = "bytes", tag = "2"],
    }
    DeleteRangeRequest {
        key: Bytes [bytes = "bytes", tag = "1"],
        range_end: Bytes [bytes = "bytes", tag = "2"],
    }
    RequestOp {
        request: Option<Request> [oneof = "Request", tags = "1, 2, 3, 4"],
    }
    ResponseOp {
        response: Option<Response> [oneof = "Response", tags = "1"],
    }
    Compare {
        /// [`EQUAL`] or [`LESS`].
        result: i32 [int32, tag = "1"],
        /// [`CREATE`], [`MOD`] or [`VALUE`].
        target: i32 [int32, tag = "2"],
        key: Bytes [bytes = "bytes", tag = "3"],
        operand: Option<Operand> [oneof = "Operand", tags = "5, 6, 7"],
        /// If not empty, all keys up to this one must satisfy the comparison.
        range_end: Bytes [bytes = "bytes", tag = "64"],
    }
    TxnRequest {
        compare: Vec<Compare> [message, repeated, tag = "1"],
        success: Vec<RequestOp> [message, repeated, tag = "2"],
        failure: Vec<RequestOp> [message, repeated, tag = "3"],
    }
    TxnResponse {
        header: Option<ResponseHeader> [message, optional, tag = "1"],
        succeeded: bool [bool, tag = "2"],
        responses: Vec<ResponseOp> [message, repeated, tag = "3"],
    }
    CompactionRequest {
        revision: i64 [int64, tag = "1"],
    }
    CompactionResponse {}
    WatchRequest {
        union: Option<WatchUnion> [oneof = "WatchUnion", tags = "1, 3"],
    }
    WatchCreateRequest {
        key: Bytes [bytes = "bytes", tag = "1"],
        range_end: Bytes [bytes = "bytes", tag = "2"],
        /// Events to leave out: [`NO_DELETE`].
        filters: Vec<i32> [int32, repeated, tag = "5"],
    }
    WatchProgressRequest {}
    WatchResponse {
        header: Option<ResponseHeader> [message, optional, tag = "1"],
        created: bool [bool, tag = "3"],
        canceled: bool [bool, tag = "4"],
        compact_revision: i64 [int64, tag = "5"],
        cancel_reason: String [string, tag = "6"],
        events: Vec<Event> [message, repeated, tag = "11"],
    }
    Event {
        kv: Option<KeyValue> [message, optional, tag = "2"],
    }
    /// Contains a password, so `Debug` omits it.
    #[prost(skip_debug)]
    AuthenticateRequest {
        name: String [string, tag = "1"],
        password: String [string, tag = "2"],
    }
    /// Contains a token that is equivalent to a password, so `Debug` omits it.
    #[prost(skip_debug)]
    AuthenticateResponse {
        token: String [string, tag = "2"],
    }
    StatusRequest {}
    StatusResponse {
        version: String [string, tag = "2"],
        errors: Vec<String> [string, repeated, tag = "8"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Operand {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum WatchUnion {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

pub(crate) const EQUAL: i32 = 0;
pub(crate) const LESS: i32 = 2;
pub(crate) const CREATE: i32 = 1;
pub(crate) const MOD: i32 = 2;
pub(crate) const VALUE: i32 = 3;

pub(crate) const NO_DELETE: i32 = 1;

impl TxnResponse {
    /// The revision of the store after the transaction. No revision is negative.
    pub(crate) fn revision(&self) -> u64 {
        self.header.as_ref().map_or(0, |header| header.revision.unsigned_abs())
    }
}

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}
