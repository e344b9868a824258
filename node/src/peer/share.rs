//! What data a peer draws: its order of samples, its shard, and how much it shares with others.

use dnode_protocol::{Part, PeerId};
use dnode_trainer::{DataShare, Drawn, Trainer, expected_overlap};

use crate::config::Config;
use crate::telemetry::labels::warn_of_skew;
use crate::telemetry::metrics;

/// The seed of a peer's own order of samples: its name, so that a restart goes on in the same order.
pub(super) fn stream(peer: &PeerId) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("dnode data stream v1");
    hasher.update(peer.to_string().as_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Has `trainer` draw samples in the order of `me`. Returns what it draws from, for other peers and for
/// the metrics; the latter only if the shard is known before others are heard of.
pub(super) fn take(
    config: &Config,
    steps_given: bool,
    (trainer, me): (&mut dyn Trainer, &PeerId),
) -> (Part, Option<metrics::Data>) {
    trainer.set_stream(stream(me));
    let part = part(config, steps_given, trainer);
    let share = trainer.data_share().filter(|_| part.shard.is_some());
    warn_of_skew(share);
    (part, share.map(|share| data(share, me, config)))
}

/// What the peer does in the run, as far as it is known before others are heard of.
fn part(config: &Config, steps_given: bool, trainer: &mut dyn Trainer) -> Part {
    let steps = steps_given.then_some(config.run.steps);
    let Some(share) = trainer.data_share() else {
        return Part { steps, steps_given, shards: 0, shard: None, shard_given: false };
    };
    // A trainer that cannot change its shard counts as if a person had set it.
    let chosen = config.data.shard.is_some() || share.shards == 1;
    let given = chosen || !trainer.set_shard(share.shard);
    let shard = given.then_some(share.shard);
    Part { steps, steps_given, shards: share.shards, shard, shard_given: given }
}

/// What the peer trains on, and what it will have in common with others at the end of the run.
fn data(share: DataShare, me: &PeerId, config: &Config) -> metrics::Data {
    let DataShare { shards, shard, samples, stream: own, label_distance } = share;
    let drawn = config.run.steps.saturating_mul(config.run.batch as u64);
    let mine = Drawn { shard, stream: own, samples: drawn };
    // A configured stream is taken to be that of all peers.
    let theirs = if own == stream(me) { !own } else { own };
    let within = Drawn { stream: theirs, ..mine };
    let across = Drawn { shard: shard.wrapping_add(1), ..within };
    metrics::Data {
        shard,
        shards,
        samples,
        stream: own,
        shared_across_shards: expected_overlap(samples, mine, across),
        shared_within_shard: expected_overlap(samples, mine, within),
        label_distance,
    }
}
