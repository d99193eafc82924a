//! Artifacts (RFC-012, section 8): pairs that go through review together, and the run of the
//! compensation that is due when its primary fails.
//!
//! The run is the step of an effect that is registered and doomed in the very transaction of the
//! failure: so claims, leases, attempts, approvals, reports and evidence are those of every rollback.

use super::{Ruling, Turn};
use crate::model::{
    ArtifactId, ArtifactPair, ArtifactSpec, ArtifactState, BranchId, Call, Class, Command, Doom,
    EffectId, Event, FailureKind, Inverse, MemberSet, Mode, Overwrite, PayloadRef, Problem,
    ReadRule, Refusal, Registered, Registration, Reply, RollbackId, Severity, Stopped, Token,
    Trigger,
};
use crate::state::{Effect, StepStatus, pair_of};

/// Whether two artifacts are one in all that counts: where the content is kept, not how it is sent.
fn same_artifact(one: &ArtifactSpec, other: &ArtifactSpec) -> bool {
    let bare = |spec: &ArtifactSpec| ArtifactSpec { content: None, ..spec.clone() };
    one.content.is_some() == other.content.is_some() && bare(one) == bare(other)
}

/// Who reported a failure, why, and which run failed.
type Failure<'a> = (&'a str, &'a str, Option<&'a str>);

/// Anybody may run it.
const ANYONE: &str = "*";

