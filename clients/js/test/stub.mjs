// A server in a few lines: exactly-once merging, and answers that can be lost, delayed or replaced.
import { createServer } from "node:http";
import { decode, encode, packStats, unpackStats } from "../fedbandit.js";
import { Layout } from "../statistics.js";

export const SETTINGS = { name: "news", dim: 2, lam: 1, alpha: 1, radius: { kind: "fixed", beta: 0.5 }, settings: "s1", agent: "shop-1" };

export class Stub {
  constructor(settings = {}) {
    this.settings = { ...SETTINGS, ...settings };
    this.stats = new Layout(this.settings).blank(1);
    Object.assign(this, { version: 0, generation: 0, incarnation: "", sequence: 0, bodies: [], calls: [], faults: [] });
  }

  async start() {
    this.http = createServer(async (request, response) => {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      this.handle(request, new Uint8Array(Buffer.concat(chunks)), response);
    });
    await new Promise((resolve) => this.http.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.http.address().port}/`;
    return this;
  }

  stop() {
    this.http.closeAllConnections();
    return new Promise((resolve) => this.http.close(resolve));
  }

  /** Faults are used up one by one: "lost" (merged, no answer), "refused" (no connection), or {status, body, headers}. */
  handle(request, body, response) {
    this.calls.push({ method: request.method, path: request.url, headers: request.headers, at: performance.now() });
    const fault = request.url === "/v1/models/news" ? undefined : this.faults.shift();
    if (fault === "refused") return request.socket.destroy();
    if (fault?.status) return response.writeHead(fault.status, fault.headers).end(fault.body);
    if (request.url === "/v1/models/news") return response.end(JSON.stringify(this.settings));
    if (request.method === "POST" && this.hasGap(decode(body))) return response.writeHead(409).end(JSON.stringify({ error: "sequence_gap", message: "an earlier upload is missing" }));
    if (request.method === "POST") this.merge(body);
    if (fault === "lost") return request.socket.destroy();
    const tag = `"${this.version}-${this.generation}"`, had = request.headers["if-none-match"] ?? "";
    const [version, generation] = had.replace(/[W/"]/g, "").split("-").map(Number);
    const hasAll = had.startsWith("W/") && version <= this.version && generation === this.generation; // nothing was taken out
    if (had === tag || hasAll) return response.writeHead(304).end();
    const asked = request.method === "POST" ? this.incarnation : new URL(request.url, this.url).searchParams.get("incarnation");
    const { agent, dim, settings, blocks } = this.settings, acknowledged = asked === this.incarnation ? this.sequence : 0;
    const reply = { v: blocks ? 2 : 1, agent, version: this.version, acknowledged, dim, stats: packStats(this.stats), settings, ...(blocks && { blocks }) };
    return response.writeHead(200, { ETag: tag }).end(encode(reply));
  }

  /** Take everything out of the model again, as `forget` does with the only agent's data. */
  forget() {
    this.stats = new Layout(this.settings).blank(1);
    this.version += 1;
    this.generation += 1;
  }

  /** A state to go back to, as a backup of a server is. */
  backup() {
    const { stats, version, generation, incarnation, sequence } = this;
    return () => Object.assign(this, { stats, version, generation: generation + 1, incarnation, sequence });
  }

  hasGap(message) {
    return message.get("sequence") > (message.get("incarnation") === this.incarnation ? this.sequence : 0) + 1;
  }

  merge(body) {
    this.bodies.push(Buffer.from(body).toString("hex"));
    const message = decode(body);
    if (message.get("incarnation") !== this.incarnation) Object.assign(this, { incarnation: message.get("incarnation"), sequence: 0 });
    if (message.get("sequence") !== this.sequence + 1) return;
    this.sequence += 1;
    this.version += 1;
    const added = message.get("v") === 2 ? this.expanded(message) : unpackStats(message.get("stats"), message.get("dim"));
    this.stats = this.stats.map((value, i) => value + added[i]);
  }

  /** The sums of an upload that says touched blocks only; it may know fewer blocks than the model has. */
  expanded(message) {
    const { p, size, blocks, length } = new Layout(this.settings), bytes = message.get("touched"), view = new DataView(bytes.buffer, bytes.byteOffset);
    const places = Array.from({ length: bytes.length / 4 }, (_, i) => view.getUint32(4 * i, true)), m = places.length;
    const stats = message.get("stats"), numbers = new Float64Array(stats.slice().buffer), all = new Float64Array(length);
    places.forEach((block, i) => {
      all.set(numbers.subarray(i * size, (i + 1) * size), block * size);
      all.set(numbers.subarray(m * size + i * p, m * size + (i + 1) * p), blocks * size + block * p);
    });
    all.set(numbers.subarray(-3), length - 3);
    return all;
  }
}
