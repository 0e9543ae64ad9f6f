// Probabilities of a prebuilt llama.cpp (the npm package node-llama-cpp), with whatever cache the environment says.
//
// usage: node node.mjs MODEL TEXT|- OUT.json [TOKENS [BATCH]]
//
// THREADS is the number of llama.cpp's threads, 1 by default.
import { readFileSync, writeFileSync } from "node:fs";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

const [modelPath, text, out, tokens = "320", batch = "64"] = process.argv.slice(2);
const wanted = /octaplex|OCTAPLEX|KV buffer|graph splits/;
const llama = await getLlama({
    gpu: false,
    build: "never",
    skipDownload: true,
    progressLogs: false,
    maxThreads: Number(process.env.THREADS ?? 1),
    logLevel: LlamaLogLevel.debug,
    logger: (level, message) => wanted.test(message) && console.error(message.trim())
});
// `gpu: false` would leave every layer on the CPU, and the cache with it: so layers are named by number.
const model = await llama.loadModel({ modelPath, gpuLayers: 99 });
const context = await model.createContext({ contextSize: Number(tokens) + 192, batchSize: Number(batch), flashAttention: true });
const sequence = context.getSequence();
// A made model has no words.
const made = Array.from({ length: Number(tokens) }, (_, index) => (index * 7919 + 13 * index * index) % 512);
const input = text === "-" ? made : model.tokenize(readFileSync(text, "utf8").slice(0, 8 * tokens)).slice(0, tokens);
const asked = input.map((token) => [token, { generateNext: { probabilities: true } }]);
const results = await sequence.controlledEvaluate(asked);
const rows = results.map((result) => [...(result?.next?.probabilities ?? [])].slice(0, 50));
writeFileSync(out, JSON.stringify(rows));
console.log(JSON.stringify({ rows: rows.length, first: rows[0]?.slice(0, 2) }));
process.exit(0);
