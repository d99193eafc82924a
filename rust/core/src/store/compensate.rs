//! Compensate: one worker runs every step that is due and that it may run.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::engine::unpoisoned;
use super::{EffectStore, Payloads};
use crate::decide::is_worth_waiting;
use crate::error::Error;
use crate::model::{
    ApprovalId, ClaimSpec, EffectId, OnFailure, Refusal, Report, Retry, RollbackId, RollbackState,
    StepEnd, StepHold, StepInfo,
};

thread_local! {
    /// Steps whose handlers run on this thread, with their stores: such code makes no new work (I16).
    static HANDLING: RefCell<Vec<Handling>> = const { RefCell::new(Vec::new()) };
}

/// A step whose handler runs: its store, its rollback, its effect.
type Handling = ([u8; 16], RollbackId, EffectId);

/// Steps that some handler of this process is at, each with what the handler itself has reported: that
/// it gave the step back, or any other end.
static TOLD: Mutex<BTreeMap<Claim, Option<bool>>> = Mutex::new(BTreeMap::new());

/// Store, effect, number of the claim.
type Claim = ([u8; 16], EffectId, u64);

/// Notes that a step was ended; a pass that runs its handler just now does not end it again.
pub(super) fn told(store: &EffectStore, hold: StepHold, released: bool) -> Result<(), Error> {
    let step = (store.store_id()?, hold.effect, hold.token.number);
    if let Some(told) = unpoisoned(&TOLD).get_mut(&step) {
        *told = Some(released);
    }
    Ok(())
}

/// Refuses registrations, reads and another compensation by the code of a handler.
pub(super) fn outside_of_handlers(store: &EffectStore) -> Result<(), Error> {
    let inside = HANDLING.with_borrow(|handling| handling.last().copied());
    let Some((of, rollback, effect)) = inside else { return Ok(()) };
    if of != store.store_id()? {
        return Ok(());
    }
    let branch = store.effect(effect)?.branch_name;
    Err(Refusal::CompensationScope { branch, rollback }.into())
}

/// How to compensate.
#[derive(Clone, Debug)]
pub struct CompensateOptions {
    /// Only this rollback.
    pub rollback: Option<RollbackId>,
    /// Whose steps; every agent's where there is none.
    pub agent: Option<String>,
    /// Only steps of these tools: what has no handler here is left to other workers.
    pub tools: Option<Vec<String>>,
    /// A step that no handler can run is reported as failed (`no_handler`); if not, it stays.
    pub missing_fails: bool,
    /// Overrides the retry of inverse and policy.
    pub retry: Option<Retry>,
    /// Overrides the policy's failure rule.
    pub on_failure: Option<OnFailure>,
    /// How long a handler may hold its step, in milliseconds.
    pub lease_ms: u64,
    /// How long to wait for others, in milliseconds; own backoffs are slept through in any case.
    pub wait_ms: u64,
}

impl Default for CompensateOptions {
    fn default() -> Self {
        CompensateOptions {
            rollback: None,
            agent: None,
            tools: None,
            missing_fails: true,
            retry: None,
            on_failure: None,
            lease_ms: 60_000,
            wait_ms: 0,
        }
    }
}

/// What a handler made of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Handled {
    /// It ran; with its result, encoded.
    Completed(Option<Vec<u8>>),
    /// Any other end.
    End(StepEnd),
    /// There is no handler for it here.
    Missing,
    /// The worker is interrupted: the attempt is recorded as such, and compensate returns.
    Stop,
}

/// What a pass of compensate found when it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompensationReport {
    /// Rollbacks that it touched.
    pub rollbacks: Vec<RollbackId>,
    /// Over the whole of these, whichever agent ran their steps.
    pub report: Report,
    /// Approvals that are waited for.
    pub approvals: Vec<ApprovalId>,
}

impl EffectStore {
    /// Runs every step that is due, one after the other, until nothing is left that this worker may
    /// run; sleeps through backoffs, and waits for other agents and approvals as long as it may. What
    /// is blocked behind a failed step, or behind an agent that did not confirm in time, is not
    /// waited for: only a person or that agent can free it.
    /// `handler` runs outside of any transaction.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] for what is no rollback; [`Refusal::CompensationScope`] in a handler (I16);
    /// whatever makes the store unusable.
    pub fn compensate(
        &self,
        options: &CompensateOptions,
        handler: &mut dyn FnMut(&StepInfo) -> Handled,
    ) -> Result<CompensationReport, Error> {
        outside_of_handlers(self)?;
        let mut touched: BTreeSet<RollbackId> = BTreeSet::new();
        match options.rollback {
            Some(rollback) => {
                self.rollback(rollback)?;
                touched.insert(rollback);
            }
            None => touched.extend(self.unfinished()?),
        }
        let deadline = Instant::now() + Duration::from_millis(options.wait_ms);
        let mut passed: BTreeSet<EffectId> = BTreeSet::new();
        let mut step = self.claim(&spec_of(options, &passed), 0)?;
        loop {
            let Some(current) = step.take() else {
                touched.extend(self.new_ones(options)?);
                if !self.wait_for_work(options, &passed, deadline)? {
                    break;
                }
                step = self.claim(&spec_of(options, &passed), 0)?;
                continue;
            };
            touched.insert(current.rollback);
            let (outcome, told) = self.handle(&current, handler);
            if let Some(released) = told {
                // The handler has reported for itself. What it gave back is for another pass.
                if released {
                    passed.insert(current.effect);
                }
                if outcome == Handled::Stop {
                    break;
                }
                step = self.claim(&spec_of(options, &passed), 0)?;
                continue;
            }
            if outcome == Handled::Stop {
                self.end(&current, StepEnd::Interrupted, Payloads::default(), None)?;
                break;
            }
            let mut payloads = Payloads::default();
            let end = match outcome {
                Handled::Completed(result) => {
                    StepEnd::Completed(result.map(|result| payloads.put(result)))
                }
                Handled::End(end) => end,
                Handled::Missing | Handled::Stop => {
                    passed.insert(current.effect);
                    if options.missing_fails { StepEnd::NoHandler } else { StepEnd::Interrupted }
                }
            };
            step = self.end(&current, end, payloads, Some(spec_of(options, &passed)))?;
        }
        self.summary(touched)
    }

