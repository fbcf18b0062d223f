//! Connections, the token, and the headers of requests and answers.
//!
//! The pages show what the database holds, to a browser on this machine. Programs of other users of this
//! machine, and other sites in the same browser, must not see them:
//!
//! - A request needs the token, which is random and printed for the user. The first request has the token in
//!   its address; the answer puts the token into a cookie and redirects to the address without the token.
//! - The `Host` of a request must be this machine, so that a name of another site that suddenly resolves to
//!   127.0.0.1 (DNS rebinding) reaches nothing.
//! - There is nothing to change: only GET is answered, and no page has scripts.
//!
//! A browser sends the cookie to all ports of 127.0.0.1. So the token is not protected from another user of
//! this machine who runs a server on it and makes the browser open that server: the server gets the cookie.
//!
//! Each connection has a thread of its own, up to a limit, and one time limit for its whole request, so a
//! slow client does not delay others. At most a few pages are made at a time, so that many requests do not
//! overload the database.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use command::http::{HttpResponse, Refusal, Request};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::frame::Page;
use crate::pages;
use crate::request::{Query, to_hex};
use crate::source::Source;

/// The time limit for receiving a request.
const RECEIVE: Duration = Duration::from_secs(5);
/// The time limit for sending a page.
const SEND: Duration = Duration::from_secs(20);
/// The largest number of connections at a time. More are closed at once.
const MAX_CONNECTIONS: usize = 64;
/// The largest number of pages that are made at a time.
const MAX_PAGES: usize = 4;
/// How long a request waits while [`MAX_PAGES`] pages are made. Then it is rejected.
const SLOT_TIMEOUT: Duration = Duration::from_secs(30);

/// The parameter with the token in the address of the first request.
const TOKEN: &str = "token";

/// 128 random bits, without which no page is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// # Errors
    /// The kernel has no random numbers.
    pub fn random() -> io::Result<Token> {
        random().map(Token)
    }

    /// Compares in a time that does not depend on where the two differ.
    fn is(&self, given: &[u8]) -> bool {
        let differing = self.0.bytes().zip(given).fold(0, |all, (one, other)| all | (one ^ other));
        differing == 0 && self.0.len() == given.len()
    }
}

/// Does not show the token, so that no log has it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

/// 128 random bits as hexadecimal digits.
fn random() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        16 => Ok(to_hex(&bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A server of pages.
#[derive(Debug)]
pub struct Console {
    token: Token,
    port: u16,
    source: Arc<dyn Source>,
    connections: AtomicUsize,
    /// The number of pages that are being made.
    making: Mutex<usize>,
    made: Condvar,
}

impl Console {
    pub fn new(token: Token, address: SocketAddr, source: Arc<dyn Source>) -> Console {
        Console {
            token,
            port: address.port(),
            source,
            connections: AtomicUsize::new(0),
            making: Mutex::new(0),
            made: Condvar::new(),
        }
    }

    /// The address of the first request, which must be kept secret.
    pub fn address(&self, address: SocketAddr) -> String {
        format!("http://{address}/?{TOKEN}={}", self.token.0)
    }

    /// Answers requests until the process ends.
    pub fn serve(self: Arc<Self>, listener: &TcpListener) -> ! {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                // This process has too many open files, for example.
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let connection = Connection(Arc::clone(&self));
            if self.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
                continue;
            }
            let work = move || {
                if let Err(error) = connection.0.answer(&stream) {
                    tracing::debug!(%error, "cannot answer a request");
                }
            };
            if let Err(error) = thread::Builder::new().name("limen-page".into()).spawn(work) {
                tracing::debug!(%error, "cannot start a thread for a connection");
            }
        }
    }

    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        let request = Request::read(stream, RECEIVE)?;
        let is_bad = request.is_err();
        let nonce = random()?;
        let answer = match request {
            Ok(request) => self.answer_to(&request, &nonce),
            Err(refusal) => refuse(refusal, &nonce),
        };
        protected(answer, &nonce).send(stream, SEND, is_bad)
    }

    fn answer_to(&self, request: &Request, nonce: &str) -> HttpResponse {
        if !is_this_machine(request) {
            return refuse(Refusal::Forbidden, nonce);
        }
        let Some(query) = Query::parse(request.target()) else { return refuse(Refusal::BadRequest, nonce) };
        if let Some(token) = query.bytes(TOKEN) {
            if !self.token.is(token) {
                return refuse(Refusal::Forbidden, nonce);
            }
            let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie(), self.token.0);
            return HttpResponse::new("303 See Other", "text/plain", String::new())
                .header("Location", &query.without(TOKEN))
                .header("Set-Cookie", &cookie);
        }
        let cookies = request.header("cookie").flat_map(|line| line.split(';'));
        let mut tokens = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        if !tokens.any(|(name, token)| name == self.cookie() && self.token.is(token.as_bytes())) {
            return refuse(Refusal::Forbidden, nonce);
        }
        let Some(_slot) = self.page_slot() else { return refuse(Refusal::Busy, nonce) };
        match pages::page(&*self.source, &query) {
            Some(page) => sent(page, nonce),
            None => refuse(Refusal::NotFound, nonce),
        }
    }

    /// Cookies of one host are shared by all its ports, so the name has the port.
    fn cookie(&self) -> String {
        format!("limen-console-{}", self.port)
    }

    /// Waits until fewer than [`MAX_PAGES`] pages are being made; `None` if that takes longer than
    /// [`SLOT_TIMEOUT`].
    fn page_slot(&self) -> Option<PageSlot<'_>> {
        let until = Instant::now() + SLOT_TIMEOUT;
        let mut making = lock(&self.making);
        while *making >= MAX_PAGES {
            let left = until.checked_duration_since(Instant::now())?;
            making = self.made.wait_timeout(making, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *making += 1;
        Some(PageSlot(self))
    }
}

