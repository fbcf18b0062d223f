//! Fuzzes the parser. The length in the header is corrected for half of the inputs, so that the fuzzer gets
//! past that check.

#![no_main]

use fuse_proto::{Operation, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (fix_length, mut bytes) = input;
    if fix_length && bytes.len() >= 4 {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }
    if let Ok(request) = Request::parse(&bytes) {
        assert!(request.supp_groups.iter().count() * 4 <= bytes.len());
        if let Operation::BatchForget(forgets) = request.operation {
            assert!(forgets.iter().count() * 16 <= bytes.len());
        }
    }
});
