//! The Python extension module of effectstore: conversions and one error map.
