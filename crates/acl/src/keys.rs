//! Sets of principals with a fast intersection: those that an ACL names, and those that stand for a caller.

use std::ops::Range;

use types::Cred;

use crate::identity::Id;

/// A principal as one number, so that users, groups and SIDs fit in one sorted list: the domain's index in
/// the high half, the number within it in the low half, and the highest bit set for groups of the system. A
/// SID has the same key as a user and as a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(u64);

impl Key {
    const GROUP: u64 = 1 << 63;

    pub(crate) fn user(uid: u32) -> Self {
        Key(u64::from(uid))
    }

    pub(crate) fn group(gid: u32) -> Self {
        Key(Self::GROUP | u64::from(gid))
    }

    /// The key of the principal that an entry names.
    pub(crate) fn named(id: Id, is_group: bool) -> Self {
        match id.to_system() {
            Some(gid) if is_group => Key::group(gid),
            Some(uid) => Key::user(uid),
            None => Key(u64::from(id.domain().get()) << 32 | u64::from(id.rid())),
        }
    }

    pub(crate) fn is_group(self) -> bool {
        self.0 & Self::GROUP != 0
    }

    fn hash(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

/// A sorted set of keys with a Bloom filter in front of it.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    sorted: Box<[Key]>,
    /// The index of the first group in `sorted`.
    groups_from: usize,
    filter: Box<[u64]>,
}

impl Keys {
    /// Builds a set from keys in any order, with or without repetitions.
    pub(crate) fn new(mut keys: Vec<Key>) -> Self {
        keys.sort_unstable();
        keys.dedup();
        let mut filter = vec![0; filter_words(keys.len())].into_boxed_slice();
        for key in &keys {
            let (word, bits) = place(*key, filter.len());
            if let Some(word) = filter.get_mut(word) {
                *word |= bits;
            }
        }
        Keys { groups_from: keys.partition_point(|key| !key.is_group()), sorted: keys.into(), filter }
    }

    /// All principals that stand for the caller: its user, its groups and its SIDs.
    pub(crate) fn of(cred: &Cred, sids: &[Id]) -> Self {
        let groups = cred.groups().iter().chain([&cred.gid]).map(|gid| Key::group(*gid));
        let sids = sids.iter().map(|id| Key::named(*id, false));
        Keys::new(groups.chain(sids).chain([Key::user(cred.uid)]).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Heap memory in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.sorted) + size_of_val(&*self.filter)
    }

    pub(crate) fn position(&self, key: Key) -> Option<usize> {
        self.sorted.binary_search(&key).ok()
    }

    /// If false, the key is not in the set. If true, it probably is.
    fn may_contain(&self, key: Key) -> bool {
        let (word, bits) = place(key, self.filter.len());
        self.filter.get(word).is_some_and(|word| word & bits == bits)
    }

    /// The keys that are in both sets, with their positions in this one, in order.
    ///
    /// Groups are intersected separately from users and SIDs, each only in the range where both sets have
    /// keys, because the keys of one kind are often far from those of the other. In that range, the shorter
    /// list is walked. The filter of the longer list rejects most keys of the shorter one. For each key that
    /// passes, a galloping search in the longer list, whose step doubles, starts at the last position. So the
    /// walk is never longer than the shorter list, however long the other is.
    ///
    /// The alternative is to merge both lists. If their numbers interleave, each step of a merge costs a
    /// mispredicted branch, which the filter avoids. docs/benchmarks.md has the times of decisions by the
    /// compiled ACL, which uses the filter, and of decisions from the entries, which do not.
    pub(crate) fn common<'a>(&'a self, other: &'a Keys) -> impl Iterator<Item = (usize, Key)> + 'a {
        let users = self.common_of(0..self.groups_from, other, 0..other.groups_from);
        let groups = self.common_of(self.groups_from..self.len(), other, other.groups_from..other.len());
        users.chain(groups)
    }

