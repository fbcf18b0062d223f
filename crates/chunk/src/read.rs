//! Reads the bytes of a block, as a whole or by pages: from the cache in memory, from the cache on disk or
//! from the store, in this order.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::ChunkError;
use crate::backend::StoreError;
use crate::block::{BlockName, Trailer, trailer_len};
use crate::error::{no_memory, store_error};
use crate::format::{BlockFault, PAGE_BYTES};
use crate::layout::{Damage, Layout, decode, object_len_bound};
use crate::packed::{Header, header_len};
use crate::pages::{is_dense, page_key, pages_to_cache};
use crate::store::{Inner, Pages};

impl Inner {
    /// Fills `out` with the bytes of a block from `from` on.
    ///
    /// The whole block is fetched if it has at most two pages, or if the read covers at least half of it,
    /// starts at its beginning, or starts at the end of the previous read. Otherwise only the needed pages
    /// are fetched, so that a random read of 4 KiB does not cost 4 MiB.
    ///
    /// If several rows share the slice, each with a small part of it, `shared` is the number of bytes that
    /// the whole request reads of the slice. The position in such a block does not tell what is read next, so
    /// the whole block is fetched only if the request reads at least an eighth of it, or if the block has at
    /// most two pages. Pages are cached, because their other bytes belong to nearby ranges of the file.
    pub(crate) fn read_block(
        &self,
        name: BlockName,
        from: u32,
        out: &mut [u8],
        shared: Option<u64>,
    ) -> Result<(), ChunkError> {
        let (key, len) = ((name.id, name.block), name.len);
        let end = from + out.len() as u32;
        let copy = |whole: &Bytes, out: &mut [u8]| out.copy_from_slice(&whole[from as usize..end as usize]);
        if let Some(whole) = self.blocks.get(&key) {
            self.counts.hits.fetch_add(1, Relaxed);
            copy(&whole, out);
            return Ok(());
        }
        if let Some(pages) = pages_to_cache(name, from, out.len() as u32, shared) {
            return self.read_cached_pages(name, pages, from, out);
        }
        self.counts.misses.fetch_add(1, Relaxed);
        let goes_on =
            || self.trailers.get(&key).is_some_and(|pages| pages.end.load(Relaxed) == u64::from(from));
        let is_read_through = if shared.is_none() { from == 0 || goes_on() } else { is_dense(len, shared) };
        if is_read_through || len <= 2 * PAGE_BYTES || out.len() as u64 * 2 >= u64::from(len) {
            match self.whole_block(name) {
                Ok(whole) => {
                    copy(&whole, out);
                    return Ok(());
                }
                // Part of the block is damaged. Reading by pages shows whether it is the requested part.
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
        let first = from / PAGE_BYTES;
        let (pages, data) = self.fetch_pages(name, first..end.div_ceil(PAGE_BYTES))?;
        pages.end.store(end.into(), Relaxed);
        let skip = (from - first * PAGE_BYTES) as usize;
        let wanted = data.get(skip..skip + out.len()).ok_or_else(|| corrupt(name, BlockFault::Header))?;
        out.copy_from_slice(wanted);
        Ok(())
    }

    /// Fills `out` with the bytes of a block from `from` on, which are in `pages`.
    fn read_cached_pages(
        &self,
        name: BlockName,
        pages: Range<u32>,
        from: u32,
        out: &mut [u8],
    ) -> Result<(), ChunkError> {
        let is_cached = |page| self.blocks.contains(&page_key(name, page));
        if pages.len() > 1 && !pages.clone().any(is_cached) {
            self.counts.misses.fetch_add(1, Relaxed);
            let generation = self.blocks.generation();
            let data = self.verified_pages(name, pages.clone())?;
            for (page, bytes) in pages.clone().zip(data.chunks(PAGE_BYTES as usize)) {
                // Cache a copy, because a part would keep all of `data` in memory.
                let (key, charge) = (page_key(name, page), bytes.len() as u64);
                self.blocks.insert_loaded(key, Bytes::copy_from_slice(bytes), charge, generation);
            }
            let skip = (from - pages.start * PAGE_BYTES) as usize;
            let wanted = data.get(skip..skip + out.len()).ok_or_else(|| corrupt(name, BlockFault::Header))?;
            out.copy_from_slice(wanted);
            return Ok(());
        }
        let (mut at, mut rest) = (from, out);
        for page in pages {
            let key = page_key(name, page);
            let cached = self.blocks.get(&key);
            let count = if cached.is_some() { &self.counts.hits } else { &self.counts.misses };
            count.fetch_add(1, Relaxed);
            let data = match cached {
                Some(data) => data,
                None => self.blocks.get_or_load(key, || self.load_page(name, page))?,
            };
            let skip = (at - page * PAGE_BYTES) as usize;
            let (part, tail) = rest.split_at_mut(rest.len().min((PAGE_BYTES as usize) - skip));
            let wanted =
                data.get(skip..skip + part.len()).ok_or_else(|| corrupt(name, BlockFault::Header))?;
            part.copy_from_slice(wanted);
            at += part.len() as u32;
            rest = tail;
        }
        Ok(())
    }

    /// Fetches a planned page, unless it was read since it was planned.
    pub(crate) fn load_planned_page(&self, name: BlockName, page: u32) -> Result<(), ChunkError> {
        self.blocks.load_planned(page_key(name, page), || self.load_page(name, page))
    }

    /// Fetches a page from the cache on disk or from the store. Returns it with its charge in the cache.
    fn load_page(&self, name: BlockName, page: u32) -> Result<(Bytes, u64), ChunkError> {
        let data = self.verified_pages(name, page..page + 1)?;
        let charge = data.len() as u64;
        Ok((data, charge))
    }

    fn verified_pages(&self, name: BlockName, pages: Range<u32>) -> Result<Bytes, ChunkError> {
        match self.fetch_pages(name, pages.clone()) {
            Err(ChunkError::Corrupt { .. } | ChunkError::Short { .. }) if self.forget_cached(name) => {
                self.fetch_pages(name, pages)
            }
            fetched => fetched,
        }
        .map(|(_, data)| data)
    }

    /// Fetches pages from the cache on disk or from the store, and verifies them.
    fn fetch_pages(&self, name: BlockName, range: Range<u32>) -> Result<(Arc<Pages>, Bytes), ChunkError> {
        let pages = self.trailers.get_or_load((name.id, name.block), || {
            let layout = self.fetch_layout(name)?;
            Ok::<_, ChunkError>((Arc::new(Pages { layout, end: AtomicU64::new(0) }), 1))
        })?;
        let (offset, count) = pages.layout.range(range.start, range.end);
        let stored = self.fetch(name, offset, count)?;
        let unpacked = pages.layout.unpack(&self.codec, range.start, stored);
        let data = unpacked.map_err(|fault| corrupt(name, fault))?;
        Ok((pages, data))
    }

    /// Removes a block from the cache on disk, because it is damaged. Returns whether it was cached; if so,
    /// the store may have it intact.
    fn forget_cached(&self, name: BlockName) -> bool {
        let was_there = self.disk.as_ref().is_some_and(|disk| disk.remove(name));
        if was_there {
            tracing::warn!(block = name.key(), "a cached block was damaged");
            // The layout may have been read from the same file.
            self.trailers.remove(&(name.id, name.block));
        }
        was_there
    }

    /// Verifies that the store, and not only a cache, has the whole block intact.
    pub(crate) fn verify(&self, name: BlockName) -> Result<(), ChunkError> {
        let object = self.fetch_whole(name)?;
        decode(&object, name, &self.codec).map(drop).map_err(|damage| damaged(name, object.len(), damage))
    }

    /// Returns the block from the cache, or fetches it into the cache; concurrent callers share one fetch.
    pub(crate) fn whole_block(&self, name: BlockName) -> Result<Bytes, ChunkError> {
        self.blocks.get_or_load((name.id, name.block), || self.load_block(name))
    }

    /// Fetches a planned block, unless it was read since it was planned.
    pub(crate) fn load_planned_block(&self, name: BlockName) -> Result<(), ChunkError> {
        self.blocks.load_planned((name.id, name.block), || self.load_block(name))
    }

    /// Fetches a block from the cache on disk or from the store. Returns it with its charge in the cache.
    fn load_block(&self, name: BlockName) -> Result<(Bytes, u64), ChunkError> {
        let charge = u64::from(name.len);
        let cached = self.disk.as_ref().and_then(|disk| disk.get_whole(name, object_len_bound(name.len)));
        if let Some(object) = cached {
            match decode(&object, name, &self.codec) {
                Ok(data) => return Ok((data, charge)),
                Err(Damage::Fault(BlockFault::NoMemory)) => return Err(no_memory(&name.key())),
                Err(_) => drop(self.forget_cached(name)),
            }
        }
        let object = self.fetch_whole(name)?;
        let data =
            decode(&object, name, &self.codec).map_err(|damage| damaged(name, object.len(), damage))?;
        if let Some(disk) = &self.disk {
            disk.offer(name, object);
        }
        Ok((data, charge))
    }

    /// The layout of the stored block. The format of the volume's current settings is tried first; the
    /// settings may have changed since the block was stored.
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
        let key = name.key();
        self.counts.gets.fetch_add(1, Relaxed);
        let object = self.backend.get_whole(&key, object_len_bound(name.len));
        object.map_err(|error| self.read_error(name, key, error))
    }

    /// Exactly `count` bytes of an object from `offset` on.
    fn fetch(&self, name: BlockName, offset: u32, count: usize) -> Result<Bytes, ChunkError> {
        if let Some(bytes) = self.disk.as_ref().and_then(|disk| disk.get(name, offset.into(), count)) {
            return Ok(bytes);
        }
        let key = name.key();
        self.counts.gets.fetch_add(1, Relaxed);
        match self.backend.get(&key, offset.into(), count) {
            Ok(bytes) if bytes.len() == count => Ok(bytes),
            Ok(bytes) => Err(damaged(name, bytes.len(), Damage::Short(count))),
            Err(error) => Err(self.read_error(name, key, error)),
        }
    }

    fn read_error(&self, name: BlockName, key: String, error: StoreError) -> ChunkError {
        match error {
            StoreError::NotFound => ChunkError::Missing { slice: name.id, block: name.block, key },
            error => store_error("read", &key, error),
        }
    }
}

fn corrupt(name: BlockName, fault: BlockFault) -> ChunkError {
    let (slice, block, key) = (name.id, name.block, name.key());
    match fault {
        BlockFault::NoMemory => no_memory(&key),
        fault => ChunkError::Corrupt { slice, block, key, fault },
    }
}

/// The error for a damaged object of which `found` bytes were read.
fn damaged(name: BlockName, found: usize, damage: Damage) -> ChunkError {
    match damage {
        Damage::Fault(fault) => corrupt(name, fault),
        Damage::Short(wanted) => ChunkError::Short {
            slice: name.id,
            block: name.block,
            key: name.key(),
            found_bytes: found as u64,
            wanted_bytes: wanted as u64,
        },
    }
}

#[cfg(test)]
mod tests {
    use types::{Errno, SliceId};

    use super::*;

    #[test]
    fn lack_of_memory_is_not_damage() {
        let name = BlockName { id: SliceId(1), block: 0, len: 9 };
        for error in
            [corrupt(name, BlockFault::NoMemory), damaged(name, 9, Damage::Fault(BlockFault::NoMemory))]
        {
            assert!(matches!(error, ChunkError::Store { .. }), "{error}");
            assert_eq!(error.errno(), Errno::ENOMEM);
        }
    }
}
