//! `limen fsck` and `limen gc` on volumes in SQLite: records and objects are damaged by hand; fsck finds,
//! names and repairs the damage, gc removes what is unused.

mod common;
mod harness;
mod wire;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{Place, limen};
use engine_sqlite::{Options, SqliteEngine};
use harness::{Mounted, Random, as_user, refused};
use meta::{Access, Counter, Effect, Engine, Inode, RecordKey, Txn};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use types::{AclId, FileType, Ino, Mode, Name, OpId, SessionId, SliceId};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4 * MIB;

/// The output of `limen fsck --json` with these arguments; panics unless it exits with `code`.
#[track_caller]
fn fsck(place: &Place, args: &[&str], code: i32) -> Value {
    let said = limen(&[&["fsck", "--json"], args, &[&place.url()]].concat());
    assert_eq!(said.code, Some(code), "{said:?}");
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

#[track_caller]
fn gc(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&limen(&[&["gc", "--json"], args, &[&place.url()]].concat()).ok()).unwrap()
}

fn codes(found: &Value, repaired: bool) -> Vec<&str> {
    let problems = found["problems"].as_array().unwrap().iter();
    let chosen = problems.filter(|problem| problem["repaired"] == repaired);
    chosen.map(|problem| problem["code"].as_str().unwrap()).collect()
}

/// Changes records directly in the database, without guards.
fn damage(place: &Place, effects: Vec<Effect>) {
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    engine.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects }]).unwrap();
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn ino(path: &Path) -> Ino {
    Ino(fs::symlink_metadata(path).unwrap().ino())
}

