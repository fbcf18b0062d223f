//! Callers, each identified by one number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use types::{Caps, Cred};

use crate::identity::Id;
use crate::keys::Keys;

/// Identifies the content of a credential, which excludes the capabilities. A process never reuses a number,
/// so what is cached under a number stays valid: if the user joins a group, its next credential has another
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredId(pub(crate) u64);

/// A caller with everything that decisions need, computed once.
#[derive(Debug)]
pub struct Credential {
    id: CredId,
    cred: Cred,
    sids: Box<[Id]>,
    keys: Keys,
}

impl Credential {
    pub fn id(&self) -> CredId {
        self.id
    }

    /// The result has no capabilities, because they are not part of the content. Use those of the current
    /// request.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// The caller's SIDs of Windows domains, sorted.
    pub fn sids(&self) -> &[Id] {
        &self.sids
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }
}

/// A cache of recent credentials, bounded in number and in size; safe to share between threads.
///
/// It has two generations. When the younger one reaches half of the bound, it becomes the older one, and the
/// previous older one is dropped. A lookup moves a credential to the younger generation. If a dropped
/// credential is looked up again, it gets a new number, so its cached decisions are lost, and nothing else.
#[derive(Debug)]
pub struct Credentials {
    generations: RwLock<Generations>,
    max_cost: usize,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Content, Arc<Credential>>,
    old: HashMap<Content, Arc<Credential>>,
    young_cost: usize,
}

/// Shared by all [`Credentials`] of this process, because a cache of decisions does not know which of them a
/// number comes from.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// The content of a credential. Two credentials with the same content are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Content {
    /// Without capabilities.
    cred: Cred,
    sids: Box<[Id]>,
}

impl Content {
    /// The cost in memory, in units of one group. A credential without groups counts as 32, which is an
    /// estimate.
    fn cost(&self) -> usize {
        32 + self.cred.groups().len() + self.sids.len()
    }
}

impl Credentials {
    /// A cache with room for `max_groups` groups in all credentials together; a credential without groups
    /// counts as 32. Each group takes about 16 bytes.
    pub fn new(max_groups: usize) -> Self {
        Credentials { generations: RwLock::default(), max_cost: max_groups }
    }

    /// The credential with this content. `sids` are SIDs of Windows domains, in any order, with or without
    /// repetitions.
    ///
    /// This hashes the whole list of groups, so keep the result for as long as the list is known to be
    /// unchanged, and do not call this for each decision.
    pub fn intern(&self, cred: &Cred, sids: &[Id]) -> Arc<Credential> {
        let mut sids = sids.to_vec();
        sids.sort_unstable();
        sids.dedup();
        let mut cred = cred.clone();
        cred.caps = Caps::NONE;
        let content = Content { cred, sids: sids.into() };
        // No code panics while it holds the lock, and the maps would be consistent even then.
        let known = self.generations.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(credential) = known.young.get(&content) {
            return credential.clone();
        }
        drop(known);
        let mut generations = self.generations.write().unwrap_or_else(PoisonError::into_inner);
        generations.promote_or_create(content, self.max_cost)
    }
}

impl Generations {
    fn promote_or_create(&mut self, content: Content, max_cost: usize) -> Arc<Credential> {
        if let Some(credential) = self.young.get(&content) {
            return credential.clone();
        }
        let cost = content.cost();
        let credential = self.old.remove(&content).unwrap_or_else(|| {
            Arc::new(Credential {
                id: CredId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1),
                cred: content.cred.clone(),
                sids: content.sids.clone(),
                keys: Keys::of(&content.cred, &content.sids),
            })
        });
        if self.young_cost + cost > max_cost / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_cost = 0;
        }
        self.young_cost += cost;
        self.young.insert(content, credential.clone());
        credential
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cred(uid: u32, groups: &[u32]) -> Cred {
        Cred::new(uid, 100, groups, Caps::NONE)
    }

    #[test]
    fn equal_contents_have_one_number() {
        let credentials = Credentials::new(100_000);
        let others = Credentials::new(100_000);
        assert_ne!(credentials.intern(&cred(1, &[]), &[]).id(), others.intern(&cred(2, &[]), &[]).id());
        let sids: Vec<Id> = ["1-7", "1-5"].iter().map(|id| id.parse().unwrap()).collect();
        let first = credentials.intern(&cred(1, &[5, 6]), &sids);
        let again =
            credentials.intern(&Cred::new(1, 100, &[6, 5, 6], Caps::ALL), &[sids[1], sids[0], sids[1]]);
        assert_eq!(first.id(), again.id());
        for other in [
            credentials.intern(&cred(1, &[5]), &sids),
            credentials.intern(&cred(2, &[5, 6]), &sids),
            credentials.intern(&cred(1, &[5, 6]), &sids[..1]),
            credentials.intern(&Cred::new(1, 101, &[5, 6], Caps::NONE), &sids),
        ] {
            assert_ne!(first.id(), other.id());
        }
    }

    #[test]
    fn memory_is_bounded_and_numbers_are_never_reused() {
        let credentials = Credentials::new(32 * 20);
        let mut ids = std::collections::HashSet::new();
        let regular = credentials.intern(&cred(0, &[]), &[]).id();
        for uid in 1..1000 {
            assert!(ids.insert(credentials.intern(&cred(uid, &[]), &[]).id()));
            assert_eq!(credentials.intern(&cred(0, &[]), &[]).id(), regular, "a credential in use stays");
            let generations = credentials.generations.read().unwrap();
            assert!(generations.young.len() <= 10 && generations.old.len() <= 10);
        }
        assert!(ids.insert(credentials.intern(&cred(1, &[]), &[]).id()), "the first one was dropped");
        // A credential larger than the whole bound works too.
        let groups: Vec<u32> = (0..65_536).collect();
        assert!(ids.insert(credentials.intern(&cred(5000, &groups), &[]).id()));
    }
}
