// Tests the error of `load` without a module. Nothing need be built: `node --test test/load.test.mjs` runs in a clone.
import assert from "node:assert/strict";
import { cp, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

// The package's JavaScript without its modules, as a clone has it before the build.
const folder = await mkdtemp(join(tmpdir(), "octaplex-"));
after(() => rm(folder, { recursive: true }));
const js = fileURLToPath(new URL(".", import.meta.resolve("octaplex")));
for (const name of await readdir(js)) if (name.endsWith(".js")) await cp(join(js, name), join(folder, name));
await writeFile(join(folder, "package.json"), '{ "type": "module" }');
const { OctaplexError, load } = await import(pathToFileURL(join(folder, "index.js")));

async function refuses(options, ...words) {
  await assert.rejects(load(options), (error) => {
    assert.ok(error instanceof OctaplexError, error.stack);
    assert.equal(error.code, "Load", error.message);
    for (const word of words) assert.ok(error.message.includes(word), error.message);
    assert.ok(error.cause instanceof Error);
    return true;
  });
}

test("a package that was not built says what builds it", async () => {
  await refuses({ simd: true }, "octaplex.simd.wasm", "build.sh");
  await refuses({ simd: false }, "octaplex.wasm", "build.sh");
  await writeFile(join(folder, "octaplex.wasm"), "<!doctype html>"); // what many servers answer for a file that is not there
  await refuses({ simd: false }, "octaplex.wasm", "magic word", "build.sh");
});

test("a module from elsewhere that is none is named", async () => {
  const server = createServer((request, answer) => answer.writeHead(request.url === "/page" ? 200 : 404).end("<!doctype html>"));
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const site = `http://127.0.0.1:${server.address().port}`;
  await refuses({ url: `${site}/octaplex.wasm` }, `${site}/octaplex.wasm`, "404");
  await refuses({ url: `${site}/page` }, `${site}/page`, "magic word");
  await new Promise((closed) => server.close(closed));
  server.closeAllConnections();
  await refuses({ url: `${site}/octaplex.wasm` }, `${site}/octaplex.wasm`); // nobody answers
  await refuses({ url: "http://" }, "http://");
  await refuses({ url: new URL("nowhere.wasm", pathToFileURL(join(folder, "/"))) }, "nowhere.wasm", "ENOENT");
  const empty = Uint8Array.from([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);
  await refuses({ module: empty.subarray(0, 7) }, "module");
  await refuses({ module: 7 }, "module");
  await refuses({ module: empty }, "module"); // WebAssembly, and not this library's
});
