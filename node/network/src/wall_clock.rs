//! What a peer's wall clock says: asked before a run, by whoever compares it with an own; decides nothing.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::StreamProtocol;
use libp2p::request_response::{Behaviour, Config, ProtocolSupport};

use crate::limits::{TIME_ANSWER_MAX, TIME_PROTOCOL, TIME_STREAMS_MAX};

/// One byte that asks; the answer is microseconds since 1970, eight bytes, little endian.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codec;

/// How far the clock of a peer is from that of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// How far it is ahead, microseconds; negative behind.
    pub ahead_micros: i64,
    /// What that may be wrong by: half of the time that the answer took.
    pub within: Duration,
}

impl Skew {
    /// `theirs`, answered to a question that was asked at `asked` and took so long.
    pub(crate) fn new(theirs: u64, asked: u64, took: Duration) -> Self {
        let within = took / 2;
        let ours = i128::from(asked) + i128::try_from(within.as_micros()).unwrap_or(i128::MAX / 2);
        let ahead = (i128::from(theirs) - ours).clamp(i64::MIN.into(), i64::MAX.into());
        Self { ahead_micros: i64::try_from(ahead).unwrap_or_default(), within }
    }
}

/// Microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the wall clock is what is asked for")]
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Asks, answers, or both.
pub(crate) fn behaviour(support: ProtocolSupport) -> Behaviour<Codec> {
    let config = Config::default()
        .with_request_timeout(TIME_ANSWER_MAX)
        .with_max_concurrent_streams(TIME_STREAMS_MAX);
    Behaviour::new([(StreamProtocol::new(TIME_PROTOCOL), support)], config)
}

impl libp2p::request_response::Codec for Codec {
    type Protocol = StreamProtocol;
    type Request = ();
    type Response = u64;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<()>
    where
        T: AsyncRead + Unpin + Send,
    {
        io.read_exact(&mut [0]).await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<u64>
    where
        T: AsyncRead + Unpin + Send,
    {
        let mut bytes = [0; 8];
        io.read_exact(&mut bytes).await?;
        Ok(u64::from_le_bytes(bytes))
    }

    async fn write_request<T>(&mut self, _: &StreamProtocol, io: &mut T, (): ()) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        io.write_all(&[0]).await
    }

    async fn write_response<T>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        micros: u64,
    ) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        io.write_all(&micros.to_le_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_from_the_middle_of_its_way() {
        let took = Duration::from_micros(400);
        assert_eq!(Skew::new(1_200, 1_000, took).ahead_micros, 0);
        assert_eq!(Skew::new(700, 1_000, took).ahead_micros, -500);
        assert_eq!(Skew::new(u64::MAX, 0, took).ahead_micros, i64::MAX);
        assert_eq!(Skew::new(0, u64::MAX, took).ahead_micros, i64::MIN);
        assert_eq!(Skew::new(0, 0, took).within, Duration::from_micros(200));
    }
}
