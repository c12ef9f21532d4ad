/** @typedef {import('./schema.d.ts').components['schemas']} Schemas */
/** @typedef {Schemas['Id']} Id */

const RETRIED = new Set([429, 503]);
const MAX_PAUSE_MS = 5000;

/** A refusal of the server. */
export class MicpqError extends Error {
  /**
   * @param {number} status Status of the response.
   * @param {Partial<Schemas['Details']>} details The server's own words.
   */
  constructor(status, details) {
    super(details.message ?? `the server answered ${status}`);
    this.name = 'MicpqError';
    this.status = status;
    /** Stable name of the reason, such as `unknown_index`. */
    this.code = details.code;
    /** Position of the first wrong character of a filter. */
    this.position = details.position ?? undefined;
  }
}

/** A server. */
export class Client {
  #url;
  /** @type {Record<string, string>} */
  #headers;
  #timeout;
  #retries;

  /**
   * @param {string} [url] Address of the server.
   * @param {{ key?: string, timeout?: number, retries?: number }} [options] API key; milliseconds until a request is given up; how
   *   often a request is sent again when the server is busy. A change that is sent twice is the same change.
   */
  constructor(url = 'http://127.0.0.1:6380', { key, timeout = 30_000, retries = 3 } = {}) {
    this.#url = url.replace(/\/+$/, '');
    this.#headers = key === undefined ? {} : { authorization: `Bearer ${key}` };
    this.#timeout = timeout;
    this.#retries = retries;
  }

  /** @returns {Promise<Schemas['IndexList']>} */
  indexes() {
    return this.request('GET', '/v1/indexes');
  }

  /** @param {string} name */
  index(name) {
    return new Index(this, name);
  }

  /**
   * Creates an index with the model of another one, or with an encoder and untrained codes.
   * @param {string} name
   * @param {Partial<Schemas['Create']>} [options]
   */
  async createIndex(name, options = {}) {
    await this.request('PUT', `/v1/indexes/${encodeURIComponent(name)}`, options);
    return this.index(name);
  }

  /**
   * Embeddings of texts, one per text.
   * @param {string} model Name of an index.
   * @param {string[]} texts
   * @param {Schemas['InputType']} [type] Whether they are queries or documents; some encoders put another prompt before each.
   * @returns {Promise<number[][]>}
   */
  async embeddings(model, texts, type = 'document') {
    const answer = await this.request('POST', '/v1/embeddings', { model, input: texts, input_type: type, encoding_format: 'float' });
    return answer.data.map((/** @type {{ embedding: number[] }} */ row) => row.embedding);
  }

  /**
   * @param {number} id
   * @returns {Promise<Schemas['JobView']>}
   */
  job(id) {
    return this.request('GET', `/v1/jobs/${id}`);
  }

  /**
   * Waits for a job to end, and throws if it failed or was cancelled.
   * @param {Schemas['JobView']} job
   * @param {{ every?: number, onProgress?: (job: Schemas['JobView']) => void }} [options] Milliseconds between two looks.
   * @returns {Promise<Schemas['JobView']>}
   */
  async wait(job, { every = 500, onProgress } = {}) {
    while (job.status === 'running') {
      await pause(every);
      job = await this.job(job.id);
      onProgress?.(job);
    }
    if (job.status !== 'succeeded') throw new MicpqError(200, { message: job.error ?? `job ${job.id} was ${job.status}` });
    return job;
  }

