//! What a caller says about itself: names, reasons, costs and rules of retry that make sense whatever
//! the store holds. All of it is looked at before anything else, so nothing of a senseless command is
//! kept. Limits of names are the store's; that of written reasons is fixed.

use super::meta::check_retry;
use super::{Ruling, Turn};
use crate::model::{
    ArtifactSpec, ArtifactState, Ask, ClaimSpec, Command, Inverse, Refusal, Registration,
};

/// Longest reason, note, instruction or limitation, in bytes: it is read by people, and kept for ever.
pub const REASON_BYTES: u64 = 16 << 10;

/// The agent that stands for every agent, where one acts or may act for all.
const ANYONE: &str = "*";

impl Turn<'_> {
    /// Refuses words that say nothing or too much.
    pub(super) fn words(&self, command: &Command) -> Ruling<()> {
        match command {
            Command::Configure { by, .. }
            | Command::Unfreeze { by }
            | Command::Acknowledge { by, .. } => self.name("by", by),
            Command::Freeze { by, reason }
            | Command::Close { by, reason, .. }
            | Command::RetryStep { by, reason, .. }
            | Command::ResolveStep { by, reason, .. }
            | Command::RequestRollback { by, reason, .. }
            | Command::WaiveRemedy { by, reason, .. } => self.who_and_why(by, reason),
            Command::RecordRootCause { note, by, remedy, .. } => {
                self.name("by", by)?;
                reason("note", note)?;
                remedy.as_deref().map_or(Ok(()), |remedy| reason("remedy", remedy))
            }
            Command::CreateBranch { name, agent, lease_ms, .. } => {
                lease_given(*lease_ms)?;
                self.name("name", name)?;
                self.one_agent(agent)
            }
            Command::TakeOver { by, .. } => self.maybe_name("by", by.as_deref()),
            Command::Done { inverse: Some(inverse), .. } => self.inverse(inverse),
            Command::Exposed { to, .. } => reason("to", to),
            Command::Abort { by, reason: why, .. } => {
                self.maybe_name("by", by.as_deref())?;
                reason("reason", why)
            }
            Command::Reconcile { by, reason: why, .. } => {
                self.maybe_name("by", by.as_deref())?;
                why.as_deref().map_or(Ok(()), |why| reason("reason", why))
            }
            Command::Claim { spec } | Command::EndStep { next: Some(spec), .. } => self.spec(spec),
            Command::Ask { ask, by, reason } => {
                if let Ask::Early { tool, .. } = ask {
                    self.name("tool", tool)?;
                }
                self.who_and_why(by, reason)
            }
            Command::Answer { approve: false, by, reason, .. } => {
                self.who_and_why(by, reason.as_deref().unwrap_or_default())
            }
            Command::Answer { by, reason: why, .. } => {
                self.name("by", by)?;
                short("reason", why.as_deref().unwrap_or_default())
            }
            Command::Deliver { agent, .. } | Command::AckNotice { agent, .. } => {
                self.name("agent", agent)
            }
            Command::HoldDelivery { lease_ms, .. } => lease_given(*lease_ms),
            _ => self.more_words(command),
        }
    }

    /// Those of BREAKs and artifacts.
    fn more_words(&self, command: &Command) -> Ruling<()> {
        match command {
            Command::SignalBreak { reason: why, upstream, .. } => {
                reason("reason", why)?;
                upstream.iter().try_for_each(|agent| self.name("upstream", agent))
            }
            Command::CreateArtifacts { primary, compensation, by, .. } => {
                self.name("by", by)?;
                self.artifact_words(primary)?;
                self.artifact_words(compensation)
            }
            Command::MoveArtifact { state: ArtifactState::Rejected, by, reason, .. } => {
                self.who_and_why(by, reason.as_deref().unwrap_or_default())
            }
            Command::MoveArtifact { by, reason: why, .. } => {
                self.name("by", by)?;
                short("reason", why.as_deref().unwrap_or_default())
            }
            Command::FailArtifact { by, reason: why, run_id, .. } => {
                self.maybe_name("run_id", run_id.as_deref())?;
                // It is an error's text: shortened, however long it is.
                self.name("by", by)?;
                said("reason", why)
            }
            _ => Ok(()),
        }
    }

    /// The same for one call; its place in the batch is named by whoever asks.
    pub(super) fn call_words(&self, call: &Registration) -> Ruling<()> {
        self.name("tool", &call.tool)?;
        if call.cost.is_some_and(|cost| !cost.is_finite() || cost < 0.0) {
            return Err(senseless("cost", "a cost is a finite number, zero or more"));
        }
        call.inverse.as_ref().map_or(Ok(()), |inverse| self.inverse(inverse))
    }

    fn artifact_words(&self, spec: &ArtifactSpec) -> Ruling<()> {
        self.name("type", &spec.artifact_type)?;
        self.name("name", &spec.name)?;
        self.maybe_name("content_ref", spec.content_ref.as_deref())?;
        self.maybe_name("agent", spec.agent.as_deref())
    }

    fn inverse(&self, inverse: &Inverse) -> Ruling<()> {
        for call in &inverse.calls {
            self.name("tool", &call.tool)?;
        }
        if let Some(text) = &inverse.manual {
            reason("inverse", text)?;
        }
        if let Some(text) = &inverse.limitation {
            reason("limitation", text)?;
        }
        self.maybe_name("agent", inverse.agent.as_deref())?;
        self.maybe_name("artifact", inverse.artifact.as_deref())?;
        inverse.retry.as_ref().map_or(Ok(()), |retry| Ok(check_retry(retry)?))
    }

    fn spec(&self, spec: &ClaimSpec) -> Ruling<()> {
        self.name("agent", &spec.agent)?;
        spec.retry.as_ref().map_or(Ok(()), |retry| Ok(check_retry(retry)?))
    }

    fn one_agent(&self, agent: &str) -> Ruling<()> {
        self.name("agent", agent)?;
        if agent == ANYONE {
            let reason = "\"*\" stands for every agent; give the branch an agent of its own";
            return Err(senseless("agent", reason));
        }
        Ok(())
    }

    fn who_and_why(&self, by: &str, why: &str) -> Ruling<()> {
        self.name("by", by)?;
        reason("reason", why)
    }

    fn maybe_name(&self, option: &'static str, name: Option<&str>) -> Ruling<()> {
        name.map_or(Ok(()), |name| self.name(option, name))
    }

    fn name(&self, option: &'static str, name: &str) -> Ruling<()> {
        if name.trim().is_empty() {
            return Err(senseless(option, "it is empty"));
        }
        let (value, allowed) = (name.len() as u64, self.state.limits.name_bytes);
        if value > allowed {
            let limit = "name_bytes";
            return Err(
                Refusal::LimitExceeded { limit, value, allowed, wait_for: Vec::new() }.into()
            );
        }
        Ok(())
    }
}

fn reason(option: &'static str, text: &str) -> Ruling<()> {
    said(option, text)?;
    short(option, text)
}

fn said(option: &'static str, text: &str) -> Ruling<()> {
    if text.trim().is_empty() {
        return Err(senseless(option, "it is empty; say it in words"));
    }
    Ok(())
}

fn short(option: &'static str, text: &str) -> Ruling<()> {
    if text.len() as u64 > REASON_BYTES {
        let reason =
            format!("{} bytes are too long a text; at most {REASON_BYTES} are kept", text.len());
        return Err(Refusal::Options { option, reason }.into());
    }
    Ok(())
}

fn lease_given(lease_ms: Option<u64>) -> Ruling<()> {
    match lease_ms {
        Some(0) => Err(senseless("lease", "a lease is longer than nothing")),
        _ => Ok(()),
    }
}

fn senseless(option: &'static str, reason: &str) -> super::Stop {
    Refusal::Options { option, reason: reason.to_owned() }.into()
}
