//! IPv4 packets: what the router reads of them, and the addresses that a NAT writes.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Shortest IPv4 header, in bytes (RFC 791 §3.1).
const HEADER_MIN: usize = 20;
/// Where the header has its checksum, its source and its target.
const HEADER_CHECKSUM: usize = 10;
const SOURCE: usize = 12;
const TARGET: usize = 16;
/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A transport that a NAT translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Where its header has the checksum.
    const fn checksum(self) -> usize {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }

    /// Bytes of its header that must be there.
    const fn header(self) -> usize {
        match self {
            Self::Tcp => 20,
            Self::Udp => 8,
        }
    }
}

/// What the router reads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who sent it.
    pub source: Ipv4Addr,
    /// Who shall get it.
    pub target: Ipv4Addr,
    /// Transport and ports, source first; `None` for other protocols and for fragments.
    pub ports: Option<(Transport, u16, u16)>,
    /// Bytes of the IPv4 header.
    length: usize,
}

impl Header {
    /// Reads the header; `None` unless `packet` is one whole IPv4 packet.
    #[must_use]
    pub fn read(packet: &[u8]) -> Option<Self> {
        let length = usize::from(packet.first()? & 0x0f) * 4;
        let whole = packet.len() >= HEADER_MIN
            && packet[0] >> 4 == 4
            && length >= HEADER_MIN
            && usize::from(read_u16(packet, 2)) == packet.len()
            && length <= packet.len();
        if !whole {
            return None;
        }
        // The flag "more fragments" and the offset.
        let fragment = read_u16(packet, 6) & 0x3fff != 0;
        let transport = match packet[9] {
            TCP => Some(Transport::Tcp),
            UDP => Some(Transport::Udp),
            _ => None,
        };
        let ports = transport
            .filter(|transport| !fragment && packet.len() >= length + transport.header())
            .map(|kind| (kind, read_u16(packet, length), read_u16(packet, length + 2)));
        Some(Self {
            source: read_address(packet, SOURCE),
            target: read_address(packet, TARGET),
            ports,
            length,
        })
    }

    /// Whether the packet is for everybody.
    #[must_use]
    pub const fn is_multicast(&self) -> bool {
        self.target.is_multicast() || self.target.is_broadcast()
    }

    /// Writes another sender into the `packet` that this header was read from.
    pub fn set_source(&self, packet: &mut [u8], source: SocketAddrV4) {
        self.rewrite(packet, SOURCE, 0, source);
    }

    /// Writes another receiver into the `packet` that this header was read from.
    pub fn set_target(&self, packet: &mut [u8], target: SocketAddrV4) {
        self.rewrite(packet, TARGET, 2, target);
    }

    /// Writes an address and its port, and corrects both checksums. Does nothing without ports.
    fn rewrite(&self, packet: &mut [u8], address: usize, port: usize, new: SocketAddrV4) {
        let Some((transport, ..)) = self.ports else { return };
        let octets = new.ip().octets();
        let words = [
            (address, u16::from_be_bytes([octets[0], octets[1]])),
            (address + 2, u16::from_be_bytes([octets[2], octets[3]])),
        ];
        let sum = self.length + transport.checksum();
        // A zero says that the sender made no checksum (RFC 768).
        let summed = transport == Transport::Tcp || read_u16(packet, sum) != 0;
        for (at, word) in words {
            let old = read_u16(packet, at);
            amend(packet, HEADER_CHECKSUM, old, word);
            if summed {
                amend(packet, sum, old, word);
            }
            write_u16(packet, at, word);
        }
        let at = self.length + port;
        if summed {
            amend(packet, sum, read_u16(packet, at), new.port());
            if transport == Transport::Udp && read_u16(packet, sum) == 0 {
                write_u16(packet, sum, 0xffff);
            }
        }
        write_u16(packet, at, new.port());
    }
}

/// Corrects the checksum at `at` for a word that changes.
///
/// Source: RFC 1624 §3, equation 3: `HC' = ~(~HC + ~m + m')`.
fn amend(packet: &mut [u8], at: usize, old: u16, new: u16) {
    let sum = u32::from(!read_u16(packet, at)) + u32::from(!old) + u32::from(new);
    let once = (sum & 0xffff) + (sum >> 16);
    let folded = (once & 0xffff) + (once >> 16);
    write_u16(packet, at, !u16::try_from(folded).unwrap_or(u16::MAX));
}

