//! `docs/protocol.md` names the hash of the source it describes, so that neither changes alone.

use std::path::Path;

/// The files that decide which bytes peers exchange.
const SOURCES: [&str; 19] = [
    "src/fragment.rs",
    "src/frame.rs",
    "src/frame/codec.rs",
    "src/frame/control.rs",
    "src/frame/tensor.rs",
    "src/id.rs",
    "src/invitation/certificate.rs",
    "src/invitation/chain.rs",
    "src/invitation/pass.rs",
    "src/invitation/revocation.rs",
    "src/invitation/revocation/kept.rs",
    "src/label.rs",
    "src/limits.rs",
    "src/membership/proof.rs",
    "src/membership/ticket.rs",
    "src/message.rs",
    "src/rack.rs",
    "src/run.rs",
    "src/summary.rs",
];

#[test]
fn the_specification_was_looked_at_when_the_source_changed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut hasher = blake3::Hasher::new();
    for name in SOURCES {
        let text = std::fs::read_to_string(root.join(name)).unwrap();
        // Tests beside the code say nothing about the bytes; line ends depend on the checkout.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().replace('\r', "");
        hasher.update(name.as_bytes()).update(&[0]).update(code.as_bytes()).update(&[0]);
    }
    let hash = hasher.finalize().to_hex();
    let specification = std::fs::read_to_string(root.join("../docs/protocol.md")).unwrap();
    assert!(
        specification.contains(&format!("`{hash}`")),
        "one of protocol/{} has changed: bring docs/protocol.md in line with it, raise \
         PROTOCOL_VERSION if a byte or a rule changed, then write this hash into \
         docs/protocol.md: {hash}",
        SOURCES.join(", protocol/")
    );
}
