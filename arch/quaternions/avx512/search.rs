//! The best products, twice 16 chunks at a time. Two chains of instructions hide each other's
//! latency, and masks skip what a list lacks.
//!
//! On a Sapphire Rapids, codes of 128 coordinates take 150 ns. The implementation for any registers
//! of 512 bits takes 250 ns.

use super::{load_chunks, members_at, to_bytes};
use crate::quaternions::layout::{QuaternionIndex, QuaternionSet, RadiusSteps};
use crate::quaternions::scalar;
use crate::quaternions::wide::search::{cells_of, nearest, nearest_units, times_conjugates};
use crate::registers::Elementwise;
use crate::registers::avx512::{Zmm, first, load, load_codes, to_array};
use core::arch::x86_64::*;

/// Components of 16 quaternions.
type Planes = [__m512i; 4];

/// Implements `scalar::encode_quaternions`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn encode_quaternions(
    set: &QuaternionSet,
    x: &[f32],
    norms: &[f32],
    steps: RadiusSteps,
    codes: &mut [u16],
    radii: &mut [u8],
) {
    let blocks = x.chunks(128).zip(norms.chunks(32)).zip(codes.chunks_mut(32).zip(radii.chunks_mut(32)));
    for ((x, norms), (codes, radii)) in blocks {
        let (low, high) = norms.split_at(norms.len().min(16));
        let searched = [Search::new(x, low, steps), Search::new(x.get(64..).unwrap_or(&[]), high, steps)];
        let found = match set.index {
            Some(index) => Search::best_of_candidates(&searched, set, &index),
            None => Search::best_of_all(&searched, set),
        };
        for (i, (search, mut best)) in searched.iter().zip(found).enumerate() {
            let count = norms.len().saturating_sub(16 * i).min(16);
            if count == 0 {
                break;
            }
            search.settle_ties(set, &mut best, &x[64 * i..]);
            // SAFETY: the dispatcher checked that there is a code and a radius for each norm. `count` norms are
            // left from 16·i on, and the masks have `count` bits.
            unsafe {
                let codes = codes.as_mut_ptr().wrapping_add(16 * i).cast();
                _mm512_mask_cvtepi32_storeu_epi16(codes, first(count) as u16, best.codes);
                let radii = radii.as_mut_ptr().wrapping_add(16 * i).cast();
                _mm512_mask_cvtepi32_storeu_epi8(radii, first(count) as u16, search.radii);
            }
        }
    }
}

/// The search for the best products of 16 chunks.
#[derive(Clone, Copy)]
struct Search {
    /// The chunks themselves. Lane i of plane c is component c of chunk i.
    u: Planes,
    /// The codes of their radii.
    radii: __m512i,
    /// Chunks whose radius is not 0.
    active: u16,
}

/// The result of a search.
#[derive(Clone, Copy)]
struct Best {
    /// unit · number of members + member, or 0 for chunks that are not active.
    codes: __m512i,
    /// Chunks with the same inner product twice. The lowest code must still be found.
    ties: u16,
}

/// The best so far.
#[derive(Clone, Copy)]
struct Running {
    /// The largest inner product.
    value: __m512,
    /// The member that has it, or the candidate of the chunk's list.
    member: __m512i,
    /// Chunks that have met an equal value. The value may have been surpassed since.
    ties: u16,
}

impl Running {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new() -> Self {
        Self { value: _mm512_set1_ps(-1.0), member: _mm512_setzero_si512(), ties: 0 }
    }

    /// Keeps the larger value in each valid lane. An equal value marks a tie.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn offer(&mut self, value: __m512, member: __m512i, valid: u16) {
        let above = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(valid, value, self.value);
        self.ties |= _mm512_mask_cmp_ps_mask::<_CMP_EQ_OQ>(valid, value, self.value);
        self.value = _mm512_mask_mov_ps(self.value, above, value);
        self.member = _mm512_mask_mov_epi32(self.member, above, member);
    }
}

impl Search {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(x: &[f32], norms: &[f32], RadiusSteps { factor, limit }: RadiusSteps) -> Self {
        let u = each!(c in load_chunks(x) => _mm512_castps_si512(c));
        // SAFETY: the mask has as many bits as `norms` has values.
        let norms = unsafe { _mm512_maskz_loadu_ps(first(norms.len()) as u16, norms.as_ptr()) };
        let steps = _mm512_add_ps(_mm512_mul_ps(norms, _mm512_set1_ps(factor)), _mm512_set1_ps(0.5));
        let radii = _mm512_cvttps_epi32(_mm512_min_ps(steps, _mm512_set1_ps(limit.into())));
        Self { u, radii, active: _mm512_test_epi32_mask(radii, radii) }
    }

