//! Appends tokens on the GPU: pages are bit-exact with the CPU's, in whatever order tokens are added and
//! removed.

use super::indexed::LEVELS;
use super::vectors::Random;
use super::{CODECS, Case, WIDTHS, case, device, each_width, four_bits, others, page_bytes};
use octaplex::cache::{Center, SharedLayer};
use octaplex::{Backend, CodecSpec, Error, LayerConfig, gpu};

/// A layer on the CPU and one on the GPU with the same tokens.
pub(super) struct Both {
    pub(super) cpu: SharedLayer,
    pub(super) gpu: gpu::Layer,
    pub(super) scratch: Vec<f32>,
    pub(super) rows: [Vec<f32>; 2],
    tokens: usize,
    pub(super) given: usize,
    /// Pages that were compared.
    pub(super) compared: usize,
}

impl Both {
    pub(super) fn new(device: &gpu::Device, case: &Case) -> Self {
        let cpu = SharedLayer::on_heap(&case.config, Backend::detect()).unwrap();
        let gpu = gpu::Layer::new(device, &case.config, 2, 2 * case.config.capacity).unwrap();
        let scratch = vec![0.0; case.config.scratch_len(case.heads)];
        Self { cpu, gpu, scratch, rows: case.rows(), tokens: case.tokens, given: 0, compared: 0 }
    }

    /// Returns the next tokens of the rows, \[heads]\[tokens]\[width].
    pub(super) fn next(&self, count: usize) -> [Vec<f32>; 2] {
        let LayerConfig { kv_heads, key_dim: dim, .. } = *self.cpu.config();
        let first = self.given;
        self.rows.clone().map(|rows| {
            let head = |head| &rows[(head * self.tokens + first) * dim..][..count * dim];
            (0..kv_heads).flat_map(|number| head(number).iter().copied()).collect()
        })
    }

    pub(super) fn append_and_compare(&mut self, count: usize) {
        let [keys, values] = self.next(count);
        self.given += count;
        self.cpu.append(&keys, &values, &mut self.scratch).unwrap();
        self.gpu.append(1, &keys, &values).unwrap();
        self.check();
    }

    /// Checks that both hold the same. Pages that were compared before are skipped.
    pub(super) fn check(&mut self) {
        let (stats, page) = (self.cpu.stats(), self.cpu.config().page);
        assert_eq!(self.gpu.tokens(1).unwrap(), stats.tokens);
        assert_eq!(self.gpu.pages(1).unwrap() * page, stats.paged_tokens);
        let pages = stats.paged_tokens / page;
        let from = if stats.evicted_tokens > 0 { 0 } else { self.compared.min(pages) };
        for index in from..pages {
            let expected = page_bytes(&self.cpu, index);
            let mut bytes = vec![0xaa; expected.len()];
            self.gpu.page(1, index, &mut bytes).unwrap();
            let wrong: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != expected[*at]).collect();
            let (count, first) = (wrong.len(), &wrong[..wrong.len().min(12)]);
            assert!(count == 0, "page {index}: {count} of {} bytes differ, at {first:?}", bytes.len());
        }
        self.compared = pages;
    }

    /// Checks that the output has the bits of a layer that was uploaded as a whole.
    pub(super) fn attend(&mut self, device: &gpu::Device, case: &Case) {
        let mut other = gpu::Layer::new(device, &case.config, 2, 2 * case.config.capacity).unwrap();
        other.upload(1, &self.cpu).unwrap();
        let queries = [case.queries(), case.queries()].concat();
        self.gpu.clear(0).unwrap();
        let outputs = [&mut self.gpu, &mut other].map(|layer| {
            let mut output = vec![f32::NAN; queries.len()];
            layer.reserve(case.heads).unwrap();
            layer.attend(&queries, &mut output).unwrap();
            output
        });
        assert_eq!(outputs[0], outputs[1]);
    }
}

#[test]
fn appended_pages_are_the_cpus() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let (mut random, mut compared) = (Random::new(14), 0);
        for (number, keys) in CODECS.iter().enumerate() {
            let values = CODECS[(number + dim / 64) % CODECS.len()];
            let (page, center) = [
                (64, Center::Page),
                (128, Center::Page),
                (256, Center::Page),
                (64, Center::Prefix),
                (64, Center::Off),
            ][number % 5];
            let mut case = case(keys, values, dim, (4, 2), 1500);
            case.seed = number as u64;
            case.config = case.config.page(page).center(center).balance(number != 1);
            let mut both = Both::new(&device, &case);
            // Token by token over the end of the first page, then in pieces, then the rest.
            let first = case.config.sink_tokens + case.config.recent_window + page;
            both.append_and_compare(first - 2);
            (0..4).for_each(|_| both.append_and_compare(1));
            (0..6).for_each(|_| both.append_and_compare(random.below(150) + 1));
            both.append_and_compare(1500 - both.given);
            both.attend(&device, &case);
            compared += both.compared;
            println!("{keys:18} {values:18} width {dim:3}, pages of {page}: {} the same", both.compared);
        }
        assert!(compared > 75, "{compared}");
    });
}

