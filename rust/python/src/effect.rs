//! Verbs of effects.

use effectstore::model::{
    self, After, ApprovalId, BranchId, EffectId, Follows, Key, PayloadRef, Placed, Problem,
    Receipt, Registration,
};
use effectstore::store::{EffectFilter, Payloads};
use pyo3::prelude::*;

use crate::convert::{
    CLASSES, EFFECT_STATES, InverseTuple, MODES, OUTCOMES, ObservationTuple, ReadPair, TokenPair,
    choice, ids, inverse_in, inverse_out, observations_out, reads_in, reads_out, token_in,
    token_out, word,
};
use crate::store::Handle;
use crate::wait::{Patience, ask, call, guarded};

/// Kind ("turn" or "these"), effects, places in the batch.
type FollowsTuple = (String, Vec<u64>, Vec<u64>);
/// Effect, token, created, state, outcome.
type ReceiptTuple = (u64, Option<TokenPair>, bool, &'static str, &'static str);
/// A call as the façade places it on a branch.
type PlacedTuple = (
    (u64, TokenPair),
    String,
    Vec<u8>,
    Option<InverseTuple>,
    Vec<ReadPair>,
    Vec<Vec<u8>>,
    Option<FollowsTuple>,
    (Option<String>, Option<String>),
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<f64>,
    Option<u64>,
);

/// An effect.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct EffectInfo {
    id: u64,
    branch: u64,
    branch_name: String,
    agent: String,
    token: TokenPair,
    tool: String,
    args: Vec<u8>,
    reads: Vec<ReadPair>,
    writes: Vec<Vec<u8>>,
    after: Vec<u64>,
    rests_on: Vec<u64>,
    inverse: Option<InverseTuple>,
    reversibility: &'static str,
    mode: &'static str,
    idempotency_key: Option<Vec<u8>>,
    cost: Option<f64>,
    state: &'static str,
    outcome: &'static str,
    result: Option<Vec<u8>>,
    sealed: bool,
    compensated: bool,
    fence: Option<u64>,
    rollback: Option<u64>,
}

impl From<model::EffectInfo> for EffectInfo {
    fn from(info: model::EffectInfo) -> Self {
        EffectInfo {
            id: info.id.0,
            branch: info.branch.0,
            branch_name: info.branch_name,
            agent: info.agent,
            token: token_out(info.token),
            tool: info.tool,
            args: info.args,
            reads: reads_out(info.reads),
            writes: info.writes.into_iter().map(|key| key.0).collect(),
            after: ids(&info.after),
            rests_on: ids(&info.rests_on),
            inverse: info.inverse.map(|(inverse, args)| inverse_out(inverse, args)),
            reversibility: word(info.class, CLASSES),
            mode: word(info.mode, MODES),
            idempotency_key: info.idempotency_key,
            cost: info.cost,
            state: word(info.state, EFFECT_STATES),
            outcome: word(info.outcome, OUTCOMES),
            result: info.result,
            sealed: info.sealed,
            compensated: info.compensated,
            fence: info.fence.map(|id| id.0),
            rollback: info.rollback.map(|id| id.0),
        }
    }
}

#[pymethods]
impl Handle {
    fn register(
        &self,
        py: Python<'_>,
        calls: Vec<PlacedTuple>,
        wait_ms: u64,
    ) -> PyResult<Vec<ReceiptTuple>> {
        let mut payloads = Payloads::default();
        let placed = calls
            .into_iter()
            .map(|call| placed_in(py, call, &mut payloads))
            .collect::<PyResult<Vec<_>>>()?;
        // One way out needs no copy: a caller that does not wait asks once.
        let receipts = if wait_ms == 0 {
            let claims = claims_of(&placed);
            let receipts = call(py, || self.store()?.register(placed, payloads, 0))?;
            self.undo_if_interrupted(py, &receipts, &claims)?;
            receipts
        } else {
            ask(
                py,
                &Patience::of(wait_ms),
                |slice_ms| self.store()?.register(placed.clone(), payloads.clone(), slice_ms),
                |_| true,
            )
            .and_then(|receipts| {
                self.undo_if_interrupted(py, &receipts, &claims_of(&placed))?;
                Ok(receipts)
            })?
        };
        Ok(receipts.into_iter().map(receipt_out).collect())
    }

    fn observe_late(
        &self,
        py: Python<'_>,
        effect: u64,
        token: TokenPair,
        keys: Vec<ReadPair>,
    ) -> PyResult<Vec<ObservationTuple>> {
        let keys = reads_in(keys);
        let found =
            call(py, || self.store()?.observe_late(EffectId(effect), token_in(token), keys))?;
        Ok(observations_out(found))
    }

