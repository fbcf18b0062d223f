//! An ACL prepared for deciding fast: what it says to those whom it does not name is worked out beforehand, and of those
//! whom it names, entries that can decide nothing are dropped.

use std::collections::HashMap;

use types::AclId;

use crate::credential::Credential;
use crate::keys::{Key, Keys};

use super::{Decision, Mask, Nfs4Acl, Who};

/// An ACL with all that a decision needs; made once and shared.
#[derive(Clone, Debug)]
pub struct Compiled {
    id: AclId,
    acl: Nfs4Acl,
    /// Whom entries name.
    named: Keys,
    /// The entries of each of them, in the same order.
    rules: Box<[Box<[Rule]>]>,
    /// The entries for owner, group and everyone.
    special: Box<[(Who, Rule)]>,
    /// The decision for a caller whom no entry names: a stranger, in the owning group, the owner, both.
    unnamed: [Decision; 4],
}

/// What is left of an entry: where it stood, and the permissions that nothing before it decides for the same principal.
#[derive(Clone, Copy, Debug)]
struct Rule {
    at: usize,
    mask: Mask,
    allow: bool,
}

impl Compiled {
    pub fn new(acl: Nfs4Acl) -> Self {
        let mut spoken: HashMap<Who, Mask> = HashMap::new();
        let mut named: HashMap<Key, Vec<Rule>> = HashMap::new();
        let mut special = Vec::new();
        for (at, entry) in acl.entries().iter().enumerate().filter(|(_, entry)| entry.is_effective()) {
            let of_everyone = spoken.get(&Who::Everyone).copied().unwrap_or_default();
            // A SID is the same principal as user and as group.
            let (who, key) = match entry.who {
                Who::User(id) | Who::NamedGroup(id) => {
                    let is_group = matches!(entry.who, Who::NamedGroup(_)) && id.to_system().is_some();
                    let who = if is_group { Who::NamedGroup(id) } else { Who::User(id) };
                    (who, Some(Key::named(id, is_group)))
                }
                special => (special, None),
            };
            let spoken = spoken.entry(who).or_default();
            let mask = entry.mask.without(*spoken | of_everyone);
            *spoken |= entry.mask;
            let rule = Rule { at, mask, allow: entry.is_allow() };
            match key {
                _ if mask.is_none() => {}
                Some(key) => named.entry(key).or_default().push(rule),
                None => special.push((who, rule)),
            }
        }
        let keys = Keys::new(named.keys().copied().collect());
        let mut rules = vec![Box::default(); keys.len()].into_boxed_slice();
        for (key, of_key) in named {
            if let Some(slot) = keys.position(key).and_then(|at| rules.get_mut(at)) {
                *slot = of_key.into();
            }
        }
        let unnamed = [(false, false), (false, true), (true, false), (true, true)].map(|(owner, group)| {
            let rules = special.iter().filter(|(who, _)| is_meant(*who, owner, group));
            rules.fold(Decision::default(), |decision, (_, rule)| rule.apply(decision)).for_owner(owner)
        });
        Compiled { id: acl.id(), acl, named: keys, rules, special: special.into(), unnamed }
    }

    pub fn id(&self) -> AclId {
        self.id
    }

    pub fn acl(&self) -> &Nfs4Acl {
        &self.acl
    }

    /// As [`Nfs4Acl::decide`], for one who is known.
    pub fn decide(&self, caller: &Credential, is_owner: bool, in_owning_group: bool) -> Decision {
        let mut rules: Vec<Rule> = self
            .named
            .common(caller.keys())
            .filter_map(|(at, _)| self.rules.get(at))
            .flatten()
            .copied()
            .collect();
        if rules.is_empty() {
            let [neither, group, owner, both] = self.unnamed;
            return match (is_owner, in_owning_group) {
                (false, false) => neither,
                (false, true) => group,
                (true, false) => owner,
                (true, true) => both,
            };
        }
        let special = self.special.iter().filter(|(who, _)| is_meant(*who, is_owner, in_owning_group));
        rules.extend(special.map(|(_, rule)| rule));
        rules.sort_unstable_by_key(|rule| rule.at);
        rules.iter().fold(Decision::default(), |decision, rule| rule.apply(decision)).for_owner(is_owner)
    }
}

impl Rule {
    fn apply(&self, decision: Decision) -> Decision {
        decision.then_mask(self.mask, self.allow)
    }
}

fn is_meant(who: Who, is_owner: bool, in_owning_group: bool) -> bool {
    match who {
        Who::Owner => is_owner,
        Who::Group => in_owning_group,
        _ => true,
    }
}
