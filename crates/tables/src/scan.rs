//! Ranges as statements, in what SQL servers have in common.

use std::borrow::Cow;

use meta::Scan;

use crate::table::Table;

/// The part of a range that a [`Scan`] asks for, and one more, which shows that more follow: rows `r` of a table. In its
/// texts the names of tables stand in backquotes with a `@` before them, and `?1` is where the first of `args` belongs.
#[derive(Debug)]
pub struct Select<'s> {
    pub table: Table,
    /// Where the rows come from.
    pub from: &'static str,
    /// Which of them, and in what order.
    pub range: &'static str,
    pub args: Vec<Arg<'s>>,
}

/// What a range begins and ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg<'s> {
    /// A number of which it makes no difference how far it is beyond `i64::MAX`: nothing has such a one.
    Number(u64),
    Bytes(Cow<'s, [u8]>),
}

/// The rows that answer `scan`, but for what is to stand beside the entries of a directory.
pub fn select(scan: &Scan) -> Select<'_> {
    let number = Arg::Number;
    let (table, from, range, mut args) = match scan {
        Scan::Dir { parent, after, .. } => {
            // No name is empty, so every name comes after nothing.
            let after = after.as_ref().map_or(&[][..], |name| name.as_bytes());
            let range = "WHERE r.parent = ?1 AND r.name > ?2 ORDER BY r.name LIMIT ?3";
            (Table::EDGE, "`@edge` r", range, vec![number(parent.0), Arg::Bytes(after.into())])
        }
        Scan::Nodes { after, .. } => {
            let range = "WHERE r.ino > ?1 ORDER BY r.ino LIMIT ?2";
            (Table::NODE, "`@node` r", range, vec![number(after.0)])
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
    };
    args.push(number(u64::try_from(scan.limit()).unwrap_or(u64::MAX).saturating_add(1)));
    Select { table, from, range, args }
}

const BY_SLICE: &str = "WHERE r.slice > ?1 ORDER BY r.slice LIMIT ?2";

#[cfg(test)]
mod tests {
    use meta::Beside;
    use types::{AclId, ChunkIndex, Ino, SessionId, SliceId};

    use super::*;

    #[test]
    fn each_argument_has_its_place_and_the_last_is_one_above_the_limit() {
        let limit = 7;
        let dir = |limit| Scan::Dir { parent: Ino(2), after: None, limit, beside: Beside::Nothing };
        let scans = [
            dir(limit),
            Scan::Nodes { after: Ino(1), limit },
            Scan::Slices { ino: Ino(1), from: ChunkIndex(0), limit },
            Scan::Orphans { after: (SessionId(1), Ino(1)), limit },
            Scan::Sessions { after: SessionId(1), limit },
            Scan::Locks { after: Ino(1), limit },
            Scan::Garbage { after: SliceId(1), limit },
            Scan::Shared { after: SliceId(1), limit },
            Scan::Acls { after: AclId::NONE, limit },
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
