//! Answers a request: with the page and its parts, the JSON, the metrics, or a refusal.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::Snapshot;
use super::prometheus::{MEDIA_TYPE, exposition};
use super::server::Shared;
use crate::peer::about::host_name;

/// What one listener serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// Whether it serves page, JSON and metrics, and not the metrics alone.
    pub(super) whole: bool,
    /// Whether it listens on loopback.
    pub(super) loopback: bool,
}

const JSON: &str = "application/json";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
/// The parts of the page: path, media type and content.
const ASSETS: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/format.js", SCRIPT, include_str!("page/format.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/graph.js", SCRIPT, include_str!("page/graph.js")),
    ("/app.js", SCRIPT, include_str!("page/app.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
];

/// The browser may load, run and ask nothing but the page's own parts, and no other page may embed it.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// The answer to `request`.
pub(super) fn respond<B>(
    request: &Request<B>,
    site: Site,
    shared: &Shared,
) -> Response<Full<Bytes>> {
    let is_whole = site.whole;
    // Any name can be made to point here, by a page in a browser that would then read what is shown.
    let named_well = is_own_host(request.headers(), site)
        || !is_whole && is_own_name(request.headers(), &host_name());
    if !named_well {
        let text = "Ask by address, localhost or (for metrics) this machine's own name, not by another name.\n";
        return answer(StatusCode::MISDIRECTED_REQUEST, PLAIN, Bytes::from_static(text.as_bytes()));
    }
    let is_head = request.method() == Method::HEAD;
    if !is_head && request.method() != Method::GET {
        let text = "This server only shows.\n";
        return answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, Bytes::from_static(text.as_bytes()));
    }
    let (status, kind, body) = content(request.uri().path(), is_whole, shared);
    answer(status, kind, if is_head { Bytes::new() } else { body })
}

fn content(path: &str, is_whole: bool, shared: &Shared) -> (StatusCode, &'static str, Bytes) {
    match path {
        "/metrics" => {
            let snapshot = Arc::clone(&shared.snapshots.borrow());
            (StatusCode::OK, MEDIA_TYPE, exposition(&snapshot).into())
        }
        "/api/state" if is_whole => (StatusCode::OK, JSON, state(shared)),
        "/api/history" if is_whole => (StatusCode::OK, JSON, history(shared)),
        _ => {
            let asset = ASSETS.iter().find(|(name, ..)| is_whole && *name == path);
            asset.map_or(
                (StatusCode::NOT_FOUND, PLAIN, Bytes::from_static(b"Not here.\n")),
                |(_, kind, text)| (StatusCode::OK, kind, Bytes::from_static(text.as_bytes())),
            )
        }
    }
}

/// The JSON of the newest snapshot.
fn state(shared: &Shared) -> Bytes {
    shared.rendered.get(shared, serde_json::to_vec)
}

/// The JSON of the history up to the newest snapshot.
fn history(shared: &Shared) -> Bytes {
    shared.history_rendered.get(shared, |_| serde_json::to_vec(&shared.history.borrow().told()))
}

/// The JSON of something that changes with every snapshot. It is made once for all that ask.
#[derive(Debug, Default)]
pub(super) struct Rendered(RefCell<Option<(Arc<Snapshot>, Bytes)>>);

impl Rendered {
    fn get(
        &self,
        shared: &Shared,
        render: impl FnOnce(&Snapshot) -> serde_json::Result<Vec<u8>>,
    ) -> Bytes {
        let snapshot = Arc::clone(&shared.snapshots.borrow());
        let mut rendered = self.0.borrow_mut();
        if let Some((of, json)) = rendered.as_ref()
            && Arc::ptr_eq(of, &snapshot)
        {
            return json.clone();
        }
        let json = Bytes::from(render(&snapshot).unwrap_or_default());
        *rendered = Some((snapshot, json.clone()));
        json
    }
}

/// The host that a request names, and the same without a port; `None` unless it names one host.
fn host(headers: &HeaderMap) -> Option<(&str, &str)> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next()?.to_str().ok(), hosts.next()) else { return None };
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    Some((host, name.map_or(host, |(name, _)| name)))
}

/// Whether the request names this server by `localhost` or by an IP address. A stranger could make any
/// other name point here.
fn is_own_host(headers: &HeaderMap, site: Site) -> bool {
    let Some((host, name)) = host(headers) else { return false };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<SocketAddr>().map(|address| address.ip());
    let address = address.or_else(|_| bare.parse::<IpAddr>());
    address.is_ok_and(|address| address.is_loopback() || !site.loopback)
}

