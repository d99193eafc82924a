//! BREAK and the inboxes of agents.

use super::EffectStore;
use super::verbs::{answer_of, misfit};
use crate::error::Error;
use crate::model::{
    BranchId, BreakId, BreakSeverity, Command, Event, NoticeId, NoticeInfo, Reconciliation,
    Refusal, Reply, Target, Token,
};

/// What an agent says that cannot go on.
///
/// ```
/// use effectstore::store::BreakSignal;
/// let signal = BreakSignal { reason: "model drift".into(), ..BreakSignal::default() };
/// assert!(signal.recoverable && signal.upstream.is_empty());
/// assert_eq!(signal.ack_within_ms, 30_000);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakSignal {
    /// The token of the branch, where its holder signals; none where somebody else does.
    pub token: Option<Token>,
    /// How bad it is.
    pub severity: BreakSeverity,
    /// Why, in words.
    pub reason: String,
    /// Whether the branch may resume; if not, it is closed for ever.
    pub recoverable: bool,
    /// Agents whose steps wait until the agent that broke has undone its own; at most 1,024.
    pub upstream: Vec<String>,
    /// Time in which everybody told has to acknowledge, in milliseconds; not 0.
    pub ack_within_ms: u64,
}

impl Default for BreakSignal {
    fn default() -> Self {
        BreakSignal {
            token: None,
            severity: BreakSeverity::default(),
            reason: String::new(),
            recoverable: true,
            upstream: Vec::new(),
            ack_within_ms: 30_000,
        }
    }
}

impl EffectStore {
    /// Dooms a branch and all below it in one decision, tells every agent touched, and wants each to
    /// acknowledge in time; a missing acknowledgement raises an alert.
    ///
    /// ```
    /// use effectstore::store::{BreakSignal, NewBranch};
    /// use effectstore::{EffectStore, Options};
    /// let store = EffectStore::in_memory(Options::default())?;
    /// let branch = store.create_branch(NewBranch::named("plan"))?;
    /// let lost = BreakSignal { reason: "lost".into(), ..BreakSignal::default() };
    /// store.signal_break(branch.id, lost)?;
    /// let notices = store.notices("plan", 0, 10)?;
    /// store.ack_notice(notices[0].id, "plan")?;
    /// assert!(store.notices("*", 0, 10)?.is_empty());
    /// # Ok::<(), effectstore::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NotFound`]; [`Refusal::StaleToken`] where a token is shown; of a branch that was
    /// merged, or of which memory holds nothing any more, [`Refusal::BranchClosed`];
    /// [`Refusal::Options`] for upstream agents or a time that make no sense.
    pub fn signal_break(
        &self,
        branch: BranchId,
        signal: BreakSignal,
    ) -> Result<Reconciliation, Error> {
        let BreakSignal { token, severity, reason, recoverable, upstream, ack_within_ms } = signal;
        let command = Command::SignalBreak {
            branch,
            token,
            severity,
            reason,
            recoverable,
            upstream,
            ack_within_ms,
        };
        let done = answer_of!(self.submit(command), Reply::Reconciliation(done) => done)?;
        self.with_kept(&[Target::Branch(branch)], done)
    }

    /// Notices that are not acknowledged, of one agent or (`*`) of all, in order of id after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn notices(&self, agent: &str, since: u64, limit: usize) -> Result<Vec<NoticeInfo>, Error> {
        let mut found = Vec::new();
        {
            let core = self.engine().lock()?;
            let breaks = &core.state.breaks;
            let newer = breaks.notices.range(NoticeId(since.saturating_add(1))..);
            let wanted = newer.filter(|(_, (_, to))| agent == "*" || agent == to);
            for (id, (signal, to)) in wanted.take(limit) {
                let Some(known) = breaks.known.get(signal) else { continue };
                found.push(NoticeInfo {
                    id: *id,
                    agent: to.clone(),
                    signal: *signal,
                    branch: known.signal.branch,
                    branch_name: String::new(),
                    severity: known.signal.severity,
                    reason: known.signal.reason.clone(),
                    recoverable: known.signal.recoverable,
                    ack_by_ms: known.signal.ack_by_ms,
                    acknowledged: false,
                });
            }
        }
        for notice in &mut found {
            notice.branch_name = self.branch(notice.branch)?.name;
        }
        Ok(found)
    }

    /// A notice, acknowledged or not.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn notice(&self, id: NoticeId) -> Result<NoticeInfo, Error> {
        let missing = || Error::from(Refusal::no_such("notice", id.0));
        let Some(Event::Notified { signal, agent }) = self.event(id.0)? else {
            return Err(missing());
        };
        let Some(Event::BreakSignalled(told)) = self.event(signal.0)? else {
            return Err(missing());
        };
        let acknowledged = !self.engine().lock()?.state.breaks.notices.contains_key(&id);
        Ok(NoticeInfo {
            id,
            agent,
            signal: BreakId(signal.0),
            branch: told.branch,
            branch_name: self.branch(told.branch)?.name,
            severity: told.severity,
            reason: told.reason,
            recoverable: told.recoverable,
            ack_by_ms: told.ack_by_ms,
            acknowledged,
        })
    }

    /// Takes note, in the name of the agent that the notice is to. A second time changes nothing.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], also for a notice to another agent.
    pub fn ack_notice(&self, id: NoticeId, agent: &str) -> Result<NoticeInfo, Error> {
        let command = Command::AckNotice { notice: id, agent: agent.to_owned() };
        self.submit(command)?;
        self.notice(id)
    }
}