/// Counts a connection until it is closed.
struct Connection(Arc<Console>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A page that is being made. Dropping it makes room for another page, even after a panic.
struct PageSlot<'a>(&'a Console);

impl Drop for PageSlot<'_> {
    fn drop(&mut self) {
        *lock(&self.0.making) -= 1;
        self.0.made.notify_one();
    }
}

fn lock(mutex: &Mutex<usize>) -> MutexGuard<'_, usize> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a request is to this machine, by name or loopback address, on any port: it may come through a
/// tunnel.
fn is_this_machine(request: &Request) -> bool {
    let mut hosts = request.header("host");
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let (name, port) = match host.rfind(':') {
        Some(at) if !host.ends_with(']') => (&host[..at], &host[at + 1..]),
        _ => (host, "80"),
    };
    is_loopback(name) && port.parse::<u16>().is_ok()
}

/// Whether the name of a `Host` header is `localhost` or a loopback address; IPv6 addresses are in brackets.
fn is_loopback(name: &str) -> bool {
    let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().map(IpAddr::V6),
        None => name.parse::<Ipv4Addr>().map(IpAddr::V4),
    };
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn refuse(refusal: Refusal, nonce: &str) -> HttpResponse {
    let answer = HttpResponse::new(refusal.status(), HTML, pages::refusal(refusal).render(nonce));
    if refusal == Refusal::MethodNotAllowed { answer.header("Allow", "GET") } else { answer }
}

const HTML: &str = "text/html; charset=utf-8";

fn sent(page: Page, nonce: &str) -> HttpResponse {
    HttpResponse::new(page.status(), HTML, page.render(nonce))
}

/// Adds the headers that forbid the browser to run scripts, to load anything from other sites, to store the
/// page, and to show it inside another page.
fn protected(answer: HttpResponse, nonce: &str) -> HttpResponse {
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; img-src 'self' data:; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'"
    );
    answer
        .header("Content-Security-Policy", &policy)
        .header("Cache-Control", "no-store")
        .header("Referrer-Policy", "no-referrer")
        .header("X-Content-Type-Options", "nosniff")
        .header("Cross-Origin-Opener-Policy", "same-origin")
        .header("Cross-Origin-Resource-Policy", "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for name in ["localhost", "LocalHost", "127.0.0.1", "127.8.9.10", "[::1]", "[0:0:0:0:0:0:0:1]"] {
            assert!(is_loopback(name), "{name}");
        }
        for name in ["", "[]", "::1", "[::2]", "[127.0.0.1]", "128.0.0.1", "127.1", "0.0.0.0", "localhost."] {
            assert!(!is_loopback(name), "{name}");
        }
    }
}
