package exampleserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type confirmDeleteIn struct {
	Filename string `json:"filename" jsonschema:"the file to ask about; nothing is deleted"`
}

type confirmDeleteOut struct {
	Filename string `json:"filename"`
	Deleted  bool   `json:"deleted"`
	Answer   string `json:"answer" jsonschema:"accept, decline or cancel"`
}

// confirmDelete asks once.
func confirmDelete(ctx context.Context, req *mcp.CallToolRequest, in confirmDeleteIn) (*mcp.CallToolResult, any, error) {
	answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
		Message: fmt.Sprintf("Delete %s?", in.Filename),
		RequestedSchema: json.RawMessage(`{"type":"object","properties":{
			"confirm":{"type":"boolean","title":"Delete it","description":"It cannot be undone."}},
			"required":["confirm"]}`),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("asking whether to delete: %w", err)
	}
	out := confirmDeleteOut{Filename: in.Filename, Answer: answer.Action}
	out.Deleted, _ = answer.Content["confirm"].(bool)
	out.Deleted = out.Deleted && answer.Action == "accept"
	if out.Deleted {
		return text("Deleted " + in.Filename + "."), out, nil
	}
	return text("Kept " + in.Filename + "."), out, nil
}

type multiInputOut struct {
	Name   string `json:"name"`
	Colour string `json:"colour"`
}

// multiInput asks two questions at once, and goes on when both are answered.
func multiInput(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	var out multiInputOut
	ask := func(message, field, property string, to *string) error {
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
			Message:         message,
			RequestedSchema: json.RawMessage(`{"type":"object","properties":{"` + field + `":` + property + `},"required":["` + field + `"]}`),
		})
		if err != nil {
			return fmt.Errorf("asking for the %s: %w", field, err)
		}
		if answer.Action != "accept" {
			return fmt.Errorf("the %s was not given: %s", field, answer.Action)
		}
		*to, _ = answer.Content[field].(string)
		return nil
	}
	var both sync.WaitGroup
	var nameErr, colourErr error
	both.Go(func() {
		nameErr = ask("What is your name?", "name", `{"type":"string","title":"Name","minLength":1}`, &out.Name)
	})
	both.Go(func() {
		colourErr = ask("Which colour do you like?", "colour", `{"type":"string","title":"Colour","oneOf":[{"const":"red","title":"Red"},{"const":"green","title":"Green"},{"const":"blue","title":"Blue"}],"default":"green"}`, &out.Colour)
	})
	both.Wait()
	if err := errors.Join(nameErr, colourErr); err != nil {
		return nil, nil, err
	}
	return text(out.Name + " likes " + out.Colour + "."), out, nil
}

type askModelIn struct {
	Prompt string `json:"prompt" jsonschema:"what to ask the client's model"`
}

type askModelOut struct {
	Model  string `json:"model"`
	Answer string `json:"answer"`
}

// askModel has the client's model answer.
func askModel(ctx context.Context, req *mcp.CallToolRequest, in askModelIn) (*mcp.CallToolResult, any, error) {
	answer, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
		MaxTokens: 1000,
		Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: in.Prompt}}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("asking the model: %w", err)
	}
	said, ok := answer.Content.(*mcp.TextContent)
	if !ok {
		return nil, nil, errors.New("the model answered with something else than text")
	}
	return text(said.Text), askModelOut{Model: answer.Model, Answer: said.Text}, nil
}

// maxMessages bounds chatty.
const maxMessages = 100_000

type chattyIn struct {
	Messages int `json:"messages" jsonschema:"how many log messages to send, 0 to 100000, each with progress"`
}

// chatty says much: progress and a log message for each of a number of steps.
func chatty(ctx context.Context, req *mcp.CallToolRequest, in chattyIn) (*mcp.CallToolResult, any, error) {
	if in.Messages < 0 || in.Messages > maxMessages {
		return nil, nil, fmt.Errorf("messages must be 0 to %d, not %d", maxMessages, in.Messages)
	}
	token := req.Params.GetProgressToken()
	for i := 1; i <= in.Messages; i++ {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if token != nil {
			// That they cannot be told does not fail the work.
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(i), Total: float64(in.Messages), Message: fmt.Sprintf("message %d", i),
			})
		}
		_ = req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Logger: "chatty", Data: fmt.Sprintf("message %d of %d", i, in.Messages)})
	}
	return text(fmt.Sprintf("Said %d messages.", in.Messages)), nil, nil
}
