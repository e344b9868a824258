//! Every committed input of every target still holds; needs neither nightly nor libFuzzer.

use std::path::Path;

use dnode_protocol::limits::PROTOCOL_VERSION;

/// Frames of another version are refused before anything else of them is read.
#[test]
fn most_frames_of_the_corpus_are_of_this_version() {
    for (name, at) in [("decode_control", 0), ("decode_tensor", 4)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let entries = std::fs::read_dir(&folder).expect("read the corpus");
        let inputs: Vec<Vec<u8>> = entries
            .map(|entry| std::fs::read(entry.expect("list the corpus").path()).expect("read it"))
            .collect();
        let own = inputs.iter().filter(|it| it.get(at) == Some(&PROTOCOL_VERSION)).count();
        assert!(2 * own > inputs.len(), "{name}: {own} of {}", inputs.len());
    }
}

#[test]
fn every_input_of_the_corpus_holds() {
    for (name, target) in dnode_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("read the corpus {}: {error}", folder.display()));
        let mut inputs = 0;
        for entry in entries {
            let path = entry.expect("list the corpus").path();
            let data = std::fs::read(&path).expect("read an input");
            println!("{}", path.display());
            target(&data);
            inputs += 1;
        }
        assert!(inputs > 0, "{} has no input", folder.display());
    }
}
