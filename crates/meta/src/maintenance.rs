//! Tools that need exclusive use of the volume, such as a repair: a setting announces them and keeps new
//! mounts out.
//!
//! A tool first announces itself, and then reads the sessions. A mount registers its session only if no tool
//! is announced, and guards that by the same setting. So if a tool and a mount start at the same moment, at
//! least one of them sees the other.

use types::{Errno, Term, Time};

use crate::driver::{Ctx, Op, Plan};
use crate::record::{Process, Session, Settings};
use crate::txn::{Effect, Guard};
use crate::view::{PlanStop, View};

/// The setting; absent or empty if no tool is working.
const SETTING: &str = "maintenance";

/// A tool with exclusive use of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// The command, for example `limen fsck --repair`.
    pub tool: String,
    pub host: String,
    pub pid: u32,
    pub process: Process,
    pub since: Time,
    /// The tool removes records, so the volume cannot be used as before any more: only the same tool, run
    /// again, may replace this one.
    pub is_final: bool,
}

/// The last line of an announcement with `is_final`.
const FINAL: &str = "final";

impl Maintenance {
    /// The tool that is announced in the volume's settings.
    pub fn announced_in(settings: &Settings) -> Option<Maintenance> {
        settings.get(SETTING).filter(|text| !text.is_empty()).map(|text| Maintenance::decode(text))
    }

    /// The guard that this tool is still announced.
    pub(crate) fn guard(&self) -> Guard {
        Guard::Setting { name: SETTING, value: Some(self.encode()) }
    }

    fn encode(&self) -> String {
        let Maintenance { tool, host, pid, process, since, is_final } = self;
        let Process { boot_id, pid_namespace, start_time } = process;
        let line = |text: &str| text.replace(['\n', '\r'], " ");
        let (tool, host, boot_id) = (line(tool), line(host), line(boot_id));
        let last = if *is_final { format!("\n{FINAL}") } else { String::new() };
        format!("{tool}\n{host}\n{pid}\n{boot_id}\n{pid_namespace}\n{start_time}\n{}{last}", since.nanos())
    }

    /// Decodes a stored announcement. A malformed text becomes a tool of which nothing is known.
    fn decode(text: &str) -> Maintenance {
        let mut lines = text.lines();
        let mut text = || lines.next().unwrap_or_default().to_owned();
        let (tool, host, pid, boot_id) = (text(), text(), text(), text());
        let number = |text: String| text.parse().unwrap_or_default();
        let (pid_namespace, start_time) = (number(text()), number(text()));
        Maintenance {
            tool,
            host,
            pid: pid.parse().unwrap_or_default(),
            process: Process { boot_id, pid_namespace, start_time },
            since: Time::from_nanos(text().parse().unwrap_or_default()),
            is_final: text() == FINAL,
        }
    }

    /// The announced tool, guarded.
    ///
    /// # Errors
    /// [`PlanStop::Missing`]: the settings were not read yet.
    pub fn of(view: &mut View<'_>) -> Result<Option<Maintenance>, PlanStop> {
        let announced = view.setting(SETTING)?.filter(|text| !text.is_empty());
        Ok(announced.as_deref().map(Maintenance::decode))
    }
}

/// Reads the present announcement.
#[derive(Clone, Copy, Debug)]
pub struct GetMaintenance;

impl Op for GetMaintenance {
    type Reply = Option<Maintenance>;
    const NAME: &'static str = "get maintenance";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        Maintenance::of(view).map(Plan::answer)
    }
}

/// Announces a tool. If another one is announced already, the reply is that one, and nothing is changed.
#[derive(Clone, Debug)]
pub struct BeginMaintenance {
    pub maintenance: Maintenance,
    /// An announcement that is known to be stale, and may be replaced.
    pub replaces: Option<Maintenance>,
}

impl Op for BeginMaintenance {
    type Reply = Option<Maintenance>;
    const NAME: &'static str = "begin maintenance";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let announced = Maintenance::of(view)?;
        if announced.is_some() && announced != self.replaces {
            return Ok(Plan::answer(announced));
        }
        let value = self.maintenance.encode();
        Ok(Plan { reply: None, effects: vec![Effect::PutSetting { name: SETTING, value }] })
    }
}

/// Makes an announcement final, before the tool does something that is not a commit and cannot be undone.
///
/// # Errors
/// ENOENT: the tool is not announced.
#[derive(Clone, Debug)]
pub struct FinalMaintenance(pub Maintenance);

impl Op for FinalMaintenance {
    type Reply = Maintenance;
    const NAME: &'static str = "final maintenance";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Maintenance>, PlanStop> {
        if Maintenance::of(view)?.as_ref() != Some(&self.0) {
            return Err(Errno::ENOENT.into());
        }
        let reply = Maintenance { is_final: true, ..self.0.clone() };
        let value = reply.encode();
        Ok(Plan { reply, effects: vec![Effect::PutSetting { name: SETTING, value }] })
    }
}

