//! The outbox: deferred effects after their fence.

use effectstore::model::{self, EffectId};
use pyo3::prelude::*;

use crate::convert::{TokenPair, ids, token_in, token_out};
use crate::store::Handle;
use crate::wait::{Patience, ask, call};

/// A deferred effect that was handed out.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct DeliveryInfo {
    effect: u64,
    idempotency_key: String,
    attempt: u32,
    lease_until_ms: u64,
    token: TokenPair,
}

impl From<model::DeliveryInfo> for DeliveryInfo {
    fn from(info: model::DeliveryInfo) -> Self {
        DeliveryInfo {
            effect: info.effect.0,
            idempotency_key: info.idempotency_key,
            attempt: info.attempt,
            lease_until_ms: info.lease_until_ms,
            token: token_out(info.token),
        }
    }
}

#[pymethods]
impl Handle {
    #[pyo3(signature = (agent, tools, lease_ms, wait_ms))]
    fn deliver(
        &self,
        py: Python<'_>,
        agent: &str,
        tools: Option<Vec<String>>,
        lease_ms: u64,
        wait_ms: u64,
    ) -> PyResult<Option<DeliveryInfo>> {
        let found = ask(
            py,
            &Patience::of(wait_ms),
            |slice_ms| self.store()?.deliver(agent, tools.clone(), lease_ms, slice_ms),
            Option::is_some,
        )?;
        Ok(found.map(Into::into))
    }

    #[pyo3(signature = (effect, token, lease_ms))]
    fn hold_delivery(
        &self,
        py: Python<'_>,
        effect: u64,
        token: TokenPair,
        lease_ms: Option<u64>,
    ) -> PyResult<Option<DeliveryInfo>> {
        let (effect, token) = (EffectId(effect), token_in(token));
        let held = call(py, || self.store()?.hold_delivery(effect, token, lease_ms))?;
        Ok(held.map(Into::into))
    }

    #[pyo3(signature = (agent))]
    fn deliveries(&self, py: Python<'_>, agent: Option<&str>) -> PyResult<Vec<u64>> {
        Ok(ids(&call(py, || self.store()?.deliveries(agent))?))
    }
}
