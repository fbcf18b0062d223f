//! The helper that mount(8) executes for `mount -t limen` and for lines of fstab(5): this program under the
//! name `mount.limen`, with the arguments that mount(8) gives to helpers.

use std::env;
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread;

use clap::Parser;
use command::error::{CliError, ErrorAt};
use command::output;
use command::paths;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Args, Command};
use crate::daemon::{self, CANNOT_START};
use crate::log;
use crate::mount;
use crate::options::{MountArgs, Options, is_known};
use crate::umount_helper;
use crate::url::MetaUrl;

const NAME: &str = "mount.limen";

const HELP: &str = "\
Usage: mount.limen META-URL DIR [-sfnv] [-o OPTIONS] [-t TYPE]

mount(8) executes this program for mount -t limen META-URL DIR, and for lines of fstab(5) with the type limen.
OPTIONS are those of limen mount -o; see limen mount --help.

  -s  ignore unknown options
  -f  check the arguments, and do not mount
  -v  say that the volume is mounted, and where its log is
  -n, -t TYPE
      accepted without an effect

Exit codes, as of mount(8): 0 mounted, 1 the arguments are wrong, 2 system error, 4 internal error, 8 interrupted,
32 the mount failed.
";

/// Exit codes of mount(8).
const USAGE: u8 = 1;
const SYSTEM: u8 = 2;
const INTERNAL: u8 = 4;
const INTERRUPTED: u8 = 8;
const FAILED: u8 = 32;

/// The exit code of a [`CliError`] for a wrong command line.
const USAGE_OF_LIMEN: u8 = 2;

/// The request of mount(8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    url: String,
    mountpoint: PathBuf,
    options: Vec<String>,
    is_sloppy: bool,
    is_fake: bool,
    is_verbose: bool,
}

/// The arguments, or a text to print instead of mounting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Mount(Call),
    Text(String),
}

/// Mounts if this process was started as `mount.limen`, and unmounts if it was started as
/// `umount.fuse.limen`. Returns `None` if it has another name.
pub(crate) fn run_if_called() -> Option<ExitCode> {
    let mut args = env::args_os();
    let program = args.next()?;
    let is_umount = is_named(&program, umount_helper::NAME);
    if !is_umount && !is_named(&program, NAME) {
        return None;
    }
    let work = || match is_umount {
        true => umount_helper::run(args.collect()),
        false => parse(args.collect()).and_then(|asked| run(&asked)),
    };
    // The panic hook has written its message.
    let done = catch_unwind(AssertUnwindSafe(work));
    Some(match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            output::note(&error);
            ExitCode::from(code(&error))
        }
        Err(_) => ExitCode::from(INTERNAL),
    })
}

fn is_named(program: &OsStr, name: &str) -> bool {
    Path::new(program).file_name().is_some_and(|found| found == name)
}

fn code(error: &CliError) -> u8 {
    match error.exit_code() {
        USAGE_OF_LIMEN => USAGE,
        SYSTEM_OF_HELPER => SYSTEM,
        _ if error.to_string().starts_with(CANNOT_START) => SYSTEM,
        _ => FAILED,
    }
}

/// Marks an error of this module as a system error.
const SYSTEM_OF_HELPER: u8 = 71;

fn run(asked: &Asked) -> Result<(), CliError> {
    let call = match asked {
        Asked::Text(text) => return output::print(text),
        Asked::Mount(call) => call,
    };
    log::init("off", None, None)?;
    end_at_signals()?;
    let args = mount_args(call)?;
    if call.is_fake {
        return check(&args);
    }
    if mount::is_mounted(&args)? {
        // `mount -a` calls the helper again for a volume that is mounted: it does not find the URL in
        // mountinfo(5), which has the volume's name.
        output::note(format!("this volume is already mounted at {}", call.mountpoint.display()));
        return Ok(());
    }
    let said = daemon::start(&args)?;
    if call.is_verbose { output::print(&said) } else { Ok(()) }
}

/// The arguments of the `limen mount -d` that does the work.
fn mount_args(call: &Call) -> Result<MountArgs, CliError> {
    let mut options: Vec<&str> = call.options.iter().flat_map(|list| list.split(',')).collect();
    if call.is_sloppy {
        for option in options.extract_if(.., |option| !option.is_empty() && !is_known(option)) {
            output::note(format!("the option '{option}' is unknown and ignored"));
        }
    }
    let list = options.join(",");
    let args: Vec<OsString> =
        ["limen", "mount", "-d", "-o", &list, "--", &call.url].map(OsString::from).into();
    let args = args.into_iter().chain([call.mountpoint.clone().into()]);
    match Args::try_parse_from(args).map(|args| args.command) {
        Ok(Command::Mount(args)) => Ok(args),
        Ok(_) => Err(CliError::usage("the arguments are not those of a mount")),
        Err(error) => Err(CliError::usage(error.render())),
    }
}

/// Checks the arguments as far as possible without mounting.
fn check(args: &MountArgs) -> Result<(), CliError> {
    let mut options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    options.apply(args)?;
    options.rights.ids()?;
    MetaUrl::parse(&args.url)?;
    paths::mountpoint(&args.mountpoint).map(drop)
}

/// From here on, a signal ends this process with the exit code of mount(8) for an interruption. The
/// background process finds that no process waits for it, and unmounts.
fn end_at_signals() -> Result<(), CliError> {
    let system = |error: CliError| error.with_code(SYSTEM_OF_HELPER);
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).what("cannot handle signals").map_err(system)?;
    let wait = move || {
        if signals.forever().next().is_some() {
            output::note("interrupted: the volume is not mounted");
            process::exit(INTERRUPTED.into());
        }
    };
    let thread = thread::Builder::new().name("limen-signals".into()).spawn(wait);
    thread.map(drop).what("cannot start a thread").map_err(system)
}

