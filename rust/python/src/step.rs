//! Steps: claiming, ending, and one worker's pass over what is due.

use effectstore::model::{self, ClaimSpec, EffectId, Problem, RollbackId, StepEnd, StepHold};
use effectstore::store::{CompensateOptions, Handled, Payloads};
use pyo3::prelude::*;

use crate::convert::{
    ON_FAILURES, OUTCOMES, ReadPair, RetryTuple, TokenPair, approval_ids, choice, reads_out,
    retry_in, rollback_ids, token_in, token_out, word,
};
use crate::errors::bad_option;
use crate::rollback::ReportInfo;
use crate::store::Handle;
use crate::wait::{Patience, ask, call};

/// Kind, result, error type, message, wait in milliseconds.
type EndTuple = (String, Option<Vec<u8>>, String, String, u64);
/// Rollbacks, their report, approvals waited for.
type PassTuple = (Vec<u64>, ReportInfo, Vec<u64>);

/// A claimed step.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct StepInfo {
    effect: u64,
    rollback: u64,
    tool: String,
    args: Option<Vec<u8>>,
    agent: String,
    idempotency_key: String,
    attempt: u32,
    generation: u32,
    expected_versions: Vec<ReadPair>,
    deadline_ms: Option<u64>,
    lease_until_ms: u64,
    token: TokenPair,
    outcome: &'static str,
    artifact: Option<u64>,
}

impl From<model::StepInfo> for StepInfo {
    fn from(info: model::StepInfo) -> Self {
        StepInfo {
            effect: info.effect.0,
            rollback: info.rollback.0,
            tool: info.tool,
            args: info.args,
            agent: info.agent,
            idempotency_key: info.idempotency_key,
            attempt: info.attempt,
            generation: info.generation,
            expected_versions: reads_out(info.expected_versions),
            deadline_ms: info.deadline_ms,
            lease_until_ms: info.lease_until_ms,
            token: token_out(info.token),
            outcome: word(info.outcome, OUTCOMES),
            artifact: info.artifact.map(|id| id.0),
        }
    }
}

#[pymethods]
impl Handle {
    #[pyo3(signature = (agent, tools, lease_ms, wait_ms))]
    fn claim(
        &self,
        py: Python<'_>,
        agent: String,
        tools: Option<Vec<String>>,
        lease_ms: u64,
        wait_ms: u64,
    ) -> PyResult<Option<StepInfo>> {
        let spec = ClaimSpec {
            agent,
            tools,
            lease_ms,
            rollback: None,
            retry: None,
            on_failure: None,
            except: Vec::new(),
        };
        let found = ask(
            py,
            &Patience::of(wait_ms),
            |slice_ms| self.store()?.claim(&spec, slice_ms),
            Option::is_some,
        )?;
        Ok(found.map(Into::into))
    }

    fn end_step(
        &self,
        py: Python<'_>,
        effect: u64,
        token: TokenPair,
        end: EndTuple,
    ) -> PyResult<()> {
        let hold = StepHold { effect: EffectId(effect), token: token_in(token) };
        let mut payloads = Payloads::default();
        let end = match handled(py, end)? {
            Handled::Completed(result) => {
                StepEnd::Completed(result.map(|bytes| payloads.put(bytes)))
            }
            Handled::End(end) => end,
            _ => StepEnd::Interrupted,
        };
        call(py, || self.store()?.end_step(hold, end, payloads, None)).map(drop)
    }

    fn renew_step(
        &self,
        py: Python<'_>,
        effect: u64,
        token: TokenPair,
        lease_ms: u64,
    ) -> PyResult<StepInfo> {
        let hold = StepHold { effect: EffectId(effect), token: token_in(token) };
        call(py, || self.store()?.renew_step(hold, lease_ms)).map(Into::into)
    }

    /// Rollbacks, their report, and the approvals waited for. What `run` raises interrupts the
    /// attempt.
    #[pyo3(signature = (rollback, agent, tools, missing_fails, retry, on_failure, lease_ms, wait_ms, run))]
    #[allow(clippy::too_many_arguments)] // One for each option.
    fn compensate(
        &self,
        py: Python<'_>,
        rollback: Option<u64>,
        agent: Option<String>,
        tools: Option<Vec<String>>,
        missing_fails: bool,
        retry: Option<RetryTuple>,
        on_failure: Option<&str>,
        lease_ms: u64,
        wait_ms: u64,
        run: Py<PyAny>,
    ) -> PyResult<PassTuple> {
        let options = CompensateOptions {
            rollback: rollback.map(RollbackId),
            agent,
            tools,
            missing_fails,
            retry: retry.map(retry_in),
            on_failure: on_failure
                .map(|word| choice(py, "on_failure", word, ON_FAILURES))
                .transpose()?,
            lease_ms,
            wait_ms,
        };
        let mut raised: Option<PyErr> = None;
        let report = call(py, || {
            self.store()?.compensate(&options, &mut |step| {
                Python::attach(|py| {
                    attempt(py, &run, step).unwrap_or_else(|error| {
                        raised = Some(error);
                        Handled::Stop
                    })
                })
            })
        });
        // What the handler raised says more than what its interruption led to.
        if let Some(error) = raised {
            return Err(error);
        }
        let report = report?;
        Ok((rollback_ids(&report.rollbacks), report.report.into(), approval_ids(&report.approvals)))
    }
}

/// One attempt, by the façade's worker.
fn attempt(py: Python<'_>, run: &Py<PyAny>, step: &model::StepInfo) -> PyResult<Handled> {
    // Signals that came during a wait are seen before the next inverse begins.
    py.check_signals()?;
    let end: EndTuple = run.call1(py, (StepInfo::from(step.clone()),))?.extract(py)?;
    handled(py, end)
}

fn handled(py: Python<'_>, end: EndTuple) -> PyResult<Handled> {
    let (kind, result, error_type, message, after_ms) = end;
    let problem = Problem::new(error_type, &message);
    Ok(match kind.as_str() {
        "completed" => Handled::Completed(result),
        "failed" => Handled::End(StepEnd::Failed(problem)),
        "permanent" => Handled::End(StepEnd::Permanent(problem)),
        "later" => Handled::End(StepEnd::Later(problem, after_ms)),
        "mismatched" => Handled::End(StepEnd::Mismatched(problem)),
        "timed_out" => Handled::End(StepEnd::TimedOut(problem)),
        "never_happened" => Handled::End(StepEnd::NeverHappened),
        // Which of the two it is the options of the pass say.
        "leave" | "no_handler" => Handled::Missing,
        "interrupted" => Handled::Stop,
        _ => return Err(bad_option(py, "end", &format!("{kind:?} is no end of a step"))),
    })
}
