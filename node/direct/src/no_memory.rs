//! Where processes cannot share memory under seals: no path of that kind exists.

use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll};

/// Never made.
#[derive(Debug)]
pub(crate) struct MemorySender(Infallible);

impl MemorySender {
    pub(crate) async fn write(&mut self, _: &[u8], _: &[u8]) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) async fn closed(&mut self) -> io::Error {
        match self.0 {}
    }

    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

/// Never made.
#[derive(Debug)]
pub(crate) struct MemoryReceiver(Infallible);

impl MemoryReceiver {
    pub(crate) fn poll_read(
        &mut self,
        _: &mut Context<'_>,
        _: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self.0 {}
    }
}
