//! Compares the page format as it is written for readers (`reference/lean_page.rs`) with the library, bit for bit: pages of
//! caches and of chunks, decoded values, scores and weighted sums, on every backend.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod lean_page;

use crate::common::bits;
use crate::common::vectors::{Random, adversarial};
use lean_page::{
    Code, Head, add_values, decode_keys, decode_row, decode_values, encode_page, encode_row, finish, parts,
    scores,
};
use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::codebook::TRELLIS_STATES;
use octaplex::codecs::{Codec, HeadId};
use octaplex::{Backend, CodecSpec, KvCache, LayerConfig, f16};

/// The width, centroids and states of keys, those of values, heads, tokens of a page, seed, layer, balance.
#[derive(Clone, Copy)]
struct Case {
    dim: usize,
    keys: (usize, usize),
    values: (usize, usize),
    heads: usize,
    page: usize,
    seed: u64,
    layer: u32,
    balance: bool,
}

/// Every number of centroids and states that lean pages of powers of two have, every such width, every page length.
const CASES: [Case; 8] = [
    case(128, (4, 8), (4, 8), 1, 64, 0, 0, true),
    case(64, (4, 8), (2, 8), 2, 64, 0, 3, true),
    case(128, (8, 8), (4, 16), 2, 128, 7, 31, false),
    case(32, (1, 4), (8, 4), 3, 256, u64::MAX, 1, true),
    case(64, (2, 64), (1, 32), 1, 64, 5, u32::MAX, true),
    case(256, (8, 16), (8, 64), 1, 64, 1, 2, false),
    case(512, (2, 8), (1, 8), 1, 64, 2, 0, true),
    case(32, (4, 32), (2, 4), 2, 64, 9, 4, false),
];

#[allow(clippy::too_many_arguments)] // a row of the table
const fn case(
    dim: usize,
    keys: (usize, usize),
    values: (usize, usize),
    heads: usize,
    page: usize,
    seed: u64,
    layer: u32,
    balance: bool,
) -> Case {
    Case { dim, keys, values, heads, page, seed, layer, balance }
}

impl Case {
    fn spec(&self, (levels, states): (usize, usize)) -> CodecSpec {
        format!("trellis:m={levels},states={states},seed={}", self.seed).parse().unwrap()
    }

    fn codes(&self) -> (Code, Code) {
        let code = |code, role| Code::new(self.dim, code, self.seed, self.layer, role);
        (code(self.keys, 0), code(self.values, 1))
    }

    /// Returns the rows of a head, \[tokens]\[width], as a cache rounds them. Some are difficult: zeros, one value, one
    /// channel, small integers (ties), tiny ones and one that is much longer than all others.
    fn rows(&self, tokens: usize, random: &mut Random) -> Vec<f32> {
        let mut rows = Vec::new();
        for token in 0..tokens {
            for channel in 0..self.dim {
                let common = if channel == 5 { 20.0 } else { 0.25 };
                let x = random.gaussian();
                rows.push(match token % 61 {
                    7 => 0.0,
                    8 => 1.5,
                    9 if channel == 3 => -2.0,
                    9 => 0.0,
                    10 => (2.0 * x).round(),
                    11 => 1e-5 * x,
                    12 if token > 60 => 40.0 * x,
                    _ => common + if channel % 16 == 3 { 8.0 * x } else { x },
                });
            }
        }
        rows.iter().map(|x| f16::from_f32(*x).to_f32()).collect()
    }
}

/// f16 numbers from bytes.
fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

/// Each head's balance and prefix centre, from the bytes that caches and chunks have before their pages; and the bytes that follow.
fn decided<'a>(case: &Case, mut bytes: &'a [u8]) -> (Vec<[Vec<f32>; 2]>, &'a [u8]) {
    let mut take = |is_there: bool| {
        let (taken, rest) = bytes.split_at(if is_there { 2 * case.dim } else { 0 });
        bytes = rest;
        floats(taken)
    };
    let mut heads = Vec::new();
    for _ in 0..case.heads {
        let balance = if case.balance { take(true) } else { vec![1.0; case.dim] };
        heads.push([balance, take(true)]);
    }
    (heads, bytes)
}

/// Tokens of every head, as the reference has them.
fn heads(
    case: &Case,
    (keys, values): (&[Vec<f32>], &[Vec<f32>]),
    first: usize,
    count: usize,
    decided: &[[Vec<f32>; 2]],
) -> Vec<Head> {
    let rows =
        |head: &[f32]| head.chunks(case.dim).skip(first).take(count).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let each = keys.iter().zip(values).zip(decided);
    each.map(|((keys, values), [balance, prefix])| Head {
        keys: rows(keys),
        values: rows(values),
        balance: balance.clone(),
        prefix: prefix.clone(),
    })
    .collect()
}

/// Fails at the first place that differs, rather than with two pages of numbers.
#[track_caller]
fn assert_same<T: PartialEq + std::fmt::Debug>(ours: &[T], theirs: &[T], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}: the length");
    if let Some(at) = (0..ours.len()).find(|&at| ours[at] != theirs[at]) {
        panic!("{what}: number {at} is {:?} in the reference, {:?} in the library", ours[at], theirs[at]);
    }
}

