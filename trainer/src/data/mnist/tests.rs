//! Tests with small IDX files, good and bad.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

fn idx(fields: &[u32], body: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
    bytes.extend_from_slice(body);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The four files of a good set: 12 training and 5 held-out images.
fn good() -> [Vec<u8>; 4] {
    let images = |count: u32| {
        let body: Vec<u8> = (0..count * 784).map(|i| (i % 251) as u8).collect();
        idx(&[0x0803, count, 28, 28], &body)
    };
    let labels = |count: u32| {
        let body: Vec<u8> = (0..count).map(|i| (i % 10) as u8).collect();
        idx(&[0x0801, count], &body)
    };
    [images(12), labels(12), images(5), labels(5)]
}

/// The set with file number `which` replaced.
fn folder_with(which: usize, bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (index, (name, good)) in NAMES.iter().zip(good()).enumerate() {
        let bytes = if index == which { bytes } else { &good };
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn load_with(which: usize, bytes: &[u8]) -> Result<(Images, Images), DataError> {
    load(folder_with(which, bytes).path())
}

/// Asserts that the error is one line that names the file and ends with `found`.
fn refused(which: usize, bytes: &[u8], expected: &str, found: &str) {
    let message = load_with(which, bytes).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    assert!(message.contains(NAMES[which]), "{message}");
    assert!(message.contains(expected), "{message}");
    assert!(message.ends_with(found), "{message}");
}

#[test]
fn raw_and_compressed_files_of_every_spelling_load_alike() {
    let raw = load_with(usize::MAX, &[]).unwrap();
    assert_eq!((raw.0.labels.len(), raw.1.labels.len()), (12, 5));
    assert_eq!(raw.0.pixels[..3], [0, 1, 2]);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in NAMES.iter().zip(good()) {
        let name = format!("{}.gz", name.replace("-idx", ".idx"));
        fs::write(folder.path().join(name), gzip(&bytes)).unwrap();
    }
    assert_eq!(load(folder.path()).unwrap(), raw);
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let message = load(folder.path()).unwrap_err().to_string();
    assert!(message.contains("not found") && message.contains("train-images-idx3-ubyte.gz"));
    for (name, bytes) in NAMES.iter().zip(good()).take(3) {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let message = load(folder.path()).unwrap_err().to_string();
    assert!(message.contains("t10k-labels-idx1-ubyte"), "{message}");
    let message = load(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(message.contains("nowhere: not found"), "{message}");
}

#[test]
fn truncated_files_are_refused() {
    let [images, labels, ..] = good();
    let found = "found only 9308 of 9408 bytes of content (truncated?)";
    refused(0, &images[..images.len() - 100], "12 images of 28 x 28", found);
    refused(1, &labels[..10], "12 labels from 0 to 9", "2 of 12 bytes of content (truncated?)");
    refused(0, &images[..10], "an IDX file", "a file of 2 bytes");
    refused(0, &[], "an IDX file", "a file of 0 bytes");
    let packed = gzip(&images);
    let message = load_with(0, &packed[..packed.len() / 2]).unwrap_err().to_string();
    assert!(message.contains("read data") && message.contains("12 images"), "{message}");
}

#[test]
fn corrupt_files_are_refused() {
    let mut packed = gzip(&good()[0]);
    let middle = packed.len() - 6;
    packed[middle] ^= 0x10;
    assert!(matches!(load_with(0, &packed), Err(DataError::Read { .. })), "checksum");
    let mut labels = good()[3].clone();
    labels[11] = 17;
    refused(3, &labels, "5 labels from 0 to 9", "found label 17 at index 3");
}

#[test]
fn wrong_files_are_refused() {
    let [images, labels, ..] = good();
    refused(0, &labels, "magic 0x0803", "found magic 0x0801");
    refused(1, &images, "magic 0x0801", "found magic 0x0803");
    refused(0, b"<!DOCTYPE html><html>", "magic 0x0803", "found magic 0x3c21444f");
    refused(0, &idx(&[0x0803, 1, 32, 32], &[0; 1024]), "28 x 28", "found images of 32 x 32");
    refused(1, &idx(&[0x0801, 3], &[1, 2, 3]), "12 labels, one for each", "found 3");
}

#[test]
fn lying_headers_and_bombs_are_refused_without_their_memory() {
    let claim = idx(&[0x0803, u32::MAX, 28, 28], &[]);
    refused(0, &claim, "1 to 1000000 images", "found a header that says 4294967295");
    refused(1, &idx(&[0x0801, 0], &[]), "1 to 1000000 labels", "found a header that says 0");
    // Says 784 MB, has nothing.
    let claim = idx(&[0x0803, COUNT_MAX, 28, 28], &[7]);
    refused(0, &claim, "1000000 images", "1 of 784000000 bytes of content (truncated?)");
    // Says one image, unpacks to 64 MB.
    let bomb = gzip(&idx(&[0x0803, 1, 28, 28], &vec![0; 64 << 20]));
    assert!(bomb.len() < 1 << 20);
    refused(0, &bomb, "1 images of 28 x 28", "found more than 784 bytes of content");
}
