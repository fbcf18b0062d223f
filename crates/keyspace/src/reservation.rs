//! Reservations: parts of the space below a limit that are set aside for single writers. As long as the limit
//! is far away, a writer need not read what others add.
//!
//! A shard may have a reservation: up to it, the shard grows without a read of the other shards. A writer
//! that exceeds its reservation reads all shards, counts each as if its reservation were used up, and takes a
//! part of the space that is then left as a new reservation. Therefore all shards together stay within the
//! limit, even if every reservation is used up. If too little space is left, the writer withdraws all
//! reservations. If too little is left even then, it reserves nothing, and requires that no shard has
//! changed.
//!
//! While any shard has a reservation, shard 0 has one too, as a mark. Every writer that takes a reservation
//! or withdraws reservations writes shard 0. So while shard 0 is unchanged and has the mark, no shard grows
//! beyond what was counted for it. Without the mark, shards grow freely, and a writer that depends on their
//! sum requires that the whole range is unchanged. A writer that adds without a limit requires that there is
//! no mark. If there is one, the writer withdraws all reservations as soon as it exceeds its own.
//!
//! This is escrow (O'Neil: The Escrow Transactional Method, 1986), on stores that have preconditions on
//! ranges. On other stores (TiKV) nothing is reserved: below a limit, every writer reads all shards and
//! requires that they are unchanged.

use crate::source::{Assume, ReadStop};
use crate::state::State;
use crate::value::{Amount, Reservation, UsageShard, decode_shard, encode_shard};
use crate::writes::{Writes, put};

/// A reservation is this fraction of the space that is left.
const PART: i64 = 64;
/// The minimum reservation. If there are no reservations, the first must be twice as large, so that
/// reservations are not taken again right after they were withdrawn.
const MIN_PART: Amount = Amount { inodes: 32, blocks: 1024 };

/// The reservation of shard 0, which only marks that there are reservations. It permits no growth, and limits
/// no shard.
const MARK: Reservation = Reservation { upto: Amount::MIN, within: Amount::MAX };

/// All shards except that of the writer that reads them.
struct Others {
    used: Amount,
    /// The sum of these shards if each uses up its reservation.
    most: Amount,
    /// The lowest [`Reservation::within`] of these shards.
    within: Amount,
    /// The shards that have a reservation, with their keys.
    reserved: Vec<(Vec<u8>, UsageShard)>,
    /// Shard 0, and its version.
    first: UsageShard,
    first_version: Option<u64>,
}

