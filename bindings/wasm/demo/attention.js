// Attention weights and the errors of compression, computed in f64 as in the crate octaplex-metrics.

/** Returns the exact scores q·k of each query with the tokens that it sees. */
export function exactScores(queries, positions, keys, dim) {
  return positions.map((position, query) => {
    const scores = new Float64Array(position + 1);
    for (let token = 0; token <= position; token++)
      for (let i = 0; i < dim; i++) scores[token] += queries[query * dim + i] * keys[token * dim + i];
    return scores;
  });
}

function logSum(scores, count, scale) {
  let largest = -Infinity;
  for (let i = 0; i < count; i++) largest = Math.max(largest, scores[i] * scale);
  let sum = 0;
  for (let i = 0; i < count; i++) sum += Math.exp(scores[i] * scale - largest);
  return largest + Math.log(sum);
}

/** Returns softmax(scores/√dim) of the first scores. */
export function weights(scores, dim, count = scores.length) {
  const scale = 1 / Math.sqrt(dim);
  const sum = logSum(scores, count, scale);
  return Float64Array.from({ length: count }, (_, i) => Math.exp(scores[i] * scale - sum));
}

/** Returns the Kullback-Leibler divergence of the weights from the exact ones, in nats. */
export function divergence(exact, scores, dim) {
  const scale = 1 / Math.sqrt(dim);
  const [exactSum, sum] = [logSum(exact, exact.length, scale), logSum(scores, exact.length, scale)];
  let total = 0;
  for (let i = 0; i < exact.length; i++) {
    const logWeight = exact[i] * scale - exactSum;
    total += Math.exp(logWeight) * (logWeight - (scores[i] * scale - sum));
  }
  return Math.max(total, 0);
}

/** Σ(x - y)² / Σx² */
export function relativeError(exact, other) {
  let [error, energy] = [0, 0];
  exact.forEach((x, i) => {
    error += (x - other[i]) ** 2;
    energy += x * x;
  });
  return error / energy;
}
