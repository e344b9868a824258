//! Flows of kernel TCP.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;

use crate::end::{Flow, Meter, Place};

/// Bytes for each call of the kernel.
const CALL_BYTES: usize = 256 << 10;
/// Least, first and largest buffer of a socket, bytes: the kernel's defaults end at 4 MiB to send
/// and 6 MiB to receive, which is less than fast long lines hold.
const BUFFERS: &str = "4096 131072 67108864";

/// One stream with the congestion control that the kernel calls `name`.
pub(crate) fn start(place: Place<'_>, name: &'static str) -> Flow {
    if let Place::Emulated(_) = place {
        for machine in [0, 1] {
            place.run(machine, raise_buffers).join().unwrap().unwrap();
        }
    }
    let at = SocketAddrV4::new(place.address(1), 0);
    let listener = place.run(1, move || TcpListener::bind(at).unwrap()).join().unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    let meter = Meter::default();
    let (ours, theirs) = (meter.clone(), meter.clone());
    let receiver = place.run(1, move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; CALL_BYTES];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            theirs.count(read);
        }
    });
    let sender = place.run(0, move || {
        let mut stream = TcpStream::connect(target).unwrap();
        sockopt::set_tcp_congestion(&stream, name).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let data = vec![0; CALL_BYTES];
        while !ours.stopped() {
            // A full buffer on a slow link; the flow goes on.
            let _ = stream.write(&data);
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    Flow::new(meter, vec![receiver, sender])
}

/// Lets buffers of this thread's network namespace grow to [`BUFFERS`].
fn raise_buffers() {
    for name in ["tcp_rmem", "tcp_wmem"] {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), BUFFERS).unwrap();
    }
}
