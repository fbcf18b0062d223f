//! Requests as the scripts read them, and answers as they write them.

use redis::Value;

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
        self.head(len, 0x90, 16, [0xdc, 0xdd])
    }

    pub(crate) fn string(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let bytes = bytes.as_ref();
        self.head(bytes.len(), 0xa0, 32, [0xda, 0xdb]);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A type and a length: `few` of them stand in one byte, more in 2 or 4 of their own.
    fn head(&mut self, len: usize, fix: u8, few: usize, more: [u8; 2]) -> &mut Self {
        match len {
            _ if len < few => self.0.push(fix | len as u8),
            0..0x1_0000 => {
                self.0.push(more[0]);
                self.0.extend_from_slice(&(len as u16).to_be_bytes());
            }
            _ => {
                self.0.push(more[1]);
                self.0.extend_from_slice(&(len as u32).to_be_bytes());
            }
        }
        self
    }

    /// A number of 64 bits, which to Lua is a string.
    pub(crate) fn id(&mut self, id: u64) -> &mut Self {
        self.string(id.to_be_bytes())
    }

    /// A number that is one to Lua.
    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        match number {
            0..128 => self.0.push(number as u8),
            _ => {
                self.0.push(0xd3);
                self.0.extend_from_slice(&number.to_be_bytes());
            }
        }
        self
    }
}

/// The elements of an answer, one after the other.
#[derive(Debug)]
pub(crate) struct Answer(std::vec::IntoIter<Value>);

impl Answer {
    pub(crate) fn new(value: Value) -> Result<Self, Malformed> {
        match value {
            Value::Array(items) => Ok(Answer(items.into_iter())),
            _ => Err(Malformed("an array is missing")),
        }
    }

    /// A string, or its absence.
    pub(crate) fn string(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(Value::Nil) => Ok(None),
            _ => Err(Malformed("a string is missing")),
        }
    }

    pub(crate) fn present(&mut self) -> Result<Vec<u8>, Malformed> {
        self.string()?.ok_or(Malformed("a value is missing"))
    }

    pub(crate) fn number(&mut self) -> Result<i64, Malformed> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(Malformed("a number is missing")),
        }
    }

    pub(crate) fn array(&mut self) -> Result<Answer, Malformed> {
        self.0.next().ok_or(Malformed("an array is missing")).and_then(Answer::new)
    }

    /// A number that Redis stores as its decimal digits.
    pub(crate) fn decimal(&mut self) -> Result<u64, Malformed> {
        let digits = self.present()?;
        let number = str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
        number.ok_or(Malformed("a decimal number is none"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Strings up to the end.
    pub(crate) fn strings(mut self) -> impl Iterator<Item = Result<Vec<u8>, Malformed>> {
        std::iter::from_fn(move || (!self.is_empty()).then(|| self.present()))
    }

    /// Two strings at a time, up to the end.
    pub(crate) fn pairs(mut self) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), Malformed>> {
        std::iter::from_fn(move || (!self.is_empty()).then(|| Ok((self.present()?, self.present()?))))
    }
}
