//! Random numbers from a seed.

#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x1_0001))
    }

    /// The random numbers of one decision. They do not depend on what other decisions draw.
    pub(crate) fn of(seed: u64, kind: u64, number: u64) -> Self {
        let mut rng = Rng::new(seed ^ kind.rotate_right(8));
        Rng(rng.number() ^ number.wrapping_mul(0x9E37_79B9))
    }

    /// A random number below `bound`, which must be small.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// The next number of the SplitMix64 generator (Steele, Lea, Flood, OOPSLA 2014).
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
