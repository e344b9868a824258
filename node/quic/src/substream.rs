//! One bidirectional QUIC stream as libp2p reads and writes it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};
use quinn::{RecvStream, SendStream};

/// A substream. Its directions end apart: after `close` it can still be read, and at the end of
/// what the other wrote it can still be written. Dropping it ends both.
#[derive(Debug)]
pub struct Substream {
    send: SendStream,
    receive: RecvStream,
}

impl Substream {
    pub(crate) const fn new(send: SendStream, receive: RecvStream) -> Self {
        Self { send, receive }
    }
}

impl AsyncRead for Substream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.receive.poll_read(context, bytes));
        Poll::Ready(result.map_err(io::Error::from))
    }
}

impl AsyncWrite for Substream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.send).poll_write(context, bytes));
        Poll::Ready(result.map_err(io::Error::from))
    }

    /// QUIC sends without being asked.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends our direction; what was written still arrives. Closing twice is no error.
    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The one error says that it was finished or reset before.
        let _ = self.send.finish();
        Poll::Ready(Ok(()))
    }
}
