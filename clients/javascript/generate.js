// Writes schema.d.ts, the types of the server's bodies: micpq serve --openapi | node generate.js
import { writeFileSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import openapiTS, { astToString } from 'openapi-typescript';

const document = JSON.parse(await text(process.stdin));
// The client writes its paths itself; with all of theirs the file would be ten times as long.
const types = await openapiTS({ ...document, paths: {} });
writeFileSync(new URL('schema.d.ts', import.meta.url), `// Written by generate.js from the server's OpenAPI description.\n\n${astToString(types)}`);
