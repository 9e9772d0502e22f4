// Usage: node drive.mjs TARGET STEPS
//
// TARGET is {url} or {command, args}. STEPS is an object whose values are [SCENARIO,
// ARGUMENTS]; the scenarios are in scenarios.mjs. All steps run in order in one session, and
// one object with a report for each step is printed on stdout.
import { close, connect } from './session.mjs';
import * as scenarios from './scenarios.mjs';

const [target, steps] = process.argv.slice(2).map(argument => JSON.parse(argument));
const session = await connect(target);
const reports = {};
for (const [step, [scenario, args]] of Object.entries(steps)) {
    reports[step] = await scenarios[scenario](session.client, args);
}
await close(session);
process.stdout.write(JSON.stringify(reports) + '\n');
