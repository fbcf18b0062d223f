//! Volumes: formatting, opening, limits, sessions, leases.

use std::sync::Arc;

use meta::ops::{GetUsage, Rename, Whiteout};
use meta::{
    Configure, Counter, Effect, Engine, Meta, Process, Record, Scan, Session, Txn, Usage, Volume, VolumeError,
};
use types::{Errno, OpId, SessionId, SliceId, Time};

use super::fixture::{REPLACE, ROOT, client, fresh, fresh_with, n, volume};
use super::invariants::check;
use super::{Case, Factory};

pub(super) const CASES: &[Case] = &[
    ("a_volume_is_laid_down_once", a_volume_is_laid_down_once),
    ("what_is_no_volume_is_told_apart", what_is_no_volume_is_told_apart),
    ("settings_change_and_nothing_else", settings_change_and_nothing_else),
    ("the_root_is_there", the_root_is_there),
    ("inodes_have_a_limit", inodes_have_a_limit),
    ("bytes_have_a_limit", bytes_have_a_limit),
    ("numbers_are_leased_once", numbers_are_leased_once),
    ("sessions_come_and_go", sessions_come_and_go),
];

fn put_setting(engine: &Arc<dyn Engine>, op_id: u128, name: &'static str, value: &str) {
    let effects = vec![Effect::PutSetting { name, value: value.into() }];
    engine.commit(&[Txn { op_id: OpId(op_id), guards: Vec::new(), effects }]).unwrap();
}

fn a_volume_is_laid_down_once(factory: Factory<'_>) {
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

fn settings_change_and_nothing_else(factory: Factory<'_>) {
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

fn what_is_no_volume_is_told_apart(factory: Factory<'_>) {
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

fn the_root_is_there(factory: Factory<'_>) {
    let c = fresh(factory);
    let root = c.node(ROOT);
    assert_eq!((root.nlink, root.parent, root.uid, root.mode.bits()), (2, ROOT, 0, 0o755));
    assert_eq!(c.run(&GetUsage).unwrap(), Usage { inodes: 1, blocks: 0 });
    check(&c);
}

fn inodes_have_a_limit(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { max_inodes: 3, ..volume() });
    let file = c.create(ROOT, "a").unwrap();
    c.mkdir(ROOT, "b").unwrap();
    let stranger = c.stranger();
    for client in [&c, &stranger] {
        assert_eq!(client.create(ROOT, "c"), Err(Errno::ENOSPC));
        assert_eq!(client.symlink(ROOT, "c", "t"), Err(Errno::ENOSPC));
        assert_eq!(client.create(ROOT, "a"), Err(Errno::EEXIST), "what is there is there");
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

fn bytes_have_a_limit(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { capacity_bytes: 8192, ..volume() });
    let file = c.create(ROOT, "a").unwrap();
    c.write(file, 0, 4096, 1).unwrap();
    c.write(file, 4096, 1, 2).unwrap();
    let stranger = c.stranger();
    for client in [&c, &stranger] {
        assert_eq!(client.write(file, 8192, 1, 3), Err(Errno::ENOSPC));
        assert_eq!(client.create(ROOT, "b"), Err(Errno::ENOSPC));
        assert_eq!(client.truncate(file, 8193), Err(Errno::ENOSPC), "holes count");
        client.write(file, 0, 8192, 5).expect("what does not grow needs no room");
    }
    c.truncate(file, 4096).unwrap();
    assert_eq!(c.write(file, 4096, 4097, 3), Err(Errno::ENOSPC), "room for one block is none for two");
    stranger.write(file, 4096, 1, 4).unwrap();
    assert_eq!(c.run(&GetUsage).unwrap(), Usage { inodes: 2, blocks: 2 });
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

fn sessions_come_and_go(factory: Factory<'_>) {
    let c = fresh(factory);
    let sessions = || {
        let scan = Scan::Sessions { after: SessionId(0), limit: 10 };
        c.meta.scan(&scan).unwrap().facts.records
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
    c.meta.put_session(session.clone()).unwrap();
    assert_eq!(sessions(), [Record::Session(session.id, Some(session.clone()))]);
    session.heartbeat = Time::new(1_900_000_000, 0);
    c.meta.put_session(session.clone()).unwrap();
    assert_eq!(sessions(), [Record::Session(session.id, Some(session.clone()))]);
    c.meta.drop_session(session.id).unwrap();
    assert_eq!(sessions(), []);
}
