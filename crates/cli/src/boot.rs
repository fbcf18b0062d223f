//! `limen mount --update-fstab`: writes the line of fstab(5) that mounts the same volume at boot, and creates
//! the links by which mount(8) and umount(8) find this program.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf, absolute};

use command::error::{CliError, ErrorAt};
use command::output;
use command::paths;

use crate::fstab::{self, Edited, Entry};
use crate::options::{MountArgs, Options};
use crate::url::MetaUrl;

const FSTAB: &str = "/etc/fstab";

/// The path at which mount(8) looks for the helper of the type `limen`.
const HELPER: &str = "/sbin/mount.limen";
/// The path at which umount(8) looks for the helper of `fuse.limen`, the type that a mount has in
/// mountinfo(5).
const UMOUNT_HELPER: &str = "/sbin/umount.fuse.limen";

/// A change of fstab(5) that was planned before the mount.
#[derive(Debug)]
pub(crate) struct Edit {
    path: PathBuf,
    old: String,
    new: Edited,
}

/// Plans the line of this mount in fstab(5).
///
/// # Errors
/// An option is invalid; the mount at boot would lack a password or a key; the file cannot be read, or has
/// another file system at this mount point.
pub(crate) fn edit(args: &MountArgs) -> Result<Edit, CliError> {
    let path = args.fstab.clone().unwrap_or_else(|| FSTAB.into());
    let entry = entry(args)?;
    let old = fstab::read(&path)?;
    let new = fstab::edit(&old, &entry).at(path.display())?;
    Ok(Edit { path, old, new })
}

/// Writes the line, and prints it. If this process runs as root, also creates the links for mount(8) and
/// umount(8) that are missing.
///
/// # Errors
/// The file or the link cannot be written.
pub(crate) fn write(edit: &Edit) -> Result<(), CliError> {
    let Edit { path, old, new } = edit;
    if new.text != *old {
        // Read the file again, so that a change that another program made during the mount is kept.
        let now = fstab::read(path)?;
        if now != *old {
            return Err(CliError::new("another program changed this file at the same time")
                .at(path.display())
                .advise("the volume is mounted; run the command again to write the line"));
        }
        fstab::replace(path, &new.text)?;
    }
    let is_new = if new.text == *old { "has this line already" } else { "has this line now" };
    output::print(&format!("{} {is_new}:\n{}\n", path.display(), new.line))?;
    link(Path::new(HELPER))?;
    // If the first link could not be created, a message has already said why.
    let can_link = rustix::process::geteuid().is_root() && Path::new(HELPER).exists();
    if can_link { link(Path::new(UMOUNT_HELPER)) } else { Ok(()) }
}

fn entry(args: &MountArgs) -> Result<Entry, CliError> {
    let url = MetaUrl::parse(&args.url)?;
    let mut options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    options.apply(args)?;
    args.rights.with(&options.rights)?.ids()?;
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let mountpoint = mountpoint.to_str().ok_or_else(|| {
        CliError::usage("a mount point that is not UTF-8 cannot be written to fstab").at(mountpoint.display())
    })?;
    require_secrets(&url, &options)?;
    let mut list: Vec<String> = Vec::new();
    // If two options contradict each other, the last one takes effect. So the last of equal options is kept.
    let mut add = |option: String| {
        list.retain(|listed| *listed != option);
        list.push(option);
    };
    let given = args.options.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty());
    given.map(str::to_owned).for_each(&mut add);
    flags(args)?.into_iter().for_each(&mut add);
    if let MetaUrl::Network(_) = url {
        add("_netdev".to_owned());
    }
    Ok(Entry { source: url.to_string(), mountpoint: mountpoint.to_owned(), options: list })
}

/// The command-line options in the form of `-o`. Each replaces the same option in an `-o` list, because it
/// comes later.
fn flags(args: &MountArgs) -> Result<Vec<String>, CliError> {
    let mut all = Vec::new();
    for (option, path) in [("log", &args.log), ("key_file", &args.keys.key_file)] {
        if let Some(path) = path {
            let path = absolute(path).usage().at(path.display())?;
            all.push(format!("{option}={}", path.display()));
        }
    }
    all.extend(args.subdir.as_ref().map(|path| format!("subdir={}", path.display())));
    all.extend(args.metrics.map(|place| format!("metrics={place}")));
    all.extend(args.slow_ops.map(|ms| format!("slow_ops={ms}")));
    all.extend(args.rights.to_options()?);
    match all.iter().find(|option| option.contains(',')) {
        Some(option) => Err(CliError::usage("a value with a comma cannot be written to fstab").at(option)),
        None => Ok(all),
    }
}

