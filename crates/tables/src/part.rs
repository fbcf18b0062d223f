//! The inodes, names and sessions of guards and effects, and the locks of transactions.

use std::collections::{BTreeMap, BTreeSet};

use host::HashMap;
use meta::{Effect, Footprint, Guard, Inode, Part, QuotaKey, Txn};
use types::{Ino, Name, SessionId};

/// The name that must not exist for the guard to hold.
pub fn free(guard: &Guard) -> Option<(Ino, &Name)> {
    match guard {
        Guard::DirentAbsent { parent, name } => Some((*parent, name)),
        _ => None,
    }
}

/// The name that an effect puts.
pub fn named(effect: &Effect) -> Option<(Ino, &Name)> {
    match effect {
        Effect::PutDirent { parent, name, .. } => Some((*parent, name)),
        _ => None,
    }
}

/// Whether `txn` guards that each name that it puts does not exist yet.
pub fn puts_free_names(txn: &Txn) -> bool {
    let is_free = |name| txn.guards.iter().filter_map(free).any(|free| free == name);
    txn.effects.iter().filter_map(named).all(is_free)
}

/// The inode that an effect creates.
pub fn made(effect: &Effect) -> Option<Ino> {
    match effect {
        Effect::PutInode(inode) => Some(inode.ino),
        _ => None,
    }
}

/// The inode that an effect changes; for a dirent, its directory. An inode, its data and its dirents change
/// only under the lock on the inode's row.
pub fn holder(effect: &Effect) -> Option<Ino> {
    effect.footprint().part.inode()
}

/// The locks that transactions take before they read anything. Transactions without effects lock only
/// sessions.
#[derive(Debug, Default)]
pub struct LockSet {
    /// Sessions that the transactions read or change, and whether the lock on each is exclusive. It is
    /// exclusive if the session is removed, or if its heartbeat is checked: no renewal may happen between the
    /// check and the effects. Otherwise it is shared, because every commit of a mount checks the mount's
    /// session. An engine must itself ensure that the end of a term excludes commits in the term.
    pub sessions: BTreeMap<SessionId, bool>,
    /// Inodes of which the transactions read or change anything: the record, the data or the dirents.
    pub inos: BTreeSet<Ino>,
    /// Inodes that the transactions create. No other client knows these inodes yet.
    pub made: BTreeSet<Ino>,
    /// Quotas that the transactions read or change, in the order in which the quotas are locked.
    pub quotas: BTreeSet<QuotaKey>,
    /// Those of `quotas` that may not exist; a charge creates a missing quota. For each of the others, a
    /// guard names the outer quota, so the client had read the quota when it planned the transaction. If the
    /// quota is missing now, it was removed, and it cannot appear after the locks are taken, because the id
    /// of a removed quota is never used again. So every quota that a guard finds is locked.
    pub uncertain_quotas: BTreeSet<QuotaKey>,
    /// `None` if the transactions neither change ACLs nor make inodes refer to ACLs. Otherwise, whether the
    /// lock on all ACLs is exclusive. It is exclusive if an ACL is condemned or dropped, because no inode may
    /// begin to refer to that ACL at the same time.
    pub acls: Option<bool>,
    /// Whether the transactions read or change settings or counters, change the rule of a quota, or correct
    /// the usage.
    pub volume: bool,
}

impl LockSet {
    pub fn add(&mut self, txn: &Txn) {
        let guards = txn.guards.iter().filter_map(checked_session);
        for (session, is_exclusive) in guards.chain(txn.effects.iter().filter_map(changed_session)) {
            *self.sessions.entry(session).or_default() |= is_exclusive;
        }
        if txn.effects.is_empty() {
            return;
        }
        let guarded = txn.guards.iter().map(|guard| (guard.part(), false));
        let changed = txn.effects.iter().map(|effect| {
            (effect.footprint().part, matches!(effect, Effect::CondemnAcl { .. } | Effect::DropAcl { .. }))
        });
        for (_, is_exclusive) in guarded.chain(changed).filter(|(part, _)| matches!(part, Part::Acl(_))) {
            self.acls = self.acls.max(Some(is_exclusive));
        }
        for part in txn.guards.iter().map(Guard::part) {
            self.inos.extend(part.inode());
            self.volume |= matches!(part, Part::Setting(_) | Part::Counter(_));
            self.quotas.extend(quota_of(part));
        }
        for effect in &txn.effects {
            let Footprint { part, commutes, .. } = effect.footprint();
            self.volume |= matches!(part, Part::Setting(_) | Part::Counter(_) | Part::Usage);
            if let Some(key) = quota_of(part) {
                self.quotas.insert(key);
                self.volume |= !commutes;
                let is_there = |guard: &Guard| matches!(guard, Guard::Quota { key: guarded, outer: Some(_), .. } if *guarded == key);
                if !txn.guards.iter().any(is_there) {
                    self.uncertain_quotas.insert(key);
                }
            }
            match made(effect) {
                Some(ino) if !self.inos.contains(&ino) => drop(self.made.insert(ino)),
                _ => self.inos.extend(part.inode().filter(|ino| !self.made.contains(ino))),
            }
        }
    }
}

