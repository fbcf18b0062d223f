//! Volumes: formatting, opening, limits, sessions and leases.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use client::Meta;
use meta::{
    AclKind, Counter, Effect, Engine, Process, Record, Scan, Session, Txn, Usage, Volume, VolumeError,
};
use ops::{
    Allocate, AllocateMode, BackupClaim, ClaimBackup, Configure, FinishBackup, GetUsage, Housekeeping,
    RemoveXattr, Rename, SetXattr, Whiteout, XattrMode,
};
use types::{Errno, OpId, SessionId, SliceId, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, REPLACE, ROOT, client, fresh, fresh_with, n, volume, x};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("a_volume_is_formatted_once", a_volume_is_formatted_once),
    ("invalid_volumes_are_reported", invalid_volumes_are_reported),
    ("configure_changes_only_its_settings", configure_changes_only_its_settings),
    ("posix_acls_can_be_turned_on", posix_acls_can_be_turned_on),
    ("a_due_backup_is_claimed_by_one_client", a_due_backup_is_claimed_by_one_client),
    ("a_new_volume_has_a_root", a_new_volume_has_a_root),
    ("the_inode_limit_is_enforced", the_inode_limit_is_enforced),
    ("the_capacity_limit_is_enforced", the_capacity_limit_is_enforced),
    ("a_stale_size_exceeds_no_capacity", a_stale_size_exceeds_no_capacity),
    ("the_capacity_limit_includes_xattrs", the_capacity_limit_includes_xattrs),
    ("numbers_are_leased_once", numbers_are_leased_once),
    ("sessions_are_put_and_dropped", sessions_are_put_and_dropped),
];

fn put_setting(engine: &Arc<dyn Engine>, op_id: u128, name: &'static str, value: &str) {
    let effects = vec![Effect::PutSetting { name, value: value.into() }];
    engine.commit(&[Txn { op_id: OpId(op_id), guards: Vec::new(), effects }]).unwrap();
}

fn a_volume_is_formatted_once(factory: Factory<'_>) {
    let engine = factory();
    let first = volume();
    first.format(&*engine).unwrap();
    assert_eq!(Volume::load(&*engine).unwrap(), first);
    let second = Volume { name: "other".into(), created: Time::new(1_800_000_000, 0), ..volume() };
    match second.format(&*engine) {
        Err(VolumeError::Exists { name, .. }) => assert_eq!(name, "test"),
        other => panic!("{other:?}"),
    }
    assert_eq!(Volume::load(&*engine).unwrap(), first);
    engine.wipe().unwrap();
    assert!(matches!(Volume::load(&*engine), Err(VolumeError::NotFormatted)));
    second.format(&*engine).unwrap();
    assert_eq!(Volume::load(&*engine).unwrap(), second);
    check(&client(&engine));
}

fn configure_changes_only_its_settings(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let change = |change: Configure| client(&engine).run(&change).unwrap();
    change(Configure { capacity_bytes: Some(7 << 30), max_inodes: Some(9), ..Configure::default() });
    let expected = Volume { capacity_bytes: 7 << 30, max_inodes: 9, ..volume() };
    assert_eq!(Volume::load(&*engine).unwrap(), expected);
    change(Configure { max_inodes: Some(0), inline_bytes: Some(1), ..Configure::default() });
    let expected = Volume { max_inodes: 0, inline_bytes: 1, ..expected };
    assert_eq!(Volume::load(&*engine).unwrap(), expected);
    change(Configure { abe: Some(true), ..Configure::default() });
    let expected = Volume { abe: true, ..expected };
    assert_eq!(Volume::load(&*engine).unwrap(), expected);
    change(Configure { max_inodes: Some(0), ..Configure::default() });
    change(Configure::default());
    assert_eq!(Volume::load(&*engine).unwrap(), expected);
}

