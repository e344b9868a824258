//! Paths through shared memory: a ring of slots, and a socket between the processes that says what
//! is in it.
//!
//! The sender fills slot after slot and says the length of each; the receiver copies it out and
//! gives the slot back with one byte, several at a time. Every number that the other process says is checked; what it
//! does to the memory changes nothing but the bytes that it sends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::UnixStream;

use crate::error::Error;
use crate::limits::{SLOT_BYTES, SLOTS};
use crate::ring::{RingReader, RingWriter};

/// Slots that are given back at a time. Each time wakes the sender, which needs none of them before it has filled the
/// others.
const GIVEN_BACK: usize = SLOTS / 2;

/// The length of one slot's content, as it is said.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Hands a file to the process at the other end of a socket, with one byte.
pub(crate) fn hand_over(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes at most one byte from the process at the other end of a socket, and the file that came with
/// it. Returns how many bytes came.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive; only files matter here"
)]
pub(crate) fn take_over(socket: BorrowedFd<'_>) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let slices = &mut [IoSliceMut::new(&mut byte)];
    let taken = recvmsg(socket, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok((taken.bytes, files.flatten().next()))
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct MemorySender {
    stream: UnixStream,
    ring: RingWriter,
    slot: usize,
    /// Slots that the other end may still have.
    taken: usize,
}

impl MemorySender {
    /// Hands a new ring to the process at the other end, which has proved who it is.
    pub(crate) async fn new(stream: UnixStream) -> Result<Self, Error> {
        let ring = RingWriter::new()?;
        let file = ring.file();
        let sent = stream.async_io(Interest::WRITABLE, || hand_over(stream.as_fd(), file));
        sent.await?;
        Ok(Self { stream, ring, slot: 0, taken: 0 })
    }

    /// Copies `head` and `body` to as few slots as hold them.
    pub(crate) async fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let (mut head, mut body) = (head, body);
        while !head.is_empty() || !body.is_empty() {
            while self.taken == SLOTS {
                self.returned().await?;
            }
            let mut filled = 0;
            for rest in [&mut head, &mut body] {
                let (piece, behind) = rest.split_at(rest.len().min(SLOT_BYTES - filled));
                self.ring.write(self.slot, filled, piece);
                filled += piece.len();
                *rest = behind;
            }
            let length = u32::try_from(filled).unwrap_or(u32::MAX);
            self.stream.write_all(&length.to_le_bytes()).await?;
            self.slot = (self.slot + 1) % SLOTS;
            self.taken += 1;
        }
        Ok(())
    }

    /// Waits until the other end gives slots back.
    async fn returned(&mut self) -> io::Result<()> {
        let count = self.stream.read(&mut [0; SLOTS]).await?;
        if count == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.taken = self.taken.checked_sub(count).ok_or(io::ErrorKind::InvalidData)?;
        Ok(())
    }

    /// Waits for the end; slots may come back meanwhile.
    pub(crate) async fn closed(&mut self) -> io::Error {
        loop {
            if let Err(error) = self.returned().await {
                return error;
            }
        }
    }

    /// Says that nothing follows.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct MemoryReceiver {
    stream: UnixStream,
    ring: RingReader,
    slot: usize,
    /// Slots that were read and not given back.
    owed: usize,
    /// Bytes of the slot, and how many of them were read.
    content: (usize, usize),
    /// Part of a length.
    length: ([u8; LENGTH_BYTES], usize),
}

impl MemoryReceiver {
    /// Takes the ring from the process at the other end, which has proved who it is.
    pub(crate) async fn new(stream: UnixStream) -> Result<Self, Error> {
        let taken = stream.async_io(Interest::READABLE, || take_over(stream.as_fd())).await?;
        let file = taken.1.ok_or(Error::Memory("no file came"))?;
        let ring = RingReader::new(&file)?;
        Ok(Self { stream, ring, slot: 0, owed: 0, content: (0, 0), length: ([0; LENGTH_BYTES], 0) })
    }

    /// Reads at least one byte into `bytes`; 0 at the end.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.content.0 == 0 {
            match ready!(self.poll_length(context))? {
                Some(length) => self.content = (length, 0),
                None => return Poll::Ready(Ok(0)),
            }
        }
        let (length, read) = self.content;
        let count = bytes.len().min(length - read);
        self.ring.read(self.slot, read, &mut bytes[..count]);
        self.content.1 += count;
        if self.content.1 == length {
            self.content = (0, 0);
            self.slot = (self.slot + 1) % SLOTS;
            self.owed += 1;
            if self.owed >= GIVEN_BACK {
                self.give_back()?;
            }
        }
        Poll::Ready(Ok(count))
    }

    /// The length of the next slot's content; `None` at the end.
    fn poll_length(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        let (bytes, filled) = &mut self.length;
        while *filled < LENGTH_BYTES {
            let mut room = ReadBuf::new(&mut bytes[*filled..]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
            match room.filled().len() {
                0 if *filled == 0 => return Poll::Ready(Ok(None)),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                count => *filled += count,
            }
        }
        *filled = 0;
        let length = usize::try_from(u32::from_le_bytes(*bytes)).unwrap_or(usize::MAX);
        if length == 0 || length > SLOT_BYTES {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(Some(length)))
    }

    /// Gives slots back. The socket holds more of these than there are slots, unless the other end
    /// leaves them there.
    fn give_back(&mut self) -> io::Result<()> {
        match self.stream.try_write(&[0; SLOTS][..self.owed.min(SLOTS)]) {
            // The other end has said everything and is gone.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
            Ok(count) => {
                self.owed -= count;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::limits::RING_BYTES;

    async fn pair() -> (MemorySender, MemoryReceiver) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sender = MemorySender::new(ours).await.unwrap();
        (sender, MemoryReceiver::new(theirs).await.unwrap())
    }

    async fn read(receiver: &mut MemoryReceiver, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; most];
        let count = poll_fn(|context| receiver.poll_read(context, &mut bytes)).await?;
        bytes.truncate(count);
        Ok(bytes)
    }

    #[tokio::test]
    async fn lengths_that_no_slot_has_end_the_path() {
        for length in [0, SLOT_BYTES + 1, RING_BYTES, u32::MAX as usize] {
            let (mut sender, mut receiver) = pair().await;
            sender.write(&[1], &[2, 3]).await.unwrap();
            assert_eq!(read(&mut receiver, 9).await.unwrap(), [1, 2, 3]);
            let length = u32::try_from(length).unwrap();
            sender.stream.write_all(&length.to_le_bytes()).await.unwrap();
            let error = read(&mut receiver, 9).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{length}");
        }
    }

    #[tokio::test]
    async fn made_lengths_are_read_or_end_the_path() {
        let lengths: Vec<u8> = [1_u32, 3, 9].iter().flat_map(|it| it.to_le_bytes()).collect();
        let mut inputs = Vec::new();
        dnode_mutate::check_made_inputs(&[lengths], 300, |bytes| inputs.push(bytes.to_vec()));
        for input in inputs {
            let (sender, mut receiver) = pair().await;
            let told = sender.stream.try_write(&input).unwrap_or(0);
            drop(sender);
            let mut bytes = 0;
            while let Ok(part @ [_, ..]) = read(&mut receiver, SLOT_BYTES).await.as_deref() {
                bytes += part.len();
            }
            assert!(bytes <= told / LENGTH_BYTES * SLOT_BYTES, "{input:?}");
        }
    }

    #[tokio::test]
    async fn a_sender_that_ends_within_a_length_is_not_one_that_has_finished() {
        let (mut sender, mut receiver) = pair().await;
        sender.stream.write_all(&[3, 0]).await.unwrap();
        drop(sender);
        let error = read(&mut receiver, 9).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn slots_that_were_never_taken_cannot_be_given_back() {
        let (mut sender, receiver) = pair().await;
        sender.write(&[1], &[]).await.unwrap();
        for _ in 0..2 {
            receiver.stream.try_write(&[0]).unwrap();
        }
        assert_eq!(sender.closed().await.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_sender_waits_for_slots_and_a_receiver_takes_what_changes_meanwhile() {
        let (mut sender, mut receiver) = pair().await;
        let body = vec![7; RING_BYTES];
        sender.write(&[], &body).await.unwrap();
        assert_eq!(sender.taken, SLOTS);
        // The other process may write at any time: the bytes differ, and nothing else does.
        sender.ring.write(0, 0, &[9]);
        assert_eq!(read(&mut receiver, 2).await.unwrap(), [9, 7]);
        sender.ring.write(0, 0, &[8; 4]);
        assert_eq!(read(&mut receiver, 3).await.unwrap(), [8, 8, 7]);
        let mut left = RING_BYTES - 5;
        while left > 0 {
            left -= read(&mut receiver, SLOT_BYTES).await.unwrap().len();
        }
        sender.write(&[5], &[]).await.unwrap();
        assert_eq!(read(&mut receiver, 2).await.unwrap(), [5]);
    }

    #[tokio::test]
    async fn a_ring_must_come_first() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&[0]).await.unwrap();
        let error = MemoryReceiver::new(theirs).await.unwrap_err();
        assert!(matches!(error, Error::Memory("no file came")), "{error}");
    }
}
