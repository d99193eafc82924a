//! A naive, set-based model of the store, and a player that asks model and stores the same.
//!
//! `CHOICES.md` of the Python model names the readings that both models share (`C12`).

pub mod branches;
pub mod dice;
pub mod effects;
pub mod fence;
pub mod peer;
pub mod play;
pub mod rollback;
pub mod world;
