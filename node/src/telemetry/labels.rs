//! Says when the labels that this peer trains on are unlike those of everybody.

use dnode_trainer::DataShare;

/// Total variation of the labels from which the log says something: what a random shard of some hundred
/// samples has is below 0.15, a shard by Dirichlet(1) has about 0.35, one by Dirichlet(0.1) 0.6 to 0.8.
const LABEL_DISTANCE_MAX: f64 = 0.25;

/// Warns when the samples of `share` have other labels than the held-out ones.
pub(crate) fn warn_of_skew(share: Option<DataShare>) {
    let Some(line) = share.and_then(|share| advice(&share)) else { return };
    tracing::warn!("{line}");
}

fn advice(share: &DataShare) -> Option<String> {
    let distance = share.label_distance.filter(|distance| *distance > LABEL_DISTANCE_MAX)?;
    Some(format!(
        "{:.0} % of this peer's samples would need other labels to be like the held-out data: peers of \
         unlike labels pull apart between exchanges, and the loss suffers; least with gossip.moments=true \
         and optimizer.kind=muon (docs/operations.md, \"Which rule and which optimizer\")",
        100.0 * distance
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(label_distance: Option<f64>) -> DataShare {
        DataShare { shards: 4, shard: 1, samples: 359, stream: 7, label_distance }
    }

    #[test]
    fn unlike_labels_are_told_and_those_of_chance_are_not() {
        assert_eq!(advice(&share(None)), None);
        assert_eq!(advice(&share(Some(0.12))), None);
        let line = advice(&share(Some(0.64))).unwrap();
        assert!(line.starts_with("64 % of this peer's samples"), "{line}");
    }
}