/// All objects of the volume.
fn objects(place: &Place) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![place.path("vol.data/chunks")]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Kills the server (SIGKILL) and waits until it is gone, so that it no longer holds the volume.
fn kill(place: &Place) {
    let server = place.server();
    kill_process(Pid::from_raw(server as i32).unwrap(), Signal::KILL).unwrap();
    let is_running = || {
        let stat = fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    for _ in 0..6000 {
        if !is_running() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("process {server} does not end");
}

/// An unmounted volume with some directories, files, a hard link and a symbolic link.
fn sample() -> Option<(Mounted, [Ino; 4])> {
    let volume = Mounted::new(&[])?;
    fs::create_dir_all(volume.at("d/sub/deep")).unwrap();
    fs::write(volume.at("d/f"), b"small").unwrap();
    fs::write(volume.at("d/big"), Random(5).bytes(3 * BLOCK)).unwrap();
    fs::hard_link(volume.at("d/f"), volume.at("twin")).unwrap();
    symlink("target", volume.at("d/l")).unwrap();
    fs::write(volume.at("d/sub/deep/below"), b"kept").unwrap();
    let inos = ["d", "d/sub", "d/f", "d/big"].map(|path| ino(&volume.at(path)));
    volume.place.umount(&[]).ok();
    // On a busy machine a slow write may be stored in more slices, because data is also flushed by age.
    for _ in 0..10 {
        if objects(&volume.place).len() == 3 {
            return Some((volume, inos));
        }
        volume.place.mount(&[]).ok();
        fs::write(volume.at("d/big"), Random(5).bytes(3 * BLOCK)).unwrap();
        volume.place.umount(&[]).ok();
    }
    panic!("expected three objects, found {:?}", objects(&volume.place));
}

#[test]
fn mounted_and_unmounted_volumes_are_clean() {
    let Some((volume, _)) = sample() else { return };
    for args in [&[][..], &["--data"], &["--repair"], &["--repair", "--data"]] {
        let found = fsck(&volume.place, args, 0);
        assert_eq!((found["clean"].as_bool(), found["not_named"].as_u64()), (Some(true), Some(0)));
        assert_eq!(found["checked"]["inodes"], 8);
    }
    let text = limen(&["fsck", "--data", &volume.place.url()]).ok();
    assert!(text.contains("is clean: 8 inodes, 8 names") && text.contains("12.0 MiB"), "{text}");
    volume.place.mount(&[]).ok();
    let open = fs::File::create(volume.at("open")).unwrap();
    fs::remove_file(volume.at("open")).unwrap();
    let said = limen(&["fsck", &volume.place.url()]);
    assert!(said.err.contains("is mounted"), "{said:?}");
    said.ok();
    let said = limen(&["fsck", "--repair", &volume.place.url()]);
    said.failed(8, &["it is mounted", &volume.place.mnt()]);
    let before = objects(&volume.place);
    gc(&volume.place, &["--delete", "--grace", "0"]);
    assert_eq!(objects(&volume.place), before);
    assert_eq!(gc(&volume.place, &[])["deleted"], false);
    drop(open);
    limen(&["fsck", "sqlite:///nowhere/v.db"]).failed(8, &["no volume"]);
    limen(&["fsck", "nonsense"]).failed(2, &["URL"]);
}

#[test]
fn damaged_records_are_named_and_repaired() {
    let Some((volume, [d, sub, f, big])) = sample() else { return };
    let place = &volume.place;
    let drop_dirent = |parent, text| Effect::DropDirent { parent, name: name(text) };
    let cases: Vec<(Vec<Effect>, &str, Option<&str>)> = vec![
        (vec![Effect::AddLinks { ino: f, delta: 5 }], "links", Some("/twin")),
        (vec![Effect::AddLinks { ino: d, delta: 1 }], "links", Some("/d")),
        (vec![Effect::AddXattrBlocks { ino: d, delta: 3 }], "xattr-blocks", Some("/d")),
        (vec![Effect::SetParent { ino: sub, parent: Ino::ROOT }], "parent", None),
        (
            vec![Effect::PutDirent { parent: d, name: name("no"), ino: Ino(2222), kind: FileType::Regular }],
            "entry-without-inode",
            Some("/d/no"),
        ),
        (
            vec![Effect::PutDirent { parent: d, name: name("big"), ino: big, kind: FileType::Fifo }],
            "entry-kind",
            Some("/d/big"),
        ),
        (
            vec![Effect::PutDirent { parent: d, name: name("sub2"), ino: sub, kind: FileType::Directory }],
            "second-name",
            Some("/d/sub2"),
        ),
        (vec![Effect::PutOrphan { session: SessionId(1), ino: f }], "stale-orphan", None),
        (vec![Effect::AddUsage { inodes: 7, blocks: -2 }], "usage", None),
        (vec![Effect::SetCounter { counter: Counter::Ino, value: 3 }], "counter", None),
        (vec![drop_dirent(d, "sub")], "lost", None),
    ];
    for (effects, code, path) in cases {
        damage(place, effects);
        let found = fsck(place, &[], 4);
        let problems = found["problems"].as_array().unwrap();
        let problem = problems.iter().find(|problem| problem["code"] == code);
        let problem = problem.unwrap_or_else(|| panic!("{code} is not in {found}"));
        if let Some(path) = path {
            assert_eq!(problem["path"], path, "{found}");
        }
        assert!(
            fsck(place, &[], 4)["problems"] == found["problems"],
            "fsck without --repair changes nothing"
        );
        let found = fsck(place, &["--repair"], 1);
        assert!(codes(&found, true).contains(&code) && codes(&found, false).is_empty(), "{found}");
        fsck(place, &["--data"], 0);
    }
    place.mount(&[]).ok();
    let found = volume.at("lost+found").join(format!("#{sub}"));
    assert_eq!(fs::read(found.join("deep/below")).unwrap(), b"kept");
    assert_eq!(fs::read(volume.at("twin")).unwrap(), b"small");
    assert_eq!(fs::metadata(volume.at("d")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(volume.at("lost+found")).unwrap().mode() & 0o7777, 0o700);
    fs::write(volume.at("new"), b"fresh numbers").unwrap();
    place.umount(&[]).ok();
    fsck(place, &["--data"], 0);
}

#[test]
fn a_path_is_checked_without_the_rest_of_the_volume() {
    let Some((volume, [_, sub, f, _])) = sample() else { return };
    let place = &volume.place;
    let below = |path, code, expected: &[&str]| {
        let found = fsck(place, &["--data", "--path", path], code);
        assert_eq!((&found["path"], codes(&found, false)), (&path.into(), expected.to_vec()), "{found}");
        found
    };
    let found = below("/d", 0, &[]);
    assert!(found["unreferenced"].is_null(), "{found}");
    let expected = (7.into(), 7.into(), (3 * BLOCK).into(), 1.into());
    let counts = |found: &Value| {
        let checked = &found["checked"];
        let of = |key: &str| checked[key].clone();
        (of("inodes"), of("names"), of("bytes"), found["elsewhere"]["linked_files"].clone())
    };
    assert_eq!(counts(&found), expected, "{found}");
    assert_eq!(below("/d/sub", 0, &[])["checked"]["inodes"], 3);
    let text = limen(&["fsck", "--path", "twin", &place.url()]).ok();
    assert!(text.contains("'twin' of volume 'vol' is clean: 1 inode, 1 name"), "{text}");
    assert!(text.contains("1 file has more links than names there"), "{text}");

    let bad = vec![
        Effect::AddLinks { ino: f, delta: -1 },
        Effect::AddLinks { ino: sub, delta: 1 },
        Effect::AddUsage { inodes: 1, blocks: 0 },
    ];
    damage(place, bad);
    let big = objects(place).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    fs::remove_file(big).unwrap();
    // The link count of `f` is right for the name in `d`, and wrong for the volume.
    let found = below("/d", 4, &["links"]);
    assert_eq!(
        (&found["problems"][0]["path"], &found["damage"][0]["path"]),
        (&"/d/sub".into(), &"/d/big".into())
    );
    assert_eq!(below("/d/sub", 4, &["links"])["damage"].as_array().unwrap().len(), 0);
    assert_eq!(below("/d/sub/deep", 0, &[])["checked"]["names"], 2);
    assert_eq!(codes(&fsck(place, &["--path", "/"], 4), false).len(), 3);

    place.mount(&[]).ok();
    let said = limen(&["fsck", "--path", "/d", &place.mnt()]);
    said.failed(4, &["the volume is mounted"]);
    let said = limen(&["fsck", "--path", "d/none", &place.mnt()]);
    said.failed(8, &["d/none", "no such path", "begins at the volume's root"]);
    limen(&["fsck", "--path", "/d/..", &place.url()]).failed(2, &["/d/.."]);
    limen(&["fsck", "--repair", "--path", "/d", &place.url()]).failed(2, &["--repair", "--path"]);
}

/// Changes the access attributes of an inode directly in the database.
fn damage_access(place: &Place, ino: Ino, more: Vec<Effect>, change: impl Fn(&Inode, &mut Access)) {
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    let inode = match engine.read(&[RecordKey::Inode(ino)]).unwrap().records.first() {
        Some(meta::Record::Inode(_, Some(inode))) => *inode,
        other => panic!("{other:?}"),
    };
    drop(engine);
    let mut access = Access::from(&inode);
    change(&inode, &mut access);
    damage(place, [more, vec![Effect::SetAccess { ino, access }]].concat());
}

#[test]
fn damaged_nfs4_acls_are_named_and_deny_access() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let place = &volume.place;
    let files = ["missing", "noise", "of-another", "mode", "sids"].map(|name| volume.at(name));
    let text = "A::7001:rw,A::1-1105:rwC,A::OWNER@:rwaxdDtTnNcCoy,A::EVERYONE@:x";
    for path in &files {
        fs::write(path, "text").unwrap();
        wire::set_of(path, text, "S-1-5-21-1-2-3").unwrap();
    }
    let inos = files.clone().map(|path| ino(&path));
    place.umount(&[]).ok();
    fsck(place, &[], 0);

    let put = |id: u128, text: &str| vec![Effect::PutAcl { id: AclId(id), text: text.into() }];
    damage_access(place, inos[0], vec![], |_, it| it.access_acl = AclId(0xdead));
    damage_access(place, inos[1], put(77, "A::7001:rw,A::"), |_, it| it.access_acl = AclId(77));
    damage_access(place, inos[2], put(78, "A::EVERYONE@:rwx"), |_, it| it.access_acl = AclId(78));
    damage_access(place, inos[3], vec![], |_, it| it.mode = Mode::new(0o777));
    damage(place, vec![Effect::PutSetting { name: "domains", value: String::new() }]);
    let found = fsck(place, &[], 4);
    let said = |found: &Value, code: &str| -> Vec<(String, bool)> {
        let all = found["problems"].as_array().unwrap().iter().filter(|problem| problem["code"] == code);
        let mut all: Vec<_> =
            all.map(|one| (one["path"].as_str().unwrap().to_owned(), one["repaired"] == true)).collect();
        all.sort();
        all
    };
    let at = |names: &[(&str, bool)]| -> Vec<(String, bool)> {
        names.iter().map(|(name, repaired)| ((*name).to_owned(), *repaired)).collect()
    };
    assert_eq!(said(&found, "acl-missing"), at(&[("/missing", false)]));
    assert_eq!(said(&found, "acl-damaged"), at(&[("/noise", false), ("/of-another", false)]));
    assert_eq!(said(&found, "acl-mode"), at(&[("/mode", false)]));
    assert_eq!(said(&found, "acl-domain"), at(&[("/mode", false), ("/sids", false)]));
    let found = fsck(place, &["--repair"], 4);
    assert_eq!(codes(&found, false), ["acl-missing", "acl-damaged", "acl-damaged"], "{found}");
    assert_eq!(said(&found, "acl-mode"), at(&[("/mode", true)]));

    place.mount(&[]).ok();
    for (path, granted) in files.iter().zip([false, false, false, true, true]) {
        as_user(7001, 7001, || match granted {
            true => assert_eq!(fs::read(path).unwrap(), b"text"),
            // The kernel gets a mode without permission bits.
            false => refused(fs::read(path), Errno::ACCESS),
        });
        as_user(1105, 1105, || refused(fs::read(path), Errno::ACCESS));
    }
    let stored = limen(&["ls", "--json", &format!("{}:/mode", place.url())]).ok();
    assert!(stored.contains("\"mode\":\"0711\""), "{stored}");
    let value = wire::value(&files[4], wire::NFS4_ACL).unwrap();
    assert!(value.windows(12).any(|part| part == b"S-1-0-0-1105"), "the SID is one that no user can have");
    // The owner can set a new ACL.
    for path in &files {
        wire::set_of(path, text, "S-1-5-21-1-2-3").unwrap();
        as_user(7001, 7001, || assert_eq!(fs::read(path).unwrap(), b"text"));
    }
    place.umount(&[]).ok();
    fsck(place, &["--data"], 0);
}

#[test]
fn damaged_blocks_are_named_by_file_and_range() {
    let Some((volume, _)) = sample() else { return };
    let place = &volume.place;
    let all = objects(place);
    assert_eq!(all.len(), 3, "{all:?}");
    let block = |at: usize| (at * BLOCK) as u64;
    let whole = fs::read(&all[1]).unwrap();
    // The damage, the range that is lost, and a word of the message.
    type Harm<'a> = (&'a dyn Fn(), (u64, u64), &'a str);
    let harms: [Harm<'_>; 3] = [
        (
            &|| {
                let file = fs::OpenOptions::new().write(true).open(&all[1]).unwrap();
                file.write_all_at(&[whole[MIB] ^ 1], MIB as u64).unwrap();
                file.write_all_at(&[whole[MIB + 70_000] ^ 1], MIB as u64 + 70_000).unwrap();
            },
            (block(1) + MIB as u64, block(1) + MIB as u64 + (128 << 10)),
            "corrupt",
        ),
        (
            &|| fs::OpenOptions::new().write(true).open(&all[1]).unwrap().set_len(1000).unwrap(),
            (block(1), block(2)),
            "",
        ),
        (&|| fs::remove_file(&all[1]).unwrap(), (block(1), block(2)), "missing"),
    ];
    for (harm, (from, to), word) in harms {
        harm();
        fsck(place, &[], 0);
        for args in [&["--data"][..], &["--data", "--repair"]] {
            let found = fsck(place, args, 4);
            let damage = found["damage"].as_array().unwrap();
            assert_eq!(damage.len(), 1, "{found}");
            assert_eq!(damage[0]["path"], "/d/big");
            assert_eq!((damage[0]["from"].as_u64(), damage[0]["to"].as_u64()), (Some(from), Some(to)));
            let message = damage[0]["message"].as_str().unwrap();
            let key = all[1].file_name().unwrap().to_str().unwrap();
            assert!(message.contains(word) && message.contains(key), "{message}");
        }
        let text = limen(&["fsck", "--data", &place.url()]).out;
        assert!(text.contains(&format!("/d/big: bytes {from} to {}", to - 1)), "{text}");
        fs::write(&all[1], &whole).unwrap();
        fsck(place, &["--data"], 0);
    }
}

#[test]
fn only_unreferenced_objects_are_removed() {
    let Some((volume, _)) = sample() else { return };
    let place = &volume.place;
    let before = objects(place);
    let copy = |to: &str| {
        let to = place.path("vol.data/chunks").join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&before[0], &to).unwrap();
        to
    };
    let next = 4096;
    let stray = copy(&format!("0/4/{next}_0_{BLOCK}"));
    let future = copy(&format!("0/900/900000_1_{BLOCK}"));
    let found = fsck(place, &["--data"], 4);
    assert_eq!(found["unreferenced"]["objects"], 2);
    assert_eq!(codes(&found, false), ["counter"], "an object has a number that was never allocated");
    // Both objects are young, and one has a number that was never allocated.
    let found = gc(place, &["--delete"]);
    assert_eq!((&found["unreferenced"]["objects"], &found["kept_objects"]), (&0.into(), &2.into()));
    let found = gc(place, &["--grace", "0"]);
    assert_eq!((&found["unreferenced"]["objects"], &found["kept_objects"]), (&1.into(), &1.into()));
    assert!(stray.exists());
    gc(place, &["--delete", "--grace", "0"]);
    assert!(!stray.exists() && future.exists());
    fsck(place, &["--data", "--repair"], 1);
    gc(place, &["--delete", "--grace", "0s"]);
    assert_eq!(objects(place), before);
    fsck(place, &["--data"], 0);
}

#[test]
fn gc_removes_what_a_killed_mount_left_without_another_mount() {
    let Some((volume, _)) = sample() else { return };
    let place = &volume.place;
    // Mount without a journal, because the replay of a journal would remove the session.
    place.mount(&["-o", "sync_metadata"]).ok();
    let held = fs::File::open(volume.at("d/big")).unwrap();
    fs::remove_file(volume.at("d/big")).unwrap();
    kill(place);
    drop(held);
    place.umount(&[]);
    fsck(place, &["--data"], 0);
    let found = gc(place, &[]);
    assert_eq!((&found["sessions"], &found["orphans"]), (&1.into(), &1.into()));
    assert_eq!(objects(place).len(), 3);
    let found = gc(place, &["--delete"]);
    assert_eq!(found["garbage"]["bytes"], 3 * BLOCK);
    assert!(objects(place).is_empty());
    let found = gc(place, &[]);
    assert_eq!((&found["sessions"], &found["orphans"]), (&0.into(), &0.into()));
    assert_eq!(found["garbage"]["slices"], 0);
    fsck(place, &["--data"], 0);
}

/// Each round runs random operations until the mount is killed.
#[test]
fn volume_stays_clean_under_random_operations_and_kills() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let place = &volume.place;
    for round in 0..4_u64 {
        let steps = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (mnt, steps) = (volume.at(""), Arc::clone(&steps));
                let mut random = Random(round * 10 + worker + 1);
                thread::spawn(move || {
                    while work(&mnt, &mut random) {
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(900));
        while steps.load(Ordering::Relaxed) == 0 && !workers.iter().any(|worker| worker.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        kill(place);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(steps.load(Ordering::Relaxed) > 0, "no operation was done before the kill");
        place.umount(&[]);
        fsck(place, &["--data"], 0);
        gc(place, &["--delete", "--grace", "0"]);
        assert_eq!(fsck(place, &["--data"], 0)["unreferenced"]["objects"], 0);
        place.mount(&[]).ok();
    }
    place.umount(&[]).ok();
    fsck(place, &["--data"], 0);
}

/// ENOTCONN and ECONNABORTED: the server is gone.
const GONE: [i32; 2] = [107, 103];

/// Random operations on a few names; returns `false` if the mount is gone.
fn work(mnt: &Path, random: &mut Random) -> bool {
    for _ in 0..50 {
        let mut path = || {
            let dir = mnt.join(format!("d{}", random.below(4)));
            (dir.clone(), dir.join(format!("f{}", random.below(6))))
        };
        let ((dir, a), (_, b)) = (path(), path());
        let done = match random.below(12) {
            0 => fs::create_dir(&dir),
            1 => fs::rename(&a, &b),
            2 => fs::hard_link(&a, &b),
            3 => fs::remove_file(&a),
            4 => symlink("somewhere", &a),
            5 => fs::rename(&dir, mnt.join(format!("d{}", random.below(4)))),
            6 => fs::OpenOptions::new()
                .write(true)
                .open(&a)
                .and_then(|file| file.set_len(random.below(2 << 20))),
            7 => fs::copy(&a, &b).map(drop),
            8 => fs::remove_dir_all(&dir),
            9 => fs::write(&a, some_bytes(random, 300_000)),
            10 => {
                let len = random.below(9000).to_string();
                let offset = random.below(100_000).to_string();
                let punch =
                    Command::new("fallocate").args(["-p", "-o", &offset, "-l", &len]).arg(&a).output();
                punch.map(drop)
            }
            _ => fs::write(&a, some_bytes(random, 6000)),
        };
        // When the mount is gone, the kernel still serves attributes from its cache, but changes fail.
        if done.is_err_and(|error| error.raw_os_error().is_some_and(|errno| GONE.contains(&errno))) {
            return false;
        }
    }
    true
}

fn some_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let len = random.below(most) as usize;
    random.bytes(len)
}

#[test]
fn garbage_slice_that_is_in_use_is_kept() {
    let Some((volume, [_, _, _, big])) = sample() else { return };
    let place = &volume.place;
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    let rows = match &engine.read(&[meta::RecordKey::Slices(big, types::ChunkIndex(0))]).unwrap().records[..]
    {
        [meta::Record::Slices(_, _, rows)] => rows.clone(),
        other => panic!("{other:?}"),
    };
    drop(engine);
    // The same row is added once more without a share count: dropping this row makes the slice garbage.
    let (from, to) = (types::ChunkIndex(9), types::ChunkIndex(10));
    let append = Effect::AppendSlice { ino: big, chunk: from, slice: rows[0].clone() };
    damage(place, vec![append, Effect::DropSlices { ino: big, from, to }]);
    let id = match rows[0].source {
        types::SliceSource::Blocks { id, .. } => id,
        ref other => panic!("{other:?}"),
    };
    assert_ne!(id, SliceId(0));
    assert_eq!(codes(&fsck(place, &[], 4), false), ["garbage-in-use"]);
    fsck(place, &["--repair"], 1);
    gc(place, &["--delete", "--grace", "0"]);
    fsck(place, &["--data"], 0);
    assert_eq!(objects(place).len(), 3);
}