/// Codes of 1 bit, and levels that are no power of two.
#[test]
fn codes_of_every_number_of_levels_are_the_cpus() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let (mut random, mut compared) = (Random::new(16), 0);
        for (number, keys) in LEVELS.iter().enumerate() {
            let values = LEVELS[(number + 1 + dim / 64) % LEVELS.len()];
            let page = [64, 128, 256][(number + dim / 64) % 3];
            let center = [Center::Page, Center::Off, Center::Page, Center::Prefix][number % 4];
            let mut case = case(keys, values, dim, (4, 2), 900);
            case.seed = number as u64;
            case.config = case.config.page(page).center(center).balance(number != 1);
            let mut both = Both::new(&device, &case);
            both.append_and_compare(400);
            (0..4).for_each(|_| both.append_and_compare(random.below(70) + 1));
            both.append_and_compare(900 - both.given);
            both.attend(&device, &case);
            compared += both.compared;
            println!("{keys:20} {values:20} width {dim:3}, pages of {page}: {} the same", both.compared);
        }
        assert!(compared > 30, "{compared}");
    });
}

/// Triplets and integers with all numbers of bits, searches and left-over coordinates; small blocks;
/// chunks.
#[test]
fn triplets_and_integers_are_the_cpus() {
    let Some(device) = device() else { return };
    let more = [
        ("octopus:rounding=local3", "int:bits=8"),
        ("octopus:rounding=scalar,bits=2", "int"),
        ("octopus:rounding=full,bdir=2,bnrm=3", "turboquant"),
        ("octopus:rounding=full,bdir=3,tail=paper", "int:rotate=true,seed=5"),
        ("octopus:rounding=scalar,bdir=1,bnrm=0", "trellis:m=8"),
        ("octopus:rounding=local3,bdir=5,bnrm=0,tail=paper", "turboquant:bits=3"),
    ];
    each_width(&WIDTHS, |dim| {
        let (mut random, mut compared) = (Random::new(15), 0);
        for (number, (keys, values)) in others(dim).chain(more).enumerate() {
            let page = [64, 128, 256][(number + dim / 64) % 3];
            let center = [Center::Page, Center::Page, Center::Prefix, Center::Off][number % 4];
            let mut case = case(keys, values, dim, (4, 2), 900);
            case.seed = number as u64;
            case.config = case.config.page(page).center(center).balance(number % 5 != 1);
            let mut both = Both::new(&device, &case);
            both.append_and_compare(400);
            (0..4).for_each(|_| both.append_and_compare(random.below(70) + 1));
            both.append_and_compare(900 - both.given);
            both.attend(&device, &case);
            compared += both.compared;
            println!("{keys:18} {values:18} width {dim:3}, pages of {page}: {} the same", both.compared);
        }
        assert!(compared > 75, "{compared}");
    });
}

#[test]
fn appended_specs_are_the_cpus() {
    let Some(device) = device() else { return };
    for (keys, values) in [
        ("turboquant:gain=norm,rounds=2", "turboquant:gain=unbiased,seed=3"),
        ("trellis:gain=norm,rounds=3", "trellis:gain=unbiased,rounds=2,seed=9"),
        ("octopus:gain=norm,rounds=3", "int:rotate=true,seed=9"),
        ("turboquant:bits=8,gain=norm,rounds=2", "turboquant:bits=8,gain=unbiased,seed=3"),
        ("turboquant:bits=5,gain=unbiased,rounds=3", "turboquant:bits=6,gain=norm,seed=4"),
        ("turboquant:levels=12,gain=unbiased,seed=2", "turboquant:levels=5,gain=norm,rounds=2"),
        ("turboquant:levels=3,gain=norm,rounds=3", "turboquant:bits=1,gain=unbiased,seed=6"),
        ("octopus:gain=unbiased,rounds=2,seed=9,rounding=full", "int:bits=8,rotate=true,seed=2"),
    ] {
        for dim in [128, 80, 192] {
            let mut both = Both::new(&device, &case(keys, values, dim, (2, 2), 700));
            both.append_and_compare(700);
        }
    }
}

