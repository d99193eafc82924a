//! Records as bytes.
//!
//! A record is a CBOR sequence (RFC 8742) of the header (a map), one item per payload, and the
//! chain hash (32 bytes). The chain hash is blake3 over the previous record's chain hash, the
//! record's number (eight bytes, big-endian) and the header's bytes; payloads hang on the chain by
//! the hashes that the header holds, so that one can be redacted without breaking it.

mod record;
mod refs;

pub use record::{
    DecodeError, Frame, Header, HeaderRef, Newer, PayloadItem, Record, chain, encode,
};
pub use refs::payload_refs;

/// Payloads above this many bytes lie in chunks in the blob table.
pub const INLINE_PAYLOAD_BYTES: usize = 64 << 10;

/// Bytes of one chunk in the blob table.
pub const CHUNK_BYTES: usize = 64 << 10;
