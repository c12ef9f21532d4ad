// Search over a micpq export: tokens in JavaScript, everything else in WebAssembly. A page of your own can import it:
//   import { open } from "./micpq.js";
//   const index = await open("./");
//   const hits = await index.search("oil prices", 10);

/** Opens the export whose files lie at `base`. */
export async function open(base = "./") {
  const at = (name) => new URL(name, new URL(base, document.baseURI));
  const [about, vocabulary, bytes, lengths, wasm] = await Promise.all([
    get(at("about.json")).then((response) => response.json()),
    get(at("tokens.txt")).then((response) => response.text()),
    get(at("search.bin")).then((response) => response.arrayBuffer()),
    get(at("lengths.bin")).then((response) => response.arrayBuffer()),
    get(at("micpq.wasm")).then((response) => response.arrayBuffer()).then((code) => WebAssembly.instantiate(code)),
  ]);
  const scan = new Scan(wasm.instance.exports, bytes);
  if (scan.documents !== about.documents) throw new Error("search.bin and about.json belong to different exports; export again");
  return new Index(about, new WordPieces(about.tokenizer, vocabulary), scan, new Documents(at("documents.jsonl"), lengths));
}

async function get(url, options) {
  const response = await fetch(url, options);
  if (!response.ok) throw new Error(`${url.pathname}: the server answered ${response.status} ${response.statusText}`);
  return response;
}

class Index {
  constructor(about, tokenizer, scan, documents) {
    Object.assign(this, { about, tokenizer, scan, documents });
  }

  /** Document numbers and distances of the `k` nearest documents, best first. */
  nearest(text, k = 10) {
    return this.scan.nearest(this.tokenizer.encode(text), k);
  }

  /** The nearest documents: `{ id, distance, text, labels, attributes }`, best first. */
  async search(text, k = 10) {
    const found = this.nearest(text, k);
    const documents = await this.documents.get(found.map((hit) => hit.row));
    return found.map((hit, i) => ({ ...documents[i], distance: hit.distance }));
  }
}

/** The WebAssembly module with an index in its memory. */
class Scan {
  constructor(module, bytes) {
    this.module = module;
    this.write(new Uint8Array(bytes));
    this.documents = this.check(module.open());
  }

  write(bytes) {
    const to = this.module.input(bytes.length);
    new Uint8Array(this.module.memory.buffer, to, bytes.length).set(bytes);
  }

  check(result) {
    if (result >= 0) return result;
    const { message, message_bytes, memory } = this.module;
    throw new Error(new TextDecoder().decode(new Uint8Array(memory.buffer, message(), message_bytes())));
  }

  nearest(tokens, k) {
    this.write(new Uint8Array(Uint32Array.from(tokens).buffer));
    const count = this.check(this.module.search(k));
    const rows = new Uint32Array(this.module.memory.buffer, this.module.rows(), count);
    const distances = new Float32Array(this.module.memory.buffer, this.module.distances(), count);
    return Array.from(rows, (row, i) => ({ row, distance: distances[i] }));
  }
}

/** Documents by range requests: only those of a page of hits are read. */
class Documents {
  constructor(url, lengths) {
    this.url = url;
    const view = new Uint32Array(lengths);
    this.starts = new Float64Array(view.length + 1);
    view.forEach((length, i) => (this.starts[i + 1] = this.starts[i] + length));
    this.read = new Map();
  }

  get(rows) {
    return Promise.all(rows.map((row) => this.one(row)));
  }

  one(row) {
    if (!this.read.has(row)) {
      const request = this.request(row);
      request.catch(() => this.read.delete(row));
      this.read.set(row, request);
    }
    return this.read.get(row);
  }

  async request(row) {
    const [from, to] = [this.starts[row], this.starts[row + 1]];
    if (this.whole) return this.parse((await this.whole).slice(from, to));
    const response = await get(this.url, { headers: { Range: `bytes=${from}-${to - 1}` } });
    if (response.status === 206) return this.parse(await response.arrayBuffer());
    // A server without range requests sends the whole file. One copy of it serves every document.
    this.whole ??= response.arrayBuffer();
    return this.parse((await this.whole).slice(from, to));
  }

  parse(bytes) {
    return JSON.parse(new TextDecoder().decode(bytes));
  }
}

/** The word pieces of BERT, as the program cuts them. */
export class WordPieces {
  constructor(options, vocabulary) {
    this.options = options;
    const tokens = vocabulary.split("\n");
    this.ids = new Map(tokens.map((token, id) => [token, id]).filter(([token]) => token !== ""));
    const escaped = Object.keys(options.added).map((token) => token.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
    this.added = escaped.length > 0 ? new RegExp(`(${escaped.join("|")})`) : null;
  }

  /** Token numbers of a text. Unknown tokens are left out. */
  encode(text) {
    if (this.options.lowercase_first) text = text.toLowerCase();
    const parts = this.added ? text.split(this.added) : [text];
    const tokens = parts.flatMap((part) => this.options.added[part] ?? this.words(this.normalize(part)).flatMap((word) => this.pieces(word)));
    return tokens.slice(0, this.options.max_tokens).filter((token) => token !== this.options.unknown);
  }

  normalize(text) {
    const { clean_text, handle_chinese_chars, strip_accents, lowercase } = this.options;
    if (clean_text) {
      text = text.replace(/[\t\n\r]/g, " ").replace(/[\0\ufffd\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, "").replace(/\p{White_Space}/gu, " ");
    }
    if (handle_chinese_chars) {
      const ideographs = /[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{f900}-\u{faff}\u{2f800}-\u{2fa1f}]/gu;
      text = text.replace(ideographs, " $& ");
    }
    if (strip_accents) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
    // Character by character, as the program does: a final sigma stays a sigma.
    if (lowercase) text = Array.from(text, (character) => character.toLowerCase()).join("");
    return text;
  }

  words(text) {
    return text.match(/[\p{P}!-/:-@[-`{-~]|[^\s\p{White_Space}\p{P}!-/:-@[-`{-~]+/gu) ?? [];
  }

  pieces(word) {
    const { prefix, unknown, max_characters } = this.options;
    const characters = Array.from(word);
    if (characters.length > max_characters) return [unknown];
    const found = [];
    for (let start = 0; start < characters.length; ) {
      let end = characters.length;
      let id;
      for (; end > start; end--) {
        id = this.ids.get((start > 0 ? prefix : "") + characters.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [unknown];
      found.push(id);
      start = end;
    }
    return found;
  }
}
