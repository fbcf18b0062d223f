//! Rules that map the SIDs of a domain to uids and gids, as Samba's idmap_rid(8) and idmap_autorid(8) do.
//!
//! A rule maps a range of a domain's RIDs to a range of numbers: `id = rid - first_rid + first_id`. A SID is
//! a user or a group, never both, and a rule does not know which. So the number is both a uid and a gid, and
//! an entry for the SID applies to the user and to the group with that number. Only one of the two exists if
//! no other user or group has a number in the range, which Samba requires too.
//!
//! Stored ACLs keep the SIDs. [`Nfs4Acl::mapped`](crate::nfs4::Nfs4Acl::mapped) replaces the mapped SIDs,
//! once for each ACL and version of the rules. Callers are compared by uid and gid only, so mapped SIDs do
//! not slow down access checks.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::identity::{Domain, DomainIndex, Id, ParseIdError};

/// A range of a domain's RIDs, and the uids and gids that they are mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidRule {
    /// The index in the volume's table of domains; never [`DomainIndex::SYSTEM`].
    pub domain: DomainIndex,
    /// The RID that is mapped to the first number.
    pub first_rid: u32,
    pub ids: IdRange,
}

/// A range of uids and gids, without 0 and `u32::MAX` (-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdRange {
    first: u32,
    last: u32,
}

/// The rules of a volume; cheap to clone. No two rules map the same SID, or map to the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SidRules {
    /// Sorted.
    rules: Arc<[SidRule]>,
    version: u64,
}

/// Why a rule cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SidRuleError {
    #[error("SIDs of this domain cannot be mapped: {0}")]
    Domain(&'static str),
    #[error("the rule needs RIDs above {}, the highest RID", u32::MAX)]
    Rids,
    #[error("RIDs from {first_rid} on are already mapped to {ids}")]
    RidsOverlap { first_rid: u32, ids: IdRange },
    #[error("the range overlaps with {0}, which belongs to another rule")]
    IdsOverlap(IdRange),
    #[error("there are already {} rules, the maximum", SidRules::MAX)]
    TooMany,
}

impl IdRange {
    /// None if `first` is above `last`, or if the range contains -1 or 0: no SID is mapped to root.
    pub fn new(first: u32, last: u32) -> Option<Self> {
        (first > 0 && first <= last && last != u32::MAX).then_some(IdRange { first, last })
    }

    pub fn first(self) -> u32 {
        self.first
    }

    pub fn last(self) -> u32 {
        self.last
    }

    fn overlaps(self, other: IdRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// `LOW-HIGH`, as in smb.conf(5).
impl FromStr for IdRange {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let number = |text: &str| {
            let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_decimal).ok_or(ParseIdError)
        };
        let (first, last) = text.split_once('-').ok_or(ParseIdError)?;
        IdRange::new(number(first)?, number(last)?).ok_or(ParseIdError)
    }
}

impl SidRule {
    /// The highest RID of the rule.
    ///
    /// # Errors
    /// [`SidRuleError::Rids`] if it does not fit in 32 bits.
    pub fn last_rid(&self) -> Result<u32, SidRuleError> {
        self.first_rid.checked_add(self.ids.last - self.ids.first).ok_or(SidRuleError::Rids)
    }

    /// The number of this RID; None if the rule does not map it.
    fn id_of(&self, rid: u32) -> Option<u32> {
        let id = self.ids.first.checked_add(rid.checked_sub(self.first_rid)?)?;
        (id <= self.ids.last).then_some(id)
    }
}

/// Checks that rules may map SIDs of this domain.
///
/// # Errors
/// [`SidRuleError::Domain`] for Samba's domains of Unix users and groups, whose SIDs are stored as uids and
/// gids, and for domains without members.
pub fn check_domain(domain: &Domain) -> Result<(), SidRuleError> {
    let text = domain.as_str();
    let is_in =
        |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if is_in("S-1-22") {
        Err(SidRuleError::Domain("S-1-22 is Samba's for Unix users and groups, which need no rule"))
    } else if is_in("S-1-0") {
        Err(SidRuleError::Domain("the null authority S-1-0 has no members"))
    } else if is_in("S-1-1") || is_in("S-1-3") {
        Err(SidRuleError::Domain(
            "S-1-1 and S-1-3 are everyone and owners, for which ACLs have EVERYONE@ and OWNER@",
        ))
    } else if is_in("S-1-5-21") && text.split('-').count() != 7 {
        Err(SidRuleError::Domain("a SID with S-1-5-21 and three more numbers is expected, without a RID"))
    } else {
        Ok(())
    }
}

