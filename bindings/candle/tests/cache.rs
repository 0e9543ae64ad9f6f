//! Compares the cache on tensors with the library's own cache and with exact attention.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use candle_core::{D, DType, Device, Result, Tensor};
use octaplex_candle::{Attend, Backend, KvCache, LayerConfig};

const DIM: usize = 64;

/// Returns roughly normal numbers, the same on every machine.
fn random(shape: [usize; 4], seed: u64) -> Tensor {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next() + next() + next()).collect();
    Tensor::from_vec(values, (shape[0], shape[1], shape[2], shape[3]), &Device::Cpu).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Keys and values with two heads each, and queries with six.
fn tokens(batch: usize, count: usize, seed: u64) -> [Tensor; 3] {
    let kv = |seed| random([batch, 2, count, DIM], seed);
    [random([batch, 6, count, DIM], seed), kv(seed + 1), kv(seed + 2)]
}

fn config() -> LayerConfig {
    LayerConfig::new(2, DIM, 2000)
}

fn in_f32() -> LayerConfig {
    config().keys("f32".parse().unwrap()).values("f32".parse().unwrap())
}

fn narrow(tensors: &[Tensor; 3], from: usize, count: usize) -> [Tensor; 3] {
    tensors.each_ref().map(|tensor| tensor.narrow(2, from, count).unwrap())
}

/// Causal attention as models on candle compute it. `window` counts tokens, the query's own included.
fn exact([q, k, v]: &[Tensor; 3], window: usize) -> Result<Tensor> {
    let (batch, heads, tokens, _) = k.dims4()?;
    let repeat = |kv: &Tensor| {
        let shape = (batch, heads, 3, tokens, DIM);
        kv.unsqueeze(2)?.expand(shape)?.contiguous()?.reshape((batch, heads * 3, tokens, DIM))
    };
    let hidden = |i: usize, j: usize| if j > i || i - j >= window { f32::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f32> = (0..tokens * tokens).map(|at| hidden(at / tokens, at % tokens)).collect();
    let mask = Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)?;
    let logits = (q.matmul(&repeat(k)?.t()?)? / (DIM as f64).sqrt())?.broadcast_add(&mask)?;
    let weights = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
    weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.matmul(&repeat(v)?)
}

/// ‖a - b‖/‖b‖
fn error(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (floats(a), floats(b));
    let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>();
    let difference = sum(&mut a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)));
    (difference / sum(&mut b.iter().map(|b| f64::from(*b).powi(2)))).sqrt()
}

#[test]
fn outputs_are_those_of_exact_attention() {
    let all = tokens(2, 400, 1);
    for (config, window, limit) in [
        (in_f32(), 9999, 1e-3), // sinks and window are f16 with any codec
        (in_f32().sliding_window(90), 90, 1e-3),
        (config(), 9999, 0.1),
        (config().sliding_window(90), 90, 0.1),
    ] {
        let mut cache = KvCache::new(&config).unwrap();
        let expected = exact(&all, window).unwrap();
        let mut outputs = Vec::new();
        for (from, count) in [(0, 250), (250, 1), (251, 1), (252, 148)] {
            let [q, k, v] = narrow(&all, from, count);
            let output = cache.append_attend(&q, &k, &v).unwrap();
            assert_eq!(output.dims(), [2, 6, count, DIM]);
            outputs.push(output);
        }
        let error = error(&Tensor::cat(&outputs, 2).unwrap(), &expected);
        assert!(error < limit, "{config:?}: {error}");
        assert!(limit < 1e-2 || error > 1e-3, "{error}"); // something is compressed
        assert_eq!((cache.current_seq_len(), cache.sequences().len()), (400, 2));
    }
}

/// The library's own cache on slices, sequence by sequence.
#[test]
fn bits_are_the_librarys() {
    let all = tokens(2, 300, 2);
    let mut cache = KvCache::new(&config()).unwrap();
    cache.append(&all[1], &all[2]).unwrap();
    let last = all[0].narrow(2, 290, 10).unwrap();
    let options = Attend::default().window(200).soft_cap(20.0).scale(0.1);
    let found = cache.attend_with(&last, &options).unwrap();
    let mut expected = Vec::new();
    for sequence in 0..2 {
        let rows = |tensor: &Tensor| floats(&tensor.narrow(0, sequence, 1).unwrap());
        let mut own = octaplex::KvCache::new([config()], Backend::detect()).unwrap();
        own.append(0, &rows(&all[1]), &rows(&all[2])).unwrap();
        let mut output = vec![0.0; 6 * 10 * DIM];
        own.attend_with(0, &rows(&last), &options.queries(10), &mut output).unwrap();
        expected.extend(output);
    }
    assert!(floats(&found) == expected);
}

