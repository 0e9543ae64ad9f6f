//! Snapshots and evictions of sequences on a GPU: the CPU's bytes, and attention after them.

use super::append::Both;
use super::vectors::Random;
use super::{BLOCK_TOLERANCE, Case, TOLERANCE, case, device, error, page_bytes};
use octaplex::cache::{Center, SharedLayer};
use octaplex::{Attend, Backend, Error, LayerConfig, gpu};

fn saved(gpu: &mut gpu::Layer, sequence: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    gpu.save(sequence, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
    bytes
}

fn saved_on_cpu(cpu: &SharedLayer) -> Vec<u8> {
    let mut bytes = Vec::new();
    cpu.save(&mut |piece| bytes.extend_from_slice(piece));
    bytes
}

fn loaded_on_cpu(config: &LayerConfig, bytes: &[u8]) -> Result<SharedLayer, Error> {
    let mut cpu = SharedLayer::on_heap(config, Backend::detect()).unwrap();
    cpu.load(bytes).map(|()| cpu)
}

impl Both {
    /// Checks that both save the same bytes, and that loading them restores the sequence on GPU and CPU.
    fn check_snapshot(&mut self) {
        let (bytes, expected) = (saved(&mut self.gpu, 1), saved_on_cpu(&self.cpu));
        let first = bytes.iter().zip(&expected).position(|(a, b)| a != b);
        assert!(bytes == expected, "{} and {} bytes, at {first:?}", bytes.len(), expected.len());
        let cpu = loaded_on_cpu(self.cpu.config(), &bytes).unwrap();
        assert!(saved_on_cpu(&cpu) == bytes);
        self.gpu.load(0, &expected).unwrap();
        assert!(saved(&mut self.gpu, 0) == bytes);
    }

    fn truncate(&mut self, position: usize) {
        self.cpu.truncate(position).unwrap();
        self.gpu.truncate(1, position).unwrap();
        self.compared = 0;
        self.check();
    }

    fn evict(&mut self, positions: std::ops::Range<usize>) -> usize {
        let expected = self.cpu.evict(positions.clone());
        assert_eq!(self.gpu.evict(1, positions).unwrap(), expected);
        self.compared = 0;
        self.check();
        expected
    }
}

/// The parts of a configuration that change a snapshot.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (number, (keys, values, dim)) in [
        ("turboquant", "trellis", 128),
        ("trellis:m=2", "turboquant:bits=3", 80),
        ("turboquant:bits=3", "turboquant:bits=2", 64),
        ("octopus", "turboquant", 64),
        ("int", "int:bits=8", 192),
        ("tq3_0", "int", 96),
        ("hqmq", "turboquant", 80),
        ("turboquant:bits=7", "trellis:m=3,states=16", 96),
        ("int:group=16,asymmetric=true", "int:bits=8,group=32", 96),
        ("turboquant:levels=12", "turboquant:levels=5", 80),
        ("int:med=2", "int:bits=8,group=16,med=2", 64),
        ("hqmq:med=2", "turboquant", 128),
        ("graded", "trellis", 128),
    ]
    .into_iter()
    .enumerate()
    {
        let mut case = case(keys, values, dim, (4, 2), 1500);
        case.config =
            case.config.page([64, 128, 64, 256, 64][number % 5]).sink_tokens([4, 0, 17, 4, 1][number % 5]);
        case.config = case.config.center([Center::Page, Center::Prefix, Center::Off][number % 3]);
        case.config = case.config.balance(number != 2).max_rollback([64, 0, 100, 64, 200][number % 5]);
        if number == 2 {
            case.config = case.config.sliding_window(300);
        }
        all.push(case);
    }
    all
}

#[test]
fn snapshots_are_the_cpus() {
    let Some(device) = device() else { return };
    for case in cases() {
        let mut both = Both::new(&device, &case);
        both.check_snapshot();
        for count in [2, 1, 90, 120, 64, 1, 400] {
            both.append_and_compare(count);
            both.check_snapshot();
        }
        let back = case.config.max_rollback.min(50);
        both.truncate(both.given - back);
        both.check_snapshot();
        both.append_and_compare(300);
        both.check_snapshot();
        // The loaded sequence continues like the saved one.
        both.gpu.load(0, &saved_on_cpu(&both.cpu)).unwrap();
        both.gpu.clear(1).unwrap();
        both.gpu.fork(0, 1).unwrap();
        both.append_and_compare(200);
        both.check_snapshot();
        both.attend(&device, &case);
        // A page that is decoded.
        if case.config.sliding_window.is_none() {
            both.truncate(both.cpu.next_position() - 210);
            both.check_snapshot();
            both.append_and_compare(100);
            both.check_snapshot();
        }
    }
    // A balance that a prompt's queries decided, before a page closes and after it.
    let case = case("turboquant", "turboquant", 64, (2, 1), 900);
    let mut both = Both::new(&device, &case);
    let [keys, values] = both.next(90);
    both.cpu.append(&keys, &values, &mut both.scratch).unwrap();
    both.cpu.calibrate(&keys, &keys).unwrap();
    both.given = 90;
    both.gpu.load(1, &saved_on_cpu(&both.cpu)).unwrap();
    both.check_snapshot();
    both.append_and_compare(400);
    both.check_snapshot();
    both.truncate(440);
    both.check_snapshot();
}

