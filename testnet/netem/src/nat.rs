//! A network address translator: which outer port stands for which inner one, and who may answer.
//!
//! Two kinds, in the terms of RFC 4787 (UDP) and RFC 5382 (TCP): endpoint-independent mapping, and
//! mapping by address and port. Both filter by address and port: only who was written to may
//! answer. One machine is behind each; there is no hairpin.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use super::packet::Transport;

/// Outer ports in use at once. A home router has about as many; one machine needs far fewer.
pub const MAPPINGS_MAX: usize = 1024;
/// Remote ends that may answer, over all mappings.
pub const PERMISSIONS_MAX: usize = 8192;
/// First outer port. Ports are given out in turn from here, so none is the inner one.
pub const FIRST_PORT: u16 = 40_000;
/// Idle time after which a UDP mapping ends, unless a command sets it (RFC 4787, REQ-5).
pub const UDP_IDLE: Duration = Duration::from_secs(120);
/// Idle time after which a TCP mapping ends (RFC 5382, REQ-5).
const TCP_IDLE: Duration = Duration::from_secs(7440);

/// How a NAT chooses outer ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    /// One outer port for each inner one, whoever is written to: holes can be punched.
    Cone,
    /// Another outer port for each remote end: nobody else can guess it.
    Symmetric,
}

/// No outer port or no room is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table is full")]
pub struct TableFull;

/// What an outer port stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Inner {
    transport: Transport,
    end: SocketAddrV4,
    /// The only remote end, when there is only one.
    remote: Option<SocketAddrV4>,
}

#[derive(Clone, Debug)]
struct Mapping {
    inner: Inner,
    used: Duration,
    /// Remote ends that may answer, and when each was written to.
    permitted: BTreeMap<SocketAddrV4, Duration>,
}

/// The table of one NAT. Moments are durations since a common start.
#[derive(Clone, Debug)]
pub struct Nat {
    kind: NatKind,
    udp_idle: Duration,
    outer: Ipv4Addr,
    ports: BTreeMap<Inner, u16>,
    mappings: BTreeMap<(Transport, u16), Mapping>,
    permissions: usize,
    next_port: u16,
}

impl Nat {
    /// An empty table; outer ports belong to the address `outer`.
    #[must_use]
    pub const fn new(kind: NatKind, udp_idle: Duration, outer: Ipv4Addr) -> Self {
        Self {
            kind,
            udp_idle,
            outer,
            ports: BTreeMap::new(),
            mappings: BTreeMap::new(),
            permissions: 0,
            next_port: FIRST_PORT,
        }
    }

    /// Outer ports in use; idle ones count until their place is needed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether no outer port is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// A packet goes from `source` inside to `target`: who it seems to come from.
    ///
    /// # Errors
    /// [`TableFull`]; the packet is to be dropped.
    pub fn outbound(
        &mut self,
        transport: Transport,
        source: SocketAddrV4,
        target: SocketAddrV4,
        now: Duration,
    ) -> Result<SocketAddrV4, TableFull> {
        let remote = (self.kind == NatKind::Symmetric).then_some(target);
        let inner = Inner { transport, end: source, remote };
        let port = match self.ports.get(&inner).copied() {
            Some(port) if !self.is_idle(transport, port, now) => port,
            Some(port) => {
                self.remove(transport, port);
                self.open(inner, now)?
            }
            None => self.open(inner, now)?,
        };
        self.permit(transport, port, target, now)?;
        Ok(SocketAddrV4::new(self.outer, port))
    }

    /// A packet comes from `source` to the outer `port`: who inside gets it, if anybody.
    #[must_use]
    pub fn inbound(
        &self,
        transport: Transport,
        source: SocketAddrV4,
        port: u16,
        now: Duration,
    ) -> Option<SocketAddrV4> {
        let mapping = self.mappings.get(&(transport, port))?;
        let written = mapping.permitted.get(&source)?;
        let idle = now.saturating_sub(*written) >= self.idle_time(transport);
        (!idle).then_some(mapping.inner.end)
    }

    const fn idle_time(&self, transport: Transport) -> Duration {
        match transport {
            Transport::Tcp => TCP_IDLE,
            Transport::Udp => self.udp_idle,
        }
    }

    /// Only packets from inside keep a mapping (RFC 4787, REQ-6: the safe choice).
    fn is_idle(&self, transport: Transport, port: u16, now: Duration) -> bool {
        let mapping = self.mappings.get(&(transport, port));
        mapping.is_none_or(|mapping| now.saturating_sub(mapping.used) >= self.idle_time(transport))
    }

    /// Gives `inner` a free outer port.
    fn open(&mut self, inner: Inner, now: Duration) -> Result<u16, TableFull> {
        if self.mappings.len() >= MAPPINGS_MAX {
            self.expire(now);
        }
        if self.mappings.len() >= MAPPINGS_MAX {
            return Err(TableFull);
        }
        // There are more ports than mappings, so one is free.
        while self.mappings.contains_key(&(inner.transport, self.next_port)) {
            self.step_port();
        }
        let port = self.next_port;
        self.step_port();
        let mapping = Mapping { inner, used: now, permitted: BTreeMap::new() };
        self.mappings.insert((inner.transport, port), mapping);
        self.ports.insert(inner, port);
        Ok(port)
    }

    const fn step_port(&mut self) {
        self.next_port = match self.next_port.checked_add(1) {
            Some(port) => port,
            None => FIRST_PORT,
        };
    }

    /// Lets `remote` answer to an outer port that is in use.
    fn permit(
        &mut self,
        transport: Transport,
        port: u16,
        remote: SocketAddrV4,
        now: Duration,
    ) -> Result<(), TableFull> {
        if self.permissions >= PERMISSIONS_MAX {
            self.expire(now);
        }
        let full = self.permissions >= PERMISSIONS_MAX;
        // A mapping opened for this packet may be the only one, and `expire` keeps it.
        let Some(mapping) = self.mappings.get_mut(&(transport, port)) else {
            return Err(TableFull);
        };
        let known = mapping.permitted.contains_key(&remote);
        if full && !known {
            return Err(TableFull);
        }
        mapping.used = now;
        mapping.permitted.insert(remote, now);
        self.permissions += usize::from(!known);
        Ok(())
    }

    /// Forgets everything that is idle.
    fn expire(&mut self, now: Duration) {
        let idle: Vec<(Transport, u16)> = self.mappings.keys().copied().collect();
        for (transport, port) in idle {
            if self.is_idle(transport, port, now) {
                self.remove(transport, port);
                continue;
            }
            let idle = self.idle_time(transport);
            if let Some(mapping) = self.mappings.get_mut(&(transport, port)) {
                let before = mapping.permitted.len();
                mapping.permitted.retain(|_, written| now.saturating_sub(*written) < idle);
                self.permissions -= before - mapping.permitted.len();
            }
        }
    }

    fn remove(&mut self, transport: Transport, port: u16) {
        if let Some(mapping) = self.mappings.remove(&(transport, port)) {
            self.permissions -= mapping.permitted.len();
            self.ports.remove(&mapping.inner);
        }
    }
}

#[cfg(test)]
mod tests;
