//! What a person is told of a peer that is refused, with advice by the setting that differs.

use dnode_network::{INVITATION, NotLetIn};
use dnode_protocol::{PeerId, RunDifference};

use crate::config::{DATA_DIGEST, SETTINGS};

/// Why a peer there does not take part in the same run, and what to do about it.
pub(crate) const fn way_in(why: NotLetIn) -> &'static str {
    match why {
        NotLetIn::Closed => {
            "the run there is closed; start with the ticket that one of its members printed: dnode join dnode1…"
        }
        NotLetIn::Open => {
            "the run there is not closed, or no dnode of this version answers; to join an open run leave out the ticket, --secret-file and DNODE_SECRET, and name a data directory without a secret"
        }
        NotLetIn::OtherSecret => {
            "the run there has another secret; start with the ticket that one of its members printed"
        }
    }
}

/// Says in the log that `peer` and this one refuse each other.
pub(super) fn warn(peer: PeerId, difference: &RunDifference, by_us: bool) {
    let who = if by_us { "refused" } else { "was refused by" };
    let advice = advice(&difference.field);
    tracing::warn!("{who} {}: {difference}; {advice}", peer.short());
}

/// What to do about a difference in this field that keeps two peers apart.
pub(crate) fn advice(field: &str) -> String {
    let own = match field {
        "data.vocabulary" => {
            "give every peer the same data.vocabulary: a text file with all characters, or bytes; or the same data.tokenizer"
        }
        "data.preprocessing" => {
            "use the same images, or give every peer the same data.pixel_mean and data.pixel_deviation"
        }
        INVITATION => "ask an owner of the run for an invitation, which `dnode invite` prints",
        DATA_DIGEST => "use the same data",
        _ if field.starts_with("model.tensors.") => {
            "give every peer the same model: the names and shapes of its parameters"
        }
        _ => "start with the line that the other peer printed",
    };
    if !SETTINGS.contains(&field) {
        return own.to_owned();
    }
    let why = if field == DATA_DIGEST { "each has its own data" } else { "both mean it" };
    format!("{own}, or where {why} give both --set network.allow_differences={field}")
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn what_to_do_depends_on_what_differs() {
        for (field, want) in [
            ("gossip.rule", "start with the line that the other peer printed"),
            ("data.vocabulary", "give every peer the same data.vocabulary: a text file"),
            (
                "optimizer.learning_rate",
                "start with the line that the other peer printed, or where both mean it give both --set network.allow_differences=optimizer.learning_rate",
            ),
            ("model.tensors.03", "give every peer the same model: the names and shapes"),
            ("run.invitation", "ask an owner of the run for an invitation"),
            ("data.digest", "use the same data, or where each has its own data give both --set"),
        ] {
            let got = advice(field);
            assert!(got.starts_with(want), "{got}");
        }
    }
}
