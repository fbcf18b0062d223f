//! Serves the metrics of a mount over HTTP/1.1: `GET /metrics`.
//!
//! One thread answers one connection at a time. So a client can delay other clients, by at most twice
//! [`DEADLINE`] plus [`crate::http::LINGER`], but it cannot delay the mount. Every connection is closed after
//! one answer.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use metrics::Text;

use crate::counters::Counters;
use crate::error::CliError;
use crate::exported;
use crate::http::{HttpResponse, Refusal, Request};

/// The time limit for receiving a request, and again for sending the answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// The ports that are tried if the user names no address, so that several mounts on a machine each get one.
const DEFAULT_PORTS: std::ops::Range<u16> = 9860..9960;

/// The address at which metrics are served: the value of `--metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricsAddress {
    /// The first free port of the default ports, on the loopback interface.
    #[default]
    Default,
    At(SocketAddr),
    Off,
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = || text.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        match text {
            "off" => Ok(MetricsAddress::Off),
            _ => text.parse().ok().or_else(port).map(MetricsAddress::At).ok_or_else(|| {
                format!("'{text}' is not an address: write IP:PORT, a port of the loopback interface, or off")
            }),
        }
    }
}

/// The form that [`MetricsAddress::from_str`] reads; empty for the default.
impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Default => Ok(()),
            MetricsAddress::At(address) => address.fmt(f),
            MetricsAddress::Off => f.write_str("off"),
        }
    }
}

impl MetricsAddress {
    /// Listens, so that a port in use is noticed before the mount appears. Returns `None` if metrics are off.
    /// Also returns `None`, and logs that, if none of the default ports is free.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn listen(self) -> Result<Option<TcpListener>, CliError> {
        match self {
            MetricsAddress::Off => Ok(None),
            MetricsAddress::At(address) => match TcpListener::bind(address) {
                Ok(listener) => Ok(Some(listener)),
                Err(error) => {
                    let failed = CliError::new(format!("cannot serve metrics: {error}")).at(address);
                    Err(failed.advise("choose another address with --metrics, or --metrics off"))
                }
            },
            MetricsAddress::Default => {
                let mut ports = DEFAULT_PORTS;
                let found = ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
                if found.is_none() {
                    tracing::warn!(ports = ?DEFAULT_PORTS, "cannot serve metrics: no default port is free");
                }
                Ok(found)
            }
        }
    }
}

