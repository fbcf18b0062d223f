//! Arguments of the server's functions: rows as one array per column, and the texts that guards compare.

use std::error::Error;
use std::ops::Range;

use meta::Lock;
use tables::{Line, hex, joined, values};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, WrongType};
use types::{AclId, Slice};

/// Rows of numbers and byte strings, which become one array per column. They are stored row by row, because a vector per
/// column would be allocated for each commit.
#[derive(Debug, Default)]
pub(crate) struct Rows<const NUMBERS: usize, const STRINGS: usize> {
    numbers: Vec<Option<i64>>,
    /// Where each string stands in `bytes`.
    strings: Vec<Option<Range<usize>>>,
    bytes: Vec<u8>,
}

impl<const NUMBERS: usize, const STRINGS: usize> Rows<NUMBERS, STRINGS> {
    /// Adds a row. If there are fewer values than columns, the last columns are NULL.
    pub(crate) fn push<N: Copy + Into<Option<i64>>>(&mut self, numbers: &[N], strings: &[Option<&[u8]>]) {
        self.add(numbers.iter().map(|number| (*number).into()), strings.iter().copied());
    }

    /// Adds a row that begins with these numbers.
    pub(crate) fn line(&mut self, first: &[i64], line: &Line<'_>) {
        let numbers = line.numbers.iter().map(|number| number.map(int));
        self.add(first.iter().copied().map(Some).chain(numbers), line.strings.iter().map(Option::as_deref));
    }

    fn add<'a>(
        &mut self,
        numbers: impl Iterator<Item = Option<i64>>,
        strings: impl Iterator<Item = Option<&'a [u8]>>,
    ) {
        let (all_numbers, all_strings) = (self.numbers.len() + NUMBERS, self.strings.len() + STRINGS);
        self.numbers.extend(numbers.take(NUMBERS));
        self.numbers.resize(all_numbers, None);
        for string in strings.take(STRINGS) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(string.unwrap_or_default());
            self.strings.push(string.map(|_| start..self.bytes.len()));
        }
        self.strings.resize(all_strings, None);
    }

    /// One argument per column. Each is NULL if there are no rows: an empty array costs the server more.
    pub(crate) fn args(&self) -> impl Iterator<Item = Arg<'_>> {
        self.columns(NUMBERS).chain(self.string_columns())
    }

    /// The first columns as one argument each, then all numbers together as one argument, with one row per column, then
    /// the strings. The numbers are one argument, because an argument costs the server more than a number.
    pub(crate) fn matrix(&self, first: usize) -> impl Iterator<Item = Arg<'_>> {
        let all = Arg::Matrix { cells: &self.numbers, width: NUMBERS };
        self.columns(first).chain([all]).chain(self.string_columns())
    }

    fn columns(&self, count: usize) -> impl Iterator<Item = Arg<'_>> {
        (0..count).map(|column| Arg::Numbers { cells: &self.numbers, width: NUMBERS, column })
    }

    fn string_columns(&self) -> impl Iterator<Item = Arg<'_>> {
        let (cells, bytes) = (&self.strings[..], &self.bytes[..]);
        (0..STRINGS).map(move |column| Arg::Strings { cells, bytes, width: STRINGS, column })
    }
}

/// A number as PostgreSQL stores it. Numbers above `i64::MAX` are stored as negative numbers, and converting
/// back restores them.
pub(crate) fn int(n: impl Into<i128>) -> i64 {
    n.into() as i64
}

/// An argument of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    Value(&'a (dyn ToSql + Sync)),
    /// A column of rows with `width` numbers each.
    Numbers {
        cells: &'a [Option<i64>],
        width: usize,
        column: usize,
    },
    /// All columns, as an array of two dimensions.
    Matrix {
        cells: &'a [Option<i64>],
        width: usize,
    },
    /// A column of rows with `width` strings each, which stand in `bytes`.
    Strings {
        cells: &'a [Option<Range<usize>>],
        bytes: &'a [u8],
        width: usize,
        column: usize,
    },
}

