//! Chunk norms and the best products, 16 chunks at a time.

use crate::quaternions::layout::{INDEX_GRID, QuaternionIndex, QuaternionSet, RadiusSteps};
use crate::quaternions::scalar;
use crate::registers::avx512::{first, load, load_codes, store_codes, to_array};
use core::arch::x86_64::*;

/// Components of 16 quaternions.
pub(crate) type Planes = [__m512; 4];

/// 16 chunks, zeros behind the last one.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_chunks(x: &[f32]) -> Planes {
    let part = |i: usize| {
        let mask = first(x.len().saturating_sub(16 * i)) as u16;
        // SAFETY: a masked load touches no value whose mask bit is clear, and those that are set are inside `x`.
        unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr().wrapping_add(16 * i)) }
    };
    transpose([part(0), part(1), part(2), part(3)])
}

/// From 16 quaternions, one after the other, to their components.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn transpose(rows: [__m512; 4]) -> Planes {
    const fn picks(component: u32) -> [u32; 16] {
        let mut picks = [0; 16];
        let mut lane = 0;
        while lane < 16 {
            picks[lane] = (component + 4 * (lane as u32 % 8)) % 32;
            lane += 1;
        }
        picks
    }
    let plane = |picks: &[u32; 16]| {
        let picks = load(picks);
        let low = _mm512_permutex2var_ps(rows[0], picks, rows[1]);
        let high = _mm512_permutex2var_ps(rows[2], picks, rows[3]);
        _mm512_mask_mov_ps(low, 0xff00, high)
    };
    [
        plane(&const { picks(0) }),
        plane(&const { picks(1) }),
        plane(&const { picks(2) }),
        plane(&const { picks(3) }),
    ]
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn chunk_norms(x: &[f32], norms: &mut [f32]) {
    for (x, norms) in x.chunks(64).zip(norms.chunks_mut(16)) {
        let [w, x, y, z] = each!(c in load_chunks(x) => _mm512_mul_ps(c, c));
        let norm = _mm512_sqrt_ps(_mm512_add_ps(_mm512_add_ps(w, x), _mm512_add_ps(y, z)));
        // SAFETY: the mask has as many bits as `norms` has values.
        unsafe { _mm512_mask_storeu_ps(norms.as_mut_ptr(), first(norms.len()) as u16, norm) };
    }
}

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
            // SAFETY: the masks have as many bits as there are values left in the slices.
            unsafe {
                let codes = codes.as_mut_ptr().wrapping_add(16 * i).cast();
                _mm512_mask_cvtepi32_storeu_epi16(codes, first(count) as u16, best.codes);
                let radii = radii.as_mut_ptr().wrapping_add(16 * i).cast();
                _mm512_mask_cvtepi32_storeu_epi8(radii, first(count) as u16, search.radii);
            }
        }
    }
}

/// 16 chunks that look for their best products.
#[derive(Clone, Copy)]
struct Search {
    u: Planes,
    radii: __m512i,
    /// Chunks whose radius is not 0.
    active: u16,
}

/// What they found.
#[derive(Clone, Copy)]
struct Best {
    codes: __m512i,
    /// Chunks that met the same product twice, where the lowest code must still be found.
    ties: u16,
}

/// The running best of a search.
#[derive(Clone, Copy)]
struct Running {
    value: __m512,
    /// Which member, or which candidate.
    member: __m512i,
    ties: u16,
}

