//! A proxy between a server or an object store and a mount, which counts and holds back traffic.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::kind::{Kind, get_body, unistore_counts};
use crate::server::Server;
use crate::store::Store;

/// The traffic that a [`Proxy`] holds back. Connections stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Nothing = 0,
    /// The connections of the stream of changes, in both directions.
    Stream = 1,
    /// All connections, in both directions.
    Everything = 2,
    /// Everything that the server sends, on all connections: requests are executed and get no answer.
    Answers = 3,
}

/// A TCP proxy between a mount and its server.
#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    /// The port of the server.
    server: u16,
    seen: Arc<Seen>,
}

/// The traffic that a proxy holds back, and counters of the stream of changes.
#[derive(Debug, Default)]
struct Seen {
    /// The client sends its polls over the same connection as everything else (TiKV), so the server holds
    /// them back and counts them.
    is_shared: bool,
    cut: AtomicU8,
    /// How many more messages clients can send before their connections are closed.
    left: AtomicU64,
    streams: AtomicU64,
    polls: AtomicU64,
}

/// A connection through a proxy.
#[derive(Debug, Default)]
struct Relayed {
    is_stream: AtomicBool,
    /// Whether the server was the last to send.
    is_answered: AtomicBool,
}

impl Proxy {
    pub fn to(server: &Server) -> Proxy {
        Proxy::to_port(server.port, server.kind == Kind::Tikv, server.kind.of_stream())
    }

    /// A proxy to an object store, which has no stream of changes.
    pub fn to_store(store: &Store) -> Proxy {
        Proxy::to_port(store.port(), false, b"no stream of changes")
    }

    /// `marker` is what clients send over the connection of the stream of changes.
    fn to_port(server: u16, is_shared: bool, marker: &'static [u8]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen { is_shared, left: AtomicU64::new(u64::MAX), ..Seen::default() });
        let all = Arc::clone(&seen);
        // The thread, like those of its connections, ends with the test program.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                // Nagle's algorithm would delay messages that are sent in several pieces.
                for stream in [&client, &upstream] {
                    stream.set_nodelay(true).unwrap();
                }
                let connection = Arc::new(Relayed::default());
                for (from, to, marker) in [
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap(), Some(marker)),
                    (upstream, client, None),
                ] {
                    let (seen, connection) = (Arc::clone(&all), Arc::clone(&connection));
                    thread::spawn(move || relay(from, to, marker, &connection, &seen));
                }
            }
        });
        Proxy { port, server, seen }
    }

    pub fn cut(&self, cut: Cut) {
        let before = self.seen.cut.swap(cut as u8, Ordering::SeqCst);
        if self.seen.is_shared && (before == Cut::Stream as u8) != (cut == Cut::Stream) {
            let how = if cut == Cut::Stream { "hold" } else { "release" };
            get_body(self.server, &format!("/{how}?of=127.0.0.1:{}", self.port));
        }
    }

    /// Relays this many more messages of clients. From then on, the connection of each client that sends one
    /// is closed.
    pub fn close_after(&self, messages: u64) {
        self.seen.left.store(messages, Ordering::SeqCst);
    }

    /// How many streams of changes were started.
    pub fn streams(&self) -> u64 {
        self.seen.streams.load(Ordering::SeqCst)
    }

    /// How often the client has polled on a stream, each time after it received the previous answer. So when
    /// the client sends poll `n + 1`, it has applied the changes that the server knew before poll `n`.
    pub fn polls(&self) -> u64 {
        if self.seen.is_shared {
            let counts = unistore_counts(self.server);
            return counts.get(&format!("Polls of 127.0.0.1:{}", self.port)).copied().unwrap_or_default();
        }
        self.seen.polls.load(Ordering::SeqCst)
    }
}

/// Relays one direction of a connection. `marker` is `None` for the direction from the server to the client.
fn relay(mut from: TcpStream, mut to: TcpStream, marker: Option<&[u8]>, connection: &Relayed, seen: &Seen) {
    let mut bytes = vec![0; 64 << 10];
    let may_send = || {
        let left = |left: u64| left.checked_sub(1);
        marker.is_none() || seen.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok()
    };
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if !may_send() {
            break;
        }
        if marker.is_some_and(|marker| bytes[..len].windows(marker.len()).any(|part| part == marker))
            && !connection.is_stream.swap(true, Ordering::SeqCst)
        {
            seen.streams.fetch_add(1, Ordering::SeqCst);
        }
        let is_stream = connection.is_stream.load(Ordering::SeqCst);
        // The first data that the client sends after an answer of the server is a poll.
        match marker {
            None => connection.is_answered.store(true, Ordering::SeqCst),
            Some(_) if connection.is_answered.swap(false, Ordering::SeqCst) && is_stream => {
                seen.polls.fetch_add(1, Ordering::SeqCst);
            }
            Some(_) => {}
        }
        loop {
            let cut = seen.cut.load(Ordering::SeqCst);
            let is_cut = cut == Cut::Stream as u8 && is_stream && !seen.is_shared;
            let is_answer = cut == Cut::Answers as u8 && marker.is_none();
            let held = cut == Cut::Everything as u8 || is_answer || is_cut;
            if !held {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