impl SidRules {
    /// The maximum number of rules. It bounds the setting that they are stored in.
    pub const MAX: usize = 1_000;

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Sorted by domain and RID.
    pub fn rules(&self) -> &[SidRule] {
        &self.rules
    }

    /// A hash of all rules; 0 if there is no rule. Keys of caches contain it, so that a cache never returns a
    /// result of other rules.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn from_sorted(rules: Vec<SidRule>) -> Self {
        let mut rules = SidRules { rules: rules.into(), version: 0 };
        if !rules.is_empty() {
            let hash = blake3::hash(rules.to_storage().as_bytes());
            let (first, _) = hash.as_bytes().split_at(8);
            let version = first.iter().fold(0, |version, byte| version << 8 | u64::from(*byte));
            rules.version = version.max(1);
        }
        rules
    }

    /// These rules and one more; the same rules if they contain `rule` already.
    ///
    /// # Errors
    /// Those of [`SidRuleError`] except [`SidRuleError::Domain`].
    pub fn with(&self, rule: SidRule) -> Result<Self, SidRuleError> {
        if self.rules.contains(&rule) {
            return Ok(self.clone());
        }
        let last_rid = rule.last_rid()?;
        for other in &*self.rules {
            let is_apart = last_rid < other.first_rid || other.last_rid()? < rule.first_rid;
            if other.domain == rule.domain && !is_apart {
                return Err(SidRuleError::RidsOverlap { first_rid: other.first_rid, ids: other.ids });
            }
            if other.ids.overlaps(rule.ids) {
                return Err(SidRuleError::IdsOverlap(other.ids));
            }
        }
        if self.rules.len() >= Self::MAX {
            return Err(SidRuleError::TooMany);
        }
        let mut rules = self.rules.to_vec();
        rules.insert(rules.partition_point(|other| *other < rule), rule);
        Ok(Self::from_sorted(rules))
    }

    /// These rules without the rules of a domain; if `first_rid` is given, without only the rule of the
    /// domain that begins at this RID. None if there is no such rule.
    pub fn without(&self, domain: DomainIndex, first_rid: Option<u32>) -> Option<Self> {
        let is_meant = |rule: &SidRule| {
            rule.domain == domain && first_rid.is_none_or(|first_rid| rule.first_rid == first_rid)
        };
        let rules: Vec<SidRule> = self.rules.iter().filter(|rule| !is_meant(rule)).copied().collect();
        (rules.len() < self.rules.len()).then(|| Self::from_sorted(rules))
    }

    /// The same rules for a table in which the domains have other indexes. Rules of domains that `index` does
    /// not know are left out, because no ACL of that table names them.
    #[must_use]
    pub fn renumbered(&self, index: impl Fn(DomainIndex) -> Option<DomainIndex>) -> Self {
        let rules =
            self.rules.iter().filter_map(|rule| Some(SidRule { domain: index(rule.domain)?, ..*rule }));
        let rules: BTreeSet<SidRule> = rules.collect();
        Self::from_sorted(rules.into_iter().collect())
    }

    /// The number that the rules map `sid` to. None if no rule maps it, or if `sid` is itself a uid or gid.
    pub fn id_of(&self, sid: Id) -> Option<u32> {
        let after =
            self.rules.partition_point(|rule| (rule.domain, rule.first_rid) <= (sid.domain(), sid.rid()));
        let rule = self.rules.get(after.checked_sub(1)?)?;
        if rule.domain == sid.domain() { rule.id_of(sid.rid()) } else { None }
    }

    /// The identity that is mapped to this uid and gid; None if there is none.
    pub fn sid_of(&self, id: u32) -> Option<Id> {
        let rule = self.rules.iter().find(|rule| (rule.ids.first..=rule.ids.last).contains(&id))?;
        Id::new(rule.domain, rule.first_rid.checked_add(id - rule.ids.first)?)
    }

    /// The stored form: for each rule `domain:first_rid:first-last`, separated by single spaces.
    pub fn to_storage(&self) -> String {
        let text = |rule: &SidRule| format!("{}:{}:{}", rule.domain.get(), rule.first_rid, rule.ids);
        self.rules.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    /// Parses the output of [`Self::to_storage`]; None for any other text, and for rules that contradict each
    /// other.
    pub fn from_storage(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(SidRules::default());
        }
        if text.split(' ').count() > Self::MAX {
            return None;
        }
        let rules = text.split(' ').map(parse).collect::<Option<Vec<SidRule>>>()?;
        let by_rid = rules.is_sorted_by(|a, b| {
            a.domain < b.domain || a.domain == b.domain && a.last_rid().is_ok_and(|last| last < b.first_rid)
        });
        let mut by_id: Vec<IdRange> = rules.iter().map(|rule| rule.ids).collect();
        by_id.sort_unstable();
        let is_valid = by_rid
            && rules.iter().all(|rule| rule.last_rid().is_ok())
            && by_id.is_sorted_by(|a, b| a.last < b.first);
        let rules = Self::from_sorted(rules);
        (is_valid && rules.to_storage() == text).then_some(rules)
    }
}

