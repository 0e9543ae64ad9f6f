// Continues a text twice with a prebuilt llama.cpp: with its own f16 cache, then with octaplex's.
//
// usage: node demo.mjs LIBRARY MODEL.gguf TEXT.txt [TOKENS_OF_PROMPT] [TOKENS_OF_ANSWER]
//
// Each run is a process of its own, so that its memory can be measured. Only the environment differs.
// THREADS=1 is faster where other programs keep the cores busy, because llama.cpp's threads wait for each other.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

async function answer(modelPath, textPath, promptTokens, answerTokens) {
    const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
    let cache = "";
    const llama = await getLlama({
        gpu: false,
        build: "never",
        skipDownload: true,
        progressLogs: false,
        maxThreads: process.env.THREADS ? Number(process.env.THREADS) : undefined,
        logLevel: LlamaLogLevel.debug,
        logger: (level, message) => {
            cache = message.match(/(\w+) KV buffer size = +([\d.]+) MiB/)?.slice(1, 3) ?? cache;
            if (level === LlamaLogLevel.error) console.error(message.trim());
        }
    });
    // `gpu: false` would keep every layer on the CPU, and its cache too: ask for layers by number.
    const model = await llama.loadModel({ modelPath, gpuLayers: 99 });
    const tokens = model.tokenize(readFileSync(textPath, "utf8")).slice(0, promptTokens);
    const context = await model.createContext({ contextSize: tokens.length + answerTokens + 8, batchSize: 512, flashAttention: true });
    const sequence = context.getSequence();

    let start = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(tokens.slice(0, -1));
    const promptSeconds = (performance.now() - start) / 1000;
    const written = [];
    start = performance.now();
    for await (const token of sequence.evaluate(tokens.slice(-1), { temperature: 0 })) {
        written.push(token);
        if (written.length >= answerTokens) break;
    }
    const answerSeconds = (performance.now() - start) / 1000;
    return {
        device: cache[0],
        cache: Number(cache[1]),
        process: process.resourceUsage().maxRSS / 1024,
        prompt: (tokens.length - 1) / promptSeconds,
        speed: written.length / answerSeconds,
        tokens: tokens.length,
        text: model.detokenize(written)
    };
}

function run(library, rest) {
    const env = { ...process.env };
    for (const name of Object.keys(env)) if (name === "GGML_BACKEND_PATH") delete env[name];
    if (library) env.GGML_BACKEND_PATH = library;
    const child = spawnSync(process.execPath, [fileURLToPath(import.meta.url), "--answer", ...rest], { env, encoding: "utf8", maxBuffer: 1 << 26 });
    const line = child.stdout.split("\n").find((line) => line.startsWith("{"));
    if (child.signal) console.error(`llama.cpp ended by ${child.signal}${library ? ", with octaplex's cache" : ""}`);
    if (child.error) console.error(String(child.error));
    if (child.status !== 0 || !line) {
        console.error(child.stderr || child.stdout);
        process.exit(1);
    }
    const found = JSON.parse(line);
    if ((found.device === "OCTAPLEX") !== Boolean(library)) {
        console.error(`the cache lies on ${found.device}, which was not asked for\n${child.stderr}`);
        process.exit(1);
    }
    return found;
}

if (process.argv[2] === "--answer") {
    const [modelPath, textPath, promptTokens, answerTokens] = process.argv.slice(3);
    console.log(JSON.stringify(await answer(modelPath, textPath, Number(promptTokens), Number(answerTokens))));
    process.exit(0);
}

const [library, modelPath, textPath, promptTokens = "1000", answerTokens = "48"] = process.argv.slice(2);
const rest = [modelPath, textPath, promptTokens, answerTokens];
const theirs = run(undefined, rest);
const ours = run(library, rest);
const row = (name, unit, key, digits) =>
    console.log(`${name.padEnd(22)}${(theirs[key].toFixed(digits) + unit).padStart(18)}${(ours[key].toFixed(digits) + unit).padStart(18)}`);
console.log(`\n${"".padEnd(22)}${"llama.cpp's f16".padStart(18)}${"octaplex".padStart(18)}`);
row("key/value cache", " MiB", "cache", 1);
row("memory of the process", " MiB", "process", 0);
row(`prompt, ${theirs.tokens} tokens`, " tokens/s", "prompt", 0);
row(`answer, ${answerTokens} tokens`, " tokens/s", "speed", 1);
console.log(`\nllama.cpp's f16:\n  ${theirs.text.trim().replaceAll("\n", "\n  ")}`);
console.log(`\noctaplex:\n  ${ours.text.trim().replaceAll("\n", "\n  ")}`);
