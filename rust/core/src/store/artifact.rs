//! Artifacts: the verbs, the looks, and content that is checked whenever it is handed out.

use std::ops::ControlFlow;

use sha2::{Digest as _, Sha256};

use super::verbs::misfit;
use super::{EffectStore, Payloads};
use crate::codec::Record;
use crate::decide::History as _;
use crate::error::Error;
use crate::log::{Past, corrupted, read_payload};
use crate::model::{
    Artifact, ArtifactId, ArtifactPair, ArtifactSpec, ArtifactState, ClaimSpec, Class, Command,
    Event, Problem, Refusal, Reply, StepEnd, StepHandle, StepHold, StepInfo,
};
use crate::state::pair_of;
use crate::storage::{StorageError, Table};

/// SHA-256 of these bytes.
///
/// ```
/// assert_eq!(effectstore::store::sha256(b"")[..2], [0xe3, 0xb0]);
/// ```
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Where the content of a new artifact is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Here: the store keeps the bytes.
    Held(Vec<u8>),
    /// Elsewhere, under words that the caller understands. The SHA-256 names what lies there.
    Elsewhere {
        /// The place, such as an address.
        content_ref: String,
        /// SHA-256 of the bytes.
        sha256: [u8; 32],
    },
}

/// An artifact that is to be made.
///
/// ```
/// use effectstore::store::NewArtifact;
/// let script = NewArtifact::held("PYTHON_SCRIPT", "fix-gaps.py", b"print(1)".to_vec());
/// assert_eq!(script.name, "fix-gaps.py");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewArtifact {
    /// What it is: the name of the handler that runs it.
    pub artifact_type: String,
    /// Its name, for people.
    pub name: String,
    /// Its content.
    pub content: Content,
    /// How far its execution can be undone; an irreversible compensation runs only under an approval
    /// of its own.
    pub class: Class,
    /// Who may run it; anyone where there is none.
    pub agent: Option<String>,
}

impl NewArtifact {
    /// An artifact whose content the store keeps.
    pub fn held(artifact_type: impl Into<String>, name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self::of(artifact_type.into(), name.into(), Content::Held(bytes))
    }

    /// An artifact whose content lies elsewhere.
    ///
    /// ```
    /// use effectstore::store::{NewArtifact, sha256};
    /// let undo = NewArtifact::elsewhere("SQL", "undo", "s3://bucket/undo.sql", sha256(b"drop"));
    /// assert!(undo.agent.is_none());
    /// ```
    pub fn elsewhere(
        artifact_type: impl Into<String>,
        name: impl Into<String>,
        content_ref: impl Into<String>,
        sha256: [u8; 32],
    ) -> Self {
        let content = Content::Elsewhere { content_ref: content_ref.into(), sha256 };
        Self::of(artifact_type.into(), name.into(), content)
    }

    fn of(artifact_type: String, name: String, content: Content) -> Self {
        NewArtifact { artifact_type, name, content, class: Class::Full, agent: None }
    }

    fn spec(self, payloads: &mut Payloads) -> ArtifactSpec {
        let NewArtifact { artifact_type, name, content, class, agent } = self;
        let (sha256, content, content_ref) = match content {
            Content::Held(bytes) => (sha256(&bytes), Some(payloads.put(bytes)), None),
            Content::Elsewhere { content_ref, sha256 } => (sha256, None, Some(content_ref)),
        };
        ArtifactSpec { artifact_type, name, sha256, content, content_ref, class, agent }
    }
}

/// The artifacts of a store. See [`EffectStore::artifacts`].
#[derive(Clone, Debug)]
pub struct Artifacts<'a> {
    store: &'a EffectStore,
}

