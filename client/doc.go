// Package client is the requestor's side of durable calls, for programs that host MCP
// clients on the official Go SDK. A tool call gives a handle: wait for it, watch it, answer
// it, cancel it, let go of it, and come back to it after a restart.
//
//	c := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "1"}, &mcp.ClientOptions{ElicitationHandler: ask})
//	s, err := client.Connect(ctx, c, &mcp.StreamableClientTransport{Endpoint: url}, nil)
//	…
//	t, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "render"}, nil)
//	…
//	result, err := t.Wait(ctx)
//
// What the server does not offer as a task is called plainly; the handle is the same. What a
// tool asks meanwhile goes to the SDK client's own handlers. The SDK's session stays usable
// for everything else.
package client
