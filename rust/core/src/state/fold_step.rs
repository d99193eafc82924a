//! Folding what happens to steps: claims, their ends, and inverses that are due again.

use super::{State, Step, StepStatus, Timer};
use crate::model::{EffectId, Event, FailureKind, Outcome, Problem, Token};

/// A step's status does not move by itself; these are the ways in which events move it.
enum Move<'a> {
    Claimed { agent: &'a str, until_ms: u64, token: Token },
    Renewed { until_ms: u64 },
    Completed { calls: usize },
    Failed { status: StepStatus, counts: bool },
    Released { expired: bool },
    Discarded,
    Retried,
    Resolved,
    Due,
}

impl State {
    pub(super) fn fold_step(&mut self, seq: u64, now_ms: u64, event: &Event) {
        let Some((id, change)) = self.change_of(seq, event) else { return };
        let Some(effect) = self.effects.get_mut(id) else { return };
        let rollback = effect.rollback;
        let Some(step) = effect.step.as_mut() else { return };
        let before = step.status.clone();
        let discarded = matches!(change, Move::Discarded);
        let anew = matches!(change, Move::Due | Move::Retried);
        step.turn(seq, change);
        let after = step.status.clone();
        let moved = anew || step.is_finished();
        if discarded && after == StepStatus::Discarded && effect.outcome == Outcome::Unknown {
            // The probe's word counts as a report of the call.
            effect.outcome = Outcome::NotRun;
        }
        effect.note(seq);
        self.move_timer(id, &before, &after);
        self.order_after(id, &before, &after);
        if let Some(known) = rollback.and_then(|id| self.rollbacks.get_mut(&id)) {
            known.grown |= before == StepStatus::Discarded && after != before;
            if moved {
                known.moved_ms = now_ms;
            }
            if !known.open && matches!(after, StepStatus::Pending { .. }) {
                known.open = true;
                known.note(seq);
                self.owners.clear();
                self.order = None;
            }
        }
        if discarded {
            self.relax(id);
        }
        self.touched.extend(rollback);
        self.settled(seq, id);
    }

    fn change_of<'a>(&self, seq: u64, event: &'a Event) -> Option<(EffectId, Move<'a>)> {
        let change = match event {
            Event::StepClaimed { effect, agent, until_ms } => {
                let token = Token { incarnation: self.incarnation, number: seq };
                (*effect, Move::Claimed { agent, until_ms: *until_ms, token })
            }
            Event::StepRenewed { effect, until_ms } => {
                (*effect, Move::Renewed { until_ms: *until_ms })
            }
            Event::StepCompleted { effect, .. } => {
                let known = self.effects.get(*effect)?.inverse.as_ref();
                (*effect, Move::Completed { calls: known.map_or(0, |known| known.calls.len()) })
            }
            Event::StepFailed { effect, kind, problem, again_ms, writer, waived } => {
                let status = match again_ms {
                    Some(again) => StepStatus::Pending { again_ms: Some(*again) },
                    None => failed(*kind, problem, *writer, *waived),
                };
                let counts = !matches!(kind, FailureKind::NoHandler);
                (*effect, Move::Failed { status, counts })
            }
            Event::StepReleased { effect, expired } => {
                (*effect, Move::Released { expired: *expired })
            }
            Event::StepDiscarded { effect } => (*effect, Move::Discarded),
            Event::StepRetried { effect, .. } => (*effect, Move::Retried),
            Event::StepResolved { effect, .. } => (*effect, Move::Resolved),
            Event::StepDue { effect, .. } => (*effect, Move::Due),
            _ => return None,
        };
        Some(change)
    }

    fn move_timer(&mut self, id: EffectId, before: &StepStatus, after: &StepStatus) {
        if let StepStatus::Claimed { until_ms, .. } = before {
            self.timers.remove(&(*until_ms, Timer::Step(id)));
            self.at_work.remove(&id);
        }
        if let StepStatus::Claimed { until_ms, .. } = after {
            self.timers.insert((*until_ms, Timer::Step(id)));
            self.at_work.insert(id);
        }
    }

    /// Keeps the order of inverses in step, or has it built anew where a step came back or left the
    /// order of writers.
    fn order_after(&mut self, id: EffectId, before: &StepStatus, after: &StepStatus) {
        let passive = |status: &StepStatus| {
            matches!(
                status,
                StepStatus::Discarded
                    | StepStatus::Completed { .. }
                    | StepStatus::Failed { waived: true, .. }
            )
        };
        let discarded = *before != *after && *after == StepStatus::Discarded;
        let by_hand = matches!(after, StepStatus::Completed { by_hand: true });
        if passive(before) && before != after || discarded || by_hand {
            self.order = None;
        } else if passive(after) && !passive(before) {
            self.order_goes_on(id);
        }
    }
}

fn failed(
    kind: FailureKind,
    problem: &Problem,
    writer: Option<EffectId>,
    waived: bool,
) -> StepStatus {
    StepStatus::Failed { kind, problem: problem.clone(), writer, waived }
}

impl Step {
    fn turn(&mut self, seq: u64, change: Move<'_>) {
        let held = self.is_claimed();
        let due = StepStatus::Pending { again_ms: None };
        match change {
            Move::Claimed { agent, until_ms, token } => {
                self.attempts += 1;
                self.begun = true;
                self.status = StepStatus::Claimed { agent: agent.to_owned(), until_ms, token };
            }
            Move::Renewed { until_ms } => {
                if let StepStatus::Claimed { until_ms: until, .. } = &mut self.status {
                    *until = until_ms;
                }
            }
            // Evidence that came while the step was claimed counts now, however the claim ended (C59).
            Move::Completed { .. }
            | Move::Failed { .. }
            | Move::Released { .. }
            | Move::Discarded
                if held && self.evidence =>
            {
                self.next_generation();
            }
            Move::Completed { calls } => {
                self.place += 1;
                if self.place < calls {
                    self.status = due;
                } else {
                    self.status = StepStatus::Completed { by_hand: false };
                    self.completed_at = seq;
                }
            }
            Move::Failed { status, counts } => {
                self.counted += u32::from(held && counts);
                // Nothing ran where nobody could run it.
                self.attempts = self.attempts.saturating_sub(u32::from(held && !counts));
                self.status = status;
            }
            Move::Released { expired } => {
                self.counted += u32::from(held && expired);
                self.status = due;
            }
            Move::Discarded => self.status = StepStatus::Discarded,
            Move::Retried => {
                self.counted = 0;
                self.status = due;
            }
            Move::Resolved => {
                self.status = StepStatus::Completed { by_hand: true };
                self.completed_at = seq;
            }
            Move::Due if held => self.evidence = true,
            Move::Due => self.next_generation(),
        }
    }
}