fn a_due_backup_is_claimed_by_one_client(factory: Factory<'_>) {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let clients = [(); 4].map(|()| client(&engine));
    let first = ClaimBackup { known: None };
    let claims: Vec<BackupClaim> = thread::scope(|scope| {
        let claims = clients.each_ref().map(|client| scope.spawn(|| client.run(&first).unwrap()));
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    let claimed: Vec<Time> = claims
        .iter()
        .filter_map(|claim| match claim {
            BackupClaim::Claimed(began) => Some(*began),
            BackupClaim::NotYet { .. } | BackupClaim::Off => None,
        })
        .collect();
    let &[began] = &claimed[..] else { panic!("{claims:?}") };
    let [c, ..] = &clients;
    let waits = |claim: BackupClaim, secs| match claim {
        BackupClaim::NotYet { last, left } => {
            last.began == began && last.age + left == Duration::from_secs(secs)
        }
        _ => false,
    };
    assert_eq!(claims.iter().filter(|claim| waits(**claim, 3600)).count(), 3, "{claims:?}");
    c.run(&FinishBackup { began, took_secs: 500 }).unwrap();
    // The backup took more than an eighth of the interval of 3,600 s, so the next one is due after eight
    // times that time.
    assert!(waits(client(&engine).run(&first).unwrap(), 4000));
    c.run(&FinishBackup { began: volume().created, took_secs: 9 }).unwrap();
    assert!(waits(client(&engine).run(&first).unwrap(), 4000), "another backup changes nothing");
    c.run(&Configure { backup_secs: Some(0), ..Configure::default() }).unwrap();
    assert_eq!(client(&engine).run(&first).unwrap(), BackupClaim::Off);
}

fn posix_acls_can_be_turned_on(factory: Factory<'_>) {
    let on = Configure { posix_acls: true, ..Configure::default() };
    for (before, expected) in
        [(AclKind::Off, Ok(())), (AclKind::Posix, Ok(())), (AclKind::Nfs4, Err(Errno::EINVAL))]
    {
        let engine = factory();
        Volume { acl: before, ..volume() }.format(&*engine).unwrap();
        assert_eq!(client(&engine).run(&on), expected, "{before:?}");
        let after = if expected.is_ok() { AclKind::Posix } else { before };
        assert_eq!(Volume::load(&*engine).unwrap(), Volume { acl: after, ..volume() });
    }
}

fn invalid_volumes_are_reported(factory: Factory<'_>) {
    let engine = factory();
    assert!(matches!(Meta::open(engine.clone(), 1000), Err(VolumeError::NotFormatted)));
    volume().format(&*engine).unwrap();
    put_setting(&engine, 1, "inline_bytes", "much");
    match Volume::load(&*engine) {
        Err(VolumeError::Damaged { setting: "inline_bytes", value }) => assert_eq!(value.unwrap(), "much"),
        other => panic!("{other:?}"),
    }
    put_setting(&engine, 2, "format_version", "one");
    assert!(matches!(Volume::load(&*engine), Err(VolumeError::Damaged { setting: "format_version", .. })));
    put_setting(&engine, 3, "format_version", "2");
    match Meta::open(engine.clone(), 1000) {
        Err(VolumeError::Newer { name, found }) => assert_eq!((&*name, &*found), ("test", "2")),
        other => panic!("{other:?}"),
    }
    match volume().format(&*engine) {
        Ok(()) | Err(VolumeError::Newer { .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn a_new_volume_has_a_root(factory: Factory<'_>) {
    let c = fresh(factory);
    let root = c.inode(ROOT);
    assert_eq!((root.nlink, root.parent, root.uid, root.mode.bits()), (2, ROOT, 0, 0o755));
    assert_eq!(c.run(&GetUsage).unwrap(), Usage { inodes: 1, blocks: 0 });
    check(&c);
}

fn the_inode_limit_is_enforced(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { max_inodes: 3, ..volume() });
    let file = c.create(ROOT, "a").unwrap();
    c.mkdir(ROOT, "b").unwrap();
    let stranger = c.stranger();
    for client in [&c, &stranger] {
        assert_eq!(client.create(ROOT, "c"), Err(Errno::ENOSPC));
        assert_eq!(client.symlink(ROOT, "c", "t"), Err(Errno::ENOSPC));
        assert_eq!(client.create(ROOT, "a"), Err(Errno::EEXIST), "EEXIST comes before ENOSPC");
        let leaves_one_behind = Rename {
            parent: ROOT,
            name: n("a"),
            new_parent: ROOT,
            new_name: n("e"),
            flags: REPLACE,
            whiteout: Some(Whiteout { ino: client.next_ino(), uid: 0, gid: 0 }),
            open: None,
        };
        assert_eq!(client.run(&leaves_one_behind).unwrap_err(), Errno::ENOSPC);
    }
    c.link(file, ROOT, "d").unwrap();
    c.write(file, 0, 100_000, 1).unwrap();
    c.rmdir(ROOT, "b").unwrap();
    stranger.create(ROOT, "c").unwrap();
    check(&c);
}

fn the_capacity_limit_is_enforced(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { capacity_bytes: 8192, ..volume() });
    let file = c.create(ROOT, "a").unwrap();
    c.write(file, 0, 4096, 1).unwrap();
    c.write(file, 4096, 1, 2).unwrap();
    let stranger = c.stranger();
    for client in [&c, &stranger] {
        assert_eq!(client.write(file, 8192, 1, 3), Err(Errno::ENOSPC));
        assert_eq!(client.create(ROOT, "b"), Err(Errno::ENOSPC));
        assert_eq!(client.truncate(file, 8193), Err(Errno::ENOSPC), "holes count");
        client.write(file, 0, 8192, 5).expect("without growth no space is needed");
    }
    c.truncate(file, 4096).unwrap();
    assert_eq!(c.write(file, 4096, 4097, 3), Err(Errno::ENOSPC), "one free block is not enough for two");
    stranger.write(file, 4096, 1, 4).unwrap();
    assert_eq!(c.run(&GetUsage).unwrap(), Usage { inodes: 2, blocks: 2 });
    check(&c);
}

fn a_stale_size_exceeds_no_capacity(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { capacity_bytes: 8192, ..volume() });
    let [a, b] = ["a", "b"].map(|name| c.create(ROOT, name).unwrap());
    let other = c.stranger();
    let allocate = Allocate { ino: a, offset: 0, len: 8192, mode: AllocateMode::Extend };
    let grow: [&dyn Fn() -> Result<(), Errno>; 3] =
        [&|| c.write(a, 0, 8192, 2), &|| c.truncate(a, 8192), &|| c.run(&allocate)];
    c.meta.set_lifetime(Duration::from_secs(3600));
    for (grow, is_exclusive) in grow.into_iter().flat_map(|grow| [(grow, true), (grow, false)]) {
        c.meta.set_exclusive(is_exclusive);
        c.write(a, 0, 8192, 1).unwrap();
        other.truncate(a, 0).unwrap();
        other.write(b, 0, 8192, 3).unwrap();
        assert_eq!(c.inode(a).size, 8192, "the cached size, by which nothing grows");
        assert_eq!(grow(), Err(Errno::ENOSPC));
        other.truncate(b, 0).unwrap();
    }
    check(&c);
}

fn the_capacity_limit_includes_xattrs(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { capacity_bytes: 3 * 4096, ..volume() });
    let file = c.create(ROOT, "a").unwrap();
    c.write(file, 0, 4096, 1).unwrap();
    let stranger = c.stranger();
    let set = |c: &Client, ino, name: &str, len: usize| {
        c.run(&SetXattr { ino, name: x(name), value: vec![7; len].into(), mode: XattrMode::Set })
    };
    for client in [&c, &stranger] {
        assert_eq!(set(client, file, "user.a", 8193), Err(Errno::ENOSPC), "there is room for two blocks");
    }
    set(&c, file, "user.a", 8192).unwrap();
    for client in [&c, &stranger] {
        assert_eq!(set(client, ROOT, "user.b", 0), Err(Errno::ENOSPC));
        assert_eq!(client.write(file, 4096, 1, 2), Err(Errno::ENOSPC));
        assert_eq!(client.create(ROOT, "b"), Err(Errno::ENOSPC));
        set(client, file, "user.a", 4097).expect("a value of the same or a smaller size needs no room");
    }
    stranger.run(&RemoveXattr { ino: file, name: x("user.a") }).unwrap();
    set(&c, ROOT, "user.b", 4096).unwrap();
    c.write(file, 4096, 1, 2).unwrap();
    assert_eq!(c.run(&GetUsage).unwrap(), Usage { inodes: 2, blocks: 3 });
    check(&c);
}

fn numbers_are_leased_once(factory: Factory<'_>) {
    let c = fresh(factory);
    let stranger = c.stranger();
    assert_ne!(c.meta.session(), stranger.meta.session());
    for counter in Counter::ALL {
        let first = c.meta.lease(counter, 100).unwrap();
        assert_eq!(stranger.meta.lease(counter, 5).unwrap(), first + 100);
        assert_eq!(c.meta.lease(counter, 1).unwrap(), first + 105);
    }
    assert!(c.meta.lease(Counter::Slice, u64::MAX).is_err());
}

fn sessions_are_put_and_dropped(factory: Factory<'_>) {
    let c = fresh(factory);
    let sessions = || {
        let scan = Scan::Sessions { after: SessionId(0), limit: 10 };
        c.meta.scan(&scan).unwrap().snapshot.records
    };
    let mut session = Session {
        process: Process::default(),
        version: String::new(),
        first_slice: SliceId(0),
        id: c.meta.session(),
        host: "h".into(),
        pid: 1,
        mountpoint: "/mnt".into(),
        since: Time::now(),
        heartbeat: Time::now(),
    };
    let put = |session: &Session| c.run(&Housekeeping(vec![Effect::PutSession(session.clone())])).unwrap();
    put(&session);
    assert_eq!(sessions(), [Record::Session(session.id, Some(session.clone()))]);
    session.heartbeat = Time::new(1_900_000_000, 0);
    put(&session);
    assert_eq!(sessions(), [Record::Session(session.id, Some(session.clone()))]);
    c.meta.drop_session(session.id).unwrap();
    assert_eq!(sessions(), []);
}
