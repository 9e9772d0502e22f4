package coatcheck_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
	"github.com/coatcheck/coatcheck/protocol"
)

// number is the schema of an elicitation that asks for a number n.
const number = `{"type":"object","properties":{"n":{"type":"integer","minimum":1}},"required":["n"]}`

// addAsking adds the tools asking and speaks, which do what their argument script says, one
// word after the other, and return what came of it. Nothing else drives them, so that they
// can run behind anything.
//
//	ask       asks for a number          both    asks twice at once
//	sample    asks the model             tools   asks the model, with tools
//	roots     asks for the roots         url     asks for a visit, and says that it was made
//	brief     asks, and gives up soon    evil    asks, marked as another's
//	report N  reports progress N of 10   log     logs
//	flood     reports progress 10,000 times
//
// With a task of its own at hand, in process:
//
//	say      sets the statusMessage      poll    sets the poll interval
//	now      responds for now            own     reports progress by the task
//	hosted   asks the model, as a task of the client's
//	hasty    does so, and gives up soon
func addAsking(server *mcp.Server) {
	for _, name := range []string{"asking", "speaks"} {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var args struct{ Script string }
				if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
					return nil, err
				}
				var said []string
				words := strings.Fields(args.Script)
				for i, word := range words {
					operand := 0.0
					if i+1 < len(words) {
						_, _ = fmt.Sscan(words[i+1], &operand)
					}
					if what, err := perform(ctx, req, word, operand); err != nil {
						said = append(said, word+": "+err.Error())
					} else if what != "" {
						said = append(said, what)
					}
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Join(said, "; ")}}}, nil
			})
	}
}

func perform(ctx context.Context, req *mcp.CallToolRequest, word string, operand float64) (string, error) {
	task := coatcheck.FromContext(ctx)
	elicit := func(ctx context.Context, meta mcp.Meta, message string) (string, error) {
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Meta: meta, Message: message, RequestedSchema: json.RawMessage(number)})
		if err != nil {
			return "", explain(err)
		}
		return fmt.Sprint(answer.Action, " ", answer.Content["n"]), nil
	}
	report := func(n float64) error {
		return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			Meta: mcp.Meta{"kept": true}, ProgressToken: req.Params.GetProgressToken(), Progress: n, Total: 10, Message: "reporting",
		})
	}
	question := []*mcp.SamplingMessageV2{{Role: "user", Content: []mcp.Content{&mcp.TextContent{Text: "why?"}}}}
	switch word {
	case "ask":
		return elicit(ctx, mcp.Meta{"kept": 1.5}, "How many?")
	case "evil":
		return elicit(ctx, mcp.Meta{protocol.MetaRelatedTask: map[string]any{"taskId": "another's"}}, "How many?")
	case "brief":
		soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := elicit(soon, nil, "Quick!")
		return "gave up", errorUnless(err, context.DeadlineExceeded)
	case "both":
		var both sync.WaitGroup
		var first, second string
		var err1, err2 error
		both.Go(func() { first, err1 = elicit(ctx, nil, "One?") })
		both.Go(func() { second, err2 = elicit(ctx, nil, "Two?") })
		both.Wait()
		return first + ", " + second, errors.Join(err1, err2)
	case "sample":
		answer, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 5})
		if err != nil {
			return "", explain(err)
		}
		return answer.Content.(*mcp.TextContent).Text + " by " + answer.Model, nil
	case "tools":
		answer, err := req.Session.CreateMessageWithTools(ctx, &mcp.CreateMessageWithToolsParams{
			MaxTokens: 5, Messages: question, Tools: []*mcp.Tool{{Name: "t", InputSchema: json.RawMessage(`{"type":"object"}`)}},
		})
		if err != nil {
			return "", explain(err)
		}
		return fmt.Sprint(len(answer.Content), " blocks"), nil
	case "roots":
		answer, err := req.Session.ListRoots(ctx, nil)
		if err != nil {
			return "", explain(err)
		}
		return answer.Roots[0].URI, nil
	case "url":
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Mode: "url", Message: "Pay.", URL: "https://pay.example/1", ElicitationID: "e1"})
		if err != nil {
			return "", explain(err)
		}
		return answer.Action, req.Session.NotifyElicitationComplete(ctx, &mcp.ElicitationCompleteParams{ElicitationID: "e1"})
	case "report":
		return "", report(operand)
	case "flood":
		for i := range 10_000 {
			if err := report(float64(i) / 1000); err != nil {
				return "", err
			}
		}
		return "", report(10)
	case "log":
		return "", req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "warning", Logger: "l", Data: "logged"})
	case "say":
		return "", task.SetStatusMessage(ctx, "as the tool says")
	case "poll":
		return "", task.SetPollInterval(ctx, 7*time.Second)
	case "now":
		task.RespondNow("Working on it.")
	case "hasty":
		soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := task.Sample(soon, &mcp.CreateMessageWithToolsParams{MaxTokens: 5, Messages: question}, &coatcheck.AskOptions{Mode: coatcheck.Always})
		return "gave up", errorUnless(err, context.DeadlineExceeded)
	case "hosted":
		answer, err := task.Sample(ctx, &mcp.CreateMessageWithToolsParams{MaxTokens: 5, Messages: question},
			&coatcheck.AskOptions{Mode: coatcheck.Always, TTL: time.Minute})
		if err != nil {
			return "", explain(err)
		}
		return answer.Content[0].(*mcp.TextContent).Text + " by " + answer.Model, nil
	case "own":
		task.Progress(4, 0, "by the task")
	}
	return "", nil
}

func errorUnless(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("got %w", err)
}

// explain says all there is of a JSON-RPC error.
func explain(err error) error {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return fmt.Errorf("%d %s %s", wire.Code, wire.Message, wire.Data)
	}
	return err
}
