//! Enlarges the buffers of the UDP sockets that libp2p's QUIC keeps to itself.
//!
//! libp2p-quic opens its sockets and gives no access to them. On Linux a process may duplicate a
//! descriptor of its own through a pidfd without any unsafe code; the duplicate shares the socket.

/// Sizes of a socket's buffers as the kernel reports them, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) receive_bytes: usize,
    pub(crate) send_bytes: usize,
}

/// Asks for [`crate::limits::SOCKET_BUFFER_BYTES`] on every UDP socket of this process that is bound
/// to one of `ports`, and returns the smallest sizes that result.
///
/// `None` where it cannot be done: not Linux, no `/proc`, or pidfds are forbidden.
#[cfg(target_os = "linux")]
pub(crate) fn enlarge(ports: &[u16]) -> Option<Buffers> {
    let found = linux::enlarge(ports);
    found
        .inspect_err(|error| tracing::debug!(%error, "cannot reach the UDP sockets"))
        .ok()
        .flatten()
}

/// See the Linux variant.
#[cfg(not(target_os = "linux"))]
pub(crate) fn enlarge(_: &[u16]) -> Option<Buffers> {
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;

    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    use socket2::{Socket, Type};

    use super::Buffers;
    use crate::limits::SOCKET_BUFFER_BYTES;

    pub(super) fn enlarge(ports: &[u16]) -> io::Result<Option<Buffers>> {
        let me = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut smallest: Option<Buffers> = None;
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let entry = entry?;
            let is_socket = std::fs::read_link(entry.path())
                .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
            let number = entry.file_name().to_string_lossy().parse::<i32>();
            let (true, Ok(number)) = (is_socket, number) else {
                continue;
            };
            // The descriptor may have been closed, or reused, since the folder was read.
            let Ok(descriptor) = pidfd_getfd(&me, number, PidfdGetfdFlags::empty()) else {
                continue;
            };
            let socket = Socket::from(descriptor);
            if is_ours(&socket, ports) {
                let buffers = enlarge_one(&socket)?;
                let least = smallest.get_or_insert(buffers);
                least.receive_bytes = least.receive_bytes.min(buffers.receive_bytes);
                least.send_bytes = least.send_bytes.min(buffers.send_bytes);
            }
        }
        Ok(smallest)
    }

    fn is_ours(socket: &Socket, ports: &[u16]) -> bool {
        let port = socket.local_addr().ok().and_then(|a| a.as_socket());
        socket.r#type().is_ok_and(|kind| kind == Type::DGRAM)
            && port.is_some_and(|address| ports.contains(&address.port()))
    }

    fn enlarge_one(socket: &Socket) -> io::Result<Buffers> {
        // The kernel takes less when its own limit is lower, and reports twice what it took.
        if socket.recv_buffer_size()? < SOCKET_BUFFER_BYTES {
            socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        }
        if socket.send_buffer_size()? < SOCKET_BUFFER_BYTES {
            socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        }
        Ok(Buffers {
            receive_bytes: socket.recv_buffer_size()? / 2,
            send_bytes: socket.send_buffer_size()? / 2,
        })
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn only_the_named_sockets_grow() {
            let ours = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let size = |socket: &std::net::UdpSocket| {
                socket2::SockRef::from(socket).recv_buffer_size().unwrap()
            };
            let (before, other_before) = (size(&ours), size(&other));
            let port = ours.local_addr().unwrap().port();
            if let Some(buffers) = super::super::enlarge(&[port]) {
                assert_eq!(buffers.receive_bytes * 2, size(&ours));
                assert!(size(&ours) >= before);
            } else {
                assert_eq!(size(&ours), before);
            }
            assert_eq!(size(&other), other_before);
        }
    }
}
