package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/protocol"
)

// printResult prints what a request was answered with: a tool result's content as text, or
// raw. It returns the error that ends the program, nil for success.
func printResult(std streams, result json.RawMessage, raw bool) error {
	var head struct {
		IsError bool `json:"isError"`
	}
	_ = json.Unmarshal(result, &head) // what is no tool result is printed as it is
	if raw {
		fmt.Fprintf(std.out, "%s\n", result)
	} else {
		text := resultText(result)
		if isTerminal(std.out) {
			text = harmless(text)
		}
		fmt.Fprint(std.out, text)
		if !strings.HasSuffix(text, "\n") {
			fmt.Fprintln(std.out)
		}
	}
	if head.IsError {
		return exitf(codeFailed, "the tool failed")
	}
	return nil
}

// printError prints the JSON-RPC error that a request was answered with.
func printError(std streams, code int, e *jsonrpc.Error, raw bool) error {
	if raw {
		fmt.Fprintf(std.out, "{\"error\":%s}\n", (&protocol.Error{Code: e.Code, Message: e.Message, Data: e.Data}).JSON())
	}
	data := ""
	if e.Data != nil {
		data = ", data " + string(e.Data)
	}
	return exitf(code, "the call failed: %s (code %d%s)", e.Message, e.Code, data)
}

// resultText is a tool result for people: its content, or else its structured content.
func resultText(result json.RawMessage) string {
	var tool struct {
		Content []struct {
			Type, Text, Data, MimeType, URI string
			Resource                        struct{ URI, MimeType, Text, Blob string }
		}
		StructuredContent json.RawMessage
	}
	if json.Unmarshal(result, &tool) != nil || tool.Content == nil && tool.StructuredContent == nil {
		return string(result)
	}
	if len(tool.Content) == 0 {
		return string(tool.StructuredContent)
	}
	parts := make([]string, len(tool.Content))
	for i, c := range tool.Content {
		switch c.Type {
		case "text":
			parts[i] = c.Text
		case "image", "audio":
			parts[i] = fmt.Sprintf("[%s %s, %d bytes of base64; --json shows it]", c.Type, c.MimeType, len(c.Data))
		case "resource_link":
			parts[i] = fmt.Sprintf("[resource %s]", c.URI)
		case "resource":
			if parts[i] = c.Resource.Text; c.Resource.Blob != "" {
				parts[i] = fmt.Sprintf("[resource %s %s, %d bytes of base64; --json shows it]",
					c.Resource.URI, c.Resource.MimeType, len(c.Resource.Blob))
			}
		default:
			parts[i] = fmt.Sprintf("[%s; --json shows it]", c.Type)
		}
	}
	return strings.Join(parts, "\n")
}
