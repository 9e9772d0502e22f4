// Package coatcheck makes slow MCP tool calls durable: hand in a call, get a ticket, pick
// the result up later, even after a crash. It adds Tasks (revision 2025-11-25 of the Model
// Context Protocol) to a server built on the official Go SDK, which has none.
//
// A server stays as it is. Its author opens a [Runtime] on it, says which tools support
// tasks, and wraps the HTTP handler or the transport:
//
//	rt, err := coatcheck.Open(ctx, server, &coatcheck.Options{
//		Tools: map[string]coatcheck.Tool{"render": {Support: coatcheck.Optional}},
//	})
//	…
//	http.Handle("/mcp", rt.Handler(mcp.NewStreamableHTTPHandler(getServer, nil)))
//	// or: server.Run(ctx, rt.Transport(&mcp.StdioTransport{}))
//
// A client that calls such a tool with params.task gets a task at once. The task is on disk
// before the client sees its id; it is run against the server as an ordinary call, in a
// session of its own; and its result, error included, is what tasks/result returns, byte
// for byte, until its ttl is over. A task whose process dies is found by the next one, or
// by another on the same file, and ends as failed.
//
// What the tool asks its client meanwhile, by the SDK's own ServerSession.Elicit or
// CreateMessage, is stored and asked on the requestor's tasks/result until it is answered;
// progress and logs go to the requestor's own streams. [FromContext] has what the SDK lacks.
//
// Whose task it is: over HTTP the user of the SDK's auth.TokenInfo, unless
// [Options.Principal] says otherwise; over stdio the operating-system user. To anyone else
// the task does not exist. Without authorization over HTTP everyone who knows an id has the
// task; ids have 130 random bits, and tasks/list is not offered.
package coatcheck