/// Pages that the CPU encodes.
#[test]
fn pages_of_the_cpus_encoders() {
    let Some(device) = device() else { return };
    for (keys, values, dim, page) in [
        ("trellis:scales=3", "turboquant:bits=3", 96, 64),
        ("octopus:tail=paper", "trellis:scales=5", 80, 128),
        ("int:bits=8", "trellis:m=8,scales=3", 192, 256),
        ("tq3_0", "trellis:scales=3", 96, 64),
        ("hqmq:s=100,r=5,rotate=true", "trellis:scales=5", 80, 128),
        ("trellis:m=12,states=4", "trellis:m=16,states=64", 128, 64),
        ("trellis:m=6,states=32,scales=3", "turboquant:bits=7", 256, 64),
    ] {
        let mut case = case(keys, values, dim, (4, 2), 1100);
        case.config = case.config.page(page);
        let mut both = Both::new(&device, &case);
        [500, 1, 1, 70, 300, 5, 223].into_iter().for_each(|count| both.append_and_compare(count));
        both.attend(&device, &case);
        // The GPU's errors for such a page equal the CPU's.
        let mut rows = vec![0.0; 2 * dim * 200];
        rows.iter_mut().step_by(dim).enumerate().for_each(|(n, x)| *x = if n % 128 < 9 { -3e4 } else { 3e4 });
        let mut cpu = both.cpu.clone();
        let expected = cpu.append(&rows, &rows, &mut both.scratch).map_err(gpu::Error::Library);
        assert_eq!(both.gpu.append(1, &rows, &rows), expected, "{keys}");
    }
}

/// Replaces a row of each page by one of a kind: zeros, negative zeros and tiny values, equal values, one
/// coordinate, or very different lengths.
pub(super) fn without_direction(kind: usize, token: usize, row: &mut [f32]) {
    match kind {
        2 => row.fill(0.0),
        3 => row.fill(if token.is_multiple_of(2) { 6e-8 } else { -0.0 }),
        4 => row.fill(1.5),
        5 => row.iter_mut().enumerate().for_each(|(c, x)| *x = f32::from(u8::from(c == token % 64))),
        6 => row.iter_mut().for_each(|x| *x *= [1e-6, 1e3, 1e-3][token % 3]),
        7 if !token.is_multiple_of(64) => row.iter_mut().for_each(|x| *x *= 1e-2),
        _ => {}
    }
}

/// Rows that are zero, tiny, equal, of one coordinate, or of very different lengths.
#[test]
fn rows_without_a_direction_are_the_cpus() {
    let Some(device) = device() else { return };
    for (keys, values) in [
        ("turboquant", "turboquant"),
        ("trellis", "trellis"),
        ("octopus", "int"),
        ("octopus:rounding=full,gain=unbiased", "int:bits=8"),
        ("octopus:rounding=scalar,gain=norm", "int:rotate=true"),
        ("int", "int:bits=8,rotate=true"),
        ("int:bits=8", "turboquant"),
        ("tq3_0", "int"),
        ("tq3_0:variant=3bit", "turboquant"),
        ("hqmq", "int"),
        ("turboquant:bits=8", "turboquant:bits=5"),
        ("turboquant:bits=6", "turboquant:bits=7"),
        ("turboquant:levels=5", "turboquant:levels=12"),
        ("turboquant:bits=1", "turboquant:levels=3"),
        ("trellis:m=3,states=4", "trellis:m=1,states=64"),
    ] {
        let case = case(keys, values, 64, (1, 1), 700);
        let mut both = Both::new(&device, &case);
        for side in &mut both.rows {
            for (token, row) in side.chunks_exact_mut(64).enumerate() {
                without_direction(token / 64 % 9, token, row);
            }
        }
        both.append_and_compare(700);
        both.attend(&device, &case);
    }
}

