//! The ACL that access checks evaluate on a volume whose rules map SIDs to uids and gids.

use crate::identity::Id;
use crate::sid_rules::SidRules;

use super::{Entry, Nfs4Acl, Who};

/// An ACL in which users and groups replace the SIDs that the rules map. Access checks and projections use
/// it. It is never stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub acl: Nfs4Acl,
    /// For each entry of `acl`, the index of the entry in the stored ACL that it was made from.
    origins: Box<[usize]>,
}

impl Mapped {
    /// The index in the stored ACL of the entry from which entry `at` of `acl` was made.
    pub fn origin(&self, at: usize) -> Option<usize> {
        self.origins.get(at).copied()
    }
}

impl Nfs4Acl {
    /// This ACL with each entry for a mapped SID replaced by two: one for the user and one for the group with
    /// the SID's number, because a SID can be either, and the group flag of the entry may be wrong. Both new
    /// entries have the type, the permissions and the inheritance flags of the replaced one, so their order
    /// has no effect. None if no entry has a mapped SID; access checks then evaluate this ACL.
    pub fn mapped(&self, rules: &SidRules) -> Option<Mapped> {
        let number = |who: Who| who.id().and_then(|id| rules.id_of(id)).and_then(Id::system);
        if rules.is_empty() || self.entries().iter().all(|entry| number(entry.who).is_none()) {
            return None;
        }
        let (mut entries, mut origins) = (Vec::new(), Vec::new());
        for (at, entry) in self.entries().iter().enumerate() {
            let both = number(entry.who).map(|id| [Who::User(id), Who::NamedGroup(id)]);
            let each = both.as_ref().map_or(std::slice::from_ref(&entry.who), |both| both.as_slice());
            entries.extend(each.iter().map(|who| Entry { who: *who, ..*entry }));
            origins.extend(each.iter().map(|_| at));
        }
        Some(Mapped { acl: Self::of_few(self.flags(), entries), origins: origins.into() })
    }

    /// The reverse of [`Self::mapped`], for a program that has read the mapped form of the ACL `before` and
    /// changed it: this ACL with the SIDs of `before` in place of the numbers that the rules map them to.
    /// Other numbers stay. Numbers that `before` names itself stay too: an entry for a number applies to a
    /// user or to a group, and an entry for a SID would apply to both.
    #[must_use]
    pub fn with_sids_of(&self, before: &Nfs4Acl, rules: &SidRules) -> Nfs4Acl {
        let sid_of = |who: Who| {
            let id = who.id()?;
            let sid = rules.sid_of(id.to_system()?)?;
            let named = || before.entries().iter().map(|entry| entry.who);
            let is_named_itself = named().any(|who| who.id() == Some(id));
            named().find(|who| who.id() == Some(sid) && !is_named_itself)
        };
        let mut entries: Vec<Entry> = Vec::with_capacity(self.entries().len());
        for entry in self.entries() {
            match sid_of(entry.who) {
                None => entries.push(*entry),
                Some(who) => {
                    // The entries of the user and of the group become one.
                    let entry = Entry { who, ..*entry };
                    if !entries.contains(&entry) {
                        entries.push(entry);
                    }
                }
            }
        }
        Self::of_few(self.flags(), entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_sids_are_users_and_groups_in_place() {
        let rules = SidRules::from_storage("1:1000:5000-5999").unwrap();
        let acl =
            Nfs4Acl::from_storage("flags:a,A:fd:1-1007:r,A::OWNER@:r,D:g:1-1008:w,A:g:1-7:x,A::2-1007:x")
                .unwrap();
        let mapped = acl.mapped(&rules).unwrap();
        let text = "flags:a,A:fd:5007:r,A:fdg:5007:r,A::OWNER@:r,D::5008:w,D:g:5008:w,A:g:1-7:x,A::2-1007:x";
        assert_eq!(mapped.acl.to_storage(), text);
        let origins: Vec<_> = (0..8).map(|at| mapped.origin(at)).collect();
        assert_eq!(origins, [Some(0), Some(0), Some(1), Some(2), Some(2), Some(3), Some(4), None]);
        let changed = Nfs4Acl::from_storage(
            "A:fd:5007:r,A:fdg:5007:r,A::OWNER@:rw,D::5008:w,D:g:5008:w,A:g:1-7:x,A::5009:r,A:g:5007:w",
        );
        let expected = "A:fd:1-1007:r,A::OWNER@:rw,D:g:1-1008:w,A:g:1-7:x,A::5009:r,A::1-1007:w";
        assert_eq!(changed.unwrap().with_sids_of(&acl, &rules).to_storage(), expected);
        let both = Nfs4Acl::from_storage("A:g:1-1007:r,A::5007:w").unwrap();
        let unchanged = both.mapped(&rules).unwrap().acl.with_sids_of(&both, &rules);
        assert_eq!(unchanged.to_storage(), "A::5007:r,A:g:5007:r,A::5007:w");
        assert_eq!(acl.mapped(&SidRules::default()), None);
        assert_eq!(Nfs4Acl::from_storage("A::5007:r,A:g:1-7:x").unwrap().mapped(&rules), None);
    }
}
