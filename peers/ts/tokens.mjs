// Usage: node tokens.mjs FILE
//
// Prints what each of the listings of FILE costs in tokens of o200k_base: its tools, as the JSON
// that a client reads, and its sentence of the server's instructions.
import { readFileSync } from 'node:fs';
import { countTokens } from 'gpt-tokenizer/encoding/o200k_base';

const listings = JSON.parse(readFileSync(process.argv[2], 'utf8'));
console.log(JSON.stringify(listings.map(({ prefixed, tools, sentence }) => ({
    prefixed,
    tools: countTokens(JSON.stringify(tools)),
    sentence: countTokens(sentence)
}))));
