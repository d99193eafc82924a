//! Keys of the outside world, exact bytes.

use minicbor::{Decode, Encode};

/// A resource named by the caller, such as `config/X`. Bytes decide equality (I12): nothing is
/// normalised, cut or joined.
///
/// ```
/// use effectstore::model::Key;
/// assert_ne!(Key::from("\u{e9}"), Key::from("e\u{301}"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Default)]
#[cbor(transparent)]
pub struct Key(#[cbor(n(0), with = "minicbor::bytes")] pub Vec<u8>);

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key(text.as_bytes().to_vec())
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Key(bytes.to_vec())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// A declared read: a key, and the version that the caller vouches for, if any.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Read {
    /// The key that is read.
    #[n(0)]
    pub key: Key,
    /// The id of the writer whose value was read; 0 is "before the store"; absent, the read rests on
    /// every writer that it may have seen.
    #[n(1)]
    pub version: Option<u64>,
}

impl Read {
    /// A read of whatever the world shows.
    pub fn of(key: impl Into<Key>) -> Self {
        Read { key: key.into(), version: None }
    }
}
