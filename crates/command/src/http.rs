//! HTTP/1.1 requests without a body, and answers after which the connection is closed.
//!
//! No client is trusted: a request is at most [`MAX_REQUEST_BYTES`] long, and reading and sending have time
//! limits as a whole, so a client that is slow cannot hold a thread for longer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// How long the rest of a rejected request is read, so that the client gets the answer.
pub const LINGER: Duration = Duration::from_millis(200);
/// The longest head of a request. It has room for a path of 4096 bytes, each of which is percent-encoded.
pub const MAX_REQUEST_BYTES: usize = 24 << 10;

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Timeout,
    TooLarge,
    Busy,
}

impl Refusal {
    pub fn status(self) -> &'static str {
        match self {
            Refusal::BadRequest => "400 Bad Request",
            Refusal::Forbidden => "403 Forbidden",
            Refusal::NotFound => "404 Not Found",
            Refusal::MethodNotAllowed => "405 Method Not Allowed",
            Refusal::Timeout => "408 Request Timeout",
            Refusal::TooLarge => "431 Request Header Fields Too Large",
            Refusal::Busy => "503 Service Unavailable",
        }
    }

    /// An answer as plain text, with a line that says what can be requested.
    pub fn answer(self, advice: &str) -> HttpResponse {
        let answer = HttpResponse::new(self.status(), "text/plain", format!("{}\n{advice}\n", self.status()));
        if self == Refusal::MethodNotAllowed { answer.header("Allow", "GET") } else { answer }
    }
}

/// The head of a GET request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    target: String,
    /// Names in lower case, and values.
    headers: Vec<(String, String)>,
}

impl Request {
    /// Reads the head of a request within a time limit. A request that is not a GET of a path is rejected.
    ///
    /// # Errors
    /// The connection fails.
    pub fn read(stream: &TcpStream, limit: Duration) -> io::Result<Result<Request, Refusal>> {
        Ok(read_head(stream, Instant::now() + limit)?.and_then(|head| Request::parse(&head)))
    }

    fn parse(head: &[u8]) -> Result<Request, Refusal> {
        // The value of a header may contain bytes that are not UTF-8 (RFC 9110 section 5.5, obs-text).
        let head = String::from_utf8_lossy(head);
        let head = head.split("\r\n\r\n").next().unwrap_or_default();
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let [method, target, version] = first.split(' ').collect::<Vec<_>>()[..] else {
            return Err(Refusal::BadRequest);
        };
        if !version.starts_with("HTTP/1.") || !target.starts_with('/') || !target.is_ascii() {
            return Err(Refusal::BadRequest);
        }
        if method != "GET" {
            return Err(Refusal::MethodNotAllowed);
        }
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = lines.map(header).collect::<Option<_>>().ok_or(Refusal::BadRequest)?;
        Ok(Request { target: target.to_owned(), headers })
    }

    /// The path and query, as the client sent them.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// All values of a header, whose name is given in lower case.
    pub fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    head: String,
    body: String,
}

impl HttpResponse {
    pub fn new(status: &str, kind: &str, body: String) -> Self {
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
        HttpResponse { head, body }
    }

    /// Adds a header. Characters that would end it are left out.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let value: String = value.chars().filter(|letter| !letter.is_control()).collect();
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Sends the answer within a time limit, and closes the connection. `has_unread` is true if the client
    /// may have sent more than was read.
    ///
    /// # Errors
    /// The connection fails, or the client is too slow.
    pub fn send(&self, stream: &TcpStream, limit: Duration, has_unread: bool) -> io::Result<()> {
        let whole = format!("{}Connection: close\r\n\r\n{}", self.head, self.body);
        write_before(stream, whole.as_bytes(), Instant::now() + limit)?;
        stream.shutdown(Shutdown::Write)?;
        if has_unread {
            // Closing a socket with unread bytes resets the connection, and the client might not see the
            // answer.
            let until = Instant::now() + LINGER;
            let mut rest = [0; 4096];
            while read_before(stream, &mut rest, until).is_ok_and(|len| len > 0) {}
        }
        Ok(())
    }
}

/// Reads up to the empty line that ends the head of a request.
fn read_head(stream: &TcpStream, until: Instant) -> io::Result<Result<Vec<u8>, Refusal>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        if head.len() >= MAX_REQUEST_BYTES {
            return Ok(Err(Refusal::TooLarge));
        }
        match read_before(stream, &mut part, until) {
            Ok(0) => return Ok(Err(Refusal::BadRequest)),
            Ok(len) => head.extend_from_slice(&part[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(Err(Refusal::Timeout));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(head))
}

fn read_before(mut stream: &TcpStream, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    stream.set_read_timeout(Some(left(until)?))?;
    stream.read(buffer)
}

fn write_before(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_in_any_case() {
        let head = b"GET /a?b HTTP/1.1\r\nHOST: x:1\r\nCookie: a=1\r\ncookie:b=2 \r\n\r\nmore";
        let request = Request::parse(head).unwrap();
        assert_eq!(request.target(), "/a?b");
        assert_eq!(request.header("cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert_eq!(request.header("host").collect::<Vec<_>>(), ["x:1"]);
        assert_eq!(request.header("accept").next(), None);
        assert_eq!(Request::parse(b"GET / HTTP/1.1\r\nX\r\n\r\n"), Err(Refusal::BadRequest));
    }

    #[test]
    fn no_value_adds_a_header() {
        let answer =
            HttpResponse::new("200 OK", "text/plain", String::new()).header("Location", "/a\r\nX: y");
        assert!(answer.head.ends_with("Location: /aX: y\r\n"), "{answer:?}");
    }
}