/// The thread that serves metrics. Dropping it ends the thread.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// # Errors
    /// The thread cannot be started.
    pub fn start(listener: TcpListener, counters: Counters) -> io::Result<Exporter> {
        Exporter::serve(listener, move || exported::text(&counters))
    }

    fn serve(listener: TcpListener, text: impl Fn() -> String + Send + 'static) -> io::Result<Exporter> {
        let address = listener.local_addr()?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let work = move || {
            while !ending.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        if let Err(error) = answer(&stream, &text) {
                            tracing::debug!(%error, "cannot answer a request for metrics");
                        }
                    }
                    // This process has too many open files, for example.
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection for metrics");
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("limen-metrics".into()).spawn(work)?;
        Ok(Exporter { address, is_ending, thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        // Wakes the thread from accept(2).
        let mut address = self.address;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(std::net::Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let Some(thread) = self.thread.take() else { return };
        // Connect more than once, because another process may listen on the same port and accept the
        // connection.
        let until = Instant::now() + DEADLINE;
        while !thread.is_finished() && Instant::now() < until {
            if TcpStream::connect_timeout(&address, DEADLINE).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // If the thread panicked, the panic is in the log.
            let _ = thread.join();
        }
    }
}

fn answer(stream: &TcpStream, text: &impl Fn() -> String) -> io::Result<()> {
    let request = Request::read(stream, DEADLINE)?;
    let requested = request.and_then(|request| match request.target().split('?').next() {
        Some("/metrics") => Ok(()),
        _ => Err(Refusal::NotFound),
    });
    let answer = match requested {
        Ok(()) => HttpResponse::new("200 OK", Text::CONTENT_TYPE, text()),
        Err(refusal) => refusal.answer("The metrics are at GET /metrics"),
    };
    answer.send(stream, DEADLINE, requested.is_err())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn serve() -> Exporter {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Exporter::serve(listener, || "limen_x 1\n".to_owned()).unwrap()
    }

    /// Sends `request` and returns the whole answer.
    fn ask(exporter: &Exporter, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(exporter.address).unwrap();
        // The server may answer, and stop reading, before it has the whole request.
        let _ = stream.write_all(request);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status(answer: &str) -> &str {
        answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}"))
    }

    #[test]
    fn only_get_metrics_is_answered() {
        let exporter = serve();
        let whole = ask(&exporter, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        assert_eq!((status(&whole), body), ("200", "limen_x 1\n"));
        assert!(head.contains("Content-Length: 10\r\n") && head.contains(Text::CONTENT_TYPE), "{head}");
        for (request, code) in [
            (&b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"[..], "405"),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET / HTTP/1.1\r\n\r\n", "404"),
            (b"GET /metricsx HTTP/1.1\r\n\r\n", "404"),
            (b"GET metrics HTTP/1.1\r\n\r\n", "400"),
            (b"GET /metrics HTTP/2\r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
        ] {
            assert_eq!(status(&ask(&exporter, request)), code, "{request:?}");
        }
        assert!(ask(&exporter, b"PUT /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET\r\n"));
    }

    #[test]
    fn a_hostile_client_gets_an_error_and_the_next_client_its_answer() {
        let exporter = serve();
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 2 * crate::http::MAX_REQUEST_BYTES]]
            .concat();
        assert_eq!(status(&ask(&exporter, &long)), "431");
        // This client sends nothing more, and does not close the connection.
        assert_eq!(status(&ask(&exporter, b"GET /metr")), "408");
        // This client closes the connection at once.
        drop(TcpStream::connect(exporter.address).unwrap());
        assert_eq!(status(&ask(&exporter, b"GET /metrics HTTP/1.0\r\n\r\n")), "200");
        let address = exporter.address;
        drop(exporter);
        TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn a_place_is_an_address_or_a_loopback_port_or_off() {
        assert_eq!("off".parse(), Ok(MetricsAddress::Off));
        assert_eq!(MetricsAddress::Off.to_string(), "off");
        assert_eq!(MetricsAddress::At("[::1]:9000".parse().unwrap()).to_string(), "[::1]:9000");
        assert_eq!("9000".parse(), Ok(MetricsAddress::At("127.0.0.1:9000".parse().unwrap())));
        assert_eq!("[::1]:9000".parse(), Ok(MetricsAddress::At("[::1]:9000".parse().unwrap())));
        assert_eq!("0.0.0.0:0".parse(), Ok(MetricsAddress::At("0.0.0.0:0".parse().unwrap())));
        for wrong in ["", "on", "localhost:9000", "70000", "-1", "127.0.0.1"] {
            let error = wrong.parse::<MetricsAddress>().unwrap_err();
            assert!(error.contains("IP:PORT"), "{error}");
        }
    }

    #[test]
    fn a_port_in_use_is_an_error_and_the_default_takes_the_next_one() {
        let first = MetricsAddress::Default.listen().unwrap().unwrap();
        let second = MetricsAddress::Default.listen().unwrap().unwrap();
        let (first, second) = (first.local_addr().unwrap(), second.local_addr().unwrap());
        assert!(first.ip().is_loopback() && first.port() < second.port());
        let error = MetricsAddress::At(first).listen().unwrap_err().to_string();
        assert!(error.contains(&first.to_string()) && error.contains("--metrics"), "{error}");
        assert!(MetricsAddress::Off.listen().unwrap().is_none());
    }
}
