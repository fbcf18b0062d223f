//! A separate test program, because it measures the memory of the whole process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs;

const MIB: usize = 1 << 20;

/// `VmRSS` of `proc_pid_status(5)`.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn freed_blocks_are_returned_to_the_system() {
    fuse_transport::return_freed_memory();
    // Without the setting, this would raise the allocator's threshold.
    drop(std::hint::black_box(vec![1_u8; 16 * MIB]));
    let before = resident_bytes();
    // A small block that stays in use follows each large one.
    let blocks: Vec<(Vec<u8>, Box<[u8; 100]>)> =
        (0..64).map(|n| (vec![n; 2 * MIB], Box::new([n; 100]))).collect();
    assert!(resident_bytes() >= before + 100 * MIB);
    let small: Vec<Box<[u8; 100]>> = blocks.into_iter().map(|(_, small)| small).collect();
    assert!(resident_bytes() < before + 30 * MIB, "{} MiB", (resident_bytes() - before) / MIB);
    assert_eq!(small.len(), 64);
}
