//! Wrong lengths and shapes never reach a kernel.
//!
//! The file of each shape (or `lib.rs`) refuses them, and the kernels' SAFETY comments rely on it.
//! A panic elsewhere, or one that is not an assertion, would be luck and does not count. For each
//! correct call, every slice that [`z`] creates is tried one shorter and one longer.

mod methods;

use octaplex_arch::quaternion::{
    ChunkLayout, INDEX_CELLS, INDEX_PADDING, QuaternionIndex, QuaternionSet, RadiusSteps,
};
use octaplex_arch::{
    Affine, AngleTree, Angles, Backend, BlockBook, Fit, Float, IntQuery, MAX_PAGES, Packing, Rows, Scaled,
    Search, SignQuery, SignRows, TrellisCodebook, TripletLayout,
};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Mutex;

thread_local! {
    /// The number of slices that [`z`] has created, the one that it makes longer, and by how much.
    static MADE: Cell<(usize, usize, isize)> = const { Cell::new((0, usize::MAX, 0)) };
}

/// Returns zeros, one more or one less if it is this slice's turn.
fn z<T: Clone + Default>(count: usize) -> Vec<T> {
    let (number, turn, by) = MADE.get();
    MADE.set((number + 1, turn, by));
    vec![T::default(); if number == turn { count.saturating_add_signed(by) } else { count }]
}

/// Returns rows of `len` bytes.
fn rows(bytes: &[u8], stride: usize, len: usize, dim: usize) -> Rows<'_> {
    Rows { bytes, stride, len, dim, scales: None, ahead: &[] }
}

/// Returns rows with separate scales.
fn apart<'a>(rows: Rows<'a>, scales: &'a [f32]) -> Rows<'a> {
    Rows { scales: Some(scales), ..rows }
}

fn int(values: &[i16]) -> IntQuery<'_> {
    IntQuery { values, scale: 1.0 }
}

fn affine(dim: usize, group: usize, bits: u8) -> Affine {
    Affine { dim, group, bits, asymmetric: false, offset: 0 }
}

fn sign_rows(bytes: &[u8], stride: usize, dim: usize, at: usize) -> SignRows<'_> {
    SignRows { bytes, stride, dim, at, outer: Some(Float::F16) }
}

/// Codes of two bits: rows of 16 have six bytes.
const TWO: Packing = Packing::bits(2);
/// As many bytes as codes.
const EIGHT: Packing = Packing::bits(8);
/// 577 codes have 116 bytes, one more than the buffer of a kernel.
const THREE: Packing = Packing::for_levels(3).unwrap();
const BOOK: TrellisCodebook = TrellisCodebook::new(2, 2, &[0; 16]);
const BLOCKS: BlockBook = BlockBook::TwoBits { centroids: [0.0; 4], thresholds: [0.0; 3] };
const ANGLES: Angles = Angles { bits: 2, directions: &[[0.0; 2]; 4], tangents: &[] };
const NEXT: Angles = Angles { tangents: &[0.0; 3], ..ANGLES };
const TREE: AngleTree = AngleTree { dim: 16, levels: &[ANGLES, NEXT] }; // 4 roots, 12 codes, 11 bytes
/// 8 roots, 8 codes, 18 bytes. A direction is missing.
const THIN: AngleTree = AngleTree { dim: 16, levels: &[Angles { directions: &[[0.0; 2]; 3], ..ANGLES }] };
const OCTAHEDRAL: TripletLayout = TripletLayout {
    dim: 6,
    scale: Float::F16,
    direction_bits: 2,
    radius_bits: 1,
    rest_bits: 1,
    coordinates: &[0.0; 4],
    lengths: &[0.0; 4],
    directions: &[[0; 4]; 16],
    planes: [&[128; 128]; 3],
    radii: &[0.0; 2],
    rest: &[0; 2],
    rest_scale: 1.0,
}; // 2 fields of 5 bits: 2 bytes, a row is 4
/// Too fine for a table of directions, which integer scores need: 2 fields of 13 bits, 4 bytes, so
/// a row has 6.
const FINE: TripletLayout = TripletLayout {
    direction_bits: 6,
    coordinates: &[0.0; 64],
    lengths: &[0.0; 1024],
    directions: &[],
    planes: [&[]; 3],
    ..OCTAHEDRAL
};
/// The largest number of bits, for the widest vector.
const FINEST: TripletLayout =
    TripletLayout { dim: 576, direction_bits: 7, radius_bits: 6, rest_bits: 7, ..FINE };
