//! Packets that open a way through our own NAT.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::Error;
use crate::limits::{PUNCH_BYTES, PUNCH_PAUSE_MS};

/// Sends random packets to `remote` until `deadline`, or until the socket fails; says which.
///
/// `socket`: the listening one, which QUIC has made non-blocking.
pub(crate) async fn punch(socket: &UdpSocket, remote: SocketAddr, deadline: Instant) -> Error {
    let failed = timeout_at(deadline, async {
        loop {
            let (packet, pause) = {
                let mut random = rand::rng();
                let packet: [u8; PUNCH_BYTES] = random.random();
                (packet, Duration::from_millis(random.random_range(PUNCH_PAUSE_MS)))
            };
            match socket.send_to(&packet, remote) {
                // A full buffer loses the packet, as the network may; the next one follows.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return error,
            }
            sleep(pause).await;
        }
    });
    failed.await.map_or(Error::Timeout, Error::Socket)
}
