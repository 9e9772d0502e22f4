// Package session is a client's MCP session at the level of raw JSON-RPC messages, over
// any SDK transport. Params, results and errors pass through it unaltered.
package session
