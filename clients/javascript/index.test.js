// Drives a real server with a small random encoder of the tree.
import assert from 'node:assert/strict';
import { spawn, execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, cpSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import openapiTS, { astToString } from 'openapi-typescript';
import { Client, MicpqError } from './index.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const binary = process.env.MICPQ_BINARY ?? join(root, 'target/release/micpq');
const folder = mkdtempSync(join(tmpdir(), 'micpq-javascript-'));
let server, client, index;

before(async () => {
  const models = join(folder, 'models');
  cpSync(join(root, 'crates/engine/tests/encoders/bert'), join(models, 'tiny'), { recursive: true });
  const arguments_ = ['serve', '--data', join(folder, 'data'), '--listen', '127.0.0.1:0', '--json', '--set', 'log=warn'];
  server = spawn(binary, arguments_, { env: { ...process.env, MICPQ_MODELS: models }, stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = await new Promise((resolve) => createInterface(server.stdout).once('line', (...given) => resolve(given)));
  client = new Client(`http://${JSON.parse(line).address}/`);
  index = await client.createIndex('news', { encoder: 'tiny', bits: 128 });
  const documents = Array.from({ length: 40 }, (_, i) => ({
    id: `n-${i}`, text: `oil price number ${i}`, attributes: { year: 1980 + (i % 10), place: i % 2 ? 'japan' : 'kuwait' },
  }));
  assert.equal((await index.upsert(documents)).changed, 40);
});

after(async () => {
  server.kill();
  await new Promise((resolve) => server.once('exit', resolve));
  rmSync(folder, { recursive: true });
});

test('a text finds documents, with filters, pages and several at once', async () => {
  const found = await index.search('oil price number 7', { k: 5, filter: 'place:japan' });
  assert.equal(found.hits.length, 5);
  assert.ok(found.hits.every((hit) => hit.attributes.place === 'japan'));
  const all = [];
  for await (const hit of index.hits('oil price', { k: 7 })) all.push(hit.id);
  assert.equal(all.length, 40);
  assert.equal(new Set(all).size, 40);
  const [one, two] = await index.searchAll(['oil', { text: 'price', k: 2 }], { documents: false });
  assert.deepEqual([one.hits.length, two.hits.length], [10, 2]);
  assert.equal(one.hits[0].text, undefined);
});

test('a package of a clean tree has the types that package.json names', () => {
  const here = fileURLToPath(new URL('.', import.meta.url));
  const clean = join(folder, 'clean');
  // As a fresh clone: without what .gitignore names.
  cpSync(here, clean, { recursive: true, filter: (path) => !/node_modules|index\.d\.ts$/.test(path) });
  symlinkSync(join(here, 'node_modules'), join(clean, 'node_modules'));
  const packed = JSON.parse(execFileSync('npm', ['pack', '--json', '--silent'], { cwd: clean, encoding: 'utf8' }));
  const files = packed[0].files.map((file) => file.path);
  const named = JSON.parse(readFileSync(join(here, 'package.json'), 'utf8'));
  for (const file of [...named.files, named.exports['.'].types.slice(2)]) assert.ok(files.includes(file), `${file} of ${files}`);
  assert.match(readFileSync(join(clean, 'index.d.ts'), 'utf8'), /class Client/);
});

test('codes of refusals in the comments are codes of the server', () => {
  const types = readFileSync(new URL('schema.d.ts', import.meta.url), 'utf8');
  const [, named] = readFileSync(new URL('index.js', import.meta.url), 'utf8').match(/Stable name of the reason, such as `(\w+)`/);
  assert.match(types, new RegExp(`Code:.*"${named}"`));
});

test('a vector and a document are queries', async () => {
  const [vector] = await client.embeddings('news', ['oil price number 3'], 'query');
  assert.equal(vector.length, (await index.info()).width);
  const byVector = await index.search({ vector }, { k: 3 });
  const byText = await index.search('oil price number 3', { k: 3 });
  assert.deepEqual(byVector.hits.map((hit) => hit.id), byText.hits.map((hit) => hit.id));
  const similar = await index.similar('n-3', { k: 39 });
  assert.ok(similar.hits.length === 39 && similar.hits.every((hit) => hit.id !== 'n-3'));
});

test('documents are read, replaced, counted and deleted', async () => {
  await index.upsert([{ id: 'new', text: 'a strike', attributes: { year: 2001 } }, { id: 'new', text: 'a strike ends', attributes: { year: 2002 } }]);
  assert.equal((await index.get('new')).text, 'a strike ends');
  assert.equal(await index.get('nobody'), null);
  assert.deepEqual((await index.getAll(['nobody', 'n-1'])).map((found) => found?.id), [undefined, 'n-1']);
  assert.equal(await index.count('year:2002'), 1);
  assert.equal(await index.count(), 41);
  const places = (await index.facets({ filter: 'year:1980', values: 5 })).facets.find((facet) => facet.name === 'place');
  assert.ok(places);
  assert.equal((await index.delete({ filter: 'year:2002' })).changed, 1);
  assert.equal((await index.delete(['n-0', 'nobody'])).changed, 1);
  await index.upsert([{ id: 'n-0', text: 'oil price number 0', attributes: { year: 1980, place: 'kuwait' } }]);
});

test('a job is waited for', async () => {
  const seen = [];
  const done = await client.wait(await index.dedup({ by: 'text' }), { every: 20, onProgress: (job) => seen.push(job.status) });
  assert.equal(done.status, 'succeeded');
  assert.ok(seen.length > 0);
});

test('a refusal has the reason, its code and its place', async () => {
  await assert.rejects(client.index('nobody').search('x'), (error) =>
    error instanceof MicpqError && error.status === 404 && /nobody/.test(error.message) && typeof error.code === 'string');
  await assert.rejects(index.count('year:['), (error) => error instanceof MicpqError && error.status === 422 && error.position !== undefined);
});

test('a busy server is asked again, a refusal is not', async () => {
  let requests = 0;
  const stub = createServer((request, response) => {
    requests += 1;
    response.writeHead(requests < 3 ? 503 : request.url === '/v1/jobs/1' ? 200 : 404, { 'content-type': 'application/json', 'retry-after': '0' });
    response.end('{"id": 1, "status": "succeeded"}');
  });
  await new Promise((resolve) => stub.listen(0, '127.0.0.1', resolve));
  const own = new Client(`http://127.0.0.1:${stub.address().port}`);
  assert.equal((await own.job(1)).status, 'succeeded');
  await assert.rejects(own.job(2), { status: 404 });
  assert.equal(requests, 4);
  await new Promise((resolve) => stub.close(resolve));
});

test('the types are those of the server', async () => {
  const document = JSON.parse(execFileSync(binary, ['serve', '--openapi'], { maxBuffer: 1 << 26 }));
  const types = astToString(await openapiTS({ ...document, paths: {} }));
  assert.ok(readFileSync(new URL('schema.d.ts', import.meta.url), 'utf8').endsWith(types), 'schema.d.ts is old: run make javascript-types');
});

test('copies are skipped, and saved queries are told of new documents', async () => {
  const saved = await index.watch('japan', { filter: 'place:japan' });
  assert.equal(saved.name, 'japan');
  const { next } = await index.matches();
  const added = await index.upsert([
    { id: 'copy', text: 'Oil PRICE number 4' },
    { id: 'new', text: 'a bridge over the slow river', attributes: { place: 'japan' } },
  ], { on_duplicate: 'skip', duplicate_threshold: 1 });
  assert.deepEqual([added.changed, added.duplicates.skipped, added.duplicates.documents[0].duplicate_of], [1, 1, 'n-4']);
  const found = await index.matches({ after: next });
  assert.deepEqual(found.matches.map((match) => [match.query, match.id]), [['japan', 'new']]);
  assert.equal((await index.watches()).length, 1);
  await index.unwatch('japan');
  await index.delete(['new']);
  await assert.rejects(index.unwatch('japan'), (error) => error.code === 'unknown_saved_query');
});
