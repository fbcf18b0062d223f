//! `limen profile`: which users and processes send which requests to a mount, and for which files.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use command::error::CliError;
use command::output;
use command::statistics::profile;
use serde_json::{Value, json};
use types::{counted, plural};

use crate::target::{mount_of, show_name};
use crate::users::Users;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only root and the user that mounted the volume can use this. While it runs, each request costs some microseconds more.

Each row shows the path of the file, or of the directory if the operation takes a name. If the mount does not have all names
of the path in memory, the row shows the inode number instead. Bytes are the sizes that read and write requests ask for.
Requests that the kernel answers from its caches are not counted. If the kernel sends a request by itself, for example
after close(2), the process is 0 and the user has no meaning.

Examples:
  limen profile /mnt
      the busiest combinations, each second, until Ctrl-C
  limen profile --seconds 60 --by user,process /mnt
      what users and processes have done in a minute
  limen profile --seconds 10 --json /mnt >profile.json")]
pub(crate) struct ProfileArgs {
    /// A path on a mounted volume
    #[arg(value_name = "MOUNT", value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Record for this many seconds, then print the sums; without this option, print the sums of each second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Sum the requests by these properties: op, user, process, path
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["op", "user", "process", "path"])]
    by: Vec<By>,
    /// Print at most this many rows, beginning with those that took the most time
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Print JSON: an object with all rows for each second, or one object for all of --seconds
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum By {
    Op,
    #[value(alias = "uid")]
    User,
    #[value(alias = "command", alias = "pid")]
    Process,
    #[value(alias = "file")]
    Path,
}

pub(crate) fn run(args: &ProfileArgs) -> Result<(), CliError> {
    let entry = mount_of(&args.path)?;
    let mut lines = profile(&entry)?;
    let users = Users::default();
    let mut recorded = Recorded::default();
    let is_live = args.seconds.is_none();
    loop {
        for _ in 0..args.seconds.unwrap_or(1) {
            recorded.add(&lines.next_line()?, &args.by)?;
        }
        let recorded = std::mem::take(&mut recorded);
        let shown = match args.json {
            true if is_live => format!("{}\n", recorded.to_json(&users)),
            true => format!("{:#}\n", recorded.to_json(&users)),
            false => recorded.render(args, &users),
        };
        // Clears a terminal's screen, and goes to its top.
        let clear = if is_live && !args.json && io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
        if !output::print_live(&format!("{clear}{shown}"))? || !is_live {
            return Ok(());
        }
    }
}

/// The sums of requests, grouped by some of their properties.
#[derive(Debug, Default)]
struct Recorded {
    rows: BTreeMap<Group, Sums>,
    left_out: u64,
}

/// The properties that all requests of a row have. A property by which requests are not grouped is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    op: Option<String>,
    uid: Option<u64>,
    process: Option<(u64, String)>,
    /// The inode, and its path if that is known.
    path: Option<(u64, Option<String>)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    count: u64,
    time_ns: u64,
    longest_ns: u64,
    engine_ns: u64,
    store_ns: u64,
    bytes: u64,
}

impl Recorded {
    /// Adds the requests of a line that the mount sent.
    ///
    /// # Errors
    /// The line has an unknown format.
    fn add(&mut self, line: &Value, by: &[By]) -> Result<(), CliError> {
        self.try_add(line, by).ok_or_else(|| CliError::new("the mount's profile has an unknown format"))
    }

    fn try_add(&mut self, line: &Value, by: &[By]) -> Option<()> {
        self.left_out += line["left_out"].as_u64()?;
        for row in line["rows"].as_array()? {
            let number = |key: &str| row[key].as_u64();
            let mut group = Group::default();
            for by in by {
                match by {
                    By::Op => group.op = Some(row["op"].as_str()?.to_owned()),
                    By::User => group.uid = Some(number("uid")?),
                    By::Process => {
                        group.process = Some((number("pid")?, row["process"].as_str()?.to_owned()));
                    }
                    By::Path => {
                        group.path = Some((number("inode")?, row["path"].as_str().map(str::to_owned)))
                    }
                }
            }
            let sums = self.rows.entry(group).or_default();
            sums.count += number("count")?;
            sums.time_ns += number("time_ns")?;
            sums.longest_ns = sums.longest_ns.max(number("longest_ns")?);
            sums.engine_ns += number("engine_ns")?;
            sums.store_ns += number("store_ns")?;
            sums.bytes += number("bytes")?;
        }
        Some(())
    }