/// Parses the arguments of a helper (mount(8), "EXTERNAL HELPERS"): options can precede and follow the URL
/// and the directory.
fn parse(args: Vec<OsString>) -> Result<Asked, CliError> {
    let mut call = Call::default();
    let mut names: Vec<OsString> = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--help" || text == "--version" {
            return Ok(Asked::Text(text_for(&text[2..3])));
        }
        let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            names.push(arg);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                's' => call.is_sloppy = true,
                'f' => call.is_fake = true,
                'v' => call.is_verbose = true,
                // `-n` means not to write /etc/mtab. This program never writes it.
                'n' => {}
                'r' => call.options.push("ro".to_owned()),
                'w' => call.options.push("rw".to_owned()),
                'h' | 'V' => return Ok(Asked::Text(text_for(letter.encode_utf8(&mut [0; 4])))),
                'o' | 't' => {
                    // The value is the rest of this argument, or the next one.
                    let rest = &letters[at + 1..];
                    let value = if rest.is_empty() { args.next() } else { Some(rest.into()) };
                    let value = value.and_then(|value| value.into_string().ok());
                    let value =
                        value.ok_or_else(|| wrong("an option has no value", &format!("-{letter}")))?;
                    if letter == 'o' {
                        call.options.push(value);
                    }
                    break;
                }
                'N' => return Err(wrong("another mount namespace is not supported", "-N")),
                _ => return Err(wrong("unknown option", &format!("-{letter}"))),
            }
        }
    }
    let mut names = names.into_iter();
    let (Some(url), Some(mountpoint), None) = (names.next(), names.next(), names.next()) else {
        return Err(CliError::usage("the arguments must be a META-URL and a directory")
            .advise("write mount -t limen META-URL DIR"));
    };
    call.url =
        url.into_string().map_err(|url| wrong("the metadata URL is not UTF-8", &url.to_string_lossy()))?;
    call.mountpoint = mountpoint.into();
    Ok(Asked::Mount(call))
}

fn text_for(letter: &str) -> String {
    if letter == "h" { HELP.to_owned() } else { format!("{NAME} {}\n", env!("CARGO_PKG_VERSION")) }
}

fn wrong(what: &str, place: &str) -> CliError {
    CliError::usage(what).at(place).advise(format!("see {NAME} --help"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Asked, CliError> {
        parse(args.split_whitespace().map(OsString::from).collect())
    }

    fn call(args: &str) -> Call {
        match parsed(args).unwrap() {
            Asked::Mount(call) => call,
            Asked::Text(text) => panic!("{text}"),
        }
    }

    #[test]
    fn the_program_name_selects_the_helper() {
        for (name, is) in [
            ("mount.limen", true),
            ("/sbin/mount.limen", true),
            ("limen", false),
            ("/mount.limen/limen", false),
        ] {
            assert_eq!(is_named(OsStr::new(name), NAME), is, "{name}");
        }
    }

    #[test]
    fn arguments_of_mount_are_parsed() {
        // The arguments have the form in which libmount passes them.
        let all = call("redis://h/1?a=b /mnt -sfnv -o rw,_netdev,cache=1G -t limen");
        let options = vec!["rw,_netdev,cache=1G".to_owned()];
        let url = "redis://h/1?a=b".to_owned();
        assert_eq!(
            all,
            Call {
                url,
                mountpoint: "/mnt".into(),
                options,
                is_sloppy: true,
                is_fake: true,
                is_verbose: true
            }
        );
        // Users write options in this way.
        let typed = call("-oro -o nosuid mem:// -n /mnt -tlimen -r");
        assert_eq!(typed.options, ["ro", "nosuid", "ro"]);
        assert!(!typed.is_sloppy && !typed.is_fake && !typed.is_verbose);
        for text in ["--help", "-h", "mem:// -V", "--version"] {
            assert!(matches!(parsed(text), Ok(Asked::Text(_))), "{text}");
        }
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (args, part) in [
            ("mem://", "a META-URL and a directory"),
            ("mem:// /mnt /x", "a META-URL and a directory"),
            ("mem:// /mnt -x", "-x"),
            ("mem:// /mnt -o", "-o"),
            ("mem:// /mnt -N /proc/1/ns/mnt", "-N"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(code(&error), USAGE);
        }
    }

    #[test]
    fn exit_codes_are_those_of_mount() {
        assert_eq!(code(&CliError::new("there is no volume here yet")), FAILED);
        assert_eq!(code(&CliError::usage("unknown mount option")), USAGE);
        assert_eq!(code(&CliError::new(format!("{CANNOT_START}: out of memory"))), SYSTEM);
        assert_eq!(code(&CliError::new("x").with_code(SYSTEM_OF_HELPER)), SYSTEM);
    }

    #[test]
    fn unknown_options_are_ignored_only_if_mount_is_sloppy() {
        let args = |text: &str| mount_args(&call(text)).unwrap();
        let sloppy = args("mem:// /mnt -s -o ro,frob=1,x-a=b,quux -o nofail");
        assert_eq!(sloppy.options, ["ro,x-a=b,nofail"]);
        assert!(check(&sloppy).is_ok() && sloppy.background);
        let strict = args("mem:// /mnt -o ro,frob=1");
        let error = check(&strict).unwrap_err().to_string();
        assert!(error.contains("unknown mount option") && error.contains("frob=1"), "{error}");
        assert!(check(&args("oracle:// /mnt")).is_err());
    }
}
