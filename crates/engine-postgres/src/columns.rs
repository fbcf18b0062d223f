//! Arguments of the functions on the server: rows as an array for each column, and texts that guards compare.

use meta::Lock;
use tables::{Line, values};
use tokio_postgres::types::ToSql;
use types::{AclId, Slice};

use crate::read::int;

/// Rows of numbers and strings of bytes, an array for each column.
#[derive(Debug)]
pub(crate) struct Rows<const NUMBERS: usize, const STRINGS: usize> {
    numbers: [Vec<Option<i64>>; NUMBERS],
    strings: [Vec<Option<Vec<u8>>>; STRINGS],
}

impl<const NUMBERS: usize, const STRINGS: usize> Rows<NUMBERS, STRINGS> {
    /// Adds a row; the last columns are NULL where no value is left for them.
    pub(crate) fn push<N: Copy + Into<Option<i64>>>(&mut self, numbers: &[N], strings: &[Option<&[u8]>]) {
        let (mut numbers, mut strings) = (numbers.iter(), strings.iter());
        for column in &mut self.numbers {
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

    pub(crate) fn args(&self) -> impl Iterator<Item = &(dyn ToSql + Sync)> {
        let numbers = self.numbers.iter().map(|column| column as &(dyn ToSql + Sync));
        numbers.chain(self.strings.iter().map(|column| column as &(dyn ToSql + Sync)))
    }
}

impl<const NUMBERS: usize, const STRINGS: usize> Default for Rows<NUMBERS, STRINGS> {
    fn default() -> Self {
        Rows { numbers: [const { Vec::new() }; NUMBERS], strings: [const { Vec::new() }; STRINGS] }
    }
}

/// An ACL id as columns hold it.
pub(crate) fn acl(id: AclId) -> Option<Vec<u8>> {
    values::acl(id).map(Vec::from)
}

/// The rows as function `failed` writes them, to be compared.
pub(crate) fn rows_text(rows: &[Slice]) -> String {
    let row = |slice: &Slice| {
        let (numbers, data) = values::slice(slice);
        let numbers = numbers.map(|number| number.map(|number| int(number).to_string()).unwrap_or_default());
        let hex = |data: &[u8]| data.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{},{}", numbers.join(","), data.map_or("-".to_owned(), hex))
    };
    rows.iter().map(row).collect::<Vec<_>>().join(";")
}

/// The locks as function `failed` writes them: in the order of the table's keys.
pub(crate) fn locks_text(locks: &[Lock]) -> String {
    let mut rows: Vec<[i64; 7]> = locks.iter().map(|lock| values::lock(lock).map(int)).collect();
    rows.sort_unstable();
    let row = |numbers: &[i64; 7]| numbers.map(|n| n.to_string()).join(",");
    rows.iter().map(row).collect::<Vec<_>>().join(";")
}
