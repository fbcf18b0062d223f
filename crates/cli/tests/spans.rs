//! Spans of requests as an OpenTelemetry collector receives them (feature `otel`).
#![cfg(feature = "otel")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use common::{Place, command};
use serde_json::Value;

/// Serves OTLP over HTTP in JSON until a request for `/end`, and returns the spans.
fn collect(listener: &TcpListener) -> Vec<Value> {
    let mut spans = Vec::new();
    loop {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        while let Some((path, body)) = request(&mut stream) {
            if path == "/end" {
                return spans;
            }
            assert_eq!(path, "/v1/traces");
            let body: Value = serde_json::from_slice(&body).unwrap();
            let resource = &body["resourceSpans"][0];
            assert!(resource["resource"].to_string().contains(r#""limen""#), "{resource}");
            spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        }
    }
}

/// The path and the body of the next request; `None` at the end of the connection.
fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut first = String::new();
    stream.read_line(&mut first).ok().filter(|&len| len > 0)?;
    let mut len = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.to_ascii_lowercase().trim().split_once(": ") {
            Some(("content-length", value)) => len = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    Some((first.split(' ').nth(1).unwrap().to_owned(), body))
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    span["attributes"]
        .as_array()?
        .iter()
        .find(|attribute| attribute["key"] == key)
        .map(|found| &found["value"])
}

#[test]
fn a_collector_gets_each_request_with_what_it_waited_for() {
    let place = Place::formatted();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let collector = thread::spawn(move || collect(&listener));
    let (url, mnt, log) = (place.url(), place.mnt(), place.text("log"));
    let mut mount = command(&["mount", "-d", "--log", &log, &url, &mnt]);
    mount.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"));
    mount.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json").env("OTEL_TRACES_SAMPLER", "always_on");
    mount.env_remove("OTEL_SERVICE_NAME");
    common::Said::from(mount.output().unwrap()).ok();
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/f"), vec![1; 3 << 20]).unwrap();
    fs::File::open(place.path("mnt/d/f")).unwrap().sync_all().unwrap();
    // The mount sends the remaining spans before it ends.
    place.umount(&[]).ok();
    TcpStream::connect(address).unwrap().write_all(b"GET /end HTTP/1.1\r\n\r\n").unwrap();
    let spans = collector.join().unwrap();

    let named = |name: &str| spans.iter().filter(move |span| span["name"] == name).collect::<Vec<_>>();
    let mkdir = named("MKDIR");
    assert_eq!(mkdir.len(), 1, "{spans:#?}");
    for key in ["inode", "uid", "pid"] {
        assert!(attribute(mkdir[0], key).is_some(), "{key}: {}", mkdir[0]);
    }
    let is_below = |span: &Value, top: &Value| {
        let mut at = span.clone();
        while let Some(parent) = spans.iter().find(|parent| parent["spanId"] == at["parentSpanId"]) {
            at = parent.clone();
        }
        at["spanId"] == top["spanId"]
    };
    let calls = |name: &str, call: &str, top: &Value| {
        let is_call =
            |span: &&Value| attribute(span, "call").is_some_and(|value| value["stringValue"] == call);
        named(name).into_iter().filter(is_call).filter(|span| is_below(span, top)).count()
    };
    assert!(calls("engine", "commit", mkdir[0]) > 0, "{spans:#?}");
    assert_eq!(calls("store", "put", mkdir[0]), 0);
    let stored = spans.iter().any(|span| calls("store", "put", span) > 0 && span["name"] != "store");
    assert!(stored, "{spans:#?}");
}

#[test]
fn a_malformed_endpoint_is_refused() {
    let place = Place::formatted();
    let mut mount = command(&["mount", "-d", "--log", &place.text("log"), &place.url(), &place.mnt()]);
    mount.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a b");
    let said = common::Said::from(mount.output().unwrap());
    said.failed(1, &["OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"]);
    assert!(!place.is_mounted());
}
