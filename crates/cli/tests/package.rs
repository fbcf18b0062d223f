//! The Debian package that `make deb` builds.

use std::fs;
use std::path::Path;
use std::process::Command;

fn text(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_package_has_all_parts_and_its_dependencies() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return skip::missing("dpkg-deb");
    }
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/deb.sh");
    let limen = env!("CARGO_BIN_EXE_limen");
    let built = Command::new(&script)
        .env("LIMEN_BIN", limen)
        .env("CARGO_TARGET_DIR", dir.path())
        .envs([("DEBFULLNAME", "Ann Other"), ("DEBEMAIL", "ann@example.org")])
        .output()
        .unwrap();
    assert!(built.status.success() && built.stderr.is_empty(), "{built:?}");
    let package = String::from_utf8(built.stdout).unwrap().trim_end().to_owned();
    let field = |name: &str| text("dpkg-deb", &["--field", &package, name]).trim_end().to_owned();
    assert_eq!((field("Package"), field("Version")), ("limen".into(), env!("CARGO_PKG_VERSION").into()));
    assert_eq!(field("Architecture"), text("dpkg", &["--print-architecture"]).trim_end());
    assert_eq!(field("Maintainer"), "Ann Other <ann@example.org>");
    let depends = field("Depends");
    assert!(depends.starts_with("fuse3, ") && depends.contains("libc6 (>= 2."), "{depends}");
    let root = dir.path().join("root");
    text("dpkg-deb", &["--raw-extract", &package, root.to_str().unwrap()]);
    for name in [
        "usr/bin/limen",
        "usr/share/man/man1/limen.1.gz",
        "usr/share/man/man1/limen-mount.1.gz",
        "usr/share/man/man8/mount.limen.8.gz",
        "usr/share/man/man8/umount.fuse.limen.8.gz",
        "usr/share/bash-completion/completions/limen",
        "usr/share/zsh/vendor-completions/_limen",
        "usr/share/fish/vendor_completions.d/limen.fish",
        "usr/share/doc/limen/copyright",
        "usr/share/doc/limen/changelog.gz",
        "etc/logrotate.d/limen",
        "lib/systemd/system/limen@.service",
    ] {
        assert!(fs::metadata(root.join(name)).is_ok_and(|file| file.len() > 0), "{name} is missing");
    }
    for helper in ["sbin/mount.limen", "sbin/umount.fuse.limen"] {
        assert_eq!(fs::read_link(root.join(helper)).unwrap(), Path::new("/usr/bin/limen"));
    }
    let sums = fs::read_to_string(root.join("DEBIAN/md5sums")).unwrap();
    assert!(sums.contains("  usr/bin/limen\n") && !sums.contains("DEBIAN"), "{sums}");
    let files = text("find", &[root.to_str().unwrap(), "-type", "f", "-not", "-path", "*/DEBIAN/*"]);
    assert_eq!(sums.lines().count(), files.lines().count());
    let checked =
        Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&root).status();
    assert!(checked.unwrap().success());
    assert_eq!(fs::read_to_string(root.join("DEBIAN/conffiles")).unwrap(), "/etc/logrotate.d/limen\n");
    let left = fs::read_dir(dir.path().join("deb")).unwrap().count();
    assert_eq!(left, 1, "only the package is left");
}

#[test]
fn the_rotation_of_logs_signals_mounts_in_the_background_only() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rotate = fs::read_to_string(top.join("dist/limen.logrotate")).unwrap();
    let pattern = rotate.split('\'').nth(1).unwrap();
    // The first arguments of the process that `limen mount -d` starts.
    let daemon = fs::read_to_string(top.join("crates/cli/src/daemon.rs")).unwrap();
    assert!(daemon.contains(r#"arg0("limen").args(["mount", "--report", "--log"]).arg(&log_path)"#));
    assert_eq!(pattern, "^limen mount --report --log /var/log/limen-");
}