fn read_u16(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn write_u16(packet: &mut [u8], at: usize, word: u16) {
    packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

fn read_address(packet: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3])
}

/// Packets for tests.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A datagram with right checksums.
    pub(crate) fn datagram(source: SocketAddrV4, target: SocketAddrV4, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet.extend_from_slice(body);
        let total = u16::try_from(packet.len()).unwrap();
        packet[0] = 0x45;
        write_u16(&mut packet, 2, total);
        packet[8] = 64;
        packet[9] = UDP;
        packet[SOURCE..TARGET].copy_from_slice(&source.ip().octets());
        packet[TARGET..HEADER_MIN].copy_from_slice(&target.ip().octets());
        write_u16(&mut packet, 20, source.port());
        write_u16(&mut packet, 22, target.port());
        write_u16(&mut packet, 24, total - 20);
        let sum = !folded(&packet[..20]);
        write_u16(&mut packet, HEADER_CHECKSUM, sum);
        let sum = !transport_sum(&packet);
        write_u16(&mut packet, 26, if sum == 0 { 0xffff } else { sum });
        packet
    }

    /// The one's complement sum of all words.
    fn folded(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|word| {
            u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or_default())
        });
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    /// The sum of the pseudo header, the transport header and the body.
    fn transport_sum(packet: &[u8]) -> u16 {
        let mut bytes = packet[SOURCE..HEADER_MIN].to_vec();
        bytes.extend([0, packet[9]]);
        bytes.extend(u16::try_from(packet.len() - 20).unwrap().to_be_bytes());
        bytes.extend_from_slice(&packet[20..]);
        folded(&bytes)
    }

    /// Whether a receiver would accept the checksums.
    pub(crate) fn sums_are_right(packet: &[u8]) -> bool {
        folded(&packet[..20]) == 0xffff && transport_sum(packet) == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{datagram, sums_are_right};
    use super::*;

    fn address() -> impl Strategy<Value = SocketAddrV4> {
        (any::<u32>(), any::<u16>())
            .prop_map(|(ip, port)| SocketAddrV4::new(Ipv4Addr::from_bits(ip), port))
    }

    proptest! {
        #[test]
        fn a_rewritten_packet_equals_one_made_with_the_new_addresses(
            from in address(), to in address(), new in address(), other in address(),
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut packet = datagram(from, to, &body);
            prop_assert!(sums_are_right(&packet));
            let header = Header::read(&packet).unwrap();
            prop_assert_eq!(header.ports, Some((Transport::Udp, from.port(), to.port())));
            header.set_source(&mut packet, new);
            header.set_target(&mut packet, other);
            prop_assert!(sums_are_right(&packet));
            let read = Header::read(&packet).unwrap();
            prop_assert_eq!((read.source, read.target), (*new.ip(), *other.ip()));
            prop_assert_eq!(read.ports, Some((Transport::Udp, new.port(), other.port())));
            prop_assert_eq!(&packet[28..], &body[..]);
        }

        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(header) = Header::read(&bytes) {
                let mut packet = bytes.clone();
                header.set_source(&mut packet, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));
                prop_assert_eq!(packet.len(), bytes.len());
            }
        }
    }

    #[test]
    fn fragments_and_short_transports_have_no_ports() {
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
        let mut packet = datagram(any, any, b"0123456789ab");
        packet[6] = 0x20;
        assert_eq!(Header::read(&packet).unwrap().ports, None, "the first of several fragments");
        packet[6] = 0;
        packet[9] = TCP;
        assert!(Header::read(&packet).unwrap().ports.is_some());
        let short = datagram(any, any, b"");
        let mut short_tcp = short.clone();
        short_tcp[9] = TCP;
        assert_eq!(Header::read(&short_tcp).unwrap().ports, None);
        assert_eq!(Header::read(&short[..27]), None, "shorter than it says");
    }

    #[test]
    fn a_datagram_without_checksum_keeps_none() {
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
        let mut packet = datagram(any, any, b"x");
        write_u16(&mut packet, 26, 0);
        let header = Header::read(&packet).unwrap();
        header.set_source(&mut packet, SocketAddrV4::new(Ipv4Addr::BROADCAST, 10));
        assert_eq!(read_u16(&packet, 26), 0);
    }
}
