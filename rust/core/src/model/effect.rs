//! Effects: one tool call as it is registered, with its inverse.

use minicbor::{Decode, Encode};

use super::{ApprovalId, EffectId, Key, PayloadRef, Read, Retry};

/// How far an effect can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Class {
    /// Wholly.
    #[default]
    #[n(0)]
    Full,
    /// Something stays behind; the inverse says what, in words.
    #[n(1)]
    Partial,
    /// Not at all; an inverse, if any, only makes amends.
    #[n(2)]
    Irreversible,
}

/// When an effect runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Mode {
    /// Before its fence, speculatively.
    #[default]
    #[n(0)]
    Eager,
    /// After its fence has committed, through the outbox.
    #[n(1)]
    Deferred,
}

/// What is known of an effect's call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Outcome {
    /// Nothing yet: it may have run.
    #[default]
    #[n(0)]
    Unknown,
    /// It ran.
    #[n(1)]
    Done,
    /// It did not run.
    #[n(2)]
    NotRun,
}

/// The state of an effect. Committed, doomed and void are disjoint (I6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum EffectState {
    /// Registered and undecided.
    #[default]
    #[n(0)]
    Live,
    /// Decided for.
    #[n(1)]
    Committed,
    /// Decided against; never comes back.
    #[n(2)]
    Doomed,
    /// Reported as not run: it never happened.
    #[n(3)]
    Void,
}

/// One call of an inverse.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Call {
    /// The tool to call.
    #[n(0)]
    pub tool: String,
    /// Its arguments; absent where they are completed by the outcome of the forward call.
    #[n(1)]
    pub args: Option<PayloadRef>,
}

/// The logged undo of an effect.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Inverse {
    /// One call, or an ordered list of calls; empty for a manual inverse.
    #[n(0)]
    pub calls: Vec<Call>,
    /// What a person is to do and confirm.
    #[n(1)]
    pub manual: Option<String>,
    /// Moment past which it is not attempted, in milliseconds of the store's clock.
    #[n(2)]
    pub deadline_ms: Option<u64>,
    /// The same as a time from the registration, in milliseconds.
    #[n(3)]
    pub deadline_after_ms: Option<u64>,
    /// The inverse checks the expected versions itself and changes nothing if they differ.
    #[n(4)]
    pub compare_and_set: bool,
    /// Who may run it: absent, the effect's agent; `*`, anyone.
    #[n(5)]
    pub agent: Option<String>,
    /// Its own retry; absent, the policy's.
    #[n(6)]
    pub retry: Option<Retry>,
    /// The artifact that holds its code.
    #[n(7)]
    pub artifact: Option<String>,
    /// What stays behind after it ran.
    #[n(8)]
    pub limitation: Option<String>,
}

impl Inverse {
    /// An inverse of one call.
    pub fn call(tool: impl Into<String>, args: Option<PayloadRef>) -> Self {
        Inverse { calls: vec![Call { tool: tool.into(), args }], ..Inverse::default() }
    }

    /// The artifact that holds its code. A text that is no id of an artifact names none.
    ///
    /// ```
    /// use effectstore::model::{ArtifactId, Inverse};
    /// let mut inverse = Inverse::call("python", None);
    /// inverse.artifact = Some("17".into());
    /// assert_eq!(inverse.artifact_id(), Some(ArtifactId(17)));
    /// ```
    pub fn artifact_id(&self) -> Option<super::ArtifactId> {
        self.artifact.as_ref()?.parse().ok().map(super::ArtifactId)
    }
}

