//! Space in the write buffers: a write that finds none flushes other files, including unlinked ones.
//!
//! Lock order: `making`, then one file at a time.

use types::Errno;

use crate::files::Files;
use crate::open::OpenFile;

impl Files {
    /// Flushes open files until a quarter of the budget is free. The caller holds no file's lock.
    ///
    /// # Errors
    /// The last error of a flush, if the budget is still exhausted. The file that could not be flushed keeps
    /// its data.
    pub(crate) fn make_space(&self) -> Result<(), Errno> {
        let _one = host::lock(&self.making);
        let budget = &self.base.writes.budget;
        let mut done = Ok(());
        for file in self.base.open.all() {
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
        match self.base.flush_locked(file, &mut data) {
            // Another mount deleted the file, so its data can be neither stored nor read any more.
            Err(Errno::ESTALE) => {
                file.drop_written(&mut data);
                data.lost = Some(Errno::ESTALE);
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
                    vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
                }
                vfs.files.write(ino, 0, &vec![n; MIB]).unwrap();
                let used = vfs.base.writes.budget.used_bytes();
                assert!(used <= LIMIT, "{used} bytes after {n} files, unlinked: {unlinked}");
                files.push((n, ino));
            }
            for &(n, ino) in &files {
                assert!(vfs.files.read(ino, 0, MIB as u32).unwrap() == vec![n; MIB]);
            }
            for (_, ino) in files {
                vfs.files.close(ino).unwrap();
            }
            assert_eq!(vfs.base.writes.budget.used_bytes(), 0);
        }
    }

    #[test]
    fn buffers_are_charged_by_their_capacity() {
        let (vfs, _) = volume_with(options());
        let files: Vec<Ino> = (0..4).map(|n| make(&vfs, &n.to_string())).collect();
        let used = || vfs.base.writes.budget.used_bytes();
        vfs.files.write(files[0], 0, &[1; 100_000]).unwrap();
        assert_eq!(used(), 131_072);
        // A buffer gets a whole block only while half of the budget is free.
        vfs.files.write(files[1], 0, &[1; 300_000]).unwrap();
        assert_eq!(used(), 431_072);
        vfs.files.close(files[0]).unwrap();
        vfs.files.close(files[1]).unwrap();
        let large = volume_with(VfsOptions { write_buffer_bytes: 64 << 20, ..options() }).0;
        let ino = make(&large, "f");
        large.files.write(ino, 0, &[1; 300_000]).unwrap();
        assert!(large.base.writes.budget.used_bytes() >= u64::from(types::BLOCK_BYTES));
        vfs.files.write(files[2], 0, &[1; 3000]).unwrap();
        assert_eq!(used(), 4096);
        vfs.files.close(files[2]).unwrap();
        large.files.close(ino).unwrap();
        assert_eq!((used(), large.base.writes.budget.used_bytes()), (0, 0));
    }

    #[test]
    fn unlinked_files_do_not_force_a_flush_of_every_write() {
        let (vfs, engine) = volume_with(options());
        for n in 0..40 {
            let name = n.to_string();
            let ino = make(&vfs, &name);
            vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
            vfs.files.write(ino, 0, &vec![1; MIB]).unwrap();
        }
        let ino = make(&vfs, "other");
        let before = engine.counts();
        for at in (0..32 * MIB).step_by(MIB / 8) {
            vfs.files.write(ino, at as u64, &vec![2; MIB / 8]).unwrap();
        }
        let commits = (engine.counts() - before).commits;
        assert!(commits < 40, "{commits} commits for 256 writes");
    }

    #[test]
    fn data_of_a_deleted_file_takes_no_space() {
        let (vfs, engine) = volume_with(options());
        let gone = make(&vfs, "gone");
        for at in 0..3 {
            vfs.files.write(gone, at * MIB as u64, &vec![1; MIB]).unwrap();
        }
        let effects = vec![Effect::DropInode { ino: gone }];
        engine.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects }]).unwrap();
        for n in 0..10 {
            let ino = make(&vfs, &n.to_string());
            vfs.files.write(ino, 0, &vec![1; MIB]).unwrap();
        }
        assert!(vfs.base.writes.budget.used_bytes() <= LIMIT);
        assert_eq!(vfs.files.flush(gone), Err(Errno::ESTALE));
    }
}
