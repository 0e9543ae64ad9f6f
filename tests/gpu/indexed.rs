//! All codes that kernels look up in shared memory: `turboquant` of 1 and 5 to 8 bits and with levels that
//! are no power of two, and every trellis, also those that fit registers.

use super::{
    BLOCK_TOLERANCE, Case, TOLERANCE, WIDTHS, assert_pages, case, device, each_width, error, page_bytes,
};
use octaplex::cache::{Center, SharedLayer};
use octaplex::codecs::{HeadId, Role};
use octaplex::{Attend, Backend, Error, gpu};

/// Returns every m and number of states as keys or as values, and every number of bits as both.
fn pairs() -> Vec<(String, String)> {
    let trellises: Vec<String> = [4, 8, 16, 32, 64]
        .iter()
        .flat_map(|states| [1, 2, 3, 4, 6, 8, 12, 16].map(|m| format!("trellis:m={m},states={states}")))
        .collect();
    let (keys, values) = trellises.split_at(20);
    let mut pairs: Vec<(String, String)> = keys.iter().cloned().zip(values.iter().rev().cloned()).collect();
    pairs.extend(values[..6].iter().cloned().zip(keys[3..].iter().cloned()));
    for bits in 5..=8 {
        pairs.push((format!("turboquant:bits={bits}"), format!("turboquant:bits={bits}")));
    }
    pairs
}

/// Checks pages, a step and a block of queries of one case.
fn check(device: &gpu::Device, case: &Case, what: &str) {
    let layer = case.layer();
    let mut gpu = case.on_gpu(device, &layer);
    assert_pages(&mut gpu, 0, &layer);
    let (step, cpu) = case.check(device, &Attend::default());
    let (block, _) = case.check(device, &Attend::default().queries(33));
    println!("{what}: step {step:.1e}, block {block:.1e}, CPU {cpu:.1e}");
    assert!(step < TOLERANCE, "{what}: {step:e}");
    assert!(block < BLOCK_TOLERANCE, "{what}, a block: {block:e}");
}

#[test]
fn every_trellis_and_number_of_bits() {
    let Some(device) = device() else { return };
    // Each pair at one width. Tests that codecs share cover the others.
    each_width(&WIDTHS, |dim| {
        let width = WIDTHS.iter().position(|width| *width == dim).unwrap();
        for (number, (keys, values)) in pairs().iter().enumerate() {
            if number % WIDTHS.len() != width {
                continue;
            }
            let mut case = case(keys, values, dim, (6, 2), 800);
            case.config = case.config.page([64, 128, 256][number % 3]);
            case.config = case.config.center([Center::Page, Center::Off, Center::Page][number / 6 % 3]);
            check(&device, &case, &format!("{keys:24} {values:24} width {dim:3}"));
        }
    });
}

/// Numbers of levels up to 16 that have no look-ups in registers.
pub(super) const LEVELS: [&str; 6] = [
    "turboquant:bits=1",
    "turboquant:levels=3",
    "turboquant:levels=5",
    "turboquant:levels=6",
    "turboquant:levels=10",
    "turboquant:levels=12",
];

/// Each as keys and as values at every width, which decides where a last group of digits is short.
#[test]
fn every_number_of_levels() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let width = WIDTHS.iter().position(|width| *width == dim).unwrap();
        for (number, keys) in LEVELS.iter().enumerate() {
            let values = LEVELS[(number + width) % LEVELS.len()];
            let mut case = case(keys, values, dim, (6, 2), 800);
            case.config = case.config.page([64, 128, 256][(number + width) % 3]);
            case.config =
                case.config.center([Center::Page, Center::Prefix, Center::Page, Center::Off][number % 4]);
            check(&device, &case, &format!("{keys:20} {values:20} width {dim:3}"));
        }
    });
}

/// Digits that no code has are errors, and so are digits after a short last group that no encoder writes.
/// The layer stays as it was.
#[test]
fn digits_of_no_code_are_refused() {
    let Some(device) = device() else { return };
    for (codec, dim) in
        [("turboquant:levels=3", 64), ("turboquant:levels=10", 80), ("turboquant:levels=5", 64)]
    {
        let case = case(codec, codec, dim, (2, 1), 500);
        let layer = case.layer();
        let mut gpu = gpu::Layer::new(&device, &case.config, 1, 2 * case.config.capacity).unwrap();
        gpu.upload(0, &layer).unwrap();
        let mut before = Vec::new();
        gpu.save(0, &mut |piece| before.extend_from_slice(piece)).unwrap();
        // The keys of the last page, after its position, are rows of planes: the first group of digits, the
        // last of a row, and one of the last row.
        let (row, raw) =
            (case.config.keys.block_bytes(dim) - 2, if codec.ends_with("10") { dim / 8 } else { 0 });
        let (end, pages) = (before.len() - 4, gpu.pages(0).unwrap());
        let page = end - page_bytes(&layer, 0).len();
        let corrupt = Err(gpu::Error::Library(Error::Corrupt { block: (pages - 1) * case.config.page }));
        for at in [raw, row - 1, 63 * row + raw] {
            let mut bytes = before.clone();
            bytes[page + 8 + at] = 0xff;
            let checksum = crc32fast::hash(&bytes[page..end]);
            bytes[end..].copy_from_slice(&checksum.to_le_bytes());
            let mut damaged = SharedLayer::on_heap(&case.config, Backend::detect()).unwrap();
            damaged.load(&bytes).unwrap();
            assert_eq!(gpu.upload(0, &damaged), corrupt, "{codec}, byte {at}");
            assert_eq!(gpu.load(0, &bytes), corrupt, "{codec}, byte {at}");
            let mut after = Vec::new();
            gpu.save(0, &mut |piece| after.extend_from_slice(piece)).unwrap();
            assert!(before == after, "{codec}, byte {at}");
        }
    }
}

/// The maximum of slots that a block of threads sums, with the largest centroid in one coordinate: sums fit
/// 32 bits.
#[test]
fn sums_of_the_largest_centroids() {
    let Some(device) = device() else { return };
    for values in ["turboquant:bits=8", "turboquant:bits=5", "turboquant:levels=12", "trellis:m=16,states=4"]
    {
        let (dim, tokens) = (64, 512 * 64);
        let case = case("turboquant", values, dim, (2, 1), tokens + 132);
        let stream = HeadId { layer: case.config.layer, head: 0, role: Role::Values };
        let codec = case.config.values.build_dyn(dim, Backend::detect(), stream);
        let mut row = vec![0.0; dim];
        row[0] = 1.0;
        codec.unwrap().finish(&mut row);
        let rows = row.repeat(case.tokens);
        let mut layer = SharedLayer::on_heap(&case.config, Backend::detect()).unwrap();
        layer.append(&rows, &rows, &mut vec![0.0; case.config.scratch_len(2)]).unwrap();
        let mut gpu = case.on_gpu(&device, &layer);
        gpu.reserve_splits(2, Some(1)).unwrap();
        let queries = case.queries();
        let mut output = vec![f32::NAN; queries.len()];
        gpu.attend(&queries, &mut output).unwrap();
        let wrong = error(&output, &case.in_f64(&layer, &queries, &Attend::default()), dim);
        println!("{values}: {wrong:.1e}");
        assert!(wrong < TOLERANCE, "{values}: {wrong:e}");
    }
}
