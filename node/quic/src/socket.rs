//! UDP sockets with large buffers.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use crate::limits::SOCKET_BUFFER_BYTES;

/// Sizes of a socket's buffers, bytes of payload and bookkeeping together, as they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Receive buffer, bytes.
    pub receive_bytes: usize,
    /// Send buffer, bytes.
    pub send_bytes: usize,
}

impl Buffers {
    /// The smaller of both in each direction.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            receive_bytes: self.receive_bytes.min(other.receive_bytes),
            send_bytes: self.send_bytes.min(other.send_bytes),
        }
    }

    /// One sentence for each buffer that is smaller than wanted, with the remedy; none when the
    /// kernel has given what was asked for.
    #[must_use]
    pub fn shortages(&self) -> Vec<String> {
        let all = [
            ("receive", self.receive_bytes, "net.core.rmem_max"),
            ("send", self.send_bytes, "net.core.wmem_max"),
        ];
        let short = all.into_iter().filter(|(_, bytes, _)| *bytes < SOCKET_BUFFER_BYTES);
        short
            .map(|(name, bytes, key)| {
                let (has, wanted) = (bytes >> 10, SOCKET_BUFFER_BYTES >> 20);
                format!(
                    "UDP {name} buffer {has} KiB of {wanted} MiB wanted: raise {key} to {SOCKET_BUFFER_BYTES}"
                )
            })
            .collect()
    }
}

/// A socket bound to `address` whose buffers are as near to
/// [`SOCKET_BUFFER_BYTES`] as the kernel allows.
///
/// One that is bound to an IPv6 address takes no IPv4 packets.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(UdpSocket, Buffers)> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The kernel takes what its own limit allows; some systems refuse instead. Both ends in what
    // the socket reports afterwards.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    let buffers = Buffers {
        receive_bytes: asked(socket.recv_buffer_size()?),
        send_bytes: asked(socket.send_buffer_size()?),
    };
    Ok((socket.into(), buffers))
}

/// Linux reports twice what was asked for, for its bookkeeping (socket(7)).
const fn asked(reported: usize) -> usize {
    if cfg!(target_os = "linux") { reported / 2 } else { reported }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_at_least_the_default_and_at_most_what_is_wanted() {
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        let default = socket2::SockRef::from(&plain).recv_buffer_size().unwrap();
        let (_socket, buffers) = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(buffers.receive_bytes >= asked(default));
        assert!(buffers.receive_bytes <= SOCKET_BUFFER_BYTES);
        let small = Buffers { receive_bytes: 1, send_bytes: usize::MAX };
        let both = Buffers { receive_bytes: 1, send_bytes: buffers.send_bytes };
        assert_eq!(buffers.min(small), both);
    }

    #[test]
    fn a_small_buffer_is_named_with_its_remedy() {
        let wanted = SOCKET_BUFFER_BYTES;
        let full = Buffers { receive_bytes: wanted, send_bytes: wanted };
        assert!(full.shortages().is_empty());
        let small = Buffers { receive_bytes: 208 << 10, ..full };
        let line = "UDP receive buffer 208 KiB of 4 MiB wanted: raise net.core.rmem_max to 4194304";
        assert_eq!(small.shortages(), [line]);
    }

    #[test]
    fn both_families_share_a_port() {
        let (first, _) = bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = first.local_addr().unwrap().port();
        // A machine without IPv6 has nothing to share.
        if let Ok((second, _)) = bind(SocketAddr::new("::".parse().unwrap(), port)) {
            assert_eq!(second.local_addr().unwrap().port(), port);
        }
    }
}
