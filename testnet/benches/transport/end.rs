//! One end of a flow: a thread of its own, in a namespace of the emulated network or on this host.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dnode_netem::{Emulator, WanError, address};

/// Where the two ends are.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// Both on this host.
    Loopback,
    /// In machines 0 (who sends) and 1 of a network.
    Emulated(&'a Emulator),
}

impl Place<'_> {
    /// Runs `work` on machine `index`.
    pub(crate) fn run<T: Send + 'static>(
        self,
        index: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Result<T, WanError>> {
        match self {
            Self::Loopback => std::thread::spawn(|| Ok(work())),
            Self::Emulated(emulator) => emulator.namespaces().inside(index, work),
        }
    }

    /// The address of machine `index`.
    pub(crate) fn address(self, index: usize) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Emulated(_) => address(index),
        }
    }

    /// Packets that the way from machine 0 to machine 1 has dropped so far.
    pub(crate) fn dropped(self) -> u64 {
        match self {
            Self::Loopback => 0,
            Self::Emulated(emulator) => {
                let link = emulator.stats().unwrap().line(0, 1).link;
                link.lost + link.full
            }
        }
    }
}

/// What both ends of a flow and whoever measures it share.
#[derive(Clone, Default)]
pub(crate) struct Meter {
    /// Bytes of data received.
    pub(crate) received: Arc<AtomicU64>,
    /// Packets that the sender has taken for lost, where it says so.
    pub(crate) lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Meter {
    pub(crate) fn count(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether both ends shall end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits in a runtime until both ends shall end.
    pub(crate) async fn wait_stopped(&self) {
        while !self.stopped() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A flow from machine 0 to machine 1 that sends until it is dropped.
pub(crate) struct Flow {
    pub(crate) meter: Meter,
    ends: Vec<JoinHandle<Result<(), WanError>>>,
}

impl Flow {
    pub(crate) fn new(meter: Meter, ends: Vec<JoinHandle<Result<(), WanError>>>) -> Self {
        Self { meter, ends }
    }

    /// Seconds from the first byte that arrives until `bytes` have arrived; `None` when that takes
    /// longer than `patience`.
    pub(crate) fn time(&self, bytes: u64, patience: Duration) -> Option<f64> {
        let asked = Instant::now();
        let mut began = None;
        loop {
            let received = self.meter.received();
            if received > 0 && began.is_none() {
                began = Some(Instant::now());
            }
            if received >= bytes {
                return began.map(|began| began.elapsed().as_secs_f64());
            }
            if asked.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.meter.stop.store(true, Ordering::Relaxed);
        for end in self.ends.drain(..) {
            // What went wrong has been printed by the thread.
            let _ = end.join();
        }
    }
}

/// Seconds of CPU that this process has used, user and kernel.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