#[test]
fn damaged_snapshots_change_nothing() {
    let Some(device) = device() else { return };
    let case = case("turboquant", "trellis", 64, (2, 1), 800);
    let mut both = Both::new(&device, &case);
    both.append_and_compare(500);
    let before = saved(&mut both.gpu, 1);
    let refused = |both: &mut Both, bytes: &[u8]| {
        let expected = loaded_on_cpu(&case.config, bytes).unwrap_err();
        assert_eq!(both.gpu.load(1, bytes), Err(gpu::Error::Library(expected)));
    };
    let good = saved_on_cpu(&case.layer());
    for length in (0..good.len()).step_by(good.len() / 150).chain([7, 8, 12, good.len() - 1]) {
        refused(&mut both, &good[..length]);
    }
    let mut random = Random::new(3);
    for _ in 0..150 {
        let mut bytes = good.clone();
        bytes[random.below(good.len())] ^= 1 << random.below(8);
        refused(&mut both, &bytes);
    }
    refused(&mut both, &[&good[..], &[0]].concat());
    let other = Case { config: case.config.sink_tokens(5), ..case };
    refused(&mut both, &saved_on_cpu(&other.layer()));
    let other = Case { config: case.config.values("turboquant".parse().unwrap()), ..case };
    refused(&mut both, &saved_on_cpu(&other.layer()));
    let mut larger = Case { tokens: 3000, ..case };
    larger.config.capacity = 4000;
    refused(&mut both, &saved_on_cpu(&larger.layer())); // more than the capacity

    // A norm below zero, which kernels cannot read.
    let (mut at, mut length) = (None, 0);
    case.config.page_layout(|bytes, what| {
        if what.starts_with("norms of the keys") {
            at = Some(length);
        }
        length += bytes;
    });
    let (mut bytes, end) = (good.clone(), good.len() - 4);
    let page = end - length;
    bytes[page + at.unwrap() + 1] |= 0x80;
    let checksum = crc32fast::hash(&bytes[page..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    let refused = both.gpu.load(1, &bytes);
    assert!(matches!(refused, Err(gpu::Error::Library(Error::Corrupt { .. }))), "{refused:?}");

    let missing = both.gpu.load(2, &good);
    assert!(matches!(missing, Err(gpu::Error::Library(Error::Missing { .. }))), "{missing:?}");
    assert!(both.gpu.save(2, &mut |_| panic!("written")).is_err() && both.gpu.download(2).is_err());
    assert!(both.gpu.evict(2, 0..1).is_err());
    let mut small = gpu::Layer::new(&device, &case.config, 2, 700).unwrap();
    small.load(0, &before).unwrap();
    assert!(matches!(small.load(0, &good), Err(gpu::Error::Full { .. })));
    assert!(saved(&mut small, 0) == before);
    small.clear(0).unwrap();
    small.load(0, &good).unwrap();
    // More tokens than a sequence of that layer can hold.
    let mut narrow = case.config;
    narrow.capacity = 600;
    let mut narrow = gpu::Layer::new(&device, &narrow, 1, 1500).unwrap();
    assert!(matches!(narrow.upload(0, &case.layer()), Err(gpu::Error::Unsupported { .. })));

    assert!(saved(&mut both.gpu, 1) == before);
    both.append_and_compare(200);
    both.attend(&device, &case);
}

/// Compares the output of sequence 1 with f64 on the CPU's tokens.
fn check_attention(both: &mut Both, case: &Case, options: &Attend) {
    let queries = case.block(options.queries.unwrap_or(1));
    both.gpu.clear(0).unwrap();
    both.gpu.reserve(case.heads).unwrap();
    let mut output = vec![f32::NAN; 2 * queries.len()];
    both.gpu.attend_with(&[&queries[..], &queries].concat(), options, &mut output).unwrap();
    let exact = case.in_f64(&both.cpu, &queries, options);
    let wrong = error(&output[queries.len()..], &exact, case.config.key_dim);
    // Blocks round queries, keys, values and weights to f16.
    let most =
        if options.queries.is_some() || options.position.is_some() { BLOCK_TOLERANCE } else { TOLERANCE };
    println!("{} tokens, {options:?}: {wrong:.1e}", both.cpu.stats().tokens);
    assert!(wrong < most, "{wrong:e}");
}

#[test]
fn evicted_tokens_are_not_seen() {
    let Some(device) = device() else { return };
    for mut case in cases() {
        case.config.sliding_window = None;
        let (mut both, page) = (Both::new(&device, &case), case.config.page);
        both.append_and_compare(1100);
        assert_eq!(both.evict(0..page / 2), 0, "no whole page");
        assert_eq!(both.evict(std::ops::Range { start: 900, end: 100 }), 0);
        let gone = both.evict(150..700);
        assert!(gone > 0 && gone.is_multiple_of(page));
        both.check_snapshot();
        let block = case.config.key_dim <= 128;
        let all = [
            Attend::default(),
            Attend::default().window(500),
            Attend::default().window(450).keep_sinks(true).soft_cap(5.0),
            Attend::default().queries(70),
            Attend::default().position(300), // in the gap
            Attend::default().queries(40).position(720).window(300),
        ];
        for options in all.iter().filter(|options| block || options.queries.or(options.position).is_none()) {
            check_attention(&mut both, &case, options);
        }
        both.attend(&device, &case);
        // Tokens are added and removed after the gap. Pages whose rows are still in the ring may be evicted
        // too.
        both.append_and_compare(130);
        let next = both.cpu.next_position();
        both.evict(next - case.config.recent_window - 3 * page..next);
        both.check_snapshot();
        both.append_and_compare(1);
        let back = case.config.max_rollback.min(case.config.recent_window - 1);
        both.truncate(both.cpu.next_position() - back);
        both.check_snapshot();
        both.append_and_compare(70);
        check_attention(&mut both, &case, &Attend::default());
        // Evicts all pages, then rolls back to before their tokens.
        both.evict(0..usize::MAX);
        assert_eq!(both.gpu.pages(1).unwrap(), 0);
        check_attention(&mut both, &case, &Attend::default());
        both.truncate(200);
        both.check_snapshot();
        both.append_and_compare(150);
        both.check_snapshot();
        both.attend(&device, &case);
    }
}

#[test]
fn pages_of_a_fork_stay_when_the_other_evicts() {
    let Some(device) = device() else { return };
    let case = case("trellis", "turboquant", 128, (8, 2), 900);
    let layer = case.layer();
    let pages = layer.stats().paged_tokens / 64;
    let mut gpu = gpu::Layer::new(&device, &case.config, 2, 64 * pages).unwrap();
    gpu.upload(0, &layer).unwrap();
    gpu.fork(0, 1).unwrap();
    gpu.reserve(8).unwrap();
    let queries = [case.queries(), case.queries()].concat();
    let (half, mut before, mut after) = (queries.len() / 2, queries.clone(), queries.clone());
    let step = gpu.capture(&Attend::default()).unwrap();
    gpu.launch(&step, &queries, &mut before).unwrap();
    assert_eq!(before[..half], before[half..]);
    assert_eq!(gpu.evict(1, 100..600).unwrap(), 64 * 7);
    assert_eq!((gpu.tokens(0).unwrap(), gpu.tokens(1).unwrap()), (900, 900 - 64 * 7));
    gpu.launch(&step, &queries, &mut after).unwrap();
    assert_eq!(before[..half], after[..half], "the other owner's");
    let mut evicted = layer.clone();
    assert_eq!(evicted.evict(100..600), 64 * 7);
    let exact = case.in_f64(&evicted, &queries[half..], &Attend::default());
    let wrong = error(&after[half..], &exact, 128);
    assert!(wrong < TOLERANCE, "a captured step skips the gap: {wrong:e}");
    for index in 0..pages {
        let expected = page_bytes(&layer, index);
        let mut bytes = vec![0; expected.len()];
        gpu.page(0, index, &mut bytes).unwrap();
        assert!(bytes == expected, "page {index}");
    }
    // No page is free while one of both holds it. After both evict, they are free.
    let rows = vec![0.5; 2 * 100 * 128];
    assert!(matches!(gpu.append(1, &rows, &rows), Err(gpu::Error::Full { free: 0, .. })));
    assert_eq!(gpu.evict(0, 100..600).unwrap(), 64 * 7);
    gpu.append(1, &rows, &rows).unwrap();
    assert_eq!(saved(&mut gpu, 0), saved_on_cpu(&evicted));
}