    /// The rows with the most time first.
    fn sorted(&self) -> Vec<(&Group, &Sums)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.time_ns));
        rows
    }

    fn to_json(&self, users: &Users) -> Value {
        let row = |(group, sums): (&Group, &Sums)| {
            json!({
                "op": group.op,
                "uid": group.uid,
                "user": group.uid.map(|uid| user(users, uid)),
                "pid": group.process.as_ref().map(|(pid, _)| pid),
                "process": group.process.as_ref().map(|(_, name)| name),
                "inode": group.path.as_ref().map(|(inode, _)| inode),
                "path": group.path.as_ref().and_then(|(_, path)| path.as_ref()),
                "count": sums.count,
                "time_ms": ms(sums.time_ns),
                "longest_ms": ms(sums.longest_ns),
                "engine_ms": ms(sums.engine_ns),
                "store_ms": ms(sums.store_ns),
                "bytes": sums.bytes,
            })
        };
        json!({ "rows": self.sorted().into_iter().map(row).collect::<Vec<_>>(), "left_out": self.left_out })
    }

    fn render(&self, args: &ProfileArgs, users: &Users) -> String {
        let has = |by| args.by.contains(&by);
        let mut text = format!(
            "{:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10}",
            "requests", "time ms", "mean ms", "max ms", "engine ms", "store ms", "bytes"
        );
        for (by, title) in [
            (By::Op, format!("  {:<12}", "op")),
            (By::User, format!("  {:<12}", "user")),
            (By::Process, format!("  {:<22}", "process")),
            (By::Path, "  path".to_owned()),
        ] {
            if has(by) {
                text.push_str(&title);
            }
        }
        text.push('\n');
        let rows = self.sorted();
        for (group, sums) in rows.iter().take(args.rows) {
            let mean = ms(sums.time_ns) / sums.count.max(1) as f64;
            text.push_str(&format!(
                "{:9} {:10.2} {mean:9.3} {:9.3} {:9.2} {:9.2} {:10}",
                sums.count,
                ms(sums.time_ns),
                ms(sums.longest_ns),
                ms(sums.engine_ns),
                ms(sums.store_ns),
                sums.bytes
            ));
            if let Some(op) = &group.op {
                text.push_str(&format!("  {op:<12}"));
            }
            if let Some(uid) = group.uid {
                text.push_str(&format!("  {:<12}", user(users, uid)));
            }
            if let Some((pid, name)) = &group.process {
                text.push_str(&format!("  {:<22}", format!("{pid} {}", show_name(name.as_bytes()))));
            }
            match &group.path {
                Some((_, Some(path))) => text.push_str(&format!("  {}", show_name(path.as_bytes()))),
                Some((inode, None)) => text.push_str(&format!("  inode {inode}")),
                None => {}
            }
            text.push('\n');
        }
        let more = rows.len().saturating_sub(args.rows);
        if more > 0 {
            text.push_str(&format!("and {}; --rows shows more\n", counted(more, "more row", "more rows")));
        }
        if self.left_out > 0 {
            text.push_str(&format!(
                "{} {} in no row, because there were too many rows\n",
                counted(self.left_out, "request", "requests"),
                plural(self.left_out, "is", "are")
            ));
        }
        text
    }
}

fn user(users: &Users, uid: u64) -> String {
    u32::try_from(uid).map_or_else(|_| uid.to_string(), |uid| users.user(uid))
}

fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Value {
        let row = |op: &str, pid: u64, path: Option<&str>, time: u64| {
            json!({
                "op": op, "uid": 0, "pid": pid, "process": "c\np", "inode": 7, "path": path, "count": 2,
                "time_ns": time, "longest_ns": time - 1, "engine_ns": 1, "store_ns": 0, "bytes": 10,
            })
        };
        let rows = [
            row("read", 5, Some("/a\u{1b}[2J"), 1000),
            row("read", 6, None, 3000),
            row("write", 5, None, 500),
        ];
        json!({ "rows": rows, "left_out": 1 })
    }

    #[test]
    fn rows_are_summed_by_the_requested_columns() {
        let mut recorded = Recorded::default();
        recorded.add(&line(), &[By::Op]).unwrap();
        recorded.add(&line(), &[By::Op]).unwrap();
        let value = recorded.to_json(&Users::default());
        assert_eq!(value["left_out"], 2);
        let rows = value["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["op"], &rows[0]["count"]), (2, &"read".into(), &8.into()));
        assert_eq!((&rows[0]["time_ms"], &rows[0]["longest_ms"]), (&0.008.into(), &0.002999.into()));
        assert!(rows[0]["path"].is_null() && rows[0]["pid"].is_null());
        assert!(recorded.add(&json!({ "rows": [{}], "left_out": 0 }), &[By::Op]).is_err());
    }

    #[test]
    fn hostile_names_are_escaped_and_rows_limited() {
        let by = vec![By::Op, By::User, By::Process, By::Path];
        let mut recorded = Recorded::default();
        recorded.add(&line(), &by).unwrap();
        let args = ProfileArgs { path: PathBuf::new(), seconds: None, by, rows: 2, json: false };
        let text = recorded.render(&args, &Users::default());
        assert!(
            text.contains("6 c\\np") && text.contains("/a\\u{1b}[2J") && text.contains("inode 7"),
            "{text}"
        );
        assert!(text.contains("and 1 more row;") && text.contains("1 request is in no row"), "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}
