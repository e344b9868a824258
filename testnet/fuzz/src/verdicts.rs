//! Bytes of a damaged file as what an earlier life held against neighbours.

use std::time::Duration;

use dnode_gossip::testing::peer;
use dnode_gossip::{Config, Gossip, Input, Start, VERDICTS_MAX, Verdicts};
use dnode_protocol::{Clock, Time};

/// Reads `data` as the text of verdicts; a core takes them over and says what it holds then.
pub fn verdicts(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Some(read) = Verdicts::from_text(text) else { return };
    assert_eq!(read.to_text(), text, "a list has one text");
    assert!(read.held.len() <= VERDICTS_MAX, "the number is checked");
    let start = Start { me: peer(0), incarnation: 2, fragments: 1, clock: Clock(0), seed: [0; 32] };
    let core = Gossip::new(start, Config::default(), Time::ZERO);
    for passed in [Duration::ZERO, Duration::from_secs(60), Duration::MAX] {
        let mut core = core.clone().holding(&read, passed);
        core.handle(Input::RoundDue, Time::ZERO);
        core.handle(Input::RoundDue, Time::ZERO + Duration::from_secs(1));
        let held = core.verdicts();
        assert!(held.held.len() <= read.held.len(), "it holds nothing else");
        let again = Verdicts::from_text(&held.to_text()).expect("what a core holds can be kept");
        let names = |it: &Verdicts| it.held.iter().map(|it| it.peer).collect::<Vec<_>>();
        assert_eq!(names(&again), names(&held));
        for verdict in &held.held {
            assert_eq!(core.trust(&verdict.peer), verdict.trust);
        }
    }
}