fn quota_of(part: Part<'_>) -> Option<QuotaKey> {
    if let Part::Quota(key) = part { Some(key) } else { None }
}

/// The session that a guard checks, and whether it is locked exclusively.
fn checked_session(guard: &Guard) -> Option<(SessionId, bool)> {
    let Part::Session(session) = guard.part() else { return None };
    Some((session, matches!(guard, Guard::Session { heartbeat: Some(_), .. })))
}

/// The session that an effect changes, and whether it is locked exclusively. A renewal takes a shared lock,
/// so that it and the commits of its client do not wait for each other.
fn changed_session(effect: &Effect) -> Option<(SessionId, bool)> {
    let Part::Session(session) = effect.footprint().part else { return None };
    Some((session, matches!(effect, Effect::DropSession { .. })))
}

/// Applies `txn` to these inodes; a dropped inode becomes `None`. Returns the inodes that `txn` changed, as
/// it left them.
pub fn follow(inodes: &mut HashMap<Ino, Option<Inode>>, txn: &Txn) -> Vec<Inode> {
    for effect in &txn.effects {
        match effect {
            Effect::PutInode(inode) => drop(inodes.insert(inode.ino, Some(*inode))),
            Effect::DropInode { ino } => drop(inodes.insert(*ino, None)),
            _ => {
                let inode = effect.changed_inode().and_then(|ino| inodes.get_mut(&ino)?.as_mut());
                inode.map(|inode| effect.apply_to(inode));
            }
        }
    }
    txn.changed_inodes().iter().filter_map(|ino| inodes.get(ino).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use meta::Counter;
    use types::{OpId, QuotaId, Time};

    use super::*;

    #[test]
    fn a_session_is_locked_exclusively_if_any_transaction_needs_that() {
        let (one, other) = (SessionId(1), SessionId(u64::MAX));
        let guard = |session, heartbeat| Guard::Session { session, heartbeat };
        let add = |locks: &mut LockSet, guards, effects| locks.add(&Txn { op_id: OpId(1), guards, effects });
        let mut locks = LockSet::default();
        let counted = Effect::SetCounter { counter: Counter::Ino, value: 1 };
        add(&mut locks, vec![guard(one, None), guard(other, None)], vec![counted]);
        assert_eq!(locks.sessions, [(one, false), (other, false)].into());
        add(&mut locks, vec![guard(one, Some(Time::from_nanos(1)))], Vec::new());
        add(&mut locks, vec![guard(one, None)], vec![Effect::DropSession { session: other }]);
        assert_eq!(locks.sessions, [(one, true), (other, true)].into());
    }

    #[test]
    fn only_a_guarded_quota_is_known_to_exist() {
        let keys = [QuotaKey::User(1), QuotaKey::Directory(QuotaId(9)), QuotaKey::Directory(QuotaId(2))];
        let charge = |key| Effect::Charge { key, inodes: 1, blocks: 0 };
        let guard = |key, outer| Guard::Quota { key, outer, inodes: 1, blocks: 0 };
        let guards = vec![guard(keys[0], None), guard(keys[2], Some(QuotaId(0)))];
        let mut txn = Txn { op_id: OpId(1), guards, effects: keys.map(charge).into() };
        let mut locks = LockSet::default();
        locks.add(&txn);
        assert_eq!(Vec::from_iter(locks.quotas), [keys[2], keys[1], keys[0]]);
        assert_eq!((locks.uncertain_quotas, locks.volume), ([keys[0], keys[1]].into(), false));
        // A transaction that puts or drops a quota locks the volume.
        txn.effects = vec![Effect::DropQuota { key: keys[1] }];
        locks = LockSet::default();
        locks.add(&txn);
        assert!(locks.volume);
    }

    #[test]
    fn a_transaction_without_effects_locks_only_its_session() {
        let guards = vec![
            Guard::Session { session: SessionId(1), heartbeat: None },
            Guard::Access { ino: Ino(7), rev: 0 },
            Guard::Counter { counter: Counter::Ino, value: 1 },
        ];
        let mut locks = LockSet::default();
        let mut txn = Txn { op_id: OpId(1), guards, effects: Vec::new() };
        locks.add(&txn);
        assert_eq!((locks.sessions.len(), locks.inos.len(), locks.volume), (1, 0, false));
        txn.effects.push(Effect::DropInode { ino: Ino(8) });
        locks.add(&txn);
        assert_eq!((locks.sessions.len(), locks.inos.len(), locks.volume), (1, 2, true));
    }
}
