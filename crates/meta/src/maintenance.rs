//! The announcement of a tool that needs exclusive use of the volume, such as a repair. The announcement is a
//! setting of the volume. While it is set, no new mount can register.
//!
//! A tool first announces itself, and then reads the sessions. A mount registers its session only if no tool
//! is announced, and the registration is guarded by the same setting. So if a tool and a mount start at the
//! same moment, at least one of them sees the other.

use types::Time;

use crate::record::{Process, Settings};
use crate::txn::Guard;

/// A tool with exclusive use of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// The command, for example `limen fsck --repair`.
    pub tool: String,
    pub host: String,
    pub pid: u32,
    pub process: Process,
    pub since: Time,
    /// The tool removes records, so the volume can no longer be used as before. Only the same tool, run
    /// again, may replace the announcement.
    pub is_final: bool,
}

/// The last line of an announcement with `is_final`.
const FINAL: &str = "final";

impl Maintenance {
    /// The name of the setting. It is absent or empty while no tool is announced.
    pub const SETTING: &str = "maintenance";

    /// The tool that is announced in the volume's settings.
    pub fn announced_in(settings: &Settings) -> Option<Maintenance> {
        settings.get(Self::SETTING).filter(|text| !text.is_empty()).map(|text| Maintenance::decode(text))
    }

    /// The guard that this tool is still announced.
    pub fn guard(&self) -> Guard {
        Guard::Setting { name: Self::SETTING, value: Some(self.encode()) }
    }

    /// The value of the setting.
    pub fn encode(&self) -> String {
        let Maintenance { tool, host, pid, process, since, is_final } = self;
        let Process { boot_id, pid_namespace, start_time } = process;
        let line = |text: &str| text.replace(['\n', '\r'], " ");
        let (tool, host, boot_id) = (line(tool), line(host), line(boot_id));
        let last = if *is_final { format!("\n{FINAL}") } else { String::new() };
        format!("{tool}\n{host}\n{pid}\n{boot_id}\n{pid_namespace}\n{start_time}\n{}{last}", since.nanos())
    }

    /// Decodes a stored announcement. A malformed text is decoded as far as possible, and the fields that
    /// cannot be decoded are empty or 0.
    pub fn decode(text: &str) -> Maintenance {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_read_back() {
        let process = Process { boot_id: "b".into(), pid_namespace: 4, start_time: 5 };
        for is_final in [false, true] {
            let (tool, host) = ("limen fsck --repair".to_owned(), "a host".to_owned());
            let since = Time::from_nanos(-7);
            let announced = Maintenance { tool, host, pid: 3, process: process.clone(), since, is_final };
            assert_eq!(Maintenance::decode(&announced.encode()), announced);
        }
        assert_eq!(Maintenance::decode("x").tool, "x");
    }
}
