//! Room below a limit, shared out to writers, so that far from the limit none has to look at what others add.
//!
//! A lane may have a share: as far as that it grows without a look at the other lanes. Whoever adds beyond his share reads
//! all lanes, counts each as if it had grown as far as it may, and takes a part of what is then left as a new share. So
//! all of them together stay within the limit, whoever uses his share when. Where little is left, all shares are withdrawn;
//! where there is little even so, nothing is shared out, and whoever adds claims that no lane has changed.
//!
//! While there are shares, lane 0 has one as well, which stands for nothing but that. Whoever takes a share or withdraws
//! the others' writes that lane. So it, unchanged, says that all who were counted grow no further than they were counted
//! for, and while it has no share, that nobody relies on that. Who adds and asks for no room claims the latter.
//!
//! This is escrow (O'Neil: The Escrow Transactional Method, 1986), on stores that claim ranges. On others, claims of one
//! key exclude each other, and nothing is shared out.

use crate::settle::{Writes, put};
use crate::source::{Presume, Stop};
use crate::state::State;
use crate::value::{Amount, Lane, Share, decode_lane, encode_lane};

/// A share is this part of what is left.
const PART: i64 = 64;
/// No share is smaller than this. The first one is twice as large, so that shares which were withdrawn do not come back at
/// once.
const LEAST: Amount = Amount { inodes: 32, blocks: 1024 };

/// The share of lane 0. It lets it grow nowhere, and keeps nobody within anything.
const MARK: Share = Share { upto: Amount::LEAST, within: Amount::MOST };

/// All lanes but that of the writer who looks.
struct Others {
    used: Amount,
    /// When each has grown as far as it may.
    most: Amount,
    /// What all stay within.
    within: Amount,
    /// Those that have a share.
    sharing: Vec<(Vec<u8>, Lane)>,
    /// Lane 0, and its version.
    first: Lane,
    first_version: Option<u64>,
}

impl State<'_> {
    /// Whether the volume holds less than this.
    pub(crate) fn has_room(&mut self, below: Amount) -> Result<bool, Stop> {
        if !self.options.blind {
            return Ok(self.usage()?.is_below(below));
        }
        self.room = Some(self.room.map_or(below, |room| room.least(below)));
        let mut lane = self.own_lane()?;
        lane.used = lane.used.plus(self.added());
        if let Some(Share { upto, within }) = lane.share
            && within.minus(upto.minus(lane.used)).is_below(below)
        {
            return Ok(true);
        }
        let others = self.others()?;
        if others.share(&lane, below).is_some() {
            self.claim_counted(&others);
            return Ok(true);
        }
        self.unchanged.insert(self.keys.lanes());
        Ok(others.used.plus(lane.used).is_below(below))
    }

    /// Writes the lane, as it is after all that was added, with the share that it has from now on.
    pub(crate) fn write_lane(&mut self, puts: &mut Writes) -> Result<(), Stop> {
        let before = self.own_lane()?;
        let mut lane = Lane { used: before.used.plus(self.added()), ..before };
        if self.options.blind
            && !lane.used.fits(before.used.most(before.share.map_or(Amount::LEAST, |share| share.upto)))
        {
            lane.share = self.take_share(&lane, puts)?;
        }
        put(puts, self.keys.lane(self.options.lane), encode_lane(lane));
        Ok(())
    }

    /// The share of a lane that outgrows the one it has.
    fn take_share(&mut self, lane: &Lane, puts: &mut Writes) -> Result<Option<Share>, Stop> {
        let first = self.keys.lane(0);
        if self.room.is_none() {
            let held = self.value(&first, Presume::Absent)?;
            let held = held.map_or(Ok(Lane::default()), |held| decode_lane(&first, &held))?;
            if held.share.is_none() {
                return Ok(None);
            }
        }
        let mut others = self.others()?;
        let mut share = self.room.and_then(|room| others.share(lane, room));
        if share.is_some() {
            self.claim_counted(&others);
        } else {
            self.unchanged.insert(self.keys.lanes());
            for (key, lane) in std::mem::take(&mut others.sharing) {
                put(puts, key, encode_lane(Lane { share: None, ..lane }));
            }
            // Without what was withdrawn there may be enough.
            (others.most, others.within, others.first.share) = (others.used, Amount::MOST, None);
            share = self.room.and_then(|room| others.share(&Lane { share: None, ..*lane }, room));
        }
        if share.is_some() {
            put(puts, first, encode_lane(Lane { share: Some(MARK), ..others.first }));
        }
        Ok(share)
    }

    /// Claims that all others grow no further than they were counted for.
    fn claim_counted(&mut self, others: &Others) {
        self.claims.insert(self.keys.lane(0), others.first_version);
        if others.first.share.is_none() {
            self.unchanged.insert(self.keys.lanes());
        }
    }

    fn added(&self) -> Amount {
        Amount { inodes: self.inodes, blocks: self.blocks }
    }

    fn own_lane(&mut self) -> Result<Lane, Stop> {
        let key = self.keys.lane(self.options.lane);
        let held = self.value(&key, Presume::Absent)?;
        Ok(held.map_or(Ok(Lane::default()), |held| decode_lane(&key, &held))?)
    }

    fn others(&mut self) -> Result<Others, Stop> {
        let (own, first) = (self.keys.lane(self.options.lane), self.keys.lane(0));
        let mut others = Others {
            used: Amount::default(),
            most: Amount::default(),
            within: Amount::MOST,
            sharing: Vec::new(),
            first: Lane::default(),
            first_version: None,
        };
        for (key, held) in self.look.span(&self.keys.lanes())?.iter().filter(|(key, _)| *key != own) {
            let lane = decode_lane(key, &held.value)?;
            others.used = others.used.plus(lane.used);
            others.most = others.most.plus(lane.share.map_or(lane.used, |share| lane.used.most(share.upto)));
            if let Some(share) = lane.share {
                others.within = others.within.least(share.within);
                others.sharing.push((key.to_vec(), lane));
            }
            if *key == first {
                (others.first, others.first_version) = (lane, Some(held.version));
            }
        }
        Ok(others)
    }
}

impl Others {
    /// The share that a lane beside these can have of the room below a limit.
    fn share(&self, lane: &Lane, below: Amount) -> Option<Share> {
        let within = self.within.least(below).least(lane.share.map_or(Amount::MOST, |share| share.within));
        let left = within.minus(self.most.plus(lane.used));
        let part = Amount { inodes: left.inodes / PART, blocks: left.blocks / PART };
        let least = if self.first.share.is_some() { LEAST } else { LEAST.plus(LEAST) };
        least.fits(part).then(|| Share { upto: lane.used.plus(part), within })
    }
}

impl Amount {
    const LEAST: Amount = Amount { inodes: i64::MIN, blocks: i64::MIN };
    const MOST: Amount = Amount { inodes: i64::MAX, blocks: i64::MAX };

    /// A limit, which may be none.
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

    /// Whether neither is more than in the other.
    fn fits(self, other: Amount) -> bool {
        self.inodes <= other.inodes && self.blocks <= other.blocks
    }

    fn is_below(self, limit: Amount) -> bool {
        self.inodes < limit.inodes && self.blocks < limit.blocks
    }
}
