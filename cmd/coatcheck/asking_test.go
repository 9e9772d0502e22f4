package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// everything has a field of every kind that there is.
const everything = `{"type":"object","properties":{
	"name":{"type":"string","title":"Your name","minLength":2},
	"mail":{"type":"string","format":"email"},
	"share":{"type":"number","maximum":1},
	"count":{"type":"integer","default":3},
	"sure":{"type":"boolean","title":"Quite sure?"},
	"gift":{"type":"boolean","title":"A gift?"},
	"colour":{"type":"string","enum":["r","g"],"enumNames":["Red","Green"]},
	"size":{"type":"string","oneOf":[{"const":"s","title":"Small"},{"const":"l","title":"Large"}],"default":"l"},
	"days":{"type":"array","items":{"type":"string","enum":["mo","tu"]},"default":["tu"]},
	"extras":{"type":"array","items":{"anyOf":[{"const":"a","title":"Extra A"},{"const":"b","title":"Extra B"}]}}
},"required":["name","sure","colour"]}`

const yesOrNo = `{"type":"object","properties":{"sure":{"type":"boolean"}},"required":["sure"]}`

// askingServer is a server whose tools ask their caller. Its one argument, if there is one, is
// the address to listen on; without it it speaks over stdio.
func askingServer() {
	s := mcp.NewServer(&mcp.Implementation{Name: "asking", Version: "1"}, nil)
	add := func(name string, tool func(context.Context, *mcp.ServerSession, json.RawMessage) (string, error)) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				said, err := tool(ctx, req.Session, req.Params.Arguments)
				if err != nil {
					return nil, err
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: said}}}, nil
			})
	}
	add("everything", func(ctx context.Context, ss *mcp.ServerSession, _ json.RawMessage) (string, error) {
		return ask(ctx, ss, "Fill in,\nplease\x1b[2J", everything)
	})
	// field asks for one field of everything.
	add("field", func(ctx context.Context, ss *mcp.ServerSession, args json.RawMessage) (string, error) {
		name, _ := protocol.Unquote(protocol.Get(args, "name"))
		schema := `{"type":"object","properties":{"` + name + `":` + string(protocol.Get(protocol.Get([]byte(everything), "properties"), name)) + `},"required":[`
		if strings.Contains(string(protocol.Get([]byte(everything), "required")), `"`+name+`"`) {
			schema += `"` + name + `"`
		}
		return ask(ctx, ss, "Fill in", schema+"]}")
	})
	add("two", func(ctx context.Context, ss *mcp.ServerSession, _ json.RawMessage) (string, error) {
		var said []string
		for _, message := range []string{"First?", "Second?"} {
			one, err := ask(ctx, ss, message, yesOrNo)
			if err != nil {
				return "", err
			}
			said = append(said, one)
		}
		return strings.Join(said, ", "), nil
	})
	add("stubborn", func(ctx context.Context, ss *mcp.ServerSession, _ json.RawMessage) (string, error) {
		for range 10 {
			if said, err := ask(ctx, ss, "Really?", yesOrNo); err != nil || strings.Contains(said, "true") {
				return said, err
			}
		}
		return "gave up", nil
	})
	add("odd", func(ctx context.Context, ss *mcp.ServerSession, _ json.RawMessage) (string, error) {
		_, err := ss.Elicit(ctx, &mcp.ElicitParams{Mode: "form", Message: "Odd?", RequestedSchema: json.RawMessage(`{"properties":{"a":{"type":"object"}}}`)})
		return fmt.Sprint(err), nil
	})
	add("visit", func(ctx context.Context, ss *mcp.ServerSession, _ json.RawMessage) (string, error) {
		result, err := ss.Elicit(ctx, &mcp.ElicitParams{Mode: "url", Message: "Sign in, please.", URL: "https://example.com/sign/in?x=1", ElicitationID: "e1"})
		if err != nil || result.Action != "accept" {
			return fmt.Sprintf("%v %v", result, err), err
		}
		return "signed in", ss.NotifyElicitationComplete(ctx, &mcp.ElicitationCompleteParams{ElicitationID: "e1"})
	})
	// withdraw asks, and withdraws its question once the file is there.
	add("withdraw", func(ctx context.Context, ss *mcp.ServerSession, args json.RawMessage) (string, error) {
		file, _ := protocol.Unquote(protocol.Get(args, "file"))
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer cancel()
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(file); err == nil {
					return
				}
			}
		}()
		_, err := ask(ctx, ss, "Still there?", yesOrNo)
		return fmt.Sprint("without an answer: ", err != nil), nil
	})
	add("log", func(ctx context.Context, ss *mcp.ServerSession, _ json.RawMessage) (string, error) {
		return "logged", ss.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Logger: "disk", Data: "nearly full"})
	})

	if len(os.Args) < 2 {
		_ = s.Run(context.Background(), &mcp.StdioTransport{}) // its end is the caller's doing
		return
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(os.Stderr, "listening on http://%s\n", listener.Addr())
	panic(http.Serve(listener, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)))
}

// ask asks with a form and returns the action and the content in words.
func ask(ctx context.Context, ss *mcp.ServerSession, message, schema string) (string, error) {
	result, err := ss.Elicit(ctx, &mcp.ElicitParams{Mode: "form", Message: message, RequestedSchema: json.RawMessage(schema)})
	if err != nil {
		return "", err
	}
	if result.Content == nil {
		return result.Action, nil
	}
	return result.Action + " " + string(protocol.Marshal(result.Content)), nil
}