impl Arg<'_> {
    /// The type of the argument; `None` if its value knows it.
    fn ty(&self) -> Option<Type> {
        match self {
            Arg::Value(_) => None,
            Arg::Numbers { .. } | Arg::Matrix { .. } => Some(Type::INT8_ARRAY),
            Arg::Strings { .. } => Some(Type::BYTEA_ARRAY),
        }
    }
}

type Encoded = Result<IsNull, Box<dyn Error + Sync + Send>>;

impl ToSql for Arg<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Encoded {
        match *self {
            Arg::Value(value) => value.to_sql_checked(ty, out),
            Arg::Numbers { cells, width, column } => {
                let numbers = cells.iter().skip(column).step_by(width);
                array(
                    &[cells.len() / width],
                    &Type::INT8,
                    numbers.map(|number| number.map(i64::to_be_bytes)),
                    out,
                )
            }
            Arg::Matrix { cells, width } => {
                let numbers = (0..width).flat_map(|column| cells.iter().skip(column).step_by(width));
                let lengths = [width, cells.len() / width];
                array(&lengths, &Type::INT8, numbers.map(|number| number.map(i64::to_be_bytes)), out)
            }
            Arg::Strings { cells, bytes, width, column } => {
                let strings = cells.iter().skip(column).step_by(width);
                let strings = strings.map(|string| string.clone().map(|range| &bytes[range]));
                array(&[cells.len() / width], &Type::BYTEA, strings, out)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> Encoded {
        match self.ty() {
            Some(own) if own != *ty => Err(Box::new(WrongType::new::<Self>(ty.clone()))),
            _ => self.to_sql(ty, out),
        }
    }
}

/// Writes an array in the format that array_recv (PostgreSQL's arrayfuncs.c) reads: the number of dimensions, a flag for
/// NULLs, the type of the elements; the length and the lower bound of each dimension; the elements, each after its
/// length. NULL if there are no elements.
fn array<E: AsRef<[u8]>>(
    lengths: &[usize],
    ty: &Type,
    elements: impl Iterator<Item = Option<E>>,
    out: &mut BytesMut,
) -> Encoded {
    if lengths.contains(&0) {
        return Ok(IsNull::Yes);
    }
    let size = |n: usize| i32::try_from(n).map(i32::to_be_bytes);
    out.extend_from_slice(&size(lengths.len())?);
    out.extend_from_slice(&1_i32.to_be_bytes());
    out.extend_from_slice(&ty.oid().to_be_bytes());
    for length in lengths {
        out.extend_from_slice(&size(*length)?);
        out.extend_from_slice(&1_i32.to_be_bytes());
    }
    for element in elements {
        match element {
            Some(element) => {
                out.extend_from_slice(&size(element.as_ref().len())?);
                out.extend_from_slice(element.as_ref());
            }
            None => out.extend_from_slice(&(-1_i32).to_be_bytes()),
        }
    }
    Ok(IsNull::No)
}

/// The column value of an ACL id.
pub(crate) fn acl(id: AclId) -> Option<Vec<u8>> {
    values::acl(id).map(Vec::from)
}

/// The rows as text in the format of function `failed`, for comparison.
pub(crate) fn rows_text(rows: &[Slice]) -> String {
    let row = |slice: &Slice| {
        let (numbers, data) = values::slice(slice);
        let numbers = numbers.map(|number| number.map(|number| int(number).to_string()).unwrap_or_default());
        format!("{},{}", numbers.join(","), data.map_or("-".to_owned(), hex))
    };
    joined(rows.iter().map(row), ";")
}

/// The locks as text in the format of function `failed`, in the order of the table's primary key.
pub(crate) fn locks_text(locks: &[Lock]) -> String {
    let mut rows: Vec<[i64; 7]> = locks.iter().map(|lock| values::lock(lock).map(int)).collect();
    rows.sort_unstable();
    joined(rows.iter().map(|numbers| joined(numbers, ",")), ";")
}
