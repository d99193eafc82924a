//! Plain data: ids, branches, effects, commands, events, refusals and answers.
//!
//! Nothing here decides and nothing here does I/O. Every type that reaches the log derives its
//! deterministic CBOR form: a map with ascending integer keys and definite lengths, in which absent
//! options take no bytes and unknown keys are skipped, so that older and newer readers meet.

mod answer;
mod argument;
mod artifact;
mod branch;
mod breaks;
mod command;
mod detail;
mod effect;
mod event;
mod governed;
mod ids;
mod key;
mod members;
mod metrics;
mod payload;
mod policy;
mod refusal;
mod rollback;

pub use answer::*;
pub use argument::*;
pub use artifact::*;
pub use branch::*;
pub use breaks::*;
pub use command::*;
pub use detail::*;
pub use effect::*;
pub use event::*;
pub use governed::*;
pub use ids::*;
pub use key::*;
pub use members::*;
pub use metrics::*;
pub use payload::*;
pub use policy::*;
pub use refusal::*;
pub use rollback::*;
