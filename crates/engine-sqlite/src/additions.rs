//! The rows that the effects of a transaction add, collected so that one statement adds many.
//!
//! SQLite spends more time on the beginning and the end of a statement than on a row. A transaction that
//! copies a part of a tree adds a thousand rows. It takes less than half the time if each statement adds
//! [`TOGETHER`] rows.

use std::sync::LazyLock;

use meta::Inode;
use rusqlite::{ErrorCode, Result, Statement, ToSql};
use tables::{Line, Table, list, values};
use types::{ChunkIndex, FileType, Ino, Name, Slice, SliceId};

use crate::number::int;
use crate::sql::{Statements, parameters, put};

/// How many rows one statement adds. The last rows of a transaction, if they are fewer, are added one by one.
pub(crate) const TOGETHER: usize = 32;

/// The rows to add to the tables that grow with the number of files.
#[derive(Debug, Default)]
pub(crate) struct Additions<'t> {
    /// Inodes that are not known to exist.
    pub(crate) inodes: Vec<&'t Inode>,
    pub(crate) dirents: Vec<(Ino, &'t Name, Ino, FileType)>,
    /// The rows of chunks, with their positions.
    pub(crate) slices: Vec<(Ino, ChunkIndex, i64, &'t Slice)>,
    /// How many more rows refer to a slice.
    pub(crate) shares: Vec<(SliceId, u32)>,
    /// Rows of other tables that belong to inodes.
    pub(crate) others: Vec<Line<'t>>,
}

impl Additions<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        let Additions { inodes, dirents, slices, shares, others } = self;
        inodes.is_empty() && dirents.is_empty() && slices.is_empty() && shares.is_empty() && others.is_empty()
    }

    /// Adds all rows except the inodes. An existing row with the same key is replaced, except that
    /// references are added to those of the slice.
    pub(crate) fn add_rows(&mut self, statements: &mut Statements<'_>) -> Result<()> {
        static SHARES: LazyLock<Texts> = LazyLock::new(|| {
            let end = "ON CONFLICT DO UPDATE SET extra = extra + excluded.extra";
            Texts::new("INSERT INTO shared", &["slice", "extra"], end)
        });
        static SLICES: LazyLock<Texts> = LazyLock::new(|| {
            let columns = ["ino", "chunk", "seq", "pos", "len", "slice", "slice_off", "slice_size", "data"];
            Texts::new("REPLACE INTO slice", &columns, "")
        });
        static DIRENTS: LazyLock<Texts> =
            LazyLock::new(|| Texts::new("REPLACE INTO edge", &["parent", "name", "ino", "kind"], ""));
        SHARES.run(statements, self.shares.drain(..), |to, (slice, rows)| {
            to.bind(int(slice.0))?;
            to.bind(rows)
        })?;
        SLICES.run(statements, self.slices.drain(..), |to, (ino, chunk, seq, slice)| {
            let (numbers, data) = values::slice(slice);
            [int(ino.0), int(chunk.0), seq].into_iter().try_for_each(|number| to.bind(number))?;
            numbers.into_iter().try_for_each(|number| to.bind(number.map(|number| number as i64)))?;
            to.bind(data)
        })?;
        DIRENTS.run(statements, self.dirents.drain(..), |to, (parent, name, ino, kind)| {
            to.bind(int(parent.0))?;
            to.bind(name.as_bytes())?;
            to.bind(int(ino.0))?;
            to.bind(kind.to_dtype())
        })?;
        for line in self.others.drain(..) {
            statements.get(put(line.table))?.execute(parameters(&line))?;
        }
        Ok(())
    }
}

/// Adds one inode, or [`TOGETHER`] inodes with one statement. Adds none and returns false if any of them
/// exists.
pub(crate) fn add_inodes(statements: &mut Statements<'_>, inodes: &[&Inode]) -> Result<bool> {
    static INODES: LazyLock<Texts> =
        LazyLock::new(|| Texts::new("INSERT INTO node", &Table::INODE.columns().collect::<Vec<_>>(), ""));
    let added = INODES.run(statements, inodes.iter(), |to, inode| {
        values::inode(inode).into_iter().try_for_each(|number| to.bind(number as i64))?;
        [inode.access_acl, inode.default_acl].into_iter().try_for_each(|id| to.bind(values::acl(id)))
    });
    match added {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(false),
        added => added.map(|()| true),
    }
}

/// The statements that add one row and [`TOGETHER`] rows.
struct Texts {
    one: String,
    many: String,
}

impl Texts {
    fn new(verb: &str, columns: &[&str], end: &str) -> Self {
        let row = format!("({})", list(columns.iter().map(|_| "?")));
        let text = |rows| format!("{verb} ({}) VALUES {} {end}", list(columns), list(vec![&row; rows]));
        Texts { one: text(1), many: text(TOGETHER) }
    }

    fn run<R>(
        &'static self,
        statements: &mut Statements<'_>,
        mut rows: impl ExactSizeIterator<Item = R>,
        bind: impl Fn(&mut Parameters<'_, '_>, R) -> Result<()>,
    ) -> Result<()> {
        while rows.len() > 0 {
            let (text, count) = if rows.len() < TOGETHER { (&self.one, 1) } else { (&self.many, TOGETHER) };
            let statement = statements.get(text)?;
            let mut parameters = Parameters { statement, bound: 0 };
            rows.by_ref().take(count).try_for_each(|row| bind(&mut parameters, row))?;
            statement.raw_execute()?;
        }
        Ok(())
    }
}

/// The parameters of a statement, which are bound one after another.
struct Parameters<'s, 'c> {
    statement: &'s mut Statement<'c>,
    bound: usize,
}

impl Parameters<'_, '_> {
    fn bind(&mut self, value: impl ToSql) -> Result<()> {
        self.bound += 1;
        self.statement.raw_bind_parameter(self.bound, value)
    }
}
