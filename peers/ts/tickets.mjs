// Scenarios of plain calls that take long, in a client that knows nothing of tickets: it sees
// tools and their results.
import { settle } from './session.mjs';

// calls makes plain calls at the same time, after it listed the tools, from which on the SDK
// validates structured content. options are those of the SDK for each request. While an answer has
// a ticket in its metadata, under the key given, it is collected with the tool that stands there.
// Reported are the tools, and of each call all its answers, the progress that onprogress got if
// the call listens, and whether the SDK validates its result; and the session's journal and errors.
export async function calls(client, { calls, key }, session) {
    const { tools } = await client.listTools();
    const make = async ({ name, args, options, listens }) => {
        const progress = [];
        const ask = (name, args) => settle(client.callTool({ name, arguments: args }, undefined,
            listens ? { ...options, onprogress: report => progress.push(report) } : options));
        const answers = [await ask(name, args)];
        for (let about; (about = answers.at(-1).value?._meta?.[key])?.collect !== undefined; ) {
            answers.push(await ask(about.collect, { ticket: about.ticket }));
        }
        return { answers, progress, validated: client.getToolOutputValidator(name) !== undefined };
    };
    const made = Object.entries(calls).map(async ([label, call]) => [label, await make(call)]);
    return { tools, calls: Object.fromEntries(await Promise.all(made)), journal: session.journal.slice(), errors: session.errors };
}