impl EffectStore {
    /// Executable artifacts and the compensations that are paired with them.
    ///
    /// ```
    /// # fn main() -> Result<(), effectstore::Error> {
    /// use effectstore::model::ArtifactState;
    /// use effectstore::store::{CompensateOptions, Handled, NewArtifact};
    /// use effectstore::{EffectStore, Options};
    ///
    /// let store = EffectStore::in_memory(Options::default())?;
    /// let fix = NewArtifact::held("SCRIPT", "fix", b"add column".to_vec());
    /// let undo = NewArtifact::held("SCRIPT", "undo-fix", b"drop column".to_vec());
    /// let id = store.artifacts().create(fix, undo, "ana")?.primary.id;
    /// store.artifacts().submit(id, "ana")?;
    /// store.artifacts().approve(id, "ben", Some("read both"))?;
    /// store.artifacts().promote(id, "ben")?;
    ///
    /// let failed = store.artifacts().fail(id, "runner", "exit code 1", Some("run-7"))?;
    /// assert_eq!(failed.primary.state, ArtifactState::Failed);
    /// let report = store.compensate(&CompensateOptions::default(), &mut |step| {
    ///     let code = step.artifact.expect("the compensation");
    ///     assert_eq!(store.artifacts().content(code).expect("held here"), b"drop column");
    ///     Handled::Completed(None)
    /// })?;
    /// assert!(report.report.clean());
    /// assert_eq!(store.artifacts().get(id)?.primary.state, ArtifactState::Compensated);
    /// # Ok(())
    /// # }
    /// ```
    pub fn artifacts(&self) -> Artifacts<'_> {
        Artifacts { store: self }
    }
}

