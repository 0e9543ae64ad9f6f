// The page of demo/, as build.sh puts it together (SITE), in headless Chromium; CHROMIUM names the browser.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "./serve.mjs";

const require = createRequire(import.meta.url);
const site = process.env.SITE;
const measuredRows = await readFile(process.env.MEASURED, "utf8"); // what `octaplex compare --all` measured on the same sample
const WIDE = { width: 1280, height: 900 };
const PHONE = { width: 380, height: 780 };

let server;
let browser;
before(async () => {
  server = await serve(site);
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
});
after(async () => {
  await browser?.close();
  server?.stop();
});

/** Opens the page and waits for all measurements. Requests to other servers, and output on the console, fail the test. */
async function opened({ hash = "", viewport = WIDE, colorScheme = "light", bypassCSP = false, replace } = {}) {
  const page = await browser.newPage({ viewport, colorScheme, bypassCSP });
  const wrong = [];
  page.on("console", (message) => wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("requestfailed", (request) => wrong.push(`failed: ${request.url()}`));
  await page.route("**/*", (route) => {
    const url = route.request().url();
    if (replace && url.endsWith(replace.path)) return route.fulfill({ body: replace.body });
    if (url.startsWith(`${server.origin}/`) || url.startsWith("data:")) return route.continue();
    wrong.push(`asks for ${url}`);
    return route.abort();
  });
  await page.goto(`${server.origin}/${hash}`);
  await page.waitForFunction(() => document.documentElement.dataset.ready === "true", null, { timeout: 240_000 });
  return { page, wrong };
}

const text = (page, id) => page.locator(`#${id}`).textContent();
const settled = (page) => page.waitForFunction(() => document.getElementById("maps").getAttribute("aria-busy") === "false");
const pixels = (page, id) => page.evaluate((id) => document.getElementById(id).toDataURL(), id);
const cells = (page, id) => page.locator(`#${id} tbody tr`).evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));

