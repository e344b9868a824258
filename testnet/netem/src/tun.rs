//! A TUN device: the end of a network that a program reads and writes packet by packet.

use std::fs::{File, OpenOptions};
use std::io;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// Where the kernel hands devices out.
pub const CLONE_DEVICE: &str = "/dev/net/tun";
/// Name of the device in each namespace.
pub const DEVICE: &str = "wan0";

/// `TUNSETIFF` of `linux/if_tun.h`.
const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
/// `IFF_TUN | IFF_NO_PI`: whole IP packets with nothing before them.
const PACKETS_ONLY: u16 = 0x0001 | 0x1000;

/// `struct ifreq` of `linux/if.h`: a name, and a union of which the first two bytes are the flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40 && DEVICE.len() < 16);

/// Makes the device [`DEVICE`] in the network namespace of this thread; reading never blocks.
///
/// It is gone when the file is closed.
///
/// # Errors
/// Whatever the system says; permission denied when the process may not make devices.
pub fn open() -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(CLONE_DEVICE)?;
    rustix::io::ioctl_fionbio(&file, true)?;
    let mut request = InterfaceRequest { name: [0; 16], flags: PACKETS_ONLY, rest: [0; 22] };
    request.name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    #[expect(unsafe_code, reason = "no safe call makes a TUN device")]
    // SAFETY: `TUNSETIFF` reads and writes one `struct ifreq`, whose size and layout the request
    // has, and keeps no pointer to it.
    unsafe {
        ioctl(&file, Setter::<SET_INTERFACE, InterfaceRequest>::new(request))?;
    }
    Ok(file)
}