impl State<'_> {
    /// Whether the volume's usage, including what the batch adds, is below this limit.
    pub(crate) fn has_room(&mut self, below: Amount) -> Result<bool, ReadStop> {
        if !self.options.blind {
            return Ok(self.usage()?.is_below(below));
        }
        self.room = Some(self.room.map_or(below, |room| room.least(below)));
        let mut shard = self.own_shard()?;
        shard.used = shard.used.plus(self.added());
        if let Some(Reservation { upto, within }) = shard.reservation
            && within.minus(upto.minus(shard.used)).is_below(below)
        {
            return Ok(true);
        }
        let others = self.others()?;
        if others.reservation(&shard, below).is_some() {
            self.require_counted(&others);
            return Ok(true);
        }
        self.unchanged.insert(self.keys.usage_shards());
        Ok(others.used.plus(shard.used).is_below(below))
    }

    /// Adds the amounts of the batch to this writer's shard. If the shard then exceeds its reservation, takes
    /// a new one.
    pub(crate) fn write_shard(&mut self, puts: &mut Writes) -> Result<(), ReadStop> {
        let before = self.own_shard()?;
        let mut shard = UsageShard { used: before.used.plus(self.added()), ..before };
        if self.options.blind
            && !shard.used.fits(
                before.used.most(before.reservation.map_or(Amount::MIN, |reservation| reservation.upto)),
            )
        {
            shard.reservation = self.take_reservation(&shard, puts)?;
        }
        put(puts, self.keys.usage_shard(self.options.shard), encode_shard(shard));
        Ok(())
    }

    /// A new reservation for a shard that exceeds its present one.
    fn take_reservation(
        &mut self,
        shard: &UsageShard,
        puts: &mut Writes,
    ) -> Result<Option<Reservation>, ReadStop> {
        let first = self.keys.usage_shard(0);
        if self.room.is_none() {
            let held = self.decoded(first.clone(), Assume::Absent, decode_shard)?;
            if held.unwrap_or_default().reservation.is_none() {
                return Ok(None);
            }
        }
        let mut others = self.others()?;
        let mut reservation = self.room.and_then(|room| others.reservation(shard, room));
        if reservation.is_some() {
            self.require_counted(&others);
        } else {
            self.unchanged.insert(self.keys.usage_shards());
            for (key, shard) in std::mem::take(&mut others.reserved) {
                put(puts, key, encode_shard(UsageShard { reservation: None, ..shard }));
            }
            // Now that the reservations are withdrawn, there may be enough space.
            (others.most, others.within, others.first.reservation) = (others.used, Amount::MAX, None);
            reservation = self
                .room
                .and_then(|room| others.reservation(&UsageShard { reservation: None, ..*shard }, room));
        }
        if reservation.is_some() {
            put(puts, first, encode_shard(UsageShard { reservation: Some(MARK), ..others.first }));
        }
        Ok(reservation)
    }

    /// Requires that no other shard grows beyond what was counted for it.
    fn require_counted(&mut self, others: &Others) {
        self.preconditions.insert(self.keys.usage_shard(0), others.first_version);
        if others.first.reservation.is_none() {
            self.unchanged.insert(self.keys.usage_shards());
        }
    }

    fn added(&self) -> Amount {
        Amount { inodes: self.inodes, blocks: self.blocks }
    }

    fn own_shard(&mut self) -> Result<UsageShard, ReadStop> {
        let key = self.keys.usage_shard(self.options.shard);
        Ok(self.decoded(key, Assume::Absent, decode_shard)?.unwrap_or_default())
    }

    fn others(&mut self) -> Result<Others, ReadStop> {
        let (own, first) = (self.keys.usage_shard(self.options.shard), self.keys.usage_shard(0));
        let mut others = Others {
            used: Amount::default(),
            most: Amount::default(),
            within: Amount::MAX,
            reserved: Vec::new(),
            first: UsageShard::default(),
            first_version: None,
        };
        for (key, held) in self.lookup.span(&self.keys.usage_shards())?.iter().filter(|(key, _)| *key != own)
        {
            let shard = decode_shard(key, &held.value)?;
            others.used = others.used.plus(shard.used);
            others.most = others
                .most
                .plus(shard.reservation.map_or(shard.used, |reservation| shard.used.most(reservation.upto)));
            if let Some(reservation) = shard.reservation {
                others.within = others.within.least(reservation.within);
                others.reserved.push((key.to_vec(), shard));
            }
            if *key == first {
                (others.first, others.first_version) = (shard, Some(held.version));
            }
        }
        Ok(others)
    }
}

impl Others {
    /// The reservation that `shard` can have next to these, below a limit; `None` if too little space is
    /// left.
    fn reservation(&self, shard: &UsageShard, below: Amount) -> Option<Reservation> {
        let within = self
            .within
            .least(below)
            .least(shard.reservation.map_or(Amount::MAX, |reservation| reservation.within));
        let left = within.minus(self.most.plus(shard.used));
        let part = Amount { inodes: left.inodes / PART, blocks: left.blocks / PART };
        let least = if self.first.reservation.is_some() { MIN_PART } else { MIN_PART.plus(MIN_PART) };
        least.fits(part).then(|| Reservation { upto: shard.used.plus(part), within })
    }
}

impl Amount {
    const MIN: Amount = Amount { inodes: i64::MIN, blocks: i64::MIN };
    const MAX: Amount = Amount { inodes: i64::MAX, blocks: i64::MAX };

    /// A limit; `u64::MAX` for none.
    pub(crate) fn limit(inodes: u64, blocks: u64) -> Amount {
        let signed = |limit: u64| i64::try_from(limit).unwrap_or(i64::MAX);
        Amount { inodes: signed(inodes), blocks: signed(blocks) }
    }

    fn each(self, other: Amount, of: impl Fn(i64, i64) -> i64) -> Amount {
        Amount { inodes: of(self.inodes, other.inodes), blocks: of(self.blocks, other.blocks) }
    }

    pub(crate) fn plus(self, other: Amount) -> Amount {
        self.each(other, i64::saturating_add)
    }

    fn minus(self, other: Amount) -> Amount {
        self.each(other, i64::saturating_sub)
    }

    fn least(self, other: Amount) -> Amount {
        self.each(other, i64::min)
    }

    fn most(self, other: Amount) -> Amount {
        self.each(other, i64::max)
    }

    /// Whether neither amount exceeds that of the other.
    fn fits(self, other: Amount) -> bool {
        self.inodes <= other.inodes && self.blocks <= other.blocks
    }

    fn is_below(self, limit: Amount) -> bool {
        self.inodes < limit.inodes && self.blocks < limit.blocks
    }
}