fn parse(text: &str) -> Option<SidRule> {
    let (domain, rest) = text.split_once(':')?;
    let (first_rid, ids) = rest.split_once(':')?;
    let domain = DomainIndex::new(domain.parse().ok()?).filter(|domain| *domain != DomainIndex::SYSTEM)?;
    Some(SidRule { domain, first_rid: first_rid.parse().ok()?, ids: ids.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(domain: u32, first_rid: u32, first: u32, last: u32) -> SidRule {
        let domain = DomainIndex::new(domain).unwrap();
        SidRule { domain, first_rid, ids: IdRange::new(first, last).unwrap() }
    }

    fn rules(all: &[SidRule]) -> SidRules {
        all.iter().fold(SidRules::default(), |rules, rule| rules.with(*rule).unwrap())
    }

    fn id(text: &str) -> Id {
        text.parse().unwrap()
    }

    #[test]
    fn rids_are_mapped_in_both_directions() {
        let rules =
            rules(&[rule(2, 0, 300_000, 300_009), rule(1, 1000, 100_000, 199_999), rule(1, 500, 7, 9)]);
        for (sid, number) in [
            ("1-1000", Some(100_000)),
            ("1-1105", Some(100_105)),
            ("1-100999", Some(199_999)),
            ("1-101000", None),
            ("1-999", None),
            ("1-500", Some(7)),
            ("1-502", Some(9)),
            ("1-503", None),
            ("2-0", Some(300_000)),
            ("2-10", None),
            ("3-5", None),
            ("100105", None),
        ] {
            assert_eq!(rules.id_of(id(sid)), number, "{sid}");
            if let Some(number) = number {
                assert_eq!(rules.sid_of(number), Some(id(sid)));
            }
        }
        for number in [0, 6, 10, 99_999, 200_000, 300_010, u32::MAX] {
            assert_eq!(rules.sid_of(number), None, "{number}");
        }
    }

    #[test]
    fn overlapping_and_overflowing_rules_are_rejected() {
        let before = rules(&[rule(1, 1000, 100, 199), rule(2, 0, 300, 399)]);
        for (new, error) in [
            (
                rule(1, 1099, 1000, 1000),
                SidRuleError::RidsOverlap { first_rid: 1000, ids: rule(1, 0, 100, 199).ids },
            ),
            (
                rule(1, 0, 1000, 2000),
                SidRuleError::RidsOverlap { first_rid: 1000, ids: rule(1, 0, 100, 199).ids },
            ),
            (rule(1, 5000, 199, 200), SidRuleError::IdsOverlap(rule(1, 0, 100, 199).ids)),
            (rule(3, 0, 1, 1000), SidRuleError::IdsOverlap(rule(1, 0, 100, 199).ids)),
            (rule(3, 0, 350, 360), SidRuleError::IdsOverlap(rule(1, 0, 300, 399).ids)),
            (rule(3, u32::MAX, 1000, 1001), SidRuleError::Rids),
        ] {
            assert_eq!(before.with(new), Err(error), "{new:?}");
        }
        assert_eq!(before.with(rule(1, 1000, 100, 199)), Ok(before.clone()), "the same rule again");
        let beside = before.with(rule(1, 1100, 200, 299)).unwrap();
        assert_eq!(beside.id_of(id("1-1100")), Some(200));
        for (first, last) in [(0, 5), (5, 4), (5, u32::MAX), (u32::MAX, u32::MAX)] {
            assert_eq!(IdRange::new(first, last), None, "{first}-{last}");
        }
        for text in
            ["", "5", "5-", "-5", "5-4", "0-5", "5-4294967295", "+5-6", "5-4294967296", "5-6-7", "a-b"]
        {
            assert!(text.parse::<IdRange>().is_err(), "{text}");
        }
        assert_eq!("5-6".parse(), Ok(IdRange::new(5, 6).unwrap()));
    }

    #[test]
    fn domains_that_have_no_rule_are_named() {
        for text in
            ["S-1-22-1", "S-1-22-2", "S-1-22", "S-1-0-7", "S-1-1", "S-1-3", "S-1-5-21", "S-1-5-21-1-2-3-500"]
        {
            let domain = text.parse().unwrap();
            assert!(matches!(check_domain(&domain), Err(SidRuleError::Domain(_))), "{text}");
        }
        for text in ["S-1-5-21-1-2-3", "S-1-5-32", "S-1-5-22", "S-1-12-1", "S-1-221"] {
            assert_eq!(check_domain(&text.parse().unwrap()), Ok(()), "{text}");
        }
    }

    #[test]
    fn rules_have_one_stored_form_and_a_bound() {
        let some = rules(&[rule(2, 0, 300, 399), rule(1, 1000, 100, 199), rule(1, 0, 200, 299)]);
        let text = "1:0:200-299 1:1000:100-199 2:0:300-399";
        assert_eq!(some.to_storage(), text);
        assert_eq!(SidRules::from_storage(text), Some(some.clone()));
        assert_eq!(SidRules::from_storage(""), Some(SidRules::default()));
        for text in [
            " ",
            "0:0:200-299",
            "1:0:200",
            "1:0:299-200",
            "1:00:200-299",
            "1:0:200-299 ",
            "1:1000:100-199 1:0:200-299",
            "1:0:200-299 1:50:300-399",
            "1:0:200-299 2:0:299-399",
            "1:0:200-299 1:0:200-299",
            "1:4294967295:200-299",
            "65536:0:200-299",
        ] {
            assert_eq!(SidRules::from_storage(text), None, "{text}");
        }
        let mut full = SidRules::default();
        for n in 0..SidRules::MAX as u32 {
            full = full.with(rule(1, n, n + 1, n + 1)).unwrap();
        }
        assert_eq!(full.with(rule(2, 0, 5000, 5000)), Err(SidRuleError::TooMany));
        assert_eq!(SidRules::from_storage(&full.to_storage()), Some(full));
    }

    #[test]
    fn version_depends_on_every_rule() {
        let one = rules(&[rule(1, 0, 200, 299)]);
        let two = one.with(rule(2, 0, 300, 399)).unwrap();
        assert_eq!(SidRules::default().version(), 0);
        assert!(one.version() != 0 && two.version() != one.version());
        let back = two.without(DomainIndex::new(2).unwrap(), None).unwrap();
        assert_eq!((back.version(), &back), (one.version(), &one));
        assert_eq!(two.without(DomainIndex::new(2).unwrap(), Some(1)), None);
        assert_eq!(two.without(DomainIndex::new(3).unwrap(), None), None);
        assert_eq!(back.without(DomainIndex::new(1).unwrap(), Some(0)), Some(SidRules::default()));
    }

    #[test]
    fn rules_are_renumbered_for_another_table() {
        let some = rules(&[rule(1, 0, 200, 299), rule(2, 0, 300, 399)]);
        let swapped = some.renumbered(|index| DomainIndex::new(3 - index.get()));
        assert_eq!(swapped.to_storage(), "1:0:300-399 2:0:200-299");
        let second = some.renumbered(|index| DomainIndex::new(1).filter(|_| index.get() == 2));
        assert_eq!(second.to_storage(), "1:0:300-399");
    }
}