#[test]
fn tokens_are_taken_back() {
    let Some(device) = device() else { return };
    let mut random = Random::new(5);
    for (center, window) in [(Center::Page, None), (Center::Prefix, None), (Center::Page, Some(200))] {
        let mut case = case("trellis", "turboquant", 64, (2, 1), 4000);
        (case.config.center, case.config.sliding_window) = (center, window);
        let mut both = Both::new(&device, &case);
        both.append_and_compare(3);
        let mut furthest = 3;
        while both.given < 2500 {
            if random.below(3) == 0 {
                let position = both.cpu.next_position().saturating_sub(random.below(65));
                let position = position.max(furthest - furthest.min(64));
                both.cpu.truncate(position).unwrap();
                both.gpu.truncate(1, position).unwrap();
                both.compared = 0;
                both.check();
            } else {
                both.append_and_compare(random.below(120) + 1);
                furthest = furthest.max(both.cpu.next_position());
            }
        }
        both.attend(&device, &case);
        assert_eq!(both.cpu.stats().decoded_tokens, 0);
        both.append_and_compare(70);
        // From pages that cannot open again: cut within one, between two, before all.
        let next = both.cpu.next_position();
        for position in [next - 150, 4 + 20 * 64, 700, 100, 30, 2] {
            let expected = both.cpu.truncate(position).map_err(gpu::Error::Library);
            assert_eq!(both.gpu.truncate(1, position), expected, "{position}");
            assert_eq!(expected.is_err(), window.is_some() && position > 4, "{position}");
            both.compared = 0;
            both.check();
            both.append_and_compare(160);
            both.attend(&device, &case);
        }
        assert_eq!(both.cpu.stats().decoded_tokens > 0, window.is_none());
    }
}

#[test]
fn uploaded_sequences_go_on() {
    let Some(device) = device() else { return };
    for tokens in [0, 2, 90, 131, 132, 133, 190, 700] {
        let case = case("turboquant:bits=3", "trellis:m=2", 128, (4, 2), 1400);
        let mut both = Both::new(&device, &case);
        let [keys, values] = both.next(tokens);
        both.cpu.append(&keys, &values, &mut both.scratch).unwrap();
        if tokens == 90 {
            both.cpu.calibrate(&keys, &keys).unwrap();
        }
        both.given = tokens;
        both.gpu.upload(1, &both.cpu).unwrap();
        both.check();
        both.append_and_compare(1);
        both.append_and_compare(99);
        both.cpu.truncate(tokens + 50).unwrap();
        both.gpu.truncate(1, tokens + 50).unwrap();
        both.append_and_compare(400);
        // A fork continues on its own.
        both.gpu.fork(1, 0).unwrap();
        let before = page_bytes(&both.cpu, 1);
        both.gpu.append(0, &vec![0.5; 2 * 128 * 200], &vec![0.5; 2 * 128 * 200]).unwrap();
        let mut bytes = vec![0; before.len()];
        both.gpu.page(0, 1, &mut bytes).unwrap();
        assert_eq!(before, bytes);
        both.append_and_compare(100);
        both.attend(&device, &case);
    }
}

