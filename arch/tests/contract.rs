//! Wrong lengths and shapes never reach a kernel: the file of each shape (or `lib.rs`) refuses it, and the kernels' SAFETY comments rely on it.
//! A panic anywhere else would be a kernel's own, by luck, and does not count.

use octaplex_arch::quaternion::{ChunkLayout, QuaternionSet, RadiusSteps};
use octaplex_arch::{
    Affine, AngleTree, Angles, Backend, BlockBook, Fit, Float, IntQuery, Packing, Rows, Search, SignQuery,
    SignRows, TrellisCodebook, TripletLayout,
};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Mutex;

/// So many zeros.
fn z<T: Clone + Default>(count: usize) -> Vec<T> {
    vec![T::default(); count]
}

/// Rows of `len` bytes.
fn rows(bytes: &[u8], stride: usize, len: usize, dim: usize) -> Rows<'_> {
    Rows { bytes, stride, len, dim, scales: None, ahead: &[] }
}

/// The same, their scales apart.
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
/// 577 codes have 116 bytes, and are one more than a kernel has room for.
const THREE: Packing = Packing::for_levels(3).unwrap();
const BOOK: TrellisCodebook = TrellisCodebook::new(2, 2, &[0; 16]);
const BLOCKS: BlockBook = BlockBook::TwoBits { centroids: [0.0; 4], thresholds: [0.0; 3] };
const ANGLES: Angles = Angles { bits: 2, directions: &[[0.0; 2]; 4], tangents: &[] };
const NEXT: Angles = Angles { tangents: &[0.0; 3], ..ANGLES };
const TREE: AngleTree = AngleTree { dim: 16, levels: &[ANGLES, NEXT] }; // 4 roots, 12 codes, 11 bytes
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
const CHUNKS: ChunkLayout = ChunkLayout { chunks: 2, members: 1, radius_bits: 4, radix: false, flags: false }; // 5 bytes
const SET: QuaternionSet = QuaternionSet { members: &[[0.0; 4]], ints: &[[0; 4]], index: None };
const STEPS: RadiusSteps = RadiusSteps { factor: 1.0, limit: 15 };

/// Whether a file holds methods of `Backend`: `lib.rs`, or a shape's own file, which lies beside its folder.
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
        [$((stringify!($call), (|$backend: Backend| { let _ = $call; }) as fn(Backend))),*]
    };
}