/// The smallest number of bits: the rest uses the whole last field.
const COARSE: TripletLayout =
    TripletLayout { dim: 5, direction_bits: 1, radius_bits: 0, rest_bits: 1, ..OCTAHEDRAL };
/// A radius is missing.
const DULL: TripletLayout = TripletLayout { radii: &[0.0; 1], ..OCTAHEDRAL };
const CHUNKS: ChunkLayout = ChunkLayout { chunks: 2, members: 1, radius_bits: 4, radix: false, flags: false }; // 5 bytes
/// The most chunks and the longest radii.
const WIDEST: ChunkLayout = ChunkLayout { chunks: 144, radius_bits: 6, ..CHUNKS };
const SET: QuaternionSet = QuaternionSet { members: &[[0.0; 4]], ints: &[[0; 4]], index: None };
/// For a set of one member.
const INDEX: QuaternionIndex = QuaternionIndex::new(1, &[1; INDEX_CELLS], &[0; 1 + INDEX_PADDING]);
const STEPS: RadiusSteps = RadiusSteps { factor: 1.0, limit: 15 };

/// Returns whether a file has methods of `Backend`: `lib.rs`, or a shape's own file, which lies
/// next to its folder.
fn is_contract(file: &str) -> bool {
    let path = std::path::Path::new(file);
    let has_folder = path
        .file_stem()
        .is_some_and(|shape| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(shape).is_dir());
    path.ends_with("arch/lib.rs")
        || path.parent().is_some_and(|parent| parent.ends_with("arch")) && has_folder
}

macro_rules! calls {
    ($backend:ident: $($call:expr;)*) => {
        &[$((stringify!($call), |$backend: Backend| { let _ = $call; })),*]
    };
}

type Calls = &'static [(&'static str, fn(Backend))];

