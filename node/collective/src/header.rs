//! What a rank says before the values of an operation, so that ranks that are out of step notice.

use crate::collective::{Code, Operation, Reduction};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;

/// The header of an operation: code, reduction, root, number, elements.
pub(crate) fn header(operation: &Operation) -> [u8; HEADER_BYTES] {
    let Operation { code, reduction, number, elements, root } = *operation;
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = code as u8;
    bytes[1] = u8::from(reduction == Reduction::Mean);
    bytes[4..8].copy_from_slice(&u32::try_from(root).unwrap_or(u32::MAX).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(&(elements as u64).to_le_bytes());
    bytes
}

/// What a header says, for people.
pub(crate) fn said(bytes: &[u8; HEADER_BYTES]) -> String {
    let number = |range: std::ops::Range<usize>| {
        let mut number = [0; 8];
        number[..range.len()].copy_from_slice(&bytes[range]);
        u64::from_le_bytes(number)
    };
    let code = Code::ALL.into_iter().find(|code| *code as u8 == bytes[0]);
    let reduction = if bytes[1] == 0 { Reduction::Sum } else { Reduction::Mean };
    let (root, elements) = (usize::try_from(number(4..8)), usize::try_from(number(16..24)));
    match (code, root, elements) {
        (Some(code), Ok(root), Ok(elements)) => {
            Operation { code, reduction, number: number(8..16), elements, root }.to_string()
        }
        _ => "no operation".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_headers_are_told_in_one_short_line_and_sound_ones_as_they_are() {
        let every = Code::ALL.map(|code| {
            let (reduction, number) = (Reduction::Mean, 7 + u64::from(code as u8));
            Operation { code, reduction, number, elements: 1 << 20, root: 3 }
        });
        for operation in &every {
            assert_eq!(said(&header(operation)), operation.to_string());
        }
        let sound = every.map(|operation| header(&operation));
        dnode_mutate::check_made_inputs(&sound, 4000, |bytes| {
            let mut header = [0; HEADER_BYTES];
            let length = bytes.len().min(HEADER_BYTES);
            header[..length].copy_from_slice(&bytes[..length]);
            let told = said(&header);
            assert!(!told.is_empty() && told.len() < 128 && !told.contains('\n'), "{told}");
        });
    }
}
