//! Requirements whose failure no guard can confirm: room below the limits of the volume and of quotas, and
//! that a directory is empty.

use meta::{Guard, Quota, QuotaKey, QuotaRule, RecordKey};
use types::{Ino, QuotaId};

use super::{PlanStop, View};
use crate::known::{Key, Value};

impl View<'_> {
    /// Whether the plan may fail because the volume or a quota is full, or because a directory is not empty.
    /// No guard can confirm these facts. If the records are of several moments, there may be no moment at
    /// which the error was right. The plan then assumes the opposite, and adds a guard that checks the
    /// assumption. If the guard fails, the conflict returns records of one moment.
    fn may_refuse(&self) -> bool {
        !self.assumed && (self.is_exclusive || (self.is_snapshot && !self.used_known))
    }

    /// Whether a directory is empty. Returns `false` if this operation has read that the directory is not
    /// empty, and may fail because of that. Otherwise adds a guard that checks that the directory is empty.
    pub fn is_empty(&mut self, ino: Ino) -> bool {
        let found = match self.find_fresh(&Key::Empty(ino)) {
            Some(Value::Empty(empty)) => Some(empty),
            _ => None,
        };
        self.is_or_assumed(found, Guard::Empty { ino })
    }

    /// Returns `false` if the guard is known not to hold, and the plan may fail because of that. Otherwise
    /// adds the guard.
    fn is_or_assumed(&mut self, found: Option<bool>, guard: Guard) -> bool {
        if found == Some(false) && self.may_refuse() {
            return false;
        }
        self.assumed |= found != Some(true);
        self.guard(guard);
        true
    }

    /// Requires that the volume has room below its limits. Returns `false` if this operation has read that
    /// the volume is full, and may fail because of that. Otherwise adds a guard that checks that there is
    /// room.
    pub fn has_room(&mut self, max_inodes: u64, max_blocks: u64) -> bool {
        let found = match self.find_fresh(&Key::Usage) {
            Some(Value::Usage(usage)) => Some(usage.inodes < max_inodes && usage.blocks < max_blocks),
            _ => None,
        };
        self.is_or_assumed(found, Guard::Room { max_inodes, max_blocks })
    }

    /// The rule of a directory quota; `None` if the quota does not exist. The directory of a quota never
    /// changes, and [`View::fits_quota`] and [`View::guard_chain`] guard its outer quota. So this lookup adds
    /// no guard and does not count as a use of a known record: a plan that charges nothing to the quota does
    /// not depend on its rule.
    pub fn directory_quota(&mut self, id: QuotaId) -> Result<Option<QuotaRule>, PlanStop> {
        let key = QuotaKey::Directory(id);
        match self.find(&Key::Quota(key)) {
            Some(Value::Quota(quota)) => Ok(quota.map(|quota| quota.rule)),
            _ => self.missing(RecordKey::Quota(key)),
        }
    }

    /// A quota as this operation has read it. Not guarded.
    pub fn quota(&mut self, key: QuotaKey) -> Result<Option<Quota>, PlanStop> {
        match self.find_fresh(&Key::Quota(key)) {
            Some(Value::Quota(quota)) => Ok(quota),
            _ => self.missing(RecordKey::Quota(key)),
        }
    }

    /// Requires that this many more inodes and blocks fit below the limits of the quota. Returns `false` if
    /// this operation has read that they do not fit, and may fail because of that. Otherwise adds a guard
    /// that checks that they fit and, if `outer` is given, that it is the outer quota.
    pub fn fits_quota(&mut self, key: QuotaKey, outer: Option<QuotaId>, inodes: u64, blocks: u64) -> bool {
        let found = match self.find_fresh(&Key::Quota(key)) {
            Some(Value::Quota(quota)) => Some(quota.is_none_or(|quota| quota.fits(inodes, blocks))),
            _ => None,
        };
        self.is_or_assumed(found, Guard::Quota { key, outer, inodes, blocks })
    }

    /// Requires that the outer quota of a directory quota is still `outer`. Does nothing if `outer` is
    /// `None`.
    pub fn guard_chain(&mut self, key: QuotaKey, outer: Option<QuotaId>) {
        if outer.is_some() {
            self.used_known |= self.find_fresh(&Key::Quota(key)).is_none();
            self.guard(Guard::Quota { key, outer, inodes: 0, blocks: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use meta::Usage;
    use types::Name;

    use super::*;
    use crate::known::OwnReads;

    const INO: Ino = Ino::ROOT;
    const KEY: QuotaKey = QuotaKey::User(7);

    /// Requirements whose failure no guard can confirm.
    const CHECKS: [fn(&mut View<'_>) -> bool; 3] =
        [|view| view.is_empty(INO), |view| view.has_room(3, 3), |view| view.fits_quota(KEY, None, 1, 0)];

    fn records(is_full: bool) -> OwnReads {
        let quota = Quota {
            rule: QuotaRule { max_inodes: u64::from(!is_full), ..QuotaRule::default() },
            ..Quota::default()
        };
        let usage = Usage { inodes: if is_full { 3 } else { 2 }, ..Usage::default() };
        OwnReads::from_iter([
            (Key::Empty(INO), Value::Empty(!is_full)),
            (Key::Usage, Value::Usage(usage)),
            (Key::Quota(KEY), Value::Quota(Some(quota))),
        ])
    }

    #[test]
    fn an_error_without_a_guard_needs_records_of_one_moment() {
        let (full, known) = (records(true), OwnReads::from_iter([(Key::Inode(INO), Value::Inode(None))]));
        let view = || View::new(&known, None, &full);
        let with_consistency = |is_exclusive, is_snapshot| {
            let mut view = view();
            view.set_consistency(is_exclusive, is_snapshot);
            view
        };
        let name = Name::new(b"a").unwrap();
        for holds in CHECKS {
            assert!(!holds(&mut view()), "all records are of one moment");
            assert!(!holds(&mut with_consistency(true, false)), "all records are current");
            let mut assuming = view();
            assert_eq!(assuming.dirent_unlikely(INO, &name), Ok(None));
            let mut mixed = view();
            assert_eq!(mixed.find_inode(INO), Ok(None));
            for mut view in [with_consistency(false, false), assuming, mixed] {
                let before = view.guards.len();
                assert!(holds(&mut view) && view.assumed());
                assert_eq!(view.into_guards().len(), before + 1);
            }
        }
    }

    #[test]
    fn nothing_is_assumed_about_a_record_that_was_read() {
        let (nothing, free) = (OwnReads::default(), records(false));
        for holds in CHECKS {
            let mut view = View::new(&nothing, None, &free);
            assert!(holds(&mut view) && !view.assumed());
            assert_eq!(view.into_guards().len(), 1);
        }
    }
}
