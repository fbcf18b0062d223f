//! Arguments of the server's functions: rows as one array per column, and the texts that guards compare.

use std::error::Error;

use meta::Lock;
use tables::{Line, hex, joined, values};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use types::{AclId, Slice};

/// Rows of numbers and byte strings, stored as one array per column.
#[derive(Debug)]
pub(crate) struct Rows<const NUMBERS: usize, const STRINGS: usize> {
    numbers: Matrix<NUMBERS>,
    strings: [Vec<Option<Vec<u8>>>; STRINGS],
}

/// Columns of equal length. As one argument, they are an array of two dimensions with one row per column.
#[derive(Debug)]
struct Matrix<const COLUMNS: usize>([Vec<Option<i64>>; COLUMNS]);

impl<const NUMBERS: usize, const STRINGS: usize> Rows<NUMBERS, STRINGS> {
    /// Adds a row. If there are fewer values than columns, the last columns are NULL.
    pub(crate) fn push<N: Copy + Into<Option<i64>>>(&mut self, numbers: &[N], strings: &[Option<&[u8]>]) {
        let (mut numbers, mut strings) = (numbers.iter(), strings.iter());
        for column in &mut self.numbers.0 {
            column.push(numbers.next().and_then(|number| (*number).into()));
        }
        for column in &mut self.strings {
            column.push(strings.next().and_then(|string| string.map(<[u8]>::to_vec)));
        }
    }

    /// Adds a row that begins with these numbers.
    pub(crate) fn line(&mut self, first: &[i64], line: &Line<'_>) {
        let numbers = line.numbers.iter().map(|number| number.map(int));
        let numbers: Vec<_> = first.iter().copied().map(Some).chain(numbers).collect();
        let strings: Vec<_> = line.strings.iter().map(Option::as_deref).collect();
        self.push(&numbers, &strings);
    }

    /// One argument per column. Each is NULL if there are no rows: an empty array costs the server more.
    pub(crate) fn args(&self) -> impl Iterator<Item = Arg<'_>> {
        self.numbers.0.iter().map(column).chain(self.strings.iter().map(column))
    }

    /// The first columns as one argument each, then all numbers together as one argument, then the strings.
    /// The numbers are one argument, because an argument costs the server more than a number.
    pub(crate) fn matrix(&self, first: usize) -> impl Iterator<Item = Arg<'_>> {
        let numbers = self.numbers.0.iter().take(first).map(column).chain([&self.numbers as Arg<'_>]);
        numbers.chain(self.strings.iter().map(column))
    }
}

/// A number as PostgreSQL stores it. Numbers above `i64::MAX` are stored as negative numbers, and converting
/// back restores them.
pub(crate) fn int(n: impl Into<i128>) -> i64 {
    n.into() as i64
}

/// An argument of a statement.
pub(crate) type Arg<'a> = &'a (dyn ToSql + Sync);

fn column<T: ToSql + Sync + 'static>(column: &Vec<Option<T>>) -> Arg<'_> {
    if column.is_empty() { &None::<Vec<Option<T>>> } else { column }
}

impl<const COLUMNS: usize> ToSql for Matrix<COLUMNS> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let rows = self.0.first().map_or(0, Vec::len);
        if rows == 0 {
            return Ok(IsNull::Yes);
        }
        // The format that array_recv (PostgreSQL's arrayfuncs.c) reads: the number of dimensions, a flag for
        // NULLs, the type of the elements; the length and the lower bound of each dimension; the elements,
        // each after its length.
        let size = |n: usize| i32::try_from(n).map(i32::to_be_bytes);
        out.extend_from_slice(&2_i32.to_be_bytes());
        out.extend_from_slice(&1_i32.to_be_bytes());
        out.extend_from_slice(&Type::INT8.oid().to_be_bytes());
        for length in [COLUMNS, rows] {
            out.extend_from_slice(&size(length)?);
            out.extend_from_slice(&1_i32.to_be_bytes());
        }
        for number in self.0.iter().flatten() {
            match number {
                Some(number) => {
                    out.extend_from_slice(&8_i32.to_be_bytes());
                    out.extend_from_slice(&number.to_be_bytes());
                }
                None => out.extend_from_slice(&(-1_i32).to_be_bytes()),
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::INT8_ARRAY
    }

    to_sql_checked!();
}

impl<const NUMBERS: usize, const STRINGS: usize> Default for Rows<NUMBERS, STRINGS> {
    fn default() -> Self {
        Rows { numbers: Matrix([const { Vec::new() }; NUMBERS]), strings: [const { Vec::new() }; STRINGS] }
    }
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
