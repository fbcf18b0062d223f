//! Volumes with NFSv4 ACLs: the cost of access checks, in resolved credentials and in round trips.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use acl::credential::{Credential, Credentials};
use acl::nfs4::{Mask, Policy};
use meta::{Counting, Engine};
use ops::{
    Authority, CheckAccess, CredentialSource, Lookup, Make, MakeKind, MakeOrphan, Open, OpenAccess, Rename,
    Rmdir, SetAttr, Unlink,
};
use types::{Caps, Cred, Errno, Mode};

use super::case::{Case, Factory};
use super::fixture::{REPLACE, ROOT, client, n};
use super::invariants::check;
use super::nfs4::{able, dir, file, fresh_nfs4, nfs4_volume, set};

pub(super) const CASES: &[Case] = &[
    ("credentials_are_resolved_only_when_needed", credentials_are_resolved_only_when_needed),
    ("rights_that_no_group_affects_need_no_credential", rights_that_no_group_affects_need_no_credential),
    ("acls_cost_no_extra_round_trip", acls_cost_no_extra_round_trip),
];

/// A caller that counts how often its whole credential is resolved.
#[derive(Debug)]
struct CountingCaller {
    credential: Arc<Credential>,
    caps: Caps,
    times: AtomicU64,
}

impl CountingCaller {
    fn new(uid: u32, groups: &[u32], caps: Caps) -> Self {
        // Ids of credentials are unique only within one registry.
        static REGISTER: OnceLock<Credentials> = OnceLock::new();
        let register = REGISTER.get_or_init(|| Credentials::new(100_000));
        let credential = register.intern(&Cred::new(uid, uid, groups, caps), &[]);
        CountingCaller { credential, caps, times: AtomicU64::new(0) }
    }
}

impl CredentialSource for CountingCaller {
    fn uid(&self) -> u32 {
        self.credential.cred().uid
    }

    fn gid(&self) -> u32 {
        self.credential.cred().gid
    }

    fn identity(&self) -> Result<(Arc<Credential>, Caps), Errno> {
        self.times.fetch_add(1, Ordering::Relaxed);
        Ok((Arc::clone(&self.credential), self.caps))
    }
}

fn credentials_are_resolved_only_when_needed(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let plain = c.make(ROOT, "plain", MakeKind::Regular, 0o640).unwrap().ino;
    c.run(&SetAttr { ino: plain, uid: Some(1), gid: Some(50), ..SetAttr::default() }).unwrap();
    let named = file(&c, ROOT, "named", "A:g:60:r");
    let read = |ino| Open { ino, open_access: OpenAccess { read: true, ..OpenAccess::default() } };
    let try_open = |caller: &CountingCaller, ino| {
        let may = c.run_as(&read(ino), &Authority::Both(caller)).is_ok();
        (may, caller.times.swap(0, Ordering::Relaxed) > 0)
    };
    assert_eq!(try_open(&CountingCaller::new(1, &[], Caps::NONE), plain), (true, false), "the owner");
    assert_eq!(
        try_open(&CountingCaller::new(50, &[], Caps::NONE), plain),
        (true, false),
        "by the primary group"
    );
    assert_eq!(try_open(&CountingCaller::new(9, &[50], Caps::NONE), plain), (true, true));
    assert_eq!(try_open(&CountingCaller::new(9, &[], Caps::NONE), plain), (false, true));
    assert_eq!(try_open(&CountingCaller::new(9, &[], Caps::DAC_READ_SEARCH), plain), (true, true));
    for _ in 0..2 {
        assert_eq!(try_open(&CountingCaller::new(9, &[60], Caps::NONE), named), (true, true));
        assert_eq!(try_open(&CountingCaller::new(9, &[61], Caps::NONE), named), (false, true));
    }
    let own = CountingCaller::new(1, &[], Caps::NONE);
    c.run_as(&set(named, "A::OWNER@:r"), &Authority::Both(&own)).unwrap();
    assert_eq!(own.times.load(Ordering::Relaxed), 0, "a right of owners");
    // An orphan may get its first name if the kernel has checked how it was created.
    let orphan = c.run(&MakeOrphan(c.make_op(ROOT, "o", MakeKind::Regular, 0o600))).unwrap().ino;
    let link = c.link_op(orphan, ROOT, "o");
    assert_eq!(c.run_as(&link, &able(0, Caps::ALL)), Err(Errno::ENOENT));
    assert_eq!(c.run_as(&link, &Authority::Both(&CountingCaller::new(0, &[], Caps::ALL))).map(drop), Ok(()));
}