/// Correct calls. Every slice whose length is not written out is fixed by the others.
#[rustfmt::skip]
const RIGHT: Calls = calls! { b:
    b.dot(&z(4), &z(4));
    b.sqrt(1.0);
    b.add(&z(4), &mut z(4));
    b.max_abs(&[1.0]);
    b.min_max(&[1.0]);
    b.rotate(&mut z(16), &z(16), 1.0);
    b.rotate_inverse(&mut z(16), &z(16), 1.0);
    b.multiply_columns(&z(16), &z(4), &mut z(4));
    b.quantize_query(&z(3), 127, &mut z(3));
    b.decode_floats(Float::F16, &z(6), &mut z(3));
    b.encode_floats(Float::F32, &z(2), &mut z(8));
    b.largest_bits(Float::F32, &z(8));
    b.score_floats(Float::F16, 3, &z(12), &[&z(3), &z(3)], &mut z(4));
    b.accumulate_floats(Float::F16, 3, &z(12), &z(4), &mut z(6));
    b.scale_logits(&mut [1.0], 0.0, 1.0);
    b.soft_cap(&mut [1.0], 1.0);
    b.exp_weights(&mut [1.0], 1.0);
    b.prefetch(&[1]);
    b.f16_dot_fma(&z(4), &z(16), &mut z(2));
    b.quantize(&z(3), 1.0, &[0.0; 255], &mut z(3));
    b.lookup(&z(3), &[0; 1], 1.0, &mut z(3));
    b.lookup(&z(3), &[0; 256], 1.0, &mut z(3));
    b.pack(EIGHT, &z(2), &mut z(2));
    b.unpack(EIGHT, &z(2), &mut z(2));
    b.lookup_packed(EIGHT, &z(2), &z(256), 1.0, &mut z(2));
    b.lookup_packed(THREE, &z(116), &z(3), 1.0, &mut z(576));
    b.score_codes(TWO, &[rows(&z(12), 6, 6, 16)], &z(4), 1.0, &[int(&z(16)), int(&z(16))], &mut z(4));
    b.score_codes(TWO, &[apart(rows(&z(10), 4, 6, 16), &z(2))], &z(4), 1.0, &[int(&z(16))], &mut z(2));
    b.score_codes(TWO, &[rows(&[0; 1 << 16], 1 << 16, 6, 16)], &z(4), 1.0, &[int(&z(16))], &mut z(1));
    b.score_codes(TWO, &[rows(&z(146), 146, 146, 576)], &z(4), 1.0, &[int(&z(576))], &mut z(1));
    b.accumulate_codes(TWO, &[rows(&z(12), 6, 6, 16)], &z(4), 1.0, &z(4), &mut z(32));
    b.decode_trellis(&BOOK, &z(6), 1.0, &mut z(16));
    b.decode_trellis(&BOOK, &z(146), 1.0, &mut z(576));
    b.score_trellis(&BOOK, &[rows(&z(12), 6, 6, 16)], 1.0, &[int(&z(16)), int(&z(16))], &mut z(4));
    b.accumulate_trellis(&BOOK, &[rows(&z(12), 6, 6, 16)], 1.0, &z(4), &mut z(32));
    b.viterbi_encode(&BOOK, 16, &z(32), &z(2), &mut z(12), &mut z::<Fit>(2));
    b.quantize_affine(&z(3), 0.0, 1.0, 255, (0, 0), &mut z(3));
    b.decode_affine(&affine(32, 32, 4), &z(18), &mut z(32));
    b.decode_affine(&affine(576, 16, 8), &z(648), &mut z(576));
    b.encode_triplets(&OCTAHEDRAL, Search::Nearest, &z(6), 1.0, &mut z(2));
    b.encode_triplets(&FINE, Search::All, &z(6), 1.0, &mut z(4));
    b.decode_triplets(&TripletLayout { coordinates: &z(4), lengths: &z(4), directions: &z(16), planes: [&z(128), &z(128), &z(128)], radii: &z(2), rest: &z(2), ..OCTAHEDRAL }, &z(2), 1.0, &mut z(6));
    b.decode_triplets(&TripletLayout { rest_bits: 0, rest: &[], ..OCTAHEDRAL }, &z(2), 1.0, &mut z(6));
    b.decode_triplets(&TripletLayout { coordinates: &z(128), lengths: &z(1 << 12), radii: &z(64), rest: &z(128), ..FINEST }, &z(480), 1.0, &mut z(576));
    b.decode_triplets(&TripletLayout { coordinates: &z(2), lengths: &z(1), directions: &z(4), radii: &z(1), rest: &z(2), ..COARSE }, &z(1), 1.0, &mut z(5));
    b.score_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &[int(&z(6)), int(&z(6))], &mut z(4));
    b.score_triplets_floats(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &[&z(6), &z(6)], &mut z(4));
    b.accumulate_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &z(4), &mut z(12));
    b.pack_signs(&z(8), &mut z(1));
    b.unpack_signs(&z(1), 1.0, &mut z(8));
    b.score_signs(&sign_rows(&z(10), 5, 8, 2), 1.0, &[SignQuery { values: &z(8), scale: 1.0 }, SignQuery { values: &z(8), scale: 1.0 }], &mut z(4));
    b.score_signs(&sign_rows(&z(76), 76, 576, 2), 1.0, &[SignQuery { values: &z(576), scale: 1.0 }], &mut z(1));
    b.accumulate_signs(&sign_rows(&z(10), 5, 8, 2), 1.0, &z(4), &mut z(16));
    b.quantize_blocks(&BLOCKS, &z(32), &mut z(14));
    b.blocks_are_finite(&z(14));
    b.decode_blocks(&BLOCKS, &z(14), &mut z(32));
    b.score_blocks(&BLOCKS, 32, &z(28), &[&z(32), &z(32)], &mut z(4));
    b.score_blocks(&BLOCKS, 576, &z(252), &[&z(576)], &mut z(1));
    b.accumulate_blocks(&BLOCKS, 32, &z(28), &z(4), &mut z(64));
    b.quantize_scaled(Scaled::Bytes, &z(32), &mut z(34));
    b.decode_scaled(Scaled::Fives, &z(22), &mut z(32));
    b.quantize_angles(&TREE, &mut z(16), &mut z(12));
    b.quantize_angles(&AngleTree { dim: 576, ..TREE }, &mut z(576), &mut z(432));
    b.decode_angles(&AngleTree { dim: 16, levels: &[Angles { bits: 3, directions: &z(8), tangents: &z(1) }, Angles { bits: 2, directions: &z(4), tangents: &z(3) }] }, &z(12), &mut z(16));
    b.score_angles(&TREE, &z(22), &[&z(16), &z(16)], &mut z(4));
    b.accumulate_angles(&TREE, &z(22), &z(4), &mut z(32));
    b.chunk_norms(&z(8), &mut z(2));
    b.encode_quaternions(&QuaternionSet { members: &z(1), ints: &z(1), index: Some(INDEX) }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
    b.pack_chunks(&CHUNKS, &z(2), &z(2), &mut z(5));
    b.pack_chunks(&WIDEST, &z(144), &z(144), &mut z(200));
    b.decode_quaternions(&CHUNKS, &SET, &z(5), &mut z(8));
    b.score_quaternions(&CHUNKS, &SET, &z(10), &[&z(8), &z(8)], &mut z(4));
    b.accumulate_quaternions(&CHUNKS, &SET, &z(10), &z(4), &mut z(16));
};

