// Writes down every message of a session as it goes over the wire, with the stream it goes
// on: the method of the request that the stream answers, "GET", or "stdio".

// onFetch is a fetch for StreamableHTTPClientTransport. listening is called once the GET
// stream is open.
export function onFetch(journal, listening) {
    return async (url, init) => {
        const sent = init?.body ? JSON.parse(init.body) : undefined;
        const stream = init?.method === 'GET' ? 'GET' : sent?.method ?? 'answer';
        if (sent) {
            journal.push({ sent });
        }
        const response = await fetch(url, init);
        const type = response.headers.get('content-type') ?? '';
        if (type.startsWith('application/json')) {
            journal.push({ stream, received: JSON.parse(await response.clone().text()) });
        } else if (response.ok && type.startsWith('text/event-stream')) {
            const body = response.body.pipeThrough(onEvents(message => journal.push({ stream, received: message })));
            Object.defineProperty(response, 'body', { value: body });
            if (stream === 'GET') {
                listening();
            }
        }
        return response;
    };
}

// onEvents passes an event stream on as it is and gives each message in it to note.
function onEvents(note) {
    const decoder = new TextDecoder();
    let rest = '';
    return new TransformStream({
        transform(chunk, controller) {
            const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n');
            rest = lines.pop();
            for (const line of lines) {
                if (line.startsWith('data: {')) { // servers write a message on one line
                    note(JSON.parse(line.slice('data: '.length)));
                }
            }
            controller.enqueue(chunk);
        }
    });
}

// onTransport watches a stdio transport that is not connected yet.
export function onTransport(journal, transport) {
    const send = transport.send.bind(transport);
    transport.send = (message, options) => {
        journal.push({ sent: message });
        return send(message, options);
    };
    transport.onmessage = message => journal.push({ stream: 'stdio', received: message });
}
