//! Files and directories: names, identities, modes, flushes, kinds of file system.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::storage::StorageError;

/// LMDB's data file.
pub(super) const DATA_FILE: &str = "data.mdb";
/// LMDB's lock file: reader table and writer lock.
pub(super) const LOCK_FILE: &str = "lock.mdb";
/// Who has the store open.
pub(super) const OWNER_FILE: &str = "owner.lock";
/// What the name of a scratch directory begins with.
pub(super) const SCRATCH_PREFIX: &str = ".effectstore-new-";
/// The page that processes share.
pub(super) const PAGE_FILE: &str = "shared.page";
/// What the name of a page begins with that is being made.
pub(super) const PAGE_SCRATCH_PREFIX: &str = ".effectstore-page-";

pub(super) const DIRECTORY_MODE: u32 = 0o700;
pub(super) const FILE_MODE: u32 = 0o600;

/// Which file a path leads to, whatever the path is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file at `path`, or `None` if there is none. Opens nothing: closing a descriptor of
    /// the lock file would drop this process's locks on it.
    pub(super) fn of(path: &Path) -> Result<Option<Self>, StorageError> {
        match fs::metadata(path) {
            Ok(found) => Ok(Some(Self::of_metadata(&found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("look up", path, &error)),
        }
    }

    /// The file that was asked for these facts.
    pub(super) fn of_metadata(found: &fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }

    /// Numbers of device and file.
    pub(super) const fn numbers(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

/// An error of the system about this path.
pub(super) fn failed(verb: &str, path: &Path, error: &io::Error) -> StorageError {
    StorageError::io(format!("{verb} {}", path.display()), error)
}

/// Makes a directory's entries durable.
pub(super) fn sync_directory(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| failed("flush", path, &e))
}

/// 16 bytes from the system's random source.
pub(super) fn random_id() -> Result<[u8; 16], StorageError> {
    let path = Path::new("/dev/urandom");
    let mut id = [0; 16];
    File::open(path)
        .and_then(|mut source| source.read_exact(&mut id))
        .map_err(|e| failed("read", path, &e))?;
    Ok(id)
}

// The numbers are the kernel's (statfs(2) and linux/magic.h).
const NETWORK_FILE_SYSTEMS: [(u32, &str); 14] = [
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFE53_4D42, "smb2"),
    (0xFF53_4D42, "cifs"),
    (0x0102_1997, "9p"),
    (0x7375_7245, "coda"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "kafs"),
    (0x00C3_6400, "ceph"),
    (0x0BD0_0BD0, "lustre"),
    (0x0116_1970, "gfs2"),
    (0x7461_636F, "ocfs2"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
];
const FUSE: u32 = 0x6573_5546;
/// overlay, btrfs, zfs, bcachefs.
const COPY_ON_WRITE: [u32; 4] = [0x794C_7630, 0x9123_683E, 0x2FC1_2FC1, 0xCA45_1A4E];

/// Whether a page that was written once can be written again on a full disk.
pub(super) fn overwrites_in_place(dir: &Path) -> Result<bool, StorageError> {
    Ok(!COPY_ON_WRITE.contains(&file_system_magic(dir)?))
}

/// The directory in which `path` lies.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        // A bare name lies in the working directory.
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Refuses network file systems: locks and memory maps are not what LMDB needs there.
pub(super) fn refuse_network_fs(dir: &Path) -> Result<(), StorageError> {
    let magic = file_system_magic(dir)?;
    let known = NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic);
    let name = match known {
        Some((_, name)) => (*name).to_owned(),
        None if magic == FUSE => match fuse_type(dir) {
            // A block device behind FUSE is a local disk.
            Some(kind) if kind == "fuseblk" => return Ok(()),
            Some(kind) => kind,
            None => "fuse".to_owned(),
        },
        None => return Ok(()),
    };
    Err(StorageError::Options {
        option: "path",
        reason: format!(
            "{} lies on {name}, where locks and maps cannot be trusted; use a local disk, or set \
             allow_network_fs to take the risk",
            dir.display()
        ),
    })
}

fn file_system_magic(dir: &Path) -> Result<u32, StorageError> {
    let path = CString::new(dir.as_os_str().as_bytes()).map_err(|_| StorageError::Options {
        option: "path",
        reason: "a path cannot hold a zero byte".to_owned(),
    })?;
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends in a zero byte and the buffer has the size that the call fills.
    if unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(failed("look up the file system of", dir, &io::Error::last_os_error()));
    }
    // SAFETY: the call succeeded, so it has filled the buffer.
    let magic = unsafe { found.assume_init() }.f_type;
    // The kernel's magic numbers have 32 bits; the field's width and sign depend on the platform.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(magic as u32)
}

/// The type that the mount table gives for the file system of `dir`.
fn fuse_type(dir: &Path) -> Option<String> {
    let device = fs::metadata(dir).ok()?.dev();
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == wanted).then(|| kind.split(' ').next())?.map(str::to_owned)
    })
}
