//! Attention from many threads at once.

use super::{attend, spec};
use crate::common::{Random, bits};
use octaplex::{Attend, Backend, KvCache, LayerConfig};

const DIM: usize = 64;

/// Attends many times with more threads than the cache keeps memory for, on layers that need memory of different sizes.
#[test]
fn threads_get_the_bits_of_one() {
    let configs =
        ["turboquant", "trellis", "int", "f16"].map(|keys| LayerConfig::new(2, DIM, 1000).keys(spec(keys)));
    let mut cache = KvCache::new(configs, Backend::detect()).unwrap();
    let mut random = Random::new(11);
    for (layer, tokens) in [900, 10, 300, 64].into_iter().enumerate() {
        let rows = random.gaussians(2 * tokens * DIM);
        cache.append(layer, &rows, &rows).unwrap();
    }
    let blocks: Vec<Vec<f32>> = [1, 3, 8].map(|queries| random.gaussians(4 * queries * DIM)).into();
    let all = |cache: &KvCache| -> Vec<Vec<u32>> {
        let mut outputs = Vec::new();
        for layer in 0..4 {
            for (queries, count) in blocks.iter().zip([1, 3, 8]) {
                let mut output = vec![f32::NAN; queries.len()];
                cache.attend_with(layer, queries, &Attend::default().queries(count), &mut output).unwrap();
                outputs.push(bits(&output));
            }
            let mut scores = vec![f32::NAN; cache.layers()[layer].tokens()];
            cache.scores(layer, 1, &blocks[0][..DIM], &mut scores).unwrap();
            let mut output = [f32::NAN; DIM];
            cache.accumulate(layer, 1, &scores, &mut output).unwrap();
            outputs.extend([bits(&scores), bits(&output)]);
        }
        outputs
    };
    let alone = all(&cache);
    assert_eq!(alone[0], bits(&attend(&mut cache, &blocks[0], &Attend::default())));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..40).map(|_| scope.spawn(|| [all(&cache), all(&cache)])).collect();
        for thread in threads {
            assert!(thread.join().unwrap() == [alone.clone(), alone.clone()]);
        }
    });
}
