//! The charge of a cached record: how much memory it takes.

use std::sync::Arc;

use ops::{Acl, Value};
use types::XattrName;

/// One unit of the bound of [`Cache`](crate::cache::Cache): the size of an ordinary record with its key and
/// its entries in the tables.
pub(crate) const RECORD_BYTES: usize = 256;

/// The charge in ordinary records, at least one. ACLs and extended attributes are up to 64 KiB in their
/// stored form, and a compiled ACL is several times as large.
pub(crate) fn charge(value: &Value) -> usize {
    let heap_bytes = match value {
        Value::Acl(Some(Acl::Posix(acl))) => acl.heap_bytes(),
        Value::Acl(Some(Acl::Nfs4(acl))) => size_of_val(&**acl) + acl.heap_bytes(),
        Value::Projection(of) => size_of_val(&**of) + of.acl.as_ref().map_or(0, |acl| acl.heap_bytes()),
        Value::Xattrs(all) => all
            .iter()
            .map(|(name, value)| name.as_bytes().len() + value.len() + size_of::<Arc<()>>() * 4)
            .sum(),
        Value::XattrSizes(sizes) => {
            sizes.keys().map(|name| name.as_bytes().len() + size_of::<XattrName>() * 2).sum()
        }
        Value::Symlink(Some(target)) => target.len(),
        _ => 0,
    };
    1 + heap_bytes / RECORD_BYTES
}

#[cfg(test)]
mod tests {
    use acl::nfs4::{Compiled, Nfs4Acl};
    use types::{AclId, Ino};

    use super::*;
    use crate::cache::Cache;
    use meta::{AclKind, Seq, Xattrs};
    use ops::Key;

    fn bytes_in(cache: &Cache, keys: impl Iterator<Item = Key>) -> usize {
        keys.filter_map(|key| cache.get(&key, None)).map(|value| (charge(&value) - 1) * RECORD_BYTES).sum()
    }

    /// 2,700 entries, each for another user: as many as fit in an xattr.
    fn hostile(number: u32) -> Arc<Compiled> {
        let entries: Vec<String> = (0..2_700).map(|n| format!("A::{}:r", number * 10_000 + n)).collect();
        Arc::new(Compiled::new(Nfs4Acl::from_storage(&entries.join(",")).unwrap()))
    }

    #[test]
    fn the_longest_acls_take_no_more_memory_than_other_records() {
        const RECORDS: usize = 1 << 16;
        let cache = Cache::new(RECORDS, AclKind::Nfs4);
        let one = hostile(0);
        assert!(one.heap_bytes() > 128 << 10, "{}", one.heap_bytes());
        for number in 0..2_000_u128 {
            cache.put(Key::Acl(AclId(number)), Value::Acl(Some(Acl::Nfs4(Arc::clone(&one)))), Seq(1));
        }
        let held = bytes_in(&cache, (0..2_000).map(|number| Key::Acl(AclId(number))));
        assert!(held <= RECORDS * RECORD_BYTES, "{held}");
        assert!(held > RECORDS * RECORD_BYTES / 4, "and not much less: {held}");
        assert!(cache.get(&Key::Acl(AclId(1_999)), None).is_some(), "the last one is there");
        // A record that is larger than its shard's capacity is cached as the only one of the shard.
        let small = Cache::new(64, AclKind::Nfs4);
        small.put(Key::Acl(AclId(1)), Value::Acl(Some(Acl::Nfs4(one))), Seq(1));
        assert!(small.get(&Key::Acl(AclId(1)), None).is_some());
    }

    #[test]
    fn growing_records_stay_within_the_bound() {
        const RECORDS: usize = 1 << 12;
        let cache = Cache::new(RECORDS, AclKind::Posix);
        let keys = || (0..4_000).map(|ino| Key::Xattrs(Ino(ino)));
        for seq in [1, 2] {
            // First without xattrs, then with as many as an inode may have.
            let value = Arc::from(vec![0; if seq == 1 { 0 } else { 65_536 }]);
            let xattrs = Arc::new(Xattrs::from([(XattrName::new(b"user.a").unwrap(), value)]));
            for key in keys() {
                cache.put(key, Value::Xattrs(Arc::clone(&xattrs)), Seq(seq));
            }
        }
        // A shard caches one of these records even if its capacity is smaller.
        let held = bytes_in(&cache, keys());
        assert!(held <= 64 * 66_000 && held > 0, "{held}");
    }
}
