//! Warns if every user of the machine can read a file that holds a secret.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use command::output;

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