/// Rights that the ACL grants to a user regardless of its groups are granted without resolving the groups:
/// those of the user's own entries, of the owner, and of everyone. If an entry denies the right to a group,
/// the groups are resolved, because the user may be in that group.
fn rights_that_no_group_affects_need_no_credential(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let named = "A::3:rwaxDC,A:g:60:rwax,A:g:61:rx,A::OWNER@:rwaxdDC,A::EVERYONE@:tc";
    for (name, acl, needs_groups) in [
        ("granted", named.to_owned(), false),
        ("denied-something-else", format!("D:g:9:oy,{named}"), false),
        ("denied", format!("D:g:9:rx,{named}"), true),
    ] {
        let at = dir(&c, name, &acl);
        for user in [1, 3] {
            let caller = CountingCaller::new(user, &[60], Caps::NONE);
            let by = Authority::Both(&caller);
            let make = |name, kind| {
                let make = Make { uid: user, gid: user, ..c.make_op(at, name, kind, 0o755) };
                c.run_as(&make, &by).unwrap().ino
            };
            let file = make("a", MakeKind::Regular);
            make("sub", MakeKind::Directory);
            let (from, to, flags) = (n("a"), n("b"), REPLACE);
            let rename = Rename {
                parent: at,
                name: from,
                new_parent: at,
                new_name: to,
                flags,
                whiteout: None,
                open: None,
            };
            c.run_as(&rename, &by).unwrap();
            c.run_as(&CheckAccess { ino: at, want: Mask::LIST_DIRECTORY }, &by).unwrap();
            c.run_as(&set(file, "A:g:60:r,A::3:rw,A::OWNER@:rw"), &by).unwrap();
            let open_access = OpenAccess { read: true, write: true, ..OpenAccess::default() };
            c.run_as(&Open { ino: file, open_access }, &by).unwrap();
            c.run_as(&Unlink { parent: at, name: n("b"), open: None }, &by).unwrap();
            c.run_as(&Rmdir { parent: at, name: n("sub") }, &by).unwrap();
            let times = caller.times.load(Ordering::Relaxed);
            assert_eq!(
                times > 0,
                needs_groups,
                "{name}: the groups of user {user} were resolved {times} times"
            );
        }
    }
    check(&c);
}

fn acls_cost_no_extra_round_trip(factory: Factory<'_>) {
    let engine = Arc::new(Counting::new(factory()));
    nfs4_volume(Policy::default()).format(&*engine).unwrap();
    let shared: Arc<dyn Engine> = engine.clone();
    let maker = client(&shared);
    let text = "A:fd:2:rwaxdDtTnNcC,A:fd:3:rx,A::OWNER@:rwaxD";
    let d = dir(&maker, "d", text);
    let sub = maker.mkdir(d, "sub").unwrap();
    for name in ["a", "b", "c", "e"] {
        maker.create(sub, name).unwrap();
    }
    let c = client(&shared);
    let by = CountingCaller::new(2, &[], Caps::NONE);
    let by = Authority::Both(&by);
    let owner = CountingCaller::new(0, &[], Caps::NONE);
    let owner = Authority::Both(&owner);
    let cost = |what: &str, most: u64, act: &dyn Fn()| {
        let before = engine.counts();
        act();
        let trips = (engine.counts() - before).round_trips();
        assert!(trips <= most, "{what}: {trips} round trips, not {most}");
    };
    let unlink = |name: &str| Unlink { parent: sub, name: n(name), open: None };
    // Neither the directory, nor the file, nor their ACLs are cached.
    cost("a cold name", 1, &|| assert!(c.run_as(&Lookup { parent: sub, name: n("a") }, &by).is_ok()));
    let a = c.at(sub, "a").ino;
    let open = Open { ino: a, open_access: OpenAccess { read: true, write: true, ..OpenAccess::default() } };
    cost("open", 1, &|| assert!(c.run_as(&open, &by).is_ok()));
    cost("unlink", 1, &|| assert!(c.run_as(&unlink("a"), &by).is_ok()));
    let cold = client(&shared);
    cost("unlink of a cold name", 2, &|| assert!(cold.run_as(&unlink("b"), &by).is_ok()));
    for name in ["x", "y"] {
        cost("create", 1, &|| {
            assert!(c.run_as(&c.make_op(sub, name, MakeKind::Regular, 0o644), &by).is_ok())
        });
    }
    cost("mkdir", 1, &|| assert!(c.run_as(&c.make_op(sub, "z", MakeKind::Directory, 0o755), &by).is_ok()));
    let x = c.at(sub, "x").ino;
    cost("chmod", 1, &|| {
        c.run_as(&SetAttr { ino: x, mode: Some(Mode::new(0o600)), ..SetAttr::default() }, &owner).unwrap();
    });
    let y = c.at(sub, "y").ino;
    cost("set an ACL", 1, &|| c.run_as(&set(y, "A::2:rdC"), &owner).unwrap());
    let denied = c.run_as(&unlink("y"), &Authority::Both(&CountingCaller::new(3, &[], Caps::NONE)));
    assert_eq!(denied.unwrap_err(), Errno::EACCES);
    c.lookup(sub, "w").unwrap();
    let (name, new_name, flags) = (n("y"), n("w"), REPLACE);
    let rename = Rename { parent: sub, name, new_parent: sub, new_name, flags, whiteout: None, open: None };
    cost("rename", 1, &|| assert!(c.run_as(&rename, &by).is_ok()));
    check(&c);
}