/** An .npy file of f32. */
function npy(rows, width, values) {
  const header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${width}), }`.padEnd(117) + "\n";
  const start = Buffer.from([0x93, ...Buffer.from("NUMPY"), 1, 0, header.length, 0]);
  return Buffer.concat([start, Buffer.from(header, "latin1"), Buffer.from(Float32Array.from({ length: rows * width }, (_, i) => values(i)).buffer)]);
}

test("the page computes what the repository states, and nothing else is asked of any server", async () => {
  const { page, wrong } = await opened();
  assert.equal(await page.locator("#verified").getAttribute("data-matches"), "true");
  assert.match(await text(page, "verdict"), /^✓ The same/);
  assert.match(await text(page, "sum-here"), /^[0-9a-f]{8}$/);
  assert.equal(await text(page, "sum-here"), await text(page, "sum-stated"));
  const stated = (await readFile(`${site}/data/expected.txt`, "utf8")).trim().split("\n").map((line) => line.split(" "));
  assert.deepEqual((await cells(page, "checksums")).map(([name, here]) => [name, ...here.split(" ")]), stated);
  // Every codec of the library can be chosen, and is in the plot.
  const measured = await cells(page, "points");
  const names = new Set(measured.map(([spec]) => spec.split(":")[0]));
  for (const [name] of stated) assert.ok(names.has(name), `${name} is not on the page`);
  // Bits and errors are those that `octaplex compare` prints.
  const keys = measuredRows.slice(measuredRows.indexOf("KEYS  "), measuredRows.indexOf("VALUES  ")).split("\n");
  const table = new Map(keys.slice(2).map((line) => line.replace("*", " ").trim().split(/\s+/)).filter((row) => row.length === 6).map(([spec, ...row]) => [spec, row]));
  const rounded = (x) => Number(Number(x).toPrecision(2));
  let compared = 0;
  for (const [spec, bits, kl, raw] of measured) {
    const row = table.get(spec);
    if (row === undefined) continue;
    assert.equal(bits, row[0], spec);
    for (const [mine, theirs] of [[kl, row[2]], [raw, row[3]]]) assert.ok(Math.abs(rounded(mine) - Number(theirs)) <= 0.051 * Number(theirs), `${spec}: ${mine}, ${theirs}`);
    compared++;
  }
  assert.ok(compared > 30, `${compared} rows of docs/plots/sample.txt`);
  assert.match(await text(page, "fast"), /^[\d.]+ ns a key/);
  assert.deepEqual(wrong, []);
  await page.close();
});

test("another codec, other keys and another head change maps, figures and the marked point", async () => {
  const { page, wrong } = await opened();
  const looks = async () => [await pixels(page, "compressed"), await pixels(page, "difference"), await text(page, "error"), await page.locator("#plot").getAttribute("aria-label")];
  const exact = await pixels(page, "exact");
  let before = await looks();
  const changed = async (act, also = []) => {
    await act();
    await settled(page);
    const now = await looks();
    now.forEach((look, i) => assert.notEqual(look, before[i], `look ${i}`));
    before = now;
    for (const check of also) await check();
  };
  const ring = () => page.locator("#plot .ring").evaluate((ring) => [ring.cx.baseVal.value, ring.cy.baseVal.value]);
  const at = await ring();
  await changed(() => page.locator('[value="graded:bits=2"]').check({ force: true }));
  assert.notDeepEqual(await ring(), at);
  assert.equal(await pixels(page, "exact"), exact);
  await changed(() => page.locator("#family").selectOption({ label: "int" }));
  await page.locator('[name="prepared"][value="0"]').check({ force: true });
  await settled(page);
  assert.notEqual(await pixels(page, "compressed"), before[0]);
  assert.ok(Number(await text(page, "error")) > 5 * Number(before[2]), "raw keys of this layer lose more");
  await page.locator("#head").selectOption("30");
  await settled(page);
  assert.notEqual(await pixels(page, "exact"), exact);
  // The address holds all choices.
  const hash = await page.evaluate(() => location.hash);
  assert.match(hash, /keys=raw&head=30/);
  const error = await text(page, "error");
  assert.deepEqual(wrong, []);
  await page.close();
  const again = await opened({ hash });
  assert.equal(await text(again.page, "error"), error);
  await again.page.close();
});

test("bytes saved follow the model and the codec", async () => {
  const { page, wrong } = await opened();
  // 2 · 32 layers · 8 heads · 128 values · 131,072 tokens · 2 bytes, and 3.116 bits of 16.
  assert.match(await text(page, "sizes"), /17\.2 GB.*3\.35 GB/);
  await page.locator("#layers").focus();
  await page.keyboard.press("End");
  await page.waitForFunction(() => document.getElementById("sizes").textContent.includes("68.7 GB"));
  assert.equal(await page.locator("#model").inputValue(), "own");
  // Every width of the slider is one of the library's.
  await page.locator("#dim").focus();
  await page.keyboard.press("Home");
  const widths = Number(await page.locator("#dim").getAttribute("max")) + 1;
  for (let i = 0, said; i < widths; i++) {
    await page.waitForFunction((said) => document.getElementById("sizes").textContent !== said, said);
    assert.match(await text(page, "saved"), /saved, [45]\.\d times smaller/, `width ${await text(page, "dim-said")}`);
    said = await text(page, "sizes");
    await page.keyboard.press("ArrowRight");
  }
  await page.locator("#family").selectOption({ label: "floats" });
  await page.locator('[value="f16"]').check({ force: true });
  await page.waitForFunction(() => document.getElementById("saved").textContent.startsWith("Nothing"));
  assert.deepEqual(wrong, []);
  await page.close();
});

test("one's own file is shown; a broken one is one sentence, and the page stays as it is", async () => {
  const { page, wrong } = await opened();
  const give = async (name, buffer) => page.locator("#file").setInputFiles({ name, mimeType: "application/octet-stream", buffer });
  const sample = await readFile(`${site}/data/sample.safetensors`);
  const shown = await pixels(page, "compressed");
  const vectors = npy(40, 64, Math.sin);
  const nan = npy(4, 64, (i) => (i === 70 ? NaN : 1));
  const bad = [
    ["empty.npy", Buffer.alloc(0), /^empty\.npy is empty\.$/],
    ["text.npy", Buffer.from("not an array"), /neither a safetensors file .* nor an \.npy array/],
    ["cut.npy", vectors.subarray(0, 5000), /does not fit its 4872 bytes/],
    ["narrow.npy", npy(10, 7, Math.sin), /vectors of width 7; codecs exist for 32, 64/],
    ["nan.npy", nan, /row 1, column 6 is NaN or infinite/],
    ["magic.npy", vectors.subarray(0, 9), /damaged \.npy header/],
    ["none.npy", npy(0, 64, Math.sin), /has no vectors/],
    ["cut.safetensors", sample.subarray(0, 100_000), /damaged/],
    ["other.safetensors", Buffer.concat([Buffer.from([2, 0, 0, 0, 0, 0, 0, 0]), Buffer.from("{}")]), /no tensor k/],
    ["null.safetensors", Buffer.concat([Buffer.from([4, 0, 0, 0, 0, 0, 0, 0]), Buffer.from("null")]), /damaged/],
    ["odd.safetensors", Buffer.concat([Buffer.from([30, 0, 0, 0, 0, 0, 0, 0]), Buffer.from('{"k":5,"v":[],"q":{"dtype":1}}')]), /no tensor k/],
    ["archive.npz", Buffer.from("PK\x03\x04 and so on"), /zip archive/],
  ];
  for (const [name, buffer, words] of bad) {
    await page.evaluate(() => (document.getElementById("file-error").textContent = ""));
    await give(name, buffer);
    await page.waitForFunction(() => document.getElementById("file-error").textContent !== "");
    assert.match(await text(page, "file-error"), words);
    assert.ok(await page.locator("#file-error").isVisible());
    assert.equal(await pixels(page, "compressed"), shown);
  }
  await give("own.npy", vectors);
  await page.waitForFunction(() => document.getElementById("progress").textContent.includes("measured on own.npy"), null, { timeout: 120_000 });
  assert.ok(await page.locator("#file-error").isHidden());
  assert.match(await text(page, "origin"), /own\.npy \(40 vectors of width 64\)/);
  assert.notEqual(await pixels(page, "compressed"), shown);
  assert.ok(await page.locator("#heads").isHidden());
  const distortion = Number((await cells(page, "points")).find(([spec]) => spec === "trellis:bits=3")[2]);
  assert.ok(distortion > 0.005 && distortion < 0.05, `${distortion}`);
  await page.locator("#sample").click();
  await page.waitForFunction(() => document.getElementById("progress").textContent.includes("measured on the bundled sample"), null, { timeout: 240_000 });
  assert.equal(await pixels(page, "compressed"), shown);
  // The sample, opened as a file, gives the same page.
  await give("mine.safetensors", sample);
  await page.waitForFunction(() => document.getElementById("origin").textContent.includes("mine.safetensors"));
  await settled(page);
  assert.equal(await pixels(page, "compressed"), shown);
  assert.deepEqual(wrong, []);
  await page.close();
});

test("a checksum that is not the stated one is said plainly", async () => {
  const table = await readFile(`${site}/data/expected.txt`, "utf8");
  const other = table.replace(/^(trellis .)./, (_, start) => start + (table[9] === "0" ? "1" : "0"));
  assert.notEqual(other, table);
  const { page } = await opened({ replace: { path: "expected.txt", body: other } });
  assert.match(await text(page, "verdict"), /^✗ Not the same/);
  const differ = (await cells(page, "checksums")).filter((row) => row[3] !== "✓ same");
  assert.deepEqual(differ.map(([name]) => name), ["trellis"]);
  await page.close();
});

for (const viewport of [WIDE, PHONE])
  for (const colorScheme of ["light", "dark"])
    test(`${viewport.width} px, ${colorScheme}: nothing sticks out, and axe finds nothing`, async () => {
      const { page, wrong } = await opened({ viewport, colorScheme, bypassCSP: true }); // axe comes from outside
      for (const summary of await page.locator("summary").all()) await summary.click();
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= viewport.width);
      assert.deepEqual(wrong, []);
      await page.addScriptTag({ path: require.resolve("axe-core/axe.min.js") });
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3)}`), []);
      // Everything that can be used has its place in the order of the page.
      const order = [];
      await page.evaluate(() => document.activeElement?.blur());
      for (let i = 0; i < 24; i++) {
        await page.keyboard.press("Tab");
        order.push(await page.evaluate(() => document.activeElement.id || document.activeElement.name || document.activeElement.localName));
      }
      const wanted = ["family", "spec", "prepared", "head", "summary", "file", "model", "layers", "kv", "dim", "context", "again"];
      assert.deepEqual(order.filter((id) => wanted.includes(id)).filter((id, i, all) => all.indexOf(id) === i), wanted);
      await page.close();
    });
