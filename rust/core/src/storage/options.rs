//! What a caller may choose about a storage.

/// The longest key of a side table, in bytes. Longer names go by their hash.
pub const MAX_KEY_BYTES: usize = 511;

const MIB: u64 = 1 << 20;

/// Where a segment of the log ends: at the first record that makes it reach one of the two.
/// Fixed at creation, so that the position depends on the log alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLimits {
    /// Records of a sealed segment.
    pub records: u64,
    /// Bytes of records at which a segment is sealed.
    pub bytes: u64,
}

impl Default for SegmentLimits {
    fn default() -> Self {
        Self { records: 1 << 18, bytes: 64 * MIB }
    }
}

/// How a storage is opened. `map_size_bytes`, `segments` and `created_ms` count only when the
/// store is created; later opens take them from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageOptions {
    /// Create the store if it is not there.
    pub create: bool,
    /// Refuse every write.
    pub read_only: bool,
    /// Size of the memory map in bytes; `None` takes the store's, or 1 TiB for a new one. The
    /// file grows only as it is used. Given for a store that has another one, it is refused.
    pub map_size_bytes: Option<u64>,
    /// Reader slots, shared by all processes. The first process to open a store decides.
    pub max_readers: u32,
    /// Zeroes that are kept written ahead of the data, in bytes. They are the disk reserve that
    /// lets old work end on a full disk.
    pub reserve_bytes: u64,
    /// Open the store although its file system is known to be a network one.
    pub allow_network_fs: bool,
    /// Where segments end. Tests make them small; everybody else takes the default.
    pub segments: SegmentLimits,
    /// The creation time to record, in milliseconds since 1970. This module reads no clock.
    pub created_ms: u64,
}

impl StorageOptions {
    /// Size of a new store's memory map where the caller gives none, in bytes.
    pub const DEFAULT_MAP_SIZE_BYTES: u64 = 1 << 40;
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            create: true,
            read_only: false,
            map_size_bytes: None,
            max_readers: 512,
            reserve_bytes: 8 * MIB,
            allow_network_fs: false,
            segments: SegmentLimits::default(),
            created_ms: 0,
        }
    }
}
