// Package peers tests the coatcheck binary against MCP software written by others: the
// TypeScript SDK's client (driven by the scripts in ts), mcp-go's client, the Inspector's command
// line, and the servers server-everything and mcp-server-commands. Nothing in it is a stand-in.
//
// mcpgoserver and ts/serve.mjs are servers for the tests of package client, which may not
// import mcp-go.
package peers