  /**
   * Sends a request; for what has no method here.
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @returns {Promise<any>} The body of the response, or `undefined` if it has none.
   */
  async request(method, path, body) {
    const headers = body === undefined ? this.#headers : { ...this.#headers, 'content-type': 'application/json' };
    const init = { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
    for (let left = this.#retries; ; left--) {
      const response = await fetch(this.#url + path, { ...init, signal: AbortSignal.timeout(this.#timeout) });
      if (response.ok) return response.status === 204 ? undefined : response.json();
      if (left > 0 && RETRIED.has(response.status)) {
        await response.body?.cancel();
        await pause(Math.min(1000 * Number(response.headers.get('retry-after') ?? 1), MAX_PAUSE_MS));
        continue;
      }
      const refusal = await response.json().catch(() => ({}));
      throw new MicpqError(response.status, refusal.error ?? {});
    }
  }
}

/** An index of a server. */
export class Index {
  /**
   * @param {Client} client
   * @param {string} name
   */
  constructor(client, name) {
    this.client = client;
    this.name = name;
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   */
  #request(method, path, body) {
    return this.client.request(method, `/v1/indexes/${encodeURIComponent(this.name)}${path}`, body);
  }

  /** @returns {Promise<Schemas['IndexView']>} */
  info() {
    return this.#request('GET', '');
  }

  /**
   * The documents nearest to a text, or to what a query says.
   * @param {string | Partial<Schemas['Search']>} query
   * @param {Partial<Schemas['Search']>} [options]
   * @returns {Promise<Schemas['Found']>}
   */
  search(query, options = {}) {
    return this.#request('POST', '/query', asQuery(query, options));
  }

  /**
   * Hits of all pages, best first, fetched as they are read.
   * @param {string | Partial<Schemas['Search']>} query
   * @param {Partial<Schemas['Search']>} [options] `k` is the size of a page.
   * @returns {AsyncGenerator<Schemas['Hit'], void, void>}
   */
  async *hits(query, options = {}) {
    let after = null;
    do {
      const page = await this.search(query, { ...options, after });
      yield* page.hits;
      after = page.next ?? null;
    } while (after !== null);
  }

  /**
   * Answers to several queries, in their order.
   * @param {(string | Partial<Schemas['Search']>)[]} queries
   * @param {Partial<Schemas['Search']>} [options] Of all of them.
   * @returns {Promise<Schemas['Found'][]>}
   */
  async searchAll(queries, options = {}) {
    return (await this.#request('POST', '/query/batch', { queries: queries.map((query) => asQuery(query, options)) })).answers;
  }

  /**
   * The documents nearest to a document of the index.
   * @param {Id} document
   * @param {Partial<Schemas['Search']>} [options]
   */
  similar(document, options = {}) {
    return this.search({ document }, options);
  }

  /**
   * Adds documents, or replaces those with the same ids. They are on disk when it returns.
   * @param {Schemas['NewDocument'][]} documents
   * @param {Omit<Partial<Schemas['Upsert']>, 'documents'>} [options] What to do with documents that repeat another.
   * @returns {Promise<Schemas['Changed']>}
   */
  upsert(documents, options = {}) {
    return this.#request('PUT', '/documents', { ...options, documents });
  }

  /**
   * The document of an id; `null` if there is none.
   * @param {Id} id
   * @returns {Promise<Schemas['StoredDocument'] | null>}
   */
  async get(id) {
    return (await this.getAll([id]))[0] ?? null;
  }

  /**
   * Documents in the order of their ids, `null` for an unknown one.
   * @param {Id[]} ids
   * @returns {Promise<(Schemas['StoredDocument'] | null)[]>}
   */
  async getAll(ids) {
    return (await this.#request('POST', '/documents/get', { ids })).documents;
  }

  /**
   * Deletes documents by their ids, or by a filter.
   * @param {Id[] | { filter: string }} what
   * @returns {Promise<Schemas['Changed']>}
   */
  delete(what) {
    return this.#request('POST', '/documents/delete', Array.isArray(what) ? { ids: what } : what);
  }

  /**
   * @param {string} [filter]
   * @returns {Promise<number>}
   */
  async count(filter) {
    return (await this.#request('POST', '/count', filter === undefined ? {} : { filter })).count;
  }

  /**
   * Values of the attributes and how many documents have them.
   * @param {{ filter?: string, values?: number }} [options]
   * @returns {Promise<Schemas['Facets']>}
   */
  facets({ filter, values } = {}) {
    const given = Object.entries({ filter, values }).filter(([, value]) => value !== undefined);
    return this.#request('GET', `/facets?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`);
  }

  /**
   * @param {Partial<Schemas['Train']>} [options]
   * @returns {Promise<Schemas['JobView']>}
   */
  train(options = {}) {
    return this.#request('POST', '/train', options);
  }

  /**
   * @param {Partial<Schemas['FindTopics']>} [options]
   * @returns {Promise<Schemas['JobView']>}
   */
  topics(options = {}) {
    return this.#request('POST', '/topics', options);
  }

  /**
   * @param {Partial<Schemas['Dedup']>} [options]
   * @returns {Promise<Schemas['JobView']>}
   */
  dedup(options = {}) {
    return this.#request('POST', '/dedup', options);
  }

  /**
   * Saves a query: `matches` tells which documents that are added later match it.
   * @param {string} name
   * @param {Partial<Schemas['NewSavedQuery']>} query
   * @returns {Promise<Schemas['SavedQueryView']>}
   */
  watch(name, query) {
    return this.#request('PUT', `/watch/${encodeURIComponent(name)}`, query);
  }

  /**
   * The saved queries.
   * @returns {Promise<Schemas['SavedQueryView'][]>}
   */
  async watches() {
    return (await this.#request('GET', '/watch')).queries;
  }

  /**
   * Removes a saved query.
   * @param {string} name
   */
  async unwatch(name) {
    await this.#request('DELETE', `/watch/${encodeURIComponent(name)}`);
  }

  /**
   * New documents that match saved queries. `next` of the answer is `after` of the next call.
   * @param {{ after?: string, limit?: number, name?: string, all?: boolean }} [options]
   * @returns {Promise<Schemas['MatchList']>}
   */
  matches(options = {}) {
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    return this.#request('GET', `/matches?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`);
  }

  /** Deletes the index. Only one that was created over HTTP can be dropped. */
  async drop() {
    await this.#request('DELETE', '');
  }
}

/**
 * @param {string | Partial<Schemas['Search']>} query
 * @param {Partial<Schemas['Search']>} options
 */
function asQuery(query, options) {
  return { ...(typeof query === 'string' ? { text: query } : query), ...options };
}

/** @param {number} milliseconds */
function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
