//! Compares four ways to decide, for random POSIX and NFSv4 ACLs, callers and requests: a naive
//! implementation, the walk over the entries, the compiled ACL and the cache.
//!
//! The tests are quick by default; `ACL_CASES=10000000 cargo test -p acl --test decisions --release` compares
//! that many requests.

mod common;

use std::convert::Infallible;
use std::sync::Arc;

use acl::cache::{self, DecisionCache};
use acl::credential::Credentials;
use acl::identity::{DomainIndex, Id};
use acl::nfs4::{self, Mask};
use acl::posix::{self, Perm};
use acl::sid_rules::{IdRange, SidRule, SidRules};
use common::{Outcome, Rng, cases, cred, naive_nfs4, naive_nfs4_mode, naive_posix, nfs4_acl, posix_acl, sid};
use types::{AclId, Caps, Cred, Mode};

/// The number of ids, and the maximum number of entries of an NFSv4 ACL. With few ids, callers and entries
/// match often; with many, the lists are long enough for Bloom filters and galloping search; 12 and 60 are in
/// between.
const SCALES: [(u32, u32); 4] = [(4, 6), (12, 12), (60, 40), (3000, 300)];
const CALLERS: usize = 12;

fn callers(ids: u32, rng: &mut Rng) -> Vec<(Cred, Vec<Id>)> {
    (0..CALLERS)
        .map(|_| {
            let mut sids: Vec<Id> = (0..rng.pick(&[0, 0, 1, 4])).map(|_| sid(rng)).collect();
            sids.sort();
            sids.dedup();
            (cred(ids, &[Caps::NONE], rng), sids)
        })
        .collect()
}

#[test]
fn posix_decisions_agree() {
    let mut rng = Rng::new("posix_decisions_agree");
    let (mut compared, mut granted, mut loads) = (0_u64, 0_u64, 0_u64);
    let (credentials, cache) = (Credentials::new(1 << 20), DecisionCache::new(1 << 12));
    let goal = cases(200_000);
    while compared < goal {
        let (ids, _) = rng.pick(&SCALES);
        let acl = (!rng.one_in(5)).then(|| Arc::new(posix::Compiled::new(posix_acl(ids, &mut rng))));
        let mode = Mode::new(rng.below(0o1000));
        for (cred, sids) in callers(ids, &mut rng) {
            let (uid, gid) = (rng.below(ids), rng.below(ids));
            let caller = credentials.intern(&cred, &sids);
            let by_value =
                posix::FileAttrs { uid, gid, mode, is_dir: false, acl: acl.as_deref().map(|acl| acl.acl()) };
            let id = acl.as_ref().map_or(AclId::NONE, |acl| acl.id());
            let by_id = cache::FileAttrs { uid, gid, mode, is_dir: false, acl: id, sid_rules: 0 };
            let mut load = || {
                loads += 1;
                Ok::<_, Infallible>(acl.clone().unwrap())
            };
            let compiled = cache::decide_posix(&caller, &by_id, &mut load).unwrap();
            let first = cache.posix(&caller, &by_id, &mut load).unwrap();
            let again =
                cache.posix(&caller, &by_id, || -> Result<_, Infallible> { unreachable!("cached") }).unwrap();
            let context = || format!("{} {cred:?} {by_value:?}", rng.name());
            let step_by_step = posix::decide(&cred, &by_value);
            assert_eq!((compiled, first, again), (step_by_step, step_by_step, step_by_step), "{}", context());
            for want in (0..8).map(Perm::new) {
                let naive = naive_posix(&cred, want, &by_value);
                assert_eq!(step_by_step.allows(want), naive, "{want} {}", context());
                assert_eq!(posix::explain(&cred, want, &by_value).0, naive, "{want} {}", context());
                (compared, granted) = (compared + 1, granted + u64::from(naive));
            }
            if posix::anyone_may_traverse(mode, by_value.acl) {
                assert!(naive_posix(&cred, Perm::EXECUTE, &by_value), "{}", context());
            }
        }
    }
    eprintln!("posix_decisions_agree: {compared} requests, {granted} granted, {loads} loads");
    assert!(granted > compared / 10 && granted < compared);
}

