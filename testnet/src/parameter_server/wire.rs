//! What peers and the server say to each other, on one TCP connection each.
//!
//! Every message is a head of 24 bytes (three little-endian u64) and, where it says so, all numbers
//! as little-endian f32. Both ends are of one harness on one machine and trust each other.

use std::io::{self, Read, Write};

/// Most parameters of a model; a limit against a stranger on the port.
pub(super) const PARAMETERS_MAX: u64 = 1 << 30;

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Whether there is more to do: from the server, whether the sender may go on with a step; from
    /// a peer, whether a gradient follows.
    pub(super) more: bool,
    /// Optimizer steps done when these parameters were taken, or a gradient's parameters were.
    pub(super) version: u64,
    /// How many optimizer steps were between the two for the last gradient.
    pub(super) lag: u64,
}

impl Head {
    /// Bytes on the line.
    pub(super) const BYTES: u64 = 24;

    /// Writes it.
    pub(super) fn write(self, line: &mut impl Write) -> io::Result<()> {
        for number in [u64::from(self.more), self.version, self.lag] {
            line.write_all(&number.to_le_bytes())?;
        }
        Ok(())
    }

    /// Reads one.
    pub(super) fn read(line: &mut impl Read) -> io::Result<Self> {
        let mut number = || -> io::Result<u64> {
            let mut bytes = [0; 8];
            line.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        Ok(Self { more: number()? == 1, version: number()?, lag: number()? })
    }
}

/// Writes numbers.
pub(super) fn write_numbers(line: &mut impl Write, numbers: &[f32]) -> io::Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    line.write_all(&bytes)?;
    line.flush()
}

/// Reads as many numbers as there is room for.
pub(super) fn read_numbers(line: &mut impl Read, numbers: &mut [f32]) -> io::Result<()> {
    let mut bytes = vec![0; 4 * numbers.len()];
    line.read_exact(&mut bytes)?;
    let (chunks, _) = bytes.as_chunks::<4>();
    numbers.iter_mut().zip(chunks).for_each(|(number, bytes)| *number = f32::from_le_bytes(*bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let head = Head { more: true, version: 7, lag: 3 };
        let mut line = Vec::new();
        head.write(&mut line).unwrap();
        assert_eq!(line.len() as u64, Head::BYTES);
        write_numbers(&mut line, &[1.5, -2.0]).unwrap();
        let mut line = line.as_slice();
        assert_eq!(Head::read(&mut line).unwrap(), head);
        let mut numbers = [0.0; 2];
        read_numbers(&mut line, &mut numbers).unwrap();
        assert_eq!((numbers, line.len()), ([1.5, -2.0], 0));
        assert!(Head::read(&mut line).is_err());
    }
}
