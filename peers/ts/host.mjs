// Usage: node host.mjs TARGET TOOL ARGUMENTS
//
// The TypeScript SDK's client as one that runs sampling as tasks. It calls a tool of TARGET, as
// drive.mjs has it, plainly and as a task, and prints what came of each, with the requests that
// the server made meanwhile and the client's own tasks.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js';
import { CallToolResultSchema, CreateMessageRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const [target, name, args] = [JSON.parse(process.argv[2]), process.argv[3], JSON.parse(process.argv[4])];
const taskStore = new InMemoryTaskStore();
const client = new Client({ name: 'host', version: '1.0.0' }, {
    capabilities: { sampling: {}, tasks: { list: {}, cancel: {}, requests: { sampling: { createMessage: {} } } } },
    taskStore
});
const errors = [];
client.onerror = error => errors.push(String(error));
client.setRequestHandler(CreateMessageRequestSchema, async ({ params }, { taskStore, taskRequestedTtl }) => {
    const answer = { role: 'assistant', model: 'm1', content: { type: 'text', text: 'because' } };
    if (!params.task) {
        return answer;
    }
    const task = await taskStore.createTask({ ttl: taskRequestedTtl, pollInterval: 100 });
    setTimeout(() => taskStore.storeTaskResult(task.taskId, 'completed', answer), 500);
    return { task };
});

const transport = target.url
    ? new StreamableHTTPClientTransport(new URL(target.url))
    : new StdioClientTransport({ command: target.command, args: target.args, env: process.env, stderr: 'inherit' });
await client.connect(transport);
const asked = [];
const onmessage = transport.onmessage;
transport.onmessage = (message, extra) => {
    if (message.method && message.id !== undefined) {
        asked.push({ method: message.method, params: message.params });
    }
    return onmessage(message, extra);
};

const reports = {};
reports.plain = { result: await client.callTool({ name, arguments: args }), asked: asked.splice(0) };
const stream = client.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: { ttl: 60_000 } });
for await (const message of stream) {
    switch (message.type) {
        case 'taskCreated':
            reports.task = { id: message.task.taskId };
            break;
        case 'result':
            reports.task.result = message.result;
            break;
        case 'error':
            errors.push(String(message.error));
    }
}
reports.task.asked = asked;
const hosted = taskStore.getAllTasks();
taskStore.cleanup();
if (target.url) {
    await transport.terminateSession();
}
await client.close();
process.stdout.write(JSON.stringify({ ...reports, hosted, errors }) + '\n');
