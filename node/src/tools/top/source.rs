//! Gets the numbers for the screen: the JSON of a running peer.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::telemetry::view::{SCHEMA, Snapshot};

/// Time between two requests: as often as the peer publishes something new.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the peer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest answer, bytes: several times what a swarm of 512 peers needs.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most snapshots that wait for the screen.
const NEWS_MAX: usize = 2;

/// Loss curves by [`crate::telemetry::view::Peer::id`]: position in the run (steps of the run), loss (nats).
pub(super) type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// The part of the history that is drawn.
#[derive(Deserialize)]
struct Told {
    peer_columns: Vec<String>,
    peers: BTreeMap<String, Vec<Vec<Option<f64>>>>,
}

impl Told {
    fn curves(self) -> Curves {
        let at = |name: &str| self.peer_columns.iter().position(|column| column == name);
        let (position, loss) = (at("position"), at("loss"));
        let value = |row: &[Option<f64>], at: Option<usize>| row.get(at?).copied().flatten();
        let point = |row: &Vec<Option<f64>>| Some((value(row, position)?, value(row, loss)?));
        let curve = |rows: &Vec<Vec<Option<f64>>>| rows.iter().filter_map(point).collect();
        self.peers.iter().map(|(id, rows)| (id.clone(), curve(rows))).collect()
    }
}

/// A snapshot with its curves, or the reason why none has come.
pub(super) type News = Result<(Box<Snapshot>, Curves), SourceError>;

/// Why nothing can be learnt from a peer.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The text is not an address.
    #[error("read the address \"{0}\": expected for example 127.0.0.1:7878")]
    Address(String),
    /// Nobody answers there.
    #[error("ask the peer at {address}: {reason}; does it run there with --ui?")]
    Silent {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// Something else answers there, or another version of dnode.
    #[error(
        "ask the peer at {0}: what answers is not a page of this version of dnode; use the same version there"
    )]
    Strange(SocketAddr),
    /// No thread can be started.
    #[error("start a thread: {0}; allow this user more of them (`ulimit -u`)")]
    Thread(io::Error),
}

/// A peer that serves its page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    address: SocketAddr,
}

impl Source {
    /// The peer whose page is at `text`, an address with or without `http://` before it.
    pub(super) fn new(text: &str) -> Result<Self, SourceError> {
        let bare = text.trim_start_matches("http://").trim_end_matches('/');
        let found: Vec<SocketAddr> = bare.to_socket_addrs().ok().into_iter().flatten().collect();
        // A name may stand for two addresses of which one is served, as `localhost` for ::1 and 127.0.0.1.
        let answers = |address: &&SocketAddr| {
            found.len() > 1 && TcpStream::connect_timeout(address, ANSWER_MAX).is_ok()
        };
        let address = found.iter().find(answers).or_else(|| found.first());
        address
            .map(|address| Self { address: *address })
            .ok_or_else(|| SourceError::Address(text.to_owned()))
    }

    /// Asks for the newest snapshot.
    pub(super) fn state(self) -> Result<Box<Snapshot>, SourceError> {
        let snapshot: Box<Snapshot> = self.json("/api/state")?;
        // Before a peer has a snapshot, it sends an empty one.
        let known = snapshot.schema == SCHEMA || snapshot.node.peer.is_empty();
        if known { Ok(snapshot) } else { Err(SourceError::Strange(self.address)) }
    }

    /// Asks again and again, on a thread that ends when the receiver is dropped.
    pub(super) fn follow(self) -> Result<Receiver<News>, SourceError> {
        let (sender, news) = sync_channel(NEWS_MAX);
        let follow = move || {
            loop {
                let told = self.state().and_then(|snapshot| {
                    let told: Told = self.json("/api/history")?;
                    Ok((snapshot, told.curves()))
                });
                if let Err(TrySendError::Disconnected(_)) = sender.try_send(told) {
                    return;
                }
                std::thread::park_timeout(EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("dnode-top".to_owned());
        thread.spawn(follow).map_err(SourceError::Thread)?;
        Ok(news)
    }

    fn json<T: DeserializeOwned>(self, path: &str) -> Result<T, SourceError> {
        let address = self.address;
        let answer = self.get(path).map_err(|reason| SourceError::Silent { address, reason })?;
        read(&answer).ok_or(SourceError::Strange(address))
    }

    fn get(self, path: &str) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&self.address, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let host = self.address;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// What an answer of a page says; `None` where it is none.
fn read<T: DeserializeOwned>(answer: &[u8]) -> Option<T> {
    let (head, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| serde_json::from_str(body).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_answers_of_a_page_are_read_or_refused() {
        let snapshot = serde_json::to_string(&Snapshot::default()).unwrap();
        let history =
            r#"{"peer_columns":["position","loss"],"peers":{"a":[[1.0,2.0],[2.0,null]]}}"#;
        let answers = [&snapshot, history].map(|body| format!("HTTP/1.1 200 OK\r\n\r\n{body}"));
        let sound = (read::<Snapshot>(answers[0].as_bytes()), read::<Told>(answers[1].as_bytes()));
        assert!(sound.0.is_some());
        assert_eq!(sound.1.unwrap().curves()["a"], [(1.0, 2.0)]);
        dnode_mutate::check_made_inputs(&answers, 4000, |bytes| {
            let _: Option<Snapshot> = read(bytes);
            let _ = read(bytes).map(Told::curves);
        });
    }

    #[test]
    fn addresses_are_read_with_and_without_their_scheme() {
        for text in ["127.0.0.1:7878", "http://127.0.0.1:7878/", "http://127.0.0.1:7878"] {
            assert_eq!(Source::new(text).unwrap().address, "127.0.0.1:7878".parse().unwrap());
        }
        for text in ["", "7878", "127.0.0.1", "https://127.0.0.1:1/x"] {
            assert!(Source::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn of_the_addresses_of_a_name_one_that_answers_is_asked() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let source = Source::new(&format!("localhost:{port}")).unwrap();
        assert_eq!(source.address, listener.local_addr().unwrap());
    }

    #[test]
    fn what_is_no_peer_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let source = Source::new(&listener.local_addr().unwrap().to_string()).unwrap();
        for answer in
            ["HTTP/1.1 404 Not Found\r\n\r\n", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\n\r\n[]"]
        {
            let asked = std::thread::spawn(move || source.state().unwrap_err().to_string());
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 200]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            drop(stream);
            let error = asked.join().unwrap();
            assert!(error.contains("not a page of this version of dnode; "), "{error}");
        }
        drop(listener);
        assert!(matches!(source.state(), Err(SourceError::Silent { .. })));
    }
}
