//! Codebooks in registers of sixteen bytes.

use core::arch::x86_64::*;

/// The low and the high bytes of up to 256 centroids, sixteen to a table, in both lanes.
pub(crate) struct Codebook {
    low: [__m256i; 16],
    high: [__m256i; 16],
    tables: usize,
}

impl Codebook {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn new(centroids: &[i16]) -> Self {
        let zero = _mm256_setzero_si256();
        let (mut low, mut high) = ([zero; 16], [zero; 16]);
        for ((centroids, low), high) in centroids.chunks(16).zip(&mut low).zip(&mut high) {
            let (mut low_bytes, mut high_bytes) = ([0u8; 16], [0u8; 16]);
            for ((centroid, low), high) in centroids.iter().zip(&mut low_bytes).zip(&mut high_bytes) {
                [*low, *high] = centroid.to_le_bytes();
            }
            (*low, *high) = (twice(&low_bytes), twice(&high_bytes));
        }
        Self { low, high, tables: centroids.len().div_ceil(16) }
    }

    /// Centroids that are bytes, for codes below 16.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn bytes(&self, codes: __m256i) -> __m256i {
        _mm256_shuffle_epi8(self.low[0], codes)
    }

    /// Centroids as words: those of bytes 0 to 7 of each lane, and of bytes 8 to 15.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn words(&self, codes: __m256i) -> [__m256i; 2] {
        let (mut low, mut high) = (self.low[0], self.high[0]);
        if self.tables == 1 {
            low = _mm256_shuffle_epi8(low, codes);
            high = _mm256_shuffle_epi8(high, codes);
        } else {
            // A saturating addition sets the uppermost bit of codes of other tables, and `vpshufb` gives 0 there.
            let mut index = codes;
            let beside = _mm256_set1_epi8(0x70);
            (low, high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for (t, (low_table, high_table)) in self.low.iter().zip(&self.high).take(self.tables).enumerate()
            {
                if t > 0 {
                    index = _mm256_xor_si256(codes, _mm256_set1_epi8((t << 4) as i8));
                }
                let index = _mm256_adds_epu8(index, beside);
                low = _mm256_or_si256(low, _mm256_shuffle_epi8(*low_table, index));
                high = _mm256_or_si256(high, _mm256_shuffle_epi8(*high_table, index));
            }
        }
        [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)]
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: the array holds the 16 bytes that are read.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}
