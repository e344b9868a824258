//! Which addresses are near: on this host or on a local network.

use std::net::IpAddr;

/// Whether `ip` is of this host or of a network that no packet leaves: loopback (RFC 1122), private
/// (RFC 1918), link-local (RFC 3927, RFC 4291), unique local (RFC 4193).
#[must_use]
pub fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_addresses_are_those_of_hosts_and_local_networks() {
        let near = |text: &str| is_near(text.parse().unwrap());
        for text in ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.7.7", "169.254.1.1"] {
            assert!(near(text), "{text}");
        }
        for text in ["::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"] {
            assert!(near(text), "{text}");
        }
        for text in ["0.0.0.0", "8.8.8.8", "100.64.0.1", "172.32.0.1", "2001:db8::1", "::"] {
            assert!(!near(text), "{text}");
        }
        assert!(!near("::ffff:8.8.8.8"));
    }
}
