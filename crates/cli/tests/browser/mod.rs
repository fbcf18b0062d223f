//! A headless Chromium, driven over the WebDriver protocol (W3C WebDriver) by chromedriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The key under which WebDriver names an element (section 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// If a page takes longer, the test fails.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// Holds the browser's files, and is removed with it.
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty profile. Returns `None`, and reports a skip, if Chromium is not
    /// installed.
    #[track_caller]
    pub(crate) fn start() -> Option<Browser> {
        let is_installed = |program| Command::new(program).arg("--version").output().is_ok();
        if !is_installed("chromium") || !is_installed("chromedriver") {
            skip::missing(
                "chromium and chromedriver (packages chromium, chromium-driver): it looks at pages",
            );
            return None;
        }
        let mut driver = Command::new("chromedriver");
        driver.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = driver.spawn().unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines
            .find_map(|line| {
                line.unwrap().rsplit_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
            })
            .unwrap();
        // The driver must not block on a pipe that nobody reads.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::Builder::new().prefix("limen-chromium.").tempdir().unwrap();
        let mut browser = Browser { driver, port, session: String::new(), _profile: profile };
        let user_data = format!("--user-data-dir={}", browser._profile.path().display());
        let args = json!([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1200,900",
            user_data,
        ]);
        // An element that is not there yet is waited for, because the page may still be loading.
        let timeouts = json!({"implicit": TIMEOUT.as_millis() as u64 / 4});
        let wanted = json!({"timeouts": timeouts, "goog:chromeOptions": {"args": args}});
        let wanted = json!({"capabilities": {"alwaysMatch": wanted}});
        let answer = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", answer["sessionId"].as_str().unwrap());
        Some(browser)
    }

    pub(crate) fn open(&self, address: &str) {
        self.post("/url", &json!({ "url": address }));
    }

    pub(crate) fn address(&self) -> String {
        self.call("GET", &format!("{}/url", self.session), &Value::Null).as_str().unwrap().to_owned()
    }

    /// Clicks on the first element that a CSS selector finds, and waits until the page is left.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.follow("css selector", selector);
    }

    /// Clicks on the link with this text, and waits until the page is left.
    #[track_caller]
    pub(crate) fn click_link(&self, text: &str) {
        self.follow("link text", text);
    }

    /// Clicks on an element, and waits until the page is left. Without the wait, the next command could still
    /// find the old page: the driver waits for a navigation that has begun, but on a busy machine it begins
    /// after the click is answered.
    #[track_caller]
    fn follow(&self, using: &str, value: &str) {
        let page = self.find("css selector", "html");
        let element = self.find(using, value);
        self.post(&format!("/element/{element}/click"), &json!({}));
        let deadline = Instant::now() + TIMEOUT;
        let path = format!("{}/element/{page}/name", self.session);
        while self.send("GET", &path, &Value::Null).is_ok() {
            assert!(Instant::now() < deadline, "a click on {value} leads nowhere");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let element = self.find("css selector", selector);
        self.post(&format!("/element/{element}/clear"), &json!({}));
        self.post(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        let element = self.find("css selector", selector);
        let answer = self.call("GET", &format!("{}/element/{element}/text", self.session), &Value::Null);
        answer.as_str().unwrap().to_owned()
    }

    /// The value of a JavaScript expression. The content security policy of the pages forbids scripts in
    /// them, but does not apply to the driver.
    pub(crate) fn evaluate(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": format!("return {script}"), "args": [] }))
    }

    /// Sets the size of the page in pixels, and the light or dark colour scheme.
    pub(crate) fn show_as(&self, width: u32, height: u32, is_dark: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// Saves what the window shows as an image.
    pub(crate) fn screenshot(&self, path: &Path) {
        let answer = self.call("GET", &format!("{}/screenshot", self.session), &Value::Null);
        std::fs::write(path, BASE64_STANDARD.decode(answer.as_str().unwrap()).unwrap()).unwrap();
    }

    fn devtools(&self, command: &str, params: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": params }));
    }

    #[track_caller]
    fn find(&self, using: &str, value: &str) -> String {
        let found = self.post("/element", &json!({ "using": using, "value": value }));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("{using} {value}: {found}")).to_owned()
    }

    #[track_caller]
    fn post(&self, command: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{command}", self.session), body)
    }

    /// Sends a command. Panics if it fails.
    #[track_caller]
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a command. Returns its value, or the driver's error, such as `stale element reference`.
    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}",
            self.port
        );
        stream.write_all(request.as_bytes()).unwrap();
        // The driver does not close the connection.
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
        }
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or_else(|| panic!("no length: {head}"))];
        stream.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        let value: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        if head.starts_with("HTTP/1.1 200") { Ok(value["value"].clone()) } else { Err(body) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // This request ends the browser, which would go on if only the driver were killed.
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let request =
                format!("DELETE {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", self.session);
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            // The first byte of the answer comes when the browser has ended.
            let _ = stream.read(&mut [0]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
