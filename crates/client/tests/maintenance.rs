//! A tool that needs exclusive use of a volume keeps out other tools and mounts.

use std::sync::Arc;

use client::{Failure, Meta};
use meta::{Announced, Engine, Maintenance, MemEngine, Process, Scan, Session, Volume};
use ops::{Authority, BeginMaintenance, BeginSession, Configure, EndMaintenance, FinalMaintenance, Op};
use types::{Errno, SessionId, Time};

fn of(tool: &str) -> Maintenance {
    let process = Process { boot_id: "b".into(), pid_namespace: 4, start_time: 5 };
    let (host, since) = ("a host\n".to_owned(), Time::from_nanos(-7));
    Maintenance { tool: tool.into(), host: host.trim().into(), pid: 3, process, since, is_final: false }
}

fn run<O: Op>(meta: &Meta, op: &O) -> Result<O::Reply, Failure> {
    meta.run(op, &Authority::Kernel { revisions: None })
}

#[test]
fn a_tool_without_its_announcement_cannot_commit_or_wipe() {
    let engine = Arc::new(MemEngine::default());
    Volume::in_memory("test").format(&*engine).unwrap();
    let meta = Meta::open(engine.clone(), 100).unwrap();
    run(&meta, &BeginMaintenance { maintenance: of("a"), replaces: None }).unwrap();
    let announced = Arc::new(Announced::new(engine.clone(), of("a")));
    let tool = Meta::open(announced.clone(), 100).unwrap();
    let limit = |max_inodes| Configure { max_inodes: Some(max_inodes), ..Configure::default() };
    run(&tool, &limit(7)).unwrap();
    announced.check().unwrap();
    for replaced in [false, true] {
        run(&meta, &EndMaintenance(of("a"))).unwrap();
        if replaced {
            run(&meta, &BeginMaintenance { maintenance: of("b"), replaces: None }).unwrap();
        }
        let failed = run(&tool, &limit(8)).unwrap_err();
        assert!(failed.to_string().contains("no longer reserved for 'a'"), "{failed}");
        assert!(announced.check().is_err() && announced.wipe().is_err());
        assert_eq!(Volume::load(&*engine).unwrap().max_inodes, 7);
        let replaces = replaced.then(|| of("b"));
        run(&meta, &BeginMaintenance { maintenance: of("a"), replaces }).unwrap();
        run(&tool, &limit(7)).unwrap();
    }
    let last = run(&meta, &FinalMaintenance(of("a"))).unwrap();
    assert!(last.is_final && announced.wipe().is_err());
    assert_eq!(run(&meta, &FinalMaintenance(of("a"))), Err(Errno::ENOENT.into()));
    Announced::new(engine.clone(), last).wipe().unwrap();
    assert!(Volume::load(&*engine).is_err());
}

#[test]
fn an_announced_tool_keeps_out_others_until_it_ends_or_is_replaced() {
    let engine = Arc::new(MemEngine::default());
    Volume::in_memory("test").format(&*engine).unwrap();
    let meta = Meta::open(engine, 100).unwrap();
    let begin = |tool, replaces| BeginMaintenance { maintenance: of(tool), replaces };
    assert_eq!(run(&meta, &EndMaintenance(of("a"))), Err(Errno::ENOENT.into()));
    assert_eq!(run(&meta, &begin("a", None)).unwrap(), None);
    assert_eq!(run(&meta, &begin("b", None)).unwrap(), Some(of("a")));
    assert_eq!(run(&meta, &begin("b", Some(of("c")))).unwrap(), Some(of("a")));
    assert_eq!(run(&meta, &begin("b", Some(of("a")))).unwrap(), None);
    assert_eq!(run(&meta, &EndMaintenance(of("a"))), Err(Errno::ENOENT.into()));
    let session = Session::new(meta.session(), Time::from_nanos(1));
    let sessions =
        || meta.scan(&Scan::Sessions { after: SessionId(0), limit: 9 }).unwrap().snapshot.records.len();
    assert_eq!(run(&meta, &BeginSession(session.clone())).unwrap(), Some(of("b")));
    assert_eq!(sessions(), 0);
    run(&meta, &EndMaintenance(of("b"))).unwrap();
    assert_eq!(run(&meta, &BeginSession(session.clone())).unwrap(), None);
    assert_eq!(sessions(), 1);
    assert_eq!(run(&meta, &begin("c", None)).unwrap(), None);
    // Neither a removed volume nor one created in its place is the volume that was opened.
    meta.engine().wipe().unwrap();
    assert_eq!(run(&meta, &BeginSession(session.clone())), Err(Errno::ESTALE.into()));
    let other = Volume { uuid: "another".into(), ..Volume::in_memory("test") };
    other.format(&**meta.engine()).unwrap();
    assert_eq!(run(&meta, &BeginSession(session)), Err(Errno::ESTALE.into()));
    assert_eq!(sessions(), 0);
}
