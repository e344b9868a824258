//! What the guard tells others: how far a replica may be away, and what it thinks of a neighbour.

/// Root mean square that a parameter counts for at least, while nothing of the replica is known.
pub(super) const RMS_MIN: f64 = 0.01;

/// How far another replica may be away in one exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Multiple of the norm of the own fragment; infinite where all is let in.
    pub weights: f64,
    /// Root mean square that the own fragment counts for at least.
    pub rms_min: f64,
    /// Multiple of the norm of the own fragment that a longer difference is shortened to.
    pub radius: f64,
    /// Multiple of the norm of the own fragment beyond which the radius shrinks as differences grow;
    /// infinite where it does not.
    pub far: f64,
    /// The radius is at least this multiple of what the own fragment has moved by its own training since it
    /// was mixed last, within the fragment's norm; 0 where it is not widened.
    pub moves_min: f64,
}

impl Tolerance {
    /// Lets in whatever is sound.
    pub const ANY: Self = Self::whole(f64::INFINITY, RMS_MIN);

    /// Lets in differences up to a multiple of the own fragment, and shortens none.
    pub(super) const fn whole(weights: f64, rms_min: f64) -> Self {
        let (radius, far) = (f64::INFINITY, f64::INFINITY);
        Self { weights, rms_min, radius, far, moves_min: 0.0 }
    }
}

/// What an exchange has shown of the other replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Norm of the difference of the two replicas on the fragment.
    pub difference: f64,
    /// Norm of the own fragment.
    pub own: f64,
    /// Parameters of the fragment.
    pub len: usize,
    /// Whether the difference was beyond the [`Tolerance`], and nothing was mixed.
    pub refused: bool,
}

/// How much a neighbour's numbers count here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// As anybody's.
    #[default]
    Trusted,
    /// It is met in a part of the rounds only, and gives no snapshots.
    WeighedDown,
    /// It is not met, holds up no commit and gives no snapshots.
    LeftOut,
}

impl Trust {
    /// For logs, metrics and the page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::WeighedDown => "weighed-down",
            Self::LeftOut => "left-out",
        }
    }
}

/// Why the guard has changed its mind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Grounds {
    /// Differences that were refused.
    Outlier {
        /// Length of the last one, multiple of the norm of the own fragment.
        length: f64,
        /// What is let in.
        most: f64,
    },
    /// Numbers that are not finite or far out of proportion, which is an offence.
    Unsound,
    /// Differences that are longer than those of the other neighbours.
    Unlike {
        /// How many times as long they are of late.
        times: f64,
    },
    /// Differences that are as usual.
    AsUsual,
    /// Nearly all neighbours are far away from this slow peer, so it has fallen behind. It takes over a
    /// replica.
    FellBehind,
    /// Nearly all neighbours leave this peer out, so it takes over a replica of theirs and accuses none of them.
    Exiled,
    /// It went on to mix with this peer when nearly all neighbours left this peer out, so it may be the one that has
    /// led this peer's replica away.
    Misled,
    /// Nearly all neighbours are far away from a fragment that this peer has taken over, so its donor has
    /// given something else: the donor is weighed down, and who was weighed down for the distance is let in.
    BadSnapshot,
}