#[test]
fn nfs4_decisions_agree() {
    let mut rng = Rng::new("nfs4_decisions_agree");
    let (mut compared, mut granted, mut denied, mut sure) = (0_u64, 0_u64, 0_u64, 0_u64);
    let (credentials, cache) = (Credentials::new(1 << 20), DecisionCache::new(1 << 12));
    let goal = cases(200_000);
    while compared < goal {
        let (ids, entries) = rng.pick(&SCALES);
        let acl = (!rng.one_in(8)).then(|| Arc::new(nfs4::Compiled::new(nfs4_acl(ids, entries, &mut rng))));
        let (mode, is_dir) = (Mode::new(rng.below(0o1000)), rng.one_in(2));
        for (cred, sids) in callers(ids, &mut rng) {
            let (uid, gid) = (rng.below(ids), rng.below(ids));
            let caller = credentials.intern(&cred, &sids);
            let by_value =
                nfs4::FileAttrs { uid, gid, mode, is_dir, acl: acl.as_deref().map(|acl| acl.acl()) };
            let id = acl.as_ref().map_or(AclId::NONE, |acl| acl.id());
            let by_id = cache::FileAttrs { uid, gid, mode, is_dir, acl: id, sid_rules: 0 };
            let load = || Ok::<_, Infallible>(acl.clone().unwrap());
            let compiled = cache::decide_nfs4(&caller, &by_id, load).unwrap();
            let first = cache.nfs4(&caller, &by_id, load).unwrap();
            let again =
                cache.nfs4(&caller, &by_id, || -> Result<_, Infallible> { unreachable!("cached") }).unwrap();
            let context = || format!("{} {cred:?} {sids:?} {by_value:?}", rng.name());
            let step_by_step = nfs4::decide(&cred, &sids, &by_value);
            assert_eq!((compiled, first, again), (step_by_step, step_by_step, step_by_step), "{}", context());

            let mut wants: Vec<Mask> = Mask::ALL.each().collect();
            wants.extend([
                Mask::NONE,
                Mask::ALL,
                Mask::READ_DATA | Mask::EXECUTE,
                Mask::WRITE_DATA | Mask::APPEND_DATA,
            ]);
            for want in wants {
                let outcome = match by_value.acl {
                    Some(acl) => naive_nfs4(&cred, &sids, uid, gid, acl, want),
                    None if naive_nfs4_mode(&cred, uid, gid, mode, is_dir) & want.bits() == want.bits() => {
                        Outcome::Allowed
                    }
                    None => Outcome::Open,
                };
                assert_eq!(step_by_step.allows(want), outcome == Outcome::Allowed, "{want} {}", context());
                if want.bits().count_ones() == 1 {
                    assert_eq!(
                        step_by_step.denied.has(want),
                        outcome == Outcome::Denied,
                        "{want} {}",
                        context()
                    );
                }
                compared += 1;
                granted += u64::from(outcome == Outcome::Allowed);
                denied += u64::from(outcome == Outcome::Denied);
            }
            for verdict in nfs4::explain(&cred, &sids, &by_value, Mask::ALL) {
                assert_eq!(
                    verdict.granted,
                    step_by_step.allows(verdict.permission),
                    "{verdict:?} {}",
                    context()
                );
            }
            for _ in 0..2 {
                let certain = cache.nfs4_certain((cred.uid, cred.gid), &by_id, load).unwrap();
                let Some(certain) = certain else { continue };
                assert!(step_by_step.granted.has(certain.granted), "{certain:?} {}", context());
                assert!(certain.denied.has(step_by_step.denied), "{certain:?} {}", context());
                sure += u64::from(certain.granted == step_by_step.granted);
            }
            if nfs4::anyone_may_traverse(mode, by_value.acl) {
                assert!(step_by_step.allows(Mask::SEARCH), "{}", context());
            }
        }
    }
    eprintln!("nfs4_decisions_agree: {compared} requests, {granted} granted, {denied} denied, {sure} sure");
    assert!(sure > 0);
    assert!(granted > compared / 10 && denied > compared / 50);
}

/// The caller has some 56,000 groups (a process on Linux can have 65,536), and the ACL as many entries as it
/// can have.
#[test]
fn decisions_agree_for_the_longest_lists() {
    let mut rng = Rng::new("decisions_agree_for_the_longest_lists");
    let ids = 200_000;
    let groups: Vec<u32> = (0..65_536).map(|_| rng.below(ids)).collect();
    let cred = Cred::new(rng.below(ids), rng.below(ids), &groups, Caps::NONE);
    let caller = Credentials::new(1 << 20).intern(&cred, &[]);
    let entries = std::iter::repeat_with(|| {
        let gid = if rng.one_in(50) { groups[rng.below(65_536) as usize] } else { rng.below(ids) };
        let kind = rng.pick(&[nfs4::Kind::Allow, nfs4::Kind::Deny]);
        let mask = rng.pick(&Mask::ALL.each().collect::<Vec<_>>());
        let who = nfs4::Who::NamedGroup(Id::system(gid).unwrap());
        nfs4::Entry { kind, flags: nfs4::EntryFlags::NONE, who, mask }
    });
    let entries: Vec<nfs4::Entry> = entries.take(nfs4::Nfs4Acl::MAX_ENTRIES).collect();
    let acl = nfs4::Nfs4Acl::new(nfs4::AclFlags::NONE, entries).unwrap();
    let (uid, gid, mode, is_dir) = (1, 2, Mode::new(0), false);
    let by_value = nfs4::FileAttrs { uid, gid, mode, is_dir, acl: Some(&acl) };
    let compiled = Arc::new(nfs4::Compiled::new(acl.clone()));
    let by_id = cache::FileAttrs { uid, gid, mode, is_dir, acl: compiled.id(), sid_rules: 0 };
    let decision = cache::decide_nfs4(&caller, &by_id, || Ok::<_, Infallible>(compiled)).unwrap();
    assert_eq!(decision, nfs4::decide(&cred, &[], &by_value), "{}", rng.name());
    assert_eq!(decision.granted | decision.denied, Mask::ALL, "every permission is decided by some entry");
    let shown = nfs4::project(&acl, uid, gid, is_dir);
    let shown_mode = Mode::new(shown.rwx);
    let inode = posix::FileAttrs { uid, gid, mode: shown_mode, is_dir, acl: shown.acl.as_ref() };
    let by_projection = posix::decide(&cred, &inode);
    for (mask, perm) in [(Mask::READ_DATA, Perm::READ), (Mask::EXECUTE, Perm::EXECUTE)] {
        assert!(by_projection.allows(perm) || !decision.allows(mask), "{perm} {}", rng.name());
    }
}

