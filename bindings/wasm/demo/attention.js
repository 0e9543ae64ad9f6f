// Attention weights and what compression does to them, as the crate octaplex-metrics computes them, in f64.

/** Exact scores q·k of queries with the tokens that each of them sees. */
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

/** softmax(scores/√dim) of the first so many. */
export function weights(scores, dim, count = scores.length) {
  const scale = 1 / Math.sqrt(dim);
  const sum = logSum(scores, count, scale);
  return Float64Array.from({ length: count }, (_, i) => Math.exp(scores[i] * scale - sum));
}

/** Kullback-Leibler divergence of the weights from the exact ones, in nats. */
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
