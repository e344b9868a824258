//! Every committed input of every target still holds; needs neither nightly nor libFuzzer.

use std::path::Path;

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
