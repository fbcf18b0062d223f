//! Space in the write buffers: a write that finds none flushes other files, also unlinked ones.
//!
//! Holds the lock of the thread that makes room. Depends on the [`MemoryBudget`](chunk::MemoryBudget) of [`WriteContext`],
//! the open files and [`Flusher`].
//!
//! Lock order: `making`, then one file at a time.

use std::sync::{Arc, Mutex};

use chunk::WriteContext;
use types::Errno;

use crate::flush::Flusher;
use crate::open::{OpenFile, OpenTable};

#[derive(Debug)]
pub(crate) struct Space {
    writes: Arc<WriteContext>,
    open: Arc<OpenTable>,
    flusher: Arc<Flusher>,
    /// Held while room is made in the write buffers; locked before any file.
    making: Mutex<()>,
}

impl Space {
    pub(crate) fn new(writes: &Arc<WriteContext>, open: &Arc<OpenTable>, flusher: &Arc<Flusher>) -> Self {
        Space {
            writes: Arc::clone(writes),
            open: Arc::clone(open),
            flusher: Arc::clone(flusher),
            making: Mutex::default(),
        }
    }

    /// Flushes open files until a quarter of the budget is free. The caller holds no file's lock.
    ///
    /// # Errors
    /// The last error of a flush, if the budget is still exhausted. The file that could not be flushed keeps
    /// its data.
    pub(crate) fn make_space(&self) -> Result<(), Errno> {
        let _one = host::lock(&self.making);
        let budget = &self.writes.budget;
        let mut done = Ok(());
        for file in self.open.all() {
            if budget.used_bytes() <= budget.limit_bytes() / 4 * 3 {
                return Ok(());
            }
            if file.dirty_end() > 0
                && let Err(errno) = self.flush_for_space(&file)
            {
                done = Err(errno);
            }
        }
        if budget.used_bytes() < budget.limit_bytes() { Ok(()) } else { done }
    }

    fn flush_for_space(&self, file: &OpenFile) -> Result<(), Errno> {
        let mut data = file.lock();
        match self.flusher.flush_locked(file, &mut data) {
            // Another mount deleted the file, so its data can be neither stored nor read any more.
            Err(Errno::ESTALE) => {
                data.in_doubt = None;
                data.buffer.truncate(0);
                data.hold = None;
                data.lost = Some(Errno::ESTALE);
                file.set_clean();
                Ok(())
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use meta::{Effect, Engine, Txn};
    use ops::AtimeMode;
    use types::{Ino, OpId};

    use super::*;
    use crate::VfsOptions;
    use crate::fixture::{make, root, volume_with};

    const MIB: usize = 1 << 20;
    const LIMIT: u64 = 8 << 20;

    fn options() -> VfsOptions {
        VfsOptions { write_buffer_bytes: LIMIT, atime: AtimeMode::Never, ..VfsOptions::default() }
    }

    #[test]
    fn open_files_share_the_budget_and_release_it() {
        for unlinked in [false, true] {
            let (vfs, _) = volume_with(options());
            let mut files = Vec::new();
            for n in 0..40_u8 {
                let name = n.to_string();
                let ino = make(&vfs, &name);
                if unlinked {
                    vfs.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
                }
                vfs.write(ino, 0, &vec![n; MIB]).unwrap();
                let used = vfs.parts.writes.budget.used_bytes();
                assert!(used <= LIMIT, "{used} bytes after {n} files, unlinked: {unlinked}");
                files.push((n, ino));
            }
            for &(n, ino) in &files {
                assert!(vfs.read(ino, 0, MIB as u32).unwrap() == vec![n; MIB]);
            }
            for (_, ino) in files {
                vfs.close(ino).unwrap();
            }
            assert_eq!(vfs.parts.writes.budget.used_bytes(), 0);
        }
    }

    #[test]
    fn buffers_are_charged_by_their_capacity() {
        let (vfs, _) = volume_with(options());
        let files: Vec<Ino> = (0..4).map(|n| make(&vfs, &n.to_string())).collect();
        let used = || vfs.parts.writes.budget.used_bytes();
        vfs.write(files[0], 0, &[1; 100_000]).unwrap();
        assert_eq!(used(), 131_072);
        // A buffer gets a whole block only while half of the budget is free.
        vfs.write(files[1], 0, &[1; 300_000]).unwrap();
        assert_eq!(used(), 431_072);
        vfs.close(files[0]).unwrap();
        vfs.close(files[1]).unwrap();
        let large = volume_with(VfsOptions { write_buffer_bytes: 64 << 20, ..options() }).0;
        let ino = make(&large, "f");
        large.write(ino, 0, &[1; 300_000]).unwrap();
        assert!(large.parts.writes.budget.used_bytes() >= u64::from(types::BLOCK_BYTES));
        vfs.write(files[2], 0, &[1; 3000]).unwrap();
        assert_eq!(used(), 4096);
        vfs.close(files[2]).unwrap();
        large.close(ino).unwrap();
        assert_eq!((used(), large.parts.writes.budget.used_bytes()), (0, 0));
    }

    #[test]
    fn unlinked_files_do_not_force_a_flush_of_every_write() {
        let (vfs, engine) = volume_with(options());
        for n in 0..40 {
            let name = n.to_string();
            let ino = make(&vfs, &name);
            vfs.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
            vfs.write(ino, 0, &vec![1; MIB]).unwrap();
        }
        let ino = make(&vfs, "other");
        let before = engine.counts();
        for at in (0..32 * MIB).step_by(MIB / 8) {
            vfs.write(ino, at as u64, &vec![2; MIB / 8]).unwrap();
        }
        let commits = (engine.counts() - before).commits;
        assert!(commits < 40, "{commits} commits for 256 writes");
    }

    #[test]
    fn data_of_a_deleted_file_takes_no_space() {
        let (vfs, engine) = volume_with(options());
        let gone = make(&vfs, "gone");
        for at in 0..3 {
            vfs.write(gone, at * MIB as u64, &vec![1; MIB]).unwrap();
        }
        let effects = vec![Effect::DropInode { ino: gone }];
        engine.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects }]).unwrap();
        for n in 0..10 {
            let ino = make(&vfs, &n.to_string());
            vfs.write(ino, 0, &vec![1; MIB]).unwrap();
        }
        assert!(vfs.parts.writes.budget.used_bytes() <= LIMIT);
        assert_eq!(vfs.flush(gone), Err(Errno::ESTALE));
    }
}
