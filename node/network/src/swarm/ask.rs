//! What a peer tells to any peer that asks, before a run: its wall clock, the digest of its first step,
//! and its hello. Nothing in a run depends on it.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::StreamProtocol;
use libp2p::request_response::{Behaviour, Config, ProtocolSupport};

use dnode_protocol::frame::{CONTROL_HEADER_BYTES, ControlHeader};
use dnode_protocol::limits::ASK_PROTOCOL;

use crate::limits::{ASK_ANSWER_MAX, ASK_STREAMS_MAX, DIGEST_BYTES_MAX};
use crate::unix_time;

/// The format: the question is one byte. The answer is the wall clock in microseconds since 1970 (eight
/// bytes, little endian), the length of the digest (one byte), the digest (ASCII), and the hello as a
/// control frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codec;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Microseconds since 1970.
    pub(crate) micros: u64,
    /// The digest of its first step; empty if it has none.
    pub(crate) digest: String,
    /// Its hello, a complete control frame.
    pub(crate) hello: Vec<u8>,
}

/// How far the clock of a peer is from that of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// How far it is ahead, in microseconds; negative if it is behind.
    pub ahead_micros: i64,
    /// The largest possible error: half of the time that the answer took.
    pub within: Duration,
}

impl Skew {
    /// Compares the clock `theirs`, in an answer that took `took`, with `asked`, the own clock when the
    /// question was asked.
    pub(crate) fn new(theirs: u64, asked: u64, took: Duration) -> Self {
        let within = took / 2;
        let ours = i128::from(asked) + i128::try_from(within.as_micros()).unwrap_or(i128::MAX / 2);
        let ahead = (i128::from(theirs) - ours).clamp(i64::MIN.into(), i64::MAX.into());
        Self { ahead_micros: i64::try_from(ahead).unwrap_or_default(), within }
    }
}

/// The wall clock, in microseconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(unix_time().as_micros()).unwrap_or(u64::MAX)
}

/// The behaviour that asks, answers, or does both.
pub(crate) fn behaviour(support: ProtocolSupport) -> Behaviour<Codec> {
    let config = Config::default()
        .with_request_timeout(ASK_ANSWER_MAX)
        .with_max_concurrent_streams(ASK_STREAMS_MAX);
    Behaviour::new([(StreamProtocol::new(ASK_PROTOCOL), support)], config)
}

impl libp2p::request_response::Codec for Codec {
    type Protocol = StreamProtocol;
    type Request = ();
    type Response = Told;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<()>
    where
        T: AsyncRead + Unpin + Send,
    {
        io.read_exact(&mut [0]).await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Told>
    where
        T: AsyncRead + Unpin + Send,
    {
        let mut bytes = [0; 9];
        io.read_exact(&mut bytes).await?;
        let [micros @ .., length] = bytes;
        let mut digest = vec![0; usize::from(length)];
        io.read_exact(&mut digest).await?;
        let digest = String::from_utf8(digest).ok().filter(|digest| digest.is_ascii());
        let digest = digest.ok_or(io::ErrorKind::InvalidData)?;
        let mut hello = vec![0; CONTROL_HEADER_BYTES];
        io.read_exact(&mut hello).await?;
        let header = hello.first_chunk().and_then(|bytes| ControlHeader::decode(*bytes).ok());
        let length = header.ok_or(io::ErrorKind::InvalidData)?.body_bytes;
        hello.resize(CONTROL_HEADER_BYTES + length, 0);
        io.read_exact(&mut hello[CONTROL_HEADER_BYTES..]).await?;
        Ok(Told { micros: u64::from_le_bytes(micros), digest, hello })
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
        Told { micros, digest, hello }: Told,
    ) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        let digest = &digest.as_bytes()[..digest.len().min(DIGEST_BYTES_MAX)];
        let length = u8::try_from(digest.len()).unwrap_or(u8::MAX);
        io.write_all(&[&micros.to_le_bytes(), [length].as_slice(), digest, &hello].concat()).await
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::Message;
    use dnode_protocol::frame::encode_control;
    use libp2p::request_response::Codec as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_read_as_it_was_written_and_nothing_else_is_one() {
        let protocol = StreamProtocol::new(ASK_PROTOCOL);
        for length in [0, 1, 142, DIGEST_BYTES_MAX] {
            let hello = encode_control(&Message::Goodbye).unwrap();
            let told = Told { micros: u64::MAX - 7, digest: "f".repeat(length), hello };
            let mut bytes = futures::io::Cursor::new(Vec::new());
            Codec.write_response(&protocol, &mut bytes, told.clone()).await.unwrap();
            let mut bytes = bytes.into_inner();
            assert_eq!(Codec.read_response(&protocol, &mut bytes.as_slice()).await.unwrap(), told);
            let last = bytes.pop().unwrap();
            assert!(Codec.read_response(&protocol, &mut bytes.as_slice()).await.is_err());
            bytes.push(last);
            // One is of another version, the other longer than any hello.
            for at in [9 + length, 9 + length + 4] {
                let mut bad = bytes.clone();
                bad[at] = 0xff;
                assert!(Codec.read_response(&protocol, &mut bad.as_slice()).await.is_err());
            }
        }
    }

    #[test]
    fn made_answers_are_read_as_they_were_written_or_refused() {
        let protocol = StreamProtocol::new(ASK_PROTOCOL);
        let hello = encode_control(&Message::Goodbye).unwrap();
        let answer = [7_u64.to_le_bytes().as_slice(), &[3], b"abc", &hello].concat();
        dnode_mutate::check_made_inputs(&[answer], 4000, |bytes| {
            let mut again = futures::io::Cursor::new(Vec::new());
            let both = async {
                let told = Codec.read_response(&protocol, &mut &bytes[..]).await?;
                Codec.write_response(&protocol, &mut again, told).await
            };
            if futures::executor::block_on(both).is_err() {
                return;
            }
            let again = again.into_inner();
            assert_eq!(again, bytes[..again.len()], "an answer has one encoding");
        });
    }

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
