// Runs a page of tests in headless Chromium:
//   node browser.mjs FOLDER PAGE     FOLDER is served; the page posts {passed, failed: [words]} to /result
// CHROMIUM names the browser, by default `chromium`.
import { spawn } from "node:child_process";
import { createReadStream } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";

const [folder, page] = process.argv.slice(2);
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json" };

let finish;
const result = new Promise((resolve) => (finish = resolve));
const server = createServer(async (request, response) => {
  const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
  if (request.method === "POST" && path === "/result") {
    let body = "";
    for await (const chunk of request) body += chunk;
    response.end();
    finish(JSON.parse(body));
    return;
  }
  const file = createReadStream(join(folder, normalize(path)));
  file.on("error", () => response.writeHead(404).end());
  file.on("open", () => response.setHeader("content-type", TYPES[extname(path)] ?? "application/octet-stream"));
  file.pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const profile = await mkdtemp(join(tmpdir(), "chromium-"));
const url = `http://127.0.0.1:${server.address().port}/${page}`;
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", `--user-data-dir=${profile}`, url];
const browser = spawn(process.env.CHROMIUM ?? "chromium", flags, { stdio: "ignore" });
browser.on("error", (error) => finish({ passed: 0, failed: [String(error)] }));
const late = setTimeout(() => finish({ passed: 0, failed: ["no result after 240 s"] }), 240_000);
const { passed, failed } = await result;
clearTimeout(late);
const gone = new Promise((resolve) => browser.on("close", resolve));
browser.kill();
await Promise.race([gone, new Promise((resolve) => setTimeout(resolve, 5000))]);
server.close();
server.closeAllConnections();
await rm(profile, { recursive: true, force: true, maxRetries: 5 });

for (const words of failed) console.error(`failed: ${words}`);
console.log(`${page} in Chromium: ${passed} checks passed, ${failed.length} failed`);
process.exit(failed.length > 0 || passed === 0 ? 1 : 0);