#[test]
fn wrong_rows_are_errors() {
    let Some(device) = device() else { return };
    for (keys, values) in [
        ("turboquant", "turboquant"),
        ("trellis:m=8", "trellis:m=8"),
        ("octopus", "int"),
        ("int:bits=8", "int"),
        ("tq3_0", "int"),
        ("hqmq", "int"),
        ("turboquant:bits=8", "turboquant:bits=5"),
        ("trellis:states=16", "turboquant:bits=7"),
    ] {
        let case = case(keys, values, 64, (2, 1), 900);
        let mut both = Both::new(&device, &case);
        both.append_and_compare(300);
        // The errors equal the CPU's. Then everything continues as if the call had not happened.
        let mut refused = 0;
        for size in [900.0, 3e3, 8e3, 2e4, 3e4, 32_000.0, 32_700.0, 4e4, 6e4, 7e4, f32::NAN] {
            for kind in 0..4 {
                let [mut keys, mut values] = both.next(130);
                let side = if kind % 2 == 0 { &mut keys } else { &mut values };
                for (token, row) in side.chunks_exact_mut(64).enumerate().skip(40) {
                    row.fill(0.0);
                    let sign = if kind < 2 && token % 2 == 0 { -1.0 } else { 1.0 };
                    row[token % 3] = sign * size;
                }
                let mut cpu = both.cpu.clone();
                let expected = cpu.append(&keys, &values, &mut both.scratch);
                both.gpu.fork(1, 0).unwrap();
                let actual = both.gpu.append(0, &keys, &values);
                refused += usize::from(expected.is_err());
                let tokens = if expected.is_ok() { 430 } else { 300 };
                assert_eq!(actual, expected.map_err(gpu::Error::Library), "{size}, {kind}");
                assert_eq!(both.gpu.tokens(0).unwrap(), tokens);
            }
        }
        assert!((8..44).contains(&refused), "{refused}");
        let short = both.gpu.append(1, &[0.0; 65], &[0.0; 65]);
        assert!(matches!(short, Err(gpu::Error::Library(Error::Rows { what: "keys", .. }))), "{short:?}");
        let short = both.gpu.append(1, &[0.0; 64], &[0.0; 128]);
        assert!(matches!(short, Err(gpu::Error::Library(Error::Rows { what: "values", .. }))), "{short:?}");
        both.gpu.append(1, &[0.0; 0], &[0.0; 0]).unwrap();
        both.append_and_compare(400);
        both.attend(&device, &case);
    }

    // Keys opposite to those that decided the prefix centre, near the largest values of f16.
    for (gain, size) in [
        ("norm", 3e4),
        ("norm", 32_000.0),
        ("norm", 32_700.0),
        ("norm", 32_751.0),
        ("norm", 32_768.0),
        ("mse", 32_000.0),
    ] {
        for codec in [
            "turboquant",
            "trellis:m=8",
            "octopus",
            "int",
            "tq3_0",
            "tq3_0:variant=3bit",
            "hqmq",
            "turboquant:bits=8",
        ] {
            let gain = match codec {
                codec if ["int", "tq3_0", "hqmq"].iter().any(|own| codec.starts_with(own)) => String::new(),
                codec => format!("{}gain={gain}", if codec.contains(':') { "," } else { ":" }),
            };
            let spec: CodecSpec = format!("{codec}{gain}").parse().unwrap();
            let config = four_bits(LayerConfig::new(1, 64, 900)).keys(spec).balance(false);
            let mut gpu = gpu::Layer::new(&device, &config, 1, 960).unwrap();
            let mut cpu = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
            let mut scratch = vec![0.0; config.scratch_len(1)];
            for sign in [-1.0, 1.0] {
                let mut rows = vec![0.0; 64 * 200];
                rows.iter_mut().step_by(64).for_each(|x| *x = sign * size);
                let expected = cpu.append(&rows, &rows, &mut scratch);
                assert_eq!(
                    gpu.append(0, &rows, &rows),
                    expected.map_err(gpu::Error::Library),
                    "{spec} {size}"
                );
            }
        }
    }

    // With a sliding window, whether a layer is full depends neither on the pieces nor on the machine.
    for (capacity, window, rollback) in [(64, 64, 0), (126, 64, 0), (127, 64, 0), (140, 70, 10)] {
        let config = four_bits(LayerConfig::new(1, 64, capacity)).sink_tokens(0).recent_window(0);
        let config = config.sliding_window(window).max_rollback(rollback);
        for count in (1..330).step_by(3) {
            let mut gpu = gpu::Layer::new(&device, &config, 1, 704).unwrap();
            let mut cpu = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
            let (rows, mut scratch) = (vec![0.25; 64 * count], vec![0.0; config.scratch_len(1)]);
            let expected = cpu.append(&rows, &rows, &mut scratch).map_err(gpu::Error::Library);
            assert_eq!(gpu.append(0, &rows, &rows), expected, "{capacity} {window} {rollback}: {count}");
        }
    }

    // Pages that kernels do not encode cannot be measured.
    let several = four_bits(LayerConfig::new(1, 64, 1000)).values("trellis:scales=3".parse().unwrap());
    let mut gpu = gpu::Layer::new(&device, &several, 1, 640).unwrap();
    let refused = gpu.time_append(&[0.5; 64 * 64], &[0.5; 64 * 64], 1);
    assert!(matches!(refused, Err(gpu::Error::Unsupported { .. })), "{refused:?}");

    // More than the capacity, and not enough free pages.
    let config = four_bits(LayerConfig::new(1, 64, 1000));
    let mut gpu = gpu::Layer::new(&device, &config, 2, 640).unwrap();
    let short = gpu.time_append(&[0.5; 64 * 63], &[0.5; 64 * 63], 1);
    assert!(matches!(short, Err(gpu::Error::Unsupported { .. })), "{short:?}");
    let mut gpu = gpu::Layer::new(&device, &config, 2, 640).unwrap();
    let rows = |tokens: usize| vec![0.25; 64 * tokens];
    let full = gpu.append(0, &rows(1001), &rows(1001));
    assert!(
        matches!(full, Err(gpu::Error::Library(Error::Full { capacity: 1000, needed: 1001 }))),
        "{full:?}"
    );
    gpu.append(0, &rows(132 + 64 * 6), &rows(132 + 64 * 6)).unwrap();
    let full = gpu.append(1, &rows(500), &rows(500));
    assert_eq!(full, Err(gpu::Error::Full { needed: 6, free: 3 }));
    assert_eq!((gpu.tokens(1).unwrap(), gpu.tokens(0).unwrap()), (0, 516));
    gpu.append(1, &rows(300), &rows(300)).unwrap();
    assert!(matches!(gpu.append(2, &rows(1), &rows(1)), Err(gpu::Error::Library(Error::Missing { .. }))));
    assert!(matches!(gpu.truncate(2, 0), Err(gpu::Error::Library(Error::Missing { .. }))));
}
