//! A headless Chromium, told what to do by its debugging pipe.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Which program to start; must be there when it is set.
const PROGRAM: &str = "DNODE_TEST_BROWSER";
/// Messages that wait to be looked at.
const QUEUE_MAX: usize = 4096;
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A browser with one page; ends with the test.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// Errors of the console, and exceptions.
    pub(crate) errors: Vec<String>,
    /// Everything that was asked for.
    pub(crate) requests: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it with an empty page; `None` where there is no Chromium and nobody asked for one.
    #[expect(clippy::print_stderr, reason = "a test that does nothing says so")]
    pub(crate) fn start() -> Option<Self> {
        let wanted = std::env::var(PROGRAM).ok();
        let program = wanted.clone().unwrap_or_else(|| "chromium".to_owned());
        let found = Command::new(&program).arg("--version").output().is_ok();
        if !found {
            assert!(wanted.is_none(), "{PROGRAM}={program} cannot be started");
            eprintln!("no chromium: the page is not tested");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 1>&2", &program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-extensions"])
            .args(["--remote-debugging-pipe", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (Some(commands), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("both are piped");
        };
        let (sender, messages) = sync_channel(QUEUE_MAX);
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let Ok(message) = message else { return };
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let (session, errors, requests) = (None, Vec::new(), Vec::new());
        let mut browser = Self {
            child,
            commands,
            messages,
            session,
            sent: 0,
            errors,
            requests,
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", &attach)["sessionId"].clone();
        browser.session = session.as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Network", "Page"] {
            browser.ask(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Opens `url`.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.ask("Page.navigate", &json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{opened}");
    }

    /// A window of so many pixels, that of a phone for example; `dark` or `light`.
    pub(crate) fn looks(&mut self, (width, height): (u32, u32), scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", &json!({"features": feature}));
    }

    /// The value of a JavaScript expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let told = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.ask("Runtime.evaluate", &told);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Presses and releases a key that has no letter, for example `Tab`.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => panic!("what is the code of {key}?"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.ask("Input.dispatchKeyEvent", &event);
        }
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        self.commands.flush().unwrap();
        loop {
            let mut message = match self.messages.recv_timeout(ANSWER_MAX) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no answer"),
                Err(RecvTimeoutError::Disconnected) => panic!("{method}: the browser has ended"),
            };
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let told = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.errors.push(told.to_string()),
            "Runtime.consoleAPICalled" if told["type"] == "error" || told["type"] == "warning" => {
                self.errors.push(told.to_string());
            }
            "Log.entryAdded" if told["entry"]["level"] == "error" => {
                self.errors.push(told.to_string());
            }
            "Network.requestWillBeSent" => {
                let url = told["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
