//! When the own replica is the one that is unlike those of the run: who is accused no more, and who is suspected of
//! having led it there.

use dnode_protocol::{Clock, PeerId};

use super::{Guard, PAUSE_DOUBLINGS_MAX, PAUSE_ROUNDS, Trust, USUAL_COMMITS, are_nearly_all};

impl Guard {
    /// Whether a peer that is slower than most has fallen behind: nearly all that it has met of late had
    /// weights beyond the bound. They are trusted again then, and returned.
    ///
    /// Not found again for some rounds, more each time.
    pub(crate) fn has_fallen_behind(&mut self, clock: Clock, round: u64) -> Option<Vec<PeerId>> {
        let recent = self.peers.values().filter(|it| clock.distance(it.met) <= USUAL_COMMITS);
        let (met, far) = recent
            .fold((0, 0), |(met, far), record| (met + 1, far + usize::from(record.outliers > 0)));
        if are_nearly_all(far, met) { self.give_way(round) } else { None }
    }

    /// Whether so many neighbours leave this peer out, beside `others`, that its own replica must be the one that is
    /// unlike those of the run. They are trusted then, and so are those whom this peer found too far away; those
    /// for whom that is news are returned.
    pub(crate) fn is_exiled(
        &mut self,
        (left_out_by, others): (&[PeerId], &[PeerId]),
        round: u64,
    ) -> Option<Vec<PeerId>> {
        if !are_nearly_all(left_out_by.len(), left_out_by.len() + others.len()) {
            return None;
        }
        let mut pardoned = self.give_way(round)?;
        for peer in left_out_by {
            let record = self.peers.get_mut(peer);
            pardoned.extend(record.and_then(|it| it.judge(Trust::Trusted, round)).map(|_| *peer));
        }
        Some(pardoned)
    }

    /// A neighbour went on to mix with this peer when nearly all left it out: it may be the one that this peer has
    /// followed away from the run, so it is left out until it passes its trial.
    pub(crate) fn misled(&mut self, peer: PeerId, round: u64) -> Option<Trust> {
        self.peers.entry(peer).or_default().judge(Trust::LeftOut, round)
    }

    /// The own replica is to be replaced, so nobody is accused for its sake. `None` so soon after the last time.
    fn give_way(&mut self, round: u64) -> Option<Vec<PeerId>> {
        let (times, not_before) = self.behind;
        if round < not_before {
            return None;
        }
        let pause = PAUSE_ROUNDS << times.min(PAUSE_DOUBLINGS_MAX);
        self.behind = (times.saturating_add(1), round + pause);
        Some(self.pardon(round))
    }

    /// Whoever was too far away is trusted again, because it is the own replica that was. Those are returned.
    pub(crate) fn pardon(&mut self, round: u64) -> Vec<PeerId> {
        let accused = self.peers.iter_mut().filter(|(_, record)| record.outliers > 0);
        let pardoned =
            accused.filter_map(|(peer, record)| record.judge(Trust::Trusted, round).map(|_| *peer));
        pardoned.collect()
    }

    /// A neighbour has given a snapshot that is none of the run's: it is watched.
    pub(crate) fn misgave(&mut self, peer: PeerId, round: u64) -> Option<Trust> {
        let record = self.peers.entry(peer).or_default();
        if record.trust != Trust::Trusted {
            return None;
        }
        record.evidence = record.evidence.max(self.bar.weighed_down_at);
        record.judge(Trust::WeighedDown, round)
    }

    /// The replica was replaced at this clock: what was usual before says nothing now.
    pub(crate) fn replaced(&mut self, clock: Clock) {
        self.began = clock;
        for record in self.peers.values_mut() {
            record.fragments.clear();
        }
    }
}