/// Rules for both domains of [`sid`] that map SIDs to ids which callers may have.
fn sid_rules(ids: u32, rng: &mut Rng) -> SidRules {
    let mut rules = SidRules::default();
    for domain in [1, 2] {
        for first_rid in 0..3 {
            let first = rng.below(ids) + 1;
            let ids = IdRange::new(first, first + rng.below(2)).unwrap();
            let domain = DomainIndex::new(domain).unwrap();
            if rng.one_in(2)
                && let Ok(more) = rules.with(SidRule { domain, first_rid, ids })
            {
                rules = more;
            }
        }
    }
    rules
}

/// Compares two callers. One has only a uid and gids, and is checked against the mapped ACL. The other also
/// has the SIDs of these ids, and is checked against the stored ACL. The first one's step-by-step, compiled
/// and cached decisions must equal the second one's step-by-step decision, and both callers must get the same
/// explanation.
#[test]
fn mapped_sids_decide_like_the_sids_of_the_caller() {
    let mut rng = Rng::new("mapped_sids_decide_like_the_sids_of_the_caller");
    let (mut compared, mut by_sid) = (0_u64, 0_u64);
    let (credentials, cache) = (Credentials::new(1 << 20), DecisionCache::new(1 << 12));
    let goal = cases(40_000);
    while compared < goal {
        let (ids, entries) = rng.pick(&SCALES);
        let (acl, rules) = (nfs4_acl(ids, entries, &mut rng), sid_rules(ids.min(20), &mut rng));
        let Some(mapped) = acl.mapped(&rules) else { continue };
        let compiled = Arc::new(nfs4::Compiled::new(mapped.acl.clone()));
        let is_dir = rng.one_in(2);
        for (cred, _) in callers(ids, &mut rng) {
            let (uid, gid) = (rng.below(ids), rng.below(ids));
            let numbers = cred.groups().iter().chain([&cred.uid, &cred.gid]);
            let mut sids: Vec<Id> = numbers.filter_map(|id| rules.sid_of(*id)).collect();
            sids.sort();
            sids.dedup();
            let of = |acl| nfs4::FileAttrs { uid, gid, mode: Mode::new(0), is_dir, acl: Some(acl) };
            let expected = nfs4::decide(&cred, &sids, &of(&acl));
            let caller = credentials.intern(&cred, &[]);
            let by_id = cache::FileAttrs {
                uid,
                gid,
                mode: Mode::new(0),
                is_dir,
                acl: acl.id(),
                sid_rules: rules.version(),
            };
            let load = || Ok::<_, Infallible>(Arc::clone(&compiled));
            let context = || format!("{} {cred:?} {sids:?} {acl} {}", rng.name(), rules.to_storage());
            assert_eq!(nfs4::decide(&cred, &[], &of(&mapped.acl)), expected, "{}", context());
            assert_eq!(
                compiled.decide(&caller, cred.uid == uid, cred.in_group(gid)),
                expected,
                "{}",
                context()
            );
            for _ in 0..2 {
                assert_eq!(cache.nfs4(&caller, &by_id, load), Ok(expected), "{}", context());
            }
            for verdict in nfs4::explain(&cred, &[], &of(&mapped.acl), Mask::ALL) {
                let original = nfs4::explain(&cred, &sids, &of(&acl), verdict.permission);
                let reason = match verdict.reason {
                    nfs4::Reason::Entry(at) => nfs4::Reason::Entry(mapped.origin(at).unwrap()),
                    other => other,
                };
                assert_eq!(
                    (verdict.granted, reason),
                    (original[0].granted, original[0].reason),
                    "{}",
                    context()
                );
            }
            let shown = nfs4::project(&mapped.acl, uid, gid, is_dir);
            let inode =
                posix::FileAttrs { uid, gid, mode: Mode::new(shown.rwx), is_dir, acl: shown.acl.as_ref() };
            let by_projection = posix::decide(&cred, &inode);
            assert!(by_projection.allows(Perm::READ) || !expected.allows(Mask::READ_DATA), "{}", context());
            if shown.search_is_exact {
                let search = by_projection.allows(Perm::EXECUTE);
                assert_eq!(search, expected.allows(Mask::EXECUTE), "{}", context());
            }
            compared += 1;
            by_sid += u64::from(nfs4::decide(&cred, &[], &of(&acl)) != expected);
        }
    }
    eprintln!(
        "mapped_sids_decide_like_the_sids_of_the_caller: {compared} callers, {by_sid} decided by a SID"
    );
    assert!(by_sid > compared / 20);
}