    /// What the handler made of the step, and whether it reported for itself and gave the step back.
    fn handle(
        &self,
        step: &StepInfo,
        handler: &mut dyn FnMut(&StepInfo) -> Handled,
    ) -> (Handled, Option<bool>) {
        struct Leave(Claim);
        impl Drop for Leave {
            fn drop(&mut self) {
                unpoisoned(&TOLD).remove(&self.0);
                HANDLING.with_borrow_mut(|handling| {
                    handling.pop();
                });
            }
        }
        let Ok(store) = self.store_id() else { return (Handled::Stop, None) };
        let claim = (store, step.effect, step.token.number);
        unpoisoned(&TOLD).insert(claim, None);
        HANDLING.with_borrow_mut(|handling| handling.push((store, step.rollback, step.effect)));
        let _leave = Leave(claim);
        let outcome = handler(step);
        let told = unpoisoned(&TOLD).get(&claim).copied().flatten();
        (outcome, told)
    }

    /// Ends an attempt. A lease that was lost meanwhile is no error here: whoever holds the step now
    /// goes on with it.
    fn end(
        &self,
        step: &StepInfo,
        end: StepEnd,
        payloads: Payloads,
        next: Option<ClaimSpec>,
    ) -> Result<Option<StepInfo>, Error> {
        let hold = StepHold { effect: step.effect, token: step.token };
        match self.finish_step(hold, end, payloads, next.clone()) {
            Err(Error::Refused { refusal: Refusal::LeaseLost { .. }, .. }) => match next {
                Some(next) => self.claim(&next, 0),
                None => Ok(None),
            },
            other => other,
        }
    }

    fn unfinished(&self) -> Result<Vec<RollbackId>, Error> {
        let core = self.engine().lock()?;
        let open = core.state.rollbacks.values().filter(|rollback| rollback.open);
        // One that is only asked for waits for a person like any other that does.
        Ok(open.map(|rollback| rollback.id).chain(core.state.requests.keys().copied()).collect())
    }

    fn new_ones(&self, options: &CompensateOptions) -> Result<Vec<RollbackId>, Error> {
        if options.rollback.is_some() { Ok(Vec::new()) } else { self.unfinished() }
    }

    /// Sleeps until a step may be due again; whether it is worth asking.
    fn wait_for_work(
        &self,
        options: &CompensateOptions,
        passed: &BTreeSet<EffectId>,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let now_ms = self.now_ms();
        let (backoff, more) = {
            let mut core = self.engine().lock()?;
            let spec = spec_of(options, passed);
            // The answer to a request makes its steps due.
            let asked = |id: &RollbackId| options.rollback.is_none_or(|only| only == *id);
            let more =
                is_worth_waiting(&core.state, &spec) || core.state.requests.keys().any(asked);
            (core.state.next_backoff_ms(&spec, now_ms), more)
        };
        if let Some(again_ms) = backoff {
            let sleep = again_ms.saturating_sub(now_ms).min(50);
            self.sleep_at_most(Duration::from_millis(sleep.max(1)));
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !more {
            return Ok(false);
        }
        self.sleep_at_most(left.min(Duration::from_millis(50)));
        Ok(true)
    }

    /// The report over all that was touched, each member once.
    fn summary(&self, touched: BTreeSet<RollbackId>) -> Result<CompensationReport, Error> {
        let mut summary = CompensationReport {
            report: Report { downstream_confirmed: true, ..Report::default() },
            ..CompensationReport::default()
        };
        let mut failed = BTreeMap::new();
        for id in touched {
            let rollback = self.rollback(id)?;
            let report = rollback.report;
            summary.report.completed.extend(report.completed);
            summary.report.unsettled.extend(report.unsettled);
            failed.extend(report.failed.into_iter().map(|failure| (failure.effect, failure)));
            summary.report.blocked.extend(report.blocked);
            summary.report.pending.extend(report.pending);
            summary.report.discarded.extend(report.discarded);
            summary.report.limitations.extend(report.limitations);
            summary.report.downstream_confirmed &= report.downstream_confirmed;
            if rollback.state == RollbackState::AwaitingApproval {
                summary.approvals.extend(rollback.approvals.last());
            }
            summary.rollbacks.push(id);
        }
        summary.report.failed = failed.into_values().collect();
        for list in [
            &mut summary.report.completed,
            &mut summary.report.unsettled,
            &mut summary.report.pending,
            &mut summary.report.discarded,
        ] {
            list.sort_unstable();
            // Two requests may hold the same effect.
            list.dedup();
        }
        summary.report.blocked.sort_unstable_by_key(|blocked| blocked.effect);
        Ok(summary)
    }
}

fn spec_of(options: &CompensateOptions, passed: &BTreeSet<EffectId>) -> ClaimSpec {
    ClaimSpec {
        agent: options.agent.clone().unwrap_or_else(|| "*".to_owned()),
        tools: options.tools.clone(),
        lease_ms: options.lease_ms,
        rollback: options.rollback,
        retry: options.retry.clone(),
        on_failure: options.on_failure,
        except: passed.iter().copied().collect(),
    }
}
