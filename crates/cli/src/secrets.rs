//! Keeps secrets off the command line, and says if other users can read the files that hold them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use command::output;

use crate::network::PASSWORD_VARIABLE;
use crate::target::Target;
use crate::url::MetaUrl;

/// Executes this program again, without the password of a metadata URL on its command line, which every user of the
/// machine can read. The password goes to an environment variable. Returns if there is nothing to hide, or if it
/// cannot be hidden.
pub(crate) fn hide() {
    let mut args: Vec<OsString> = env::args_os().collect();
    let mut password: Option<String> = None;
    for arg in args.iter_mut().skip(1) {
        let Some((bare, found)) = without_password(arg) else { continue };
        // One variable can hide only one password.
        if password.get_or_insert(found.clone()) != &found {
            return;
        }
        *arg = bare;
    }
    let (Some(password), Ok(program)) = (password, env::current_exe()) else { return };
    let mut again = Command::new(program);
    if let Some((name, args)) = args.split_first() {
        again.arg0(name).args(args);
    }
    // If this fails, the command goes on with the password on its command line.
    drop(again.env(PASSWORD_VARIABLE, password).exec());
}

/// An argument without its password, and the password; `None` if it has none.
fn without_password(arg: &OsStr) -> Option<(OsString, String)> {
    if !arg.as_bytes().contains(&b'@') {
        return None;
    }
    let Ok(Target::Volume(MetaUrl::Network(url), path)) = Target::parse(arg) else { return None };
    let password = url.own_password()?;
    let mut bare = OsString::from(url.to_string());
    if arg.as_bytes().ends_with(&path) && arg.len() > path.len() + 1 {
        let before = &arg.as_bytes()[..arg.len() - path.len()];
        if before.ends_with(b":") {
            bare.push(":");
            bare.push(OsStr::from_bytes(&path));
        }
    }
    Some((bare, password.reveal().to_owned()))
}

/// Warns about the file that the parameter `password_file` of a metadata URL names.
pub(crate) fn check_password_file(url: &str) {
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let path = parameters.split('&').find_map(|parameter| parameter.strip_prefix("password_file="));
    if let Some(path) = path {
        warn_if_public("file with the password of the database", Path::new(path));
    }
}

/// Warns once if users other than the owner and the group can read a file with a secret.
pub(crate) fn warn_if_public(what: &str, path: &Path) {
    static WARNED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    let Ok(metadata) = fs::metadata(path) else { return };
    // A device such as /dev/stdin holds no secret.
    if !metadata.is_file() || metadata.permissions().mode() & 0o004 == 0 {
        return;
    }
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    let file = (metadata.dev(), metadata.ino());
    if !warned.contains(&file) {
        warned.push(file);
        let path = path.display();
        output::note(format!(
            "every user of this machine can read the {what}: {path}: run chmod o-rwx {path}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_of_a_metadata_url_is_removed() {
        let bare = |text: &str| {
            without_password(OsStr::new(text)).map(|(bare, password)| (bare.into_string().unwrap(), password))
        };
        let some = |bare: &str, password: &str| Some((bare.to_owned(), password.to_owned()));
        assert_eq!(bare("redis://:pw@h:7/1"), some("redis://h:7/1", "pw"));
        assert_eq!(bare("redis://:pw@h:7/1:/a@b"), some("redis://h:7/1:/a@b", "pw"));
        assert_eq!(
            bare("postgres://u:p%40w@h/db?sslmode=require"),
            some("postgres://u@h/db?sslmode=require", "p@w")
        );
        for text in
            ["postgres://u@h/db", "redis://h/1:/a@b", "sqlite:///a@b.db", "a@b", "s3://a:b@c", "-o", ""]
        {
            assert_eq!(bare(text), None, "{text}");
        }
    }
}