impl Running {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new() -> Self {
        Self { value: _mm512_set1_ps(-1.0), member: _mm512_setzero_si512(), ties: 0 }
    }

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
        let u = load_chunks(x);
        // SAFETY: the mask has as many bits as `norms` has values.
        let norms = unsafe { _mm512_maskz_loadu_ps(first(norms.len()) as u16, norms.as_ptr()) };
        let steps = _mm512_add_ps(_mm512_mul_ps(norms, _mm512_set1_ps(factor)), _mm512_set1_ps(0.5));
        let radii = _mm512_cvttps_epi32(_mm512_min_ps(steps, _mm512_set1_ps(limit.into())));
        Self { u, radii, active: _mm512_test_epi32_mask(radii, radii) }
    }

    /// Tries every member for 32 chunks.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn best_of_all(both: &[Self; 2], set: &QuaternionSet) -> [Best; 2] {
        let mut running = [Running::new(); 2];
        let second = both[1].active != 0;
        for (s, member) in set.members.iter().enumerate() {
            let q = each!(c in *member => _mm512_set1_ps(c));
            let s = _mm512_set1_epi32(s as i32);
            running[0].offer(nearest(times_conjugate(&both[0].u, &q)), s, !0);
            if second {
                running[1].offer(nearest(times_conjugate(&both[1].u, &q)), s, !0);
            }
        }
        [both[0].best(set, &running[0]), both[1].best(set, &running[1])]
    }

    /// Tries the candidates of each chunk's cell, for 32 chunks: two chains of latencies side by side.
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

    /// Cells of the index, each below `INDEX_GRID`³: any rounding is inside its margin, so this may fuse.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn cells(&self) -> __m512i {
        let [w, x, y, z] = self.u;
        let a = each!(c in self.u => _mm512_abs_ps(c));
        let axis = _mm512_max_ps(_mm512_max_ps(a[0], a[1]), _mm512_max_ps(a[2], a[3]));
        let sum = _mm512_add_ps(_mm512_add_ps(a[0], a[1]), _mm512_add_ps(a[2], a[3]));
        let is_axis = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(_mm512_add_ps(axis, axis), sum);
        // The nearest unit: one of its components is 1, the first that is largest, or all are ½; signs are u's.
        let mut free = is_axis;
        let sign = _mm512_set1_ps(-0.0);
        let mut unit = [_mm512_setzero_ps(); 4];
        for c in 0..4 {
            let here = _mm512_mask_cmp_ps_mask::<_CMP_EQ_OQ>(free, a[c], axis);
            free &= !here;
            let size = _mm512_mask_mov_ps(
                _mm512_maskz_mov_ps(!is_axis, _mm512_set1_ps(0.5)),
                here,
                _mm512_set1_ps(1.0),
            );
            unit[c] = _mm512_or_ps(size, _mm512_and_ps(self.u[c], sign));
        }
        let [p, i, j, k] = unit;
        let real = _mm512_fmadd_ps(p, w, _mm512_fmadd_ps(i, x, _mm512_fmadd_ps(j, y, _mm512_mul_ps(k, z))));
        let imaginary = [
            _mm512_fmadd_ps(p, x, _mm512_fnmadd_ps(i, w, _mm512_fmsub_ps(k, y, _mm512_mul_ps(j, z)))),
            _mm512_fmadd_ps(p, y, _mm512_fnmadd_ps(j, w, _mm512_fmsub_ps(i, z, _mm512_mul_ps(k, x)))),
            _mm512_fmadd_ps(p, z, _mm512_fnmadd_ps(k, w, _mm512_fmsub_ps(j, x, _mm512_mul_ps(i, y)))),
        ];
        let half = _mm512_set1_ps(INDEX_GRID as f32 / 2.0);
        let scale = _mm512_div_ps(half, real);
        let step = |c: __m512| {
            let step = _mm512_cvttps_epi32(_mm512_fmadd_ps(c, scale, half));
            let step = _mm512_max_epi32(step, _mm512_setzero_si512());
            _mm512_min_epi32(step, _mm512_set1_epi32(INDEX_GRID as i32 - 1))
        };
        const { assert!(INDEX_GRID == 16) };
        let high = _mm512_or_si512(
            _mm512_slli_epi32::<8>(step(imaginary[0])),
            _mm512_slli_epi32::<4>(step(imaginary[1])),
        );
        _mm512_or_si512(high, step(imaginary[2]))
    }

    /// The codes of the members found.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn best(&self, set: &QuaternionSet, running: &Running) -> Best {
        let y = times_conjugate(&self.u, &gather_members(set, &to_bytes(running.member)));
        let count = _mm512_set1_epi32(set.members.len() as i32);
        let codes = _mm512_add_epi32(_mm512_mullo_epi32(nearest_unit(&y), count), running.member);
        Best { codes: _mm512_maskz_mov_epi32(self.active, codes), ties: running.ties & self.active }
    }

    /// Asks the specification about chunks that met the same product twice.
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

/// The low byte of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn to_bytes(lanes: __m512i) -> [u8; 16] {
    let mut array = [0; 16];
    store_codes(&mut array, _mm512_cvtepi32_epi8(lanes));
    array
}

/// The lists of 16 chunks' cells.
struct Candidates {
    offsets: [u32; 16],
    /// 0 for chunks that are not searched.
    lengths: __m512i,
}

impl Candidates {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(search: &Search, index: &QuaternionIndex) -> Self {
        // SAFETY: `cells` clamps its lanes to the grid, and the table has an entry for each of its cells.
        let cells = unsafe { gather_cells(search.active, search.cells(), index.tables().0) };
        Self {
            offsets: to_array(_mm512_srli_epi32::<8>(cells)),
            lengths: _mm512_and_si512(cells, _mm512_set1_epi32(0xff)),
        }
    }