    #[pyo3(signature = (effect, token, result, inverse, durable))]
    fn done(
        &self,
        py: Python<'_>,
        effect: u64,
        token: TokenPair,
        result: Vec<u8>,
        inverse: Option<InverseTuple>,
        durable: bool,
    ) -> PyResult<Option<&'static str>> {
        let mut payloads = Payloads::default();
        let inverse = inverse.map(|raw| inverse_in(raw, &mut payloads));
        let (effect, token) = (EffectId(effect), token_in(token));
        let state =
            call(py, || self.store()?.done(effect, token, result, inverse, payloads, durable))?;
        Ok(state.map(|state| word(state, EFFECT_STATES)))
    }

    fn not_run(
        &self,
        py: Python<'_>,
        effect: u64,
        token: TokenPair,
        error_type: String,
        message: &str,
    ) -> PyResult<Option<&'static str>> {
        let problem = Problem::new(error_type, message);
        let (effect, token) = (EffectId(effect), token_in(token));
        let state = call(py, || self.store()?.not_run(effect, token, problem))?;
        Ok(state.map(|state| word(state, EFFECT_STATES)))
    }

    fn exposed(&self, py: Python<'_>, effect: u64, token: TokenPair, to: &str) -> PyResult<()> {
        call(py, || self.store()?.exposed(EffectId(effect), token_in(token), to))
    }

    fn close_effect(&self, py: Python<'_>, effect: u64, by: &str, reason: &str) -> PyResult<()> {
        call(py, || self.store()?.close_effect(EffectId(effect), by, reason))
    }

    fn effect(&self, py: Python<'_>, id: u64) -> PyResult<EffectInfo> {
        call(py, || self.store()?.effect(EffectId(id))).map(Into::into)
    }

    #[pyo3(signature = (since, limit, branch, state, outcome, agent, tool))]
    #[allow(clippy::too_many_arguments)] // One for each filter.
    fn effects(
        &self,
        py: Python<'_>,
        since: u64,
        limit: usize,
        branch: Option<u64>,
        state: Option<&str>,
        outcome: Option<&str>,
        agent: Option<String>,
        tool: Option<String>,
    ) -> PyResult<Vec<EffectInfo>> {
        let filter = EffectFilter {
            branch: branch.map(BranchId),
            state: state.map(|word| choice(py, "state", word, EFFECT_STATES)).transpose()?,
            outcome: outcome.map(|word| choice(py, "outcome", word, OUTCOMES)).transpose()?,
            agent,
            tool,
        };
        let found = call(py, || self.store()?.effects(since, limit, &filter))?;
        Ok(found.into_iter().map(Into::into).collect())
    }
}

impl Handle {
    /// An interrupt that came while the call was registered would take the effect from its caller, so
    /// what was registered is recorded as not run: its tool has not been called.
    fn undo_if_interrupted(
        &self,
        py: Python<'_>,
        receipts: &[Receipt],
        tools: &[String],
    ) -> PyResult<()> {
        py.check_signals().inspect_err(|_| {
            for (receipt, tool) in receipts.iter().zip(tools) {
                let (true, Some(token)) = (receipt.created, receipt.token) else { continue };
                let problem = Problem::new("KeyboardInterrupt", &format!("{tool} was not started"));
                // A refusal here leaves the outcome unknown, which is safe.
                let _: Result<_, effectstore::Error> =
                    py.detach(|| guarded(|| self.store()?.not_run(receipt.effect, token, problem)));
            }
        })
    }
}

fn claims_of(placed: &[Placed]) -> Vec<String> {
    placed.iter().map(|placed| placed.call.tool.clone()).collect()
}

fn placed_in(py: Python<'_>, raw: PlacedTuple, payloads: &mut Payloads) -> PyResult<Placed> {
    let (
        (branch, token),
        tool,
        args,
        inverse,
        reads,
        writes,
        follows,
        (reversibility, mode),
        idempotency_key,
        fingerprint,
        cost,
        approval,
    ) = raw;
    let class =
        reversibility.map(|word| choice(py, "reversibility", &word, CLASSES)).transpose()?;
    let mode = mode.map(|word| choice(py, "mode", &word, MODES)).transpose()?;
    let args = payloads.put(args);
    let inverse = inverse.map(|raw| inverse_in(raw, payloads));
    let fingerprint = fingerprint.map(|bytes| PayloadRef::of(&bytes).hash);
    let call = Registration {
        inverse,
        reads: reads_in(reads),
        writes: writes.into_iter().map(Key).collect(),
        follows: follows_in(follows),
        class,
        mode,
        idempotency_key,
        fingerprint,
        cost,
        approval: approval.map(ApprovalId),
        ..Registration::new(tool, args)
    };
    Ok(Placed { branch: BranchId(branch), token: token_in(token), call })
}

fn follows_in(raw: Option<FollowsTuple>) -> Follows {
    match raw {
        None => Follows::Tip,
        Some((kind, effects, _)) if kind == "turn" => {
            Follows::Turn(effects.into_iter().map(EffectId).collect())
        }
        Some((_, effects, items)) => {
            let effects = effects.into_iter().map(|id| After::Effect(EffectId(id)));
            Follows::These(effects.chain(items.into_iter().map(After::Item)).collect())
        }
    }
}

fn receipt_out(receipt: Receipt) -> ReceiptTuple {
    (
        receipt.effect.0,
        receipt.token.map(token_out),
        receipt.created,
        word(receipt.state, EFFECT_STATES),
        word(receipt.outcome, OUTCOMES),
    )
}
