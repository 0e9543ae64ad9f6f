// Runs a page of tests in headless Chromium:
//   node browser.mjs FOLDER PAGE     FOLDER is served; the page posts {passed, failed: [words]} to /result
// CHROMIUM names the browser, by default `chromium`.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serve } from "./serve.mjs";

const [folder, page] = process.argv.slice(2);
let finish;
const result = new Promise((resolve) => (finish = resolve));
const { origin, stop } = await serve(folder, (path, body) => finish(JSON.parse(body)));

const profile = await mkdtemp(join(tmpdir(), "chromium-"));
const url = `${origin}/${page}`;
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", `--user-data-dir=${profile}`, url];
const browser = spawn(process.env.CHROMIUM ?? "chromium", flags, { stdio: "ignore" });
browser.on("error", (error) => finish({ passed: 0, failed: [String(error)] }));
const late = setTimeout(() => finish({ passed: 0, failed: ["no result after 240 s"] }), 240_000);
const { passed, failed } = await result;
clearTimeout(late);
const gone = new Promise((resolve) => browser.on("close", resolve));
browser.kill();
await Promise.race([gone, new Promise((resolve) => setTimeout(resolve, 5000))]);
stop();
await rm(profile, { recursive: true, force: true, maxRetries: 5 });

for (const words of failed) console.error(`failed: ${words}`);
console.log(`${page} in Chromium: ${passed} checks passed, ${failed.length} failed`);
process.exit(failed.length > 0 || passed === 0 ? 1 : 0);