    fn common_of<'a>(
        &'a self,
        mine: Range<usize>,
        other: &'a Keys,
        theirs: Range<usize>,
    ) -> impl Iterator<Item = (usize, Key)> + 'a {
        let (mine, theirs) = (self.overlap(&mine, other, &theirs), other.overlap(&theirs, self, &mine));
        let is_mine_short = mine.len() <= theirs.len();
        let ((short, walked), (long, mut searched)) =
            if is_mine_short { ((self, mine), (other, theirs)) } else { ((other, theirs), (self, mine)) };
        let keys = walked.clone().zip(short.sorted.get(walked).unwrap_or_default());
        let hits = keys.filter(|(_, key)| long.may_contain(**key));
        hits.filter_map(move |(at, key)| {
            searched.start = galloping_search(&long.sorted, searched.clone(), *key);
            let is_in_both = long.sorted.get(searched.start) == Some(key);
            is_in_both.then_some((if is_mine_short { at } else { searched.start }, *key))
        })
    }

    /// The part of `stretch` between the first and the last key of the other set's stretch.
    fn overlap(&self, stretch: &Range<usize>, other: &Keys, theirs: &Range<usize>) -> Range<usize> {
        let theirs = other.sorted.get(theirs.clone()).unwrap_or_default();
        let (Some(first), Some(last)) = (theirs.first(), theirs.last()) else { return 0..0 };
        let mine = self.sorted.get(stretch.clone()).unwrap_or_default();
        let from = mine.partition_point(|key| key < first);
        let to = mine.partition_point(|key| key <= last);
        stretch.start + from..stretch.start + to.max(from)
    }
}

/// The number of 64-bit words of a filter. A key has at least 9 bits, and for most numbers of keys 16 to 32.
/// With 16 bits for each key, of which two are set, about 1 in 60 absent keys passes the filter.
fn filter_words(keys: usize) -> usize {
    if keys == 0 { 0 } else { (keys / 4).next_power_of_two().max(1) }
}

/// The index of the key's word in a filter of `words` words, and its two bits in that word.
fn place(key: Key, words: usize) -> (usize, u64) {
    let hash = key.hash();
    let word = (hash >> 12) as usize & words.wrapping_sub(1);
    (word, 1 << (hash & 63) | 1 << (hash >> 6 & 63))
}

/// The first position in the stretch whose key is not less than `key`, by galloping search; the end of the
/// stretch if there is none.
fn galloping_search(sorted: &[Key], stretch: Range<usize>, key: Key) -> usize {
    let stretch = stretch.start..stretch.end.min(sorted.len());
    let (mut low, mut high, mut step) = (stretch.start, stretch.start, 1);
    while high < stretch.end && sorted.get(high).is_some_and(|found| *found < key) {
        low = high + 1;
        high += step;
        step *= 2;
    }
    let reach = sorted.get(low..high.min(stretch.end)).unwrap_or_default();
    low + reach.partition_point(|found| *found < key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(ids: &[u32]) -> Keys {
        Keys::new(ids.iter().map(|id| Key::user(*id)).collect())
    }

    /// Even numbers are users, odd ones groups.
    fn mixed(ids: &[u32]) -> Keys {
        Keys::new(ids.iter().map(|id| if id % 2 == 0 { Key::user(*id) } else { Key::group(*id) }).collect())
    }

    #[test]
    fn intersection_works_for_sets_of_any_length() {
        let lists: [Vec<u32>; 7] = [
            vec![],
            vec![500],
            (0..1000).rev().collect(),
            (0..1000).step_by(7).collect(),
            (0..1000).step_by(2).collect(),
            vec![0, 1, 2, 998, 999, 1000],
            vec![u32::MAX - 1],
        ];
        for left in &lists {
            for right in &lists {
                let mut expected: Vec<u32> = left.iter().copied().filter(|id| right.contains(id)).collect();
                for kinds in [users, mixed] {
                    expected.sort_unstable_by_key(|id| kinds(&[*id]).sorted[0]);
                    let (left, right) = (kinds(left), kinds(right));
                    let found: Vec<(usize, Key)> = left.common(&right).collect();
                    assert_eq!(found.iter().map(|(_, key)| key.0 as u32).collect::<Vec<_>>(), expected);
                    assert!(found.iter().all(|(at, key)| left.position(*key) == Some(*at)));
                }
            }
        }
    }

    #[test]
    fn users_groups_and_sids_of_one_number_have_different_keys() {
        let id: Id = "1-7".parse().unwrap();
        assert_eq!(Key::named(id, true), Key::named(id, false));
        let kinds = [Key::user(7), Key::group(7), Key::named(id, true)];
        assert_eq!(Keys::new(kinds.to_vec()).len(), 3);
        assert_eq!(kinds.map(Key::is_group), [false, true, false]);
    }

    #[test]
    fn filters_reject_most_absent_keys() {
        for count in [1, 3, 4, 400, 500, 4000] {
            let keys = users(&(0..count).map(|id| id * 3).collect::<Vec<_>>());
            assert!((0..count).all(|id| keys.may_contain(Key::user(id * 3))));
            let strangers = (0..10_000).filter(|id| keys.may_contain(Key::user(1_000_000 + id))).count();
            assert!(strangers < 500, "{strangers} of 10000 absent keys pass a filter of {count}");
        }
    }
}
