//! Scans as statements, in SQL that SQLite, PostgreSQL and MySQL accept.

use std::borrow::Cow;

use meta::Scan;

use crate::table::Table;

/// A statement for the rows of a [`Scan`] up to its limit, and one more, which shows that more follow. In the
/// texts, `r` is the alias of the table of the rows, names of tables are in backquotes and begin with `@`,
/// which stands for the table prefix, and `?1` is the placeholder of the first of `args`.
#[derive(Debug)]
pub struct Select<'s> {
    pub table: Table,
    /// The FROM clause.
    pub from: &'static str,
    /// The WHERE, ORDER BY and LIMIT clauses.
    pub range: &'static str,
    pub args: Vec<Arg<'s>>,
}

/// An argument of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg<'s> {
    /// A number. All values beyond `i64::MAX` are equivalent, because no stored number is greater.
    Number(u64),
    Bytes(Cow<'s, [u8]>),
}

/// The rows that answer `scan`, without the inodes and ACLs of the entries of a directory.
pub fn select(scan: &Scan) -> Select<'_> {
    let number = Arg::Number;
    let (table, from, range, mut args) = match scan {
        Scan::Dir { parent, after, .. } => {
            // No name is empty, so every name is greater than the empty one.
            let after = after.as_ref().map_or(&[][..], |name| name.as_bytes());
            let range = "WHERE r.parent = ?1 AND r.name > ?2 ORDER BY r.name LIMIT ?3";
            (Table::DIRENT, "`@edge` r", range, vec![number(parent.0), Arg::Bytes(after.into())])
        }
        Scan::Inodes { after, .. } => {
            let range = "WHERE r.ino > ?1 ORDER BY r.ino LIMIT ?2";
            (Table::INODE, "`@node` r", range, vec![number(after.0)])
        }
        Scan::Slices { ino, from: first, .. } => {
            let from = "(SELECT DISTINCT o.ino, o.chunk FROM `@slice` o WHERE o.ino = ?1 AND o.chunk >= ?2 \
                        ORDER BY o.ino, o.chunk LIMIT ?3) c \
                        JOIN `@slice` r ON r.ino = c.ino AND r.chunk = c.chunk";
            (Table::SLICE, from, "ORDER BY r.chunk, r.seq", vec![number(ino.0), number(first.0)])
        }
        Scan::Orphans { after: (session, ino), .. } => {
            let range = "WHERE r.session >= ?1 AND (r.session > ?1 OR r.ino > ?2) \
                         ORDER BY r.session, r.ino LIMIT ?3";
            (Table::ORPHAN, "`@orphan` r", range, vec![number(session.0), number(ino.0)])
        }
        Scan::Sessions { after, .. } => {
            let range = "WHERE r.id > ?1 ORDER BY r.id LIMIT ?2";
            (Table::SESSION, "`@session` r", range, vec![number(after.0)])
        }
        Scan::Locks { after, .. } => {
            let from = "(SELECT DISTINCT o.ino FROM `@lock` o WHERE o.ino > ?1 ORDER BY o.ino LIMIT ?2) i \
                        JOIN `@lock` r ON r.ino = i.ino";
            (Table::LOCK, from, "ORDER BY r.ino", vec![number(after.0)])
        }
        Scan::Garbage { after, .. } => (Table::GARBAGE, "`@garbage` r", BY_SLICE, vec![number(after.0)]),
        Scan::Shared { after, .. } => (Table::SHARED, "`@shared` r", BY_SLICE, vec![number(after.0)]),
        Scan::Acls { after, .. } => {
            let range = "WHERE r.id > ?1 ORDER BY r.id LIMIT ?2";
            (Table::ACL, "`@acl` r", range, vec![Arg::Bytes(after.to_bytes().to_vec().into())])
        }
        Scan::Quotas { after, .. } => {
            let range = "WHERE (r.kind, r.number) >= (?1, ?2) ORDER BY r.kind, r.number LIMIT ?3";
            let (kind, from) = after.map_or((0, 0), |key| {
                let (kind, number) = key.to_numbers();
                (kind.into(), number.saturating_add(1))
            });
            (Table::QUOTA, "`@quota` r", range, vec![number(kind), number(from)])
        }
    };
    args.push(number(u64::try_from(scan.limit()).unwrap_or(u64::MAX).saturating_add(1)));
    Select { table, from, range, args }
}

const BY_SLICE: &str = "WHERE r.slice > ?1 ORDER BY r.slice LIMIT ?2";

#[cfg(test)]
mod tests {
    use meta::ScanInclude;
    use types::{AclId, ChunkIndex, Ino, SessionId, SliceId};

    use super::*;

    #[test]
    fn every_argument_is_used_and_the_last_is_the_limit_plus_one() {
        let limit = 7;
        let dir = |limit| Scan::Dir { parent: Ino(2), after: None, limit, include: ScanInclude::Nothing };
        let scans = [
            dir(limit),
            Scan::Inodes { after: Ino(1), limit },
            Scan::Slices { ino: Ino(1), from: ChunkIndex(0), limit },
            Scan::Orphans { after: (SessionId(1), Ino(1)), limit },
            Scan::Sessions { after: SessionId(1), limit },
            Scan::Locks { after: Ino(1), limit },
            Scan::Garbage { after: SliceId(1), limit },
            Scan::Shared { after: SliceId(1), limit },
            Scan::Acls { after: AclId::NONE, limit },
            Scan::Quotas { after: None, limit },
        ];
        for scan in &scans {
            let select = select(scan);
            assert_eq!(select.args.last(), Some(&Arg::Number(8)));
            let text = format!("{} {}", select.from, select.range);
            let places: Vec<bool> = (1..=9).map(|place| text.contains(&format!("?{place}"))).collect();
            assert_eq!(places.iter().filter(|there| **there).count(), select.args.len(), "{text}");
            assert!(text.contains(&format!("LIMIT ?{}", select.args.len())), "{text}");
            assert!(text.contains(&format!("`@{}` r", select.table.name)), "{text}");
        }
        assert_eq!(select(&dir(usize::MAX)).args.last(), Some(&Arg::Number(u64::MAX)));
    }
}