impl Artifacts<'_> {
    /// Makes an artifact and its compensation, in one command: there is no way to make one alone.
    ///
    /// # Errors
    /// [`Refusal::Options`] for an empty name, [`Refusal::LimitExceeded`] for one that is too long or
    /// too much content.
    pub fn create(
        &self,
        primary: NewArtifact,
        compensation: NewArtifact,
        by: &str,
    ) -> Result<ArtifactPair, Error> {
        self.make(primary, compensation, by, None)
    }

    /// Makes a pair at most once: the same key with the same content answers the pair that is there,
    /// as it is by now. Keys are unique in the store, those of effects included.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Refusal::IdempotencyConflict`] where the key stands for other
    /// content or for an effect.
    ///
    /// ```
    /// # fn main() -> Result<(), effectstore::Error> {
    /// use effectstore::store::NewArtifact;
    /// use effectstore::{EffectStore, Options};
    ///
    /// let store = EffectStore::in_memory(Options::default())?;
    /// let made = |undo: &[u8]| {
    ///     let fix = NewArtifact::held("SCRIPT", "fix", b"add".to_vec());
    ///     let undo = NewArtifact::held("SCRIPT", "undo", undo.to_vec());
    ///     store.artifacts().create_once(fix, undo, "ana", b"fix-7")
    /// };
    /// assert_eq!(made(b"drop")?.primary.id, made(b"drop")?.primary.id);
    /// assert!(made(b"other").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_once(
        &self,
        primary: NewArtifact,
        compensation: NewArtifact,
        by: &str,
        idempotency_key: &[u8],
    ) -> Result<ArtifactPair, Error> {
        self.make(primary, compensation, by, Some(idempotency_key.to_vec()))
    }

    fn make(
        &self,
        primary: NewArtifact,
        compensation: NewArtifact,
        by: &str,
        idempotency_key: Option<Vec<u8>>,
    ) -> Result<ArtifactPair, Error> {
        let mut payloads = Payloads::default();
        let primary = Box::new(primary.spec(&mut payloads));
        let compensation = Box::new(compensation.spec(&mut payloads));
        let by = by.to_owned();
        let command = Command::CreateArtifacts { primary, compensation, by, idempotency_key };
        self.told(&self.store.submit_with(command, payloads)?)
    }

    /// Asks a person to review both.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] unless it is a draft, [`Refusal::NotFound`].
    pub fn submit(&self, id: ArtifactId, by: &str) -> Result<ArtifactPair, Error> {
        self.bring(id, ArtifactState::InReview, by, None)
    }

    /// A person approves both, and with them the compensation's run unless it is irreversible.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] unless it is in review, [`Refusal::ArtifactDuties`] where the
    /// policy separates duties and `by` created or submitted it, [`Refusal::ArtifactReasonRequired`] where
    /// one of the two is irreversible.
    pub fn approve(
        &self,
        id: ArtifactId,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ArtifactPair, Error> {
        self.bring(id, ArtifactState::Approved, by, reason)
    }

    /// Turns both down, or withdraws them before they were executed. It is final.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] once it is executed.
    pub fn reject(&self, id: ArtifactId, by: &str, reason: &str) -> Result<ArtifactPair, Error> {
        self.bring(id, ArtifactState::Rejected, by, Some(reason))
    }

    /// Makes both active.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] unless it is approved.
    pub fn promote(&self, id: ArtifactId, by: &str) -> Result<ArtifactPair, Error> {
        self.bring(id, ArtifactState::Promoted, by, None)
    }

    /// The primary's execution begins. The record that says so names the run.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] unless it is promoted.
    pub fn start(&self, id: ArtifactId, by: &str) -> Result<ArtifactPair, Error> {
        self.bring(id, ArtifactState::Executing, by, None)
    }

    /// The primary was executed; its compensation is not needed.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] unless it is executing.
    pub fn complete(&self, id: ArtifactId, by: &str) -> Result<ArtifactPair, Error> {
        self.bring(id, ArtifactState::Completed, by, None)
    }

    /// The primary failed: its compensation's run is due if it is approved, claimed like any step;
    /// else an alert calls for a person. Saying it again changes nothing. `run_id` names the failed
    /// run; without it that is the number of the record that started it.
    ///
    /// # Errors
    /// [`Refusal::ArtifactState`] of one that is completed or withdrawn, or for a compensation.
    pub fn fail(
        &self,
        id: ArtifactId,
        by: &str,
        reason: &str,
        run_id: Option<&str>,
    ) -> Result<ArtifactPair, Error> {
        let named = |pair: &ArtifactPair| {
            let started = pair.brought_into(ArtifactState::Executing);
            run_id.map(str::to_owned).or_else(|| started.map(|started| started.record.to_string()))
        };
        let pair = self.get(id)?;
        let mut known = named(&pair);
        loop {
            let shortened = Problem::new("", reason).message;
            let mut payloads = Payloads::default();
            let args = payloads.put(context(id, &shortened, known.as_deref())?);
            let (by, reason, run_id) = (by.to_owned(), reason.to_owned(), known.clone());
            let command = Command::FailArtifact { artifact: id, by, reason, run_id, args };
            match self.store.submit_with(command, payloads) {
                Err(Error::Refused { refusal: Refusal::ArtifactState { .. }, .. })
                    if known.is_none() && named(&self.get(id)?).is_some() =>
                {
                    // It was started between the look and the decision.
                    known = named(&self.get(id)?);
                }
                answer => return self.told(&answer?),
            }
        }
    }

    fn bring(
        &self,
        artifact: ArtifactId,
        state: ArtifactState,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ArtifactPair, Error> {
        let (by, reason) = (by.to_owned(), reason.map(str::to_owned));
        self.told(&self.store.submit(Command::MoveArtifact { artifact, state, by, reason })?)
    }

    fn told(&self, reply: &Reply) -> Result<ArtifactPair, Error> {
        match reply {
            Reply::Artifact(id) => self.get(*id),
            _ => misfit(),
        }
    }

    /// The pair of an artifact, named by the id of either; settled ones are read from the log.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn get(&self, id: ArtifactId) -> Result<ArtifactPair, Error> {
        let missing = || Error::from(Refusal::no_such("artifact", id.0));
        let primary = match self.store.event(id.0)? {
            Some(Event::ArtifactCreated { compensates_for, .. }) => compensates_for.unwrap_or(id),
            _ => return Err(missing()),
        };
        let (core, view) = self.store.engine().look()?;
        let past = Past::new(view.as_ref(), &core.index);
        let records = past.artifact(primary).map_err(|error| corrupted(error.0))?;
        drop(core);
        let mut told = Vec::new();
        for seq in records {
            let Some(bytes) = view.record(seq)? else {
                return Err(corrupted(format!("record {seq}")).into());
            };
            let header = Record::decode_header(&bytes)
                .map_err(|error| corrupted(format!("record {seq}: {error}")))?;
            told.push((seq, header.time_ms, header.event));
        }
        pair_of(told).ok_or_else(missing)
    }

    /// Pairs in order of their primaries' ids, after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn list(&self, since: u64, limit: usize) -> Result<Vec<ArtifactPair>, Error> {
        let mut ids = Vec::new();
        if limit > 0 {
            let from = since.saturating_add(1).to_be_bytes();
            self.store.engine().view()?.rows(Table::Artifacts, &from, &mut |key, _| {
                ids.extend(<[u8; 8]>::try_from(key).map(|key| ArtifactId(u64::from_be_bytes(key))));
                if ids.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        ids.into_iter().map(|id| self.get(id)).collect()
    }

    fn one(&self, id: ArtifactId) -> Result<Artifact, Error> {
        let pair = self.get(id)?;
        Ok(if pair.primary.id == id { pair.primary } else { pair.compensation })
    }

    /// The content that the store holds of an artifact, checked.
    ///
    /// # Errors
    /// [`Refusal::ContentMismatch`] where it is not what was reviewed; [`Refusal::Options`] where it
    /// lies elsewhere.
    pub fn content(&self, id: ArtifactId) -> Result<Vec<u8>, Error> {
        let artifact = self.one(id)?;
        let Some(reference) = artifact.spec.content else {
            let reason = format!(
                "the content of artifact {id} lies elsewhere: fetch it from its content_ref, and have it checked"
            );
            return Err(Refusal::Options { option: "content_ref", reason }.into());
        };
        let view = self.store.engine().view()?;
        let mismatch = || Error::from(Refusal::ContentMismatch { artifact: id });
        let bytes = match read_payload(view.as_ref(), id.0, &reference) {
            Ok(bytes) => bytes.ok_or_else(mismatch)?,
            // Bytes that do not fit their own hash are not what was reviewed, whatever damaged them.
            Err(StorageError::Corrupted { .. }) => return Err(mismatch()),
            Err(other) => return Err(other.into()),
        };
        if sha256(&bytes) == artifact.spec.sha256 { Ok(bytes) } else { Err(mismatch()) }
    }

    /// Checks content that was fetched from elsewhere.
    ///
    /// ```
    /// # fn main() -> Result<(), effectstore::Error> {
    /// use effectstore::store::{NewArtifact, sha256};
    /// use effectstore::{EffectStore, Options};
    ///
    /// let store = EffectStore::in_memory(Options::default())?;
    /// let fix = NewArtifact::elsewhere("SCRIPT", "fix", "file:fix", sha256(b"add"));
    /// let undo = NewArtifact::held("SCRIPT", "undo-fix", b"drop".to_vec());
    /// let id = store.artifacts().create(fix, undo, "ana")?.primary.id;
    /// store.artifacts().check(id, b"add")?;
    /// assert_eq!(store.artifacts().check(id, b"other").unwrap_err().code(), "content_mismatch");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::ContentMismatch`] where it is not what was reviewed.
    pub fn check(&self, id: ArtifactId, bytes: &[u8]) -> Result<(), Error> {
        if sha256(bytes) == self.one(id)?.spec.sha256 {
            return Ok(());
        }
        Err(Refusal::ContentMismatch { artifact: id }.into())
    }
}

impl EffectStore {
    /// A step that was claimed, complete; `None` where the content of its artifact does not match,
    /// which ends the attempt before anything runs.
    pub(super) fn handed_out(&self, step: StepHandle) -> Result<Option<StepInfo>, Error> {
        let info = self.fill_step(step)?;
        let Some(id) = info.artifact else { return Ok(Some(info)) };
        let content = match self.artifacts().one(id) {
            Ok(artifact) if artifact.spec.content.is_some() => self.artifacts().content(id),
            // What lies elsewhere is checked when the handler fetches it; an inverse of an older
            // store may name what is no artifact.
            Ok(_) | Err(Error::Refused { .. }) => return Ok(Some(info)),
            Err(other) => Err(other),
        };
        match content {
            Ok(_) => Ok(Some(info)),
            Err(Error::Refused { refusal, .. }) => {
                let problem = Problem::new("ContentMismatchError", &refusal.to_string());
                let hold = StepHold { effect: info.effect, token: info.token };
                self.end_step(hold, StepEnd::Mismatched(problem), Payloads::default(), None)?;
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Claims until a step can be handed out, or none is due.
    pub(super) fn claim_now(&self, spec: &ClaimSpec) -> Result<Option<StepInfo>, Error> {
        loop {
            let claimed = match self.submit(Command::Claim { spec: spec.clone() })? {
                Reply::Step(Some(step)) => *step,
                _ => return Ok(None),
            };
            if let Some(info) = self.handed_out(claimed)? {
                return Ok(Some(info));
            }
        }
    }
}

/// What the handler of a compensation is told, in deterministic CBOR: the failed run, why it failed,
/// and the primary.
fn context(id: ArtifactId, reason: &str, run_id: Option<&str>) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut encoder = minicbor::Encoder::new(&mut bytes);
    let written = (|| {
        encoder.map(3)?.str("run_id")?;
        match run_id {
            Some(run_id) => encoder.str(run_id)?,
            None => encoder.null()?,
        };
        encoder.str("failure_reason")?.str(reason)?.str("compensating_for")?.u64(id.0)?;
        Ok::<(), minicbor::encode::Error<std::convert::Infallible>>(())
    })();
    match written {
        Ok(()) => Ok(bytes),
        Err(error) => Err(StorageError::Poisoned { cause: error.to_string() }.into()),
    }
}
