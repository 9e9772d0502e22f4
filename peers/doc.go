// Package peers tests the coatcheck binary against MCP software written by others: the
// TypeScript SDK's client (driven by the scripts in ts), the reference server
// server-everything, and mcp-go's client. Nothing in it is a stand-in.
//
// mcpgoserver and ts/serve.mjs are servers for the tests of package client, which may not
// import mcp-go.
package peers
