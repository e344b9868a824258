//! TLS 1.3 with libp2p certificates: both ends prove their peer id inside the handshake.
//!
//! Source: libp2p TLS specification (`tls/tls.md` of the libp2p specifications): one self-signed
//! certificate whose extension holds the identity's public key and its signature; client
//! certificates are mandatory; peers that dial a known id refuse any other.

use std::sync::{Arc, OnceLock};

use libp2p_identity::{Keypair, PeerId};
use quinn::rustls::client::Resumption;
use quinn::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use quinn::rustls::crypto::CryptoProvider;
use quinn::rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use quinn::rustls::crypto::aws_lc_rs::default_provider;
use quinn::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use quinn::rustls::server::NoServerSessionStorage;
use quinn::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use quinn::rustls::sign::{CertifiedKey, SingleCertAndKey};
use quinn::rustls::version::TLS13;
use quinn::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig,
    SignatureScheme,
};

use crate::error::SetUpError;

/// Who we are, ready for handshakes.
#[derive(Clone, Debug)]
pub struct Identity {
    provider: Arc<CryptoProvider>,
    certificate: Arc<SingleCertAndKey>,
}

impl Identity {
    /// A fresh certificate for `key`.
    ///
    /// # Errors
    /// [`SetUpError`]; the machine is out of randomness.
    pub fn new(key: &Keypair) -> Result<Self, SetUpError> {
        let provider = CryptoProvider {
            // A server follows the client's order. AES-128-GCM has hardware on every CPU that
            // trains; stock libp2p puts ChaCha20 first, at three times the cost per byte.
            cipher_suites: vec![
                TLS13_AES_128_GCM_SHA256,
                TLS13_AES_256_GCM_SHA384,
                TLS13_CHACHA20_POLY1305_SHA256,
            ],
            ..default_provider()
        };
        let (certificate, secret) = libp2p_tls::certificate::generate(key)
            .map_err(|error| SetUpError::Certificate(error.to_string()))?;
        let secret = provider.key_provider.load_private_key(secret)?;
        let certified = CertifiedKey::new(vec![certificate], secret);
        let certificate = Arc::new(SingleCertAndKey::from(certified));
        Ok(Self { provider: Arc::new(provider), certificate })
    }

    /// Accepts any peer that proves an identity and speaks one of `protocols`, the first of ours.
    ///
    /// # Errors
    /// What the TLS library says; a defect.
    pub fn server(&self, protocols: &[&[u8]]) -> Result<ServerConfig, rustls::Error> {
        let verifier = Arc::new(Verifier::default());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.certificate) as Arc<_>);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        // Every connection proves its identity anew. rustls logs no keys unless told to.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Dials `expected`, or whoever answers, to speak one of `protocols`; the result says who did.
    ///
    /// # Errors
    /// What the TLS library says; a defect.
    pub fn client(
        &self,
        protocols: &[&[u8]],
        expected: Option<PeerId>,
    ) -> Result<(ClientConfig, Arc<Verifier>), rustls::Error> {
        let verifier = Arc::new(Verifier { expected, obtained: OnceLock::new() });
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<_>)
            .with_client_cert_resolver(Arc::clone(&self.certificate) as Arc<_>);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok((config, verifier))
    }
}

/// Whose certificate it is, by what the other end has shown; `None` when that is no libp2p certificate.
#[must_use]
pub fn owner(shown: &[CertificateDer<'_>]) -> Option<PeerId> {
    let certificate = libp2p_tls::certificate::parse(shown.first()?).ok()?;
    Some(certificate.peer_id())
}

/// Checks the certificate of one end; remembers whose it was.
#[derive(Debug, Default)]
pub struct Verifier {
    expected: Option<PeerId>,
    obtained: OnceLock<PeerId>,
}

impl Verifier {
    /// The peer that answered instead of the expected one.
    #[must_use]
    pub fn wrong_peer(&self) -> Option<PeerId> {
        let obtained = self.obtained.get().copied();
        obtained.filter(|obtained| self.expected.is_some_and(|expected| expected != *obtained))
    }

    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        if !others.is_empty() {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        let peer = libp2p_tls::certificate::parse(certificate)?.peer_id();
        if self.expected.is_some_and(|expected| expected != peer) {
            // The first failure ends the handshake, so it is set at most once.
            let _ = self.obtained.set(peer);
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(())
    }
}

/// The signature over the handshake, by the key of the certificate.
fn verify_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let certificate = libp2p_tls::certificate::parse(certificate)?;
    certificate.verify_signature(signed.scheme, message, signed.signature())?;
    Ok(HandshakeSignatureValid::assertion())
}

/// Schemes that the specification's key types use, strongest habit first.
fn schemes() -> Vec<SignatureScheme> {
    vec![
        SignatureScheme::ED25519,
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::ECDSA_NISTP384_SHA384,
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::RSA_PSS_SHA384,
        SignatureScheme::RSA_PSS_SHA512,
        SignatureScheme::RSA_PKCS1_SHA256,
        SignatureScheme::RSA_PKCS1_SHA384,
        SignatureScheme::RSA_PKCS1_SHA512,
    ]
}

/// Only TLS 1.3 is configured; an older handshake would be an error, not a panic.
fn too_old() -> rustls::Error {
    rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered)
}

/// What a verifier of either end says of signatures.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(too_old())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            verify_signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, others).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(certificate, others).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
