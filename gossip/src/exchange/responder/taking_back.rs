//! What a responder has applied is taken back, or goes with the fragment that a snapshot replaces.

use dnode_protocol::{ExchangeId, FragmentId, Message, PeerId};

use super::Responder;
use crate::Work;
use crate::context::{Context, Ending, ExchangeStep, Step};
use crate::exchange::answered::AnsweredState;

impl Responder {
    /// The initiator will never apply its half.
    pub(crate) fn on_abort(&mut self, context: &mut Context, from: PeerId, exchange: ExchangeId) {
        let Some(answered) = self.answered.get_mut(&exchange) else {
            self.resolve(exchange);
            return context.send(from, Message::Aborted { exchange });
        };
        match answered.state {
            AnsweredState::Mixing => answered.abort_wanted = true,
            AnsweredState::Applied if answered.replacing => answered.abort_wanted = true,
            AnsweredState::Applied => self.undo(context, exchange),
            AnsweredState::Undoing => {}
            AnsweredState::Accepted => {
                self.end(context, exchange);
                context.then(Step::Exchange(ExchangeStep::ConfirmAbort(exchange)));
            }
        }
    }

    pub(crate) fn undo(&mut self, context: &mut Context, exchange: ExchangeId) {
        let Some(answered) = self.answered.get_mut(&exchange) else {
            return;
        };
        answered.state = AnsweredState::Undoing;
        let (fragment, weight) = (answered.fragment, answered.agreed.weight);
        context.work(Work::Undo { exchange, fragment, weight });
    }

    /// The trainer has taken this end's half back.
    pub(crate) fn on_undone(&mut self, context: &mut Context, exchange: ExchangeId) {
        if self.answered.get(&exchange).is_none_or(|a| a.state != AnsweredState::Undoing) {
            return;
        }
        self.end(context, exchange);
        context.then(Step::Exchange(ExchangeStep::ConfirmUndo(exchange)));
    }

    /// The trainer is about to replace `fragment`: nothing is taken back from it before it has.
    pub(crate) fn on_replacing(&mut self, fragment: FragmentId) {
        for answered in self.answered.values_mut().filter(|it| it.fragment == fragment) {
            answered.replacing |= answered.state == AnsweredState::Applied;
        }
    }

    /// `fragment` is replaced if `whole`: of what was mixed into it nothing is left that could be taken back. If
    /// it is not, it is as it was.
    pub(crate) fn on_replaced(&mut self, context: &mut Context, fragment: FragmentId, whole: bool) {
        for (exchange, answered) in &mut self.answered {
            if answered.fragment != fragment || !std::mem::take(&mut answered.replacing) {
                continue;
            }
            let step = match (whole, answered.abort_wanted) {
                (true, false) => ExchangeStep::EndAnswered(*exchange, Ending::Undecided),
                (true, true) => ExchangeStep::EndAnswered(*exchange, Ending::Replaced),
                (false, true) => ExchangeStep::Undo(*exchange),
                (false, false) => continue,
            };
            context.then(Step::Exchange(step));
        }
    }
}
