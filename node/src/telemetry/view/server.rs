//! The read-only HTTP server for page, JSON and metrics, on a thread of its own.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, watch};
use tokio::task::LocalSet;

use super::history::History;
use super::site::{Rendered, Site, respond};
use super::{Service, Snapshot};
use crate::storage::data_dir::write_passing;

/// Name of the file in the data directory that holds the address of the running peer's page.
pub const UI_FILE: &str = "ui";
/// Connections served at a time by one listener; more are closed at once. A page has at most six.
const CONNECTIONS_MAX: usize = 32;
/// Longest life of a connection: one request and one answer. A slow or silent client is cut off then.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Longest head of a request, bytes: the smallest limit that hyper allows.
const HEAD_BYTES_MAX: usize = 8192;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// Pause after a failed accept, such as one without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The channel through which the driver publishes snapshots. The server ends when it is dropped.
pub(crate) type Published = watch::Sender<Arc<Snapshot>>;

/// Why nothing can be served.
#[derive(thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on; the person who configures is at fault.
    #[error("serve at {address}: {reason}; choose another address for --ui or --metrics")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// The thread cannot be started.
    #[error("start the server's thread: {0}; allow this user more of them (`ulimit -u`)")]
    Thread(io::Error),
}

/// The state that the connections of the server's thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) history: RefCell<History>,
    pub(super) rendered: Rendered,
    pub(super) history_rendered: Rendered,
}

impl Shared {
    pub(super) fn new(snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self {
            snapshots,
            history: RefCell::default(),
            rendered: Rendered::default(),
            history_rendered: Rendered::default(),
        }
    }
}

/// A started server.
#[derive(Debug)]
pub(crate) struct Served {
    /// The channel for new snapshots.
    pub(crate) published: Published,
    /// The address of the page, if it is served.
    pub(crate) page: Option<SocketAddr>,
    /// The address of the metrics, if they are served.
    pub(crate) metrics: Option<SocketAddr>,
}

/// Serves the page at `ui` and the metrics at `metrics`; `None` when neither is wanted.
///
/// The address of the page is written to [`UI_FILE`] in `folder`.
///
/// # Errors
/// [`ServeError`].
pub(crate) fn serve(
    ui: Service,
    metrics: Service,
    folder: &Path,
) -> Result<Option<Served>, ServeError> {
    let file = folder.join(UI_FILE);
    // The address that an earlier start wrote there no longer holds.
    let _ = std::fs::remove_file(&file);
    let mut listeners = Vec::new();
    let mut addresses = [None, None];
    let kinds = if ui == metrics {
        [(ui, true), (Service::Off, false)]
    } else {
        [(ui, true), (metrics, false)]
    };
    for (index, (service, whole)) in kinds.into_iter().enumerate() {
        let Some((listener, address)) = bind(service)? else { continue };
        addresses[index] = Some(address);
        listeners.push((listener, Site { whole, loopback: address.ip().is_loopback() }));
    }
    if listeners.is_empty() {
        return Ok(None);
    }
    let [page, metrics_only] = addresses;
    if let Some(address) = page
        && let Err(error) = write_passing(&file, format!("{address}\n").as_bytes(), 0o644)
    {
        tracing::warn!(%error, "cannot write where the page is");
    }
    let (published, snapshots) = watch::channel(Arc::default());
    std::thread::Builder::new()
        .name("dnode-view".to_owned())
        .spawn(move || run(listeners, snapshots))
        .map_err(ServeError::Thread)?;
    Ok(Some(Served { published, page, metrics: metrics_only.or(page) }))
}

fn bind(service: Service) -> Result<Option<(TcpListener, SocketAddr)>, ServeError> {
    let mut failed = None;
    for address in service.candidates() {
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let at = listener.local_addr()?;
            Ok((listener, at))
        });
        match bound {
            Ok(bound) => return Ok(Some(bound)),
            Err(reason) => failed = Some(ServeError::Listen { address, reason }),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// The server's thread. It ends when the channel for snapshots is dropped.
fn run(listeners: Vec<(TcpListener, Site)>, mut snapshots: watch::Receiver<Arc<Snapshot>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "cannot serve page and metrics"),
    };
    let shared = Rc::new(Shared::new(snapshots.clone()));
    let tasks = LocalSet::new();
    for (listener, site) in listeners {
        tasks.spawn_local(accept(listener, site, Rc::clone(&shared)));
    }
    tasks.block_on(&runtime, async {
        while snapshots.changed().await.is_ok() {
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            shared.history.borrow_mut().add(&snapshot);
        }
    });
}

async fn accept(listener: TcpListener, site: Site, shared: Rc<Shared>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve page and metrics"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            let answer = |request: Request<Incoming>| {
                let response: Response<Full<Bytes>> = respond(&request, site, &shared);
                async move { Ok::<_, Infallible>(response) }
            };
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(CONNECTION_MAX)
                .keep_alive(false)
                .max_buf_size(HEAD_BYTES_MAX)
                .max_headers(HEADERS_MAX)
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client that hangs up or breaks the rules is no reason to do anything.
            let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
            drop(place);
        });
    }
}
