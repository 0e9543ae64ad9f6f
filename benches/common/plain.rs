//! Plain attention in f32, to compare with on CPUs without vector instructions.

/// Computes attention in f32 in the simplest way: a dot product and an exponential for each token, then a weighted sum.
/// `scores` has a value for each token.
pub(crate) fn attention(
    exp: impl Fn(f32) -> f32,
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    scale: f32,
    scores: &mut [f32],
    output: &mut [f32],
) {
    let dim = keys.len() / scores.len();
    for (query, output) in queries.chunks_exact(dim).zip(output.chunks_exact_mut(dim)) {
        let mut max = f32::NEG_INFINITY;
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(dim)) {
            *score = query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale;
            max = max.max(*score);
        }
        let mut sum = 0.0;
        output.fill(0.0);
        for (score, value) in scores.iter().zip(values.chunks_exact(dim)) {
            let weight = exp(score - max);
            sum += weight;
            output.iter_mut().zip(value).for_each(|(output, value)| *output += weight * value);
        }
        output.iter_mut().for_each(|output| *output /= sum);
    }
}
