//! Requests as the scripts read them, and answers as they write them.

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};
use types::OpId;

use crate::error::Malformed;

/// A request: bytes of fixed length, and strings behind their lengths, in the order in which a script reads them, which
/// it does without making tables: they were much of what a script cost.
#[derive(Debug, Default)]
pub(crate) struct Request {
    body: Vec<u8>,
    operations: Vec<[u8; 16]>,
}

impl Request {
    /// What a script's arguments are.
    pub(crate) fn args(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.body[..]).chain(self.operations.iter().map(|id| &id[..]))
    }

    /// The id of an operation, which is looked up with all the others at once.
    pub(crate) fn operation(&mut self, id: OpId) -> &mut Self {
        self.operations.push(id.0.to_be_bytes());
        self
    }

    /// Bytes whose number the script knows.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(bytes);
        self
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

    /// What `inner` adds, as one string.
    pub(crate) fn nested(&mut self, inner: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.number(0).body.len();
        inner(self);
        let len = (self.body.len() - start) as u32;
        self.body[start - 4..start].copy_from_slice(&len.to_be_bytes());
        self
    }
}

/// The elements of an answer, one after the other.
#[derive(Debug)]
pub(crate) struct Answer(std::vec::IntoIter<Value>);

impl FromRedisValue for Answer {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::Array(items) => Ok(Answer(items.into_iter())),
            _ => Err("an array is missing".into()),
        }
    }
}

impl Answer {
    /// The next element, in the form that it must have.
    pub(crate) fn take<T: FromRedisValue>(&mut self) -> Result<T, Malformed> {
        take(self.0.next().ok_or(Malformed("it ends too early"))?)
    }

    /// What `read` makes of the next element's bytes, if it is there.
    pub(crate) fn stored<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        self.take::<Option<Vec<u8>>>()?.map(|bytes| read(&bytes)).transpose()
    }

    /// A number of 64 bits, which to Lua is a string.
    pub(crate) fn id(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    /// All that follows.
    pub(crate) fn rest<T: FromRedisValue>(self) -> Result<T, Malformed> {
        take(Value::Array(self.0.collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

/// An answer in the form that it must have.
pub(crate) fn take<T: FromRedisValue>(answer: Value) -> Result<T, Malformed> {
    from_redis_value(answer).map_err(|_| Malformed("it has another form than it should"))
}