/// Appends a prompt at once, in pieces or token by token: each query sees the same.
#[test]
fn blocks_change_nothing() {
    // `graded` keys would sort channels by the first piece's keys and queries.
    let four_bits = "turboquant".parse().unwrap();
    let config = config().keys(four_bits).values(four_bits);
    for config in [config, config.sliding_window(100)] {
        // One balance from keys alone, which pieces decide too; one from the prompt's first keys and
        // queries.
        let all = tokens(1, 220, 3);
        let outputs = |pieces: &[usize], calibration: usize| {
            let mut cache = KvCache::new(&config).unwrap().calibration(calibration);
            let (mut from, mut outputs) = (0, Vec::new());
            for &count in pieces {
                let [q, k, v] = narrow(&all, from, count);
                outputs.push(cache.append_attend(&q, &k, &v).unwrap());
                from += count;
            }
            Tensor::cat(&outputs, 2).unwrap()
        };
        // If a block hides exact tokens, sums have another order. Nothing else may differ.
        let same = |a: &Tensor, b: &Tensor| error(a, b) < 1e-6;
        let whole = outputs(&[220], 0);
        assert!(same(&whole, &outputs(&[1; 220], 0)));
        assert!(same(&whole, &outputs(&[7, 140, 3, 70], 0)));
        assert!(same(&outputs(&[220], 256), &outputs(&[190, 1, 29], 256)));
        let mut all_at_once = KvCache::new(&config).unwrap().calibration(0).max_append(220);
        let [q, k, v] = &all;
        let output = all_at_once.append_attend(q, k, v).unwrap();
        // Early queries see pages, and a sliding window ends blocks before it drops what they see.
        assert!(!same(&output, &whole) && error(&output, &whole) < 0.1);
    }
}

#[test]
fn the_prompts_queries_decide_the_balance() {
    let [q, k, v] = tokens(1, 200, 4);
    // Channels of very different sizes need a balance.
    let scales: Vec<f32> = (0..DIM).map(|channel| if channel < 4 { 20.0 } else { 1.0 }).collect();
    let k = k.broadcast_mul(&Tensor::from_vec(scales, DIM, &Device::Cpu).unwrap()).unwrap();
    let outputs = |calibration| {
        let mut cache = KvCache::new(&config()).unwrap().calibration(calibration);
        let output = floats(&cache.append_attend(&q, &k, &v).unwrap());
        assert_eq!(cache.stats().balanced_heads, 2);
        output
    };
    assert!(outputs(0) != outputs(256));
    let mut own = octaplex::KvCache::new([config()], Backend::detect()).unwrap();
    own.calibrate(0, &floats(&k), &floats(&q)).unwrap();
    own.append(0, &floats(&k), &floats(&v)).unwrap();
    let mut output = vec![0.0; 6 * DIM];
    let last = floats(&q.narrow(2, 199, 1).unwrap());
    own.attend(0, &last, &mut output).unwrap();
    let found = outputs(256);
    let of_last = found.chunks_exact(200 * DIM).flat_map(|head| &head[199 * DIM..]);
    assert!(of_last.eq(&output));
}

#[test]
fn types_and_strides_are_taken() {
    let [q, k, v] = tokens(2, 200, 5).map(|tensor| tensor.to_dtype(DType::BF16).unwrap());
    let outputs = |dtype| {
        let [q, k, v] = [&q, &k, &v].map(|tensor| tensor.to_dtype(dtype).unwrap());
        let mut cache = KvCache::new(&config()).unwrap();
        let output = cache.append_attend(&q, &k, &v).unwrap();
        assert_eq!(output.dtype(), dtype);
        output
    };
    // f16 and f32 hold all values of bf16. Results are rounded to the queries' type.
    let expected = outputs(DType::F32);
    for dtype in [DType::F16, DType::BF16] {
        let rounded = expected.to_dtype(dtype).unwrap();
        assert!(floats(&outputs(dtype)) == floats(&rounded), "{dtype:?}");
    }
    // Tensors before a model's transposition: [batch][tokens][heads][width].
    let strided = [&q, &k, &v].map(|tensor| {
        let tensor = tensor.to_dtype(DType::F32).unwrap();
        tensor.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap()
    });
    assert!(strided.iter().all(|tensor| !tensor.is_contiguous()));
    let mut cache = KvCache::new(&config()).unwrap();
    let [q, k, v] = &strided;
    let output = cache.append_attend(q, k, v).unwrap();
    assert!(floats(&output) == floats(&expected));
}

