//! Relays TCP connections to a server on this machine, and delays the data of both sides, for measurements of
//! a slow network. Each round trip takes DELAY more; the bandwidth is not limited.
//!
//!     cargo run --release -p servers --example delay -- PORT SERVER-PORT DELAY-MICROSECONDS

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The largest number of pieces of data that are on their way in one direction at a time.
const MAX_PIECES: usize = 4096;

fn main() {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|argument| argument.parse().ok()).collect();
    let Some(&[port, server, micros]) = numbers.as_deref() else {
        eprintln!("usage: delay PORT SERVER-PORT DELAY-MICROSECONDS");
        std::process::exit(2);
    };
    // Each direction takes half of the delay.
    let delay = Duration::from_nanos(micros * 500);
    let at = |port: u64| ("127.0.0.1", u16::try_from(port).expect("a port"));
    // Timers of this process must not be late by the default slack of 50 microseconds.
    std::fs::write("/proc/self/timerslack_ns", "1").expect("the timer slack of a process can be set");
    for client in TcpListener::bind(at(port)).expect("the port is free").incoming() {
        let (Ok(client), Ok(upstream)) = (client, TcpStream::connect(at(server))) else { continue };
        for stream in [&client, &upstream] {
            stream.set_nodelay(true).expect("a connected stream");
        }
        let copies = (client.try_clone().expect("a descriptor"), upstream.try_clone().expect("a descriptor"));
        thread::spawn(move || relay(client, upstream, delay));
        thread::spawn(move || relay(copies.1, copies.0, delay));
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (send, pieces) = sync_channel(MAX_PIECES);
    let writer = to.try_clone().expect("a descriptor");
    let writes = thread::spawn(move || write_when_due(&pieces, writer));
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if send.send((Instant::now() + delay, bytes[..len].to_vec())).is_err() {
            break;
        }
    }
    drop(send);
    let _ = writes.join();
    let _ = to.flush();
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn write_when_due(pieces: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (due, bytes) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
}
