//! What falls due with time becomes events, before whatever else the transaction does (C1).

use super::Turn;
use super::step::{Failed, retry_of};
use crate::model::{Command, EffectId, Event, FailureKind, Reply, RollbackId, Severity, StepHold};
use crate::state::{StepStatus, Timer};

impl Turn<'_> {
    /// Branch leases in order of creation, then leases of steps and deliveries, then deadlines,
    /// then confirmations and acknowledgements.
    pub(super) fn due(&mut self) {
        let over = (self.now_ms, Timer::Overdue(RollbackId(u64::MAX)));
        let mut fallen: Vec<(Timer, u64)> =
            self.state.timers.range(..=over).map(|(moment, timer)| (*timer, *moment)).collect();
        if fallen.is_empty() {
            return;
        }
        fallen.sort_unstable();
        for (timer, moment) in fallen {
            // What came before may have settled it.
            if !self.state.timers.remove(&(moment, timer)) {
                continue;
            }
            match timer {
                Timer::Lease(branch) => self.expire_lease(branch),
                Timer::Step(effect) => self.expire_step(effect),
                Timer::Delivery(effect) => {
                    self.emit(Event::DeliveryHeld { effect, until_ms: None });
                }
                Timer::Window(effect) => self.expire_window(effect),
                Timer::Confirm(rollback) => self.confirmation_due(rollback),
                Timer::Acks(signal) => self.escalate_break(signal),
                Timer::Overdue(rollback) => self.overdue(rollback),
            }
        }
        self.judge_from(0);
    }

    /// Whoever held a branch's lease before this boot is gone. Steps and deliveries end with their
    /// processes in any case.
    pub(super) fn new_boot(&mut self) {
        let leases = self.state.timers.iter().filter_map(|(moment, timer)| match timer {
            Timer::Lease(branch) => Some((*branch, *moment)),
            _ => None,
        });
        let mut leases: Vec<_> = leases.collect();
        leases.sort_unstable();
        for (branch, moment) in leases {
            // What came before may have ended it.
            if self.state.timers.remove(&(moment, Timer::Lease(branch))) {
                self.expire_lease(branch);
            }
        }
        self.judge_from(0);
    }

    /// Workers that cannot come back, since their machine or their processes have ended.
    pub(super) fn gone(&mut self, command: &Command) -> Reply {
        match command {
            Command::NewBoot => self.new_boot(),
            Command::WorkersGone { holds } => self.workers_gone(holds),
            _ => {}
        }
        Reply::Nothing
    }

    /// The lease of a process that is gone is over: nobody can end what it holds.
    pub(super) fn workers_gone(&mut self, holds: &[StepHold]) {
        for hold in holds {
            let effect = hold.effect;
            let delivered = self.state.effects.get(effect).is_some_and(|known| {
                known.token == hold.token
                    && known.delivery.as_ref().is_some_and(|held| held.until_ms.is_some())
            });
            if self.is_held(*hold) {
                self.expire_step(effect);
            } else if delivered {
                self.emit(Event::DeliveryHeld { effect, until_ms: None });
            }
        }
        self.judge_from(0);
    }

    /// A lost lease counts as an attempt. The step is due again at once, until its attempts are used
    /// up (C50).
    fn expire_step(&mut self, id: EffectId) {
        let step = self.state.effects.get(id).and_then(|effect| effect.step.as_ref());
        let generation = step.filter(|step| step.is_claimed()).map(|step| step.generation);
        let Some(generation) = generation else { return };
        self.emit(Event::StepReleased { effect: id, expired: true });
        let Some(effect) = self.state.effects.get(id) else { return };
        let Some(step) = effect.step.as_ref() else { return };
        let used_up = step.generation == generation
            && matches!(step.status, StepStatus::Pending { .. })
            && step.counted >= retry_of(self.state, effect).max_attempts;
        if used_up {
            self.fail_step(
                id,
                Failed::of(FailureKind::Timeout, "the lease of its last attempt ran out"),
            );
        }
    }

    /// The window of an inverse passed: a live effect is still decided by its branch, but somebody
    /// must know; a doomed one that is due can be undone no more (C60).
    fn expire_window(&mut self, id: EffectId) {
        let Some(effect) = self.state.effects.get(id) else { return };
        if effect.is_live() {
            let text = format!(
                "the undo window of live effect {id} (tool {:?}) has passed; commit it, or expect its inverse to fail",
                effect.tool
            );
            self.emit(Event::WindowPassed { effect: id });
            self.alert(Severity::Warning, text, id.0);
        } else {
            self.judge(id);
        }
    }
}