    /// Tries every member, for 32 chunks.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn best_of_all(both: &[Self; 2], set: &QuaternionSet) -> [Best; 2] {
        let mut running = [Running::new(); 2];
        let second = both[1].active != 0;
        for (s, member) in set.members.iter().enumerate() {
            let q = each!(c in *member => Zmm::splat(c));
            let s = _mm512_set1_epi32(s as i32);
            running[0].offer(product(&both[0].u, &q), s, !0);
            if second {
                running[1].offer(product(&both[1].u, &q), s, !0);
            }
        }
        [both[0].best(set, &running[0]), both[1].best(set, &running[1])]
    }

    /// Tries the candidates of each chunk's cell, for 32 chunks. Two chains hide each other's
    /// latency.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn best_of_candidates(both: &[Self; 2], set: &QuaternionSet, index: &QuaternionIndex) -> [Best; 2] {
        let lists = index.tables().1;
        let first = Candidates::new(&both[0], index);
        let second = Candidates::new(&both[1], index);
        let mut running = [Running::new(); 2];
        if both[1].active == 0 {
            for k in 0.._mm512_reduce_max_epu32(first.lengths) {
                first.offer(set, lists, &both[0].u, k, &mut running[0]);
            }
        } else {
            for k in 0.._mm512_reduce_max_epu32(_mm512_max_epu32(first.lengths, second.lengths)) {
                first.offer(set, lists, &both[0].u, k, &mut running[0]);
                second.offer(set, lists, &both[1].u, k, &mut running[1]);
            }
        }
        running[0].member = first.members(lists, running[0].member);
        running[1].member = second.members(lists, running[1].member);
        [both[0].best(set, &running[0]), both[1].best(set, &running[1])]
    }

    /// Returns the codes of the best members.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn best(&self, set: &QuaternionSet, running: &Running) -> Best {
        let y = times_conjugates::<Zmm>(&self.u, &members_at(set, &to_bytes(running.member)));
        let count = _mm512_set1_epi32(set.members.len() as i32);
        let codes = _mm512_add_epi32(_mm512_mullo_epi32(nearest_units::<Zmm>(&y), count), running.member);
        Best { codes: _mm512_maskz_mov_epi32(self.active, codes), ties: running.ties & self.active }
    }

    /// Calls the specification for chunks with the same inner product twice.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn settle_ties(&self, set: &QuaternionSet, best: &mut Best, x: &[f32]) {
        if best.ties == 0 {
            return;
        }
        let mut codes: [u32; 16] = to_array(best.codes);
        for (lane, (code, chunk)) in codes.iter_mut().zip(x.as_chunks::<4>().0).enumerate() {
            if best.ties >> lane & 1 == 1 {
                *code = scalar::best_product(set, chunk).into();
            }
        }
        best.codes = load(&codes);
    }
}

/// The lists of 16 chunks' cells.
struct Candidates {
    /// The start of each list in the lists of all cells.
    offsets: [u32; 16],
    /// The length of each list, and 0 for chunks that are not searched.
    lengths: __m512i,
}

impl Candidates {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(search: &Search, index: &QuaternionIndex) -> Self {
        let (at, cells, zero) = (cells_of::<Zmm>(&search.u), index.tables().0, _mm512_setzero_si512());
        // SAFETY: `cells_of` masks its lanes to the number of cells, and the table has an entry for
        // each.
        let cells =
            unsafe { _mm512_mask_i32gather_epi32::<4>(zero, search.active, at, cells.as_ptr().cast()) };
        Self {
            offsets: to_array(_mm512_srli_epi32::<8>(cells)),
            lengths: _mm512_and_si512(cells, _mm512_set1_epi32(0xff)),
        }
    }

    /// Returns the `k`-th candidate of each chunk. `k` must be below 256.
    #[inline]
    fn at(&self, lists: &[u8], k: &[u32; 16]) -> [u8; 16] {
        let mut members = [0; 16];
        for ((member, offset), k) in members.iter_mut().zip(self.offsets).zip(k) {
            debug_assert!(((offset + k) as usize) < lists.len());
            // SAFETY: `QuaternionIndex::new` checked that every offset is inside the lists and that
            // `INDEX_PADDING` = 256 bytes follow them. `k` is below 256. Chunks that are not searched
            // have offset 0.
            *member = unsafe { *lists.get_unchecked((offset + k) as usize) };
        }
        members
    }

    /// Offers the `k`-th candidate of each chunk, where its list has one.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn offer(&self, set: &QuaternionSet, lists: &[u8], u: &Planes, k: u32, running: &mut Running) {
        let lanes = _mm512_set1_epi32(k as i32);
        let q = members_at(set, &self.at(lists, &[k; 16]));
        running.offer(product(u, &q), lanes, _mm512_cmpgt_epi32_mask(self.lengths, lanes));
    }

    /// Returns the members for numbers of candidates.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn members(&self, lists: &[u8], k: __m512i) -> __m512i {
        _mm512_cvtepu8_epi32(load_codes(&self.at(lists, &to_array(k))))
    }
}

/// Returns the largest inner products of u·q* with a unit.
#[inline(always)]
fn product(u: &Planes, q: &Planes) -> __m512 {
    let product = nearest::<Zmm>(&times_conjugates::<Zmm>(u, q));
    // SAFETY: `Zmm` is only used where AVX-512 was detected.
    unsafe { _mm512_castsi512_ps(product) }
}
