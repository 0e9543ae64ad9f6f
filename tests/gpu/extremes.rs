//! Queries with the smallest floats, and the maximum number of heads.

use super::{Case, TOLERANCE, case, device, error};
use octaplex::{Attend, gpu};

/// Scales end at 2⁴⁰, so queries below 10⁻³⁶ have logits near 0. Below that, a query's unit is no float.
/// Below 10⁻³⁸ floats lose bits themselves.
#[test]
fn tiny_queries() {
    let Some(device) = device() else { return };
    for (keys, dim) in [("turboquant", 128), ("trellis", 80), ("tq3_0", 96), ("hqmq", 64)] {
        let case = case(keys, "turboquant", dim, (16, 2), 1000);
        let layer = case.layer();
        let mut gpu = case.on_gpu(&device, &layer);
        let sizes = [1.0_f32, 1e-29, 1e-31, 1e-35, 1e-37, 1e-38, 1e-41, 1e-45];
        let most = f32::from_bits((1_099_511_627_776.0_f32).to_bits() - 1);
        for scale in [0.1_f32, 1e12, most] {
            let mut queries = case.queries();
            for (number, query) in queries.chunks_exact_mut(dim).enumerate() {
                // With a large scale, only queries whose scaled size is not above the usual.
                let size = sizes[number % 8].min(0.1 / scale);
                query.iter_mut().for_each(|x| *x *= size);
            }
            let options = Attend::default().scale(scale);
            let mut output = vec![f32::NAN; queries.len()];
            gpu.attend_with(&queries, &options, &mut output).unwrap();
            let exact = case.in_f64(&layer, &queries, &options);
            let wrong = error(&output, &exact, dim);
            println!("{keys}, scale {scale:e}: {wrong:.1e}");
            assert!(wrong < TOLERANCE, "{keys}, scale {scale:e}: {wrong:e}");
        }
        let queries = case.queries();
        for scale in [1_099_511_627_776.0, 1e36] {
            let refused =
                gpu.attend_with(&queries, &Attend::default().scale(scale), &mut vec![0.0; queries.len()]);
            assert!(matches!(refused, Err(gpu::Error::Library(_))), "{refused:?}");
        }
    }
}

#[test]
fn more_than_a_thousand_heads() {
    let Some(device) = device() else { return };
    for (heads, dim, tokens) in [((2048, 1024), 64, 200), ((1100, 11), 128, 450), ((4096, 256), 64, 140)] {
        let case: Case = case("turboquant:bits=2", "turboquant", dim, heads, tokens);
        let (error, _) = case.check(&device, &Attend::default());
        assert!(error < TOLERANCE, "heads {heads:?}: {error:e}");
    }
}
