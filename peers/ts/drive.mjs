// Usage: node drive.mjs TARGET STEPS [CAPABILITIES]
//
// TARGET is {url} or {command, args}. STEPS is an object whose values are [SCENARIO,
// ARGUMENTS]; the scenarios are in scenarios.mjs, inside.mjs and tickets.mjs. CAPABILITIES are the client's,
// by default none. All steps run in order in one session, and one object with a report for
// each step is printed on stdout.
import { close, connect } from './session.mjs';
import * as inside from './inside.mjs';
import * as outside from './scenarios.mjs';
import * as tickets from './tickets.mjs';

const scenarios = { ...outside, ...inside, ...tickets };
const [target, steps, capabilities] = process.argv.slice(2).map(argument => JSON.parse(argument));
const session = await connect(target, capabilities);
const reports = {};
for (const [step, [scenario, args]] of Object.entries(steps)) {
    reports[step] = await scenarios[scenario](session.client, args, session);
}
await close(session);
process.stdout.write(JSON.stringify(reports) + '\n');