/// Whether the request for metrics names this machine as it names itself: in full, without its domain, or
/// in the domain of multicast DNS. Whoever has metrics collected by name knows that name; who makes a name
/// point here has to guess it, and has no way to own it in those three forms.
fn is_own_name(headers: &HeaderMap, own: &str) -> bool {
    let Some((_, name)) = host(headers) else { return false };
    let short = own.split('.').next().unwrap_or_default();
    let local = format!("{short}.local");
    !short.is_empty() && [own, short, &local].iter().any(|it| it.eq_ignore_ascii_case(name))
}

fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::watch;

    use super::*;

    const LOOPBACK: Site = Site { whole: true, loopback: true };

    fn ask(method: &str, path: &str, host: Option<&str>, site: Site) -> (u16, String) {
        let (_sender, snapshots) = watch::channel(Arc::new(Snapshot::default()));
        let shared = Shared::new(snapshots);
        let mut request = Request::builder().method(method).uri(path);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let response = respond(&request.body(()).unwrap(), site, &shared);
        let status = response.status().as_u16();
        let body = futures::executor::block_on(response.into_body().collect()).unwrap();
        (status, String::from_utf8(body.to_bytes().to_vec()).unwrap())
    }

    #[test]
    fn only_addresses_and_localhost_name_the_page() {
        let public = Site { loopback: false, ..LOOPBACK };
        for (host, loopback, elsewhere) in [
            (Some("127.0.0.1:7878"), 200, 200),
            (Some("localhost:7878"), 200, 200),
            (Some("LOCALHOST"), 200, 200),
            (Some("[::1]:7878"), 200, 200),
            (Some("[::1]"), 200, 200),
            (Some("192.0.2.7:7878"), 421, 200),
            (Some("evil.example"), 421, 421),
            (Some("evil.example:7878"), 421, 421),
            (Some("127.0.0.1.evil.example:7878"), 421, 421),
            (Some("localhost.evil.example"), 421, 421),
            (Some(""), 421, 421),
            (None, 421, 421),
        ] {
            let status = |site| ask("GET", "/api/state", host, site).0;
            assert_eq!((status(LOOPBACK), status(public)), (loopback, elsewhere), "{host:?}");
        }
    }

    #[test]
    fn metrics_are_for_those_who_know_the_machine() {
        let named = |host: &str, own: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            is_own_name(&headers, own)
        };
        for (own, host, want) in [
            ("gpu-7", "gpu-7:9100", true),
            ("gpu-7", "GPU-7", true),
            ("gpu-7.lab.example", "gpu-7.lab.example:9100", true),
            ("gpu-7.lab.example", "gpu-7", true),
            ("gpu-7", "gpu-7.local:9100", true),
            ("gpu-7", "gpu-7.evil.example:9100", false),
            ("gpu-7", "evil.example", false),
            ("", "", false),
            ("", ".local", false),
        ] {
            assert_eq!(named(host, own), want, "{host} at {own}");
        }
        let metrics = Site { whole: false, loopback: false };
        let status = |host, site| ask("GET", "/metrics", host, site).0;
        for host in ["192.0.2.7:9100", "localhost:9100", "[::1]:9100"] {
            assert_eq!(status(Some(host), metrics), 200, "{host}");
        }
        for host in [Some("evil.example:9100"), Some("127.0.0.1.evil.example"), Some(""), None] {
            assert_eq!(status(host, metrics), 421, "{host:?}");
        }
        let here = Site { loopback: true, ..metrics };
        assert_eq!(status(Some("192.0.2.7:9100"), here), 421);
    }

    #[test]
    fn the_page_is_small_and_names_no_other_place() {
        let bytes: usize = ASSETS.iter().map(|(.., text)| text.len()).sum();
        assert!(bytes < 300_000, "{bytes}");
        for (path, _, text) in ASSETS {
            assert_eq!(ask("GET", path, Some("localhost"), LOOPBACK).1, *text);
            let known = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!known.contains("://") && !known.contains("innerHTML"), "{path}");
        }
    }

    #[test]
    fn it_only_shows_and_a_listener_of_metrics_shows_nothing_else() {
        let host = Some("localhost");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            assert_eq!(ask(method, "/api/state", host, LOOPBACK).0, 405, "{method}");
        }
        assert_eq!(ask("HEAD", "/api/state", host, LOOPBACK), (200, String::new()));
        let (status, body) = ask("GET", "/api/state?x=1", host, LOOPBACK);
        assert!(status == 200 && serde_json::from_str::<Snapshot>(&body).is_ok(), "{body}");
        assert_eq!(ask("GET", "/../etc/passwd", host, LOOPBACK).0, 404);
        let metrics = Site { whole: false, loopback: false };
        assert_eq!(ask("GET", "/api/state", host, metrics).0, 404);
        assert!(ask("GET", "/metrics", host, metrics).1.contains("dnode_build_info"));
    }
}