/// Fails if the mount at boot would lack a password or key that this process has from its environment, its
/// command line or the URL. No secret is written to fstab, because every user can read it. For S3 credentials
/// in the environment there is only a note, because root may have others.
fn require_secrets(url: &MetaUrl, options: &Options) -> Result<(), CliError> {
    if let MetaUrl::Network(network) = url {
        // Without a password file, the password is from the URL or from the environment.
        if network.password().is_some() && !network.names_password_file() {
            return Err(CliError::usage("the password is not written to fstab, which every user can read")
                .at(url)
                .advise("write the password into a file that only root can read, and name it with ?password_file=FILE in the URL"));
        }
    }
    if let MetaUrl::Memory(_) = url {
        return Ok(());
    }
    let (_, volume) = url.open_volume()?;
    if !volume.encryption.is_empty() && options.keys.key_file.is_none() {
        return Err(CliError::usage("the mount at boot would not have the key of this encrypted volume")
            .at(url)
            .advise("write the key into a file that only root can read, and name it with --key-file"));
    }
    if volume.storage == "s3" && env::var_os("AWS_SECRET_ACCESS_KEY").is_some() {
        output::note(
            "the credentials of the object store are in the environment, which the mount at boot does not have: write them \
             into ~/.aws/credentials of root, or set them for the systemd unit of the mount",
        );
    }
    Ok(())
}

/// Creates the link to this program if there is none and this process runs as root.
fn link(path: &Path) -> Result<(), CliError> {
    match fs::metadata(path) {
        Ok(_) => return Ok(()),
        Err(_) if !rustix::process::geteuid().is_root() => {
            output::note(format!("mount(8) needs {}: run this command once as root", path.display()));
            return Ok(());
        }
        Err(_) => {}
    }
    let program = env::current_exe().what("cannot find the path of this program")?;
    // Root runs the program at each boot, so no other user may be able to change it.
    if let Some(writable) = program.ancestors().find(|part| is_writable_by_others(part)) {
        output::note(format!(
            "mount(8) needs {}, which was not created, because users other than root can change {}: install limen, for \
             example in /usr/local/bin, and run this command again",
            path.display(),
            writable.display()
        ));
        return Ok(());
    }
    match fs::symlink_metadata(path) {
        // The link is dangling, for example because a limen binary was removed.
        Ok(old) if old.is_symlink() => {
            fs::remove_file(path).what("cannot replace the link").at(path.display())?
        }
        _ => {}
    }
    match symlink(&program, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => {
            made.what("cannot create the link by which mount(8) and umount(8) find limen")
                .at(path.display())?;
            output::print(&format!("Created {}, a link to {}.\n", path.display(), program.display()))
        }
    }
}

/// Whether a user other than root can change a program, or replace an entry of a directory on its path.
fn is_writable_by_others(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return true };
    // In a sticky directory such as /tmp, others cannot replace what root owns.
    let others = if found.is_dir() && found.mode() & 0o1000 != 0 { 0 } else { 0o022 };
    found.uid() != 0 || found.mode() & others != 0
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn planned(args: &[&str]) -> Result<Entry, CliError> {
        let args = [&["limen", "mount", "--update-fstab"], args].concat();
        let Command::Mount(args) = Args::parse_from(args).command else { panic!("not a mount") };
        entry(&args)
    }

    #[test]
    fn every_option_of_the_command_line_is_in_the_line() {
        let given =
            ["--log", "/var/log/l", "--key-file", "/etc/k", "--metrics", "9870", "--slow-ops", "5", "--abe"];
        let ids =
            ["--root-squash", "--uid-map", "0:1000:5,65534:7:1", "--gid-map", "/etc/map", "--anon-gid", "4"];
        let more = ["--bypass-traverse", "u:7", "-o", "ro,cache=1G", "-o", "nofail,ro", "mem://x", "/mnt"];
        // `--gid-map` is left out, because its file would be read.
        let without_map: Vec<&str> =
            ids.iter().copied().filter(|arg| !["--gid-map", "/etc/map"].contains(arg)).collect();
        let line = planned(&[&given[..], &without_map, &more].concat()).unwrap();
        assert_eq!((line.source.as_str(), line.mountpoint.as_str()), ("mem://x", "/mnt"));
        let expected = "cache=1G,nofail,ro,log=/var/log/l,key_file=/etc/k,metrics=127.0.0.1:9870,slow_ops=5,abe,root_squash,\
                        uid_map=0:1000:5,uid_map=65534:7:1,anon_gid=4,bypass_traverse=u:7";
        assert_eq!(line.options.join(","), expected);
        Options::parse(&[expected.to_owned()], true).unwrap();
        assert!(planned(&["--log", "/a,b", "mem://", "/mnt"]).unwrap_err().to_string().contains("log=/a,b"));
        assert!(planned(&["-o", "rx", "mem://", "/mnt"]).is_err());
    }

    #[test]
    fn a_password_is_not_written() {
        let error = planned(&["redis://:secret@h/1", "/mnt"]).unwrap_err().to_string();
        assert!(error.contains("password_file") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.limen");
        if !rustix::process::geteuid().is_root() {
            return link(&path).unwrap();
        }
        symlink("/no/such/limen", &path).unwrap();
        link(&path).unwrap();
        let program = env::current_exe().unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), program);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        link(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine", "another helper is left alone");
    }
}
