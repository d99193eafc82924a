//! Graphs over effect ids: what rests on what, who falls with whom, which inverse may start.
//!
//! Everything here is a pure function of the calls made: no I/O, no clock, no randomness, no
//! recursion, and no result that depends on the order of a hash map or of an edge list. Ids are the
//! sequence numbers of effects, as plain `u64`.
//!
//! - [`LiveGraph`]: the dependencies among effects that are not settled yet.
//! - [`UndoOrder`]: the order in which inverses may start.

mod adjacency;
mod components;
mod live;
mod near;
mod order;
mod pages;
mod reach;
mod sweep;
mod walk;

pub use live::LiveGraph;
pub use order::{Ready, Relation, UndoOrder};
pub use walk::Scratch;
