// A static file server for tests.
import { createReadStream } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json" };

/** Serves a folder on a free port. `post` answers POST requests. */
export async function serve(folder, post) {
  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    if (request.method === "POST") {
      let body = "";
      for await (const chunk of request) body += chunk;
      response.end();
      post?.(path, body);
      return;
    }
    const name = normalize(path.endsWith("/") ? `${path}index.html` : path);
    const file = createReadStream(join(folder, name));
    file.on("error", () => response.writeHead(404).end());
    file.on("open", () => response.setHeader("content-type", TYPES[extname(name)] ?? "application/octet-stream"));
    file.pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => {
    server.close();
    server.closeAllConnections();
  };
  return { origin: `http://127.0.0.1:${server.address().port}`, stop };
}
