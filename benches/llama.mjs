// Speed of an unmodified llama.cpp (the npm package node-llama-cpp) with its own caches and with octaplex's, as CSV.
//
// usage: node llama.mjs MODEL.gguf TOKENS,TOKENS... NAME=LIBRARY...      for example: now=target/release/liboctaplex_ggml.so
//
// THREADS (2), ANSWER (32 tokens) and ROUNDS (1) are variables. Each run is a process of its own, and settings take turns.
// Run it in a folder with node-llama-cpp in its `node_modules`. The tokens are random: only the time matters.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const numbers = (name, otherwise) => Number(process.env[name] ?? otherwise);

async function measure(modelPath, count, kind) {
    const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
    let cache = "";
    const llama = await getLlama({
        gpu: false,
        build: "never",
        skipDownload: true,
        progressLogs: false,
        maxThreads: numbers("THREADS", 2),
        logLevel: LlamaLogLevel.debug,
        logger: (level, message) => {
            cache = message.match(/(\w+) KV buffer size = +([\d.]+) MiB/)?.slice(1, 3) ?? cache;
            if (level === LlamaLogLevel.error) console.error(message.trim());
        }
    });
    const model = await llama.loadModel({ modelPath, gpuLayers: 99 });
    const answer = numbers("ANSWER", 32);
    const types = kind === "f16" ? {} : { experimentalKvCacheKeyType: kind.toUpperCase(), experimentalKvCacheValueType: kind.toUpperCase() };
    const context = await model.createContext({ contextSize: count + answer + 8, batchSize: 512, flashAttention: true, ...types });
    const sequence = context.getSequence();
    let state = 7;
    const tokens = Array.from({ length: count }, () => 10 + ((state = (state * 48271) % 2147483647) % 400));
    let start = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(tokens.slice(0, -1));
    const prompt = (count - 1) / (performance.now() - start) * 1000;
    let written = 0;
    start = performance.now();
    // The end of the text is no end here.
    let next = tokens.slice(-1);
    while (written < answer) {
        for await (const token of sequence.evaluate(next, { temperature: 0, yieldEogToken: true })) {
            next = [token];
            if (++written >= answer) break;
        }
    }
    return [prompt, written / (performance.now() - start) * 1000, ...cache];
}

if (process.argv[2] === "--measure") {
    const [model, count, kind] = process.argv.slice(3);
    console.log(JSON.stringify(await measure(model, Number(count), kind)));
    process.exit(0);
}
const [model, counts, ...libraries] = process.argv.slice(2);
const settings = [["f16", "f16", {}]];
for (const library of libraries) {
    const [name, path] = library.split("=");
    settings.push([name, "f16", { GGML_BACKEND_PATH: path }]);
    if (process.env.BITS) settings.push([`${name}, ${process.env.BITS} bits`, "f16", { GGML_BACKEND_PATH: path, OCTAPLEX_BITS: process.env.BITS }]);
}
settings.push(["q8_0", "q8_0", {}], ["q4_0", "q4_0", {}]);
console.log("tokens,setting,prompt,answer,device,MiB");
for (const count of counts.split(",")) {
    for (let round = 0; round < numbers("ROUNDS", 1); round++) {
        for (const [name, kind, more] of settings) {
            const env = { ...process.env, ...more };
            if (!more.GGML_BACKEND_PATH) delete env.GGML_BACKEND_PATH;
            const child = spawnSync(process.execPath, [fileURLToPath(import.meta.url), "--measure", model, count, kind], { env, encoding: "utf8" });
            const line = child.stdout?.split("\n").find((line) => line.startsWith("["));
            if (!line) {
                console.error(child.stderr?.trim() || `${name} ended by ${child.signal}`);
                continue;
            }
            const [prompt, answer, device, mib] = JSON.parse(line);
            console.log([count, name, prompt.toFixed(1), answer.toFixed(2), device, mib].join(","));
        }
    }
}
