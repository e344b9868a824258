//! Bytes under seal: records of the TLS session that proved the identities, without the socket.

use std::io;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use crate::handshake::Inbound;
use crate::limits::{OUTBOUND_BYTES, SEAL_BYTES};

pub(crate) fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Room for so many bytes under seal, and for a renewal of keys before them: each record of 16 KiB
/// has 22 bytes of overhead (RFC 8446 §5.2).
pub(crate) const fn sealed_bytes_max(bytes: usize) -> usize {
    bytes + bytes / 512 + 256
}

const _: () = assert!(sealed_bytes_max(SEAL_BYTES) + 512 <= OUTBOUND_BYTES);

/// Either end of a session.
pub(crate) trait Session {
    /// What the library keeps for this end.
    type Data;

    /// Takes the next step with what has come, as the library's method of this name.
    fn process<'c, 'i>(&'c mut self, inbound: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        inbound: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(inbound)
    }
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        inbound: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(inbound)
    }
}

/// Seals `bytes`, at most [`SEAL_BYTES`], into `room`, which has [`sealed_bytes_max`]. Returns the
/// length of it. The keys are renewed by the library in time.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive; a sender has nothing else to do"
)]
pub(crate) fn seal(session: &mut impl Session, bytes: &[u8], room: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    loop {
        let room = &mut room[length..];
        let UnbufferedStatus { state, .. } = session.process(&mut []);
        match state.map_err(broken)? {
            ConnectionState::WriteTraffic(mut traffic) => {
                return Ok(length + traffic.encrypt(bytes, room).map_err(broken)?);
            }
            // A renewal of keys.
            ConnectionState::EncodeTlsData(mut data) => {
                length += data.encode(room).map_err(broken)?;
            }
            ConnectionState::TransmitTlsData(sent) => sent.done(),
            _ => return Err(broken("the session cannot be written to")),
        }
    }
}

/// What has come of a session and was not asked for yet.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Sealed.
    pub(crate) inbound: Inbound,
    /// Opened bytes that did not fit into what was asked for, and how many of them are used up.
    opened: (Vec<u8>, usize),
    /// The other end says nothing more.
    pub(crate) closed: bool,
}

impl Arrived {
    pub(crate) const fn new(inbound: Inbound) -> Self {
        Self { inbound, opened: (Vec::new(), 0), closed: false }
    }

    /// Whether nothing waits, sealed or opened.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.opened.1 == self.opened.0.len() && self.inbound.waiting().is_empty()
    }

    /// Opens what has come into `bytes`, as far as they go. Returns how many it has filled.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; a receiver has nothing else to do"
    )]
    pub(crate) fn open(
        &mut self,
        session: &mut impl Session,
        bytes: &mut [u8],
    ) -> io::Result<usize> {
        let mut count = self.take_opened(bytes);
        while count < bytes.len() {
            let status = session.process(self.inbound.waiting());
            let UnbufferedStatus { mut discard, state } = status;
            let mut ready = false;
            match state.map_err(broken)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(broken)?;
                        discard += record.discard;
                        let fits = record.payload.len().min(bytes.len() - count);
                        bytes[count..count + fits].copy_from_slice(&record.payload[..fits]);
                        count += fits;
                        let (rest, used) = &mut self.opened;
                        if *used == rest.len() {
                            rest.clear();
                            *used = 0;
                        }
                        rest.extend_from_slice(&record.payload[fits..]);
                    }
                }
                ConnectionState::WriteTraffic(_) => ready = true,
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    self.closed = true;
                    ready = true;
                }
                // An answer to a renewal of keys, which the sender does not wait for.
                _ => return Err(broken("the session cannot be read from")),
            }
            self.inbound.discard(discard);
            if ready {
                break;
            }
        }
        Ok(count)
    }

    fn take_opened(&mut self, bytes: &mut [u8]) -> usize {
        let (rest, used) = &mut self.opened;
        let count = (rest.len() - *used).min(bytes.len());
        bytes[..count].copy_from_slice(&rest[*used..*used + count]);
        *used += count;
        count
    }
}
