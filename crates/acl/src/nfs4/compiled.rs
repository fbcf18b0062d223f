//! An ACL prepared for fast decisions. The decision for callers that no entry names is computed in advance.
//! For named principals, entries that cannot decide anything are dropped.

use std::collections::HashMap;

use types::AclId;

use crate::credential::Credential;
use crate::keys::{Key, Keys};

use super::{Decision, Mask, Nfs4Acl, Who};

/// An ACL with everything that a decision needs; compiled once and shared.
#[derive(Clone, Debug)]
pub struct Compiled {
    id: AclId,
    acl: Nfs4Acl,
    /// As [`Nfs4Acl::highest_domain`].
    highest_domain: u32,
    /// The principals that entries name.
    named: Keys,
    /// The rules of each named principal, in the order of `named`.
    rules: Box<[Box<[Rule]>]>,
    /// The rules of `OWNER@`, `GROUP@` and `EVERYONE@`.
    special: Box<[(Who, Rule)]>,
    /// The decisions for callers that no entry names: neither owner nor in the owning group, only in the
    /// group, only owner, both.
    unnamed: [Decision; 4],
    /// For each permission, the first rule that denies it to a group or to a SID.
    denied_to_some: Box<[Rule]>,
    /// The results of [`Compiled::certain`] for callers that no entry names, in the order of `unnamed`.
    certain: [Decision; 4],
}

/// The relevant part of an entry: its position, and those of its permissions that no earlier entry decides
/// for the same principal or for everyone.
#[derive(Clone, Copy, Debug)]
struct Rule {
    at: usize,
    mask: Mask,
    allow: bool,
}

impl Compiled {
    pub fn new(acl: Nfs4Acl) -> Self {
        let mut decided: HashMap<Who, Mask> = HashMap::new();
        let mut named: HashMap<Key, Vec<Rule>> = HashMap::new();
        let mut special = Vec::new();
        let mut denied_to_some: Vec<Rule> = Vec::new();
        let mut denied = Mask::NONE;
        for (at, entry) in acl.entries().iter().enumerate().filter(|(_, entry)| entry.is_effective()) {
            let of_everyone = decided.get(&Who::Everyone).copied().unwrap_or_default();
            // A SID is the same principal with or without the group flag.
            let (who, key) = match entry.who {
                Who::User(id) | Who::NamedGroup(id) => {
                    let is_group = matches!(entry.who, Who::NamedGroup(_)) && id.to_system().is_some();
                    let who = if is_group { Who::NamedGroup(id) } else { Who::User(id) };
                    (who, Some(Key::named(id, is_group)))
                }
                special => (special, None),
            };
            let decided = decided.entry(who).or_default();
            let mask = entry.mask.without(*decided | of_everyone);
            *decided |= entry.mask;
            let rule = Rule { at, mask, allow: entry.is_allow() };
            let is_for_some = match entry.who {
                Who::Group | Who::NamedGroup(_) => true,
                Who::User(id) => id.to_system().is_none(),
                Who::Owner | Who::Everyone => false,
            };
            if is_for_some && !rule.allow && !mask.without(denied).is_none() {
                denied_to_some.push(Rule { mask: mask.without(denied), ..rule });
                denied |= mask;
            }
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
        let each = [(false, false), (false, true), (true, false), (true, true)];
        let unnamed = each.map(|(owner, group)| {
            let rules = special.iter().filter(|(who, _)| applies_to(*who, owner, group));
            rules.fold(Decision::default(), |decision, (_, rule)| rule.apply(decision)).for_owner(owner)
        });
        let mut compiled = Compiled {
            id: acl.id(),
            highest_domain: acl.highest_domain(),
            acl,
            named: keys,
            rules,
            special: special.into(),
            unnamed,
            denied_to_some: denied_to_some.into(),
            certain: [Decision::default(); 4],
        };
        compiled.certain =
            each.map(|(owner, group)| compiled.decided(Vec::new(), &compiled.denied_to_some, owner, group));
        compiled
    }

    pub fn id(&self) -> AclId {
        self.id
    }

    pub fn acl(&self) -> &Nfs4Acl {
        &self.acl
    }

    /// Whether an entry names a SID, which the volume's rules may map.
    pub fn names_sids(&self) -> bool {
        self.highest_domain > 0
    }

    /// Like [`Nfs4Acl::decide`], for a caller with a known credential.
    pub fn decide(&self, caller: &Credential, is_owner: bool, in_owning_group: bool) -> Decision {
        let rules: Vec<Rule> = self
            .named
            .common(caller.keys())
            .filter_map(|(at, _)| self.rules.get(at))
            .flatten()
            .copied()
            .collect();
        if rules.is_empty() {
            return one_of(self.unnamed, is_owner, in_owning_group);
        }
        self.decided(rules, &[], is_owner, in_owning_group)
    }

    /// The decision for a caller whose supplementary groups and SIDs are unknown. Whatever they are, the
    /// permissions in `granted` are granted, and a permission outside `denied` is not denied.
    ///
    /// It is the decision in the worst case: deny entries for unknown groups and SIDs apply, and allow
    /// entries for them do not.
    pub fn certain(&self, uid: u32, gid: u32, is_owner: bool, in_owning_group: bool) -> Decision {
        let named = [Key::user(uid), Key::group(gid)].into_iter().filter_map(|key| self.named.position(key));
        let rules: Vec<Rule> = named.filter_map(|at| self.rules.get(at)).flatten().copied().collect();
        if rules.is_empty() {
            return one_of(self.certain, is_owner, in_owning_group);
        }
        self.decided(rules, &self.denied_to_some, is_owner, in_owning_group)
    }

    /// The decision of `rules`, the rules of the special principals and `more`, in the order of the entries.
    fn decided(
        &self,
        mut rules: Vec<Rule>,
        more: &[Rule],
        is_owner: bool,
        in_owning_group: bool,
    ) -> Decision {
        let special = self.special.iter().filter(|(who, _)| applies_to(*who, is_owner, in_owning_group));
        rules.extend(special.map(|(_, rule)| rule));
        rules.extend(more);
        rules.sort_unstable_by_key(|rule| rule.at);
        rules.iter().fold(Decision::default(), |decision, rule| rule.apply(decision)).for_owner(is_owner)
    }

    /// Heap memory in bytes, including that of the ACL.
    pub fn heap_bytes(&self) -> usize {
        let rules = self.rules.iter().map(|rules| size_of_val(&**rules)).sum::<usize>();
        size_of_val(self.acl.entries())
            + self.named.heap_bytes()
            + size_of_val(&*self.rules)
            + rules
            + size_of_val(&*self.special)
            + size_of_val(&*self.denied_to_some)
    }
}

fn one_of(decisions: [Decision; 4], is_owner: bool, in_owning_group: bool) -> Decision {
    let [neither, group, owner, both] = decisions;
    match (is_owner, in_owning_group) {
        (false, false) => neither,
        (false, true) => group,
        (true, false) => owner,
        (true, true) => both,
    }
}

impl Rule {
    fn apply(&self, decision: Decision) -> Decision {
        decision.then_mask(self.mask, self.allow)
    }
}

/// Whether entries for `who` apply to a caller, if `who` is special.
pub(super) fn applies_to(who: Who, is_owner: bool, in_owning_group: bool) -> bool {
    match who {
        Who::Owner => is_owner,
        Who::Group => in_owning_group,
        _ => true,
    }
}
