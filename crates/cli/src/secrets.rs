//! Removes the password of a metadata URL from the command line, which every user of the machine can read.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::network::PASSWORD_VARIABLE;
use crate::target::Target;
use crate::url::MetaUrl;

/// Executes this program again, without the password of a metadata URL on its command line. The password goes
/// to an environment variable. Returns if there is nothing to hide, or if it cannot be hidden.
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