#[test]
fn drafts_are_taken_back() {
    let all = tokens(2, 400, 6);
    let step = |cache: &mut KvCache, from, count| {
        let [q, k, v] = narrow(&all, from, count);
        floats(&cache.append_attend(&q, &k, &v).unwrap())
    };
    let mut cache = KvCache::new(&config()).unwrap();
    step(&mut cache, 0, 250);
    let mut drafted = cache.clone();
    step(&mut drafted, 300, 40); // pages close
    drafted.truncate(250).unwrap();
    let tokens = |cache: &KvCache| (cache.stats().tokens, cache.stats().paged_tokens);
    assert_eq!(tokens(&drafted), tokens(&cache));
    assert!(step(&mut drafted, 250, 150) == step(&mut cache, 250, 150));
    // A clone continues on its own.
    cache.reset();
    assert_eq!((cache.current_seq_len(), cache.stats().bytes, drafted.current_seq_len()), (0, 0, 400));
    let [q, k, v] = narrow(&all, 0, 5).map(|tensor| tensor.narrow(0, 0, 1).unwrap());
    cache.append_attend(&q, &k, &v).unwrap(); // another batch
    assert_eq!(cache.sequences().len(), 1);
    // Tokens that a sliding window has dropped cannot return.
    let mut sliding = KvCache::new(&config().sliding_window(64)).unwrap();
    step(&mut sliding, 0, 400);
    let stats = sliding.stats();
    assert!(sliding.truncate(200).unwrap_err().to_string().contains("max_rollback"));
    assert_eq!(sliding.stats(), stats);
}

#[test]
fn snapshots_of_a_sequence() {
    let all = tokens(1, 200, 7);
    let mut cache = KvCache::new(&config()).unwrap();
    cache.append(&all[1], &all[2]).unwrap();
    let mut bytes = Vec::new();
    cache.sequences()[0].save(&mut |piece| bytes.extend_from_slice(piece));
    let mut loaded = KvCache::new(&config()).unwrap();
    loaded.load(&bytes).unwrap();
    let attend = |cache: &KvCache| floats(&cache.attend(&all[0]).unwrap());
    assert!(attend(&loaded) == attend(&cache));
    assert!(loaded.load(&bytes[1..]).unwrap_err().to_string().contains("snapshot"));
    assert!(attend(&loaded) == attend(&cache));
}

