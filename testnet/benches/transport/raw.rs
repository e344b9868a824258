//! Flows of quinn without libp2p: what a program of its own would get from it, tuned.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use bytes::Bytes;
use dnode_quic::limits::{CONNECTION_WINDOW, SOCKET_BUFFER_BYTES, STREAM_WINDOW};
use libp2p_identity::Keypair;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use quinn::rustls::crypto::aws_lc_rs::default_provider;
use quinn::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use quinn::rustls::sign::{CertifiedKey, SingleCertAndKey};
use quinn::rustls::version::TLS13;
use quinn::rustls::{self, DigitallySignedStruct, SignatureScheme};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, TransportConfig};
use socket2::{Domain, Socket, Type};

use crate::end::{Flow, Meter, Place};
use crate::quic::{STREAMS, WRITE_BYTES, block_on};

/// Starts a flow with our windows and socket buffers, AES-128-GCM and quinn's CUBIC.
pub(crate) fn start(place: Place<'_>) -> Flow {
    let meter = Meter::default();
    let (ours, theirs) = (meter.clone(), meter.clone());
    let (tell, told) = sync_channel(1);
    let ends = [0, 1].map(|index| SocketAddr::from((place.address(index), 0)));
    let receiver = place.run(1, move || block_on(receive(ends[1], tell, theirs)));
    let target = told.recv().unwrap();
    let sender = place.run(0, move || block_on(send(ends[0], target, ours)));
    Flow::new(meter, vec![receiver, sender])
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(CONNECTION_WINDOW.into());
    Arc::new(config)
}

fn endpoint(at: SocketAddr, server: Option<quinn::ServerConfig>) -> Endpoint {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES).unwrap();
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES).unwrap();
    socket.bind(&at.into()).unwrap();
    let runtime = Arc::new(TokioRuntime);
    Endpoint::new(EndpointConfig::default(), server, socket.into(), runtime).unwrap()
}

async fn receive(at: SocketAddr, tell: SyncSender<SocketAddr>, meter: Meter) {
    let provider = default_provider();
    let (certificate, key) =
        libp2p_tls::certificate::generate(&Keypair::generate_ed25519()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let certified = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certified));
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(transport());
    let endpoint = endpoint(at, Some(server));
    tell.send(endpoint.local_addr().unwrap()).unwrap();
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let take = async {
        while let Ok(mut stream) = connection.accept_uni().await {
            let meter = meter.clone();
            tokio::spawn(async move {
                while let Ok(Some(chunk)) = stream.read_chunk(WRITE_BYTES, true).await {
                    meter.count(chunk.bytes.len());
                }
            });
        }
    };
    tokio::select! {
        () = take => {}
        () = meter.wait_stopped() => {}
    }
}

async fn send(at: SocketAddr, target: SocketAddr, meter: Meter) {
    // AES-128-GCM is what servers choose only when it comes first.
    let mut provider = default_provider();
    provider.cipher_suites.sort_by_key(|suite| {
        u8::from(suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256)
    });
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let mut client = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    client.transport_config(transport());
    let endpoint = endpoint(at, None);
    let connection = endpoint.connect_with(client, target, "bench").unwrap().await.unwrap();
    for _ in 0..STREAMS {
        let mut stream = connection.open_uni().await.unwrap();
        tokio::spawn(async move {
            let data = Bytes::from(vec![0; WRITE_BYTES]);
            while stream.write_chunk(data.clone()).await.is_ok() {}
        });
    }
    meter.wait_stopped().await;
    let lost = connection.stats().path.lost_packets;
    meter.lost.store(lost, std::sync::atomic::Ordering::Relaxed);
}

/// Takes any certificate: this measures throughput between two threads of one program.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