/// Registers a client that starts to use the volume. If a tool keeps it out, the reply is that tool, and
/// nothing is changed.
///
/// # Errors
/// ESTALE: the volume that the client has opened was removed, and another one may have replaced it.
#[derive(Clone, Debug)]
pub struct BeginSession(pub Session);

impl Op for BeginSession {
    type Reply = Option<Maintenance>;
    const NAME: &'static str = "begin session";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let announced = Maintenance::of(view)?;
        if announced.is_none() && view.setting("uuid")?.as_ref() != Some(&ctx.volume.uuid) {
            return Err(Errno::ESTALE.into());
        }
        let effects = match announced {
            None => {
                let (session, ended) = (self.0.id, [].into());
                let begin = Effect::BeginTerm { session, term: Term::FIRST, ended };
                vec![Effect::PutSession(self.0.clone()), begin]
            }
            Some(_) => Vec::new(),
        };
        Ok(Plan { reply: announced, effects })
    }
}

/// Ends this tool's announcement; that of another tool is left alone.
///
/// # Errors
/// ENOENT: the tool is not announced.
#[derive(Clone, Debug)]
pub struct EndMaintenance(pub Maintenance);

impl Op for EndMaintenance {
    type Reply = ();
    const NAME: &'static str = "end maintenance";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if Maintenance::of(view)?.as_ref() != Some(&self.0) {
            return Err(Errno::ENOENT.into());
        }
        Ok(Plan { reply: (), effects: vec![Effect::PutSetting { name: SETTING, value: String::new() }] })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::{SessionId, SliceId};

    use super::*;
    use crate::{Announced, Authority, Configure, Engine, Failure, MemEngine, Meta, Scan};

    fn of(tool: &str) -> Maintenance {
        let process = Process { boot_id: "b".into(), pid_namespace: 4, start_time: 5 };
        let (host, since) = ("a host\n".to_owned(), Time::from_nanos(-7));
        Maintenance { tool: tool.into(), host: host.trim().into(), pid: 3, process, since, is_final: false }
    }

    fn run<O: Op>(meta: &Meta, op: &O) -> Result<O::Reply, Failure> {
        meta.run(op, &Authority::Kernel { told: None })
    }

    #[test]
    fn the_stored_form_is_read_back() {
        for is_final in [false, true] {
            let announced = Maintenance { is_final, ..of("limen fsck --repair") };
            assert_eq!(Maintenance::decode(&announced.encode()), announced);
        }
        assert_eq!(Maintenance::decode("x").tool, "x");
    }

    #[test]
    fn a_tool_without_its_announcement_cannot_commit_or_wipe() {
        let engine = Arc::new(MemEngine::default());
        crate::check::test_volume().format(&*engine).unwrap();
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
            assert_eq!(crate::Volume::load(&*engine).unwrap().max_inodes, 7);
            let replaces = replaced.then(|| of("b"));
            run(&meta, &BeginMaintenance { maintenance: of("a"), replaces }).unwrap();
            run(&tool, &limit(7)).unwrap();
        }
        let last = run(&meta, &FinalMaintenance(of("a"))).unwrap();
        assert!(last.is_final && announced.wipe().is_err());
        assert_eq!(run(&meta, &FinalMaintenance(of("a"))), Err(Errno::ENOENT.into()));
        Announced::new(engine.clone(), last).wipe().unwrap();
        assert!(crate::Volume::load(&*engine).is_err());
    }

    #[test]
    fn an_announced_tool_keeps_out_others_until_it_ends_or_is_replaced() {
        let engine = Arc::new(MemEngine::default());
        crate::check::test_volume().format(&*engine).unwrap();
        let meta = Meta::open(engine, 100).unwrap();
        let begin = |tool, replaces| BeginMaintenance { maintenance: of(tool), replaces };
        assert_eq!(run(&meta, &EndMaintenance(of("a"))), Err(Errno::ENOENT.into()));
        assert_eq!(run(&meta, &begin("a", None)).unwrap(), None);
        assert_eq!(run(&meta, &begin("b", None)).unwrap(), Some(of("a")));
        assert_eq!(run(&meta, &begin("b", Some(of("c")))).unwrap(), Some(of("a")));
        assert_eq!(run(&meta, &begin("b", Some(of("a")))).unwrap(), None);
        assert_eq!(run(&meta, &EndMaintenance(of("a"))), Err(Errno::ENOENT.into()));
        let session = Session {
            id: meta.session(),
            host: "h".into(),
            pid: 1,
            mountpoint: "/m".into(),
            since: Time::from_nanos(1),
            heartbeat: Time::from_nanos(1),
            process: Process::default(),
            version: String::new(),
            first_slice: SliceId(0),
        };
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
        let other = crate::Volume { uuid: "another".into(), ..crate::check::test_volume() };
        other.format(&**meta.engine()).unwrap();
        assert_eq!(run(&meta, &BeginSession(session)), Err(Errno::ESTALE.into()));
        assert_eq!(sessions(), 0);
    }
}
