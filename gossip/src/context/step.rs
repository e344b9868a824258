//! Steps: what one part asks of the others.

use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};

use crate::rounds::EndedProposal;
use crate::{Failure, Offence, RefusedMix};

/// Something that another part has to do next, or several in turn.
///
/// The core takes steps in the order in which they were asked for, and what a step asks for before
/// the steps that come after it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Something that the exchanges have to do.
    Exchange(ExchangeStep),
    /// An own exchange has ended without effect: its fragment may try another partner.
    Retry(EndedProposal),
    /// Begin a round.
    Round,
    /// Tell the trainer when the limit of commits has changed.
    Limit,
    /// Tell the trainer when its work per commit has changed.
    Load,
    /// The peer has broken the rules.
    Offence(PeerId, Offence),
    /// Look whether a neighbour is far ahead.
    ConsiderCatchUp,
    /// Have the whole replica replaced.
    CatchUp,
    /// Have these fragments replaced.
    Replace(Vec<FragmentId>),
    /// Ask for the snapshots that wait.
    Pull,
    /// Go on without the neighbours' replica when nobody is left to give it.
    AbandonWhenAlone,
    /// Every fragment that was to be replaced is; the smallest clock of their snapshots.
    Replaced(Option<Clock>),
    /// The replica is no longer being replaced.
    Resume,
    /// Ask for the contributions that the fragments from this one on lack; whether the first of them
    /// was looked at for replacing.
    Fetch(FragmentId, bool),
    /// Train when every fragment contains the own contributions.
    TrainWhenWhole,
    /// Look after silent neighbours.
    Watch,
    /// Do something about a silent neighbour.
    Look(PeerId, Look),
    /// Propose the fragments that lack news while a commit is held back.
    SeekNews,
    /// The time is over for which a commit waits at a bound.
    GateExpired,
}

/// Something that the exchanges have to do next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExchangeStep {
    /// Propose the fragments that wait for their exchange.
    Propose,
    /// Give up the own exchange of this sequence number.
    GiveUp(u64, Failure),
    /// Look after an own exchange that is due; whether its lease has run out.
    OwnDue(u64, bool),
    /// End an answered exchange.
    EndAnswered(ExchangeId, Ending),
    /// The trainer has a snapshot to replace this fragment by, and with it what was mixed into it.
    Replacing(FragmentId),
    /// It has replaced the fragment, or not.
    Replaced(FragmentId, bool),
    /// Take back what an answered exchange has applied.
    Undo(ExchangeId),
    /// Look after an answered exchange that is applied and due.
    AskOutcome(ExchangeId),
    /// Repeat the acceptance of an exchange.
    SendAccept(ExchangeId),
    /// Say that the trainer has refused to mix what a neighbour has proposed.
    MixRefused(ExchangeId, RefusedMix),
    /// Tell the initiator that its exchange will never count here.
    ConfirmAbort(ExchangeId),
    /// The same, of an exchange that was applied here and taken back.
    ConfirmUndo(ExchangeId),
}

/// How an answered exchange ends before both ends have applied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its initiator is gone.
    Lost,
    /// Its lease has run out.
    Expired,
    /// It is applied here, and its initiator has forgotten it, or the fragment was replaced since.
    Undecided,
    /// It was applied here, its initiator has given up, and the fragment was replaced meanwhile.
    Replaced,
}

/// What is to be done about a silent neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Ask it whether it lives.
    Ask,
    /// Ask others for it.
    AskHelpers,
    /// Wait for it no more.
    Suspect,
    /// Close the connection.
    Forget,
}