impl Turn<'_> {
    pub(super) fn artifacts(&mut self, command: &Command) -> Ruling<Reply> {
        match command {
            Command::CreateArtifacts { primary, compensation, by, idempotency_key } => {
                self.create_artifacts(primary, compensation, by, idempotency_key.as_deref())
            }
            Command::MoveArtifact { artifact, state, by, reason } => {
                self.move_artifact(*artifact, *state, by, reason.as_deref())
            }
            Command::FailArtifact { artifact, by, reason, run_id, args } => {
                self.fail_artifact(*artifact, (by, reason, run_id.as_deref()), *args)
            }
            _ => Ok(Reply::Nothing),
        }
    }

    /// Creates both in one command (rule 1): there is no way to create one alone.
    fn create_artifacts(
        &mut self,
        primary: &ArtifactSpec,
        compensation: &ArtifactSpec,
        by: &str,
        key: Option<&[u8]>,
    ) -> Ruling<Reply> {
        self.usable("primary", primary)?;
        self.usable("compensation", compensation)?;
        if let Some(key) = key
            && let Some(known) = self.known_pair(key, primary, compensation)?
        {
            return Ok(Reply::Artifact(known));
        }
        let make = |spec: &ArtifactSpec, compensates_for, key: Option<&[u8]>| {
            let (spec, by) = (Box::new(spec.clone()), by.to_owned());
            let idempotency_key = key.map(<[u8]>::to_vec);
            Event::ArtifactCreated { spec, compensates_for, by, idempotency_key }
        };
        let id = ArtifactId(self.emit(make(primary, None, key)));
        self.emit(make(compensation, Some(id), None));
        Ok(Reply::Artifact(id))
    }

    /// The pair that was made under this key, if it is of the same content. Keys are unique in the
    /// store, so an effect's is refused, too.
    fn known_pair(
        &self,
        key: &[u8],
        primary: &ArtifactSpec,
        compensation: &ArtifactSpec,
    ) -> Ruling<Option<ArtifactId>> {
        let (value, allowed) = (key.len() as u64, self.state.limits.key_bytes);
        if value > allowed {
            let (limit, wait_for) = ("key_bytes", Vec::new());
            return Err(Refusal::LimitExceeded { limit, value, allowed, wait_for }.into());
        }
        let Some(first) = self.history.known_key(key)? else { return Ok(None) };
        if self.forgotten(first)? {
            return Ok(None);
        }
        let conflict = |differs| Refusal::IdempotencyConflict { effect: first, differs };
        let Some(Event::ArtifactCreated { spec, .. }) = self.history.event(first.0)? else {
            return Err(conflict("kind").into());
        };
        if !same_artifact(&spec, primary) {
            return Err(conflict("primary").into());
        }
        match self.history.event(first.0 + 1)? {
            Some(Event::ArtifactCreated { spec, .. }) if same_artifact(&spec, compensation) => {
                Ok(Some(ArtifactId(first.0)))
            }
            _ => Err(conflict("compensation").into()),
        }
    }

    fn usable(&self, option: &'static str, spec: &ArtifactSpec) -> Ruling<()> {
        if spec.content.is_some() == spec.content_ref.is_some() {
            let reason =
                "its content is held either here or elsewhere: give one of content and content_ref";
            return Err(Refusal::Options { option, reason: reason.to_owned() }.into());
        }
        let (value, allowed) =
            (spec.content.map_or(0, |held| held.length), self.state.limits.payload_bytes);
        if value > allowed {
            let (limit, wait_for) = ("payload_bytes", Vec::new());
            return Err(Refusal::LimitExceeded { limit, value, allowed, wait_for }.into());
        }
        Ok(())
    }

    /// The pair of a primary, settled ones included.
    fn pair(&self, id: ArtifactId) -> Ruling<ArtifactPair> {
        if let Some(pair) = self.state.artifacts.get(id) {
            return Ok(pair.info.clone());
        }
        let mut events = Vec::new();
        for seq in self.history.artifact(id)? {
            events.extend(self.history.event(seq)?.map(|event| (seq, 0, event)));
        }
        if let Some(pair) = pair_of(events) {
            return Ok(pair);
        }
        match self.history.event(id.0)? {
            Some(Event::ArtifactCreated { compensates_for: Some(primary), .. }) => {
                let pair = self.pair(primary)?;
                let state = pair.compensation.state.name();
                let hint = format!("it compensates for artifact {primary} and goes along with it");
                Err(Refusal::ArtifactState { artifact: id, state, hint }.into())
            }
            _ => Err(Refusal::no_such("artifact", id.0).into()),
        }
    }

    /// Brings a pair into its next state, both of it (rules 2 and 3).
    fn move_artifact(
        &mut self,
        id: ArtifactId,
        state: ArtifactState,
        by: &str,
        reason: Option<&str>,
    ) -> Ruling<Reply> {
        let pair = self.pair(id)?;
        let before = pair.primary.state;
        if state.has_failed() || !before.may_become(state) {
            let hint = format!("it cannot become {}", state.name());
            let state = before.name();
            return Err(Refusal::ArtifactState { artifact: id, state, hint }.into());
        }
        if state == ArtifactState::Approved {
            self.may_approve(&pair, by, reason)?;
        }
        let (by, reason) = (by.to_owned(), reason.map(str::to_owned));
        self.emit(Event::ArtifactMoved { artifact: id, state, by, reason });
        Ok(Reply::Artifact(id))
    }

    fn may_approve(&self, pair: &ArtifactPair, by: &str, reason: Option<&str>) -> Ruling<()> {
        let artifact = pair.primary.id;
        let submitted = pair.brought_into(ArtifactState::InReview);
        let asked = submitted.and_then(|moved| moved.by.as_deref()) == Some(by);
        if self.state.policy.separation_of_duties && (asked || pair.created_by == by) {
            return Err(Refusal::ArtifactDuties { artifact, by: by.to_owned() }.into());
        }
        let worst = pair.primary.spec.class.max(pair.compensation.spec.class);
        let written = reason.is_some_and(|reason| !reason.trim().is_empty());
        if worst == Class::Irreversible && !written {
            return Err(Refusal::ArtifactReasonRequired { artifact, by: by.to_owned() }.into());
        }
        Ok(())
    }

    /// A primary failed (rule 4): its compensation's run is due if it is approved; else a person is
    /// called and nothing runs. Whoever says so first is right; saying it again changes nothing.
    fn fail_artifact(
        &mut self,
        id: ArtifactId,
        (by, reason, run_id): Failure<'_>,
        args: PayloadRef,
    ) -> Ruling<Reply> {
        let pair = self.pair(id)?;
        let before = pair.primary.state;
        if before.has_failed() {
            return Ok(Reply::Artifact(id));
        }
        let refused = |hint: &str| Refusal::ArtifactState {
            artifact: id,
            state: before.name(),
            hint: hint.to_owned(),
        };
        if before == ArtifactState::Executing && run_id.is_none() {
            return Err(refused("name the run that failed").into());
        }
        let reason = Problem::new("", reason).message;
        if before.may_become(ArtifactState::Failed) && pair.compensation.state.is_approved() {
            self.open_run(&pair, (by, &reason, run_id), args)?;
        } else if before.may_become(ArtifactState::Uncompensated) {
            self.emit(failed(id, (by, &reason, run_id), None));
            let text = format!(
                "artifact {id} failed and its compensation, artifact {}, is not approved ({}): it was not run; manual intervention is required",
                pair.compensation.id,
                pair.compensation.state.name()
            );
            self.alert(Severity::Critical, text, id.0);
        } else {
            return Err(refused("it cannot fail any more").into());
        }
        Ok(Reply::Artifact(id))
    }

    /// Registers what is to be undone and dooms it at once: its step is the compensation's run.
    fn open_run(
        &mut self,
        pair: &ArtifactPair,
        (by, reason, run_id): Failure<'_>,
        args: PayloadRef,
    ) -> Ruling<()> {
        let name = self.run_name(pair.primary.id)?;
        let branch = BranchId(self.next() + 1);
        let effect = EffectId(branch.0 + 1);
        let rollback = RollbackId(branch.0 + 3);
        self.emit(failed(pair.primary.id, (by, reason, run_id), Some((effect, rollback))));
        self.emit(Event::BranchCreated {
            name,
            agent: pair.created_by.clone(),
            parent: None,
            reads: ReadRule::default(),
            overwrite: Overwrite::default(),
            lease_ms: None,
            inherited: None,
        });
        let token = Token { incarnation: self.state.incarnation, number: branch.0 };
        self.emit(Event::Registered(Box::new(registered(pair, branch, token, args))));
        // Whoever reports the failure says that this run of the primary is over.
        self.emit(Event::Closed { effect, by: by.to_owned(), reason: reason.to_owned() });
        self.emit(Event::Doomed(Box::new(Doom {
            members: MemberSet::from(vec![effect]),
            direct: MemberSet::from(vec![effect]),
            stopped: vec![Stopped { branch, closed: true, observed: Vec::new(), base: Vec::new() }],
            by: Some(by.to_owned()),
            reason: format!("artifact {} failed: {reason}", pair.primary.id),
            trigger: Trigger::Automatic,
            rollback: true,
            within: None,
        })));
        Ok(())
    }

    /// A name for the run's branch that nobody has taken.
    fn run_name(&self, id: ArtifactId) -> Ruling<String> {
        let mut name = format!("artifact {id}");
        while self.state.names.contains_key(&name) || self.history.branch_named(&name)?.is_some() {
            name.push('\'');
        }
        Ok(name)
    }

    /// Writes down how a run ended, or that it is due once more (rule 5).
    pub(super) fn record_run(&mut self, id: RollbackId) {
        let run = match self.state.rollbacks.get(&id).map(|rollback| &rollback.members[..]) {
            Some([run]) => *run,
            _ => return,
        };
        let Some(pair) = self.state.artifacts.of_run(run).map(|pair| &pair.info) else { return };
        let Some(effect) = self.state.effects.get(run) else { return };
        let Some(step) = effect.step.as_ref() else { return };
        let (state, kind) = match &step.status {
            StepStatus::Completed { .. } | StepStatus::Discarded => {
                (ArtifactState::Compensated, None)
            }
            StepStatus::Failed { kind, .. } => (ArtifactState::Uncompensated, Some(*kind)),
            StepStatus::Pending { .. } | StepStatus::Claimed { .. } => {
                (ArtifactState::Failed, None)
            }
        };
        if state == pair.primary.state || !pair.primary.state.may_become(state) {
            return;
        }
        let event = Event::ArtifactRan {
            artifact: pair.primary.id,
            compensation: pair.compensation.id,
            run,
            rollback: id,
            state,
            kind,
            attempts: step.attempts,
            by: self.runner(effect),
            sha256: pair.compensation.spec.sha256,
            approved_by: pair.approver(),
        };
        self.emit(event);
    }

    /// The person that resolved a step, or the agent that last claimed it.
    fn runner(&self, effect: &Effect) -> Option<String> {
        let resolved = self.events.iter().rev().find_map(|event| match event {
            Event::StepResolved { effect: id, by, .. } if *id == effect.id => Some(by.clone()),
            _ => None,
        });
        // A claim is on record before its run ends, and the effect keeps the records that shaped it.
        let claimed = || {
            effect.records.iter().rev().find_map(|seq| match self.history.event(*seq) {
                Ok(Some(Event::StepClaimed { agent, .. })) => Some(agent),
                _ => None,
            })
        };
        resolved.or_else(claimed)
    }

    /// What an alert says about a step that failed for good, and what it refers to.
    pub(super) fn failure_text(
        &self,
        effect: &Effect,
        kind: FailureKind,
        writer: Option<EffectId>,
    ) -> (String, u64) {
        let (id, kind) = (effect.id, kind.name());
        if let Some(pair) = self.state.artifacts.of_run(id).map(|pair| &pair.info) {
            let (primary, compensation) = (pair.primary.id, pair.compensation.id);
            let text = format!(
                "the compensation of artifact {primary} (artifact {compensation}, run {id}) failed: {kind}; manual intervention is required: retry it, or undo it by hand and resolve it"
            );
            return (text, primary.0);
        }
        let writer = writer.map_or_else(String::new, |by| format!(" with effect {by}"));
        let text = format!(
            "the inverse of effect {id} (tool {:?}) failed: {kind}{writer}; retry it, resolve it by hand or leave it",
            effect.tool
        );
        (text, id.0)
    }

    /// An inverse may name the artifact that holds its code. It must be there, and approved.
    pub(super) fn approved_code(&self, inverse: Option<&Inverse>) -> Ruling<()> {
        let Some(named) = inverse.and_then(|inverse| inverse.artifact.as_ref()) else {
            return Ok(());
        };
        let missing = || Refusal::NotFound {
            reference: format!("artifact {named:?}"),
            name: crate::model::Name::Text(named.clone()),
        };
        let id = inverse.and_then(Inverse::artifact_id).ok_or_else(missing)?;
        let primary = match self.history.event(id.0)? {
            Some(Event::ArtifactCreated { compensates_for, .. }) => compensates_for.unwrap_or(id),
            _ => return Err(missing().into()),
        };
        let pair = self.pair(primary)?;
        let withdrawn = pair.primary.state == ArtifactState::Rejected;
        if pair.was_approved() && !withdrawn {
            return Ok(());
        }
        let state = pair.primary.state.name();
        let hint = "an inverse names only what a person has approved".to_owned();
        Err(Refusal::ArtifactState { artifact: id, state, hint }.into())
    }
}