/// The library's results for a cache: its saved pages, and for each head the scores of a query and the weighted sum.
/// Weights of a page have a scale of their own; some are so small that the page adds nothing.
#[derive(PartialEq)]
struct Library {
    pages: Vec<Vec<u8>>,
    scores: Vec<Vec<u32>>,
    sums: Vec<Vec<u32>>,
}

/// Pages of each cache.
const PAGES: usize = 3;

/// Of weights, \[tokens], behind the sinks.
fn library(
    case: &Case,
    backend: Backend,
    tokens: (&[Vec<f32>], &[Vec<f32>]),
    query: &[f32],
    weights: &[f32],
) -> Library {
    let config = LayerConfig::new(case.heads, case.dim, SINKS + (PAGES + 1) * case.page)
        .keys(case.spec(case.keys))
        .values(case.spec(case.values))
        .page(case.page)
        .layer(case.layer)
        .balance(case.balance)
        .sink_tokens(SINKS)
        .recent_window(0);
    let mut cache = KvCache::new([config], backend).unwrap();
    cache.append(0, &tokens.0.concat(), &tokens.1.concat()).unwrap();
    let layer = &cache.layers()[0];
    assert_eq!(layer.stats().paged_tokens, PAGES * case.page);
    let mut pages = vec![Vec::new(); PAGES];
    for (index, page) in pages.iter_mut().enumerate() {
        layer.save_page(index, &mut |piece| page.extend_from_slice(piece)).unwrap();
    }
    let (mut scores, mut sums) = (Vec::new(), Vec::new());
    let weights = [&[0.0; SINKS], weights].concat();
    for head in 0..case.heads {
        let (mut row, mut sum) = (vec![0.0; layer.tokens()], vec![0.0; case.dim]);
        cache.scores(0, head, query, &mut row).unwrap();
        cache.accumulate(0, head, &weights, &mut sum).unwrap();
        scores.push(bits(&row[SINKS..]));
        sums.push(bits(&sum));
    }
    Library { pages, scores, sums }
}

const SINKS: usize = 4;

#[test]
fn pages_scores_and_sums_of_a_cache() {
    for (number, case) in CASES.iter().enumerate() {
        let mut random = Random::new(number as u64 + 1);
        let tokens = SINKS + PAGES * case.page;
        let keys: Vec<Vec<f32>> = (0..case.heads).map(|_| case.rows(tokens, &mut random)).collect();
        let values: Vec<Vec<f32>> = (0..case.heads).map(|_| case.rows(tokens, &mut random)).collect();
        // Every other case has a query that rounds to zeros, and weights that add nothing.
        let query_scale = if number % 2 == 0 { 1.0 } else { 1e-40 };
        let query: Vec<f32> = case.rows(1, &mut random).iter().map(|q| q * query_scale).collect();
        let scales = if number % 2 == 0 { [1.0, 1e-6, 1e-38] } else { [1e-38, 1e-36, 1e-38] };
        let weights: Vec<f32> =
            (0..PAGES * case.page).map(|i| scales[i / case.page] * random.gaussian()).collect();
        let each: Vec<(Backend, Library)> = Backend::available()
            .map(|backend| (backend, library(case, backend, (&keys, &values), &query, &weights)))
            .collect();
        let theirs = &each[0].1;
        for (backend, other) in &each {
            assert!(other == theirs, "case {number}: {backend:?} differs from {:?}", each[0].0);
        }
        let (key_code, value_code) = case.codes();
        let mut ours = vec![Vec::new(); case.heads];
        let mut sums = vec![vec![0.0; case.dim]; case.heads];
        for (index, saved) in theirs.pages.iter().enumerate() {
            // Magic, version and fingerprint; balance and prefix centre of each head; the page; a checksum.
            let (decided, page) = decided(case, &saved[16..saved.len() - 4]);
            let first = SINKS + index * case.page;
            let rows = heads(case, (&keys, &values), first, case.page, &decided);
            let encoded = encode_page(&key_code, &value_code, first as u64, &rows);
            assert_same(&encoded, page, &format!("case {number}, page {index}"));
            for (head, [balance, prefix]) in decided.iter().enumerate() {
                let parts = parts((&key_code, &value_code), page, (head, case.heads), case.page);
                ours[head].extend(scores(&key_code, &parts, &query, balance, prefix));
                add_values(&value_code, &parts, &weights[index * case.page..][..case.page], &mut sums[head]);
            }
        }
        for head in 0..case.heads {
            let what = format!("case {number}, head {head}");
            assert_same(&bits(&ours[head]), &theirs.scores[head], &format!("{what}, scores"));
            // The library adds the exact tokens, here of weight 0: a sum of -0 becomes 0.
            let sum: Vec<f32> = finish(&value_code, &sums[head]).iter().map(|x| x + 0.0).collect();
            assert_same(&bits(&sum), &theirs.sums[head], &format!("{what}, sums"));
        }
    }
}