#[test]
fn lengths_and_shapes_are_checked_before_a_kernel_is_reached() {
    let encode = |backend: Backend, layout: TripletLayout| {
        backend.encode_triplets(&layout, Search::Nearest, &z(6), 1.0, &mut z(2));
    };
    encode(Backend::SCALAR, OCTAHEDRAL);
    let layouts = [
        TripletLayout { dim: 0, ..OCTAHEDRAL },
        TripletLayout { dim: 577, ..OCTAHEDRAL },
        TripletLayout { scale: Float::Bf16, ..OCTAHEDRAL },
        TripletLayout { direction_bits: 0, ..OCTAHEDRAL },
        TripletLayout { direction_bits: 8, ..OCTAHEDRAL },
        TripletLayout { radius_bits: 7, radii: &[0.0; 128], ..OCTAHEDRAL },
        TripletLayout { rest_bits: 3, rest: &[0; 8], ..OCTAHEDRAL },
        TripletLayout { rest_bits: 0, ..OCTAHEDRAL },
        TripletLayout { coordinates: &[0.0; 3], ..OCTAHEDRAL },
        TripletLayout { lengths: &[0.0; 3], ..OCTAHEDRAL },
        TripletLayout { directions: &[[0; 4]; 15], ..OCTAHEDRAL },
        TripletLayout { directions: &[], ..OCTAHEDRAL },
        TripletLayout { planes: [&[128; 128], &[128; 127], &[128; 128]], ..OCTAHEDRAL },
        TripletLayout { radii: &[0.0; 1], ..OCTAHEDRAL },
        TripletLayout { rest: &[0; 1], ..OCTAHEDRAL },
    ];
    let trees = [
        AngleTree { dim: 16, levels: &[] },
        AngleTree { dim: 512, levels: &[NEXT; 10] },
        AngleTree { dim: 592, levels: &[ANGLES] },
        AngleTree { dim: 0, levels: &[ANGLES] },
        AngleTree { dim: 18, levels: &[ANGLES, NEXT] },
        AngleTree { dim: 16, levels: &[Angles { bits: 0, ..ANGLES }] },
        AngleTree { dim: 16, levels: &[Angles { bits: 9, ..ANGLES }] },
        AngleTree { dim: 16, levels: &[Angles { directions: &[[0.0; 2]; 3], ..ANGLES }] },
        AngleTree { dim: 16, levels: &[Angles { directions: &[[0.0; 2]; 5], ..ANGLES }] },
        AngleTree { dim: 16, levels: &[NEXT] },
        AngleTree { dim: 16, levels: &[ANGLES, ANGLES] },
    ];
    let calls = calls! { b:
        b.dot(&z(3), &z(4));
        b.add(&z(3), &mut z(4));
        b.add(&z(5), &mut z(4));
        b.f16_dot_fma(&z(4), &z(16), &mut z(1));
        b.f16_dot_fma(&z(4), &z(16), &mut z(3));
        b.f16_dot_fma(&z(4), &z(17), &mut z(2));
        b.f16_dot_fma(&z(0), &z(0), &mut z(0));
        b.rotate(&mut z(16), &z(15), 1.0);
        b.rotate(&mut z(15), &z(15), 1.0);
        b.rotate_inverse(&mut z(16), &z(17), 1.0);
        b.rotate_inverse(&mut z(0), &z(0), 1.0);
        b.multiply_columns(&z(15), &z(4), &mut z(4));
        b.multiply_columns(&z(20), &z(4), &mut z(5));
        b.quantize(&z(3), 1.0, &z(1), &mut z(4));
        b.quantize(&z(3), 1.0, &z(256), &mut z(3));
        b.lookup(&z(3), &z(2), 1.0, &mut z(4));
        b.lookup(&z(3), &z(0), 1.0, &mut z(3));
        b.lookup(&z(3), &z(257), 1.0, &mut z(3));
        b.lookup_packed(TWO, &z(3), &z(4), 1.0, &mut z(16));
        b.lookup_packed(TWO, &z(5), &z(4), 1.0, &mut z(16));
        b.lookup_packed(TWO, &z(4), &z(3), 1.0, &mut z(16));
        b.lookup_packed(TWO, &z(4), &z(5), 1.0, &mut z(16));
        b.lookup_packed(THREE, &z(116), &z(3), 1.0, &mut z(577));
        b.pack(Packing::bits(1), &z(9), &mut z(1));
        b.pack(Packing::bits(1), &z(9), &mut z(3));
        b.unpack(Packing::bits(1), &z(1), &mut z(9));
        b.unpack(Packing::bits(1), &z(3), &mut z(9));
        b.quantize_query(&z(3), 127, &mut z(4));
        b.quantize_query(&z(3), 0, &mut z(3));
        b.score_codes(TWO, &rows(&z(12), 6, 2, 0), &z(4), 1.0, &[], &mut z(0));
        b.score_codes(TWO, &rows(&z(0), 147, 147, 577), &z(4), 1.0, &[], &mut z(0));
        b.score_codes(TWO, &rows(&z(10), 5, 6, 16), &z(4), 1.0, &[int(&z(16))], &mut z(2));
        b.score_codes(TWO, &rows(&z(13), 6, 6, 16), &z(4), 1.0, &[int(&z(16))], &mut z(2));
        b.score_codes(TWO, &rows(&z(12), 6, 6, 16), &z(3), 1.0, &[int(&z(16))], &mut z(2));
        b.score_codes(TWO, &rows(&z(12), 6, 6, 16), &z(4), 1.0, &[int(&z(16)), int(&z(15))], &mut z(4));
        b.score_codes(TWO, &rows(&z(12), 6, 6, 16), &z(4), 1.0, &[int(&z(16))], &mut z(3));
        b.accumulate_codes(TWO, &rows(&z(12), 6, 6, 16), &z(5), 1.0, &z(2), &mut z(16));
        b.accumulate_codes(TWO, &rows(&z(12), 6, 6, 16), &z(4), 1.0, &z(2), &mut z(17));
        b.accumulate_codes(TWO, &rows(&z(12), 6, 6, 16), &z(4), 1.0, &z(3), &mut z(16));
        b.score_codes(TWO, &rows(&z(14), 7, 7, 16), &z(4), 1.0, &[int(&z(16))], &mut z(2));
        b.score_codes(TWO, &apart(rows(&z(10), 4, 6, 16), &z(3)), &z(4), 1.0, &[int(&z(16))], &mut z(2));
        b.score_codes(TWO, &apart(rows(&z(9), 3, 6, 16), &z(2)), &z(4), 1.0, &[int(&z(16))], &mut z(2));
        b.score_codes(TWO, &apart(rows(&z(11), 4, 6, 16), &z(2)), &z(4), 1.0, &[int(&z(16))], &mut z(2));
        b.score_trellis(&BOOK, &rows(&z(14), 7, 7, 16), 1.0, &[int(&z(16))], &mut z(2));
        b.score_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 7), &[int(&z(7))], &mut z(2));
        b.decode_trellis(&BOOK, &z(2), 1.0, &mut z(0));
        b.decode_trellis(&BOOK, &z(8), 1.0, &mut z(24));
        b.decode_trellis(&BOOK, &z(150), 1.0, &mut z(592));
        b.decode_trellis(&BOOK, &z(7), 1.0, &mut z(16));
        b.decode_trellis(&BOOK, &z(12), 1.0, &mut z(16));
        b.score_trellis(&BOOK, &rows(&z(13), 6, 6, 16), 1.0, &[int(&z(16))], &mut z(2));
        b.score_trellis(&BOOK, &rows(&z(12), 6, 6, 16), 1.0, &[int(&z(15))], &mut z(2));
        b.score_trellis(&BOOK, &rows(&z(12), 6, 6, 16), 1.0, &[int(&z(16))], &mut z(1));
        b.accumulate_trellis(&BOOK, &rows(&z(12), 6, 6, 16), 1.0, &z(2), &mut z(17));
        b.accumulate_trellis(&BOOK, &rows(&z(12), 6, 6, 16), 1.0, &z(3), &mut z(16));
        b.viterbi_encode(&BOOK, 16, &z(31), &z(2), &mut z(12), &mut [Fit::default(); 2]);
        b.viterbi_encode(&BOOK, 16, &z(32), &z(1), &mut z(12), &mut [Fit::default(); 2]);
        b.viterbi_encode(&BOOK, 16, &z(32), &z(2), &mut z(18), &mut [Fit::default(); 2]);
        b.viterbi_encode(&BOOK, 24, &z(24), &z(1), &mut z(8), &mut [Fit::default()]);
        b.decode_floats(Float::F16, &z(5), &mut z(2));
        b.encode_floats(Float::F32, &z(2), &mut z(9));
        b.largest_bits(Float::F32, &z(6));
        b.score_floats(Float::F16, 0, &z(0), &[], &mut z(0));
        b.score_floats(Float::F16, 577, &z(0), &[], &mut z(0));
        b.score_floats(Float::F16, 3, &z(13), &[&z(3)], &mut z(2));
        b.score_floats(Float::F16, 3, &z(12), &[&z(4)], &mut z(2));
        b.score_floats(Float::F16, 3, &z(12), &[&z(3)], &mut z(3));
        b.accumulate_floats(Float::F16, 3, &z(13), &z(2), &mut z(3));
        b.accumulate_floats(Float::F16, 3, &z(12), &z(2), &mut z(4));
        b.accumulate_floats(Float::F16, 3, &z(12), &z(3), &mut z(3));
        b.quantize_affine(&z(3), 0.0, 1.0, 0, (0, 15), &mut z(4));
        b.quantize_affine(&z(3), 0.0, 1.0, 0, (1, 0), &mut z(3));
        b.quantize_affine(&z(3), 0.0, 1.0, 7, (-8, 7), &mut z(3));
        b.quantize_affine(&z(3), 0.0, 1.0, 1, (0, 255), &mut z(3));
        b.decode_affine(&affine(32, 0, 4), &z(18), &mut z(32));
        b.decode_affine(&affine(32, 8, 4), &z(24), &mut z(32));
        b.decode_affine(&affine(48, 32, 4), &z(26), &mut z(48));
        b.decode_affine(&affine(32, 32, 1), &z(6), &mut z(32));
        b.decode_affine(&affine(32, 32, 9), &z(38), &mut z(32));
        b.decode_affine(&affine(592, 16, 2), &z(222), &mut z(592));
        b.decode_affine(&affine(32, 32, 4), &z(36), &mut z(32));
        b.decode_affine(&affine(32, 32, 4), &z(18), &mut z(33));
        b.soft_cap(&mut z(1), 0.0);
        b.encode_triplets(&OCTAHEDRAL, Search::All, &z(7), 1.0, &mut z(2));
        b.encode_triplets(&OCTAHEDRAL, Search::All, &z(6), 1.0, &mut z(3));
        b.decode_triplets(&OCTAHEDRAL, &z(2), 1.0, &mut z(7));
        b.decode_triplets(&OCTAHEDRAL, &z(1), 1.0, &mut z(6));
        b.score_triplets(&OCTAHEDRAL, &rows(&z(6), 3, 4, 6), &[int(&z(6))], &mut z(2));
        b.score_triplets(&OCTAHEDRAL, &rows(&z(0), 65537, 4, 6), &[], &mut z(0));
        b.score_triplets(&OCTAHEDRAL, &rows(&z(9), 4, 4, 6), &[int(&z(6))], &mut z(2));
        b.score_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &[int(&z(5))], &mut z(2));
        b.score_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &[int(&z(6))], &mut z(1));
        b.score_triplets_floats(&OCTAHEDRAL, &rows(&z(6), 3, 4, 6), &[&z(6)], &mut z(2));
        b.score_triplets_floats(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &[&z(7)], &mut z(2));
        b.score_triplets_floats(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &[&z(6)], &mut z(3));
        b.accumulate_triplets(&OCTAHEDRAL, &rows(&z(6), 3, 4, 6), &z(2), &mut z(6));
        b.accumulate_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &z(2), &mut z(7));
        b.accumulate_triplets(&OCTAHEDRAL, &rows(&z(8), 4, 4, 6), &z(1), &mut z(6));
        b.pack_signs(&z(9), &mut z(1));
        b.unpack_signs(&z(1), 1.0, &mut z(7));
        b.score_signs(&sign_rows(&z(0), 6, 0, 2), 1.0, &[], &mut z(0));
        b.score_signs(&sign_rows(&z(0), 6, 12, 2), 1.0, &[], &mut z(0));
        b.score_signs(&sign_rows(&z(0), 80, 584, 2), 1.0, &[], &mut z(0));
        b.score_signs(&sign_rows(&z(10), 5, 8, 1), 1.0, &[], &mut z(0));
        b.score_signs(&sign_rows(&z(8), 4, 8, 2), 1.0, &[], &mut z(0));
        b.score_signs(&sign_rows(&z(11), 5, 8, 2), 1.0, &[], &mut z(0));
        b.score_signs(&sign_rows(&z(10), 5, 8, 2), 1.0, &[SignQuery { values: &z(7), scale: 1.0 }], &mut z(2));
        b.score_signs(&sign_rows(&z(10), 5, 8, 2), 1.0, &[SignQuery { values: &z(8), scale: 1.0 }], &mut z(1));
        b.accumulate_signs(&sign_rows(&z(8), 4, 8, 2), 1.0, &z(2), &mut z(8));
        b.accumulate_signs(&sign_rows(&z(10), 5, 8, 2), 1.0, &z(2), &mut z(9));
        b.accumulate_signs(&sign_rows(&z(10), 5, 8, 2), 1.0, &z(1), &mut z(8));
        b.quantize_blocks(&BLOCKS, &z(33), &mut z(14));
        b.quantize_blocks(&BLOCKS, &z(32), &mut z(28));
        b.blocks_are_finite(&z(13));
        b.decode_blocks(&BLOCKS, &z(14), &mut z(64));
        b.score_blocks(&BLOCKS, 0, &z(0), &[], &mut z(0));
        b.score_blocks(&BLOCKS, 48, &z(14), &[&z(48)], &mut z(1));
        b.score_blocks(&BLOCKS, 608, &z(0), &[], &mut z(0));
        b.score_blocks(&BLOCKS, 32, &z(15), &[&z(32)], &mut z(1));
        b.score_blocks(&BLOCKS, 32, &z(14), &[&z(33)], &mut z(1));
        b.score_blocks(&BLOCKS, 32, &z(14), &[&z(32)], &mut z(2));
        b.accumulate_blocks(&BLOCKS, 48, &z(14), &z(1), &mut z(48));
        b.accumulate_blocks(&BLOCKS, 32, &z(14), &z(1), &mut z(33));
        b.accumulate_blocks(&BLOCKS, 32, &z(14), &z(2), &mut z(32));
        b.quantize_angles(&TREE, &mut z(17), &mut z(12));
        b.quantize_angles(&TREE, &mut z(16), &mut z(13));
        b.decode_angles(&TREE, &z(12), &mut z(16));
        b.decode_angles(&TREE, &z(11), &mut z(15));
        b.score_angles(&TREE, &z(23), &[&z(16)], &mut z(2));
        b.score_angles(&TREE, &z(22), &[&z(15)], &mut z(2));
        b.score_angles(&TREE, &z(22), &[&z(16)], &mut z(1));
        b.accumulate_angles(&TREE, &z(23), &z(2), &mut z(16));
        b.accumulate_angles(&TREE, &z(22), &z(2), &mut z(17));
        b.accumulate_angles(&TREE, &z(22), &z(3), &mut z(16));
        b.chunk_norms(&z(7), &mut z(2));
        b.encode_quaternions(&SET, &z(7), &z(2), STEPS, &mut z(2), &mut z(2));
        b.encode_quaternions(&SET, &z(8), &z(2), STEPS, &mut z(1), &mut z(2));
        b.encode_quaternions(&SET, &z(8), &z(2), STEPS, &mut z(2), &mut z(3));
        b.encode_quaternions(&QuaternionSet { members: &[], ints: &[], index: None }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
        b.encode_quaternions(&QuaternionSet { ints: &[], ..SET }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
        b.encode_quaternions(&QuaternionSet { members: &z(256), ints: &z(256), index: None }, &z(8), &z(2), STEPS, &mut z(2), &mut z(2));
        b.pack_chunks(&CHUNKS, &z(1), &z(2), &mut z(5));
        b.pack_chunks(&CHUNKS, &z(2), &z(1), &mut z(5));
        b.pack_chunks(&CHUNKS, &z(2), &z(2), &mut z(6));
        b.pack_chunks(&ChunkLayout { chunks: 0, ..CHUNKS }, &z(0), &z(0), &mut z(2));
        b.pack_chunks(&ChunkLayout { chunks: 145, ..CHUNKS }, &z(145), &z(145), &mut z(166));
        b.pack_chunks(&ChunkLayout { members: 2, radix: true, ..CHUNKS }, &z(2), &z(2), &mut z(5));
        b.decode_quaternions(&ChunkLayout { members: 2, ..CHUNKS }, &SET, &z(5), &mut z(8));
        b.decode_quaternions(&CHUNKS, &SET, &z(10), &mut z(8));
        b.decode_quaternions(&CHUNKS, &SET, &z(5), &mut z(9));
        b.score_quaternions(&CHUNKS, &SET, &z(11), &[&z(8)], &mut z(2));
        b.score_quaternions(&CHUNKS, &SET, &z(10), &[&z(7)], &mut z(2));
        b.score_quaternions(&CHUNKS, &SET, &z(10), &[&z(8)], &mut z(1));
        b.accumulate_quaternions(&CHUNKS, &SET, &z(11), &z(2), &mut z(8));
        b.accumulate_quaternions(&CHUNKS, &SET, &z(10), &z(2), &mut z(9));
        b.accumulate_quaternions(&CHUNKS, &SET, &z(10), &z(3), &mut z(8));
    };
    static REFUSED_IN: Mutex<String> = Mutex::new(String::new());
    let hook = take_hook();
    set_hook(Box::new(|panic| {
        if let (Some(place), Ok(mut file)) = (panic.location(), REFUSED_IN.lock()) {
            *file = place.file().to_owned();
        }
    }));
    let refused = |call: &dyn Fn()| {
        let panicked = catch_unwind(AssertUnwindSafe(call)).is_err();
        panicked && REFUSED_IN.lock().is_ok_and(|file| is_contract(&file))
    };
    let mut accepted = Vec::new();
    for backend in Backend::available() {
        let name = backend.name();
        for (text, call) in &calls {
            accepted.extend((!refused(&|| call(backend))).then(|| format!("{name}: {text}")));
        }
        for (i, layout) in layouts.iter().enumerate() {
            let call = || encode(backend, *layout);
            accepted.extend((!refused(&call)).then(|| format!("{name}: octahedral layout {i}")));
        }
        for (i, tree) in trees.iter().enumerate() {
            let call = || backend.quantize_angles(tree, &mut z(tree.dim), &mut z(tree.codes()));
            accepted.extend((!refused(&call)).then(|| format!("{name}: tree {i}")));
        }
    }
    set_hook(hook);
    assert!(accepted.is_empty(), "{}", accepted.join("\n"));
}