fn failed(
    artifact: ArtifactId,
    (by, reason, run_id): Failure<'_>,
    run: Option<(EffectId, RollbackId)>,
) -> Event {
    Event::ArtifactFailed {
        artifact,
        by: by.to_owned(),
        reason: reason.to_owned(),
        run_id: run_id.map(str::to_owned),
        run: run.map(|(effect, _)| effect),
        rollback: run.map(|(_, rollback)| rollback),
    }
}

/// The failed execution as an effect whose inverse is the compensation.
fn registered(pair: &ArtifactPair, branch: BranchId, token: Token, args: PayloadRef) -> Registered {
    let compensation = &pair.compensation;
    let inverse = Inverse {
        calls: vec![Call { tool: compensation.spec.artifact_type.clone(), args: Some(args) }],
        agent: Some(compensation.spec.agent.clone().unwrap_or_else(|| ANYONE.to_owned())),
        artifact: Some(compensation.id.to_string()),
        ..Inverse::default()
    };
    let class = compensation.spec.class;
    let call = Registration::new(pair.primary.spec.artifact_type.clone(), args);
    Registered {
        branch,
        token,
        call: call.inverse(inverse).class(class).mode(Mode::Eager),
        rests_on: Vec::new(),
        program: Vec::new(),
        class,
        mode: Mode::Eager,
        observed: Vec::new(),
        deadline_ms: None,
    }
}