/// A chunk of one layer, whose last page is shorter, and its decoded rows.
#[test]
fn pages_and_vectors_of_a_chunk() {
    for (number, case) in CASES.iter().enumerate() {
        let (dim, tokens) = (case.dim, case.page + 9);
        let mut random = Random::new(number as u64 + 100);
        let keys: Vec<Vec<f32>> = (0..case.heads).map(|_| case.rows(tokens, &mut random)).collect();
        let values: Vec<Vec<f32>> = (0..case.heads).map(|_| case.rows(tokens, &mut random)).collect();
        let row = |rows: &[Vec<f32>], token: usize| {
            rows.iter().flat_map(|head| head[token * dim..][..dim].to_vec()).collect::<Vec<_>>()
        };
        let tensor: Vec<f32> =
            [&keys, &values].into_iter().flat_map(|rows| (0..tokens).flat_map(|t| row(rows, t))).collect();
        let config = ChunkConfig::new(1, case.heads, dim)
            .keys(case.spec(case.keys))
            .values(case.spec(case.values))
            .page(case.page)
            .first_layer(case.layer)
            .balance(case.balance);
        let each: Vec<(Backend, Vec<u8>, Vec<f32>)> = Backend::available()
            .map(|backend| {
                let codec = ChunkCodec::new(config, backend).unwrap();
                let (blob, mut decoded) = (codec.encode(&tensor[..]).unwrap(), vec![0.0; tensor.len()]);
                codec.decode(&blob, &mut decoded[..]).unwrap();
                (backend, blob, decoded)
            })
            .collect();
        let (first, blob, theirs) = &each[0];
        for (backend, other, decoded) in &each {
            let same = other == blob && bits(decoded) == bits(theirs);
            assert!(same, "case {number}: {backend:?} differs from {first:?}");
        }
        let specs = [config.keys, config.values].map(|spec| spec.to_string().len());
        let header = 8 + 4 + 4 + 5 * 4 + 2 * 8 + 4 + specs[0] + 4 + specs[1] + 4;
        let (decided, mut pages) = decided(case, &blob[header..blob.len() - 4]);
        let (key_code, value_code) = case.codes();
        let mut ours = vec![0.0; tensor.len()];
        for first in (0..tokens).step_by(case.page) {
            let count = case.page.min(tokens - first);
            let rows = heads(case, (&keys, &values), first, count, &decided);
            let encoded = encode_page(&key_code, &value_code, first as u64, &rows);
            let (page, rest) = pages.split_at(encoded.len());
            pages = rest;
            assert_same(&encoded, page, &format!("case {number}, tokens from {first}"));
            for (head, [balance, prefix]) in decided.iter().enumerate() {
                let parts = parts((&key_code, &value_code), page, (head, case.heads), count);
                let decoded =
                    [decode_keys(&key_code, &parts, balance, prefix), decode_values(&value_code, &parts)];
                for (plane, rows) in decoded.iter().enumerate() {
                    for (token, row) in rows.iter().enumerate() {
                        let at = ((plane * tokens + first + token) * case.heads + head) * dim;
                        ours[at..at + dim].copy_from_slice(row);
                    }
                }
            }
        }
        assert!(pages.is_empty(), "case {number}: {} bytes behind the pages", pages.len());
        assert_same(&bits(&ours), &bits(theirs), &format!("case {number}, decoded"));
    }
}

/// Rows for the codec's blocks: few different numbers, so that errors and costs are equal, and difficult rows.
#[test]
fn rows_with_ties() {
    let mut random = Random::new(3);
    let pairs = [1, 2, 4, 8, 16].into_iter().flat_map(|levels| TRELLIS_STATES.map(|states| (levels, states)));
    for (levels, states) in pairs {
        let dim = if states < 32 { 64 } else { 32 };
        let mut rows = adversarial(dim, &mut random);
        for i in 0..60 {
            rows.push(
                (0..dim).map(|j| [1.0, -0.5, 0.0, 2.0][(random.below(1 + i % 8) + j / 16) % 4]).collect(),
            );
        }
        let code = Code::new(dim, (levels, states), 0, 0, 0);
        let spec: CodecSpec = format!("trellis:m={levels},states={states}").parse().unwrap();
        let codec = spec.build_dyn(dim, Backend::detect(), HeadId::default()).unwrap();
        let (mut block, mut decoded, mut encoded) = (vec![0; codec.block_bytes()], vec![0.0; dim], 0);
        for (number, x) in rows.iter().enumerate() {
            // The reference leaves out rows that f16 cannot hold.
            if codec.encode(x, &mut block).is_err() {
                continue;
            }
            let what = format!("{spec}, row {number}");
            let (planes, norm) = encode_row(&code, x);
            let ours = [f16::from_f32(norm).to_le_bytes().to_vec(), planes].concat();
            assert_same(&ours, &block, &what);
            codec.decode(&block, &mut decoded).unwrap();
            assert_same(&bits(&decode_row(&code, &ours[2..], norm)), &bits(&decoded), &what);
            encoded += 1;
        }
        assert!(encoded > 80, "{encoded} rows of {}", rows.len());
    }
}