/// What an effect rests on besides its reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum After {
    /// An effect.
    #[n(0)]
    Effect(#[n(0)] EffectId),
    /// An earlier item of the same `register_many`, by its place.
    #[n(1)]
    Item(#[n(0)] u64),
}

/// Who an effect follows in its branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum Follows {
    /// The branch's tip at the registration (program order).
    #[default]
    #[n(0)]
    Tip,
    /// The tip as it was before a turn of parallel calls (program order, too).
    #[n(1)]
    Turn(#[cbor(n(0), with = "super::ids::gaps")] Vec<EffectId>),
    /// These, and nothing else.
    #[n(2)]
    These(#[n(0)] Vec<After>),
}

/// A tool call as the caller registers it.
///
/// ```
/// use effectstore::model::{Inverse, PayloadRef, Registration};
/// let call = Registration::new("write_config", PayloadRef::of(b"\xa1\x61x\x01"))
///     .writes("config/X")
///     .inverse(Inverse::call("write_config", Some(PayloadRef::of(b"\xa1\x61x\x00"))));
/// assert_eq!(call.writes.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Registration {
    /// The tool that is about to run.
    #[n(0)]
    pub tool: String,
    /// Its arguments.
    #[n(1)]
    pub args: PayloadRef,
    /// Its undo.
    #[n(2)]
    pub inverse: Option<Inverse>,
    /// Keys that the call reads.
    #[cbor(n(3), default)]
    pub reads: Vec<Read>,
    /// Keys that the call writes.
    #[cbor(n(4), default)]
    pub writes: Vec<Key>,
    /// What it follows.
    #[n(5)]
    pub follows: Follows,
    /// Its class, as declared.
    #[n(6)]
    pub class: Option<Class>,
    /// Its mode, as declared.
    #[n(7)]
    pub mode: Option<Mode>,
    /// The caller's name for this call: the same key registers once.
    #[cbor(n(8), with = "minicbor::bytes")]
    pub idempotency_key: Option<Vec<u8>>,
    /// Hash of what makes two calls with one key the same; absent, tool and arguments do.
    #[cbor(n(9), with = "minicbor::bytes")]
    pub fingerprint: Option<[u8; 32]>,
    /// What the call costs, in the caller's unit.
    #[n(10)]
    pub cost: Option<f64>,
    /// The approval under which an irreversible effect starts before its fence.
    #[n(11)]
    pub approval: Option<ApprovalId>,
}

impl Registration {
    /// A call of `tool` with `args`, with nothing else said.
    pub fn new(tool: impl Into<String>, args: PayloadRef) -> Self {
        Registration {
            tool: tool.into(),
            args,
            inverse: None,
            reads: Vec::new(),
            writes: Vec::new(),
            follows: Follows::Tip,
            class: None,
            mode: None,
            idempotency_key: None,
            fingerprint: None,
            cost: None,
            approval: None,
        }
    }

    /// Adds a key that the call reads, whatever version the world shows.
    #[must_use]
    pub fn reads(mut self, key: impl Into<Key>) -> Self {
        self.reads.push(Read::of(key));
        self
    }

    /// Adds a key that the call reads, in the version that the caller vouches for.
    #[must_use]
    pub fn reads_version(mut self, key: impl Into<Key>, version: u64) -> Self {
        self.reads.push(Read { key: key.into(), version: Some(version) });
        self
    }

    /// Adds a key that the call writes.
    #[must_use]
    pub fn writes(mut self, key: impl Into<Key>) -> Self {
        self.writes.push(key.into());
        self
    }

    /// Sets the undo.
    #[must_use]
    pub fn inverse(mut self, inverse: Inverse) -> Self {
        self.inverse = Some(inverse);
        self
    }

    /// Rests on these effects in place of the tip.
    #[must_use]
    pub fn after(mut self, effects: impl IntoIterator<Item = EffectId>) -> Self {
        self.follows = Follows::These(effects.into_iter().map(After::Effect).collect());
        self
    }

    /// Sets the class.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.class = Some(class);
        self
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the caller's name for this call.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// What went wrong, as type and shortened text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Problem {
    /// Type of the error, such as an exception's class name.
    #[n(0)]
    pub error_type: String,
    /// Its text, shortened.
    #[n(1)]
    pub message: String,
}

impl Problem {
    /// Longest text kept, in bytes. Error texts may hold secrets and be huge; the type tells enough.
    pub const MESSAGE_BYTES: usize = 500;

    /// A problem with its text shortened to [`Problem::MESSAGE_BYTES`].
    ///
    /// ```
    /// let problem = effectstore::model::Problem::new("OSError", &"x".repeat(9_999));
    /// assert!(problem.message.len() < 510);
    /// ```
    pub fn new(error_type: impl Into<String>, message: &str) -> Self {
        let mut end = message.len().min(Self::MESSAGE_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let mut text = message[..end].to_owned();
        if end < message.len() {
            text.push('…');
        }
        Problem { error_type: error_type.into(), message: text }
    }
}
