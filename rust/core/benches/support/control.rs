//! What everything is compared with: U, and what a flush costs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, PutFlags};

use super::Answer;

/// Bytes of the record that U writes.
pub const RECORD_BYTES: usize = 432;

/// One 432-byte record in one durable LMDB write transaction, default flags, in an environment of
/// its own that holds nothing else.
pub struct Unit {
    env: Env,
    table: Database<'static, Bytes, Bytes>,
    next: u64,
}

impl Unit {
    pub fn open(dir: &Path) -> Answer<Self> {
        std::fs::create_dir_all(dir)?;
        // SAFETY: the directory is this run's own and is opened once.
        let env = unsafe { EnvOpenOptions::new().map_size(1 << 30).max_dbs(1).open(dir)? };
        let txn = env.write_txn()?;
        let made = env.create_databases_and_commit(txn, |opener, txn| {
            let table: Database<'_, Bytes, Bytes> = opener.create_database(txn, Some("records"))?;
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(table))
        })?;
        let table = made.commit().ok_or("the table was not made")?;
        Ok(Unit { env, table, next: 0 })
    }

    pub fn once(&mut self) -> Answer<Duration> {
        let record = [0x5a; RECORD_BYTES];
        let began = Instant::now();
        let mut txn = self.env.write_txn()?;
        self.table.put_with_flags(&mut txn, PutFlags::APPEND, &self.next.to_be_bytes(), &record)?;
        txn.commit()?;
        let took = began.elapsed();
        self.next += 1;
        Ok(took)
    }
}

/// The flush probe: 4 KiB of a file overwritten in place, then `fdatasync`.
pub struct Flush(File);

impl Flush {
    pub fn open(path: &Path) -> Answer<Self> {
        let file = File::options().create(true).truncate(true).write(true).open(path)?;
        file.write_all_at(&[1; 4096], 0)?;
        file.sync_all()?;
        Ok(Flush(file))
    }

    pub fn once(&mut self) -> Answer<Duration> {
        let began = Instant::now();
        self.0.write_all_at(&[2; 4096], 0)?;
        self.0.sync_data()?;
        Ok(began.elapsed())
    }
}
