// Scenarios of what comes from inside a task: questions, progress, logs, changes of status.
// They take the session, too. Each reports the journal of its part of the session.
import {
    CallToolResultSchema,
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    LoggingMessageNotificationSchema,
    RELATED_TASK_META_KEY,
    TaskStatusNotificationSchema
} from '@modelcontextprotocol/sdk/types.js';
import { close, connect, create, finished, result, settle } from './session.mjs';

const task = { ttl: 3_600_000 };

// answer sets what the client says to questions: to an elicitation the answer under the name
// of the field that it asks for, to sampling the one under "sampling". Before that it calls
// meanwhile, whose report it notes.
function answer(client, answers, meanwhile) {
    const asked = [];
    const handle = key => async ({ params }, { requestId, _meta }) => {
        const question = { requestId, taskId: _meta?.[RELATED_TASK_META_KEY]?.taskId, params };
        asked.push(question);
        question.meanwhile = await meanwhile(question);
        return answers[key(params)];
    };
    client.setRequestHandler(ElicitRequestSchema, handle(params => Object.keys(params.requestedSchema.properties)[0]));
    client.setRequestHandler(CreateMessageRequestSchema, handle(() => 'sampling'));
    return asked;
}

// listen notes the logs and changes of status that the SDK hands out.
function listen(client) {
    const heard = { logs: [], statuses: [] };
    client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void heard.logs.push(params));
    client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => void heard.statuses.push(params));
    return heard;
}

// until waits for a condition, or half a minute: what is missing then shows in the report.
async function until(condition) {
    for (const end = Date.now() + 30_000; !condition() && Date.now() < end; ) {
        await new Promise(resolve => setTimeout(resolve, 5));
    }
}

// asked calls a tool that asks, with callToolStream. While together questions are open, each of
// them polls the task and makes a plain call.
export async function asked(client, { name, args, answers, together = 1, plain }, session) {
    const { journal } = session;
    const from = journal.length;
    const questions = answer(client, answers, async ({ taskId }) => {
        await until(() => questions.length >= together);
        return {
            polled: await settle(client.experimental.tasks.getTask(taskId)),
            plain: await settle(client.callTool(plain))
        };
    });
    const messages = [];
    const stream = client.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task });
    for await (const message of stream) {
        messages.push(message.type === 'error' ? { type: 'error', code: message.error.code, message: message.error.message } : message);
    }
    const last = await client.experimental.tasks.getTask(messages[0].task.taskId);
    return { created: messages[0].task, messages, asked: questions, last, journal: journal.slice(from), errors: session.errors };
}

// pushed calls a tool that asks and does not open tasks/result before the task is done.
export async function pushed(client, { name, args, answers }, session) {
    const { journal } = session;
    const from = journal.length;
    const questions = answer(client, answers, ({ taskId }) => settle(client.experimental.tasks.getTask(taskId)));
    const created = (await create(client, name, args, task)).task;
    const last = await finished(client, created.taskId);
    return {
        created, asked: questions, last, result: await result(client, created.taskId),
        journal: journal.slice(from), errors: session.errors
    };
}

// abandoned says "asked" and the task's id on stderr when it is asked, and never answers.
export async function abandoned(client, { name, args }) {
    answer(client, {}, ({ taskId }) => {
        process.stderr.write(`asked ${taskId}\n`);
        return new Promise(() => {});
    });
    const created = (await create(client, name, args, task)).task;
    return result(client, created.taskId);
}

// resumed looks at a task, waits for its result, and answers what it is asked meanwhile.
export async function resumed(client, { taskId, answers }, session) {
    const questions = answer(client, answers, () => settle(client.experimental.tasks.getTask(taskId)));
    const first = await client.experimental.tasks.getTask(taskId);
    const outcome = await result(client, taskId);
    return {
        first, asked: questions, result: outcome, last: await client.experimental.tasks.getTask(taskId),
        journal: session.journal.slice(), errors: session.errors
    };
}

// told calls a tool that says much, and listens until the end is heard of. It polls, or opens
// tasks/result first of all.
export async function told(client, { name, args, level, wait, answers }, session) {
    await session.listening;
    await client.setLoggingLevel(level);
    const { journal } = session;
    const from = journal.length;
    const heard = listen(client);
    const questions = answer(client, answers, () => {});
    const progress = [];
    const created = (await create(client, name, args, task, { onprogress: report => progress.push(report) })).task;
    if (wait) {
        await result(client, created.taskId);
    }
    const last = await finished(client, created.taskId);
    await result(client, created.taskId);
    await until(() => heard.statuses.at(-1)?.status === last.status);
    return { created, asked: questions, last, progress, ...heard, journal: journal.slice(from), errors: session.errors };
}

// overheard is told in one session while another one listens, which does the same afterwards:
// by then it has heard whatever there was to hear.
export async function overheard(client, args, session) {
    const bystander = await connect(session.target, args.capabilities);
    await bystander.listening;
    await bystander.client.setLoggingLevel(args.level);
    const mine = await told(client, args, session);
    const theirs = await told(bystander.client, args, bystander);
    theirs.journal = bystander.journal;
    await close(bystander);
    return { mine, theirs };
}
