// Usage: node slow.mjs FILE
//
// A server on the TypeScript SDK whose tools take their time and know nothing of tasks or
// tickets, on stdio. Each run of a tool writes down in FILE that it started and that it ended:
// LABEL started, LABEL ended, LABEL cancelled.
import { appendFileSync } from 'node:fs';
import { setTimeout as pass } from 'node:timers/promises';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { z } from 'zod';

const note = (label, what) => appendFileSync(process.argv[2], `${label} ${what}\n`);
const server = new McpServer({ name: 'slow', version: '1' });

// work takes its seconds in steps, and reports progress after each to who wants it.
async function work({ label, seconds, steps }, { signal, _meta, sendNotification }) {
    note(label, 'started');
    for (let step = 1; step <= steps; step++) {
        try {
            await pass(seconds * 1000 / steps, undefined, { signal });
        } catch (error) {
            note(label, 'cancelled');
            throw error;
        }
        if (_meta?.progressToken !== undefined && step < steps) {
            await sendNotification({
                method: 'notifications/progress',
                params: { progressToken: _meta.progressToken, progress: step, total: steps, message: `step ${step}` }
            });
        }
    }
    note(label, 'ended');
}

const input = { label: z.string(), seconds: z.number(), steps: z.number().default(1) };

server.registerTool('slow_compute', {
    title: 'Slow Compute',
    description: 'Computes for some seconds.',
    inputSchema: input,
    outputSchema: { label: z.string(), sum: z.number(), parts: z.array(z.object({ 'é"<': z.string() })) },
    annotations: { title: 'Compute slowly', readOnlyHint: false, idempotentHint: false }
}, async (args, extra) => {
    await work(args, extra);
    const structuredContent = { parts: [{ 'é"<': '\u2028 😀 \\' }, { 'é"<': '' }], label: args.label, sum: 1e21 + 0.1 };
    return {
        content: [{ type: 'text', text: JSON.stringify(structuredContent, undefined, 1), _meta: { 'example/kept': [1, null] } }],
        structuredContent,
        _meta: { 'example/cost': 0.30000000000000004 }
    };
});

server.registerTool('slow_failure', { description: 'Fails after some seconds.', inputSchema: input }, async (args, extra) => {
    await work(args, extra);
    return { content: [{ type: 'text', text: `No luck with ${args.label}.` }], isError: true };
});

server.registerTool('slow_question', { description: 'Asks whether to go on after some seconds.', inputSchema: input }, async (args, extra) => {
    await work(args, extra);
    const { action, content } = await server.server.elicitInput({
        message: `Go on with ${args.label}?`,
        requestedSchema: { type: 'object', properties: { confirm: { type: 'boolean' } }, required: ['confirm'] }
    }, { relatedRequestId: extra.requestId });
    note(args.label, 'answered');
    return { content: [{ type: 'text', text: `${args.label}: ${action} ${content?.confirm}` }] };
});

process.stdin.on('end', () => process.exit()); // running work would keep it
await server.connect(new StdioServerTransport());
