//! Makes the texts of a snapshot safe for a terminal: they come from a peer, and partly from others.

use dnode_protocol::label;

use crate::telemetry::view::Snapshot;

/// Longest text that is shown, bytes.
const TEXT_BYTES_MAX: usize = 400;
/// How the text form of every peer id begins.
const ID_BEGINS: &str = "12D3KooW";
/// Characters of the text form of a peer id.
const ID_CHARACTERS: usize = 52;

/// Removes from a snapshot what could move a cursor, and puts names in place of long ids.
pub(super) fn cleaned(mut snapshot: Box<Snapshot>) -> Box<Snapshot> {
    let clean = |text: &mut String| *text = label(text, TEXT_BYTES_MAX);
    let node = &mut snapshot.node;
    for text in [&mut node.name, &mut node.short, &mut node.model, &mut node.rule, &mut node.run] {
        clean(text);
    }
    for peer in &mut snapshot.peers {
        let texts =
            [&mut peer.name, &mut peer.short, &mut peer.label, &mut peer.host, &mut peer.device];
        texts.into_iter().chain(&mut peer.notes).for_each(clean);
        peer.links.iter_mut().for_each(|link| clean(&mut link.path));
    }
    for event in &mut snapshot.events {
        clean(&mut event.name);
        event.detail = label(&named(&event.detail, &snapshot.peers), TEXT_BYTES_MAX);
    }
    snapshot
}

/// Replaces the ids of known peers by their names, and the others by their last letters.
fn named(text: &str, peers: &[crate::telemetry::view::Peer]) -> String {
    let mut named = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(ID_BEGINS) {
        let id = rest[at..].get(..ID_CHARACTERS).filter(|id| id.is_ascii());
        let Some(id) = id else { break };
        let short = &id[ID_CHARACTERS - 6..];
        let known = peers.iter().find(|peer| peer.short == short && !peer.label.is_empty());
        named.push_str(&rest[..at]);
        named.push_str(known.map_or(short, |peer| &peer.label));
        rest = &rest[at + ID_CHARACTERS..];
    }
    named + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::view::Peer;

    #[test]
    fn ids_become_names() {
        let text = str::to_owned;
        let peers = [Peer { short: text("uvwxyz"), label: text("gpu-7"), ..Peer::default() }];
        let id = |end: &str| format!("{ID_BEGINS}{}{end}", "a".repeat(38));
        assert_eq!(named(&format!("{}: bye", id("uvwxyz")), &peers), "gpu-7: bye");
        assert_eq!(named(&format!("from {}", id("bbbbbb")), &peers), "from bbbbbb");
        assert_eq!(named("12D3KooWé", &peers), "12D3KooWé");
        assert_eq!(named(&format!("12D3KooW{}", "é".repeat(60)), &peers).chars().count(), 68);
    }
}
