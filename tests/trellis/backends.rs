//! The trellis codec on every backend of a machine: the bytes and bits of the specification. One text for all machines:
//! `tests/trellis.rs` runs it natively and under emulators, `ci/portable` runs it in WebAssembly.

extern crate alloc;

use crate::common::share;
use crate::common::vectors::{Random, adversarial};
use alloc::vec;
use alloc::vec::Vec;
use octaplex::Backend;
use octaplex::codebook::{TRELLIS_LEVELS, TRELLIS_STATES};
use octaplex::codecs::{HeadId, Query, Trellis, TrellisSpec};

/// Every number of states with every number of levels.
fn specs() -> impl Iterator<Item = TrellisSpec> {
    let pairs = TRELLIS_STATES.into_iter().flat_map(|states| TRELLIS_LEVELS.map(|m| (states, m)));
    pairs.map(|(states, m)| TrellisSpec::new(m as u8, states as u8))
}

/// The codec on the specification, and on each other backend.
fn codecs<const D: usize>(
    spec: TrellisSpec,
) -> (Trellis<D>, impl Iterator<Item = (Trellis<D>, &'static str)>) {
    let build = move |backend| Trellis::<D>::build(spec, backend, HeadId::default()).unwrap();
    let others = Backend::available().filter(|backend| *backend != Backend::SCALAR);
    (build(Backend::SCALAR), others.map(move |backend| (build(backend), backend.name())))
}

/// About 100,000 Gaussian vectors and 10,000 with ties, of three widths. The number of vectors.
pub(crate) fn random_vectors_agree() -> usize {
    let mut random = Random::new(72);
    specs()
        .map(|spec| {
            random_rows::<32>(spec, share(1251), &mut random)
        + random_rows::<64>(spec, share(1000), &mut random)
        // Its scores have kernels of their own.
        + random_rows::<128>(spec, share(251), &mut random)
        })
        .sum()
}

fn random_rows<const D: usize>(spec: TrellisSpec, count: usize, random: &mut Random) -> usize {
    let mut rows = random.gaussians(count * D);
    // Few different whole numbers and halves.
    for i in 0..count / 10 {
        rows.extend((0..D).map(|j| [1.0, -0.5, 0.0, 2.0][(random.below(1 + i % 8) + j / 16) % 4]));
    }
    let (rows, _) = rows.as_chunks::<D>();
    let (scalar, others) = codecs::<D>(spec);
    let mut expected = vec![0; rows.len() * scalar.block_bytes()];
    scalar.encode_page(rows, &mut expected).unwrap();
    let read = Read::new(rows.len(), random);
    let results = read.all(&scalar, &expected);
    for (codec, name) in others {
        // Pages, the last one not full; then some vectors one by one.
        let mut blocks = vec![0xaa; expected.len()];
        codec.encode_page(rows, &mut blocks).unwrap();
        assert!(blocks == expected, "{spec:?} at {D}, {name}: pages");
        let mut block = vec![0; codec.block_bytes()];
        for (x, expected) in rows.iter().zip(expected.chunks(block.len())).rev().step_by(20) {
            codec.encode(x, &mut block).unwrap();
            assert!(block == expected, "{spec:?} at {D}, {name}: {x:?}");
        }
        assert!(read.all(&codec, &expected) == results, "{spec:?} at {D}, {name}: scores, sums or vectors");
    }
    rows.len()
}

/// Zeros, one-hot, constants, ties, subnormals, overflows: the same bytes or the same refusal. Returns the number of encoded
/// vectors, and of all.
pub(crate) fn adversarial_vectors_agree() -> [usize; 2] {
    let mut random = Random::new(73);
    let mut counts = [0; 2];
    for spec in specs() {
        for [encoded, all] in
            [adversarial_rows::<64>(spec, &mut random), adversarial_rows::<128>(spec, &mut random)]
        {
            counts = [counts[0] + encoded, counts[1] + all];
        }
    }
    counts
}

fn adversarial_rows<const D: usize>(spec: TrellisSpec, random: &mut Random) -> [usize; 2] {
    let vectors = adversarial(D, random);
    let (scalar, others) = codecs::<D>(spec);
    let mut expected = Vec::new();
    let mut outcomes = Vec::new();
    let mut block = vec![0; scalar.block_bytes()];
    for x in &vectors {
        let outcome = scalar.encode(x.first_chunk().unwrap(), &mut block);
        if outcome.is_ok() {
            expected.extend_from_slice(&block);
        }
        outcomes.push(outcome);
    }
    let encoded = expected.len() / block.len();
    let read = Read::new(encoded, random);
    let results = read.all(&scalar, &expected);
    for (codec, name) in others {
        let mut rest = expected.chunks(block.len());
        for (i, (x, outcome)) in vectors.iter().zip(&outcomes).enumerate() {
            block.fill(0xaa);
            assert_eq!(
                codec.encode(x.first_chunk().unwrap(), &mut block),
                *outcome,
                "{spec:?} at {D}, {name}: vector {i}"
            );
            // A refusal leaves the block as it was.
            let untouched = outcome.is_err() && block.iter().all(|byte| *byte == 0xaa);
            assert!(
                untouched || outcome.is_ok() && Some(&*block) == rest.next(),
                "{spec:?} at {D}, {name}: vector {i}"
            );
        }
        assert!(read.all(&codec, &expected) == results, "{spec:?} at {D}, {name}: scores, sums or vectors");
    }
    [encoded, vectors.len()]
}

/// Queries: four share a kernel, the fifth has its own.
const QUERIES: usize = 5;

/// The results of reading blocks.
struct Read {
    queries: Vec<f32>,
    weights: Vec<f32>,
    count: usize,
}

impl Read {
    fn new(count: usize, random: &mut Random) -> Self {
        let weights = (0..QUERIES * count).map(|_| random.unit() as f32).collect();
        Self { queries: random.gaussians(QUERIES * 128), weights, count }
    }

    /// The bits of the scores of all queries, of the weighted sums, and of every 7th vector decoded.
    fn all<const D: usize>(&self, codec: &Trellis<D>, blocks: &[u8]) -> Vec<u32> {
        let (queries, _) = self.queries.as_chunks::<D>();
        let queries: Vec<Query<D>> =
            queries[..QUERIES].iter().map(|q| codec.prepare_query(q).unwrap()).collect();
        let mut results = vec![0.0; QUERIES * self.count];
        codec.score(&queries, blocks, &mut results).unwrap();
        let mut sums = vec![[0.0; D]; QUERIES];
        codec.accumulate(&self.weights, blocks, &mut sums).unwrap();
        results.extend_from_slice(sums.as_flattened());
        for block in blocks.chunks(codec.block_bytes()).step_by(7) {
            let mut x = [0.0; D];
            codec.decode(block, &mut x).unwrap();
            results.extend_from_slice(&x);
        }
        results.into_iter().map(f32::to_bits).collect()
    }
}
