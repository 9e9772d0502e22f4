// Connects the TypeScript SDK's client to a server, and turns what it answers into plain
// JSON that a test can compare.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, CreateTaskResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { onFetch, onTransport } from './journal.mjs';

// target is {url} or {command, args}; capabilities are the client's. The session it returns has
// a journal of all its messages, the errors that the SDK reports outside of any call, and
// listening, which resolves when the server can say something of its own accord.
export async function connect(target, capabilities = {}) {
    const client = new Client({ name: 'coatcheck-peers', version: '1.0.0' }, { capabilities });
    const session = { client, target, journal: [], errors: [] };
    client.onerror = error => session.errors.push(String(error));
    if (target.url) {
        session.listening = new Promise(resolve => {
            session.transport = new StreamableHTTPClientTransport(new URL(target.url), { fetch: onFetch(session.journal, resolve) });
        });
    } else {
        session.transport = new StdioClientTransport({ command: target.command, args: target.args, env: process.env, stderr: 'inherit' });
        session.listening = Promise.resolve();
        onTransport(session.journal, session.transport);
    }
    await client.connect(session.transport);
    return session;
}

// close ends the session as a well-behaved client does: DELETE over HTTP, end of input over
// stdio.
export async function close({ client, transport }) {
    if (transport instanceof StreamableHTTPClientTransport) {
        await transport.terminateSession();
    }
    await client.close();
}

// create sends a tools/call as a task and returns the CreateTaskResult. The SDK has this only
// as the first step of callToolStream, which then polls to the end.
export function create(client, name, args, task = {}, options = {}) {
    return client.request({ method: 'tools/call', params: { name, arguments: args } }, CreateTaskResultSchema, { ...options, task });
}

// result is tasks/result, with the answer or the error as a value.
export function result(client, taskId) {
    return settle(client.experimental.tasks.getTaskResult(taskId, CallToolResultSchema));
}

// finished polls a task at the interval it asks for until its status is terminal.
export async function finished(client, taskId) {
    for (;;) {
        const task = await client.experimental.tasks.getTask(taskId);
        if (['completed', 'failed', 'cancelled'].includes(task.status)) {
            return task;
        }
        await new Promise(resolve => setTimeout(resolve, task.pollInterval ?? 1000));
    }
}

// list follows the cursors of tasks/list and returns the pages.
export async function list(client) {
    const pages = [];
    let cursor;
    do {
        const page = await client.experimental.tasks.listTasks(cursor);
        pages.push(page.tasks);
        cursor = page.nextCursor;
    } while (cursor !== undefined);
    return pages;
}

// settle gives {value} or {error: {code, message, data}}. The SDK puts "MCP error CODE: " in
// front of the message that came over the wire; we take it off again.
export async function settle(promise) {
    try {
        return { value: await promise };
    } catch (error) {
        const prefix = `MCP error ${error.code}: `;
        const message = error.message.startsWith(prefix) ? error.message.slice(prefix.length) : error.message;
        return { error: { code: error.code, message, data: error.data } };
    }
}