/// Calls whose shapes are wrong or do not match.
#[rustfmt::skip]
const WRONG: Calls = calls! { b:
    b.rotate(&mut z(15), &z(15), 1.0);
    b.rotate_inverse(&mut z(0), &z(0), 1.0);
    b.multiply_columns(&z(20), &z(4), &mut z(5));
    b.multiply_columns(&z(20), &z(5), &mut z(4));
    b.quantize_query(&z(3), 0, &mut z(3));
    b.soft_cap(&mut z(1), 0.0);
    b.score_floats(Float::F16, 0, &z(0), &[], &mut z(0));
    b.score_floats(Float::F16, 577, &z(0), &[], &mut z(0));
    b.accumulate_floats(Float::F16, 577, &z(0), &z(0), &mut z(0));
    b.f16_dot_fma(&z(0), &z(0), &mut z(0));
    b.quantize(&z(3), 1.0, &z(256), &mut z(3));
    b.lookup(&z(3), &z(0), 1.0, &mut z(3));
    b.lookup(&z(3), &z(257), 1.0, &mut z(3));
    b.lookup_packed(THREE, &z(116), &z(3), 1.0, &mut z(577));
    b.score_codes(TWO, &[rows(&z(12), 6, 2, 0)], &z(4), 1.0, &[], &mut z(0));
    b.score_codes(TWO, &[rows(&z(0), 147, 147, 577)], &z(4), 1.0, &[], &mut z(0));
    b.score_codes(TWO, &[rows(&z(10), 5, 6, 16)], &z(4), 1.0, &[int(&z(16))], &mut z(2));
    b.score_codes(TWO, &[rows(&z(14), 7, 7, 16)], &z(4), 1.0, &[int(&z(16))], &mut z(2));
    b.score_codes(TWO, &[rows(&z(12), 6, 5, 16)], &z(4), 1.0, &[int(&z(16))], &mut z(2));
    b.score_codes(TWO, &[rows(&z(0), (1 << 16) + 1, 6, 16)], &z(4), 1.0, &[], &mut z(0));
    b.score_codes(TWO, &[apart(rows(&z(9), 3, 6, 16), &z(2))], &z(4), 1.0, &[int(&z(16))], &mut z(2));
    b.accumulate_codes(TWO, &[rows(&z(14), 7, 7, 16)], &z(4), 1.0, &z(2), &mut z(16));
    b.decode_trellis(&BOOK, &z(2), 1.0, &mut z(0));
    b.decode_trellis(&BOOK, &z(8), 1.0, &mut z(24));
    b.decode_trellis(&BOOK, &z(150), 1.0, &mut z(592));
    b.score_trellis(&BOOK, &[rows(&z(6), 6, 6, 16), rows(&z(10), 10, 10, 32)], 1.0, &[], &mut z(0));
    b.score_trellis(&BOOK, &vec![rows(&z(6), 6, 6, 16); MAX_PAGES + 1], 1.0, &[], &mut z(0));
    b.score_trellis(&BOOK, &[rows(&z(14), 7, 7, 16)], 1.0, &[int(&z(16))], &mut z(2));
    b.score_trellis(&BOOK, &[rows(&z(8), 8, 8, 24)], 1.0, &[int(&z(24))], &mut z(1));
    b.accumulate_trellis(&BOOK, &[rows(&z(14), 7, 7, 16)], 1.0, &z(2), &mut z(16));
    b.viterbi_encode(&BOOK, 24, &z(24), &z(1), &mut z(8), &mut z::<Fit>(1));
    b.quantize_affine(&z(3), 0.0, 1.0, 0, (1, 0), &mut z(3));
    b.quantize_affine(&z(3), 0.0, 1.0, 7, (-8, 7), &mut z(3));
    b.quantize_affine(&z(3), 0.0, 1.0, 1, (0, 255), &mut z(3));
    b.decode_affine(&affine(0, 0, 4), &z(0), &mut z(0));
    b.decode_affine(&affine(32, 8, 4), &z(24), &mut z(32));
    b.decode_affine(&affine(48, 32, 4), &z(26), &mut z(48));
    b.decode_affine(&affine(32, 32, 1), &z(6), &mut z(32));
    b.decode_affine(&affine(32, 32, 9), &z(38), &mut z(32));
    b.decode_affine(&affine(592, 16, 2), &z(222), &mut z(592));
    b.decode_triplets(&DULL, &z(2), 1.0, &mut z(6));
    b.score_triplets(&DULL, &rows(&z(8), 4, 4, 6), &[int(&z(6))], &mut z(2));
    b.score_triplets(&FINE, &rows(&z(12), 6, 6, 6), &[int(&z(6))], &mut z(2));
    b.score_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 5), &[int(&z(6))], &mut z(2));
    b.score_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 7), &[int(&z(6))], &mut z(2));
    b.score_triplets(&OCTAHEDRAL, &rows(&z(0), 65537, 4, 6), &[], &mut z(0));
    b.score_triplets(&TripletLayout { scale: Float::F32, ..OCTAHEDRAL }, &apart(rows(&z(10), 4, 6, 6), &z(2)), &[int(&z(6))], &mut z(2));
    b.score_triplets_floats(&OCTAHEDRAL, &rows(&z(8), 4, 4, 7), &[&z(6)], &mut z(2));
    b.accumulate_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 7), &z(2), &mut z(6));
    b.score_signs(&sign_rows(&z(0), 6, 0, 2), 1.0, &[], &mut z(0));
    b.score_signs(&sign_rows(&z(0), 6, 12, 2), 1.0, &[], &mut z(0));
    b.score_signs(&sign_rows(&z(0), 80, 584, 2), 1.0, &[], &mut z(0));
    b.score_signs(&sign_rows(&z(10), 5, 8, 1), 1.0, &[], &mut z(0));
    b.score_signs(&sign_rows(&z(8), 4, 8, 2), 1.0, &[], &mut z(0));
    b.accumulate_signs(&sign_rows(&z(8), 4, 8, 2), 1.0, &z(2), &mut z(8));
    b.quantize_blocks(&BLOCKS, &z(33), &mut z(14));
    b.score_blocks(&BLOCKS, 0, &z(0), &[], &mut z(0));
    b.score_blocks(&BLOCKS, 48, &z(14), &[&z(48)], &mut z(1));
    b.score_blocks(&BLOCKS, 608, &z(0), &[], &mut z(0));
    b.accumulate_blocks(&BLOCKS, 48, &z(14), &z(1), &mut z(48));
    b.quantize_scaled(Scaled::Bytes, &z(33), &mut z(34));
    b.decode_scaled(Scaled::Nibbles, &z(18), &mut z(31));
    b.decode_angles(&THIN, &z(18), &mut z(16));
    b.score_angles(&THIN, &z(36), &[&z(16)], &mut z(2));
    b.accumulate_angles(&THIN, &z(36), &z(2), &mut z(16));
    b.encode_quaternions(&QuaternionSet { members: &[], ints: &[], index: None }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
    b.encode_quaternions(&QuaternionSet { members: &z(256), ints: &z(256), index: None }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
    b.encode_quaternions(&QuaternionSet { members: &z(2), ints: &z(2), index: Some(INDEX) }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
    b.pack_chunks(&ChunkLayout { chunks: 0, ..CHUNKS }, &z(0), &z(0), &mut z(2));
    b.pack_chunks(&ChunkLayout { chunks: 145, ..CHUNKS }, &z(145), &z(145), &mut z(166));
    b.pack_chunks(&ChunkLayout { members: 0, ..CHUNKS }, &z(2), &z(2), &mut z(5));
    b.pack_chunks(&ChunkLayout { members: 2, radix: true, ..CHUNKS }, &z(2), &z(2), &mut z(5));
    b.pack_chunks(&ChunkLayout { radius_bits: 0, ..CHUNKS }, &z(2), &z(2), &mut z(4));
    b.pack_chunks(&ChunkLayout { radius_bits: 7, ..CHUNKS }, &z(2), &z(2), &mut z(6));
    b.decode_quaternions(&ChunkLayout { chunks: 145, ..CHUNKS }, &SET, &z(166), &mut z(580));
    b.decode_quaternions(&ChunkLayout { members: 2, ..CHUNKS }, &SET, &z(5), &mut z(8));
    b.decode_quaternions(&CHUNKS, &SET, &z(0), &mut z(8));
    b.decode_quaternions(&CHUNKS, &SET, &z(10), &mut z(8));
    b.decode_quaternions(&CHUNKS, &QuaternionSet { members: &z(2), ints: &z(2), index: None }, &z(5), &mut z(8));
    b.decode_quaternions(&CHUNKS, &QuaternionSet { ints: &[], ..SET }, &z(5), &mut z(8));
};

/// Impossible layouts of triplets, and trees of angles.
const LAYOUTS: &[TripletLayout] = &[
    TripletLayout { dim: 0, ..OCTAHEDRAL },
    TripletLayout { dim: 577, ..OCTAHEDRAL },
    TripletLayout { scale: Float::Bf16, ..OCTAHEDRAL },
    TripletLayout { direction_bits: 0, coordinates: &[0.0; 1], rest_bits: 0, rest: &[], ..OCTAHEDRAL },
    TripletLayout { direction_bits: 8, coordinates: &[0.0; 256], lengths: &[0.0; 1 << 14], ..FINE },
    TripletLayout { radius_bits: 7, radii: &[0.0; 128], ..OCTAHEDRAL },
    TripletLayout { rest_bits: 3, rest: &[0; 8], ..OCTAHEDRAL },
    TripletLayout { rest_bits: 8, rest: &[0; 256], radius_bits: 6, radii: &[0.0; 64], ..FINE },
    TripletLayout { rest_bits: 0, ..OCTAHEDRAL },
];
const TREES: &[AngleTree] = &[
    AngleTree { dim: 16, levels: &[] },
    AngleTree { dim: 512, levels: &[NEXT; 10] },
    AngleTree { dim: 592, levels: &[ANGLES] },
    AngleTree { dim: 0, levels: &[ANGLES] },
    AngleTree { dim: 18, levels: &[ANGLES, NEXT] },
    AngleTree { dim: 16, levels: &[Angles { bits: 0, directions: &[[0.0; 2]; 1], ..ANGLES }] },
    AngleTree { dim: 16, levels: &[Angles { bits: 9, directions: &[[0.0; 2]; 512], tangents: &[0.0; 127] }] },
    AngleTree { dim: 16, levels: &[NEXT] },
    AngleTree { dim: 16, levels: &[ANGLES, ANGLES] },
];

static REFUSED_IN: Mutex<String> = Mutex::new(String::new());

/// Returns whether a call fails by an assertion of a contract. The hook is [`note`].
fn refused(call: &dyn Fn()) -> bool {
    let panicked = catch_unwind(AssertUnwindSafe(call)).is_err();
    panicked && REFUSED_IN.lock().is_ok_and(|file| is_contract(&file))
}

fn note(panic: &PanicHookInfo) {
    let words = panic.payload().downcast_ref::<&str>();
    let asserted = words.is_some_and(|words| words.starts_with("assertion"));
    if let (Some(place), Ok(mut file)) = (panic.location(), REFUSED_IN.lock()) {
        *file = if asserted { place.file().to_owned() } else { String::new() };
    }
}

#[test]
fn lengths_and_shapes_are_checked_before_a_kernel_is_reached() {
    for method in methods::all() {
        assert!(
            RIGHT.iter().any(|(text, _)| text.starts_with(&format!("b.{method}("))),
            "{method} is not here"
        );
    }
    for (text, call) in RIGHT {
        println!("{text}"); // the last one is what fails
        Backend::available().for_each(call);
    }
    let hook = take_hook();
    set_hook(Box::new(note));
    let mut accepted = Vec::new();
    for backend in Backend::available() {
        let mut check = |text: &dyn Fn() -> String, call: &dyn Fn()| {
            accepted.extend((!refused(call)).then(|| format!("{}: {}", backend.name(), text())));
        };
        for (text, call) in RIGHT {
            MADE.set((0, usize::MAX, 0));
            call(backend);
            for slice in 0..MADE.get().0 {
                for by in [-1, 1] {
                    MADE.set((0, slice, by));
                    check(&|| format!("{text}, slice {slice} longer by {by}"), &|| call(backend));
                }
            }
        }
        MADE.set((0, usize::MAX, 0));
        for (text, call) in WRONG {
            check(&|| (*text).to_owned(), &|| call(backend));
        }
        for layout in LAYOUTS {
            check(&|| format!("{layout:?}"), &|| {
                backend.encode_triplets(
                    layout,
                    Search::Nearest,
                    &z(layout.dim),
                    1.0,
                    &mut z(layout.stream_bytes()),
                );
            });
        }
        for tree in TREES {
            check(&|| format!("{tree:?}"), &|| {
                backend.quantize_angles(tree, &mut z(tree.dim), &mut z(tree.codes()));
            });
        }
    }
    set_hook(hook);
    assert!(accepted.is_empty(), "{}", accepted.join("\n"));
}
