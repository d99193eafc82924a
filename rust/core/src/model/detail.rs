//! What single events tell in detail.

use minicbor::{Decode, Encode};

use super::{
    BranchId, Class, EffectId, Inverse, MemberSet, Mode, Observation, Outcome, ReadRule,
    Registration, RollbackId, Token, Trigger,
};

/// A registered effect.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Registered {
    /// The branch that registered it.
    #[n(0)]
    pub branch: BranchId,
    /// The token that it showed.
    #[n(1)]
    pub token: Token,
    /// The call as registered.
    #[n(2)]
    pub call: Registration,
    /// The live effects that it rests on directly.
    #[cbor(n(3), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub rests_on: Vec<EffectId>,
    /// What it follows in program order, whatever became of those (a governed rollback asks).
    #[cbor(n(4), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub program: Vec<EffectId>,
    /// Its class.
    #[n(5)]
    pub class: Class,
    /// Its mode.
    #[n(6)]
    pub mode: Mode,
    /// What the branch had observed since its last registration.
    #[cbor(n(7), default, skip_if = "Vec::is_empty")]
    pub observed: Vec<Observation>,
    /// Moment past which the inverse is not attempted, in milliseconds of the store's clock.
    #[n(8)]
    pub deadline_ms: Option<u64>,
}

/// A member of a finished rollback that evidence brings back into memory.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Recalled {
    /// The effect.
    #[n(0)]
    pub effect: EffectId,
    /// Its registration record's event.
    #[n(1)]
    pub registered: Registered,
    /// Its inverse as last known.
    #[n(2)]
    pub inverse: Option<Inverse>,
    /// What was known of its call.
    #[n(3)]
    pub outcome: Outcome,
    /// The generation of its inverse.
    #[n(4)]
    pub generation: u32,
    /// The rollback that held it; absent for a void effect.
    #[n(5)]
    pub rollback: Option<RollbackId>,
    /// The record that completed its inverse; 0 if none did.
    #[n(6)]
    pub completed_at: u64,
    /// An earlier report of it came after the decision against it.
    #[n(7)]
    pub late: bool,
    /// The token of its outcome.
    #[n(8)]
    pub token: Token,
    /// The record that holds its inverse as last known.
    #[n(9)]
    pub inverse_record: u64,
    /// The newest committed writer of each of its keys that came after it.
    #[cbor(n(10), default, skip_if = "Vec::is_empty")]
    pub later: Vec<Newer>,
    /// Void effects that it rested on, directly or through other void ones.
    #[cbor(n(11), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub voids: Vec<EffectId>,
    /// Effects in memory that came to rest on it.
    #[cbor(n(12), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub readers: Vec<EffectId>,
    /// It is committed, and a governed rollback undoes it.
    #[cbor(n(13), default, skip_if = "std::ops::Not::not")]
    pub governed: bool,
    /// Its place in the order of writes, where that is not its id: the number of its first delivery.
    #[n(14)]
    pub position: Option<u64>,
}

/// A committed writer of a key that came after a recalled one.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Newer {
    /// The key.
    #[n(0)]
    pub key: super::Key,
    /// The writer.
    #[n(1)]
    pub effect: EffectId,
    /// Its place in the order of writes.
    #[n(2)]
    pub position: u64,
}

/// A branch that a doom stopped.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Stopped {
    /// The branch.
    #[n(0)]
    pub branch: BranchId,
    /// It was aborted by name and never resumes.
    #[n(1)]
    pub closed: bool,
    /// Live writers that an observation of a doomed one stood for: the reader may have seen them.
    #[cbor(n(2), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub observed: Vec<EffectId>,
    /// Live effects that a doomed one, handed on by the parent, stood for.
    #[cbor(n(3), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub base: Vec<EffectId>,
}

/// What a new child starts with: its parent's tip, observations and refused observations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Inherited {
    /// The parent's tip, which stands for its live eager effects, and its live deferred ones.
    #[cbor(n(0), with = "super::ids::gaps")]
    pub base: Vec<EffectId>,
    /// Live writers that its observations rest on.
    #[cbor(n(1), with = "super::ids::gaps")]
    pub observed: Vec<EffectId>,
    /// Those of them whose version was named.
    #[cbor(n(2), with = "super::ids::gaps")]
    pub named: Vec<EffectId>,
    /// Void effects whose version it may have seen.
    #[cbor(n(3), with = "super::ids::gaps")]
    pub voids: Vec<EffectId>,
    /// Reads that could not be admitted.
    #[n(4)]
    pub held: Vec<HeldRead>,
    /// Keys for whose earlier writers an observed one stands.
    #[cbor(n(5), default, skip_if = "Vec::is_empty")]
    pub stands: Vec<Stand>,
}

/// An observed writer that stands for the earlier writers of a key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Stand {
    /// The observed writer.
    #[n(0)]
    pub effect: EffectId,
    /// The key that was read.
    #[n(1)]
    pub key: super::Key,
}

/// A read that could not be admitted.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct HeldRead {
    /// The key.
    #[n(0)]
    pub key: super::Key,
    /// The writers that it may have seen.
    #[cbor(n(1), with = "super::ids::gaps")]
    pub writers: Vec<EffectId>,
    /// The rule that kept it out.
    #[n(2)]
    pub rule: ReadRule,
    /// What void ones of the writers rested on.
    #[cbor(n(3), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub under: Vec<EffectId>,
}

/// One decision against effects, and the rollback that undoes them.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Doom {
    /// All effects doomed: the named ones and what rested on them.
    #[n(0)]
    pub members: MemberSet,
    /// Those that were named.
    #[n(1)]
    pub direct: MemberSet,
    /// Branches that this stops.
    #[cbor(n(2), default, skip_if = "Vec::is_empty")]
    pub stopped: Vec<Stopped>,
    /// Who decided.
    #[n(3)]
    pub by: Option<String>,
    /// Why.
    #[n(4)]
    pub reason: String,
    /// What caused it.
    #[n(5)]
    pub trigger: Trigger,
    /// Whether any member may have run, so that there is something to undo.
    #[n(6)]
    pub rollback: bool,
    /// The governed rollback whose approval this is a part of; its members join that one's.
    #[n(7)]
    pub within: Option<RollbackId>,
}
