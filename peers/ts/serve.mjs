// A server on the TypeScript SDK whose tools may run as tasks, for the tests of package client:
// on stdio, or with the argument streamableHttp at /mcp on the port in PORT.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks';

const text = text => ({ content: [{ type: 'text', text }] });
let held = [];

function newServer() {
    const server = new McpServer({ name: 'typescript', version: '1' }, {
        capabilities: { tools: {}, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
        taskStore: new InMemoryTaskStore(),
        taskMessageQueue: new InMemoryTaskMessageQueue(),
    });
    const tool = (name, work) => server.experimental.tasks.registerToolTask(name, { execution: { taskSupport: 'optional' } }, {
        createTask: async ({ taskStore }) => {
            const task = await taskStore.createTask({ ttl: 60000, pollInterval: 200 });
            Promise.resolve(work())
                .then(result => taskStore.storeTaskResult(task.taskId, result.isError ? 'failed' : 'completed', result))
                .catch(() => {}); // cancelled meanwhile
            return { task };
        },
        getTask: ({ taskId, taskStore }) => taskStore.getTask(taskId),
        getTaskResult: ({ taskId, taskStore }) => taskStore.getTaskResult(taskId),
    });
    tool('work', () => text('worked'));
    tool('fail', () => ({ ...text('no luck'), isError: true }));
    tool('hold', () => new Promise(resolve => held.push(() => resolve(text('let go')))));
    server.registerTool('release', {}, () => {
        held.forEach(release => release());
        held = [];
        return text('released');
    });
    return server;
}

if (process.argv[2] === 'streamableHttp') {
    const sessions = new Map();
    createServer(async (request, response) => {
        let transport = sessions.get(request.headers['mcp-session-id']);
        if (!transport) {
            transport = new StreamableHTTPServerTransport({
                sessionIdGenerator: randomUUID,
                onsessioninitialized: id => sessions.set(id, transport),
            });
            await newServer().connect(transport);
        }
        await transport.handleRequest(request, response);
    }).listen(Number(process.env.PORT), '127.0.0.1');
} else {
    process.stdin.on('end', () => process.exit()); // the timers of the task store would keep it
    await newServer().connect(new StdioServerTransport());
}
