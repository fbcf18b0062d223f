//! Requests as the scripts read them, and answers as they write them.

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use crate::error::Malformed;

/// A request in MessagePack: of its types, arrays, strings and integers. Bytes go as strings, which to Lua are the same.
#[derive(Debug, Default)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What follows are the array's elements, so many.
    pub(crate) fn array(&mut self, len: usize) -> &mut Self {
        self.head(len, 0x90, 16, 0xdd)
    }

    pub(crate) fn string(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let bytes = bytes.as_ref();
        self.head(bytes.len(), 0xa0, 32, 0xdb);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A type and a length: `few` of them stand in one byte, more in 4 of their own.
    fn head(&mut self, len: usize, fix: u8, few: usize, more: u8) -> &mut Self {
        if len < few {
            self.0.push(fix | len as u8);
        } else {
            self.0.push(more);
            self.0.extend_from_slice(&(len as u32).to_be_bytes());
        }
        self
    }

    /// A number of 64 bits, which to Lua is a string.
    pub(crate) fn id(&mut self, id: u64) -> &mut Self {
        self.string(id.to_be_bytes())
    }

    /// A number that is one to Lua.
    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        self.0.push(0xd3);
        self.0.extend_from_slice(&number.to_be_bytes());
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
