// What the TypeScript SDK's client is made to do. Each scenario takes a connected client and
// its arguments and returns a report; the judging is done by the Go test that asked for it.
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { create, finished, list, result, settle } from './session.mjs';

// tools reports what the server says of tasks.
export async function tools(client) {
    const { tools } = await client.listTools();
    return {
        capability: client.getServerCapabilities()?.tasks,
        support: Object.fromEntries(tools.map(tool => [tool.name, tool.execution?.taskSupport]))
    };
}

// plain calls a tool without a task.
export function plain(client, { name, args }) {
    return settle(client.callTool({ name, arguments: args }));
}

// stream calls a tool the way the SDK means it: callToolStream creates, polls, and fetches
// the result. Tools are listed first because the SDK learns from that which of them run as
// tasks.
export async function stream(client, { name, args }) {
    await client.listTools();
    const messages = [];
    for await (const message of client.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema)) {
        messages.push(message.type === 'error' ? { type: 'error', code: message.error.code, message: message.error.message } : message);
    }
    return messages;
}

// life takes one task through create, poll and result.
export async function life(client, { name, args, task }) {
    const created = await create(client, name, args, task);
    const taskId = created.task.taskId;
    const got = await client.experimental.tasks.getTask(taskId);
    const last = await finished(client, taskId);
    return { created: created.task, got, last, result: await result(client, taskId), again: await result(client, taskId) };
}

// blocked opens tasks/result several times while the task still runs.
export async function blocked(client, { name, args, waiters }) {
    const { task } = await create(client, name, args);
    const results = await Promise.all(Array.from({ length: waiters }, () => result(client, task.taskId)));
    return { created: task, results, last: await client.experimental.tasks.getTask(task.taskId) };
}

// cancel cancels a running task while one tasks/result is open, then looks at it in every way.
export async function cancel(client, { name, args }) {
    const { task } = await create(client, name, args);
    const tasks = client.experimental.tasks;
    const waiting = result(client, task.taskId);
    const cancelled = await tasks.cancelTask(task.taskId);
    return {
        created: task,
        cancelled,
        waiting: await waiting,
        got: await tasks.getTask(task.taskId),
        again: await settle(tasks.cancelTask(task.taskId)),
        result: await result(client, task.taskId),
        last: await tasks.getTask(task.taskId)
    };
}

// listed creates tasks and lists everything, page by page.
export async function listed(client, { name, args, count }) {
    const created = [];
    for (let i = 0; i < count; i++) {
        created.push((await create(client, name, args)).task.taskId);
    }
    const pages = await list(client);
    return { created, pages, badCursor: await settle(client.experimental.tasks.listTasks('no such cursor')) };
}

// unknown asks for a task that never was.
export async function unknown(client) {
    const tasks = client.experimental.tasks;
    return {
        get: await settle(tasks.getTask('no-such-task')),
        result: await result(client, 'no-such-task'),
        cancel: await settle(tasks.cancelTask('no-such-task'))
    };
}

// begin creates a task and leaves.
export async function begin(client, { name, args, task }) {
    return (await create(client, name, args, task)).task;
}

// collect fetches a task's outcome in a session that did not create it.
export async function collect(client, { taskId }) {
    return { last: await finished(client, taskId), result: await result(client, taskId) };
}
