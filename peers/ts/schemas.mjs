// Usage: node schemas.mjs FILE
//
// Validates instances against the adapted schemas of FILE, as the SDK's client does. Prints what is
// not as it should be.
import { readFileSync } from 'node:fs';
import { ToolSchema } from '@modelcontextprotocol/sdk/types.js';
import { AjvJsonSchemaValidator } from '@modelcontextprotocol/sdk/validation/ajv';

const wrong = [];
let checked = 0;
for (const { name, schema, adapted, valid, invalid = [], loose = false } of JSON.parse(readFileSync(process.argv[2], 'utf8'))) {
    const tool = ToolSchema.parse({ name: 'tool', inputSchema: { type: 'object' }, outputSchema: adapted });
    // Validators of their own, since one that has compiled an $id does not take it again.
    const before = new AjvJsonSchemaValidator().getValidator(schema);
    const after = new AjvJsonSchemaValidator().getValidator(tool.outputSchema);
    const check = (validate, which, instance, want) => {
        checked++;
        const { valid, errorMessage } = validate(instance);
        if (valid !== want) {
            wrong.push(`${name}: ${JSON.stringify(instance)} against the ${which} schema: valid ${valid}: ${errorMessage}`);
        }
    };
    for (const instance of valid) {
        check(before, 'original', instance, true);
        check(after, 'adapted', instance, true);
    }
    for (const instance of invalid) {
        check(before, 'original', instance, false);
        check(after, 'adapted', instance, false);
    }
    for (const status of ['working', 'input_required']) {
        check(after, 'adapted', { ticket: 'T1', status, message: 'It is still running.' }, true);
    }
    check(after, 'adapted', { ticket: 'T1', status: 'working' }, loose || before({ ticket: 'T1', status: 'working' }).valid);
}
console.log(JSON.stringify({ checked, wrong }));
