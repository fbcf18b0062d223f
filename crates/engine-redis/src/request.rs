//! Encodes requests for the scripts and decodes their answers.

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};
use types::OpId;

use crate::error::Malformed;

/// A request: fields of fixed length, and strings preceded by their length, in the order in which the script
/// reads them. The script can decode this format without creating tables, which would be a large part of its
/// cost.
#[derive(Debug, Default)]
pub(crate) struct Request {
    body: Vec<u8>,
    operations: Vec<[u8; 16]>,
}

impl Request {
    /// The arguments of the script.
    pub(crate) fn args(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.body[..]).chain(self.operations.iter().map(|id| &id[..]))
    }

    /// Adds an operation ID. It is an argument of its own so that the script can look up all IDs with one
    /// command.
    pub(crate) fn operation(&mut self, id: OpId) -> &mut Self {
        self.operations.push(id.0.to_be_bytes());
        self
    }

    /// Adds bytes whose length the script knows.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(bytes);
        self
    }

    /// Adds a code of four letters.
    pub(crate) fn code(&mut self, code: &str) -> &mut Self {
        self.fixed(code.as_bytes())
    }

    pub(crate) fn id(&mut self, id: u64) -> &mut Self {
        self.fixed(&id.to_be_bytes())
    }

    pub(crate) fn number(&mut self, number: usize) -> &mut Self {
        self.fixed(&(number as u32).to_be_bytes())
    }

    pub(crate) fn string(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let bytes = bytes.as_ref();
        self.number(bytes.len()).fixed(bytes)
    }

    /// Adds everything that `inner` adds, as one string.
    pub(crate) fn nested(&mut self, inner: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.number(0).body.len();
        inner(self);
        let len = (self.body.len() - start) as u32;
        self.body[start - 4..start].copy_from_slice(&len.to_be_bytes());
        self
    }
}

/// The elements of a reply, in order.
#[derive(Debug)]
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl FromRedisValue for Reply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::Array(items) => Ok(Reply(items.into_iter())),
            _ => Err("an array was expected".into()),
        }
    }
}

impl Reply {
    /// Takes the next element and converts it.
    pub(crate) fn take<T: FromRedisValue>(&mut self) -> Result<T, Malformed> {
        take(self.0.next().ok_or(Malformed("it is too short"))?)
    }

    /// Takes the next element and decodes its bytes with `read`; `None` if it is nil.
    pub(crate) fn stored<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        self.take::<Option<Vec<u8>>>()?.map(|bytes| read(&bytes)).transpose()
    }

    /// Takes a 64-bit number, which is a string in Lua.
    pub(crate) fn id(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    /// Converts all remaining elements.
    pub(crate) fn rest<T: FromRedisValue>(self) -> Result<T, Malformed> {
        take(Value::Array(self.0.collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

/// Converts a value of an answer.
pub(crate) fn take<T: FromRedisValue>(answer: Value) -> Result<T, Malformed> {
    from_redis_value(answer).map_err(|_| Malformed("a value has an unexpected type"))
}
