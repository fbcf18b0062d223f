//! How the bytes of a block are had: from memory, the disk or the store, in this order, whole or page by page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::ChunkError;
use crate::backend::Refusal;
use crate::block::{BlockFault, PAGE_BYTES, Trailer, object_key, trailer_len};
use crate::layout::{Damage, Layout, decode, object_len_bound};
use crate::packed::{BlockName, Header, header_len};
use crate::store::{Inner, Pages, store_error};

impl Inner {
    /// Fills `out` from byte `from` on of a block.
    ///
    /// The whole block is fetched for a read of half of it or more, from its beginning, or from where the last one ended;
    /// else only the pages asked for, so that a random read of 4 KiB does not cost 4 MiB.
    pub(crate) fn read_block(&self, name: BlockName, from: u32, out: &mut [u8]) -> Result<(), ChunkError> {
        let (key, len) = ((name.id, name.block), name.len);
        let end = from + out.len() as u32;
        let copy = |whole: &Bytes, out: &mut [u8]| out.copy_from_slice(&whole[from as usize..end as usize]);
        if let Some(whole) = self.blocks.get(&key) {
            copy(&whole, out);
            return Ok(());
        }
        let goes_on =
            || self.trailers.get(&key).is_some_and(|pages| pages.end.load(Relaxed) == u64::from(from));
        if from == 0 || len <= 2 * PAGE_BYTES || out.len() as u64 * 2 >= u64::from(len) || goes_on() {
            match self.whole_block(name) {
                Ok(whole) => {
                    copy(&whole, out);
                    return Ok(());
                }
                // Something is damaged; whether it is what was asked for, the way by pages tells.
                Err(ChunkError::Corrupt { .. } | ChunkError::Short { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match self.read_pages(name, from, out) {
            Err(ChunkError::Corrupt { .. } | ChunkError::Short { .. }) if self.forget_cached(name) => {
                self.read_pages(name, from, out)
            }
            outcome => outcome,
        }
    }

    fn read_pages(&self, name: BlockName, from: u32, out: &mut [u8]) -> Result<(), ChunkError> {
        let end = from + out.len() as u32;
        let pages = self.trailers.get_or_load((name.id, name.block), || {
            let layout = self.fetch_layout(name)?;
            Ok::<_, ChunkError>((Arc::new(Pages { layout, end: AtomicU64::new(0) }), 1))
        })?;
        let first = from / PAGE_BYTES;
        let (offset, count) = pages.layout.range(first, end.div_ceil(PAGE_BYTES));
        let stored = self.fetch(name, offset, count)?;
        let unpacked = pages.layout.unpack(&self.codec, first, stored);
        let data = unpacked.map_err(|fault| corrupt(name, fault))?;
        pages.end.store(end.into(), Relaxed);
        let skip = (from - first * PAGE_BYTES) as usize;
        let wanted = data.get(skip..skip + out.len()).ok_or_else(|| corrupt(name, BlockFault::Header))?;
        out.copy_from_slice(wanted);
        Ok(())
    }

    /// Forgets what the disk has of a block, as it is damaged; returns whether there was anything, so that it is worth
    /// while to ask the store.
    fn forget_cached(&self, name: BlockName) -> bool {
        let was_there = self.disk.as_ref().is_some_and(|disk| disk.remove(name));
        if was_there {
            tracing::warn!(block = object_key(name.id, name.block, name.len), "a cached block was damaged");
            // How it is stored was perhaps read from there too.
            self.trailers.remove(&(name.id, name.block));
        }
        was_there
    }

    /// Whether the store, and not some cache, has the whole block.
    pub(crate) fn verify(&self, name: BlockName) -> Result<(), ChunkError> {
        let object = self.fetch_whole(name)?;
        decode(&object, name, &self.codec).map(drop).map_err(|damage| damaged(name, object.len(), damage))
    }

    /// The block from the cache, or fetched into it; fetched once however many ask at the same time.
    pub(crate) fn whole_block(&self, name: BlockName) -> Result<Bytes, ChunkError> {
        self.blocks.get_or_load((name.id, name.block), || self.load_block(name))
    }

    /// Fetches a block whose fetch was planned, unless somebody has read it since.
    pub(crate) fn load_planned_block(&self, name: BlockName) -> Result<(), ChunkError> {
        self.blocks.load_planned((name.id, name.block), || self.load_block(name))
    }

    /// The block from the disk or the store, and its weight in the cache.
    fn load_block(&self, name: BlockName) -> Result<(Bytes, u64), ChunkError> {
        let weight = u64::from(name.len);
        let cached = self.disk.as_ref().and_then(|disk| disk.get_whole(name, object_len_bound(name.len)));
        if let Some(object) = cached {
            match decode(&object, name, &self.codec) {
                Ok(data) => return Ok((data, weight)),
                Err(_) => drop(self.forget_cached(name)),
            }
        }
        let object = self.fetch_whole(name)?;
        let data =
            decode(&object, name, &self.codec).map_err(|damage| damaged(name, object.len(), damage))?;
        if let Some(disk) = &self.disk {
            disk.offer(name, object);
        }
        Ok((data, weight))
    }

    /// How the block is stored. First it is looked for where the volume's settings say; those may have changed since the
    /// block was stored.
    fn fetch_layout(&self, name: BlockName) -> Result<Layout, ChunkError> {
        let plain = || {
            let bytes = self.fetch(name, name.len, trailer_len(name.len))?;
            let trailer = Trailer::parse(&bytes, name.len).map_err(|fault| corrupt(name, fault))?;
            Ok(Layout::Plain(name.len, trailer))
        };
        let packed = || {
            let bytes = self.fetch(name, 0, header_len(name.len))?;
            let header = Header::parse(&bytes, name).map_err(|fault| corrupt(name, fault))?;
            Ok(Layout::Packed(header))
        };
        let is_damage =
            |error: &ChunkError| matches!(error, ChunkError::Corrupt { .. } | ChunkError::Short { .. });
        if self.codec.encryption.is_some() {
            packed()
        } else if self.codec.is_plain() {
            plain().or_else(|error| if is_damage(&error) { packed().map_err(|_| error) } else { Err(error) })
        } else {
            packed().or_else(|error| if is_damage(&error) { plain().map_err(|_| error) } else { Err(error) })
        }
    }

    fn fetch_whole(&self, name: BlockName) -> Result<Bytes, ChunkError> {
        let key = object_key(name.id, name.block, name.len);
        self.counts.gets.fetch_add(1, Relaxed);
        let object = self.backend.get_whole(&key, object_len_bound(name.len));
        object.map_err(|refusal| self.refused(name, key, refusal))
    }

    /// Exactly `count` bytes of an object from `offset` on.
    fn fetch(&self, name: BlockName, offset: u32, count: usize) -> Result<Bytes, ChunkError> {
        if let Some(bytes) = self.disk.as_ref().and_then(|disk| disk.get(name, offset.into(), count)) {
            return Ok(bytes);
        }
        let key = object_key(name.id, name.block, name.len);
        self.counts.gets.fetch_add(1, Relaxed);
        match self.backend.get(&key, offset.into(), count) {
            Ok(bytes) if bytes.len() == count => Ok(bytes),
            Ok(bytes) => Err(damaged(name, bytes.len(), Damage::Short(count))),
            Err(refusal) => Err(self.refused(name, key, refusal)),
        }
    }

    fn refused(&self, name: BlockName, key: String, refusal: Refusal) -> ChunkError {
        match refusal {
            Refusal::NotFound => ChunkError::Missing { slice: name.id, block: name.block, key },
            refusal => store_error("read", &key, refusal),
        }
    }
}

fn corrupt(name: BlockName, fault: BlockFault) -> ChunkError {
    let key = object_key(name.id, name.block, name.len);
    ChunkError::Corrupt { slice: name.id, block: name.block, key, fault }
}

/// The error for an object of which `found` bytes came.
fn damaged(name: BlockName, found: usize, damage: Damage) -> ChunkError {
    match damage {
        Damage::Fault(fault) => corrupt(name, fault),
        Damage::Short(wanted) => ChunkError::Short {
            slice: name.id,
            block: name.block,
            key: object_key(name.id, name.block, name.len),
            found_bytes: found as u64,
            wanted_bytes: wanted as u64,
        },
    }
}
