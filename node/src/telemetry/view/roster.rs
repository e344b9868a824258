//! Labels for peers where they are listed, and the colour of each.

use std::collections::{BTreeMap, BTreeSet};

use super::Peer;

/// Gives every shown peer a label that no other has, and a colour for as long as it is shown.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// Colours by [`Peer::id`], one for each peer that is shown.
    colors: BTreeMap<String, u32>,
}

impl Roster {
    /// Fills in [`Peer::label`] and [`Peer::color`].
    pub(crate) fn call(&mut self, peers: &mut [Peer]) {
        let shown: BTreeSet<&str> = peers.iter().map(|peer| peer.id.as_str()).collect();
        self.colors.retain(|id, _| shown.contains(id.as_str()));
        let mut taken: BTreeSet<u32> = self.colors.values().copied().collect();
        for peer in peers.iter_mut() {
            let free = || (0..=u32::MAX).find(|color| !taken.contains(color)).unwrap_or(0);
            peer.color = *self.colors.entry(peer.id.clone()).or_insert_with(free);
            taken.insert(peer.color);
        }
        let called = times(peers, |peer| &peer.name);
        for peer in peers.iter_mut() {
            let short = if peer.short.is_empty() { &peer.id } else { &peer.short };
            peer.label = match called.get(&peer.name) {
                _ if peer.name.is_empty() => short.clone(),
                Some(1) => peer.name.clone(),
                _ => format!("{} {short}", peer.name),
            };
        }
        // Who has called itself as another one is called for its id has no label but its own id.
        let labels = times(peers, |peer| &peer.label);
        for peer in peers {
            if labels.get(&peer.label).is_some_and(|of| *of > 1) {
                peer.label.clone_from(&peer.id);
            }
        }
    }
}

/// How often each word is there.
fn times(peers: &[Peer], word: fn(&Peer) -> &String) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for peer in peers {
        *times.entry(word(peer).clone()).or_default() += 1;
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: &str, name: &str) -> Peer {
        let text = str::to_owned;
        Peer { id: text(id), short: format!("s{id}"), name: text(name), ..Peer::default() }
    }

    #[test]
    fn peers_of_one_name_are_told_apart_by_their_ids() {
        let mut peers = ["gpu", "gpu", "mine", ""];
        let mut peers: Vec<Peer> =
            peers.iter_mut().enumerate().map(|(at, name)| peer(&at.to_string(), name)).collect();
        Roster::default().call(&mut peers);
        let labels: Vec<&str> = peers.iter().map(|peer| peer.label.as_str()).collect();
        assert_eq!(labels, ["gpu s0", "gpu s1", "mine", "s3"]);
    }

    #[test]
    fn nobody_can_call_itself_as_another_one_is_shown() {
        let mut peers = vec![peer("0", "gpu"), peer("1", "gpu"), peer("2", "gpu s0")];
        Roster::default().call(&mut peers);
        let labels: Vec<&str> = peers.iter().map(|peer| peer.label.as_str()).collect();
        assert_eq!(labels, ["0", "gpu s1", "2"]);
    }

    #[test]
    fn a_peer_keeps_its_color_while_others_come_and_go() {
        let mut roster = Roster::default();
        let mut colors = |ids: &[&str]| {
            let mut peers: Vec<Peer> = ids.iter().map(|id| peer(id, "")).collect();
            roster.call(&mut peers);
            peers.iter().map(|peer| peer.color).collect::<Vec<_>>()
        };
        assert_eq!(colors(&["me", "b", "c"]), [0, 1, 2]);
        assert_eq!(colors(&["me", "a", "b", "c"]), [0, 3, 1, 2]);
        assert_eq!(colors(&["me", "c"]), [0, 2]);
        assert_eq!(colors(&["me", "c", "d"]), [0, 2, 1]);
    }
}
