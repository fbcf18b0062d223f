//! Requests built byte for byte in the kernel's layout, and bytes that the kernel would never send.

use fuse_proto::{
    Fh, InitFlags, Malformed, NodeId, Opcode, Operation, RenameFlags, Request, SetTime, Unique,
};
use proptest::prelude::*;
use types::Time;

/// The bytes of a request; extensions are the last `ext_words` times 8 bytes of `args`.
fn request(opcode: Opcode, ext_words: u16, args: &[&[u8]]) -> Vec<u8> {
    let args = args.concat();
    let mut bytes = Vec::new();
    bytes.extend((40 + args.len() as u32).to_ne_bytes());
    bytes.extend(opcode.0.to_ne_bytes());
    bytes.extend(99u64.to_ne_bytes());
    bytes.extend(5u64.to_ne_bytes());
    for id in [1000u32, 100, 4242] {
        bytes.extend(id.to_ne_bytes());
    }
    bytes.extend(ext_words.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(args);
    bytes
}

fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn why(bytes: &[u8]) -> Malformed {
    Request::parse(bytes).unwrap_err().why
}

#[test]
fn header_is_parsed() {
    let bytes = request(Opcode::LOOKUP, 0, &[b"name\0"]);
    let request = Request::parse(&bytes).unwrap();
    let h = request.header;
    assert_eq!((h.unique, h.nodeid, h.opcode), (Unique(99), NodeId(5), Opcode::LOOKUP));
    assert_eq!((h.uid, h.gid, h.pid), (1000, 100, 4242));
    assert!(matches!(request.operation, Operation::Lookup { name: b"name" }));
    assert!(request.supp_groups.is_empty());
}

#[test]
fn getattr_tells_whether_it_is_made_through_an_open_file() {
    for (flags, through) in [(0, false), (1, true)] {
        let bytes = request(Opcode::GETATTR, 0, &[&u32s(&[flags, 0]), &u64s(&[7])]);
        let Operation::GetAttr { by_handle } = Request::parse(&bytes).unwrap().operation else { panic!() };
        assert_eq!(by_handle, through);
    }
}

#[test]
fn init_flags_are_joined_from_two_words() {
    let flags = (InitFlags::INIT_EXT | InitFlags::POSIX_ACL).bits() as u32;
    let mut args = u32s(&[7, 45, 65536, flags, 1 << 9]);
    args.resize(64, 0);
    let bytes = request(Opcode::INIT, 0, &[&args]);
    let Operation::Init(init) = Request::parse(&bytes).unwrap().operation else { panic!() };
    assert_eq!((init.major, init.minor, init.max_readahead_bytes), (7, 45, 65536));
    assert!(init.flags.contains(InitFlags::OVER_IO_URING | InitFlags::POSIX_ACL));
    let old = request(Opcode::INIT, 0, &[&u32s(&[7, 33, 1, 1])]);
    let Operation::Init(init) = Request::parse(&old).unwrap().operation else { panic!() };
    assert_eq!(init.flags, InitFlags::ASYNC_READ);
}

#[test]
fn supplementary_group_is_parsed() {
    let create = u32s(&[0o102, 0o100644, 0o022, 1]);
    let ext = u32s(&[16, 32, 1, 777]);
    let bytes = request(Opcode::CREATE, 2, &[&create, b"file\0", &ext]);
    let request = Request::parse(&bytes).unwrap();
    let Operation::Create(create) = request.operation else { panic!() };
    assert_eq!((create.name, create.flags, create.mode), (&b"file"[..], 0o102, 0o100644));
    assert_eq!(create.umask, 0o022);
    assert_eq!(request.supp_groups.iter().collect::<Vec<_>>(), [777]);
}

#[test]
fn security_contexts_before_the_groups_are_skipped() {
    let contexts = [u32s(&[16, 1]), vec![0; 8]].concat();
    let ext = [contexts, u32s(&[24, 32, 2, 7, 8, 0])].concat();
    let bytes = request(Opcode::SYMLINK, 5, &[b"l\0", b"../a/b\0", &ext]);
    let request = Request::parse(&bytes).unwrap();
    assert!(matches!(request.operation, Operation::Symlink { name: b"l", target: b"../a/b" }));
    assert_eq!(request.supp_groups.iter().collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn setattr_has_only_the_changed_attributes() {
    let valid = 1 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;
    let args =
        [u32s(&[valid, 0]), u64s(&[1, 2, 3, (-1i64) as u64, 5, 6]), u32s(&[500, 0, 0, 0o100600, 0, 8, 9, 0])]
            .concat();
    let bytes = request(Opcode::SETATTR, 0, &[&args]);
    let Operation::SetAttr(set) = Request::parse(&bytes).unwrap().operation else { panic!() };
    assert_eq!((set.mode, set.uid, set.gid, set.size_bytes), (Some(0o100600), None, None, None));
    assert_eq!(set.atime, Some(SetTime::At(Time::new(-1, 500))));
    assert_eq!((set.mtime, set.ctime), (Some(SetTime::Now), None));
    assert!(set.fh.is_none() && set.kill_suidgid);
}

#[test]
fn writes_borrow_their_data() {
    let args = [u64s(&[1, 4096]), u32s(&[3, 0b111]), u64s(&[9]), u32s(&[2, 0])].concat();
    let bytes = request(Opcode::WRITE, 0, &[&args, b"abc"]);
    let Operation::Write(write) = Request::parse(&bytes).unwrap().operation else { panic!() };
    assert_eq!((write.fh, write.offset, write.data), (Fh(1), 4096, &b"abc"[..]));
    assert!(write.from_cache && write.kill_suidgid);
    assert_eq!(why(&request(Opcode::WRITE, 0, &[&args, b"ab"])), Malformed::Count);
    assert_eq!(why(&request(Opcode::WRITE, 0, &[&args, b"abcd"])), Malformed::Count);
}

#[test]
fn two_strings_are_parsed_in_order() {
    let args = [u64s(&[6]), u32s(&[2, 0])].concat();
    let bytes = request(Opcode::RENAME2, 0, &[&args, b"old\0new\0"]);
    let Operation::Rename { name, new_parent, new_name, flags } = Request::parse(&bytes).unwrap().operation
    else {
        panic!()
    };
    assert_eq!((name, new_parent, new_name), (&b"old"[..], NodeId(6), &b"new"[..]));
    assert_eq!(flags, RenameFlags::EXCHANGE);

    let args = u32s(&[3, 1, 1, 0]);
    let bytes = request(Opcode::SETXATTR, 0, &[&args, b"user.a/b\0", b"v\0w"]);
    let Operation::SetXattr(set) = Request::parse(&bytes).unwrap().operation else { panic!() };
    assert_eq!((set.name, set.value), (&b"user.a/b"[..], &b"v\0w"[..]));
    assert!(set.acl_kill_sgid && set.flags == 1);
}

#[test]
fn tmpfile_has_the_name_slash() {
    let bytes = request(Opcode::TMPFILE, 0, &[&u32s(&[2, 0o100600, 0, 0]), b"/\0"]);
    assert!(matches!(Request::parse(&bytes).unwrap().operation, Operation::TmpFile(_)));
}

#[test]
fn forgets_are_counted() {
    let args = [u32s(&[2, 0]), u64s(&[7, 1, 8, 2])].concat();
    let bytes = request(Opcode::BATCH_FORGET, 0, &[&args]);
    let Operation::BatchForget(forgets) = Request::parse(&bytes).unwrap().operation else { panic!() };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(NodeId(7), 1), (NodeId(8), 2)]);
    let args = [u32s(&[u32::MAX, 0]), u64s(&[7, 1, 8, 2])].concat();
    assert_eq!(why(&request(Opcode::BATCH_FORGET, 0, &[&args])), Malformed::Count);
}

#[test]
fn unknown_opcodes_are_valid_requests() {
    let bytes = request(Opcode(4711), 0, &[b"whatever"]);
    let operation = Request::parse(&bytes).unwrap().operation;
    assert!(matches!(operation, Operation::Unknown(Opcode(4711))));
}

#[test]
fn malformed_requests_are_rejected_with_their_id_and_reason() {
    let headless = Request::parse(&[0; 39]).unwrap_err();
    assert_eq!((headless.unique, headless.why), (None, Malformed::Short));

    let mut longer = request(Opcode::STATFS, 0, &[]);
    longer.push(0);
    let error = Request::parse(&longer).unwrap_err();
    assert_eq!((error.unique, error.opcode), (Some(Unique(99)), Some(Opcode::STATFS)));
    assert_eq!(error.why, Malformed::Length);

    assert_eq!(why(&request(Opcode::STATFS, 0, &[b"x"])), Malformed::LeftOver);
    assert_eq!(why(&request(Opcode::READ, 0, &[&[0; 39]])), Malformed::Short);
    assert_eq!(why(&request(Opcode::LOOKUP, 0, &[b"abc"])), Malformed::Unterminated);
    assert_eq!(why(&request(Opcode::LOOKUP, 0, &[b"\0"])), Malformed::Name);
    assert_eq!(why(&request(Opcode::UNLINK, 0, &[b"a/b\0"])), Malformed::Name);
    assert_eq!(why(&request(Opcode::LOOKUP, 0, &[b"a\0b\0"])), Malformed::LeftOver);
    assert_eq!(why(&request(Opcode::LOOKUP, 9, &[b"a\0"])), Malformed::Extension);
    for ext in [u32s(&[0, 32]), u32s(&[16, 32]), u32s(&[7, 99]), u32s(&[8, 32])] {
        assert_eq!(why(&request(Opcode::LOOKUP, 1, &[b"a\0", &ext])), Malformed::Extension);
    }
    let too_many = u32s(&[16, 32, u32::MAX, 0]);
    assert_eq!(why(&request(Opcode::LOOKUP, 2, &[b"a\0", &too_many])), Malformed::Extension);
    let mut setattr = vec![0; 88];
    setattr[..4].copy_from_slice(&(1u32 << 4).to_ne_bytes());
    setattr[56..60].copy_from_slice(&1_000_000_000u32.to_ne_bytes());
    assert_eq!(why(&request(Opcode::SETATTR, 0, &[&setattr])), Malformed::Time);
}

/// Reads all parts of a request, as a dispatcher would.
fn walk(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        let groups = request.supp_groups.iter().count();
        assert!(groups * 4 <= bytes.len());
        if let Operation::BatchForget(forgets) = request.operation {
            assert!(forgets.iter().count() * 16 <= bytes.len());
        }
        assert!(!format!("{request:?}").is_empty());
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        walk(&bytes);
    }

    #[test]
    fn random_arguments_of_every_opcode_never_panic(
        opcode in 0u32..60,
        ext_words in prop_oneof![3 => Just(0u16), 1 => 0u16..8],
        args in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(16), Just(32), any::<u8>()], 0..160),
        cut in prop_oneof![Just(0usize), 0usize..8],
    ) {
        let bytes = request(Opcode(opcode), ext_words, &[&args]);
        walk(&bytes);
        walk(&bytes[..bytes.len() - cut.min(bytes.len())]);
    }
}