/// Each error names what is wrong, and the cache stays as it was.
#[test]
fn wrong_tensors_are_errors() {
    let all = tokens(2, 300, 8);
    let mut cache = KvCache::new(&config().capacity(320)).unwrap();
    let empty = cache.attend(&all[0]).unwrap_err().to_string();
    assert!(empty.contains("no tokens yet"), "{empty}");
    let [q, k, v] = narrow(&all, 0, 200);
    cache.append_attend(&q, &k, &v).unwrap();
    let (stats, newest) = (cache.stats(), q.narrow(2, 199, 1).unwrap());
    let before = floats(&cache.attend(&newest).unwrap());
    let one = |seed| tokens(2, 1, seed);
    let put = |tensor: &Tensor, at: usize, value: f32| {
        let mut values = floats(tensor);
        values[at] = value;
        Tensor::from_vec(values, tensor.dims(), &Device::Cpu).unwrap()
    };
    let [q, k, v] = narrow(&all, 200, 100);
    let [q1, k1, v1] = one(9);
    let f64 = k1.to_dtype(DType::F64).unwrap();
    let last = k.elem_count() - 1;
    let options = Attend::default();
    let cases: Vec<([Tensor; 3], &[&str])> = vec![
        ([q1.clone(), f64, v1.clone()], &["keys in f64", ".to_dtype(DType::F32)"]),
        ([q1.clone(), k1.narrow(1, 0, 1).unwrap(), v1.clone()], &["keys of shape [2, 1, 1, 64]", "2 heads"]),
        ([q1.clone(), k1.clone(), v1.narrow(3, 0, 32).unwrap()], &["values of shape", "width 64"]),
        ([q1.narrow(1, 0, 5).unwrap(), k1.clone(), v1.clone()], &["query heads"]),
        ([q1.narrow(0, 0, 1).unwrap(), k1.clone(), v1.clone()], &["one query for each new token"]),
        ([q.clone(), k1.clone(), v1.clone()], &["one query for each new token"]),
        ([q1.clone(), k1.clone(), v.clone()], &["the same batch and tokens"]),
        (one(10).map(|tensor| tensor.narrow(0, 1, 1).unwrap()), &["a batch of 1", "expected 2", "reset"]),
        (one(10).map(|tensor| tensor.squeeze(2).unwrap()), &["[2, 2, 64]"]),
        (one(10).map(|tensor| tensor.narrow(2, 0, 0).unwrap()), &["[2, 2, 0, 64]"]),
        // An error in the second sequence after the first has taken its tokens, and one in the last of many
        // tokens.
        ([q1.clone(), put(&k1, 200, f32::NAN), v1.clone()], &["sequence 1", "keys", "NaN"]),
        ([q1.clone(), k1.clone(), put(&v1, 200, 1e6)], &["sequence 1", "values"]),
        ([put(&q1, 400, f32::INFINITY), k1.clone(), v1.clone()], &["sequence 1", "queries"]),
        ([q.clone(), put(&k, last, f32::NAN), v.clone()], &["sequence 1", "keys"]),
        (tokens(2, 121, 11), &["320", "321"]),
    ];
    for ([q, k, v], words) in cases {
        let Err(error) = cache.append_attend_with(&q, &k, &v, &options) else { panic!("{words:?}") };
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert_eq!(cache.stats(), stats, "{error}");
        assert!(floats(&cache.attend_with(&newest, &options).unwrap()) == before, "{error}");
    }
    let bias = [0.0; 201];
    for options in [Attend::default().bias(&bias), Attend::default().position(3)] {
        let error = cache.append_attend_with(&q1, &k1, &v1, &options).unwrap_err().to_string();
        assert!(error.contains("call append, then attend"), "{error}");
    }
    // With one sequence and one token no copy is kept; the token is removed again.
    let mut single = KvCache::new(&config()).unwrap();
    let first = |tensor: &Tensor| tensor.narrow(0, 0, 1).unwrap();
    single.append(&first(&all[1]), &first(&all[2])).unwrap();
    let stats = single.stats();
    let query = put(&first(&q1), 3, f32::NAN);
    single.append_attend_with(&query, &first(&k1), &first(&v1), &options).unwrap_err();
    assert_eq!(single.stats(), stats);
    // A first prompt that fails does not fix the size of the batch.
    let mut fresh = KvCache::new(&config()).unwrap();
    fresh.append(&put(&all[1], 7, f32::NAN), &all[2]).unwrap_err();
    assert_eq!(fresh.sequences().len(), 0);
    assert!(KvCache::new(&LayerConfig::new(2, 63, 2000)).unwrap_err().to_string().contains("63"));
}

/// If your own attention fails, the cache is as it was.
#[test]
fn another_attention_may_fail() {
    let all = tokens(1, 401, 91);
    let [[q, k, v], [q1, k1, v1]] = [narrow(&all, 0, 400), narrow(&all, 400, 1)];
    let (mut cache, mut never) =
        (KvCache::new(&config()).unwrap().max_append(100), KvCache::new(&config()).unwrap().max_append(100));
    let save = |cache: &KvCache| {
        let mut bytes = Vec::new();
        cache.sequences()[0].save(&mut |piece: &[u8]| bytes.extend_from_slice(piece));
        bytes
    };
    let mut blocks = 0;
    let second_fails = |cache: &KvCache, queries: &Tensor| {
        blocks += 1;
        if blocks == 2 { candle_core::bail!("no GPU") } else { cache.attend(queries) }
    };
    let error = cache.append_attend_by(&q, &k, &v, second_fails).unwrap_err();
    assert!(error.to_string().contains("no GPU") && cache.current_seq_len() == 0, "{error}");
    // Bit-exact with the cache's own attention, block by block.
    let by = |cache: &KvCache, queries: &Tensor| cache.attend(queries);
    let output = cache.append_attend_by(&q, &k, &v, by).unwrap();
    assert_eq!(floats(&output), floats(&never.append_attend(&q, &k, &v).unwrap()));
    cache.append_attend_by(&q1, &k1, &v1, |_, _| candle_core::bail!("no GPU")).unwrap_err();
    assert_eq!((cache.current_seq_len(), save(&cache)), (400, save(&never)));
}