    /// The `k`-th candidate of each chunk; `k` is below 256.
    #[inline]
    fn at(&self, lists: &[u8], k: &[u32; 16]) -> [u8; 16] {
        let mut members = [0; 16];
        for ((member, offset), k) in members.iter_mut().zip(self.offsets).zip(k) {
            debug_assert!((offset + k) as usize <= lists.len());
            // SAFETY: every offset is inside the lists with `INDEX_PADDING` bytes, 256, behind it, and `k` is below.
            *member = unsafe { *lists.get_unchecked((offset + k) as usize) };
        }
        members
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn offer(&self, set: &QuaternionSet, lists: &[u8], u: &Planes, k: u32, running: &mut Running) {
        let lanes = _mm512_set1_epi32(k as i32);
        let q = gather_members(set, &self.at(lists, &[k; 16]));
        running.offer(nearest(times_conjugate(u, &q)), lanes, _mm512_cmpgt_epi32_mask(self.lengths, lanes));
    }

    /// From numbers of candidates to members.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn members(&self, lists: &[u8], k: __m512i) -> __m512i {
        _mm512_cvtepu8_epi32(load_codes(&self.at(lists, &to_array(k))))
    }
}

/// table\[at] of lanes in the mask, 0 elsewhere.
///
/// # Safety
/// Lanes of `at` in the mask are below the table's length.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn gather_cells(mask: u16, at: __m512i, table: &[u32]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_mask_i32gather_epi32::<4>(_mm512_setzero_si512(), mask, at, table.as_ptr().cast()) }
}

/// The components of 16 members, each below the set's length: 16 loads and a transposition, which does not grow with
/// the set, unlike table look-ups.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn gather_members(set: &QuaternionSet, members: &[u8; 16]) -> Planes {
    // Lane l of register i holds member 4l + i, so that the transposition stays in 128-bit lanes.
    let quad = |i: usize| {
        let one = |lane: usize| {
            debug_assert!(usize::from(members[4 * lane + i]) < set.members.len());
            // SAFETY: members of lists and codes are below the set's length: `QuaternionIndex::new` checks the
            // first, and the others are remainders.
            unsafe { _mm_loadu_ps(set.members.get_unchecked(usize::from(members[4 * lane + i])).as_ptr()) }
        };
        let quad = _mm512_castps128_ps512(one(0));
        let quad = _mm512_insertf32x4::<1>(quad, one(1));
        let quad = _mm512_insertf32x4::<2>(quad, one(2));
        _mm512_insertf32x4::<3>(quad, one(3))
    };
    let [a, b, c, d] = [quad(0), quad(1), quad(2), quad(3)];
    let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let pair = |low, high| (_mm512_castps_pd(low), _mm512_castps_pd(high));
    let ((p, q), (r, s)) = (pair(ab_low, cd_low), pair(ab_high, cd_high));
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(r, s)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(r, s)),
    ]
}

/// u·q*.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn times_conjugate(u: &Planes, q: &Planes) -> Planes {
    let ([w, x, y, z], [a, b, c, d]) = (*u, *q);
    let m = |a, b| _mm512_mul_ps(a, b);
    let plus = |a, b| _mm512_add_ps(a, b);
    let minus = |a, b| _mm512_sub_ps(a, b);
    [
        plus(plus(m(w, a), m(x, b)), plus(m(y, c), m(z, d))),
        plus(minus(m(x, a), m(w, b)), minus(m(z, c), m(y, d))),
        plus(minus(m(y, a), m(w, c)), minus(m(x, d), m(z, b))),
        plus(minus(m(z, a), m(w, d)), minus(m(y, b), m(x, c))),
    ]
}

/// max(‖y‖∞, ‖y‖₁/2).
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn nearest(y: Planes) -> __m512 {
    let (axis, half) = axis_and_half(&each!(c in y => _mm512_abs_ps(c)));
    _mm512_max_ps(axis, half)
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn axis_and_half(a: &Planes) -> (__m512, __m512) {
    let axis = _mm512_max_ps(_mm512_max_ps(a[0], a[1]), _mm512_max_ps(a[2], a[3]));
    let sum = _mm512_add_ps(_mm512_add_ps(a[0], a[1]), _mm512_add_ps(a[2], a[3]));
    (axis, _mm512_mul_ps(sum, _mm512_set1_ps(0.5)))
}

/// Which unit is nearest.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn nearest_unit(y: &Planes) -> __m512i {
    let a = each!(c in *y => _mm512_abs_ps(c));
    let (axis, half) = axis_and_half(&a);
    let zero = _mm512_setzero_ps();
    let (mut axis_unit, mut half_unit) = (_mm512_setzero_si512(), _mm512_set1_epi32(8));
    for c in (0..4).rev() {
        let negative = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(y[c], zero);
        half_unit = _mm512_mask_add_epi32(half_unit, negative, half_unit, _mm512_set1_epi32(1 << c));
        let at = _mm512_mask_mov_epi32(
            _mm512_set1_epi32(2 * c as i32),
            negative,
            _mm512_set1_epi32(2 * c as i32 + 1),
        );
        axis_unit = _mm512_mask_mov_epi32(axis_unit, _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a[c], axis), at);
    }
    _mm512_mask_mov_epi32(half_unit, _mm512_cmp_ps_mask::<_CMP_GE_OQ>(axis, half), axis_unit)
}
